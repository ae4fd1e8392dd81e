#include "workload/progress.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

namespace weft::workload {

namespace {

std::tuple<uint32_t, uint32_t, uint32_t> channel_of(const Operations& ops, uint32_t i) {
  if (ops.kind[i] == Kind::kSend) return {ops.peer[i], ops.rank[i], ops.tag[i]};
  return {ops.rank[i], ops.peer[i], ops.tag[i]};
}

// Sends and receives ordered by destination, source and tag, and by number within these.
std::vector<uint32_t> sort_messages(const Operations& ops) {
  std::vector<uint32_t> messages;
  for (uint32_t i = 0; i < ops.size(); ++i) {
    if (ops.kind[i] != Kind::kCompute) messages.push_back(i);
  }
  std::sort(messages.begin(), messages.end(), [&](uint32_t a, uint32_t b) {
    const auto x = channel_of(ops, a), y = channel_of(ops, b);
    return x != y ? x < y : a < b;
  });
  return messages;
}

}  // namespace

uint32_t find_cycle(const Operations& ops) {
  std::vector<uint32_t> open(ops.size()), degree(ops.size() + 1, 0);
  for (const uint32_t before : ops.dependency) ++degree[before + 1];
  std::partial_sum(degree.begin(), degree.end(), degree.begin());
  std::vector<uint32_t> successor(ops.dependency.size()), fill(degree.begin(), degree.end() - 1);
  std::vector<uint32_t> free;
  for (uint32_t i = 0; i < ops.size(); ++i) {
    open[i] = ops.dependency_start[i + 1] - ops.dependency_start[i];
    for (uint32_t d = ops.dependency_start[i]; d < ops.dependency_start[i + 1]; ++d) {
      successor[fill[ops.dependency[d]]++] = i;
    }
    if (open[i] == 0) free.push_back(i);
  }
  while (!free.empty()) {
    const uint32_t i = free.back();
    free.pop_back();
    for (uint32_t s = degree[i]; s < degree[i + 1]; ++s) {
      if (--open[successor[s]] == 0) free.push_back(successor[s]);
    }
  }
  // What is left waits for a cycle or is on one: going back along open dependencies meets it.
  const auto stuck = std::find_if(open.begin(), open.end(), [](uint32_t n) { return n > 0; });
  if (stuck == open.end()) return kNone;
  std::vector<uint8_t> visited(ops.size(), 0);
  auto at = static_cast<uint32_t>(stuck - open.begin());
  while (!visited[at]) {
    visited[at] = 1;
    const auto first = ops.dependency.begin() + ops.dependency_start[at];
    const auto last = ops.dependency.begin() + ops.dependency_start[at + 1];
    at = *std::find_if(first, last, [&](uint32_t before) { return open[before] > 0; });
  }
  return at;
}

Unmatched find_unmatched(const Operations& ops) {
  const std::vector<uint32_t> messages = sort_messages(ops);
  for (size_t i = 0; i < messages.size();) {
    const auto channel = channel_of(ops, messages[i]);
    std::array<uint32_t, 2> count{};
    for (; i < messages.size() && channel_of(ops, messages[i]) == channel; ++i) {
      ++count[static_cast<size_t>(ops.kind[messages[i]])];
    }
    if (count[0] == count[1]) continue;
    const auto [destination, source, tag] = channel;
    return {source, destination, tag, count[0], count[1]};
  }
  return {};
}

Progress::Progress(const Operations& operations)
    : operations_(&operations), left_(operations.ranks, 0), ended_(operations.size(), kNever) {
  const uint32_t n = operations.size();
  successor_start_.assign(n + 1, 0);
  open_.resize(n);
  std::vector<uint32_t> at_start(n, 0);
  for (size_t d = 0; d < operations.dependency.size(); ++d) {
    ++successor_start_[operations.dependency[d] + 1];
    at_start[operations.dependency[d]] += operations.on_start[d];
  }
  std::partial_sum(successor_start_.begin(), successor_start_.end(), successor_start_.begin());
  // Those that wait for the start come first.
  started_until_.resize(n);
  std::vector<uint32_t> next_end(n);
  for (uint32_t i = 0; i < n; ++i) {
    started_until_[i] = successor_start_[i];
    next_end[i] = successor_start_[i] + at_start[i];
  }
  successor_.resize(operations.dependency.size());
  for (uint32_t i = 0; i < n; ++i) {
    ++left_[operations.rank[i]];
    open_[i] = operations.dependency_start[i + 1] - operations.dependency_start[i];
    for (uint32_t d = operations.dependency_start[i]; d < operations.dependency_start[i + 1]; ++d) {
      const uint32_t before = operations.dependency[d];
      successor_[operations.on_start[d] ? started_until_[before]++ : next_end[before]++] = i;
    }
  }
  match_channels();
}

void Progress::match_channels() {
  const Operations& ops = *operations_;
  const std::vector<uint32_t> messages = sort_messages(ops);
  channel_.assign(ops.size(), kNone);
  slot_start_.push_back(0);
  for (size_t i = 0; i < messages.size();) {
    const auto key = channel_of(ops, messages[i]);
    const auto channel = static_cast<uint32_t>(slot_start_.size() - 1);
    std::array<uint32_t, 2> count{};
    for (; i < messages.size() && channel_of(ops, messages[i]) == key; ++i) {
      channel_[messages[i]] = channel;
      ++count[static_cast<size_t>(ops.kind[messages[i]])];
    }
    slot_start_.push_back(slot_start_.back() + std::max(count[0], count[1]));
  }
  posted_.resize(slot_start_.back());
  arrived_.resize(slot_start_.back());
  posted_count_.assign(slot_start_.size() - 1, 0);
  arrived_count_.assign(slot_start_.size() - 1, 0);
}

uint32_t Progress::post_receive(uint32_t receive) {
  const uint32_t channel = channel_[receive];
  const uint32_t slot = posted_count_[channel]++;
  posted_[slot_start_[channel] + slot] = receive;
  return slot < arrived_count_[channel] ? arrived_[slot_start_[channel] + slot] : kNone;
}

uint32_t Progress::arrive(uint32_t send) {
  const uint32_t channel = channel_[send];
  const uint32_t slot = arrived_count_[channel]++;
  arrived_[slot_start_[channel] + slot] = send;
  return slot < posted_count_[channel] ? posted_[slot_start_[channel] + slot] : kNone;
}

}  // namespace weft::workload
