#include "flow/paths.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "packet/route.hpp"

namespace weft::flow {

Paths::Paths(const packet::NetworkSpec& network) : network_(network) {
  const size_t nodes = network.is_switch.size();
  std::vector<uint32_t> ports(nodes, 0);
  for (const packet::Cable& c : network.cables) {
    links_.push_back({c.a, c.a_port, c.b, c.b_port, c.rate_bps / 8e12, c.delay});
    links_.push_back({c.b, c.b_port, c.a, c.a_port, c.rate_bps / 8e12, c.delay});
    ports[c.a] = std::max(ports[c.a], c.a_port);
    ports[c.b] = std::max(ports[c.b], c.b_port);
  }
  port_base_.assign(nodes + 1, 0);
  uint32_t switches = 0;
  for (uint32_t node = 0; node < nodes; ++node) {
    port_base_[node + 1] = port_base_[node] + ports[node];
    index_.push_back(network.is_switch[node] ? switches++ : static_cast<uint32_t>(hosts_.size()));
    if (!network.is_switch[node]) hosts_.push_back(node);
  }
  out_link_.assign(port_base_[nodes], kNone);
  host_link_.assign(hosts_.size(), kNone);
  for (uint32_t i = 0; i < links_.size(); ++i) {
    const Link& link = links_[i];
    out_link_[port_base_[link.from] + link.from_port - 1] = i;
    if (!network.is_switch[link.from]) host_link_[index_[link.from]] = i;
  }
}

std::vector<QueueSpec> Paths::find_queues(const packet::ArbTables& tables) const {
  // With one lane there is nothing to arbitrate.
  if (network_.lanes == 1) return {QueueSpec{}};
  std::vector<QueueSpec> queues(network_.lanes, {0, 1});
  for (const packet::ArbEntry& entry : tables.low) queues[entry.vl].weight += entry.weight;
  for (const packet::ArbEntry& entry : tables.high) {
    if (entry.weight == 0) continue;
    QueueSpec& queue = queues[entry.vl];
    if (queue.priority == 1) queue = {0, 0};
    queue.weight += entry.weight;
  }
  return queues;
}

void Paths::add_ports(Transfers& transfers, uint32_t queues) const {
  if (queues > 0) {
    const std::vector<QueueSpec> equal(queues);
    for (const Link& link : links_) transfers.add_port(link.rate, equal);
    return;
  }
  std::vector<const packet::ArbTables*> tables(links_.size(), &network_.arbitration);
  for (const packet::ArbOverride& o : network_.arbitration_overrides) {
    const uint32_t link = out_link_[port_base_[o.node] + o.port - 1];
    if (link != kNone) tables[link] = &o.tables;
  }
  for (size_t i = 0; i < links_.size(); ++i) {
    transfers.add_port(links_[i].rate, find_queues(*tables[i]));
  }
}

uint32_t Paths::find_next(uint32_t node, uint32_t destination, uint32_t flow) const {
  const size_t at = size_t{index_[node]} * hosts_.size() + destination;
  if (at >= network_.next_hop.size() || network_.next_hop[at] == kNoRoute) return kNone;
  const uint32_t group = network_.next_hop[at];
  const uint32_t first = network_.group_start[group];
  const uint32_t choice = packet::choose_port(flow, node, network_.group_start[group + 1] - first);
  return out_link_[port_base_[node] + network_.group_ports[first + choice] - 1];
}

uint32_t Paths::find_lane(uint32_t node, uint32_t in_port, uint32_t out_port,
                          int service_level) const {
  uint32_t lane = network_.sl2vl[service_level];
  for (const packet::Sl2VlOverride& o : network_.sl2vl_overrides) {
    if (o.node == node && (!o.in_port || o.in_port == in_port) &&
        (!o.out_port || o.out_port == out_port)) {
      lane = o.map[service_level];
    }
  }
  return lane;
}

Path Paths::find(uint32_t source, uint32_t destination, int service_level, uint32_t flow) const {
  Path path;
  path.slowest = std::numeric_limits<double>::infinity();
  uint32_t node = hosts_[source], in_port = 0;
  uint32_t link = host_link_[source];
  for (size_t hops = 0; link != kNone && hops <= network_.is_switch.size(); ++hops) {
    const Link& next = links_[link];
    const uint32_t lane = find_lane(node, in_port, next.from_port, service_level);
    path.hops.push_back({link, lane});
    path.slowest = std::min(path.slowest, next.rate);
    path.latency += next.delay;
    node = next.to;
    in_port = next.to_port;
    if (node == hosts_[destination]) return path;
    if (!network_.is_switch[node]) break;
    path.latency += network_.switches.latency + network_.switches.jitter_mean;
    link = find_next(node, destination, flow);
  }
  throw std::invalid_argument("no route from host " + std::to_string(source) + " to host " +
                              std::to_string(destination));
}

}  // namespace weft::flow
