// One application at one port: its curve on the integers low <= w <= high, at the share w/U.
//
// Everything here is per unit: gain(w) = D(w) - D(w+1) is what one more unit saves. It is computed
// from its own closed form, not as a difference of slowdowns, so that on a grid of 10^8 units the
// order of gains is still right.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "allocate/model.hpp"

namespace weft::allocate {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The grid of a port: U units make the whole link.
struct Grid {
  double units, unit;  // U and 1/U
  explicit Grid(int64_t u) : units(static_cast<double>(u)), unit(1 / static_cast<double>(u)) {}
};

// On [convex_low, convex_high] the curve is convex on the grid; if it is concave on the rest, the
// far end of the rest is `far`, the only other place where D(w) + m w can be least.
struct Item {
  const Curve* curve;
  int64_t low, high;
  int64_t convex_low, convex_high;
  int64_t far;  // -1: convex throughout
  int64_t w;
};

inline double slowdown(const Curve& curve, double b) {
  if (!curve.is_hinges) return curve.c[0] + b * (curve.c[1] + b * (curve.c[2] + b * curve.c[3]));
  const double y = 1 / b;
  double value = 1;
  for (int32_t j = 0; j < curve.count; ++j)
    value = std::max(value, curve.pieces[j].p + curve.pieces[j].q * y);
  return value;
}

inline double slowdown(const Item& item, int64_t w, const Grid& grid) {
  return slowdown(*item.curve, static_cast<double>(w) * grid.unit);
}

inline double hinges_gain(const Curve& curve, double w, const Grid& grid) {
  const double between = grid.units / (w * (w + 1));  // U/w - U/(w+1)
  const double after = between * w, before = between * (w + 1);
  double value_after = 1, q_after = 0, value_before = 1, q_before = 0;
  for (int32_t j = 0; j < curve.count; ++j) {
    const Piece& piece = curve.pieces[j];
    const double next = piece.p + piece.q * after, here = piece.p + piece.q * before;
    q_after = next > value_after ? piece.q : q_after;
    value_after = next > value_after ? next : value_after;
    q_before = here > value_before ? piece.q : q_before;
    value_before = here > value_before ? here : value_before;
  }
  return q_after == q_before ? q_after * between : value_before - value_after;
}

inline double gain(const Curve& curve, double w, const Grid& grid) {
  if (curve.is_hinges) return hinges_gain(curve, w, grid);
  const double b = w * grid.unit, d = grid.unit;
  return -d * (curve.c[1] + curve.c[2] * (2 * b + d) + curve.c[3] * (3 * b * (b + d) + d * d));
}

inline double gain(const Item& item, int64_t w, const Grid& grid) {
  return gain(*item.curve, static_cast<double>(w), grid);
}

// Sets where the curve is convex on low..high.
inline void find_shape(Item& item, const Grid& grid) {
  item.convex_low = item.low;
  item.convex_high = item.high;
  item.far = -1;
  const Curve& curve = *item.curve;
  if (curve.is_hinges || item.high - item.low < 2) return;
  const double c2 = curve.c[2], c3 = curve.c[3];
  const auto bends_down = [&](int64_t w) {
    return c2 + 3 * c3 * static_cast<double>(w) * grid.unit < 0;
  };
  // Only inner points have a second difference.
  const bool at_low = bends_down(item.low + 1), at_high = bends_down(item.high - 1);
  if (!at_low && !at_high) return;
  if (at_low && at_high) {
    item.convex_high = item.low;
    item.far = item.high;
    return;
  }
  const double turn = std::clamp(-c2 / (3 * c3) * grid.units, static_cast<double>(item.low + 1),
                                 static_cast<double>(item.high - 1));
  int64_t w = static_cast<int64_t>(turn);
  if (at_high) {
    while (w < item.high - 1 && !bends_down(w)) ++w;
    while (w > item.low + 1 && bends_down(w - 1)) --w;
    item.convex_high = w;  // the first point that bends down ends the convex stretch
    item.far = item.high;
  } else {
    while (w < item.high - 1 && bends_down(w + 1)) ++w;
    while (w > item.low + 1 && !bends_down(w)) --w;
    item.convex_low = w;
    item.far = item.low;
  }
}

inline constexpr double kGreatestRoot = 1e100;
inline double root_of_multiplier(double m) {
  return m > 1e-200 ? 1 / std::sqrt(m) : kGreatestRoot;
}

// The share at which D' passes -m on the convex side, to be clamped.
inline double share_at(const Curve& curve, double m) {
  if (!curve.is_hinges) {
    const double c2 = curve.c[2], c3 = curve.c[3], c1m = curve.c[1] + m;
    if (c2 == 0 && c3 == 0) return c1m < 0 ? 1 : 0;
    const double bend = std::sqrt(std::max(0.0, c2 * c2 - 3 * c3 * c1m));
    return c2 > 0 ? -c1m / (c2 + bend) : (bend - c2) / (3 * c3);
  }
  if (m < 0) return 1;
  double b = 0;
  const double r = root_of_multiplier(m);
  for (int32_t j = 0; j < curve.count; ++j)
    b = std::max(b, std::min(curve.pieces[j].t, curve.pieces[j].s * r));
  return b;
}

inline double cost_of(const Item& item, int64_t w, double m, const Grid& grid) {
  const double b = static_cast<double>(w) * grid.unit;
  return slowdown(*item.curve, b) + m * b;
}

// The w of least D(w) + m w/U on low..high.
inline int64_t least_cost(const Item& item, double m, const Grid& grid) {
  const double x = share_at(*item.curve, m) * grid.units;
  const double worth = m * grid.unit;
  int64_t w = item.convex_low;
  if (x > static_cast<double>(w))
    w = x < static_cast<double>(item.convex_high) ? static_cast<int64_t>(x) : item.convex_high;
  while (w < item.convex_high && gain(item, w, grid) > worth) ++w;
  while (w > item.convex_low && gain(item, w - 1, grid) < worth) --w;
  if (item.far < 0) return w;
  return cost_of(item, item.far, m, grid) < cost_of(item, w, m, grid) ? item.far : w;
}

}  // namespace weft::allocate
