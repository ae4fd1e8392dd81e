#include "allocate/solve.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "allocate/workspace.hpp"
#include "base/error.hpp"

namespace weft::allocate {
namespace {

std::string port_name(size_t port) {
  return "port " + std::to_string(port);
}

void check_port(const Ports& ports, size_t port, size_t applications) {
  const int64_t units = ports.units[port], budget = ports.budget[port];
  const int64_t count = ports.offsets[port + 1] - ports.offsets[port];
  if (count <= 0) throw Error(port_name(port), "has no applications", "leave it out");
  if (units < 1 || units > (int64_t{1} << 40) || budget < 1 || budget > units)
    throw Error(
        port_name(port),
        std::to_string(budget) + " of " + std::to_string(units) + " units are not within 1 to 2^40",
        "give more units, or a capacity above 0 and up to 1");
  if (budget < count)
    throw Error(
        port_name(port),
        std::to_string(count) + " applications, but only " + std::to_string(budget) + " units",
        "use more units: each application needs one");
  const auto own = ports.applications.subspan(static_cast<size_t>(ports.offsets[port]),
                                              static_cast<size_t>(count));
  for (const int32_t application : own)
    if (application < 0 || static_cast<size_t>(application) >= applications)
      throw Error(port_name(port),
                  "application " + std::to_string(application) + " has no model, there are " +
                      std::to_string(applications),
                  "number applications from 0");
}

void check_arrays(const Ports& ports, const Answer& answer) {
  const size_t count = ports.units.size(), entries = ports.applications.size();
  const bool fits = ports.offsets.size() == count + 1 && ports.offsets[0] == 0 &&
                    std::is_sorted(ports.offsets.begin(), ports.offsets.end()) &&
                    ports.offsets[count] == static_cast<int64_t>(entries) &&
                    ports.budget.size() == count && answer.weights.size() == entries &&
                    answer.objective.size() == count && answer.gap.size() == count &&
                    answer.multiplier.size() == count;
  if (!fits) throw Error("ports", "the arrays do not fit together", "pass one entry per port");
}

int64_t least_units(const Curve& curve, const Grid& grid) {
  // A floor that was computed from a whole number of units means that number.
  const double units = curve.floor * grid.units * (1 - 1e-12);
  const auto below = static_cast<int64_t>(units);
  return std::max<int64_t>(1, below + (static_cast<double>(below) < units));
}

// The least units of every curve, if the grid is another one than last time.
void fill_least(const Models& models, const Grid& grid, Workspace& work) {
  if (work.floors_on == grid.units) return;
  work.floors_on = grid.units;
  work.floor_units.resize(models.size());
  for (size_t i = 0; i < models.size(); ++i) work.floor_units[i] = least_units(models[i], grid);
}

// The port's items with their ranges; true if each is convex from its least units on.
bool fill_items(const Models& models, const Ports& ports, size_t port, const Grid& grid,
                Workspace& work) {
  std::vector<Item>& items = work.items;
  const size_t first = static_cast<size_t>(ports.offsets[port]);
  items.resize(static_cast<size_t>(ports.offsets[port + 1]) - first);
  int64_t spare = ports.budget[port];
  for (size_t k = 0; k < items.size(); ++k) {
    const auto application = static_cast<size_t>(ports.applications[first + k]);
    const int64_t low = work.floor_units[application];
    spare -= low;
    items[k] = {&models[application], low, low, low, low, -1, low};
  }
  if (spare < 0)
    throw Error(port_name(port),
                "the floors of " + std::to_string(items.size()) + " applications take " +
                    std::to_string(ports.budget[port] - spare) + " units, the capacity is " +
                    std::to_string(ports.budget[port]),
                "lower the floors or admit fewer applications");
  bool all = true;
  for (Item& item : items) {
    item.high = item.low + spare;
    find_shape(item, grid);
    all = all && item.convex_low == item.low;
  }
  return all;
}

}  // namespace

Solver::Solver(const Models& models) : models_(models), work_(std::make_unique<Workspace>()) {}
Solver::~Solver() = default;

void Solver::solve(const Ports& ports, const Answer& answer, const Limits& limits) {
  check_arrays(ports, answer);
  size_t most = 0;
  for (size_t port = 0; port < ports.units.size(); ++port) {
    check_port(ports, port, models_.size());
    most = std::max(most, static_cast<size_t>(ports.offsets[port + 1] - ports.offsets[port]));
  }
  Workspace& work = *work_;
  work.reserve(most, models_.most_pieces());
  for (size_t port = 0; port < ports.units.size(); ++port) {
    const Grid grid(ports.units[port]);
    const int64_t budget = ports.budget[port];
    fill_least(models_, grid, work);
    const bool from_low = fill_items(models_, ports, port, grid, work);
    work.multiplier = 0;
    double gap = kInfinity, more = 0;
    if (from_low && work.solve_convex(work.items, budget, grid, kAnywhere)) {
      gap = work.gap(work.items, grid);
      more = work.gain_of_more(work.items, grid);
    }
    double total =
        gap < kInfinity ? work.total_slowdown(work.items, grid) : total_slowdown(work.items, grid);
    if (!(gap <= limits.tolerance * std::abs(total))) {
      gap = split(work, work.items, budget, grid, limits);
      total = total_slowdown(work.items, grid);
      more = gain_of_more(work.items, grid);
    }
    const auto first = static_cast<size_t>(ports.offsets[port]);
    for (size_t i = 0; i < work.items.size(); ++i) answer.weights[first + i] = work.items[i].w;
    answer.objective[port] = total;
    answer.gap[port] = gap == 0 ? 0 : gap / std::abs(total);
    answer.multiplier[port] = more * grid.units;
  }
}

}  // namespace weft::allocate
