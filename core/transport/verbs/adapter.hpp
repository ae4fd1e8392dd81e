// A device as the endpoints of one process share it: one context, one protection domain, and
// memory that is registered in few pieces, each twice the last, for all of them.
#pragma once

#include "transport/verbs/device.hpp"

#ifdef WEFT_HAVE_VERBS
#include <map>
#include <mutex>
#include <tuple>

#include "base/buffer.hpp"
#include "base/cuda.hpp"

namespace weft::transport::verbs {

// What memory is for: registrations differ in it.
struct MemoryUse {
  int access = 0;
  bool is_strict = false;  // writes arrive in order: no relaxed ordering
  std::string pages;
  int node = -1;

  auto operator<=>(const MemoryUse&) const = default;
};

// Memory registered at once, cut into blocks; freed with the last of them.
struct Registered {
  Buffer memory;
  cuda::Memory gpu;  // in place of it
  MemoryRegion region;
  size_t used = 0;
  bool is_relaxed = false;  // asked for, and not refused
};

class Block {
 public:
  Block() = default;
  Block(std::shared_ptr<Registered> piece, size_t offset)
      : piece_(std::move(piece)), offset_(offset) {}
  // As the adapter is given it: the processor follows it on the host alone.
  uint64_t address() const {
    if (!piece_) return 0;
    const uint64_t start = piece_->gpu.size() > 0
                               ? piece_->gpu.at()
                               : reinterpret_cast<uintptr_t>(piece_->memory.data());
    return start + offset_;
  }
  std::byte* data() const { return piece_ ? piece_->memory.data() + offset_ : nullptr; }
  uint32_t lkey() const { return piece_->region->lkey; }
  uint32_t rkey() const { return piece_ ? piece_->region->rkey : 0; }
  const std::string& pages() const { return piece_->memory.pages(); }
  bool is_relaxed() const { return piece_->is_relaxed; }

 private:
  std::shared_ptr<Registered> piece_;
  size_t offset_ = 0;
};

class Adapter {
 public:
  explicit Adapter(const std::string& name);
  // The one that this process has open; separate: a new one, shared with nobody.
  static std::shared_ptr<Adapter> open(const std::string& name, bool separate);

  const Device& device() const { return device_; }
  ibv_pd* pd() const { return pd_.get(); }
  // Where an endpoint finds the completion queue that it shares: see completions.hpp.
  std::map<std::string, std::weak_ptr<class SharedQueue>>& shared_queues() { return queues_; }
  std::mutex& mutex() { return mutex_; }

  Block allocate(size_t bytes, const MemoryUse& use, const std::string& where);
  // Memory of the GPU, which the adapter reaches by itself; throws where it cannot.
  Block allocate_on(const std::shared_ptr<const cuda::Device>& gpu, size_t bytes,
                    const MemoryUse& use, const std::string& where);
  uint64_t registrations() const { return registrations_; }

  // Asynchronous events come to one reader: kept here for the endpoint that each is about.
  struct Watch {
    int port = 1;
    uint32_t qp = 0;
    const ibv_cq* cq = nullptr;
    uint64_t since = 0;  // port errors that were there before
  };
  uint64_t port_errors(int port);
  std::optional<ibv_event_type> failure(const Watch& watch);

 private:
  std::shared_ptr<Registered> register_piece(size_t bytes, const MemoryUse& use,
                                             const std::string& where);
  MemoryRegion try_region(const Buffer& memory, int access) const;
  void read_events();

  Device device_;
  ProtectionDomain pd_;
  std::mutex mutex_;
  struct Growing {
    std::weak_ptr<Registered> last;
    size_t total = 0;
  };
  std::map<MemoryUse, Growing> memory_;
  uint64_t registrations_ = 0;
  std::map<std::string, std::weak_ptr<class SharedQueue>> queues_;
  std::optional<ibv_event_type> fatal_;
  std::map<int, uint64_t> port_errors_;
  std::map<uint32_t, ibv_event_type> qp_errors_;
  std::map<const ibv_cq*, ibv_event_type> cq_errors_;
};

}  // namespace weft::transport::verbs
#endif
