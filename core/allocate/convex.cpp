// The convex part: the multiplier, then whole units.
#include <algorithm>
#include <cmath>
#include <limits>

#include "allocate/columns.hpp"
#include "allocate/workspace.hpp"

namespace weft::allocate {
namespace {

double clamped(double value, double low, double high) {
  return value > low ? (value < high ? value : high) : low;
}

}  // namespace

double total_slowdown(std::span<const Item> items, const Grid& grid) {
  double total = 0;
  for (const Item& item : items) total += slowdown(item, item.w, grid);
  return total;
}

double gain_of_more(std::span<const Item> items, const Grid& grid) {
  double most = -kInfinity;
  for (const Item& item : items) most = std::max(most, gain(item, item.w, grid));
  return most;
}

void Workspace::solve_columns(int64_t budget, const Grid& grid, double start) {
  find_ranges(grid);
  find_multiplier(static_cast<double>(budget) * grid.unit, start, 0.5 * grid.unit);
  round(budget, grid);
}

// Ranges in shares, and the multipliers that bracket every answer.
void Workspace::find_ranges(const Grid& grid) {
  Columns& c = columns_;
  const size_t from = c.hinges;
  const Bracket bracket = bracket_polynomials(
      {c.c1.data() + from, c.c2.data() + from, c.c3.data() + from, c.low_units.data() + from,
       c.high_units.data() + from, c.low.data() + from, c.high.data() + from, c.knee.data() + from,
       c.rate.data() + from, grid.unit},
      c.count - from);
  least_ = bracket.least;
  greatest_ = bracket.greatest;
  steepest_ = -kInfinity;
  for (size_t at = c.straight; at < c.count; ++at) steepest_ = std::max(steepest_, -c.c1[at]);
  if (c.hinges == 0) return;
  hinges_ = sum_hinges({c.t.data(), c.s.data(), c.low_units.data(), c.high_units.data(),
                        c.low.data(), c.high.data(), c.x.size(), c.pieces, grid.unit},
                       c.hinges);
  const double steep = hinges_.most_s / hinges_.least_low;
  greatest_ = std::max(greatest_, steep * steep);
  // Where hinges are flat any share is as good: only a negative multiplier fills them up.
  least_ = std::min(least_, -1e-9);
}

Shares Workspace::evaluate_hinges(double r) {
  Columns& c = columns_;
  return hinge_shares(
      {c.t.data(), c.s.data(), c.low.data(), c.high.data(), c.x.data(), c.x.size(), c.pieces},
      c.hinges, r);
}

PolynomialColumns Workspace::polynomials_from(size_t at) {
  Columns& c = columns_;
  return {c.c1.data() + at,  c.c2.data() + at,   c.c3.data() + at,
          c.low.data() + at, c.high.data() + at, c.x.data() + at};
}

Shares Workspace::evaluate_polynomials(double m) {
  const Columns& c = columns_;
  Shares shares = polynomial_shares(polynomials_from(c.hinges), c.straight - c.hinges, m);
  shares.total += straight_shares(polynomials_from(c.straight), c.count - c.straight, m);
  return shares;
}

// Sum of shares at the multiplier m = 1/r^2; its slope by m, or by r if all curves are hinges.
double Workspace::total(double m, double r) {
  const Columns& c = columns_;
  const bool has_polynomials = c.count > c.hinges;
  Shares hinges, polynomials;
  if (c.hinges > 0 && m < 0) {
    std::copy_n(c.high.begin(), c.hinges, columns_.x.begin());
    hinges.total = sum(c.high.data(), c.hinges);
  } else if (c.hinges > 0) {
    hinges = evaluate_hinges(r);
  }
  if (has_polynomials) polynomials = evaluate_polynomials(m);
  slope_ = has_polynomials ? polynomials.slope + 0.5 * r * r * r * hinges.slope : hinges.slope;
  return hinges.total + polynomials.total;
}

// With straight lines: the steepest ones take what the curves leave at their slope, if they can.
bool Workspace::straight_line_takes_the_rest(double share) {
  Columns& c = columns_;
  const double above = std::nextafter(steepest_, kInfinity);
  const double taken = total(above, root_of_multiplier(above));
  double room = 0;
  for (size_t at = c.straight; at < c.count; ++at)
    if (-c.c1[at] == steepest_) room += c.high[at] - c.x[at];
  if (taken > share) {
    least_ = steepest_;
    return false;
  }
  if (taken + room < share) return false;
  const double part = room > 0 ? (share - taken) / room : 0;
  for (size_t at = c.straight; at < c.count; ++at)
    if (-c.c1[at] == steepest_) c.x[at] += part * (c.high[at] - c.x[at]);
  multiplier = steepest_;
  return true;
}

double Workspace::first_guess(double share) {
  const Columns& c = columns_;
  if (c.hinges == 0 && c.straight == c.count)
    return guess_multiplier({c.knee.data(), c.rate.data(), c.low.data(), c.high.data()}, c.count,
                            share - sum(c.low.data(), c.count));
  const auto count = static_cast<double>(c.count);
  const double hinges =
      hinges_.sum_s * hinges_.sum_s / (share * share) * static_cast<double>(c.hinges);
  const double slopes = sum_slopes(polynomials_from(c.hinges), c.count - c.hinges, share / count);
  return ((c.hinges > 0 ? hinges : 0) + slopes) / count;
}

// Newton's method on total(v) = share within a bracket; v is r if all curves are hinges, else -m,
// so that the total rises with v.
void Workspace::find_multiplier(double share, double start, double close) {
  if (columns_.straight < columns_.count && straight_line_takes_the_rest(share)) return;
  const bool by_r = columns_.hinges == columns_.count;
  if (by_r && hinges_.full <= share) return fill_flat_hinges(share);
  double below = by_r ? 0 : -greatest_, above = by_r ? 1 / hinges_.least_s : -least_;
  double v = by_r ? 1 / std::sqrt(start) : -start;
  if (!(v > below && v < above))
    v = clamped(by_r ? share / hinges_.sum_s : -first_guess(share), below, above);
  const double scale = std::max(std::abs(below), std::abs(above));
  for (int step = 0; step < 200; ++step) {
    const double excess = total_at(v, by_r) - share;
    multiplier = by_r ? 1 / (v * v) : -v;
    if (std::abs(excess) <= close) return;
    (excess < 0 ? below : above) = v;
    const double size = std::max(std::abs(below), std::abs(above));
    if (above - below <= std::max(4e-16 * size, 1e-24 * scale)) break;
    const double newton = v - excess / slope_;
    const bool is_inside = newton > below && newton < above;
    v = is_inside && (step < 8 || step % 2 == 0) ? newton : 0.5 * (below + above);
  }
  total_at(below, by_r);
  std::swap(columns_.x, columns_.other);
  total_at(above, by_r);
  interpolate(share);
}

double Workspace::total_at(double v, bool by_r) {
  return by_r ? total(1, v) : total(-v, root_of_multiplier(-v));
}

// All hinges have what they can use, and beyond any share is as good.
void Workspace::fill_flat_hinges(double share) {
  total(1, kGreatestRoot);
  std::swap(columns_.x, columns_.other);
  std::copy_n(columns_.high.begin(), columns_.count, columns_.x.begin());
  multiplier = 0;
  interpolate(share);
}

// Between the shares at the two ends of the bracket the total slowdown is straight.
void Workspace::interpolate(double share) {
  Columns& c = columns_;
  const double low = sum(c.other.data(), c.count), high = sum(c.x.data(), c.count);
  const double part = high > low ? clamped((share - low) / (high - low), 0, 1) : 0;
  for (size_t i = 0; i < c.count; ++i) c.x[i] = c.other[i] + part * (c.x[i] - c.other[i]);
}

void Workspace::round(int64_t budget, const Grid& grid) {
  Columns& c = columns_;
  round_hinges(grid);
  round_polynomials(grid);
  auto missing = static_cast<int64_t>(static_cast<double>(budget) - sum(c.w.data(), c.count));
  for (; missing != 0; missing += missing < 0 ? 1 : -1) {
    const Extremes extremes = find_extremes(c.next.data(), c.last.data(), c.count);
    if (missing > 0)
      move(find_place(c.next.data(), c.count, extremes.most_next), 1, grid);
    else
      move(find_place(c.last.data(), c.count, extremes.least_last), -1, grid);
  }
  is_exact_ = exchange(grid);
}

void Workspace::round_hinges(const Grid& grid) {
  Columns& c = columns_;
  hinge_units({{c.x.data(), c.low_units.data(), c.high_units.data(), c.w.data(), c.next.data(),
                c.last.data(), c.value.data(), grid.units, multiplier * grid.unit},
               c.p.data(),
               c.q.data(),
               c.x.size(),
               c.pieces},
              c.hinges);
}

void Workspace::round_polynomials(const Grid& grid) {
  Columns& c = columns_;
  const size_t from = c.hinges;
  polynomial_units({{c.x.data() + from, c.low_units.data() + from, c.high_units.data() + from,
                     c.w.data() + from, c.next.data() + from, c.last.data() + from,
                     c.value.data() + from, grid.units, multiplier * grid.unit},
                    c.c0.data() + from,
                    c.c1.data() + from,
                    c.c2.data() + from,
                    c.c3.data() + from},
                   c.count - from);
}

double Workspace::total_slowdown() {
  Columns& c = columns_;
  const std::vector<double>& values = c.in_order ? c.value : c.other;
  if (!c.in_order)
    for (size_t at = 0; at < c.count; ++at) c.other[static_cast<size_t>(c.item[at])] = c.value[at];
  return sum(values.data(), c.count);
}

const Curve& Workspace::curve_at(size_t at) const {
  const int32_t* const applications = columns_.applications;
  return applications ? models_[static_cast<size_t>(applications[at])] : *columns_.curve[at];
}

void Workspace::move(size_t at, int64_t units, const Grid& grid) {
  Columns& c = columns_;
  const Curve& curve = curve_at(at);
  const double w = c.w[at] += static_cast<double>(units);
  c.value[at] = slowdown(curve, w * grid.unit);
  if (units > 0) {
    c.last[at] = c.next[at];
    c.next[at] = w < c.high_units[at] ? gain(curve, w, grid) : -kInfinity;
  } else {
    c.next[at] = c.last[at];
    c.last[at] = w > c.low_units[at] ? gain(curve, w - 1, grid) : kInfinity;
  }
}

// Moves single units while that helps; true when none does.
bool Workspace::exchange(const Grid& grid) {
  const Columns& c = columns_;
  for (size_t step = 0; step < 1000 + 4 * c.count; ++step) {
    extremes_ = find_extremes(c.next.data(), c.last.data(), c.count);
    if (!(extremes_.most_next > extremes_.least_last)) return true;
    const size_t to = find_place(c.next.data(), c.count, extremes_.most_next);
    const size_t from = find_place(c.last.data(), c.count, extremes_.least_last);
    move(to, 1, grid);
    move(from, -1, grid);
  }
  return false;
}

bool Workspace::is_best(double spare, const Grid& grid) const {
  const Columns& c = columns_;
  if (!is_exact_ || !bends_) return is_exact_;
  // Any multiplier between the two proves the convex stretches.
  const double m = extremes_.least_last * grid.units;
  if (!std::isfinite(m)) return false;
  const size_t from = c.hinges;
  return greatest_excess({c.c0.data() + from, c.c1.data() + from, c.c2.data() + from,
                          c.c3.data() + from, c.low_units.data() + from, c.high_units.data() + from,
                          c.w.data() + from, c.value.data() + from, spare, grid.unit},
                         c.count - from, m) <= 0;
}

double Workspace::gap(std::span<const Item> items, const Grid& grid) {
  const auto is_convex = [](const Item& item) { return item.far < 0; };
  if (is_exact_ && std::all_of(items.begin(), items.end(), is_convex)) return 0;
  // Any multiplier between the two proves the convex stretches; one of the ends proves most.
  double least = kInfinity;
  for (const double per_unit : {extremes_.least_last, extremes_.most_next}) {
    const double m = per_unit * grid.units;
    const double gap = std::isfinite(m) ? gap_at(items, m, grid) : kInfinity;
    if (!(gap < least)) continue;
    least = gap;
    multiplier = m;
  }
  return least;
}

double Workspace::gain_of_more(const Grid& grid) const {
  const Columns& c = columns_;
  double most = extremes_.most_next;
  if (extremes_.least_next > -kInfinity) return most;
  for (size_t at = 0; at < c.count; ++at)
    if (c.next[at] == -kInfinity) most = std::max(most, gain(curve_at(at), c.w[at], grid));
  return most;
}

double Workspace::gap_at(std::span<const Item> items, double m, const Grid& grid) const {
  double gap = 0;
  for (const Item& item : items) {
    if (is_exact_ && item.far < 0) continue;
    const int64_t best = is_exact_ ? item.far : least_cost(item, m, grid);
    gap += std::max(0.0, cost_of(item, item.w, m, grid) - cost_of(item, best, m, grid));
  }
  return gap;
}

}  // namespace weft::allocate
