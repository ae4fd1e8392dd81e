#include "packet/placed_workload.hpp"

#include <algorithm>
#include <utility>

namespace weft::packet {

PlacedWorkload::PlacedWorkload(const WorkloadSpec& spec, std::vector<Partition*> partition,
                               const std::pmr::vector<Flow>& flows, double loopback_ps_per_byte)
    : spec_(spec),
      partition_(std::move(partition)),
      flows_(flows),
      loopback_ps_per_byte_(loopback_ps_per_byte),
      replay_(spec.operations, spec.begin, *this),
      is_done_(spec.operations.ranks, 0),
      first_(flows.size() + 1, 0) {
  for (const uint32_t flow : spec.flow) {
    if (flow != kNone) ++first_[flow + 1];
  }
  for (size_t flow = 1; flow < first_.size(); ++flow) first_[flow] += first_[flow - 1];
  sends_.resize(first_.back());
  replay_.start();
}

void PlacedWorkload::post(uint32_t send, Time now) {
  const uint32_t flow = spec_.flow[send];
  const int64_t size = spec_.operations.amount[send];
  if (flow == kNone) {
    const double copy = static_cast<double>(size) * loopback_ps_per_byte_;
    replay_.sent(send, now + static_cast<Time>(copy));
    replay_.arrived(send, now + static_cast<Time>(copy));
    return;
  }
  sends_[first_[flow] + static_cast<size_t>(flows_[flow].posted)] = send;
  partition_[spec_.operations.rank[send]]->post_operation(flow, now, size);
}

bool PlacedWorkload::advance(uint32_t rank, Time now) {
  replay_.advance(rank, now);
  return replay_.is_done(rank) && !std::exchange(is_done_[rank], uint8_t{1});
}

bool PlacedWorkload::is_done() const {
  return std::find(is_done_.begin(), is_done_.end(), 0) == is_done_.end();
}

}  // namespace weft::packet
