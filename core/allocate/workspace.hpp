// Scratch memory of one solver and the steps that share it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "allocate/item.hpp"
#include "allocate/solve.hpp"

namespace weft::allocate {

inline constexpr double kAnywhere = std::numeric_limits<double>::quiet_NaN();

// The convex stretches of a port as columns, in shares: first hinges, then polynomials.
struct Columns {
  std::vector<double> t, s, p, q;  // hinges: [piece][column]
  std::vector<double> c1, c2, c3;
  std::vector<double> low, high;
  std::vector<double> x, slope, other;  // share, its slope; shares at the bracket's other end
  std::vector<double> low_units, high_units, w, value;  // of hinges: range, answer, slowdown
  std::vector<int32_t> item;                            // that a column belongs to
  std::vector<int32_t> straight;                        // columns of polynomials of degree 1
  size_t hinges = 0, count = 0;
  int32_t pieces = 0;
};

// What the hinges of a port have together.
struct HingeSums {
  double full = 0, sum_s = 0, most_s = 0;  // shares at the highest knots; sqrt(q) of the lowest
  double least_s = kInfinity, least_low = kInfinity;
};

class Workspace {
 public:
  void reserve(size_t applications, int32_t pieces);

  // Least total slowdown over the convex stretches; the search of the multiplier begins at `start`
  // (or kAnywhere). False if the stretches cannot hold the budget.
  bool solve_convex(std::span<Item> items, int64_t budget, const Grid& grid, double start);

  // Absolute gap of the last convex answer against all of low..high.
  double gap(std::span<const Item> items, const Grid& grid);

  // Total slowdown of the last convex answer.
  double total_slowdown(std::span<const Item> items, const Grid& grid) const;

  // What one unit more would save at the last convex answer, beyond the budget too.
  double gain_of_more(std::span<const Item> items, const Grid& grid) const;

  double multiplier = 0;  // per share, of the search
  std::vector<Item> items;
  std::vector<int64_t> floor_units;  // of every curve, on the grid of `floors_on` units
  double floors_on = 0;

 private:
  void fill_columns(std::span<const Item> items, const Grid& grid);
  void fill_hinges(const Curve& curve, size_t at);
  void fill_polynomial(const Curve& curve, size_t at);
  void find_multiplier(double share, double start, double close);
  void fill_flat_hinges(double share);
  bool straight_line_takes_the_rest(double share);
  double first_guess(double share) const;
  double total(double m, double r);
  double total_at(double v, bool by_r);
  void evaluate_hinges(double r);
  void evaluate_polynomials(double m);
  void interpolate(double share);
  void round(std::span<Item> items, int64_t budget, const Grid& grid);
  int64_t round_hinges(std::span<Item> items, const Grid& grid);
  int64_t round_polynomials(std::span<Item> items, const Grid& grid);
  void move(Item& item, size_t i, int64_t units, const Grid& grid);
  bool exchange(std::span<Item> items, const Grid& grid);
  double gap_at(std::span<const Item> items, double m, const Grid& grid) const;

  Columns columns_;
  double slope_ = 0;                 // of the last total: by m, or by r if all curves are hinges
  double steepest_ = 0;              // greatest -c1 of a straight line
  double least_ = 0, greatest_ = 0;  // multipliers that bracket every answer
  std::vector<double> next_, last_;  // gain of the unit after w, of the last unit of w
  double most_next_ = 0, least_last_ = 0;
  bool is_exact_ = false;    // no exchange of one unit helps
  bool has_values_ = false;  // all are hinges, in their order: `value` has their slowdowns
  HingeSums hinges_;
};

double total_slowdown(std::span<const Item> items, const Grid& grid);

// What one unit more would save at any answer.
double gain_of_more(std::span<const Item> items, const Grid& grid);

// Raises the bound by splitting ranges, and falls back on the programme. `items` hold the answer so
// far; returns the absolute gap of the one that they hold afterwards.
double split(Workspace& work, std::span<Item> items, int64_t budget, const Grid& grid,
             const Limits& limits);

// The exact answer by dynamic programming; allocates. False if it would take too many steps.
bool programme(std::span<Item> items, int64_t budget, const Grid& grid, double most_steps);

}  // namespace weft::allocate
