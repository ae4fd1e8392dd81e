// Which of its ports towards a host a switch uses for a flow: every packet of a flow the same.
#pragma once

#include <cstdint>

namespace weft::packet {

inline uint32_t choose_port(uint32_t flow, uint32_t node, uint32_t ports) {
  if (ports == 1) return 0;
  uint64_t x = flow * 0x9E3779B97F4A7C15ull + node * 0xBF58476D1CE4E5B9ull;
  x ^= x >> 32;
  x *= 0x94D049BB133111EBull;
  x ^= x >> 29;
  return static_cast<uint32_t>(x % ports);
}

}  // namespace weft::packet
