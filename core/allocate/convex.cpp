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

size_t place_of(double value, const std::vector<double>& values) {
  return static_cast<size_t>(std::find(values.begin(), values.end(), value) - values.begin());
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

void Workspace::reserve(size_t applications, int32_t pieces) {
  Columns& c = columns_;
  applications += 3;  // places that columns.hpp may touch beyond the last
  if (c.x.size() >= applications && c.pieces >= pieces) return;
  applications = std::max(applications, c.x.size());
  c.pieces = std::max(c.pieces, pieces);
  c.t.resize(applications * static_cast<size_t>(c.pieces));
  for (auto* pieces_of : {&c.s, &c.p, &c.q})
    pieces_of->resize(applications * static_cast<size_t>(c.pieces));
  for (auto* column : {&c.c1, &c.c2, &c.c3, &c.low, &c.high, &c.x, &c.slope, &c.other, &c.low_units,
                       &c.high_units, &c.w, &c.value, &next_, &last_})
    column->resize(applications);
  c.item.resize(applications);
  c.straight.reserve(applications);
  items.reserve(applications);
}

bool Workspace::solve_convex(std::span<Item> items, int64_t budget, const Grid& grid,
                             double start) {
  int64_t least = 0, most = 0;
  for (const Item& item : items) {
    least += item.convex_low;
    most += item.convex_high;
  }
  if (budget < least || budget > most) return false;
  fill_columns(items, grid);
  find_multiplier(static_cast<double>(budget) * grid.unit, start, 0.5 * grid.unit);
  round(items, budget, grid);
  return true;
}

void Workspace::fill_columns(std::span<const Item> items, const Grid& grid) {
  Columns& c = columns_;
  size_t front = 0, back = items.size();
  c.straight.clear();
  steepest_ = greatest_ = -kInfinity;
  least_ = kInfinity;
  hinges_ = {};
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t at = items[i].curve->is_hinges ? front++ : --back;
    c.item[at] = static_cast<int32_t>(i);
    c.low[at] = static_cast<double>(items[i].convex_low) * grid.unit;
    c.high[at] = static_cast<double>(items[i].convex_high) * grid.unit;
    if (items[i].curve->is_hinges) {
      c.low_units[at] = static_cast<double>(items[i].convex_low);
      c.high_units[at] = static_cast<double>(items[i].convex_high);
      fill_hinges(*items[i].curve, at);
    } else
      fill_polynomial(*items[i].curve, at);
  }
  c.hinges = front;
  c.count = items.size();
  if (front == 0) return;
  const double steep = hinges_.most_s / hinges_.least_low;
  greatest_ = std::max(greatest_, steep * steep);
  // Where hinges are flat any share is as good: only a negative multiplier fills them up.
  least_ = std::min(least_, -1e-9);
}

void Workspace::fill_hinges(const Curve& curve, size_t at) {
  Columns& c = columns_;
  const size_t stride = c.x.size();
  static constexpr Piece kFlat = {0, 0, 1, 0};
  const Piece& first = curve.count > 0 ? curve.pieces[0] : kFlat;
  const Piece& last = curve.count > 0 ? curve.pieces[curve.count - 1] : kFlat;
  for (size_t j = 0, to = at; j < static_cast<size_t>(c.pieces); ++j, to += stride) {
    const Piece& piece = curve.count > 0 ? curve.pieces[j] : kFlat;
    c.t[to] = piece.t;
    c.s[to] = piece.s;
    c.p[to] = piece.p;
    c.q[to] = piece.q;
  }
  hinges_.full += clamped(first.t, c.low[at], c.high[at]);
  hinges_.sum_s += last.s;
  hinges_.most_s = std::max(hinges_.most_s, last.s);
  hinges_.least_s = std::min(hinges_.least_s, first.s > 0 ? first.s : kInfinity);
  hinges_.least_low = std::min(hinges_.least_low, c.low[at]);
}

void Workspace::fill_polynomial(const Curve& curve, size_t at) {
  Columns& c = columns_;
  const double c1 = curve.c[1], c2 = curve.c[2], c3 = curve.c[3];
  const double low = c.low[at], high = c.high[at];
  c.c1[at] = c1;
  c.c2[at] = c2;
  c.c3[at] = c3;
  greatest_ = std::max(greatest_, -(c1 + low * (2 * c2 + 3 * c3 * low)));
  least_ = std::min(least_, -(c1 + high * (2 * c2 + 3 * c3 * high)));
  if (c2 != 0 || c3 != 0) return;
  c.straight.push_back(static_cast<int32_t>(at));
  steepest_ = std::max(steepest_, -c1);
}

void Workspace::evaluate_hinges(double r) {
  Columns& c = columns_;
  hinge_shares({c.t.data(), c.s.data(), c.low.data(), c.high.data(), c.x.data(), c.slope.data(),
                c.x.size(), c.pieces},
               c.hinges, r);
}

void Workspace::evaluate_polynomials(double m) {
  Columns& c = columns_;
  const size_t from = c.hinges;
  polynomial_shares(
      {c.c1.data() + from, c.c2.data() + from, c.c3.data() + from, c.low.data() + from,
       c.high.data() + from, c.x.data() + from, c.slope.data() + from},
      c.count - from, m);
  for (const int32_t i : c.straight) {
    const auto at = static_cast<size_t>(i);
    c.x[at] = -c.c1[at] > m ? c.high[at] : c.low[at];
    c.slope[at] = 0;
  }
}

// Sum of shares at the multiplier m = 1/r^2; its slope by m, or by r if all curves are hinges.
double Workspace::total(double m, double r) {
  const Columns& c = columns_;
  const size_t others = c.count - c.hinges;
  double shares = 0, by_r = 0, by_m = 0;
  if (c.hinges > 0) {
    if (m < 0) {
      std::copy_n(c.high.begin(), c.hinges, columns_.x.begin());
    } else {
      evaluate_hinges(r);
      by_r = sum(c.slope.data(), c.hinges);
    }
    shares += sum(c.x.data(), c.hinges);
  }
  if (others > 0) {
    evaluate_polynomials(m);
    by_m = sum(c.slope.data() + c.hinges, others);
    shares += sum(c.x.data() + c.hinges, others);
  }
  slope_ = others > 0 ? by_m + 0.5 * r * r * r * by_r : by_r;
  return shares;
}

// With straight lines: the steepest ones take what the curves leave at their slope, if they can.
bool Workspace::straight_line_takes_the_rest(double share) {
  const double above = std::nextafter(steepest_, kInfinity);
  const double taken = total(above, root_of_multiplier(above));
  double room = 0;
  for (const int32_t i : columns_.straight) {
    const auto at = static_cast<size_t>(i);
    if (-columns_.c1[at] == steepest_) room += columns_.high[at] - columns_.x[at];
  }
  if (taken > share) {
    least_ = steepest_;
    return false;
  }
  if (taken + room < share) return false;
  const double part = room > 0 ? (share - taken) / room : 0;
  for (const int32_t i : columns_.straight) {
    const auto at = static_cast<size_t>(i);
    if (-columns_.c1[at] == steepest_)
      columns_.x[at] += part * (columns_.high[at] - columns_.x[at]);
  }
  multiplier = steepest_;
  return true;
}

double Workspace::first_guess(double share) const {
  const Columns& c = columns_;
  const double each = share / static_cast<double>(c.count);
  double slopes = hinges_.sum_s * hinges_.sum_s / (share * share) * static_cast<double>(c.hinges);
  for (size_t i = c.hinges; i < c.count; ++i)
    slopes -= c.c1[i] + each * (2 * c.c2[i] + 3 * c.c3[i] * each);
  return slopes / static_cast<double>(c.count);
}

// Newton's method on total(v) = share within a bracket; v is r if all curves are hinges, else -m,
// so that the total rises with v.
void Workspace::find_multiplier(double share, double start, double close) {
  if (!columns_.straight.empty() && straight_line_takes_the_rest(share)) return;
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

void Workspace::round(std::span<Item> items, int64_t budget, const Grid& grid) {
  int64_t missing = budget - round_hinges(items, grid) - round_polynomials(items, grid);
  has_values_ = columns_.hinges == items.size();
  for (; missing > 0; --missing) {
    const size_t i = place_of(greatest(next_.data(), items.size()), next_);
    move(items[i], i, 1, grid);
  }
  for (; missing < 0; ++missing) {
    const size_t i = place_of(least(last_.data(), items.size()), last_);
    move(items[i], i, -1, grid);
  }
  is_exact_ = exchange(items, grid);
}

// Whole units of the hinges; their sum.
int64_t Workspace::round_hinges(std::span<Item> items, const Grid& grid) {
  Columns& c = columns_;
  // All hinges stand in the order of the items; the slopes are not used any more.
  const bool in_order = c.hinges == items.size();
  double* const next = in_order ? next_.data() : c.slope.data();
  double* const last = in_order ? last_.data() : c.other.data();
  hinge_units(
      {c.p.data(), c.q.data(), c.x.data(), c.low_units.data(), c.high_units.data(), c.w.data(),
       next, last, c.value.data(), c.x.size(), c.pieces, grid.units, multiplier * grid.unit},
      c.hinges);
  int64_t sum = 0;
  for (size_t at = 0; at < c.hinges; ++at) {
    const auto i = static_cast<size_t>(c.item[at]);
    items[i].w = static_cast<int64_t>(c.w[at]);
    sum += items[i].w;
    if (in_order) continue;
    next_[i] = next[at];
    last_[i] = last[at];
  }
  return sum;
}

int64_t Workspace::round_polynomials(std::span<Item> items, const Grid& grid) {
  const double worth = multiplier * grid.unit;
  int64_t sum = 0;
  for (size_t at = columns_.hinges; at < items.size(); ++at) {
    const auto i = static_cast<size_t>(columns_.item[at]);
    Item& item = items[i];
    const int64_t w = std::clamp(static_cast<int64_t>(columns_.x[at] * grid.units), item.convex_low,
                                 item.convex_high);
    const double after = w < item.convex_high ? gain(item, w, grid) : -kInfinity;
    const bool up = after > worth;
    item.w = w + up;
    if (up) {
      last_[i] = after;
      next_[i] = item.w < item.convex_high ? gain(item, item.w, grid) : -kInfinity;
    } else {
      next_[i] = after;
      last_[i] = w > item.convex_low ? gain(item, w - 1, grid) : kInfinity;
    }
    sum += item.w;
  }
  return sum;
}

double Workspace::total_slowdown(std::span<const Item> items, const Grid& grid) const {
  if (!has_values_) return allocate::total_slowdown(items, grid);
  double total = 0;
  for (size_t i = 0; i < items.size(); ++i) total += columns_.value[i];
  return total;
}

void Workspace::move(Item& item, size_t i, int64_t units, const Grid& grid) {
  item.w += units;
  if (has_values_) columns_.value[i] = slowdown(item, item.w, grid);
  if (units > 0) {
    last_[i] = next_[i];
    next_[i] = item.w < item.convex_high ? gain(item, item.w, grid) : -kInfinity;
  } else {
    next_[i] = last_[i];
    last_[i] = item.w > item.convex_low ? gain(item, item.w - 1, grid) : kInfinity;
  }
}

// Moves single units while that helps; true when none does.
bool Workspace::exchange(std::span<Item> items, const Grid& grid) {
  const size_t n = items.size();
  for (size_t step = 0; step < 1000 + 4 * n; ++step) {
    most_next_ = greatest(next_.data(), n);
    least_last_ = least(last_.data(), n);
    if (!(most_next_ > least_last_)) return true;
    const size_t to = place_of(most_next_, next_), from = place_of(least_last_, last_);
    move(items[to], to, 1, grid);
    move(items[from], from, -1, grid);
  }
  return false;
}

double Workspace::gap(std::span<const Item> items, const Grid& grid) {
  const auto is_convex = [](const Item& item) { return item.far < 0; };
  if (is_exact_ && std::all_of(items.begin(), items.end(), is_convex)) return 0;
  // Any multiplier between the two proves the convex stretches; one of the ends proves most.
  double least = kInfinity;
  for (const double per_unit : {least_last_, most_next_}) {
    const double m = per_unit * grid.units;
    const double gap = std::isfinite(m) ? gap_at(items, m, grid) : kInfinity;
    if (!(gap < least)) continue;
    least = gap;
    multiplier = m;
  }
  return least;
}

double Workspace::gain_of_more(std::span<const Item> items, const Grid& grid) const {
  double most = greatest(next_.data(), items.size());
  for (size_t i = 0; i < items.size(); ++i)
    if (next_[i] == -kInfinity) most = std::max(most, gain(items[i], items[i].w, grid));
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
