#include "stats/histogram.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "stats/binomial.hpp"

namespace weft::stats {
namespace {

constexpr uint64_t kGreatestMagnitude = uint64_t{1} << 63;
// Keeps every sum of count * value inside 127 bits.
constexpr uint64_t kGreatestCount = uint64_t{1} << 62;

uint64_t magnitude_of(int64_t negative) {
  return uint64_t{0} - static_cast<uint64_t>(negative);
}

int64_t negated(uint64_t magnitude) {
  return static_cast<int64_t>(uint64_t{0} - std::min(magnitude, kGreatestMagnitude));
}

Bucket bucket_of_key(int32_t key, uint64_t count) {
  if (key >= 0) {
    const auto bucket = static_cast<uint32_t>(key);
    return {static_cast<int64_t>(bucket_lower(bucket)), static_cast<int64_t>(bucket_upper(bucket)),
            count};
  }
  const auto bucket = static_cast<uint32_t>(-key);
  return {negated(bucket_upper(bucket)), negated(bucket_lower(bucket)), count};
}

int64_t midpoint(const Bucket& bucket) {
  return bucket.lower + (bucket.upper - bucket.lower) / 2;
}

// q n is a product of rounded numbers: 0.07 * 100 must be rank 7, not 8.
uint64_t rank_of(double q, uint64_t n) {
  const double exact = q * static_cast<double>(n);
  const double nearest = std::round(exact);
  const double rank = std::abs(exact - nearest) <= 1e-12 * exact ? nearest : std::ceil(exact);
  return std::clamp<uint64_t>(static_cast<uint64_t>(rank), 1, n);
}

void require_between(const char* name, double value, double low, double high) {
  if (value >= low && value <= high) return;
  throw std::invalid_argument(std::string(name) + " " + std::to_string(value) + " is not between " +
                              std::to_string(low) + " and " + std::to_string(high));
}

void require_consistent(bool consistent, const char* problem) {
  if (!consistent)
    throw std::invalid_argument(std::string("sparse histogram: ") + problem +
                                "; the data is damaged");
}

void require_well_formed(const Sparse& sparse) {
  const auto& keys = sparse.keys;
  require_consistent(keys.size() == sparse.counts.size(), "keys and counts differ in length");
  if (keys.empty()) return;
  require_consistent(
      std::adjacent_find(keys.begin(), keys.end(), std::greater_equal<>()) == keys.end(),
      "keys are not strictly ascending");
  // Non-negative values end one octave before the magnitudes of negative ones.
  require_consistent(keys.front() >= -static_cast<int32_t>(bucket_of(kGreatestMagnitude)) &&
                         keys.back() <= static_cast<int32_t>(bucket_of(kGreatestMagnitude - 1)),
                     "a key is out of range");
  uint64_t total = 0;
  for (uint64_t count : sparse.counts) {
    require_consistent(count > 0 && count <= kGreatestCount - total, "a count is out of range");
    total += count;
  }
}

bool inside(const Bucket& bucket, int64_t value) {
  return bucket.lower <= value && value <= bucket.upper;
}

void require_moments_in_buckets(const Sparse& sparse) {
  require_consistent(sparse.min <= sparse.max &&
                         inside(bucket_of_key(sparse.keys.front(), 0), sparse.min) &&
                         inside(bucket_of_key(sparse.keys.back(), 0), sparse.max),
                     "min or max is outside its bucket");
  int128 least = 0;
  int128 greatest = 0;
  for (size_t i = 0; i < sparse.keys.size(); ++i) {
    const Bucket bucket = bucket_of_key(sparse.keys[i], sparse.counts[i]);
    least += static_cast<int128>(bucket.lower) * static_cast<int128>(bucket.count);
    greatest += static_cast<int128>(bucket.upper) * static_cast<int128>(bucket.count);
  }
  require_consistent(least <= sparse.sum && sparse.sum <= greatest, "sum contradicts the counts");
}

}  // namespace

Magnitudes::Magnitudes(const Magnitudes& other) {
  merge(other);
}

Magnitudes& Magnitudes::operator=(const Magnitudes& other) {
  if (this != &other) *this = Magnitudes(other);
  return *this;
}

void Magnitudes::repeat_since(const Magnitudes& earlier, uint64_t times) {
  for (uint32_t i = 0; i < kOctaves; ++i) {
    if (!octaves_[i]) continue;
    const Octave* before = earlier.octave(i);
    for (uint32_t j = 0; j < kSubBuckets; ++j) {
      uint64_t& count = (*octaves_[i])[j];
      count += times * (count - (before ? (*before)[j] : 0));
    }
  }
}

void Magnitudes::merge(const Magnitudes& other) {
  for (uint32_t i = 0; i < kOctaves; ++i) {
    if (!other.octaves_[i]) continue;
    if (!octaves_[i]) octaves_[i] = std::make_unique<Octave>(Octave{});
    for (uint32_t j = 0; j < kSubBuckets; ++j) (*octaves_[i])[j] += (*other.octaves_[i])[j];
  }
}

bool Magnitudes::operator==(const Magnitudes& other) const {
  auto same = [](const auto& a, const auto& b) { return a && b ? *a == *b : !a && !b; };
  return std::equal(octaves_.begin(), octaves_.end(), other.octaves_.begin(), same);
}

Histogram::Histogram(const Histogram& other) {
  merge(other);
}

Histogram& Histogram::operator=(const Histogram& other) {
  if (this != &other) *this = Histogram(other);
  return *this;
}

// Calls visit(key, count) for each non-empty bucket in ascending order, until it returns false.
template <class Visit>
void Histogram::visit_buckets(Visit visit) const {
  auto key_of = [](uint32_t i, uint32_t j) { return static_cast<int32_t>(i * kSubBuckets + j); };
  for (uint32_t i = kOctaves; negative_ && i-- > 0;) {
    const auto* octave = negative_->octave(i);
    for (uint32_t j = kSubBuckets; octave && j-- > 0;)
      if ((*octave)[j] != 0 && !visit(-key_of(i, j), (*octave)[j])) return;
  }
  for (uint32_t i = 0; i < kOctaves; ++i) {
    const auto* octave = positive_.octave(i);
    for (uint32_t j = 0; octave && j < kSubBuckets; ++j)
      if ((*octave)[j] != 0 && !visit(key_of(i, j), (*octave)[j])) return;
  }
}

void Histogram::add_negative(int64_t value, uint64_t n) {
  if (!negative_) negative_ = std::make_unique<Magnitudes>();
  negative_->add(bucket_of(magnitude_of(value)), n);
}

void Histogram::repeat_since(const Histogram& earlier, uint64_t times) {
  positive_.repeat_since(earlier.positive_, times);
  if (negative_) {
    negative_->repeat_since(earlier.negative_ ? *earlier.negative_ : Magnitudes(), times);
  }
  count_ += times * (count_ - earlier.count_);
  sum_ += static_cast<int128>(times) * (sum_ - earlier.sum_);
}

void Histogram::merge(const Histogram& other) {
  positive_.merge(other.positive_);
  if (other.negative_) {
    if (!negative_) negative_ = std::make_unique<Magnitudes>();
    negative_->merge(*other.negative_);
  }
  count_ += other.count_;
  sum_ += other.sum_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

void Histogram::require_samples() const {
  if (empty()) throw std::domain_error("the histogram is empty; record a sample first");
}

int64_t Histogram::min() const {
  require_samples();
  return min_;
}

int64_t Histogram::max() const {
  require_samples();
  return max_;
}

double Histogram::mean() const {
  require_samples();
  return static_cast<double>(sum_) / static_cast<double>(count_);
}

// The bucket of the rank-th smallest sample, its edges drawn in to [min, max].
Bucket Histogram::bucket_at_rank(uint64_t rank) const {
  Bucket bucket{max_, max_, 0};
  uint64_t seen = 0;
  visit_buckets([&](int32_t key, uint64_t count) {
    seen += count;
    if (seen < rank) return true;
    bucket = bucket_of_key(key, count);
    return false;
  });
  return {std::max(bucket.lower, min_), std::min(bucket.upper, max_), bucket.count};
}

int64_t Histogram::quantile(double q) const {
  require_samples();
  require_between("quantile", q, 0, 1);
  const uint64_t rank = rank_of(q, count_);
  if (rank == 1) return min_;
  if (rank == count_) return max_;
  return midpoint(bucket_at_rank(rank));
}

Interval Histogram::quantile_interval(double q, double confidence) const {
  require_samples();
  require_between("quantile", q, 0, 1);
  require_between("confidence", confidence, 0, 1);
  const RankInterval ranks = quantile_ranks(count_, q, confidence);
  Interval interval;
  if (ranks.low >= 1) interval.low = bucket_at_rank(ranks.low).lower;
  if (ranks.high <= count_) interval.high = bucket_at_rank(ranks.high).upper;
  return interval;
}

std::vector<Bucket> Histogram::buckets() const {
  std::vector<Bucket> all;
  visit_buckets([&](int32_t key, uint64_t count) {
    all.push_back(bucket_of_key(key, count));
    return true;
  });
  return all;
}

bool Histogram::operator==(const Histogram& other) const {
  const bool same_negative = negative_ && other.negative_ ? *negative_ == *other.negative_
                                                          : !negative_ && !other.negative_;
  return same_negative && count_ == other.count_ && sum_ == other.sum_ && min_ == other.min_ &&
         max_ == other.max_ && positive_ == other.positive_;
}

Sparse Histogram::to_sparse() const {
  Sparse sparse;
  if (empty()) return sparse;
  visit_buckets([&](int32_t key, uint64_t count) {
    sparse.keys.push_back(key);
    sparse.counts.push_back(count);
    return true;
  });
  sparse.min = min_;
  sparse.max = max_;
  sparse.sum = sum_;
  return sparse;
}

Histogram Histogram::from_sparse(const Sparse& sparse) {
  require_well_formed(sparse);
  Histogram histogram;
  if (sparse.keys.empty()) return histogram;
  require_moments_in_buckets(sparse);
  for (size_t i = 0; i < sparse.keys.size(); ++i) {
    const Bucket bucket = bucket_of_key(sparse.keys[i], sparse.counts[i]);
    histogram.record(sparse.keys[i] < 0 ? bucket.upper : bucket.lower, bucket.count);
  }
  histogram.min_ = sparse.min;
  histogram.max_ = sparse.max;
  histogram.sum_ = sparse.sum;
  return histogram;
}

}  // namespace weft::stats
