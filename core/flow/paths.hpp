// The ports and queues that a flow passes: routes and lanes as at packet level.
//
// The two directions of cable i are ports 2i and 2i + 1; each lane is a queue. A lane of the high
// arbitration table has priority 0, all others priority 1; its weight is the sum of its entries in
// that table, and 0 for a lane that neither has. Entry point: `Paths`. Units: ps, bytes per ps.
#pragma once

#include <cstdint>
#include <vector>

#include "flow/transfers.hpp"
#include "packet/spec.hpp"

namespace weft::flow {

struct Path {
  std::vector<Hop> hops;
  Time latency = 0;    // of a packet's head, unloaded
  double slowest = 0;  // rate of the slowest port
};

class Paths {
 public:
  explicit Paths(const packet::NetworkSpec& network);

  // Adds a port for each direction of each cable; with `queues`, each has so many equal ones
  // instead of its lanes.
  void add_ports(Transfers& transfers, uint32_t queues = 0) const;
  // From one host to another; switches choose among ports by the number of the flow.
  Path find(uint32_t source, uint32_t destination, int service_level, uint32_t flow) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX, kNoRoute = 65535;

  struct Link {
    uint32_t from, from_port, to, to_port;
    double rate;
    Time delay;
  };

  uint32_t find_next(uint32_t node, uint32_t destination, uint32_t flow) const;
  uint32_t find_lane(uint32_t node, uint32_t in_port, uint32_t out_port, int service_level) const;
  std::vector<QueueSpec> find_queues(const packet::ArbTables& tables) const;

  const packet::NetworkSpec& network_;
  std::vector<Link> links_;
  std::vector<uint32_t> index_;  // of a node among the switches or among the hosts
  std::vector<uint32_t> hosts_;  // nodes
  std::vector<uint32_t> port_base_, out_link_, host_link_;
};

}  // namespace weft::flow
