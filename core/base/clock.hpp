// The clock of every measurement: the processor's invariant counter, calibrated against
// CLOCK_MONOTONIC_RAW.
//
// One plain counter read per event (11 ns on the machines we know): not serialised, since what is
// timed takes longer than the few instructions that may move across it. Units: ticks, picoseconds.
#pragma once

#include <cstdint>
#include <string>
#if defined(__x86_64__)
#include <x86intrin.h>
#else
#include <ctime>
#endif

namespace weft {

__extension__ using uint128 = unsigned __int128;

inline uint64_t ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("isb; mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
#endif
}

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Nanoseconds of CLOCK_MONOTONIC_RAW (CLOCK_MONOTONIC where there is none).
int64_t raw_ns();

class Clock {
 public:
  // Two sets of brackets around the raw clock, `seconds` apart; the narrowest bracket of each is
  // kept. error_ppm is how far the rate may be off: half the sum of both widths, a step of the
  // counter and one of the raw clock, over the distance.
  static Clock calibrate(double seconds = 0.1);
  // The process-wide clock, calibrated at first use.
  static const Clock& shared();

  int64_t ps(uint64_t ticks) const {
    return static_cast<int64_t>((static_cast<uint128>(ticks) * ps_per_tick_q32_) >> 32);
  }
  uint64_t ticks_of_ps(int64_t ps) const {
    return static_cast<uint64_t>(static_cast<double>(ps) * 1e-12 * hz_);
  }
  uint64_t ticks_of_ns(int64_t ns) const {
    return static_cast<uint64_t>(static_cast<double>(ns) * 1e-9 * hz_);
  }

  double hz() const { return hz_; }
  double error_ppm() const { return error_ppm_; }
  // The usual step from one reading to the next (their median): no finer difference means
  // anything. Some counters move in strides of 10 ns and answer a second reading with one more.
  int64_t step_ps() const { return step_ps_; }
  // Mean time of one reading.
  int64_t read_ps() const { return read_ps_; }

  // "tsc", "cntvct" or "clock_gettime".
  static std::string source();
  // Whether the counter runs at one rate on all cores at all times (CPUID 0x80000007 EDX bit 8;
  // architectural on AArch64). `reason` says why not, or how it is known.
  static bool invariant(std::string* reason);

 private:
  uint64_t ps_per_tick_q32_ = 0;
  double hz_ = 0, error_ppm_ = 0;
  int64_t step_ps_ = 0, read_ps_ = 0;
};

}  // namespace weft
