// The next completions of an endpoint, polled or waited for, and when to give up.
#pragma once

#include <sched.h>

#include <array>
#include <span>

#include "probe/run.hpp"

namespace weft::probe {

constexpr int64_t kWaitNs = 100'000'000;  // how late a sleeping loop may see its stop flag
constexpr int64_t kPauseNs = 100'000;     // silence that may be a receiver's end
// An idle spinner lets others run after this many empty polls: two spinning loops on one core
// would otherwise take turns at the scheduler's pace.
constexpr uint32_t kYieldAfter = 4096;

// Counts empty polls; gives the core away when there are many in a row.
class Idle {
 public:
  void reset() { polls_ = 0; }
  void step() {
    if (++polls_ > kYieldAfter && polls_ % 64 == 0) sched_yield();
  }
  void polled(bool any) { any ? reset() : step(); }

 private:
  uint32_t polls_ = 0;
};

template <size_t Capacity>
class Inbox {
 public:
  Inbox(transport::Endpoint& endpoint, bool block) : endpoint_(endpoint), block_(block) {}

  // Empty when nothing came: look at deadlines and the stop flag, then ask again. A sleep ends
  // after `longest_ns`.
  std::span<const transport::Completion> next(int64_t longest_ns = kWaitNs) {
    const uint32_t n =
        block_ ? endpoint_.wait(completions_, longest_ns) : endpoint_.poll(completions_);
    if (n > 0 || !block_) idle_.polled(n > 0);
    return std::span(completions_).first(n);
  }

 private:
  transport::Endpoint& endpoint_;
  bool block_;
  Idle idle_;
  std::array<transport::Completion, Capacity> completions_{};
};

// When a loop's timed part ends: at its count or at its time.
class Until {
 public:
  Until(const RunSpec& run, uint64_t start)
      : count_(run.count > 0 ? run.count : ~uint64_t{0}),
        end_(run.duration_ns > 0 ? start + Clock::shared().ticks_of_ns(run.duration_ns)
                                 : ~uint64_t{0}) {}
  bool reached(uint64_t messages, uint64_t now) const { return messages >= count_ || now >= end_; }

 private:
  uint64_t count_, end_;
};

// Elapsed and CPU time of a loop's timed part, put into its counts.
class Stopwatch {
 public:
  void start(uint64_t now) {
    start_ = now;
    cpu_ = thread_cpu_time();
  }
  uint64_t started() const { return start_; }
  void stop(uint64_t now, Counts& counts) const {
    const CpuTime cpu = thread_cpu_time();
    counts.elapsed_ns = Clock::shared().ps(now - start_) / 1000;
    counts.cpu = {cpu.user_ns - cpu_.user_ns, cpu.system_ns - cpu_.system_ns};
  }

 private:
  uint64_t start_ = 0;
  CpuTime cpu_;
};

// The processor time of a receiver's timed part: not of its wait for the sender, nor of the silence
// after the last message. Any pause may be that silence.
class ReceiverWatch {
 public:
  void start(uint64_t now) { watch_.start(now); }
  bool is_started() const { return watch_.started() > 0; }
  // While nothing comes; `last` is when something did.
  void idle(uint64_t now, uint64_t last, Counts& counts) {
    if (is_started() && noted_ != last && now > last + pause_) note(now, last, counts);
  }
  void stop(uint64_t now, uint64_t last, Counts& counts) {
    if (is_started() && noted_ != last) note(now, last, counts);
  }

 private:
  void note(uint64_t now, uint64_t last, Counts& counts) {
    noted_ = last;
    watch_.stop(now, counts);
  }

  const uint64_t pause_ = Clock::shared().ticks_of_ns(kPauseNs);
  uint64_t noted_ = 0;
  Stopwatch watch_;
};

}  // namespace weft::probe
