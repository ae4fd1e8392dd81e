// The timed loops. Each takes connected endpoints and runs in the calling thread.
//
// - ping_pong: send, wait for the echo; half the round trip is one sample
// - echo: the other side of ping_pong and paced
// - write_ping_pong, write_echo: RDMA writes into each other's memory, polled there
// - post_poll: RPerf; a message to the wire and one to the adapter's own loopback, posted together
// - complete: one-sided operations (or sends) one at a time, post to completion
// - stream: `window` messages outstanding, in lists; at most `rate` per second if given
// - sink: receives what a stream sends, and sends nothing
// - duplex: stream and sink at once on one endpoint
// - serve_window: the passive side of one-sided operations; makes progress only
// - paced: open loop; messages leave at intended times, latency counts from those
// - transfer_send, transfer_receive: bulk transfer with credits by explicit acknowledgement
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "probe/run.hpp"

namespace weft::probe {

using transport::Endpoint;

LatencyResult ping_pong(Endpoint& endpoint, const RunSpec& run, StopFlag& stop);
Counts echo(Endpoint& endpoint, const RunSpec& run, StopFlag& stop);
LatencyResult write_ping_pong(Endpoint& endpoint, const RunSpec& run, StopFlag& stop);
Counts write_echo(Endpoint& endpoint, const RunSpec& run, StopFlag& stop);

enum class PairOrder : uint8_t { wire_first, loopback_first, alternating };

struct PostPollResult {
  Counts counts;
  stats::Histogram rtt;                   // T_W - T_L, ps; may be negative, never hidden
  stats::Histogram post_poll;             // T_W - T_P: the plain post-poll estimate
  stats::Histogram loopback;              // T_L - T_P
  stats::Histogram device_rtt;            // from the device's completion timestamps; empty without
  uint64_t negative = 0;                  // samples of rtt below zero
  std::vector<int64_t> samples;           // of rtt
  std::vector<int64_t> loopback_samples;  // of loopback, the same pairs
};
// device_hz: frequency of the completion timestamps' clock, 0 when there are none.
PostPollResult post_poll(Endpoint& wire, Endpoint& loopback, const RunSpec& run, PairOrder order,
                         double device_hz, StopFlag& stop);

LatencyResult complete(Endpoint& endpoint, const RunSpec& run, StopFlag& stop);

struct StreamSpec {
  RunSpec run;
  uint32_t window = 1;        // outstanding per endpoint
  uint32_t post_list = 1;     // works per post
  uint32_t signal_every = 1;  // works per completion
  double rate = 0;            // messages per second over all endpoints; 0: as fast as it goes
};
Counts stream(std::span<Endpoint* const> endpoints, const StreamSpec& spec, StopFlag& stop);
Counts sink(std::span<Endpoint* const> endpoints, const RunSpec& run, StopFlag& stop);
struct DuplexResult {
  Counts sent;
  Counts received;
};
DuplexResult duplex(std::span<Endpoint* const> endpoints, const StreamSpec& spec, StopFlag& stop);
Counts serve_window(std::span<Endpoint* const> endpoints, const RunSpec& run, StopFlag& stop);

struct PacedSpec {
  RunSpec run;
  double rate = 1000;    // messages per second
  bool poisson = false;  // else a fixed interval
  uint32_t window = 64;  // unanswered messages allowed; beyond that sends are late, and counted so
};
struct PacedResult {
  Counts counts;
  stats::Histogram latency;          // ps, from the intended send time: lateness + service
  stats::Histogram service;          // ps, half the round trip: what a closed loop would call it
  stats::Histogram lateness;         // ps, actual minus intended send time
  std::vector<int64_t> samples;      // of latency
  std::vector<int64_t> intended_ns;  // of each sample, since the start
  std::vector<int64_t> late_ps;      // of each sample: actual minus intended send time
};
PacedResult paced(Endpoint& endpoint, const PacedSpec& spec, StopFlag& stop);

struct TransferSpec {
  RunSpec run;                // op write_imm, or send; block: wait-wakeup; count: messages
  uint32_t outstanding = 1;   // B
  uint32_t signal_every = 1;  // S
  uint32_t remote_slots = 1;  // places in the receiver's window; 1: all messages to one
};
Counts transfer_send(Endpoint& endpoint, const TransferSpec& spec, StopFlag& stop);
Counts transfer_receive(Endpoint& endpoint, const TransferSpec& spec, StopFlag& stop);

}  // namespace weft::probe
