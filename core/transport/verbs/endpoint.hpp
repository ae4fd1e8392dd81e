// The endpoint of the verbs transport: one queue pair, on an adapter that the process shares.
//
// Sends. A signaled work holds an entry that says whose it is and how many works (itself and the
// unsignaled ones before it) its completion retires. A post that would fill the queue with works
// of which none is signaled has its last one signaled in secret, so that the queue drains.
// Receives. Released slots wait in a list that goes to the device with the next call: before it,
// when few receives are left, else after the sends. UD payloads start 64 B into their slot, behind
// the 40 B header that the device writes there.
#pragma once

#include "transport/verbs/completions.hpp"

#ifdef WEFT_HAVE_VERBS
#include <array>

#include "base/buffer.hpp"

namespace weft::transport::verbs {

class VerbsEndpoint final : public Endpoint {
 public:
  explicit VerbsEndpoint(const Config& config) : VerbsEndpoint(config, choose_port(config)) {}
  VerbsEndpoint(const Config& config, const Choice& choice);
  ~VerbsEndpoint() override;

  std::string address() override { return own_.text(); }
  void connect(const std::string& peer, int timeout_ms) override;
  uint32_t post(std::span<const Work> works) override;
  uint32_t poll(std::span<Completion> out) override;
  uint32_t wait(std::span<Completion> out, int64_t timeout_ns) override;
  void release(uint64_t receive_slot) override;
  std::byte* send_slot(uint32_t slot) override;
  const std::byte* receive_slot(uint64_t slot) override;
  std::span<std::byte> window() override;
  std::map<std::string, std::string> describe() override;
  bool is_reliable() const override { return kind_ == Kind::rc || kind_ == Kind::srd; }
  uint64_t device_tick_mask() const override { return device_.tick_mask(); }

 private:
  struct Pending {
    uint64_t id = 0;
    uint32_t covers = 0;  // works that its completion retires
    bool hidden = false;  // signaled in secret
  };
  struct Tag {
    uint64_t work;
    unsigned int flags;
  };

  Place place() const { return {config_, device_, port_, gid_, partition_, kind_, where_}; }
  Block allocate(size_t bytes, int access) const;
  uint64_t send_address(uint32_t slot) const;
  uint64_t receive_address(uint64_t slot) const;
  void use_gpu();
  void lay_out_memory();
  void prepare_works();
  bool is_possible(const Work& work) const;
  Tag tag(const Work& work, bool is_last_free);
  void fill(ibv_send_wr& request, const Work& work, Tag tag);
  void write(const Work& work, Tag tag);
  int post_list(std::span<const Work> works, uint32_t room);
  int post_written(std::span<const Work> works, uint32_t room);
  [[noreturn]] void refuse(const Work& work) const;
  void post_receives();
  bool take(const Seen& seen, Completion& out);
  uint32_t fail(uint32_t delivered, uint64_t work, ibv_wc_status status, uint32_t vendor);
  uint32_t wait_for_event(std::span<Completion> out, int64_t timeout_ns);
  void sleep(int64_t timeout_ns);
  void look_at_device();
  std::optional<Error> reason_of(ibv_wc_status status) const;
  std::optional<Error> device_failure() const;

  Config config_;
  Kind kind_;
  std::shared_ptr<Adapter> adapter_;
  const Device& device_;
  std::string where_;
  Port port_;
  Gid gid_;
  Partition partition_;
  int node_ = -1;
  std::shared_ptr<const cuda::Device> gpu_;  // where messages lie; null: on the host
  Block sends_, receives_, window_;
  std::vector<std::byte> send_view_, receive_view_;  // what loops see of messages on a GPU
  AddressHandle peer_handle_;
  std::shared_ptr<SharedQueue> completions_;
  Queues queues_;
  Address own_, peer_;
  bool connected_ = false;
  size_t send_stride_ = 0, receive_stride_ = 0, receive_start_ = 0;

  std::array<int64_t, 8> most_bytes_;  // per operation; -1: not possible
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_sge> send_pieces_, receive_pieces_;
  std::vector<Pending> pending_;
  std::vector<uint32_t> free_pending_;
  uint32_t outstanding_ = 0, signaled_ = 0, covered_ = 0;

  std::vector<ibv_recv_wr> receive_requests_;
  ibv_recv_wr* released_first_ = nullptr;
  ibv_recv_wr* released_last_ = nullptr;
  uint32_t released_ = 0;

  uint64_t port_errors_ = 0;  // before this endpoint
  uint32_t polls_ = 0;
  uint64_t next_look_ = 0;  // ticks
  std::optional<Error> failure_;
};

}  // namespace weft::transport::verbs
#endif
