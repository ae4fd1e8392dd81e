// Round trips over a connected socket by send and recv alone: what a host's kernel takes, found
// without the loops that are judged by it. Units: ns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::probe {

struct PlainExchange {
  int socket = -1;    // non-blocking if it spins
  std::byte first{};  // byte of each message of 64 B
  uint32_t messages = 0;
  bool spins = false;   // looks at the socket all the time, where another sleeps
  int64_t idle_ns = 0;  // before each message; a sleep ends `awake_ns` before
  int64_t awake_ns = 0;
  int64_t timeout_ns = 0;  // for an answer
};

// One time per message, from the send to the receive; fewer if an answer did not come in time.
std::vector<int64_t> exchange_plainly(const PlainExchange& exchange);

}  // namespace weft::probe
