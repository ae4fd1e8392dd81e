// Log-linear buckets: 512 per octave, so a bucket's mid-point is within 1/1024 of any value in it.
//
// With s = max(0, floor(log2 v) - 9), the bucket of v is 512 s + floor(v / 2^s): it covers 2^s
// values, and below 1024 exactly one. Buckets are numbered without gaps, in the order of values.
#pragma once

#include <bit>
#include <cstdint>

namespace weft::stats {

inline constexpr int kSubBits = 9;
inline constexpr uint32_t kSubBuckets = 1u << kSubBits;
// Magnitudes reach 2^63, the magnitude of the least int64.
inline constexpr uint32_t kOctaves = 64 - kSubBits + 1;
inline constexpr uint32_t kBuckets = kOctaves * kSubBuckets;

constexpr uint32_t bucket_of(uint64_t magnitude) {
  const int shift = std::bit_width(magnitude | kSubBuckets) - (kSubBits + 1);
  return (static_cast<uint32_t>(shift) << kSubBits) + static_cast<uint32_t>(magnitude >> shift);
}

constexpr int bucket_shift(uint32_t bucket) {
  const uint32_t octave = bucket >> kSubBits;
  return octave == 0 ? 0 : static_cast<int>(octave - 1);
}

constexpr uint64_t bucket_lower(uint32_t bucket) {
  const int shift = bucket_shift(bucket);
  return (static_cast<uint64_t>(bucket) - (static_cast<uint64_t>(shift) << kSubBits)) << shift;
}

// The largest value in the bucket (inclusive).
constexpr uint64_t bucket_upper(uint32_t bucket) {
  return bucket_lower(bucket) + ((uint64_t{1} << bucket_shift(bucket)) - 1);
}

}  // namespace weft::stats
