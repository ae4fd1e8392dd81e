#include "allocate/solve.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "allocate/workspace.hpp"
#include "base/error.hpp"

namespace weft::allocate {
namespace {

// A thread takes some 50 us to start, an application of a port some 50 ns.
constexpr size_t kApplicationsPerThread = 16384;
constexpr size_t kPortsAtOnce = 16;

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

void fill_items(const Models& models, std::span<const int32_t> applications, double spare,
                const Grid& grid, Workspace& work) {
  work.items.clear();
  for (const int32_t application : applications) {
    const auto low = static_cast<int64_t>(work.floor_of(application));
    const int64_t high = low + static_cast<int64_t>(spare);
    work.items.push_back(
        {&models[static_cast<size_t>(application)], low, high, low, high, -1, low});
    find_shape(work.items.back(), grid);
  }
}

// The answer for the convex stretches if it is good enough, else by splitting; its absolute gap.
double solve_items(Workspace& work, int64_t budget, const Grid& grid, const Limits& limits) {
  const auto is_convex_from_low = [](const Item& item) { return item.convex_low == item.low; };
  work.multiplier = 0;
  if (std::all_of(work.items.begin(), work.items.end(), is_convex_from_low) &&
      work.solve_convex(work.items, budget, grid, kAnywhere)) {
    const double gap = work.gap(work.items, grid);
    if (gap <= limits.tolerance * std::abs(total_slowdown(work.items, grid))) return gap;
  }
  return split(work, work.items, budget, grid, limits);
}

[[noreturn]] void refuse_floors(size_t port, size_t applications, double floors, int64_t budget) {
  throw Error(port_name(port),
              "the floors of " + std::to_string(applications) + " applications take " +
                  std::to_string(static_cast<int64_t>(floors)) + " units, the capacity is " +
                  std::to_string(budget),
              "lower the floors or admit fewer applications");
}

}  // namespace

Solver::Solver(const Models& models) : models_(models) {}
Solver::~Solver() = default;

void Solver::solve(const Ports& ports, const Answer& answer, const Limits& limits, size_t threads) {
  check_arrays(ports, answer);
  const size_t count = ports.units.size();
  size_t most = 0;
  for (size_t port = 0; port < count; ++port) {
    check_port(ports, port, models_.size());
    most = std::max(most, static_cast<size_t>(ports.offsets[port + 1] - ports.offsets[port]));
  }
  threads = std::clamp<size_t>(ports.applications.size() / kApplicationsPerThread, 1,
                               std::max<size_t>(threads, 1));
  while (works_.size() < threads) works_.push_back(std::make_unique<Workspace>(models_));
  std::atomic<size_t> next = 0;
  std::vector<size_t> reached(threads, count);
  std::vector<std::exception_ptr> errors(threads);
  const auto work = [&](size_t thread) {
    try {
      works_[thread]->reserve(most);
      for (size_t first; (first = next.fetch_add(kPortsAtOnce)) < count;)
        for (size_t port = first; port < std::min(first + kPortsAtOnce, count); ++port) {
          reached[thread] = port;
          solve_port(*works_[thread], ports, port, answer, limits);
        }
      reached[thread] = count;
    } catch (...) {
      errors[thread] = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (size_t thread = 1; thread < threads; ++thread) others.emplace_back(work, thread);
    } catch (const std::exception&) {  // no more can be started: those that were do the work
    }
    work(0);
  }
  const auto failed = std::min_element(reached.begin(), reached.end()) - reached.begin();
  if (errors[static_cast<size_t>(failed)])
    std::rethrow_exception(errors[static_cast<size_t>(failed)]);
}

void Solver::solve_port(Workspace& work, const Ports& ports, size_t port, const Answer& answer,
                        const Limits& limits) const {
  const Grid grid(ports.units[port]);
  const int64_t budget = ports.budget[port];
  const auto first = static_cast<size_t>(ports.offsets[port]);
  const auto count = static_cast<size_t>(ports.offsets[port + 1]) - first;
  const auto applications = ports.applications.subspan(first, count);
  const auto weights = answer.weights.subspan(first, count);
  const double floors = work.sum_floors(applications, grid);
  const double spare = static_cast<double>(budget) - floors;
  if (spare < 0) refuse_floors(port, count, floors, budget);
  double gap = 0, total = 0, more = 0;
  if (work.solve_port(applications, budget, spare, grid) && work.is_best(spare, grid)) {
    total = work.total_slowdown();
    more = work.gain_of_more(grid);
    work.copy_weights(weights);
  } else {
    fill_items(models_, applications, spare, grid, work);
    gap = solve_items(work, budget, grid, limits);
    total = total_slowdown(work.items, grid);
    more = gain_of_more(work.items, grid);
    for (size_t i = 0; i < count; ++i) weights[i] = work.items[i].w;
  }
  answer.objective[port] = total;
  answer.gap[port] = gap == 0 ? 0 : gap / std::abs(total);
  answer.multiplier[port] = more * grid.units;
}

}  // namespace weft::allocate
