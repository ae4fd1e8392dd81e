// Which numbers of a sequence have come: lost, late and repeated ones.
#pragma once

#include <array>
#include <cstdint>

namespace weft::probe {

class Sequence {
 public:
  // Numbers this far behind the highest are forgotten, and count as repeated.
  static constexpr uint64_t kWindow = 4096;

  enum class Arrival : uint8_t { in_order, late, repeated };

  Arrival take(uint64_t number) {
    if (number >= next_) {
      // Numbers skipped, and those a whole window ago, have not come.
      const uint64_t skipped = number - next_;
      if (skipped >= kWindow)
        seen_.fill(false);
      else
        for (uint64_t i = next_; i < number; ++i) seen_[i % kWindow] = false;
      seen_[number % kWindow] = true;
      next_ = number + 1;
      ++unique_;
      return Arrival::in_order;
    }
    if (next_ - number > kWindow || seen_[number % kWindow]) return Arrival::repeated;
    seen_[number % kWindow] = true;
    ++unique_;
    return Arrival::late;
  }

  uint64_t unique() const { return unique_; }
  uint64_t next() const { return next_; }

 private:
  std::array<bool, kWindow> seen_{};
  uint64_t next_ = 0, unique_ = 0;
};

}  // namespace weft::probe
