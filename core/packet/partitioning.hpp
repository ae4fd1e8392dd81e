// Which parts of a fabric run side by side.
//
// Hosts stay with their switches. Switches are joined, tier by tier from the hosts up, as long as
// no part becomes more than an eighth of the fabric: pods of a fat tree, leaves of a leaf-spine.
// Small parts share a partition. Cables whose lookahead is too short for a window of its own stay
// inside. The result depends on the fabric alone. Entry point: `partition_fabric`. Units: ps.
#pragma once

#include <cstdint>
#include <vector>

#include "packet/spec.hpp"

namespace weft::packet {

struct Partitioning {
  std::vector<uint8_t> of_node;
  uint32_t count = 1;       // at most 64
  Time lookahead = kNever;  // what one partition does acts on another so much later, at least
};

// One partition, if the fabric has fewer directed links than `least_links`.
Partitioning partition_fabric(const NetworkSpec& network, uint32_t least_links);

}  // namespace weft::packet
