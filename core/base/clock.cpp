#include "base/clock.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/error.hpp"

namespace weft {
namespace {

#if defined(CLOCK_MONOTONIC_RAW)
constexpr clockid_t kRawClock = CLOCK_MONOTONIC_RAW;
#else
constexpr clockid_t kRawClock = CLOCK_MONOTONIC;
#endif

constexpr int kBrackets = 200;
constexpr int kReadings = 10'000;
constexpr double kRawStepNs = 1.0;  // timespec has no finer unit

// A reading of the raw clock that happened between two readings of the counter.
struct Bracket {
  uint64_t before = 0, after = 0;
  int64_t raw_ns = 0;

  uint64_t width() const { return after - before; }
  double middle(uint64_t origin) const {
    return static_cast<double>(before - origin) + static_cast<double>(width()) / 2;
  }
};

Bracket narrowest_bracket() {
  Bracket best;
  for (int i = 0; i < kBrackets; ++i) {
    Bracket next;
    next.before = ticks();
    next.raw_ns = raw_ns();
    next.after = ticks();
    if (i == 0 || next.width() < best.width()) best = next;
  }
  return best;
}

void sleep_for(double seconds) {
  timespec left;
  left.tv_sec = static_cast<time_t>(seconds);
  left.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  while (nanosleep(&left, &left) != 0) {
  }
}

uint64_t usual_step() {
  std::vector<uint64_t> steps(kReadings);
  uint64_t last = ticks();
  for (uint64_t& step : steps) {
    uint64_t now = ticks();
    while (now == last) now = ticks();
    step = now - last;
    last = now;
  }
  const auto middle = steps.begin() + kReadings / 2;
  std::nth_element(steps.begin(), middle, steps.end());
  return *middle;
}

// The best of a few runs: an interrupt in one does not count as the price of a reading.
double mean_reading_ticks() {
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (int run = 0; run < 10; ++run) {
    const uint64_t start = ticks();
    uint64_t last = start;
    for (int i = 0; i < kReadings / 10; ++i) last = ticks();
    least = std::min(least, last - start);
  }
  return static_cast<double>(least) / (kReadings / 10);
}

#if defined(__aarch64__)
double nominal_hz() {
  uint64_t value;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(value));
  return static_cast<double>(value);
}
#else
double nominal_hz() {
  return 0;
}
#endif

#if defined(__x86_64__)
bool has_invariant_bit() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && ((d >> 8) & 1) != 0;
}

std::string line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool has_word(const std::string& line, const std::string& word) {
  std::istringstream words(line);
  for (std::string next; words >> next;)
    if (next == word) return true;
  return false;
}

// The kernel watches the counter against other clocks and drops it from its list when it strays.
bool is_trusted_by_kernel(std::string* reason) {
  const std::string dir = "/sys/devices/system/clocksource/clocksource0/";
  const std::string available = line_of((dir + "available_clocksource").c_str());
  const std::string current = line_of((dir + "current_clocksource").c_str());
  if (available.empty()) {
    *reason = "CPUID says invariant; the kernel's list of clock sources cannot be read";
    return true;
  }
  if (!has_word(available, "tsc")) {
    *reason = "CPUID says invariant, but the kernel does not trust tsc (it uses " + current + ")";
    return false;
  }
  *reason = has_word(current, "tsc")
                ? "CPUID says invariant; the kernel keeps time by it"
                : "CPUID says invariant; the kernel lists tsc but uses " + current;
  return true;
}
#endif

}  // namespace

int64_t raw_ns() {
  timespec now;
  clock_gettime(kRawClock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

Clock Clock::calibrate(double seconds) {
  if (!(seconds > 0 && seconds <= 60))
    throw Error("clock calibration", std::to_string(seconds) + " s is not in (0, 60]");
  const Bracket first = narrowest_bracket();
  sleep_for(seconds);
  const Bracket last = narrowest_bracket();

  const double elapsed_ns = static_cast<double>(last.raw_ns - first.raw_ns);
  const double elapsed_ticks = last.middle(first.before) - first.middle(first.before);
  if (elapsed_ns <= 0 || elapsed_ticks <= 0)
    throw Error("clock calibration", "the counter or CLOCK_MONOTONIC_RAW did not advance",
                "the processor's counter cannot be used on this host");
  Clock clock;
  clock.hz_ = elapsed_ticks / elapsed_ns * 1e9;
  const uint64_t step = usual_step();
  const double widths = static_cast<double>(first.width() + last.width()) / 2;
  clock.error_ppm_ =
      ((widths + static_cast<double>(step)) / elapsed_ticks + kRawStepNs / elapsed_ns) * 1e6;
  const double nominal = nominal_hz();
  if (nominal > 0 && std::abs(clock.hz_ / nominal - 1) * 1e6 <= clock.error_ppm_)
    clock.hz_ = nominal;
  clock.ps_per_tick_q32_ = static_cast<uint64_t>(1e12 / clock.hz_ * 0x1.0p32 + 0.5);
  clock.step_ps_ = clock.ps(step);
  clock.read_ps_ = static_cast<int64_t>(mean_reading_ticks() * 1e12 / clock.hz_);
  return clock;
}

const Clock& Clock::shared() {
  static const Clock clock = calibrate();
  return clock;
}

std::string Clock::source() {
#if defined(__x86_64__)
  return "tsc";
#elif defined(__aarch64__)
  return "cntvct";
#else
  return "clock_gettime";
#endif
}

bool Clock::invariant(std::string* reason) {
  std::string why;
#if defined(__x86_64__)
  bool result = has_invariant_bit();
  if (result)
    result = is_trusted_by_kernel(&why);
  else
    why = "CPUID 0x80000007 EDX bit 8 is not set: the counter's rate may change";
#elif defined(__aarch64__)
  const bool result = true;
  why = "the architecture's system counter runs at one rate";
#else
  const bool result = true;
  why = "the kernel's monotonic clock";
#endif
  if (reason != nullptr) *reason = why;
  return result;
}

}  // namespace weft
