#include "probe/timing_cost.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "base/clock.hpp"
#include "base/rng.hpp"
#include "probe/payload.hpp"
#include "probe/recorder.hpp"
#include "stats/histogram.hpp"

namespace weft::probe {

namespace {

constexpr uint64_t kBlock = 16384;
constexpr uint64_t kSpread = 4096;

struct Null {
  std::array<std::byte, 64> message{};
  // Added to each time: a run's latencies are not all in one bucket.
  std::vector<int64_t> spread_ps;
  stats::Histogram histogram;

  Null() {
    Rng rng(1);
    for (uint64_t i = 0; i < kSpread; ++i) spread_ps.push_back(rng.exponential(20e6));
  }
};

// The compiler has to assume that the message and the value are used.
inline void use(const std::byte* message, int64_t value) {
  asm volatile("" : : "r"(message), "r"(value) : "memory");
}

double with_timing(Null& null, const Clock& clock) {
  const uint64_t start = ticks();
  uint64_t last = start;
  Recorder recorder(null.histogram);
  for (uint64_t i = 0; i < kBlock; ++i) {
    put_sequence(null.message.data(), 64, i);
    const int64_t spread = null.spread_ps[i % kSpread];
    use(null.message.data(), spread);
    const uint64_t now = ticks();
    recorder.add(clock.ps(now - last) / 2 + spread);
    last = now;
  }
  return static_cast<double>(clock.ps(last - start)) / 1e3 / kBlock;
}

double without_timing(Null& null, const Clock& clock) {
  const uint64_t start = ticks();
  for (uint64_t i = 0; i < kBlock; ++i) {
    put_sequence(null.message.data(), 64, i);
    use(null.message.data(), null.spread_ps[i % kSpread]);
  }
  return static_cast<double>(clock.ps(ticks() - start)) / 1e3 / kBlock;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

TimingCost timing_cost(uint64_t messages) {
  const Clock& clock = Clock::shared();
  Null null;
  with_timing(null, clock);
  std::vector<double> with, without;
  for (uint64_t done = 0; done < std::max(messages, kBlock); done += kBlock) {
    with.push_back(with_timing(null, clock));
    without.push_back(without_timing(null, clock));
  }
  return {median(with), median(without)};
}

}  // namespace weft::probe
