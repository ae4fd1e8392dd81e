// A histogram of 64-bit integers whose memory does not grow with the run.
//
// Values fall into the buckets of bucket.hpp (relative error of a quantile <= 1/1024, exact below
// 1024 in magnitude); each octave's 4 KiB of counters is allocated when first used. Negative values
// live in a second half, allocated when the first arrives. Count, sum, min and max are exact.
// Not thread-safe: one writer, or one histogram per writer and merge().
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "stats/bucket.hpp"

namespace weft::stats {

__extension__ using int128 = __int128;

// Samples in [lower, upper], both inclusive.
struct Bucket {
  int64_t lower;
  int64_t upper;
  uint64_t count;
};

// An end without a value is not bounded by the samples (there are too few).
struct Interval {
  std::optional<int64_t> low;
  std::optional<int64_t> high;
};

// The non-empty buckets in ascending order of value. Key k >= 0 is bucket k of the values >= 0,
// key -k the bucket k of the magnitudes of negative values.
struct Sparse {
  std::vector<int32_t> keys;
  std::vector<uint64_t> counts;
  int64_t min = 0;
  int64_t max = 0;
  int128 sum = 0;
};

// Counters of one sign, by magnitude. An octave exists only if one of its counters is not zero.
class Magnitudes {
 public:
  using Octave = std::array<uint64_t, kSubBuckets>;

  Magnitudes() = default;
  Magnitudes(const Magnitudes& other);
  Magnitudes& operator=(const Magnitudes& other);
  Magnitudes(Magnitudes&&) noexcept = default;
  Magnitudes& operator=(Magnitudes&&) noexcept = default;

  void add(uint32_t bucket, uint64_t n) {
    auto& octave = octaves_[bucket >> kSubBits];
    if (!octave) [[unlikely]]
      octave = std::make_unique<Octave>(Octave{});
    (*octave)[bucket & (kSubBuckets - 1)] += n;
  }

  void merge(const Magnitudes& other);
  void repeat_since(const Magnitudes& earlier, uint64_t times);
  const Octave* octave(uint32_t i) const { return octaves_[i].get(); }
  bool operator==(const Magnitudes& other) const;

 private:
  std::array<std::unique_ptr<Octave>, kOctaves> octaves_;
};

class Histogram {
 public:
  Histogram() = default;
  Histogram(const Histogram& other);
  Histogram& operator=(const Histogram& other);
  Histogram(Histogram&&) noexcept = default;
  Histogram& operator=(Histogram&&) noexcept = default;

  // Throws std::invalid_argument when the parts contradict each other.
  static Histogram from_sparse(const Sparse& sparse);
  Sparse to_sparse() const;

  void record(int64_t value) { record(value, 1); }

  void record(int64_t value, uint64_t n) {
    if (n == 0) [[unlikely]]
      return;
    if (value >= 0) [[likely]]
      positive_.add(bucket_of(static_cast<uint64_t>(value)), n);
    else
      add_negative(value, n);
    count_ += n;
    sum_ += static_cast<int128>(value) * static_cast<int128>(n);
    min_ = value < min_ ? value : min_;
    max_ = value > max_ ? value : max_;
  }

  // Equal to having recorded the other's samples here.
  void merge(const Histogram& other);

  // Equal to having recorded `times` times more what was recorded since `earlier`, a copy of this.
  void repeat_since(const Histogram& earlier, uint64_t times);

  bool empty() const { return count_ == 0; }
  uint64_t count() const { return count_; }
  int128 sum() const { return sum_; }
  // These throw std::domain_error when empty.
  int64_t min() const;
  int64_t max() const;
  double mean() const;
  // The ceil(q n)-th smallest sample, to the resolution of its bucket; q in [0, 1].
  int64_t quantile(double q) const;
  // Order-statistic confidence interval of the q-quantile, widened to its buckets' edges.
  Interval quantile_interval(double q, double confidence) const;

  std::vector<Bucket> buckets() const;
  bool operator==(const Histogram& other) const;

 private:
  template <class Visit>
  void visit_buckets(Visit visit) const;
  void add_negative(int64_t value, uint64_t n);
  void require_samples() const;
  Bucket bucket_at_rank(uint64_t rank) const;

  Magnitudes positive_;
  std::unique_ptr<Magnitudes> negative_;
  uint64_t count_ = 0;
  int128 sum_ = 0;
  int64_t min_ = std::numeric_limits<int64_t>::max();
  int64_t max_ = std::numeric_limits<int64_t>::min();
};

}  // namespace weft::stats
