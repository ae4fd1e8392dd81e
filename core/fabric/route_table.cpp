#include "fabric/route_table.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <unordered_map>

namespace weft::fabric {

namespace {

// The port lists of one switch, by target.
void list_ports(const UsablePorts& usable, size_t at, std::vector<Ports>& lists) {
  for (Ports& list : lists) list.clear();
  const size_t words = usable.words();
  for (size_t port = 0; port < usable.ports; ++port) {
    const uint64_t* bits = usable.bits.data() + (at * usable.ports + port) * words;
    for (size_t word = 0; word < words; ++word) {
      for (uint64_t rest = bits[word]; rest; rest &= rest - 1) {
        lists[word * 64 + std::countr_zero(rest)].push_back(static_cast<uint8_t>(port + 1));
      }
    }
  }
}

}  // namespace

std::vector<Ports> group_ports(const UsablePorts& usable, std::span<int32_t> group) {
  std::vector<Ports> groups;
  std::unordered_map<std::string, int32_t> number{{"", -1}};
  std::vector<Ports> lists(usable.words() * 64);
  for (size_t at = 0; at < usable.switches; ++at) {
    list_ports(usable, at, lists);
    int32_t* row = group.data() + at * usable.targets;
    for (size_t t = 0; t < usable.targets; ++t) {
      if (t > 0 && lists[t] == lists[t - 1]) {  // neighbours mostly share their way
        row[t] = row[t - 1];
        continue;
      }
      const auto next = static_cast<int32_t>(groups.size());
      const auto [entry, added] = number.try_emplace({lists[t].begin(), lists[t].end()}, next);
      if (added) groups.push_back(lists[t]);
      row[t] = entry->second;
    }
  }
  return groups;
}

void spread_destinations(const Spread& spread, const std::vector<Ports>& groups,
                         std::span<int16_t> ports) {
  struct Choice {
    const uint8_t* ports = nullptr;
    uint32_t count = 0;
    bool climbs = false;
  };
  const size_t switches = spread.divisor.size(), hosts = spread.target_of.size();
  std::vector<Choice> choices(spread.targets);
  std::vector<uint32_t> turn(hosts);
  int64_t divided_by = 0;
  for (size_t at = 0; at < switches; ++at) {
    for (size_t t = 0; t < spread.targets; ++t) {
      const int32_t group = spread.group[at * spread.targets + t];
      if (group < 0) {
        choices[t] = {};
        continue;
      }
      const Ports& list = groups[static_cast<size_t>(group)];
      const uint8_t* up = spread.up.data() + at * spread.ports;
      const bool climbs = std::any_of(list.begin(), list.end(), [&](int p) { return up[p - 1]; });
      choices[t] = {list.data(), static_cast<uint32_t>(list.size()), climbs};
    }
    if (spread.divisor[at] != divided_by) {
      divided_by = spread.divisor[at];
      for (size_t h = 0; h < hosts; ++h) {
        turn[h] = static_cast<uint32_t>(static_cast<int64_t>(h) / divided_by);
      }
    }
    int16_t* row = ports.data() + at * hosts;
    for (size_t h = 0; h < hosts; ++h) {
      const Choice& choice = choices[static_cast<size_t>(spread.target_of[h])];
      const uint32_t mine = choice.climbs ? turn[h] : static_cast<uint32_t>(h);
      row[h] = choice.count ? choice.ports[mine % choice.count] : int16_t{0};
    }
  }
}

Ports number_ports(std::span<int16_t> ports) {
  std::array<int16_t, 256> place{};
  for (const int16_t port : ports) place[static_cast<uint8_t>(port)] = 1;
  place[0] = -1;
  Ports used;
  for (size_t port = 1; port < place.size(); ++port) {
    if (!place[port]) continue;
    place[port] = static_cast<int16_t>(used.size());
    used.push_back(static_cast<uint8_t>(port));
  }
  for (int16_t& port : ports) port = place[static_cast<uint8_t>(port)];
  return used;
}

namespace {

// Whether every path from a switch to one destination arrives, remembered by switch.
class Follower {
 public:
  explicit Follower(const RouteTable& table) : table_(table), seen_(table.switches, 0) {}

  void start(int32_t destination) {
    destination_ = destination;
    generation_ += 2;
  }

  // `generation_` marks a switch on the way, `generation_` + 1 one whose paths all arrive. One
  // that leads astray is left marked as on the way: whoever meets it again is lost as well.
  bool arrives(int32_t from) {
    if (seen_[from] >= generation_) return seen_[from] == generation_ + 1;
    path_.clear();
    if (!enter(from)) return false;
    while (!path_.empty()) {
      Step& step = path_.back();
      if (step.next == step.end) {
        seen_[step.at] = generation_ + 1;
        path_.pop_back();
        continue;
      }
      const size_t port = table_.group_ports[step.next++];
      const int32_t peer = table_.peer[step.at * table_.ports + port];
      if (peer == -2 - destination_) continue;
      if (peer < 0 || seen_[peer] == generation_) return false;
      if (seen_[peer] < generation_ && !enter(peer)) return false;
    }
    return true;
  }

 private:
  struct Step {
    size_t at;
    uint32_t next, end;
  };

  bool enter(int32_t at) {
    const auto row = static_cast<size_t>(at);
    seen_[row] = generation_;
    const uint16_t group = table_.next_hop[row * table_.hosts + static_cast<size_t>(destination_)];
    if (group == kNoGroup) return false;
    path_.push_back({row, table_.group_start[group], table_.group_start[group + 1]});
    return true;
  }

  const RouteTable& table_;
  std::vector<uint64_t> seen_;
  std::vector<Step> path_;
  uint64_t generation_ = 0;
  int32_t destination_ = -1;
};

}  // namespace

int64_t find_lost_pair(const RouteTable& table, std::span<const int32_t> first_switch,
                       std::span<const int32_t> destination, std::span<const int64_t> order) {
  Follower follower(table);
  int64_t lost = -1;
  int32_t current = -1;
  for (const int64_t place : order) {
    if (destination[place] != current) follower.start(current = destination[place]);
    if (follower.arrives(first_switch[place])) continue;
    if (lost < 0 || place < lost) lost = place;
  }
  return lost;
}

}  // namespace weft::fabric
