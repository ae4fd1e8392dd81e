// An endpoint over one libfabric provider.
//
// One domain and one completion queue each, so that a poll is one fi_cq_read. Works complete in the
// order posted, as with verbs: a work counts as done when it and all before it are. Reliable
// datagram endpoints meet in connect() with a hello, which also sets up what the provider makes
// lazily (tcp connections, shared memory of the peer).
// Files: ofi_open (what is opened and closed), ofi_connect (address, hello, connection events),
// ofi_endpoint (post, poll).
#pragma once

#include "transport/ofi/info.hpp"

#ifdef WEFT_HAVE_OFI
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/buffer.hpp"
#include "base/cuda.hpp"
#include "transport/ofi/traffic_class.hpp"

namespace weft::transport {

constexpr uint32_t bit(Op op) {
  return 1u << static_cast<uint32_t>(op);
}

class OfiEndpoint final : public Endpoint {
 public:
  explicit OfiEndpoint(const Config& config);

  std::string address() override;
  void connect(const std::string& peer, int timeout_ms) override;
  uint32_t post(std::span<const Work> works) override;
  uint32_t poll(std::span<Completion> out) override;
  uint32_t wait(std::span<Completion> out, int64_t timeout_ns) override;
  void release(uint64_t receive_slot) override;
  std::byte* send_slot(uint32_t slot) override { return sends_at_ + slot * send_stride_; }
  const std::byte* receive_slot(uint64_t slot) override {
    return receives_at_ + slot * receive_stride_;
  }
  std::span<std::byte> window() override { return {window_.data(), config_.remote_bytes}; }
  std::map<std::string, std::string> describe() override;
  bool is_reliable() const override { return info_->ep_attr->type != FI_EP_DGRAM; }

 private:
  // An operation in the provider's hands; its address is the operation's context.
  struct alignas(64) Entry {
    fi_context2 provider;  // belongs to the provider until the operation completes
    uint64_t id = 0;       // of the work, or the receive slot
    bool receive = false;
    bool signaled = false;
    bool silent = false;  // the provider was told to give no completion
    bool done = false;
  };
  // What address() carries, before the provider's and the endpoint's name.
  struct Card {
    std::array<char, 8> magic;
    std::array<uint64_t, 2> nonce;
    uint64_t window_base, window_bytes, window_key;
    uint32_t type, provider_bytes, name_bytes, reserved;
  };
  struct Operands {
    uint64_t operand, compare;
  };
  static constexpr uint32_t kBatch = 16;
  static constexpr uint32_t kHello = 16;               // bytes: the receiver's nonce
  static constexpr int64_t kLongestMs = 1000;          // of one sleep
  static constexpr uint32_t kLookAtEvents = 1u << 14;  // empty polls between two looks

  // ofi_open.cpp
  uint32_t choose_inline_bytes() const;
  void check_sizes();
  void open_objects();
  void use_gpu();
  void lay_out_memory();
  Fid<fid_mr> register_memory(const void* at, size_t bytes, uint64_t access, uint64_t key);
  void open_queue();
  void create_endpoint(fi_info& info);
  void bind_memory(fid_mr* memory);
  void find_operations();
  [[noreturn]] void fail(const std::string& what, long rc, const std::string& remedy = "") const;
  void check(const char* what, long rc) const {
    if (rc != 0) fail(what, rc);
  }

  // ofi_connect.cpp
  std::string name_of_local() const;
  void mark(const std::string& peer);
  Card parse(const std::string& peer, std::string& name) const;
  void connect_datagrams(const std::string& name, int64_t deadline_ns);
  void exchange_hello(const Card& card, int64_t deadline_ns);
  bool is_hello(const fi_cq_data_entry& raw) const;
  void accept_peer(int64_t deadline_ns);
  void call_peer(const Card& card, const std::string& name, int64_t deadline_ns);
  uint32_t next_event(fi_eq_cm_entry* entry, size_t bytes, int64_t deadline_ns);
  void await_connected(int64_t deadline_ns);
  void look_at_events();
  [[noreturn]] void fail_event() const;

  // ofi_endpoint.cpp
  long issue(const Work& work, Entry& entry, bool more);
  long send_message(const Work& work, Entry& entry, bool more);
  long write_message(const Work& work, Entry& entry, bool more);
  long atomic(const Work& work, Entry& entry);
  void copy_to_gpu(uint32_t slot, uint32_t bytes);
  void copy_from_gpu(uint64_t slot, uint32_t bytes) const;
  void require(const Work& work) const;
  [[noreturn]] void refuse(const Work& work) const;
  [[noreturn]] void fail_completion() const;
  uint32_t take(const fi_cq_data_entry* raw, uint32_t count, Completion* out);
  uint32_t retire(std::span<Completion> out);
  uint32_t give_early(std::span<Completion> out);
  void repost();
  bool post_receive(uint32_t slot);
  uint64_t slots() const { return config_.receive_depth + tagged_depth_; }
  // Where the provider finds what the processor sees at `at`: there, or in the GPU.
  std::byte* placed(std::byte* at) const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(at) + gpu_shift_);
  }

  Config config_;
  std::string where_;
  InfoPtr info_;
  Marks marks_;
  Buffer memory_, window_;
  std::shared_ptr<const cuda::Device> gpu_;  // where messages lie; null: on the host
  cuda::Memory gpu_memory_;                  // laid out as memory_, which then is its copy
  uintptr_t gpu_shift_ = 0;
  std::vector<Entry> sends_, receives_;
  // Closed from the last to the first.
  Fid<fid_fabric> fabric_;
  Fid<fid_domain> domain_;
  Fid<fid_eq> events_;
  Fid<fid_cq> queue_;
  Fid<fid_av> peers_;
  Fid<fid_mr> memory_region_, window_region_;
  Fid<fid_pep> listener_;
  Fid<fid_ep> endpoint_;

  std::byte* sends_at_ = nullptr;
  std::byte* receives_at_ = nullptr;
  Operands* operands_ = nullptr;
  uint64_t send_stride_ = 0, receive_stride_ = 0;
  void* memory_key_ = nullptr;  // descriptor of our own memory, where the provider wants one
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  uint64_t posted_ = 0, retired_ = 0, mask_ = 0;
  uint64_t message_flags_ = 0;  // of fi_sendmsg and the like
  uint64_t inline_end_ = 0;     // messages shorter than this are injected
  uint64_t remote_base_ = 0, remote_bytes_ = 0, remote_key_ = 0;
  uint32_t receive_bytes_ = 0, tagged_depth_ = 0;
  uint32_t least_bytes_ = 0;
  uint32_t operations_ = 0;  // bits by Op
  uint32_t empty_polls_ = 0;
  bool selective_ = false;  // the provider can leave completions out
  bool refused_ = false;    // the last post was
  bool connected_ = false;
  std::array<uint64_t, 2> nonce_{};
  std::vector<Completion> early_;  // came during connect
  // Receive slots given back and not posted yet, a ring.
  std::vector<uint32_t> returned_;
  uint32_t returned_head_ = 0, returned_tail_ = 0;
};

}  // namespace weft::transport
#endif
