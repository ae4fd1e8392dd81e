// A workload's ranks on hosts.
//
// Each pair of hosts whose ranks talk has a flow, whose messages the workload posts. Message n of a
// flow is the n-th send operation posted on it: the sender writes that down before the message
// leaves, and the receiver reads it when the message is there. Ranks of one host talk over its
// loopback. What belongs to a rank is touched by the partition of its host alone.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <vector>

#include "packet/partition.hpp"
#include "workload/replay.hpp"

namespace weft::packet {

class PlacedWorkload : public workload::Network {
 public:
  // `partition` by rank; `flows` as the simulation has them.
  PlacedWorkload(const WorkloadSpec& spec, std::vector<Partition*> partition,
                 const std::pmr::vector<Flow>& flows, double loopback_ps_per_byte);

  void post(uint32_t send, Time now) override;
  void wake(uint32_t rank, Time when) override { partition_[rank]->schedule_rank(when, rank); }

  // Whether the rank has just done its last operation.
  bool advance(uint32_t rank, Time now);
  void sent(uint32_t flow, int64_t message, Time when) {
    replay_.sent(sends_[first_[flow] + static_cast<size_t>(message)], when);
  }
  void delivered(uint32_t flow, int64_t message, Time when) {
    replay_.arrived(sends_[first_[flow] + static_cast<size_t>(message)], when);
  }

  int64_t size(uint32_t flow, int64_t message) const {
    return spec_.operations.amount[sends_[first_[flow] + static_cast<size_t>(message)]];
  }

  uint32_t traffic(uint32_t rank) const { return spec_.traffic[rank]; }
  const workload::Replay& replay() const { return replay_; }
  bool is_done() const;

 private:
  const WorkloadSpec& spec_;
  const std::vector<Partition*> partition_;
  const std::pmr::vector<Flow>& flows_;
  const double loopback_ps_per_byte_;
  workload::Replay replay_;
  std::vector<uint8_t> is_done_;  // by rank
  std::vector<uint32_t> sends_;   // of flow f, first_[f] ..: its messages' operations, as posted
  std::vector<size_t> first_;
};

}  // namespace weft::packet
