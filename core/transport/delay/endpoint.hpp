// The delay transport: an endpoint that is also its own peer, with known latencies and losses.
//
// No second thread and no socket: a post computes when its completion and its echo will be there
// (delay_adapter.hpp), poll hands them over from that time on. What was injected is kept beside, so
// that an estimator can be judged against the truth of the same messages. Memory of one-sided
// operations is Config::remote_bytes of this process; it changes when they are posted.
#pragma once

#include <cstdint>
#include <vector>

#include "stats/histogram.hpp"
#include "transport/endpoint.hpp"

namespace weft::transport {

// True times of one kind, ps.
struct DelayTimes {
  stats::Histogram histogram;
  std::vector<int64_t> samples;  // the first DelayConfig::samples, in the order of posting
};

// What was injected for every message posted, warm-up included: sums of draws and of the waits that
// follow from them, never a reading of the clock. Readings are only the last five, which tell the
// host's noise: how long after its time a completion was handed over, how long the program then
// took until it called the endpoint again, and how long from its last call to a post.
struct DelayTruth {
  DelayTimes wire_rtt;    // on the wire, message and ACK; stalls included
  DelayTimes completion;  // post to completion that can be polled
  DelayTimes echo;        // post to echo that can be polled; lost ones left out
  DelayTimes completion_late, completion_away;
  DelayTimes arrival_late, arrival_away;
  DelayTimes turnaround;
  uint64_t messages = 0;
  uint64_t lost = 0;  // messages and echoes
};

// Null when the endpoint is of another transport.
const DelayTruth* delay_truth(Endpoint& endpoint);

}  // namespace weft::transport
