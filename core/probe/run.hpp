// What all timed loops share: when they end, what they count, how they are stopped.
//
// A loop ends at its count, at its duration, or when its StopFlag is set (a lost peer, Ctrl-C, the
// other side's word): it then returns what it has. Responders end by the flag alone.
// Units: picoseconds in histograms, ns elsewhere.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/thread.hpp"
#include "stats/histogram.hpp"
#include "transport/endpoint.hpp"

namespace weft::probe {

// Set from any thread. `finish_at` tells receivers how many messages were sent in all: they go on
// until they have those, or nothing has come for a while.
class StopFlag {
 public:
  void set() { stopped_.store(true, std::memory_order_release); }
  bool is_set() const { return stopped_.load(std::memory_order_acquire); }
  void finish_at(uint64_t messages) { expected_.store(messages, std::memory_order_release); }
  // kNotYet until finish_at was called.
  uint64_t expected() const { return expected_.load(std::memory_order_acquire); }
  // Messages done so far, for a progress bar.
  void report(uint64_t done) { done_.store(done, std::memory_order_relaxed); }
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }

  static constexpr uint64_t kNotYet = ~uint64_t{0};

 private:
  std::atomic<bool> stopped_{false};
  std::atomic<uint64_t> expected_{kNotYet};
  std::atomic<uint64_t> done_{0};
};

struct RunSpec {
  uint64_t count = 0;       // timed messages; 0: until duration_ns
  int64_t duration_ns = 0;  // 0: until count
  uint64_t warmup = 0;      // messages before the timed ones
  uint32_t bytes = 64;      // of each message
  transport::Op op = transport::Op::send;
  bool block = false;     // sleep for completions instead of polling (Config::events)
  bool validate = false;  // fill each message and check each one received
  int cpu = -1;           // where the loop's thread runs
  uint64_t samples = 0;   // raw samples to keep, the first ones, in order
  int64_t loss_timeout_ns = 1'000'000'000;  // datagrams: then a message counts as lost
  uint64_t seed = 1;
};

struct Counts {
  uint64_t sent = 0;  // timed messages only
  uint64_t received = 0;
  uint64_t lost = 0;
  uint64_t reordered = 0;
  uint64_t duplicates = 0;
  uint64_t corrupted = 0;  // with validate
  uint64_t bytes = 0;      // payload that counts: received by a receiver, completed for a sender
  int64_t elapsed_ns = 0;  // of the timed part
  CpuTime cpu;             // of the timed part, this thread
  bool stopped = false;    // ended by the flag or an error before its count or duration
  std::string error;       // what broke the connection; what was measured until then is kept
};

struct LatencyResult {
  Counts counts;
  stats::Histogram latency;      // ps
  std::vector<int64_t> samples;  // ps
};

}  // namespace weft::probe
