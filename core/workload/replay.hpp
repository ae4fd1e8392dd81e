// Runs a workload over a network.
//
// A send is posted as soon as its dependencies allow and ends when the network has sent it; a
// receive ends when its message is here; computations of one rank and cpu run one after another.
// The network takes messages by `post` and reports `sent` and `arrived`; it also is the clock.
// Calls for one rank touch that rank's state only, so a network may run ranks in several threads,
// each always in the same one. Entry point: `Replay`. Units: ps.
#pragma once

#include <cstdint>
#include <vector>

#include "workload/progress.hpp"

namespace weft::workload {

class Network {
 public:
  virtual ~Network() = default;
  // Takes the message of this send operation, from its rank to its peer; then, later or at once,
  // calls `Replay::sent` and `Replay::arrived`.
  virtual void post(uint32_t send, Time now) = 0;
  // Calls `Replay::advance(rank, when)` at that time. A call at another time does no harm.
  virtual void wake(uint32_t rank, Time when) = 0;
};

class Replay {
 public:
  // Rank r begins at begin[r].
  Replay(const Operations& operations, const std::vector<Time>& begin, Network& network);

  // Asks the network to wake every rank when it begins.
  void start();
  // Does what rank has to do by now.
  void advance(uint32_t rank, Time now);
  // The sender's buffer is free at `when`, which may be later than now.
  void sent(uint32_t send, Time when) { add(operations().rank[send], when, kSent, send); }
  // The whole message is at the receiver at `when`. Messages of a channel come in order.
  void arrived(uint32_t send, Time when) { add(operations().peer[send], when, kArrived, send); }

  const Operations& operations() const { return progress_.operations(); }
  const Progress& progress() const { return progress_; }
  bool is_done(uint32_t rank) const { return progress_.left(rank) == 0; }
  // When the rank's last operation ended; kNever before.
  Time finished(uint32_t rank) const { return ranks_[rank].finished; }

 private:
  enum What : uint8_t { kStarted, kEnded, kSent, kArrived };

  struct Entry {
    Time time;
    uint64_t sequence;  // entries of equal times in the order in which they were made
    uint32_t operation;
    What what;
    bool operator<(const Entry& other) const {  // of a heap: the earliest on top
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };

  struct Rank {
    Time begin = 0, wake_at = kNever, finished = kNever;
    uint64_t sequence = 0;
    bool begun = false, advancing = false;
    std::vector<Entry> heap;
    std::vector<uint32_t> ready;  // released, not yet run
  };

  void add(uint32_t rank, Time when, What what, uint32_t operation);
  void handle(uint32_t rank, const Entry& entry);
  void run_ready(uint32_t rank, Time now);
  void run(uint32_t rank, uint32_t operation, Time now);
  void compute(uint32_t rank, uint32_t operation, Time now);
  void start(uint32_t rank, uint32_t operation);
  void end(uint32_t rank, uint32_t operation, Time now);

  Progress progress_;
  Network& network_;
  std::vector<Rank> ranks_;
  uint32_t cpus_ = 1;
  std::vector<Time> cpu_free_;  // [rank][cpu]
};

}  // namespace weft::workload
