// The columns of a port, from its applications or from given ranges.
#include <algorithm>
#include <cmath>

#include "allocate/workspace.hpp"

namespace weft::allocate {
namespace {

enum class Group : uint8_t { kHinges, kCurved, kStraight };

Group group_of(const Curve& curve) {
  if (curve.is_hinges) return Group::kHinges;
  return is_straight(curve) ? Group::kStraight : Group::kCurved;
}

double least_units(const Curve& curve, const Grid& grid) {
  // A floor that was computed from a whole number of units means that number.
  return std::max(1.0, std::ceil(curve.floor * grid.units * (1 - 1e-12)));
}

// The first units above `low` from which on the curve bends down; infinity if there are none,
// -infinity if it may bend up again.
double find_turn(const Curve& curve, double low, const Grid& grid) {
  const double c2 = curve.c[2], c3 = curve.c[3], first = low + 1;
  const auto bends_down = [&](double w) { return c2 + 3 * c3 * w * grid.unit < 0; };
  if (c3 >= 0) return !bends_down(first) ? kInfinity : c3 > 0 ? -kInfinity : first;
  if (!bends_down(grid.units)) return kInfinity;
  double w = std::max(first, std::trunc(-c2 / (3 * c3) * grid.units));
  while (!bends_down(w)) ++w;
  while (w > first && bends_down(w - 1)) --w;
  return w;
}

}  // namespace

Workspace::Workspace(const Models& models) : models_(models) {
  floors_.resize(models.size());
  for (size_t i = 0; i < models.size(); ++i)
    is_uniform_ = is_uniform_ && group_of(models[i]) == group_of(models[0]);
  for (size_t i = 0; i < models.size() && polynomials_.empty(); ++i)
    if (!models[i].is_hinges) polynomials_.resize(models.size());
}

void Workspace::reserve(size_t applications) {
  Columns& c = columns_;
  applications += 3;  // places that columns.hpp may touch beyond the last
  c.pieces = models_.most_pieces();
  if (c.x.size() >= applications) return;
  for (auto* pieces : {&c.t, &c.s, &c.p, &c.q})
    pieces->resize(applications * static_cast<size_t>(c.pieces));
  for (auto* column : {&c.c0, &c.c1, &c.c2, &c.c3, &c.low_units, &c.high_units, &c.low, &c.high,
                       &c.knee, &c.rate, &c.x, &c.other, &c.w, &c.value, &c.next, &c.last})
    column->resize(applications);
  c.curve.resize(applications);
  c.item.resize(applications);
  ordered_.resize(applications);
  items.reserve(applications);
}

double Workspace::sum_floors(std::span<const int32_t> applications, const Grid& grid) {
  if (grid_units_ != grid.units) std::fill(floors_.begin(), floors_.end(), 0.0);
  grid_units_ = grid.units;
  int64_t sum = 0;  // whole numbers: they add up faster, and as exactly
  for (const int32_t application : applications) {
    const auto i = static_cast<size_t>(application);
    if (floors_[i] == 0) put_on_grid(i, grid);
    sum += static_cast<int64_t>(floors_[i]);
  }
  return static_cast<double>(sum);
}

void Workspace::put_on_grid(size_t application, const Grid& grid) {
  const Curve& curve = models_[application];
  const double low = floors_[application] = least_units(curve, grid);
  if (curve.is_hinges) return;
  const double turn = find_turn(curve, low, grid);
  // The first point that bends down ends the convex stretch.
  const double stop = turn == low + 1 ? low : turn;
  GridPolynomial& polynomial = polynomials_[application];
  polynomial = {{curve.c[0], curve.c[1], curve.c[2], curve.c[3]}, low, turn, stop, 0};
}

// The applications in the order of columns.
std::span<const int32_t> Workspace::order(std::span<const int32_t> applications) {
  Columns& c = columns_;
  c.count = applications.size();
  c.in_order = is_uniform_;
  if (is_uniform_) {
    const Group group = group_of(models_[0]);
    c.hinges = group == Group::kHinges ? c.count : 0;
    c.straight = group == Group::kStraight ? 0 : c.count;
    return applications;
  }
  size_t at = 0;
  for (const Group group : {Group::kHinges, Group::kCurved, Group::kStraight}) {
    if (group == Group::kCurved) c.hinges = at;
    if (group == Group::kStraight) c.straight = at;
    for (size_t i = 0; i < applications.size(); ++i) {
      if (group_of(models_[static_cast<size_t>(applications[i])]) != group) continue;
      c.item[at] = static_cast<int32_t>(i);
      ordered_[at++] = applications[i];
    }
  }
  return {ordered_.data(), c.count};
}

bool Workspace::solve_port(std::span<const int32_t> applications, int64_t budget, double spare,
                           const Grid& grid) {
  Columns& c = columns_;
  const int32_t* const ordered = c.applications = order(applications).data();
  gather_hinges(
      {ordered, models_.pieces(), floors_.data(), spare, c.t.data(), c.s.data(), c.p.data(),
       c.q.data(), c.low_units.data(), c.high_units.data(), c.x.size(), c.pieces},
      c.hinges);
  const size_t from = c.hinges;
  bends_ = gather_polynomials({ordered + from, polynomials_.data(), spare, c.c0.data() + from,
                               c.c1.data() + from, c.c2.data() + from, c.c3.data() + from,
                               c.low_units.data() + from, c.high_units.data() + from},
                              c.count - from);
  if (bends_ && !(sum(c.high_units.data(), c.count) >= static_cast<double>(budget))) return false;
  solve_columns(budget, grid, kAnywhere);
  return true;
}

bool Workspace::solve_convex(std::span<Item> items, int64_t budget, const Grid& grid,
                             double start) {
  int64_t least = 0, most = 0;
  for (const Item& item : items) {
    least += item.convex_low;
    most += item.convex_high;
  }
  if (budget < least || budget > most) return false;
  columns_.applications = nullptr;
  fill_columns(items);
  solve_columns(budget, grid, start);
  for (size_t at = 0; at < columns_.count; ++at)
    items[static_cast<size_t>(columns_.item[at])].w = static_cast<int64_t>(columns_.w[at]);
  return true;
}

void Workspace::fill_columns(std::span<const Item> items) {
  Columns& c = columns_;
  size_t at = 0;
  for (const Group group : {Group::kHinges, Group::kCurved, Group::kStraight}) {
    if (group == Group::kCurved) c.hinges = at;
    if (group == Group::kStraight) c.straight = at;
    for (size_t i = 0; i < items.size(); ++i) {
      if (group_of(*items[i].curve) != group) continue;
      c.item[at] = static_cast<int32_t>(i);
      fill_column(items[i], at++);
    }
  }
  c.count = at;
  c.in_order = false;
}

void Workspace::fill_column(const Item& item, size_t at) {
  Columns& c = columns_;
  const Curve& curve = *item.curve;
  c.curve[at] = item.curve;
  c.low_units[at] = static_cast<double>(item.convex_low);
  c.high_units[at] = static_cast<double>(item.convex_high);
  c.c0[at] = curve.c[0];
  c.c1[at] = curve.c[1];
  c.c2[at] = curve.c[2];
  c.c3[at] = curve.c[3];
  if (!curve.is_hinges) return;
  for (size_t j = 0, to = at; j < static_cast<size_t>(c.pieces); ++j, to += c.x.size()) {
    c.t[to] = curve.pieces[j].t;
    c.s[to] = curve.pieces[j].s;
    c.p[to] = curve.pieces[j].p;
    c.q[to] = curve.pieces[j].q;
  }
}

void Workspace::copy_weights(std::span<int64_t> weights) const {
  const Columns& c = columns_;
  for (size_t at = 0; at < c.count; ++at) {
    const size_t i = c.in_order ? at : static_cast<size_t>(c.item[at]);
    weights[i] = static_cast<int64_t>(c.w[at]);
  }
}

}  // namespace weft::allocate
