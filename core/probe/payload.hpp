// What is in a message: its sequence number, and with validation a pattern that depends on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weft::probe {

constexpr uint32_t kSequenceBytes = 8;

// Messages below 8 B carry no number: reliable transports do not need it.
inline void put_sequence(std::byte* message, uint32_t bytes, uint64_t sequence) {
  if (bytes >= kSequenceBytes) std::memcpy(message, &sequence, kSequenceBytes);
}

inline uint64_t sequence_of(const std::byte* message, uint32_t bytes, uint64_t otherwise) {
  if (bytes < kSequenceBytes) return otherwise;
  uint64_t sequence;
  std::memcpy(&sequence, message, kSequenceBytes);
  return sequence;
}

// The eight bytes at position i (a multiple of 8) of the message with this number.
inline uint64_t pattern(uint64_t sequence, uint32_t i) {
  return (sequence + 1) * 0x9E3779B97F4A7C15ull + i * 0xC2B2AE3D27D4EB4Full;
}

// The number, then the pattern.
inline void fill(std::byte* message, uint32_t bytes, uint64_t sequence) {
  for (uint32_t i = 0; i < bytes; i += 8) {
    const uint64_t word = pattern(sequence, i);
    std::memcpy(message + i, &word, bytes - i < 8 ? bytes - i : 8);
  }
  put_sequence(message, bytes, sequence);
}

inline bool is_filled(const std::byte* message, uint32_t bytes, uint64_t sequence) {
  const uint32_t start = bytes >= kSequenceBytes ? kSequenceBytes : 0;
  if (start > 0 && sequence_of(message, bytes, 0) != sequence) return false;
  uint64_t difference = 0;
  for (uint32_t i = start; i < bytes; i += 8) {
    const uint64_t word = pattern(sequence, i);
    uint64_t found = word;
    std::memcpy(&found, message + i, bytes - i < 8 ? bytes - i : 8);
    difference |= word ^ found;
  }
  return difference == 0;
}

}  // namespace weft::probe
