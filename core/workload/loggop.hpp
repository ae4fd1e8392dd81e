// The LogGOP(S) network: a message costs processor and adapter time and takes as long between any
// two ranks, whatever else is sent.
//
// A send of s bytes waits for its processor and its rank's sending adapter. It holds the processor
// for o + (s - 1)·O and the adapter for g + (s - 1)·G. The message is at the receiver o + L after
// it started; there it waits for processor and receiving adapter, holds them for
// o + (s - 1)·max(G, O) and g + (s - 1)·G, and is received then, if a receive is posted, otherwise
// when one is. The send ends with its o and O, or, above S bytes (rendezvous), when the receive
// takes the message: until then the sender's processor and adapter are held. Events of equal times
// keep the order in which they were made; among operations released together, sends come before
// receives and computations. These are the rules of LogGOPSim. Units: ps, bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "workload/operations.hpp"

namespace weft::workload {

struct LogGop {
  Time L = 0;             // latency
  Time o = 0;             // processor, per message
  Time g = 0;             // adapter, per message
  double G = 0;           // adapter, per byte
  double O = 0;           // processor, per byte
  int64_t S = INT64_MAX;  // largest message that is sent without waiting for the receive
};

struct LogGopTimes {
  std::vector<Time> rank;   // when the rank's processors are free for good
  std::vector<Time> ended;  // of each operation; kNever: it never did
};

LogGopTimes run_loggop(const Operations& operations, const LogGop& parameters);

}  // namespace weft::workload
