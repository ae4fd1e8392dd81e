#include "flow/strict_order.hpp"

#include <algorithm>

namespace weft::flow {

const std::vector<double>& StrictOrder::solve(std::span<const uint32_t> order,
                                              std::span<const uint32_t> ends) {
  left_.resize(network_.ports());
  for (uint32_t port = 0; port < left_.size(); ++port) left_[port] = network_.capacity(port);
  rising_.assign(left_.size(), 0);
  last_.assign(left_.size(), kNone);
  const uint32_t flows = order.empty() ? 0 : *std::max_element(order.begin(), order.end()) + 1;
  rates_.assign(flows, 0);
  is_fixed_.assign(flows, 0);
  uint32_t first = 0;
  for (const uint32_t end : ends) {
    const auto group = order.subspan(first, end - first);
    if (group.size() == 1) {
      fill_flow(group[0]);
    } else {
      fill_group(group);
    }
    first = end;
  }
  return rates_;
}

void StrictOrder::fill_flow(uint32_t flow) {
  double rate = network_.cap(flow);
  network_.for_each_port(flow, [&](uint32_t port) { rate = std::min(rate, left_[port]); });
  rates_[flow] = rate;
  network_.for_each_port(flow, [&](uint32_t port) { left_[port] -= rate; });
}

void StrictOrder::fill_group(std::span<const uint32_t> group) {
  list_members(group);
  levels_.clear();
  for (const uint32_t port : used_) levels_.push_back({left_[port] / rising_[port], port});
  std::make_heap(levels_.begin(), levels_.end());
  const auto cap_level = [&](uint32_t f) { return network_.cap(f) / network_.weight(f); };
  by_cap_.clear();
  for (const uint32_t flow : group) {
    if (network_.cap(flow) < kUnlimited) by_cap_.push_back(flow);
  }
  std::sort(by_cap_.begin(), by_cap_.end(),
            [&](uint32_t a, uint32_t b) { return cap_level(a) < cap_level(b); });
  size_t next_cap = 0;
  while (!levels_.empty()) {
    std::pop_heap(levels_.begin(), levels_.end());
    const Level top = levels_.back();
    levels_.pop_back();
    if (!(rising_[top.port] > 0)) continue;  // all of its flows are fixed
    const double level = std::max(0.0, left_[top.port] / rising_[top.port]);
    if (level > top.level) {  // flows were fixed elsewhere below it
      levels_.push_back({level, top.port});
      std::push_heap(levels_.begin(), levels_.end());
      continue;
    }
    if (next_cap < by_cap_.size() && cap_level(by_cap_[next_cap]) <= top.level) {
      fix(by_cap_[next_cap], cap_level(by_cap_[next_cap]));
      ++next_cap;
      levels_.push_back(top);
      std::push_heap(levels_.begin(), levels_.end());
      continue;
    }
    for (uint32_t i = last_[top.port]; i != kNone; i = members_[i].before) {
      fix(members_[i].flow, level);
    }
  }
  // Flows without ports.
  for (; next_cap < by_cap_.size(); ++next_cap) {
    fix(by_cap_[next_cap], cap_level(by_cap_[next_cap]));
  }
  for (const uint32_t port : used_) {
    rising_[port] = 0;
    last_[port] = kNone;
  }
}

void StrictOrder::list_members(std::span<const uint32_t> group) {
  used_.clear();
  members_.clear();
  for (const uint32_t flow : group) {
    network_.for_each_port(flow, [&](uint32_t port) {
      if (last_[port] == kNone) used_.push_back(port);
      members_.push_back({flow, last_[port]});
      last_[port] = static_cast<uint32_t>(members_.size()) - 1;
      rising_[port] += network_.weight(flow);
    });
  }
}

void StrictOrder::fix(uint32_t flow, double level) {
  if (is_fixed_[flow]) return;
  is_fixed_[flow] = 1;
  const double weight = network_.weight(flow), rate = level * weight;
  rates_[flow] = rate;
  network_.for_each_port(flow, [&](uint32_t port) {
    left_[port] -= rate;
    rising_[port] -= weight;
  });
}

}  // namespace weft::flow
