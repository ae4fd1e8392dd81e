#include "stats/binomial.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace weft::stats {
namespace {

constexpr double kExactVariance = 1e4;
// Beyond this many standard deviations (and for Poisson-like tails, this many counts) a binomial
// has no mass that a double can add.
constexpr double kWindowSigmas = 12;
constexpr double kWindowCounts = 64;

// The binomial's probabilities on the window of counts that holds all its mass.
struct Window {
  uint64_t first;
  std::vector<double> probability;
};

// Ratios of neighbouring terms, from the mode outwards, then normalised: no factorial, no
// underflow.
Window binomial_window(uint64_t n, double q) {
  const double mean = static_cast<double>(n) * q;
  const double reach = kWindowSigmas * std::sqrt(mean * (1 - q)) + kWindowCounts;
  const auto first = static_cast<uint64_t>(std::max(0.0, std::floor(mean - reach)));
  const auto last = std::min(n, static_cast<uint64_t>(std::ceil(mean + reach)));
  const uint64_t mode = std::min(last, static_cast<uint64_t>(mean));
  Window window{first, std::vector<double>(last - first + 1, 0.0)};
  auto at = [&](uint64_t k) -> double& { return window.probability[k - first]; };
  at(mode) = 1;
  for (uint64_t k = mode; k < last; ++k)
    at(k + 1) = at(k) * static_cast<double>(n - k) / static_cast<double>(k + 1) * (q / (1 - q));
  for (uint64_t k = mode; k > first; --k)
    at(k - 1) = at(k) * static_cast<double>(k) / static_cast<double>(n - k + 1) * ((1 - q) / q);
  double total = 0;
  for (double p : window.probability) total += p;
  for (double& p : window.probability) p /= total;
  return window;
}

RankInterval exact_ranks(uint64_t n, double q, double half_alpha) {
  const Window window = binomial_window(n, q);
  const auto& p = window.probability;
  size_t below = 0;
  for (double sum = 0; below < p.size() && sum + p[below] <= half_alpha; ++below) sum += p[below];
  size_t above = p.size();
  for (double sum = 0; above > 0 && sum + p[above - 1] <= half_alpha; --above) sum += p[above - 1];
  return {window.first + below, window.first + above};
}

// The z with P(Z > z) = tail, by bisection: erfc is exact enough and this is not a hot path.
double normal_upper_point(double tail) {
  double low = 0;
  double high = 40;
  for (int i = 0; i < 80; ++i) {
    const double mid = (low + high) / 2;
    (0.5 * std::erfc(mid / std::sqrt(2.0)) > tail ? low : high) = mid;
  }
  return high;
}

RankInterval normal_ranks(uint64_t n, double q, double half_alpha) {
  const double mean = static_cast<double>(n) * q;
  const double reach = normal_upper_point(half_alpha) * std::sqrt(mean * (1 - q));
  const double low = std::max(0.0, std::floor(mean - reach));
  const double high = std::ceil(mean + reach) + 1;
  return {static_cast<uint64_t>(low), std::min(n + 1, static_cast<uint64_t>(high))};
}

}  // namespace

RankInterval quantile_ranks(uint64_t n, double q, double confidence) {
  // The slack absorbs the rounding of 1 - confidence and of the sums, where they meet exactly.
  const double half_alpha = (1 - confidence) / 2 * (1 + 1e-12);
  if (q <= 0) return {0, 1};
  if (q >= 1) return {n, n + 1};
  const double variance = static_cast<double>(n) * q * (1 - q);
  return variance <= kExactVariance ? exact_ranks(n, q, half_alpha)
                                    : normal_ranks(n, q, half_alpha);
}

}  // namespace weft::stats
