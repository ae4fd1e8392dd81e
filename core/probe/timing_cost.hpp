// What timing adds to a message: a null loop that numbers a message and does nothing else, with the
// loops' counter read, conversion and histogram, and without. Unit: ns per message.
#pragma once

#include <cstdint>

namespace weft::probe {

struct TimingCost {
  double with_ns = 0;
  double without_ns = 0;
};

// Both in turn, in blocks of some ten thousand messages; the median block of each counts, so that
// what the host takes away in a few of them does not.
TimingCost timing_cost(uint64_t messages);

}  // namespace weft::probe
