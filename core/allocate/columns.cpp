#include "allocate/columns.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

// One copy per vector width, chosen when the program is loaded. (Under a sanitizer of
// addresses or threads the choice would run before the sanitizer is ready.)
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WEFT_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WEFT_WIDE
#endif
#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft::allocate {
namespace {

constexpr double kMost = std::numeric_limits<double>::infinity();
// So close, a last step is as good as exact: few applications reach an end of their range by it.
constexpr double kGuessed = 0.03;

// Four columns; the compiler makes two of two where the processor has no more.
typedef double Four __attribute__((vector_size(32)));

WEFT_INLINE void load(Four& to, const double* from) {
  std::memcpy(&to, from, sizeof to);
}

WEFT_INLINE void store(double* to, const Four& from) {
  std::memcpy(to, &from, sizeof from);
}

// Rows of four numbers, of four applications.
struct Rows {
  Four a, b, c, d;
};

WEFT_INLINE void load(Rows& to, const double* a, const double* b, const double* c,
                      const double* d) {
  load(to.a, a);
  load(to.b, b);
  load(to.c, c);
  load(to.d, d);
}

// Rows become columns.
WEFT_INLINE void transpose(Rows& rows) {
  const Four a = __builtin_shufflevector(rows.a, rows.b, 0, 4, 2, 6);
  const Four b = __builtin_shufflevector(rows.a, rows.b, 1, 5, 3, 7);
  const Four c = __builtin_shufflevector(rows.c, rows.d, 0, 4, 2, 6);
  const Four d = __builtin_shufflevector(rows.c, rows.d, 1, 5, 3, 7);
  rows.a = __builtin_shufflevector(a, c, 0, 1, 4, 5);
  rows.b = __builtin_shufflevector(b, d, 0, 1, 4, 5);
  rows.c = __builtin_shufflevector(a, c, 2, 3, 6, 7);
  rows.d = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

// Four applications from place i on; the last one again after the end.
WEFT_INLINE void choose(size_t (&chosen)[4], const int32_t* applications, size_t i, size_t count) {
  for (size_t k = 0; k < 4; ++k)
    chosen[k] = static_cast<size_t>(applications[i + k < count ? i + k : count - 1]);
}

// The values of columns before `count`, and `none` after it.
WEFT_INLINE void keep(Four& values, size_t i, size_t count, double none) {
  if (i + 4 <= count) return;
  const Four place = {0, 1, 2, 3}, others = {none, none, none, none};
  values = place < static_cast<double>(count - i) ? values : others;
}

WEFT_INLINE double add(const Four& part) {
  return (part[0] + part[1]) + (part[2] + part[3]);
}

WEFT_INLINE double more(const Four& part) {
  return std::max(std::max(part[0], part[1]), std::max(part[2], part[3]));
}

WEFT_INLINE double less(const Four& part) {
  return std::min(std::min(part[0], part[1]), std::min(part[2], part[3]));
}

}  // namespace

WEFT_WIDE void gather_hinges(const HingeGather& columns, size_t count) {
  const auto pieces = static_cast<size_t>(columns.count);
  for (size_t i = 0; i < count; i += 4) {
    size_t of[4];
    choose(of, columns.applications, i, count);
    const double* least = columns.least;
    const Four low = {least[of[0]], least[of[1]], least[of[2]], least[of[3]]};
    store(columns.low + i, low);
    store(columns.high + i, low + columns.spare);
    for (size_t j = 0, at = i; j < pieces; ++j, at += columns.stride) {
      const Piece* const piece = columns.pieces + j;
      Rows rows;
      load(rows, &piece[of[0] * pieces].t, &piece[of[1] * pieces].t, &piece[of[2] * pieces].t,
           &piece[of[3] * pieces].t);
      transpose(rows);
      store(columns.t + at, rows.a);
      store(columns.s + at, rows.b);
      store(columns.p + at, rows.c);
      store(columns.q + at, rows.d);
    }
  }
}

WEFT_WIDE bool gather_polynomials(const PolynomialGather& columns, size_t count) {
  const Four one = {1, 1, 1, 1}, none = {0, 0, 0, 0};
  Four bends = none;
  for (size_t i = 0; i < count; i += 4) {
    size_t of[4];
    choose(of, columns.applications, i, count);
    const GridPolynomial* const table = columns.polynomials;
    Rows c, range;
    load(c, table[of[0]].c, table[of[1]].c, table[of[2]].c, table[of[3]].c);
    load(range, &table[of[0]].low, &table[of[1]].low, &table[of[2]].low, &table[of[3]].low);
    transpose(c);
    transpose(range);
    store(columns.c0 + i, c.a);
    store(columns.c1 + i, c.b);
    store(columns.c2 + i, c.c);
    store(columns.c3 + i, c.d);
    const Four low = range.a, turn = range.b, stop = range.c, high = low + columns.spare;
    store(columns.low + i, low);
    store(columns.high + i, turn < high ? stop : high);
    bends += turn < high ? one : none;
  }
  return add(bends) > 0;
}

WEFT_WIDE HingeSums sum_hinges(const HingeRanges& columns, size_t count) {
  const Four none = {0, 0, 0, 0}, most = {kMost, kMost, kMost, kMost};
  Four full = none, sum_s = none, most_s = none, least_s = most, least_low = most;
  const size_t last = static_cast<size_t>(std::max(columns.pieces - 1, 0)) * columns.stride;
  for (size_t i = 0; i < count; i += 4) {
    Four low, high, t = none, s = none, last_s = none;
    load(low, columns.low_units + i);
    load(high, columns.high_units + i);
    low *= columns.unit;
    high *= columns.unit;
    store(columns.low + i, low);
    store(columns.high + i, high);
    if (columns.pieces > 0) {
      load(t, columns.t + i);
      load(s, columns.s + i);
      load(last_s, columns.s + last + i);
    }
    Four knot = t > low ? t : low;
    knot = knot < high ? knot : high;
    s = s > none ? s : most;
    keep(knot, i, count, 0);
    keep(s, i, count, kMost);
    keep(last_s, i, count, 0);
    keep(low, i, count, kMost);
    full += knot;
    sum_s += last_s;
    most_s = last_s > most_s ? last_s : most_s;
    least_s = s < least_s ? s : least_s;
    least_low = low < least_low ? low : least_low;
  }
  return {add(full), add(sum_s), more(most_s), less(least_s), less(least_low)};
}

WEFT_WIDE Bracket bracket_polynomials(const PolynomialRanges& columns, size_t count) {
  Four least = {kMost, kMost, kMost, kMost}, greatest = -least;
  for (size_t i = 0; i < count; i += 4) {
    Four c1, c2, c3, low, high;
    load(c1, columns.c1 + i);
    load(c2, columns.c2 + i);
    load(c3, columns.c3 + i);
    load(low, columns.low_units + i);
    load(high, columns.high_units + i);
    low *= columns.unit;
    high *= columns.unit;
    store(columns.low + i, low);
    store(columns.high + i, high);
    Four at_low = -(c1 + low * (2 * c2 + 3 * c3 * low));
    const Four curvature = 2 * c2 + 6 * c3 * low;
    store(columns.knee + i, at_low);
    store(columns.rate + i, low < high ? 1 / curvature : 0 * low);
    Four at_high = -(c1 + high * (2 * c2 + 3 * c3 * high));
    keep(at_low, i, count, -kMost);
    keep(at_high, i, count, kMost);
    greatest = at_low > greatest ? at_low : greatest;
    least = at_high < least ? at_high : least;
  }
  return {less(least), more(greatest)};
}

WEFT_WIDE double guess_multiplier(const Knees& columns, size_t count, double spare) {
  const Four none = {0, 0, 0, 0};
  double m = 0;
  for (int step = 0; step < 16; ++step) {
    Four shares = none, slopes = none;
    for (size_t i = 0; i < count; i += 4) {
      Four knee, rate, low, high;
      load(knee, columns.knee + i);
      load(rate, columns.rate + i);
      load(low, columns.low + i);
      load(high, columns.high + i);
      Four share = (knee - m) * rate;
      rate = share > none ? rate : none;
      share = share > none ? share : none;
      rate = share < high - low ? rate : none;
      share = share < high - low ? share : high - low;
      keep(share, i, count, 0);
      keep(rate, i, count, 0);
      shares += share;
      slopes += rate;
    }
    const double excess = add(shares) - spare, slope = add(slopes);
    if (!(slope > 0)) break;
    m += excess / slope;
    if (std::abs(excess) <= kGuessed * spare) break;
  }
  return m;
}

WEFT_WIDE Shares hinge_shares(const HingeColumns& columns, size_t count, double r) {
  const Four none = {0, 0, 0, 0};
  Four shares = none, slopes = none;
  for (size_t i = 0; i < count; i += 4) {
    Four x, high, slope = none;
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
    store(columns.x + i, x);
    keep(x, i, count, 0);
    keep(slope, i, count, 0);
    shares += x;
    slopes += slope;
  }
  return {add(shares), add(slopes)};
}

namespace {

// What the unit after w saves, of four columns: as `gain` in item.hpp.
WEFT_INLINE void compute_gain(Four& gain, const HingeUnits& hinges, size_t i, const Four& w) {
  const Four one = {1, 1, 1, 1}, none = {0, 0, 0, 0};
  const Four between = hinges.columns.units / (w * (w + one));
  const Four after = between * w, before = between * (w + one);
  Four value_after = one, q_after = none, value_before = one, q_before = none;
  for (int32_t j = 0; j < hinges.pieces; ++j) {
    const size_t at = static_cast<size_t>(j) * hinges.stride + i;
    Four p, q;
    load(p, hinges.p + at);
    load(q, hinges.q + at);
    const Four next = p + q * after, here = p + q * before;
    q_after = next > value_after ? q : q_after;
    value_after = next > value_after ? next : value_after;
    q_before = here > value_before ? q : q_before;
    value_before = here > value_before ? here : value_before;
  }
  gain = q_after == q_before ? q_after * between : value_before - value_after;
}

WEFT_INLINE void compute_gain(Four& gain, const PolynomialUnits& polynomials, size_t i,
                              const Four& w) {
  Four c1, c2, c3;
  load(c1, polynomials.c1 + i);
  load(c2, polynomials.c2 + i);
  load(c3, polynomials.c3 + i);
  const double d = 1 / polynomials.columns.units;
  const Four b = w * d;
  gain = -d * (c1 + c2 * (2 * b + d) + c3 * (3 * b * (b + d) + d * d));
}

// The slowdown at the share b, of four columns.
WEFT_INLINE void compute_value(Four& value, const HingeUnits& hinges, size_t i, const Four& b) {
  const Four one = {1, 1, 1, 1};
  const Four y = one / b;
  value = one;
  for (int32_t j = 0; j < hinges.pieces; ++j) {
    const size_t at = static_cast<size_t>(j) * hinges.stride + i;
    Four p, q;
    load(p, hinges.p + at);
    load(q, hinges.q + at);
    const Four here = p + q * y;
    value = here > value ? here : value;
  }
}

template <class Polynomials>
WEFT_INLINE void compute_value(Four& value, const Polynomials& polynomials, size_t i,
                               const Four& b) {
  Four c0, c1, c2, c3;
  load(c0, polynomials.c0 + i);
  load(c1, polynomials.c1 + i);
  load(c2, polynomials.c2 + i);
  load(c3, polynomials.c3 + i);
  value = c0 + b * (c1 + b * (c2 + b * c3));
}

template <class Curves>
WEFT_INLINE void round_units(const Curves& curves, size_t count) {
  const Four one = {1, 1, 1, 1}, none = {0, 0, 0, 0};
  const Four most = {kMost, kMost, kMost, kMost};
  const UnitColumns& columns = curves.columns;
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
    compute_gain(gain, curves, i, w);
    const Four after = w < high ? gain : -most;
    const Four step = after > columns.worth ? one : none;
    compute_gain(other, curves, i, after > columns.worth ? w + one : w - one);
    const Four next_up = w + one < high ? other : -most;
    const Four last_down = w > low ? other : most;
    store(columns.next + i, after > columns.worth ? next_up : after);
    store(columns.last + i, after > columns.worth ? after : last_down);
    w = w + step;
    store(columns.w + i, w);
    compute_value(value, curves, i, w * unit);
    store(columns.value + i, value);
  }
}

}  // namespace

WEFT_WIDE void hinge_units(const HingeUnits& hinges, size_t count) {
  round_units(hinges, count);
}

WEFT_WIDE void polynomial_units(const PolynomialUnits& polynomials, size_t count) {
  round_units(polynomials, count);
}

WEFT_WIDE Shares polynomial_shares(const PolynomialColumns& columns, size_t count, double m) {
  const Four none = {0, 0, 0, 0};
  Four shares = none, slopes = none;
  for (size_t i = 0; i < count; i += 4) {
    Four c1, c2, c3, low, high;
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
    Four x = root > low ? root : low;
    Four slope = root > low ? steep : none;
    slope = x < high ? slope : none;
    x = x < high ? x : high;
    store(columns.x + i, x);
    keep(x, i, count, 0);
    keep(slope, i, count, 0);
    shares += x;
    slopes += slope;
  }
  return {add(shares), add(slopes)};
}

WEFT_WIDE double straight_shares(const PolynomialColumns& columns, size_t count, double m) {
  Four shares = {0, 0, 0, 0};
  for (size_t i = 0; i < count; i += 4) {
    Four c1, low, high;
    load(c1, columns.c1 + i);
    load(low, columns.low + i);
    load(high, columns.high + i);
    Four x = -c1 > m ? high : low;
    store(columns.x + i, x);
    keep(x, i, count, 0);
    shares += x;
  }
  return add(shares);
}

WEFT_WIDE double greatest_excess(const FarEnds& columns, size_t count, double m) {
  const Four none = {0, 0, 0, 0};
  Four greatest = {-kMost, -kMost, -kMost, -kMost};
  for (size_t i = 0; i < count; i += 4) {
    Four low, high, w, value, end;
    load(low, columns.low + i);
    load(high, columns.high + i);
    load(w, columns.w + i);
    load(value, columns.value + i);
    const Four far = low + columns.spare, b = far * columns.unit;
    compute_value(end, columns, i, b);
    Four excess = (value + m * (w * columns.unit)) - (end + m * b);
    excess = high < far ? excess : none;
    keep(excess, i, count, 0);
    greatest = excess > greatest ? excess : greatest;
  }
  return more(greatest);
}

WEFT_WIDE double sum_slopes(const PolynomialColumns& columns, size_t count, double b) {
  Four part = {0, 0, 0, 0};
  for (size_t i = 0; i < count; i += 4) {
    Four c1, c2, c3;
    load(c1, columns.c1 + i);
    load(c2, columns.c2 + i);
    load(c3, columns.c3 + i);
    Four slope = c1 + b * (2 * c2 + 3 * c3 * b);
    keep(slope, i, count, 0);
    part -= slope;
  }
  return add(part);
}

WEFT_WIDE double sum(const double* values, size_t count) {
  double part[4] = {0, 0, 0, 0};
  size_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (size_t k = 0; k < 4; ++k) part[k] += values[i + k];
  for (; i < count; ++i) part[0] += values[i];
  return (part[0] + part[1]) + (part[2] + part[3]);
}

WEFT_WIDE size_t find_place(const double* values, size_t count, double value) {
  constexpr size_t kBlock = 16;
  size_t i = 0;
  for (bool is_here = false; i + kBlock <= count; i += kBlock) {
    for (size_t k = 0; k < kBlock; ++k) is_here |= values[i + k] == value;
    if (is_here) break;
  }
  while (i < count && values[i] != value) ++i;
  return i;
}

WEFT_WIDE Extremes find_extremes(const double* next, const double* last, size_t count) {
  Four least_next = {kMost, kMost, kMost, kMost}, least_last = least_next, most_next = -least_next;
  for (size_t i = 0; i < count; i += 4) {
    Four gain, loss;
    load(gain, next + i);
    load(loss, last + i);
    Four small = gain;
    keep(small, i, count, kMost);
    keep(gain, i, count, -kMost);
    keep(loss, i, count, kMost);
    most_next = gain > most_next ? gain : most_next;
    least_next = small < least_next ? small : least_next;
    least_last = loss < least_last ? loss : least_last;
  }
  return {more(most_next), less(least_next), less(least_last)};
}

}  // namespace weft::allocate
