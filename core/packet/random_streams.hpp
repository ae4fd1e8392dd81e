// Seeds of a run's random streams: each partition and each flow has its own.
#pragma once

#include <cstdint>

namespace weft::packet {

inline uint64_t seed_flow(uint64_t seed, uint64_t number) {
  return seed * 0x9E3779B97F4A7C15ull + number + 1;
}

// The first partition has the seed's own stream, so that a fabric of one has that of the seed.
// Multiples of 0 would be the seeds of flows: an odd number above all seeds of scenarios replaces
// it.
inline uint64_t seed_partition(uint64_t seed, uint32_t number) {
  if (number == 0) return seed;
  return (seed ? seed : (uint64_t{1} << 63) + 1) * 0x94D049BB133111EBull + number;
}

}  // namespace weft::packet
