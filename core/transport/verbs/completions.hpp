// A completion queue and the queue pairs that it serves: one, or the connections of a thread.
//
// A queue pair that polls a shared queue takes what is its own; the rest waits for the others. All
// of them belong to one thread.
#pragma once

#include "transport/verbs/queues.hpp"

#ifdef WEFT_HAVE_VERBS
#include <deque>
#include <span>
#include <unordered_map>

namespace weft::transport::verbs {

// One entry of the completion queue. No initial values: every poll has an array of them.
struct Seen {
  uint64_t work;
  uint64_t ticks;
  uint32_t qp, bytes, immediate, vendor;
  ibv_wc_status status;
  bool has_immediate;
};

class SharedQueue {
 public:
  explicit SharedQueue(const Place& place);
  ~SharedQueue();
  SharedQueue(const SharedQueue&) = delete;
  SharedQueue& operator=(const SharedQueue&) = delete;
  // The queue that the thread's earlier endpoints left room in, or a new one.
  static std::shared_ptr<SharedQueue> join(Adapter& adapter, const Place& place);

  ibv_cq* get() const { return cq_.get(); }
  const ibv_comp_channel* channel() const { return channel_.get(); }
  bool is_timed() const { return timed_ != nullptr; }
  bool is_shared() const { return members_ > 1; }

  // Works of queue pairs that are gone are dropped.
  void add(uint32_t qp) { waiting_[qp]; }
  void remove(uint32_t qp) { waiting_.erase(qp); }
  uint32_t poll(uint32_t qp, std::span<Seen> out);
  bool has_waiting(uint32_t except) const;

  // With completion events: true when it was not armed before.
  bool arm();
  void take_event();

 private:
  uint32_t read(std::span<Seen> out);
  uint32_t read_timed(std::span<Seen> out);

  std::string where_;
  Channel channel_;
  CompletionQueue cq_;
  ibv_cq_ex* timed_ = nullptr;  // the same queue, when completions carry timestamps
  uint64_t tick_mask_ = 0;
  uint32_t members_, joined_ = 0;
  std::unordered_map<uint32_t, std::deque<Seen>> waiting_;
  bool armed_ = false;
  unsigned int events_ = 0;  // taken, not acknowledged yet
};

}  // namespace weft::transport::verbs
#endif
