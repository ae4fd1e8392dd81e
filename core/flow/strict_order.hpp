// Rates of flows by strict priority: groups of flows one after another, max-min within a group.
//
// A group takes what the groups before it have left of the ports, by progressive filling: all rates
// rise in proportion to the flows' weights; the next port to be full, or cap to be reached, fixes
// its flows. Levels r/u of ports only rise while flows are fixed elsewhere, so that a heap of them
// with late corrections gives the next one, and a group of n hops takes O(n log n). A group of one
// flow takes the least of what its ports have left. The rates are unique, and depend on no history.
// Entry point: `StrictOrder`. Units: those of the rates in `MaxMin`, whose ports and paths it uses.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flow/max_min.hpp"

namespace weft::flow {

class StrictOrder {
 public:
  explicit StrictOrder(const MaxMin& network) : network_(network) {}

  // Rates of the flows in `order`, by flow; `ends[i]` is where group i of them ends.
  const std::vector<double>& solve(std::span<const uint32_t> order, std::span<const uint32_t> ends);

 private:
  struct Level {
    double level;
    uint32_t port;
    bool operator<(const Level& other) const { return level > other.level; }  // least on top
  };

  struct Member {
    uint32_t flow, before;  // before: another member of the port, or kNone
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  void fill_flow(uint32_t flow);
  void fill_group(std::span<const uint32_t> group);
  void list_members(std::span<const uint32_t> group);
  void fix(uint32_t flow, double level);

  const MaxMin& network_;
  std::vector<double> rates_;
  std::vector<double> left_, rising_;  // by port: capacity, and weight of flows not yet fixed
  std::vector<uint32_t> used_, last_;  // ports of the group; by port: its last member
  std::vector<Member> members_;
  std::vector<uint32_t> by_cap_;
  std::vector<uint8_t> is_fixed_;
  std::vector<Level> levels_;
};

}  // namespace weft::flow
