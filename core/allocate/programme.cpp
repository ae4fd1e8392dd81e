// The dynamic programme on the integer grid.
//
// best_k(s) = the least total slowdown of the first k applications with s units together:
//   best_0 is that of all convex applications, added unit by unit in the order of their gains
//   (exact, as their gains fall), and best_k(s) = min_w best_{k-1}(s - w) + D_k(w).
#include <algorithm>
#include <vector>

#include "allocate/workspace.hpp"

namespace weft::allocate {
namespace {

// A unit that is handed out goes through a heap and is kept: it counts as so many steps.
constexpr double kUnitSteps = 64;

struct Offer {
  double gain;
  size_t item;
  bool operator<(const Offer& other) const {
    return gain < other.gain || (gain == other.gain && item > other.item);
  }
};

// Hands out units to the convex items by greatest gain; `to` receives each unit's item in order.
void hand_out(std::span<Item> items, int64_t units, const Grid& grid, std::vector<double>& totals,
              std::vector<size_t>& to) {
  std::vector<Offer> offers;
  double total = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].far >= 0) continue;
    items[i].w = items[i].low;
    total += slowdown(items[i], items[i].w, grid);
    if (items[i].w < items[i].high) offers.push_back({gain(items[i], items[i].w, grid), i});
  }
  std::make_heap(offers.begin(), offers.end());
  totals.assign(1, total);
  while (static_cast<int64_t>(to.size()) < units && !offers.empty()) {
    std::pop_heap(offers.begin(), offers.end());
    const auto [saved, i] = offers.back();
    offers.pop_back();
    to.push_back(i);
    totals.push_back(total -= saved);
    if (++items[i].w == items[i].high) continue;
    offers.push_back({gain(items[i], items[i].w, grid), i});
    std::push_heap(offers.begin(), offers.end());
  }
}

}  // namespace

bool programme(std::span<Item> items, int64_t budget, const Grid& grid, double most_steps) {
  std::vector<size_t> bent;
  int64_t least = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].far >= 0) bent.push_back(i);
    least += items[i].low;
  }
  const int64_t spare = budget - least;
  const auto size = static_cast<size_t>(spare) + 1;
  const double each = kUnitSteps + 0.5 * static_cast<double>(size * bent.size());
  if (each * static_cast<double>(size) > most_steps) return false;

  // Everything is counted from the items' least units.
  std::vector<double> best, next(size), slowdowns(size);
  std::vector<size_t> to;
  hand_out(items, spare, grid, best, to);
  best.resize(size, kInfinity);
  std::vector<std::vector<int32_t>> taken(bent.size(), std::vector<int32_t>(size));
  for (size_t k = 0; k < bent.size(); ++k) {
    const Item& item = items[bent[k]];
    const auto most = static_cast<size_t>(std::min(spare, item.high - item.low));
    for (size_t w = 0; w <= most; ++w)
      slowdowns[w] = slowdown(item, item.low + static_cast<int64_t>(w), grid);
    for (size_t s = 0; s < size; ++s) {
      next[s] = kInfinity;
      for (size_t w = 0; w <= std::min(s, most); ++w) {
        const double total = best[s - w] + slowdowns[w];
        if (!(total < next[s])) continue;
        next[s] = total;
        taken[k][s] = static_cast<int32_t>(w);
      }
    }
    std::swap(best, next);
  }
  size_t left = size - 1;
  for (size_t k = bent.size(); k-- > 0;) {
    const int32_t w = taken[k][left];
    items[bent[k]].w = items[bent[k]].low + w;
    left -= static_cast<size_t>(w);
  }
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].far < 0) items[i].w = items[i].low;
  for (size_t unit = 0; unit < left; ++unit) ++items[to[unit]].w;
  return true;
}

}  // namespace weft::allocate
