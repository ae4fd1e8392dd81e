// Tables of routes of large fabrics: which ports lead on, and which of them each host takes.
//
// Switches, hosts and targets are counted from 0, ports from 1. A target is a switch with hosts.
// A group is a set of ports that lead nearer to a target alike. Entry points: `group_ports`, then
// `spread_destinations` and `number_ports`; `find_lost_pair` follows the finished table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::fabric {

using Ports = std::vector<uint8_t>;

// Bit t of the words of (switch, port): the port leads nearer to target t.
struct UsablePorts {
  size_t switches, ports, targets;
  std::span<const uint64_t> bits;  // [switch][port - 1][word]

  size_t words() const { return (targets + 63) / 64; }
};

// Writes the group of every [switch][target], -1 where no port leads on; returns the groups.
std::vector<Ports> group_ports(const UsablePorts& usable, std::span<int32_t> group);

// The group of a switch towards the target of host j gives host j its port number `turn` mod the
// group's size, where turn is j, or j / divisor[switch] where a port of the group leads up.
struct Spread {
  size_t ports;                        // of a switch at most
  std::span<const int32_t> group;      // [switch][target]
  std::span<const uint8_t> up;         // [switch][port - 1]
  std::span<const int64_t> divisor;    // [switch]
  std::span<const int32_t> target_of;  // [host]
  size_t targets;
};

// Writes the port of every [switch][host], 0 where there is none.
void spread_destinations(const Spread& spread, const std::vector<Ports>& groups,
                         std::span<int16_t> ports);

// Replaces every port by its place among the ports in use, 0 by -1; returns the ports in use.
Ports number_ports(std::span<int16_t> ports);

constexpr uint16_t kNoGroup = 65535;

// Where each port leads: peer[switch][port]; a switch from 0, host h as -2 - h, -1 for nothing.
struct RouteTable {
  size_t switches, hosts, ports;
  std::span<const uint16_t> next_hop;  // [switch][host]: a group, or kNoGroup
  std::span<const uint32_t> group_start, group_ports;
  std::span<const int32_t> peer;
};

// The lowest place of a pair (first switch, destination host) from which some path does not
// arrive, or -1. Pairs are followed destination by destination: `order` sorts them so.
int64_t find_lost_pair(const RouteTable& table, std::span<const int32_t> first_switch,
                       std::span<const int32_t> destination, std::span<const int64_t> order);

}  // namespace weft::fabric
