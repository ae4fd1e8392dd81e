#include "workload/replay.hpp"

#include <algorithm>

namespace weft::workload {

Replay::Replay(const Operations& operations, const std::vector<Time>& begin, Network& network)
    : progress_(operations), network_(network), ranks_(operations.ranks) {
  for (const uint8_t cpu : operations.cpu) cpus_ = std::max<uint32_t>(cpus_, cpu + 1u);
  cpu_free_.assign(size_t{operations.ranks} * cpus_, 0);
  for (uint32_t r = 0; r < operations.ranks; ++r) {
    ranks_[r].begin = begin[r];
    if (is_done(r)) ranks_[r].finished = begin[r];
  }
}

void Replay::start() {
  for (uint32_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].wake_at = ranks_[r].begin;
    network_.wake(r, ranks_[r].begin);
  }
}

void Replay::advance(uint32_t rank, Time now) {
  Rank& state = ranks_[rank];
  if (now >= state.wake_at) state.wake_at = kNever;
  state.advancing = true;
  if (!state.begun && now >= state.begin) {
    state.begun = true;
    progress_.begin(rank, [&](uint32_t operation) { state.ready.push_back(operation); });
    run_ready(rank, now);
  }
  while (!state.heap.empty() && state.heap.front().time <= now) {
    std::pop_heap(state.heap.begin(), state.heap.end());
    const Entry entry = state.heap.back();
    state.heap.pop_back();
    handle(rank, entry);
    run_ready(rank, now);
  }
  state.advancing = false;
  if (!state.heap.empty() && state.heap.front().time < state.wake_at) {
    state.wake_at = state.heap.front().time;
    network_.wake(rank, state.wake_at);
  }
}

void Replay::add(uint32_t rank, Time when, What what, uint32_t operation) {
  Rank& state = ranks_[rank];
  state.heap.push_back({when, state.sequence++, operation, what});
  std::push_heap(state.heap.begin(), state.heap.end());
  if (state.advancing || when >= state.wake_at) return;
  state.wake_at = when;
  network_.wake(rank, when);
}

void Replay::handle(uint32_t rank, const Entry& entry) {
  switch (entry.what) {
    case kStarted:
      start(rank, entry.operation);
      break;
    case kEnded:
    case kSent:
      end(rank, entry.operation, entry.time);
      break;
    case kArrived:
      if (const uint32_t receive = progress_.arrive(entry.operation); receive != kNone) {
        end(rank, receive, entry.time);
      }
      break;
  }
}

// Runs what was released, in order; what that releases comes after it.
void Replay::run_ready(uint32_t rank, Time now) {
  std::vector<uint32_t>& ready = ranks_[rank].ready;
  for (size_t i = 0; i < ready.size(); ++i) run(rank, ready[i], now);
  ready.clear();
}

void Replay::run(uint32_t rank, uint32_t operation, Time now) {
  switch (operations().kind[operation]) {
    case Kind::kSend:
      start(rank, operation);
      network_.post(operation, now);
      break;
    case Kind::kReceive:
      start(rank, operation);
      if (progress_.post_receive(operation) != kNone) end(rank, operation, now);
      break;
    case Kind::kCompute:
      compute(rank, operation, now);
      break;
  }
}

void Replay::compute(uint32_t rank, uint32_t operation, Time now) {
  Time& free = cpu_free_[size_t{rank} * cpus_ + operations().cpu[operation]];
  const Time begin = std::max(free, now);
  free = begin + operations().amount[operation];
  if (begin == now) {
    start(rank, operation);
  } else if (progress_.has_waiting_for_start(operation)) {
    add(rank, begin, kStarted, operation);
  }
  if (free == now) {
    end(rank, operation, now);
  } else {
    add(rank, free, kEnded, operation);
  }
}

void Replay::start(uint32_t rank, uint32_t operation) {
  progress_.start(operation, [&](uint32_t next) { ranks_[rank].ready.push_back(next); });
}

void Replay::end(uint32_t rank, uint32_t operation, Time now) {
  progress_.end(operation, now, [&](uint32_t next) { ranks_[rank].ready.push_back(next); });
  if (is_done(rank)) ranks_[rank].finished = now;
}

}  // namespace weft::workload
