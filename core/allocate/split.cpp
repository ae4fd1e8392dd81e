// Splitting of ranges (branch and bound), depth first.
//
// A node is a range low..high of every application. Its bound is the greatest bound(m); there some
// application jumps between two places of equal cost, and the budget lies inside the jump. Its
// range is split at the point that the budget asks for: the envelopes of both halves lie higher.
// Among applications of the same curve the answer may be ordered, w_1 >= w_2 >= ..., so a split
// that lowers one lowers all that follow, and one that raises it raises all before.
#include <algorithm>
#include <cmath>
#include <vector>

#include "allocate/workspace.hpp"

namespace weft::allocate {
namespace {

bool same_curve(const Item& a, const Item& b) {
  if (a.curve == b.curve) return true;
  return !a.curve->is_hinges && !b.curve->is_hinges && a.curve->floor == b.curve->floor &&
         std::equal(a.curve->c, a.curve->c + 4, b.curve->c);
}

class Splitter {
 public:
  Splitter(Workspace& work, std::span<Item> items, int64_t budget, const Grid& grid,
           const Limits& limits)
      : work_(work),
        items_(items.begin(), items.end()),
        best_(items),
        budget_(budget),
        grid_(grid),
        limits_(limits),
        low_(items.size()),
        high_(items.size()) {
    for (const Item& item : items) placed_ += item.w;
    objective_ = placed_ == budget ? total_slowdown(items, grid) : kInfinity;
  }

  // Absolute gap of the best answer found.
  double run() {
    visit();
    return std::max(0.0, objective_ - bound_);
  }

 private:
  // Least bound of this node's leaves goes into bound_.
  void visit() {
    if (!can_hold()) return;
    ++nodes_;
    const double bound = raise_bound();
    const size_t jumping = place();
    const bool is_met = jumping == items_.size() || bound >= objective_ - close();
    if (is_met || nodes_ >= limits_.nodes) {
      bound_ = std::min(bound_, bound);
      return;
    }
    const int64_t at = std::clamp(items_[jumping].w, items_[jumping].low, items_[jumping].high - 1);
    branch(jumping, at, false);
    branch(jumping, at, true);
  }

  double close() const { return limits_.tolerance * std::abs(objective_); }

  bool can_hold() const {
    int64_t least = 0, most = 0;
    for (const Item& item : items_) {
      if (item.low > item.high) return false;
      least += item.low;
      most += item.high;
    }
    return least <= budget_ && budget_ <= most;
  }

  // Units at the multiplier m, into `w`; the bound there.
  int64_t units_at(double m, std::vector<int64_t>& w, double* bound) const {
    int64_t units = 0;
    double cost = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
      w[i] = least_cost(items_[i], m, grid_);
      units += w[i];
      cost += cost_of(items_[i], w[i], m, grid_);
    }
    *bound = cost - m * static_cast<double>(budget_) * grid_.unit;
    return units;
  }

  // Bisection on the multiplier, until the units are the budget or, where a jump passes over it, to
  // the last bit; low_ and high_ are the places on both sides.
  double raise_bound() {
    double less = work_.multiplier, more = less, step = std::max(1e-3, std::abs(less) * 0.01);
    double bound_less, bound_more;
    int64_t units;
    while ((units = units_at(less, high_, &bound_less)) < budget_) less -= step, step *= 4;
    if (units == budget_) {
      low_ = high_;
      work_.multiplier = less;
      return bound_less;
    }
    step = std::max(1e-3, std::abs(more) * 0.01);
    while ((units = units_at(more, low_, &bound_more)) > budget_) more += step, step *= 4;
    double best = std::max(bound_less, bound_more);
    const double close = 1e-15 * std::max(1.0, std::abs(less) + std::abs(more));
    while (units != budget_ && more - less > close) {
      const double m = 0.5 * (less + more);
      double bound;
      units = units_at(m, trial_, &bound);
      best = std::max(best, bound);
      (units > budget_ ? less : more) = m;
      std::swap(units > budget_ ? high_ : low_, trial_);
    }
    if (units == budget_) high_ = low_, less = more;
    work_.multiplier = 0.5 * (less + more);
    return best;
  }

  // An answer from low_ and high_: jumps that fit are made, then straight stretches filled; who is
  // left inside a jump is returned (or the number of items), with that answer in items_.
  size_t place() {
    const size_t n = items_.size();
    int64_t missing = budget_;
    for (size_t i = 0; i < n; ++i) {
      items_[i].w = std::min(low_[i], high_[i]);
      missing -= items_[i].w;
    }
    size_t jumping = n;
    for (size_t i = 0; i < n; ++i) {
      if (!jumps(i)) continue;
      const int64_t width = std::abs(high_[i] - low_[i]);
      if (width <= missing) {
        items_[i].w += width;
        missing -= width;
      } else if (jumping == n) {
        jumping = i;
      }
    }
    for (size_t i = 0; i < n && missing > 0; ++i) {
      if (jumps(i)) continue;
      const int64_t units = std::min(missing, std::abs(high_[i] - low_[i]));
      items_[i].w += units;
      missing -= units;
    }
    if (missing > 0 && jumping < n) items_[jumping].w += missing;
    if (missing == 0) jumping = n;
    keep(items_);
    if (jumping < n) try_sides(jumping);
    return jumping;
  }

  bool jumps(size_t i) const {
    const Item& item = items_[i];
    return item.far >= 0 && (low_[i] == item.far) != (high_[i] == item.far);
  }

  // Everyone on the stretch where it is, the jumping one on either side: convex problems.
  void try_sides(size_t jumping) {
    const int64_t inside = items_[jumping].w;
    for (const int64_t side : {low_[jumping], high_[jumping]}) {
      stretches_ = items_;
      stretches_[jumping].w = side;
      for (Item& item : stretches_) {
        if (item.w >= item.convex_low && item.w <= item.convex_high) continue;
        item.convex_low = item.convex_high = item.w;
      }
      const double multiplier = work_.multiplier;
      if (work_.solve_convex(stretches_, budget_, grid_, multiplier)) keep(stretches_);
      work_.multiplier = multiplier;
    }
    items_[jumping].w = inside;
  }

  void keep(std::span<const Item> items) {
    const double total = total_slowdown(items, grid_);
    if (!(total < objective_)) return;
    objective_ = total;
    for (size_t i = 0; i < items.size(); ++i) best_[i].w = items[i].w;
  }

  void branch(size_t item, int64_t at, bool upper) {
    const size_t mark = undo_.size();
    for (size_t i = 0; i < items_.size(); ++i) {
      const bool follows = upper ? i < item : i > item;
      if (i != item && !(follows && same_curve(items_[i], items_[item]))) continue;
      undo_.push_back({i, items_[i]});
      if (upper)
        items_[i].low = std::max(items_[i].low, at + 1);
      else
        items_[i].high = std::min(items_[i].high, at);
      if (items_[i].low <= items_[i].high) find_shape(items_[i], grid_);
    }
    visit();
    for (; undo_.size() > mark; undo_.pop_back()) items_[undo_.back().place] = undo_.back().item;
  }

  struct Undo {
    size_t place;
    Item item;
  };

  Workspace& work_;
  std::vector<Item> items_;
  std::span<Item> best_;
  int64_t budget_, placed_ = 0, nodes_ = 0;
  Grid grid_;
  Limits limits_;
  std::vector<int64_t> low_, high_, trial_ = std::vector<int64_t>(low_.size());
  std::vector<Item> stretches_;
  std::vector<Undo> undo_;
  double objective_ = kInfinity, bound_ = kInfinity;
};

}  // namespace

double split(Workspace& work, std::span<Item> items, int64_t budget, const Grid& grid,
             const Limits& limits) {
  const double gap = Splitter(work, items, budget, grid, limits).run();
  if (gap <= limits.tolerance * std::abs(total_slowdown(items, grid))) return gap;
  return programme(items, budget, grid, limits.programme_steps) ? 0 : gap;
}

}  // namespace weft::allocate
