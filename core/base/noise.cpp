#include "base/noise.hpp"

#include <atomic>
#include <exception>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/thread.hpp"

namespace weft {
namespace {

constexpr double kLongestSeconds = 60;
constexpr uint32_t kSpinsPerLook = 1024;  // at the time, while waiting

void check_seconds(const char* where, double seconds) {
  if (!(seconds > 0 && seconds <= kLongestSeconds))
    throw Error(where, std::to_string(seconds) + " s is not in (0, 60]", "choose such a time");
}

void watch(uint64_t duration, uint64_t threshold, const Clock& clock, Hiccups& seen) {
  const uint64_t start = ticks();
  uint64_t last = start;
  while (last - start < duration) {
    const uint64_t now = ticks();
    ++seen.readings;
    if (now - last > threshold) [[unlikely]] {
      seen.gaps.record(clock.ps(now - last));
      last = ticks();  // keeping the books is no hiccup
    } else {
      last = now;
    }
  }
  seen.elapsed_ns = clock.ps(last - start) / 1000;
}

// The cache line, and what both threads must know besides.
struct Rally {
  alignas(128) std::atomic<uint64_t> line{0};
  alignas(128) std::atomic<int> ready{0};
  std::atomic<bool> over{false};
  uint64_t deadline = 0;

  // False: it is over, or too late.
  template <class Condition>
  bool wait_until(Condition condition) {
    for (uint32_t spins = 1; !condition(); ++spins) {
      if (spins % kSpinsPerLook != 0) continue;
      if (over.load(std::memory_order_relaxed) || ticks() > deadline) return false;
    }
    return true;
  }
  bool wait_for_line(uint64_t value) {
    return wait_until([&] { return line.load(std::memory_order_acquire) == value; });
  }
  bool meet() {
    ready.fetch_add(1);
    return wait_until([&] { return ready.load() == 2; });
  }
};

void serve(Rally& rally, uint64_t rounds, const Clock& clock, stats::Histogram& samples) {
  if (!rally.meet()) return;
  uint64_t last = ticks();
  for (uint64_t round = 1; round <= rounds; ++round) {
    rally.line.store(2 * round - 1, std::memory_order_release);
    if (!rally.wait_for_line(2 * round)) return;
    if (round % kRoundsPerSample != 0) continue;
    const uint64_t now = ticks();
    if (round > kRoundsPerSample)  // the first ones find the line cold
      samples.record(clock.ps(now - last) / static_cast<int64_t>(2 * kRoundsPerSample));
    if (now > rally.deadline) return;
    last = ticks();
  }
}

void give_back(Rally& rally, uint64_t rounds) {
  if (!rally.meet()) return;
  for (uint64_t round = 1; round <= rounds; ++round) {
    if (!rally.wait_for_line(2 * round - 1)) return;
    rally.line.store(2 * round, std::memory_order_release);
  }
}

// Runs the body on a CPU, in a thread of its own: the caller stays where it is.
template <class Body>
std::thread on_cpu(int cpu, std::exception_ptr& failed, Body body) {
  return std::thread([cpu, &failed, body] {
    try {
      pin_thread(cpu);
      body();
    } catch (...) {
      failed = std::current_exception();
    }
  });
}

}  // namespace

Hiccups hiccups(double seconds, int cpu, int64_t threshold_ns) {
  check_seconds("hiccups", seconds);
  if (threshold_ns < 1)
    throw Error("hiccups", "threshold " + std::to_string(threshold_ns) + " ns is below 1 ns");
  const Clock& clock = Clock::shared();
  const uint64_t duration = clock.ticks_of_ns(static_cast<int64_t>(seconds * 1e9));
  Hiccups seen;
  std::exception_ptr failed;
  on_cpu(cpu, failed, [&] {
    watch(duration, clock.ticks_of_ns(threshold_ns), clock, seen);
  }).join();
  if (failed) std::rethrow_exception(failed);
  return seen;
}

stats::Histogram core_distance(int cpu_a, int cpu_b, uint64_t rounds, double seconds) {
  check_seconds("core distance", seconds);
  if (cpu_a < 0 || cpu_b < 0 || cpu_a == cpu_b)
    throw Error("core distance",
                "CPUs " + std::to_string(cpu_a) + " and " + std::to_string(cpu_b) +
                    " are not two different ones",
                "name two CPUs");
  const Clock& clock = Clock::shared();
  Rally rally;
  rally.deadline = ticks() + clock.ticks_of_ns(static_cast<int64_t>(seconds * 1e9));
  stats::Histogram samples;
  std::exception_ptr failed_a, failed_b;
  std::thread b = on_cpu(cpu_b, failed_b, [&] { give_back(rally, rounds); });
  std::thread a = on_cpu(cpu_a, failed_a, [&] { serve(rally, rounds, clock, samples); });
  a.join();
  rally.over.store(true);
  b.join();
  if (failed_a) std::rethrow_exception(failed_a);
  if (failed_b) std::rethrow_exception(failed_b);
  return samples;
}

}  // namespace weft
