// Ranks that bound a quantile, from the order statistics alone (no assumed distribution).
//
// Of n independent samples, B ~ Binomial(n, q) lie at or below the true q-quantile. With
// alpha = 1 - confidence, the l-th and u-th smallest samples bound it when
//   P(B <= l - 1) <= alpha / 2   and   P(B >= u) <= alpha / 2;
// l is the largest and u the smallest such rank.
#pragma once

#include <cstdint>

namespace weft::stats {

// 1-based ranks. low == 0: no sample bounds the quantile from below; high == n + 1: nor from above.
struct RankInterval {
  uint64_t low;
  uint64_t high;
};

// Exact while the variance n q (1 - q) is at most 10^4, by the normal approximation beyond.
RankInterval quantile_ranks(uint64_t n, double q, double confidence);

}  // namespace weft::stats
