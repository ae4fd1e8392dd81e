// Small fabrics for the tests of the packet simulator: nodes, cables, shortest-path routes.
//
// Units: ps, bytes, bits per second.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "packet/simulation.hpp"

namespace weft::test {

class SmallFabric {
 public:
  packet::NetworkSpec spec;

  // Ideal hosts, one lane, cut-through switches of no latency, buffers that never fill.
  SmallFabric() {
    spec.credits.switch_buffer_bytes = spec.credits.host_buffer_bytes = 1 << 20;
    spec.arbitration.low = {{0, 64}};
  }

  uint32_t add_host() { return add(false); }
  uint32_t add_switch() { return add(true); }

  void cable(uint32_t a, uint32_t b, double rate_bps, packet::Time delay) {
    spec.cables.push_back({a, ++ports_[a], b, ++ports_[b], rate_bps, delay});
  }

  const std::vector<uint32_t>& hosts() const { return hosts_; }
  const std::vector<uint32_t>& switches() const { return switches_; }

  // Every switch sends towards a host by all ports on a shortest path.
  void route_shortest() {
    start_routes();
    for (size_t h = 0; h < hosts_.size(); ++h) {
      const std::vector<int> distance = distances(hosts_[h]);
      for (size_t s = 0; s < switches_.size(); ++s) {
        std::vector<uint32_t> ports;
        for (const auto& [port, peer] : neighbours(switches_[s])) {
          if (distance[peer] + 1 == distance[switches_[s]]) ports.push_back(port);
        }
        spec.next_hop[s * hosts_.size() + h] = group(ports);
      }
    }
  }

  // Every switch sends to its own hosts directly and everything else to the next switch.
  void route_clockwise() {
    start_routes();
    for (size_t h = 0; h < hosts_.size(); ++h) {
      for (size_t s = 0; s < switches_.size(); ++s) {
        uint32_t port = port_to(switches_[s], hosts_[h]);
        if (port == 0) port = port_to(switches_[s], switches_[(s + 1) % switches_.size()]);
        spec.next_hop[s * hosts_.size() + h] = group({port});
      }
    }
  }

  // The first port of `node` that is cabled to `peer`; 0 if there is none.
  uint32_t port_to(uint32_t node, uint32_t peer) const {
    for (const auto& [port, other] : neighbours(node)) {
      if (other == peer) return port;
    }
    return 0;
  }

 private:
  uint32_t add(bool is_switch) {
    const auto node = static_cast<uint32_t>(spec.is_switch.size());
    spec.is_switch.push_back(is_switch);
    ports_.push_back(0);
    (is_switch ? switches_ : hosts_).push_back(node);
    return node;
  }

  void start_routes() {
    spec.next_hop.assign(switches_.size() * hosts_.size(), -1);
    spec.group_start = {0};
    spec.group_ports.clear();
  }

  int32_t group(const std::vector<uint32_t>& ports) {
    if (ports.empty()) return -1;
    spec.group_ports.insert(spec.group_ports.end(), ports.begin(), ports.end());
    spec.group_start.push_back(static_cast<uint32_t>(spec.group_ports.size()));
    return static_cast<int32_t>(spec.group_start.size()) - 2;
  }

  std::vector<std::pair<uint32_t, uint32_t>> neighbours(uint32_t node) const {
    std::vector<std::pair<uint32_t, uint32_t>> all;
    for (const packet::Cable& c : spec.cables) {
      if (c.a == node) all.push_back({c.a_port, c.b});
      if (c.b == node) all.push_back({c.b_port, c.a});
    }
    return all;
  }

  std::vector<int> distances(uint32_t from) const {
    std::vector<int> distance(spec.is_switch.size(), 1 << 20);
    std::deque<uint32_t> frontier{from};
    distance[from] = 0;
    while (!frontier.empty()) {
      const uint32_t node = frontier.front();
      frontier.pop_front();
      if (node != from && !spec.is_switch[node]) continue;  // hosts do not forward
      for (const auto& [port, peer] : neighbours(node)) {
        if (distance[peer] <= distance[node] + 1) continue;
        distance[peer] = distance[node] + 1;
        frontier.push_back(peer);
      }
    }
    return distance;
  }

  std::vector<uint32_t> ports_, hosts_, switches_;
};

}  // namespace weft::test
