#include "allocate/columns.hpp"

#include <cmath>
#include <limits>

// One copy per vector width, chosen when the program is loaded. (Under the address sanitizer the
// choice would run before the sanitizer is ready.)
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define WEFT_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WEFT_WIDE
#endif

namespace weft::allocate {

WEFT_WIDE void hinge_shares(const HingeColumns& columns, size_t count, double r) {
  double* const __restrict x = columns.x;
  double* const __restrict slope = columns.slope;
  const double* const __restrict low = columns.low;
  const double* const __restrict high = columns.high;
  for (size_t i = 0; i < count; ++i) {
    x[i] = low[i];
    slope[i] = 0;
  }
  for (int32_t j = 0; j < columns.pieces; ++j) {
    const double* const __restrict t = columns.t + static_cast<size_t>(j) * columns.stride;
    const double* const __restrict s = columns.s + static_cast<size_t>(j) * columns.stride;
    for (size_t i = 0; i < count; ++i) {
      const double free = s[i] * r;
      const double share = free < t[i] ? free : t[i];
      const double rise = free < t[i] ? s[i] : 0;
      const double before = x[i], slope_before = slope[i];
      slope[i] = share > before ? rise : slope_before;
      x[i] = share > before ? share : before;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const double share = x[i], rise = slope[i];
    slope[i] = share < high[i] ? rise : 0;
    x[i] = share < high[i] ? share : high[i];
  }
}

WEFT_WIDE void polynomial_shares(const PolynomialColumns& columns, size_t count, double m) {
  double* const __restrict x = columns.x;
  double* const __restrict slope = columns.slope;
  const double* const __restrict low = columns.low;
  const double* const __restrict high = columns.high;
  const double* const __restrict c1 = columns.c1;
  const double* const __restrict c2 = columns.c2;
  const double* const __restrict c3 = columns.c3;
  for (size_t i = 0; i < count; ++i) {
    const double c1m = c1[i] + m;
    const double square = c2[i] * c2[i] - 3 * c3[i] * c1m;
    const double bend = std::sqrt(square > 0 ? square : 0);
    const double over = c2[i] > 0 ? -c1m : bend - c2[i];
    const double under = c2[i] > 0 ? c2[i] + bend : 3 * c3[i] + 1e-300;
    const double root = over / under;
    const double steep = 0.5 / (bend + 1e-300);
    const double at_least = root > low[i] ? root : low[i];
    const double rise = root > low[i] ? steep : 0;
    slope[i] = at_least < high[i] ? rise : 0;
    x[i] = at_least < high[i] ? at_least : high[i];
  }
}

WEFT_WIDE double sum(const double* values, size_t count) {
  double part[4] = {0, 0, 0, 0};
  size_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (size_t k = 0; k < 4; ++k) part[k] += values[i + k];
  for (; i < count; ++i) part[0] += values[i];
  return (part[0] + part[1]) + (part[2] + part[3]);
}

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

double more(double a, double b) {
  return a > b ? a : b;
}
double less(double a, double b) {
  return a < b ? a : b;
}

}  // namespace

WEFT_WIDE double greatest(const double* values, size_t count) {
  double part[4] = {-kInfinite, -kInfinite, -kInfinite, -kInfinite};
  size_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (size_t k = 0; k < 4; ++k) part[k] = more(part[k], values[i + k]);
  for (; i < count; ++i) part[0] = more(part[0], values[i]);
  return more(more(part[0], part[1]), more(part[2], part[3]));
}

WEFT_WIDE double least(const double* values, size_t count) {
  double part[4] = {kInfinite, kInfinite, kInfinite, kInfinite};
  size_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (size_t k = 0; k < 4; ++k) part[k] = less(part[k], values[i + k]);
  for (; i < count; ++i) part[0] = less(part[0], values[i]);
  return less(less(part[0], part[1]), less(part[2], part[3]));
}

}  // namespace weft::allocate
