// How far a workload has come: dependencies that are open, and messages that wait for receives.
//
// A network, or `Replay` for it, reports starts, ends and arrivals; `Progress` answers which
// operations may go next. Whatever it keeps belongs to one rank (matching to the receiving one), so
// ranks of different threads do not touch each other's state. Entry point: `Progress`. Units: ps.
#pragma once

#include <cstdint>
#include <vector>

#include "workload/operations.hpp"

namespace weft::workload {

class Progress {
 public:
  explicit Progress(const Operations& operations);

  // Calls release(operation) for each operation of a rank that waits for nothing.
  template <class Release>
  void begin(uint32_t rank, Release&& release) const {
    for (uint32_t i = operations_->rank_start[rank]; i < operations_->rank_start[rank + 1]; ++i) {
      if (operations_->dependency_start[i] == operations_->dependency_start[i + 1]) release(i);
    }
  }

  // The operation starts: release(operation) for each that waited for nothing else.
  template <class Release>
  void start(uint32_t operation, Release&& release) {
    for (uint32_t i = successor_start_[operation]; i < started_until_[operation]; ++i) {
      if (--open_[successor_[i]] == 0) release(successor_[i]);
    }
  }

  template <class Release>
  void end(uint32_t operation, Time when, Release&& release) {
    ended_[operation] = when;
    --left_[operations_->rank[operation]];
    for (uint32_t i = started_until_[operation]; i < successor_start_[operation + 1]; ++i) {
      if (--open_[successor_[i]] == 0) release(successor_[i]);
    }
  }

  // Calls visit(operation) for each that waits for this one's start, or for its end.
  template <class Visit>
  void for_each_after(uint32_t operation, bool started, Visit&& visit) const {
    const uint32_t first = started ? successor_start_[operation] : started_until_[operation];
    const uint32_t last = started ? started_until_[operation] : successor_start_[operation + 1];
    for (uint32_t i = first; i < last; ++i) visit(successor_[i]);
  }

  bool has_waiting_for_start(uint32_t operation) const {
    return started_until_[operation] > successor_start_[operation];
  }

  // A receive is posted; the send whose message is here already, or kNone.
  uint32_t post_receive(uint32_t receive);
  // The message of a send is here; the receive that waits for it, or kNone.
  uint32_t arrive(uint32_t send);

  const Operations& operations() const { return *operations_; }
  uint32_t left(uint32_t rank) const { return left_[rank]; }
  Time ended(uint32_t operation) const { return ended_[operation]; }
  const std::vector<Time>& ended() const { return ended_; }

 private:
  void match_channels();

  const Operations* operations_;
  std::vector<uint32_t> successor_start_, started_until_, successor_;
  std::vector<uint32_t> open_;     // dependencies that an operation still waits for
  std::vector<uint32_t> left_;     // operations of a rank that have not ended
  std::vector<Time> ended_;        // kNever: not yet
  std::vector<uint32_t> channel_;  // of a send or receive: its source, destination and tag
  // Of channel c, slot_start_[c] ..: receives posted and sends arrived, in order.
  std::vector<uint32_t> slot_start_, posted_, arrived_, posted_count_, arrived_count_;
};

}  // namespace weft::workload
