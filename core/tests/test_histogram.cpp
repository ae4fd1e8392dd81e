#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "stats/binomial.hpp"
#include "stats/bucket.hpp"
#include "stats/histogram.hpp"

using weft::stats::bucket_lower;
using weft::stats::bucket_of;
using weft::stats::bucket_upper;
using weft::stats::Histogram;
using weft::stats::quantile_ranks;
using weft::stats::Sparse;

namespace {

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kGreatest = std::numeric_limits<int64_t>::max();

Histogram histogram_of(const std::vector<int64_t>& samples) {
  Histogram histogram;
  for (int64_t sample : samples) histogram.record(sample);
  return histogram;
}

std::vector<int64_t> log_uniform_samples(size_t n, uint64_t seed, bool negative) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> samples(n);
  for (auto& sample : samples) {
    sample = static_cast<int64_t>(random() >> (1 + random() % 63));
    if (negative && random() % 2 == 0) sample = -sample;
  }
  return samples;
}

int64_t order_statistic(std::vector<int64_t> samples, double q) {
  std::sort(samples.begin(), samples.end());
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(samples.size())));
  return samples[std::max<size_t>(rank, 1) - 1];
}

}  // namespace

TEST(buckets_are_exact_below_1024) {
  for (uint64_t v = 0; v < 1024; ++v) {
    CHECK_EQ(bucket_of(v), v);
    CHECK_EQ(bucket_lower(bucket_of(v)), v);
    CHECK_EQ(bucket_upper(bucket_of(v)), v);
  }
}

TEST(buckets_meet_at_every_octave_edge) {
  for (int bit = 10; bit < 64; ++bit) {
    const uint64_t edge = uint64_t{1} << bit;
    CHECK_EQ(bucket_of(edge), bucket_of(edge - 1) + 1);
    CHECK_EQ(bucket_lower(bucket_of(edge)), edge);
    CHECK_EQ(bucket_upper(bucket_of(edge - 1)), edge - 1);
    CHECK_EQ(bucket_upper(bucket_of(edge)), edge + (edge >> 9) - 1);
  }
}

TEST(buckets_tile_the_values_without_gap_or_overlap) {
  for (uint32_t b = 0; b < bucket_of(uint64_t{1} << 63); ++b) {
    CHECK_EQ(bucket_upper(b) + 1, bucket_lower(b + 1));
    CHECK_EQ(bucket_of(bucket_lower(b)), b);
    CHECK_EQ(bucket_of(bucket_upper(b)), b);
  }
}

TEST(quantiles_are_within_a_thousandth_of_the_order_statistic) {
  for (bool negative : {false, true}) {
    const auto samples = log_uniform_samples(20001, 7, negative);
    const Histogram histogram = histogram_of(samples);
    for (double q : {0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0}) {
      const auto exact = static_cast<double>(order_statistic(samples, q));
      const auto ours = static_cast<double>(histogram.quantile(q));
      CHECK(std::abs(ours - exact) <= 0.001 * std::abs(exact));
    }
  }
}

TEST(repeating_equals_recording_the_samples_since_again) {
  const std::vector<int64_t> before = {5, 7000, -3}, since = {7, 7000, 1 << 20, -3, -90000};
  Histogram repeated = histogram_of(before);
  const Histogram earlier = repeated;
  Histogram recorded = repeated;
  for (int64_t sample : since) repeated.record(sample);
  repeated.repeat_since(earlier, 4);
  for (int64_t sample : since) recorded.record(sample, 5);
  CHECK(repeated == recorded);
  CHECK(repeated.sum() == recorded.sum());
}

TEST(rank_is_not_raised_by_rounding) {
  Histogram histogram;
  for (int64_t v = 1; v <= 100; ++v) histogram.record(v);
  for (int k = 1; k <= 100; ++k) CHECK_EQ(histogram.quantile(k / 100.0), k);
}

TEST(moments_are_exact) {
  const Histogram histogram = histogram_of({-5, 1'000'003, 7, kGreatest, kLeast});
  CHECK_EQ(histogram.count(), 5u);
  CHECK_EQ(histogram.min(), kLeast);
  CHECK_EQ(histogram.max(), kGreatest);
  CHECK_EQ(histogram.mean(), (-5 + 1'000'003 + 7 - 1) / 5.0);
}

TEST(least_and_greatest_integers_survive) {
  const Histogram histogram = histogram_of({kLeast, kGreatest});
  const auto buckets = histogram.buckets();
  CHECK_EQ(buckets.size(), 2u);
  CHECK_EQ(buckets.front().lower, kLeast);
  CHECK_EQ(buckets.back().upper, kGreatest);
  CHECK(Histogram::from_sparse(histogram.to_sparse()) == histogram);
}

TEST(recording_n_times_equals_recording_once_with_n) {
  Histogram once, many;
  once.record(123456, 1000);
  for (int i = 0; i < 1000; ++i) many.record(123456);
  CHECK(once == many);
  once.record(99, 0);
  CHECK(once == many);
}

TEST(merge_equals_recording_everything_in_one) {
  const auto first = log_uniform_samples(3000, 1, false);
  const auto second = log_uniform_samples(2000, 2, true);
  auto all = first;
  all.insert(all.end(), second.begin(), second.end());
  Histogram a = histogram_of(first), b = histogram_of(second);
  Histogram ab = a, ba = b;
  ab.merge(b);
  ba.merge(a);
  CHECK(ab == histogram_of(all));
  CHECK(ab == ba);
  CHECK(!(a == ab));
}

TEST(merging_with_itself_doubles_each_count) {
  Histogram histogram = histogram_of({1, 5000, -3});
  histogram.merge(histogram);
  CHECK(histogram == histogram_of({1, 1, 5000, 5000, -3, -3}));
}

TEST(copies_are_independent) {
  Histogram original = histogram_of({1, 2, -3});
  Histogram copy = original;
  copy.record(4);
  CHECK_EQ(original.count(), 3u);
  CHECK_EQ(copy.count(), 4u);
  original = copy;
  CHECK(original == copy);
}

TEST(buckets_ascend_and_hold_every_sample) {
  const Histogram histogram = histogram_of(log_uniform_samples(5000, 3, true));
  uint64_t total = 0;
  const auto buckets = histogram.buckets();
  for (size_t i = 0; i < buckets.size(); ++i) {
    total += buckets[i].count;
    CHECK(buckets[i].lower <= buckets[i].upper);
    if (i > 0) CHECK(buckets[i - 1].upper < buckets[i].lower);
  }
  CHECK_EQ(total, histogram.count());
}

TEST(sparse_form_round_trips) {
  const Histogram histogram = histogram_of(log_uniform_samples(5000, 4, true));
  CHECK(Histogram::from_sparse(histogram.to_sparse()) == histogram);
  CHECK(Histogram::from_sparse(Histogram().to_sparse()) == Histogram());
}

TEST(damaged_sparse_forms_are_refused) {
  const Sparse good = histogram_of({3, 3, 2000, -7}).to_sparse();
  auto refused = [&](auto damage) {
    Sparse bad = good;
    damage(bad);
    CHECK_THROWS(std::invalid_argument, Histogram::from_sparse(bad));
  };
  refused([](Sparse& s) { s.counts.pop_back(); });
  refused([](Sparse& s) { s.counts[0] = 0; });
  refused([](Sparse& s) { s.counts[0] = ~uint64_t{0}; });
  refused([](Sparse& s) { std::swap(s.keys[0], s.keys[1]); });
  refused([](Sparse& s) { s.keys.back() = 1 << 20; });
  refused([](Sparse& s) { s.keys.front() = std::numeric_limits<int32_t>::min(); });
  refused([](Sparse& s) { s.min = 0; });
  refused([](Sparse& s) { s.max = 3; });
  refused([](Sparse& s) { s.sum = 1'000'000; });
}

TEST(an_empty_histogram_has_no_statistics) {
  const Histogram empty;
  CHECK_EQ(empty.count(), 0u);
  CHECK_THROWS(std::domain_error, empty.min());
  CHECK_THROWS(std::domain_error, empty.mean());
  CHECK_THROWS(std::domain_error, empty.quantile(0.5));
  CHECK_THROWS(std::domain_error, empty.quantile_interval(0.5, 0.95));
}

TEST(quantiles_outside_0_to_1_are_refused) {
  const Histogram histogram = histogram_of({1});
  CHECK_THROWS(std::invalid_argument, histogram.quantile(1.01));
  CHECK_THROWS(std::invalid_argument, histogram.quantile(std::nan("")));
  CHECK_THROWS(std::invalid_argument, histogram.quantile_interval(0.5, -1));
}

// Published tables of the distribution-free interval of the median, 95 %:
// n = 10 uses ranks 2 and 9; n = 20 ranks 6 and 15; n = 100 ranks 40 and 61.
TEST(median_ranks_match_the_published_table) {
  struct Row {
    uint64_t n, low, high;
  };
  for (const Row& row : {Row{10, 2, 9}, Row{20, 6, 15}, Row{100, 40, 61}}) {
    const auto ranks = quantile_ranks(row.n, 0.5, 0.95);
    CHECK_EQ(ranks.low, row.low);
    CHECK_EQ(ranks.high, row.high);
  }
}

// P(all n samples below the q-quantile) = q^n: above alpha / 2 no sample bounds it from above.
TEST(too_few_samples_leave_the_tail_unbounded) {
  CHECK_EQ(quantile_ranks(1000, 0.999, 0.95).high, 1001u);
  CHECK(quantile_ranks(3688, 0.999, 0.95).high <= 3688u);
  CHECK_EQ(quantile_ranks(3687, 0.999, 0.95).high, 3688u);
  const auto interval = histogram_of({1, 2, 3}).quantile_interval(0.5, 0.95);
  CHECK(!interval.low && !interval.high);
}

TEST(exact_and_normal_ranks_agree_where_they_meet) {
  const double n = 39'999;  // variance just below the switch at 10^4
  const auto exact = quantile_ranks(39'999, 0.5, 0.95);
  const double reach = 1.959964 * std::sqrt(n / 4);
  CHECK(std::abs(static_cast<double>(exact.low) - (n / 2 - reach)) <= 2);
  CHECK(std::abs(static_cast<double>(exact.high) - (n / 2 + reach)) <= 2);
  const auto normal = quantile_ranks(40'004, 0.5, 0.95);
  CHECK(normal.low - exact.low <= 4);
  CHECK(normal.high - exact.high <= 5);
}

// Exact ranks of large samples by scipy.stats.binom: the widest with at most (1 - confidence) / 2
// of the binomial outside at each end. The normal ones hold them, and are at most one wider.
TEST(normal_ranks_of_large_samples_are_the_exact_ones_or_one_wider) {
  struct Row {
    uint64_t n;
    double q, confidence;
    uint64_t low, high;
  };
  for (const Row& row :
       {Row{123'457, 0.25, 0.90, 30'614, 31'116}, Row{1'000'000, 0.5, 0.95, 499'020, 500'981},
        Row{1'000'000, 0.9, 0.95, 899'412, 900'589},
        Row{10'000'000, 0.99, 0.99, 9'899'189, 9'900'811},
        Row{100'000'000, 0.999, 0.95, 99'899'380, 99'900'620}}) {
    const auto ranks = quantile_ranks(row.n, row.q, row.confidence);
    CHECK(ranks.low == row.low || ranks.low + 1 == row.low);
    CHECK(ranks.high == row.high || ranks.high == row.high + 1);
  }
}
