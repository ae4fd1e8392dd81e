#include "base/barrier.hpp"

#include <chrono>
#include <vector>

namespace weft {

double measure_barrier_ns(uint32_t threads, uint32_t meetings) {
  Barrier barrier(threads);
  const auto meet = [&] {
    for (uint32_t i = 0; i < meetings; ++i) barrier.meet([] {});
  };
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> others;
    for (uint32_t i = 1; i < threads; ++i) others.emplace_back(meet);
    meet();
  }
  const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
  return time.count() / meetings;
}

}  // namespace weft
