// Threads meet; the last to arrive does what one alone has to do, then all go on.
//
// A thread that waits spins for some microseconds and sleeps after that, so that windows of
// microseconds cost no system call. With more threads than processors it sleeps at once.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace weft {

class Barrier {
 public:
  explicit Barrier(uint32_t threads)
      : threads_(threads), spins_(threads <= std::thread::hardware_concurrency() ? kSpins : 0) {}

  template <class Last>
  void meet(Last&& last) {
    const uint32_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      last();
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      phase_.notify_all();
      return;
    }
    for (int spin = 0; spin < spins_; ++spin) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
      pause();
    }
    while (phase_.load(std::memory_order_acquire) == phase) phase_.wait(phase);
  }

 private:
  static constexpr int kSpins = 1000;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  const uint32_t threads_;
  const int spins_;
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
};

// Time of one meeting of that many threads, each alone on a processor if there are so many.
double measure_barrier_ns(uint32_t threads, uint32_t meetings);

}  // namespace weft
