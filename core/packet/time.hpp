// Simulated time: integer picoseconds.
#pragma once

#include <cstdint>

namespace weft::packet {

using Time = int64_t;
inline constexpr Time kNever = INT64_MAX;

}  // namespace weft::packet
