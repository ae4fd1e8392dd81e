// Random numbers: xoshiro256++ seeded by splitmix64. Same seed, same stream, on every platform.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace weft {

inline uint64_t splitmix64(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

class Rng {
 public:
  explicit Rng(uint64_t seed = 1) {
    for (auto& word : state_) word = splitmix64(seed);
  }

  uint64_t next() {
    const uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in (0, 1]: never zero, so its logarithm is finite.
  double uniform() { return static_cast<double>((next() >> 11) + 1) * 0x1.0p-53; }

  // Exponential with the given mean, rounded to an integer (picoseconds here).
  int64_t exponential(double mean) {
    return mean > 0 ? static_cast<int64_t>(-mean * std::log(uniform())) : 0;
  }

 private:
  uint64_t state_[4];
};

}  // namespace weft
