#include "allocate/columns.hpp"

#include <cmath>
#include <cstring>
#include <limits>

// One copy per vector width, chosen when the program is loaded. (Under a sanitizer of
// addresses or threads the choice would run before the sanitizer is ready.)
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WEFT_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WEFT_WIDE
#endif

namespace weft::allocate {
namespace {

// Four columns; the compiler makes two of two where the processor has no more.
typedef double Four __attribute__((vector_size(32)));

inline __attribute__((always_inline)) void load(Four& to, const double* from) {
  std::memcpy(&to, from, sizeof to);
}

inline __attribute__((always_inline)) void store(double* to, const Four& from) {
  std::memcpy(to, &from, sizeof from);
}

}  // namespace

WEFT_WIDE void hinge_shares(const HingeColumns& columns, size_t count, double r) {
  for (size_t i = 0; i < count; i += 4) {
    Four x, high, slope = {0, 0, 0, 0};
    const Four none = {0, 0, 0, 0};
    load(x, columns.low + i);
    for (int32_t j = 0; j < columns.pieces; ++j) {
      const size_t at = static_cast<size_t>(j) * columns.stride + i;
      Four t, s;
      load(t, columns.t + at);
      load(s, columns.s + at);
      const Four free = s * r;
      const Four share = free < t ? free : t;
      const Four rise = free < t ? s : none;
      slope = share > x ? rise : slope;
      x = share > x ? share : x;
    }
    load(high, columns.high + i);
    slope = x < high ? slope : none;
    x = x < high ? x : high;
    store(columns.slope + i, slope);
    store(columns.x + i, x);
  }
}

namespace {

// What the unit after w saves, of four columns: as `hinges_gain` in item.hpp.
inline __attribute__((always_inline)) void hinge_gain(Four& gain, const HingeUnits& columns,
                                                      size_t i, const Four& w) {
  const Four one = {1, 1, 1, 1}, none = {0, 0, 0, 0};
  const Four between = columns.units / (w * (w + one));
  const Four after = between * w, before = between * (w + one);
  Four value_after = one, q_after = none, value_before = one, q_before = none;
  for (int32_t j = 0; j < columns.pieces; ++j) {
    const size_t at = static_cast<size_t>(j) * columns.stride + i;
    Four p, q;
    load(p, columns.p + at);
    load(q, columns.q + at);
    const Four next = p + q * after, here = p + q * before;
    q_after = next > value_after ? q : q_after;
    value_after = next > value_after ? next : value_after;
    q_before = here > value_before ? q : q_before;
    value_before = here > value_before ? here : value_before;
  }
  gain = q_after == q_before ? q_after * between : value_before - value_after;
}

inline __attribute__((always_inline)) void hinge_value(Four& value, const HingeUnits& columns,
                                                       size_t i, const Four& w, double unit) {
  const Four one = {1, 1, 1, 1};
  const Four y = one / (w * unit);
  value = one;
  for (int32_t j = 0; j < columns.pieces; ++j) {
    const size_t at = static_cast<size_t>(j) * columns.stride + i;
    Four p, q;
    load(p, columns.p + at);
    load(q, columns.q + at);
    const Four here = p + q * y;
    value = here > value ? here : value;
  }
}

}  // namespace

WEFT_WIDE void hinge_units(const HingeUnits& columns, size_t count) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  const Four one = {1, 1, 1, 1}, none = {0, 0, 0, 0};
  const Four most = {kNone, kNone, kNone, kNone};
  const double unit = 1 / columns.units;
  for (size_t i = 0; i < count; i += 4) {
    Four x, low, high;
    load(x, columns.x + i);
    load(low, columns.low + i);
    load(high, columns.high + i);
    double wholes[4];
    store(wholes, x * columns.units);
    for (double& whole : wholes) whole = std::trunc(whole);
    Four w;
    load(w, wholes);
    w = w > low ? w : low;
    w = w < high ? w : high;
    Four gain, other, value;
    hinge_gain(gain, columns, i, w);
    const Four after = w < high ? gain : -most;
    const Four step = after > columns.worth ? one : none;
    hinge_gain(other, columns, i, after > columns.worth ? w + one : w - one);
    const Four next_up = w + one < high ? other : -most;
    const Four last_down = w > low ? other : most;
    store(columns.next + i, after > columns.worth ? next_up : after);
    store(columns.last + i, after > columns.worth ? after : last_down);
    w = w + step;
    store(columns.w + i, w);
    hinge_value(value, columns, i, w, unit);
    store(columns.value + i, value);
  }
}

WEFT_WIDE void polynomial_shares(const PolynomialColumns& columns, size_t count, double m) {
  for (size_t i = 0; i < count; i += 4) {
    Four c1, c2, c3, low, high;
    const Four none = {0, 0, 0, 0};
    load(c1, columns.c1 + i);
    load(c2, columns.c2 + i);
    load(c3, columns.c3 + i);
    load(low, columns.low + i);
    load(high, columns.high + i);
    const Four c1m = c1 + m;
    const Four square = c2 * c2 - 3 * c3 * c1m;
    double bends[4];
    store(bends, square > 0 ? square : none);
    for (double& value : bends) value = std::sqrt(value);
    Four bend;
    load(bend, bends);
    const Four over = c2 > 0 ? -c1m : bend - c2;
    const Four under = c2 > 0 ? c2 + bend : 3 * c3 + 1e-300;
    const Four root = over / under;
    const Four steep = 0.5 / (bend + 1e-300);
    const Four x = root > low ? root : low;
    const Four rise = root > low ? steep : none;
    store(columns.slope + i, x < high ? rise : none);
    store(columns.x + i, x < high ? x : high);
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
