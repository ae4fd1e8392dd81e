#include "packet/partitioning.hpp"

#include <algorithm>
#include <deque>
#include <numeric>

namespace weft::packet {

namespace {

constexpr uint32_t kMostPartitions = 64;
constexpr uint64_t kLargestShare = 8;        // no part is joined to more than 1/8 of all links
constexpr Time kShortestLookahead = 10'000;  // 10 ns: a window of some events
constexpr uint32_t kNoTier = UINT32_MAX;

// Disjoint sets of nodes.
class Sets {
 public:
  explicit Sets(size_t nodes) : parent_(nodes) {
    std::iota(parent_.begin(), parent_.end(), uint32_t{0});
  }
  uint32_t find(uint32_t node) {
    while (parent_[node] != node) node = parent_[node] = parent_[parent_[node]];
    return node;
  }
  void join(uint32_t a, uint32_t b) {
    const uint32_t x = find(a), y = find(b);
    parent_[std::max(x, y)] = std::min(x, y);
  }

 private:
  std::vector<uint32_t> parent_;
};

// A packet acts at the far end after the cable and the switch, a credit after the cable and the
// sender's time to take it in.
Time lookahead(const NetworkSpec& network, const Cable& cable) {
  return cable.delay + std::min(network.switches.latency, network.credits.delay);
}

// Cables from a switch to the nearest host, by node; 0 for hosts.
std::vector<uint32_t> find_tiers(const NetworkSpec& network) {
  const size_t nodes = network.is_switch.size();
  std::vector<std::vector<uint32_t>> neighbours(nodes);
  for (const Cable& c : network.cables) {
    neighbours[c.a].push_back(c.b);
    neighbours[c.b].push_back(c.a);
  }
  std::vector<uint32_t> tier(nodes, kNoTier);
  std::deque<uint32_t> frontier;
  for (uint32_t n = 0; n < nodes; ++n) {
    if (network.is_switch[n]) continue;
    tier[n] = 0;
    frontier.push_back(n);
  }
  for (; !frontier.empty(); frontier.pop_front()) {
    for (const uint32_t peer : neighbours[frontier.front()]) {
      if (tier[peer] != kNoTier) continue;
      tier[peer] = tier[frontier.front()] + 1;
      frontier.push_back(peer);
    }
  }
  return tier;
}

// Parts when switches below `tier` are joined along their cables.
Sets join_below(const NetworkSpec& network, const std::vector<uint32_t>& tiers, uint32_t tier) {
  Sets parts(network.is_switch.size());
  for (const Cable& c : network.cables) {
    const bool to_host = !network.is_switch[c.a] || !network.is_switch[c.b];
    const bool below = tiers[c.a] < tier && tiers[c.b] < tier;
    if (to_host || below || lookahead(network, c) < kShortestLookahead) parts.join(c.a, c.b);
  }
  return parts;
}

// Directed links that leave each part, by its first node; 0 for other nodes.
std::vector<uint64_t> weigh(const NetworkSpec& network, Sets& parts) {
  std::vector<uint64_t> weight(network.is_switch.size(), 0);
  for (const Cable& c : network.cables) {
    ++weight[parts.find(c.a)];
    ++weight[parts.find(c.b)];
  }
  return weight;
}

// Numbers the parts in order; neighbours in that order share a partition up to `most` links.
uint32_t pack(const std::vector<uint64_t>& weight, uint64_t most, std::vector<uint32_t>& number) {
  uint32_t count = 0;
  uint64_t filled = most;
  for (size_t part = 0; part < weight.size(); ++part) {
    if (weight[part] == 0) continue;
    if (filled + weight[part] > most) {
      ++count;
      filled = 0;
    }
    filled += weight[part];
    number[part] = count - 1;
  }
  return count;
}

}  // namespace

Partitioning partition_fabric(const NetworkSpec& network, uint32_t least_links) {
  const size_t nodes = network.is_switch.size();
  Partitioning cut;
  cut.of_node.assign(nodes, 0);
  const uint64_t links = 2 * network.cables.size();
  if (links == 0 || links < least_links) return cut;

  const std::vector<uint32_t> tiers = find_tiers(network);
  uint32_t tier = 1;
  for (const uint32_t t : tiers) tier = t == kNoTier ? tier : std::max(tier, t);
  Sets parts(nodes);
  std::vector<uint64_t> weight;
  uint64_t largest;
  do {
    parts = join_below(network, tiers, tier);
    weight = weigh(network, parts);
    largest = *std::max_element(weight.begin(), weight.end());
  } while (largest * kLargestShare > links && --tier > 0);

  std::vector<uint32_t> number(nodes, 0);
  uint64_t most = std::max(largest, links / kMostPartitions);
  while ((cut.count = pack(weight, most, number)) > kMostPartitions) most += most / 8 + 1;
  for (uint32_t n = 0; n < nodes; ++n) {
    cut.of_node[n] = static_cast<uint8_t>(number[parts.find(n)]);
  }
  for (const Cable& c : network.cables) {
    if (cut.of_node[c.a] == cut.of_node[c.b]) continue;
    cut.lookahead = std::min(cut.lookahead, lookahead(network, c));
  }
  return cut;
}

}  // namespace weft::packet
