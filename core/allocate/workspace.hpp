// Scratch memory of one solver and the steps that share it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "allocate/columns.hpp"
#include "allocate/item.hpp"
#include "allocate/solve.hpp"

namespace weft::allocate {

inline constexpr double kAnywhere = std::numeric_limits<double>::quiet_NaN();

// The convex stretches of a port as columns: first hinges, then curved polynomials, then straight
// ones.
struct Columns {
  std::vector<double> t, s, p, q;                        // hinges: [piece][column]
  std::vector<double> c0, c1, c2, c3;                    // polynomials
  std::vector<double> low_units, high_units, low, high;  // range, in units and in shares
  std::vector<double> knee, rate;                        // of polynomials: -D' and 1/D'' at low
  std::vector<double> x, other;                          // shares; those at the bracket's other end
  std::vector<double> w, value;                          // the answer, its slowdown
  std::vector<double> next, last;              // gain of the unit after w, of the last unit of w
  std::vector<const Curve*> curve;             // of given ranges
  const int32_t* applications = nullptr;       // of a port, else null
  std::vector<int32_t> item;                   // that a column belongs to, unless they are in order
  size_t hinges = 0, straight = 0, count = 0;  // the first straight one is at `straight`
  bool in_order = true;
  int32_t pieces = 0;
};

class Workspace {
 public:
  explicit Workspace(const Models& models);
  void reserve(size_t applications);

  // Units that the floors of these applications take, and that of one of them.
  double sum_floors(std::span<const int32_t> applications, const Grid& grid);
  double floor_of(int32_t application) const { return floors_[static_cast<size_t>(application)]; }

  // Least total slowdown over the convex stretches, whose ranges are `spare` units above the
  // floors. False if they cannot hold the budget, or a curve bends down and up again.
  bool solve_port(std::span<const int32_t> applications, int64_t budget, double spare,
                  const Grid& grid);

  // The same for given ranges; the search of the multiplier begins at `start` (or kAnywhere).
  bool solve_convex(std::span<Item> items, int64_t budget, const Grid& grid, double start);

  // Whether the answer of `solve_port` is the best on all of each range.
  bool is_best(double spare, const Grid& grid) const;

  // Absolute gap of the last convex answer against all of low..high.
  double gap(std::span<const Item> items, const Grid& grid);

  // The last convex answer, in the order of applications.
  void copy_weights(std::span<int64_t> weights) const;

  // Total slowdown of the last convex answer.
  double total_slowdown();

  // What one unit more would save at the last convex answer, beyond the budget too.
  double gain_of_more(const Grid& grid) const;

  double multiplier = 0;  // per share, of the search
  std::vector<Item> items;

 private:
  void put_on_grid(size_t application, const Grid& grid);
  std::span<const int32_t> order(std::span<const int32_t> applications);
  void fill_columns(std::span<const Item> items);
  void fill_column(const Item& item, size_t at);
  void solve_columns(int64_t budget, const Grid& grid, double start);
  void find_ranges(const Grid& grid);
  void find_multiplier(double share, double start, double close);
  void fill_flat_hinges(double share);
  bool straight_line_takes_the_rest(double share);
  double first_guess(double share);
  double total(double m, double r);
  double total_at(double v, bool by_r);
  Shares evaluate_hinges(double r);
  Shares evaluate_polynomials(double m);
  PolynomialColumns polynomials_from(size_t at);
  void interpolate(double share);
  void round(int64_t budget, const Grid& grid);
  void round_hinges(const Grid& grid);
  void round_polynomials(const Grid& grid);
  const Curve& curve_at(size_t at) const;
  void move(size_t at, int64_t units, const Grid& grid);
  bool exchange(const Grid& grid);
  double gap_at(std::span<const Item> items, double m, const Grid& grid) const;

  const Models& models_;
  bool is_uniform_ = true;  // all models are of the kind of the first

  // The models on the grid of `grid_units_`: floors in units, 0 if not computed yet.
  double grid_units_ = 0;
  std::vector<double> floors_;
  std::vector<GridPolynomial> polynomials_;
  std::vector<int32_t> ordered_;

  Columns columns_;
  bool bends_ = false;               // some polynomial of the port bends down in its range
  double slope_ = 0;                 // of the last total: by m, or by r if all curves are hinges
  double steepest_ = 0;              // greatest -c1 of a straight line
  double least_ = 0, greatest_ = 0;  // multipliers that bracket every answer
  Extremes extremes_ = {};           // of `next` and `last`
  bool is_exact_ = false;            // no exchange of one unit helps
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
