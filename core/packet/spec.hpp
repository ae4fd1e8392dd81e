// What to simulate: plain values, checked by whoever makes them.
//
// A cable is two directed links. Ports are numbered from 1. Units: ps, bytes, bits per second.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "packet/time.hpp"
#include "packet/wire.hpp"
#include "workload/operations.hpp"

namespace weft::packet {

struct Cable {
  uint32_t a, a_port, b, b_port;
  double rate_bps;
  Time delay;
};

struct ArbEntry {
  uint8_t vl;
  uint8_t weight;  // units of 64 bytes; 0 = entry skipped
};

// VL arbitration of one port: InfiniBand's high and low tables, and the limit of high priority in
// units of 4096 bytes (255 = unlimited, 0 = one packet).
struct ArbTables {
  std::vector<ArbEntry> high, low;
  int high_limit = 255;
  bool strict = false;  // instead of the tables: lane 0 before lane 1 before lane 2 …
};

using SlToVl = std::array<uint8_t, 16>;

struct Sl2VlOverride {
  uint32_t node, in_port, out_port;  // port 0 = every port
  SlToVl map;
};

struct ArbOverride {
  uint32_t node, port;
  ArbTables tables;
};

// The buffer behind one input port, per lane.
struct BufferOverride {
  uint32_t node, port;
  int vl;  // -1 = every lane
  int64_t bytes;
};

// How a switch orders packets of one virtual lane that want the same output.
enum class Order : uint8_t {
  kFcfs,        // oldest arrival at this switch first
  kFcfsAge,     // oldest arrival at the first switch of the path first
  kRoundRobin,  // input lanes in turn
};

struct CongestionControl {
  bool enabled = false;
  int64_t threshold_bytes = 0;  // backlog of an output lane at which packets are marked
  int marking_rate = 0;         // eligible packets between two marks
  int increase = 1;             // table index added per BECN
  int limit = 127;              // highest table index
  Time timer = 0;               // index falls by one per timer period
  double step = 0;              // injection delay per index, in packet times
};

struct SwitchSpec {
  Time latency = 0;      // head in to head out, unloaded
  Time jitter_mean = 0;  // exponential, added per traversal
  Order order = Order::kFcfs;
  bool virtual_output_queues = false;
  int crossbar_speedup =
      0;  // outputs that a port with virtual output queues feeds at a time; 0 = all
  CongestionControl congestion;
};

// Flow control: receivers advertise freed space at most every `interval`; the sender acts on it
// `delay` after the advertisement has crossed the cable.
struct CreditSpec {
  int64_t switch_buffer_bytes = 0;  // per input port and lane
  int64_t host_buffer_bytes = 0;
  Time interval = 0;
  Time delay = 0;
};

// Receivers grant (Homa): the first bytes of a message go unasked, the others when its receiver
// says so, messages with the fewest bytes left first. Service levels are priorities, 0 the first;
// grants have that of their flow. Flows have no acknowledgements.
struct GrantSpec {
  bool enabled = false;
  int64_t ahead = 0;             // bytes sent unasked, and granted beyond those that arrived
  int messages = 1;              // that a receiver grants at a time (overcommitment)
  std::vector<int64_t> cutoffs;  // unasked bytes of a message up to cutoffs[i] have priority i
  bool by_left = false;          // cutoffs are of the bytes left, not of the size: SRPT
  int priorities = 1;            // in all; those after the unasked bytes' are for granted ones
};

// A host: software, PCIe and adapter. All zero = an ideal source and sink.
struct AdapterSpec {
  Time post = 0;                        // software to doorbell seen by the adapter
  Time hiccup_mean = 0;                 // exponential delay of some posts
  double hiccup_probability = 0;        // of a post being delayed
  Time poll = 0, poll_jitter_mean = 0;  // completion in memory to software
  Time pcie_read = 0;                   // latency of a DMA read
  Time pcie_write = 0;                  // latency of a DMA write
  double pcie_read_bps = 0;             // payload rates of DMA; 0 = unlimited
  double pcie_write_bps = 0;
  Time tx = 0, rx = 0;  // adapter pipelines
  Time write_ack = 0;   // extra time until the ACK of a WRITE
  Time doorbell_gap = 0, message_gap = 0, packet_gap = 0;
  int inline_bytes = 0;
  double loopback_bps = 0;  // 0 = unlimited
  GrantSpec grants;
};

struct NetworkSpec {
  std::vector<uint8_t> is_switch;  // per node
  std::vector<Cable> cables;
  // Routes: next_hop[switch * hosts + host] is a group, 65535 for none; group g holds ports
  // group_ports[group_start[g] .. group_start[g + 1]).
  std::vector<uint16_t> next_hop;
  std::vector<uint32_t> group_start, group_ports;
  int lanes = 1;
  SlToVl sl2vl{};
  ArbTables arbitration;
  std::vector<Sl2VlOverride> sl2vl_overrides;
  std::vector<ArbOverride> arbitration_overrides;
  std::vector<BufferOverride> buffer_overrides;
  SwitchSpec switches;
  CreditSpec credits;
  AdapterSpec adapter;
};

enum class Pattern : uint8_t {
  kStream,     // keeps `window` messages outstanding
  kProbe,      // closed loop: one message, `think` after its completion the next
  kPaced,      // open loop: one message every `interval`, fixed or Poisson
  kSchedule,   // messages at given times with given sizes
  kTriggered,  // a message for each message delivered by another flow
  kWorkload,   // messages as operations of a workload post them
};

// What a probe takes as its sample.
enum class Estimator : uint8_t {
  kCompletion,      // post to completion seen by software (qperf's post-poll)
  kPingPong,        // software answers; post to answer seen by software (perftest)
  kRPerfWireFirst,  // paired loopback, subtracted
  kRPerfLoopbackFirst,
  kRPerfAlternating,
};

struct ScheduledMessage {
  Time time;
  int64_t size;
};

struct FlowSpec {
  uint32_t src = 0, dst = 0;  // host indices
  Pattern pattern = Pattern::kStream;
  Estimator estimator = Estimator::kCompletion;
  Transport transport = Transport::kRc;
  Op op = Op::kSend;
  int64_t size = 0;
  int mtu = 4096;
  int sl = 0;
  int window = 1;
  int batch = 1;          // messages per doorbell
  int ack_every = 1;      // packets per ACK, over messages; 0 = the last packet of each message
  int ack_bytes = 0;      // 0 = by header sizes
  double rate_bps = 0;    // payload rate cap; 0 = none
  int64_t messages = -1;  // -1 = until `stop`
  Time start = 0, stop = kNever;
  Time think = 0;
  Time interval = 0;
  bool poisson = false;
  bool allow_inline = true;
  uint32_t group = 0;       // distributions are kept per group
  uint32_t traffic = 0;     // entry of the scenario that it belongs to
  int32_t stops_with = -1;  // entry at whose end this flow stops; -1 = none
  int32_t triggers = -1;    // flow that posts a message when this one delivers one
  int64_t initial_triggers = 0;
  std::vector<ScheduledMessage> schedule;
};

// Wire bytes of the largest packet that the flow's messages and ACKs can have.
inline int largest_packet(const FlowSpec& flow) {
  int64_t message = flow.size;
  for (const ScheduledMessage& m : flow.schedule) message = std::max(message, m.size);
  const int payload = static_cast<int>(std::min<int64_t>(flow.mtu, message));
  return std::max(padded(payload) + largest_header(flow.transport, flow.op), flow.ack_bytes);
}

// A workload whose ranks are placed on hosts. A send goes over a flow of kWorkload from its rank's
// host to its peer's; ranks of one host need none.
struct WorkloadSpec {
  workload::Operations operations;
  std::vector<uint32_t> host, traffic;  // by rank; traffic is an entry of the scenario
  std::vector<Time> begin;              // by rank
  std::vector<uint32_t> flow;           // by operation: of a send; workload::kNone = none
};

struct RunSpec {
  uint64_t seed = 1;
  Time duration = 0;
  Time warmup = 0;
  Time sample_interval = 0;  // queue occupancy series; 0 = none
  uint32_t groups = 1;
  // Number of the first flow, which paths and random streams depend on: part of a run's flows take
  // the same paths in a run of their own.
  uint32_t first_flow = 0;
  bool stop_when_done = true;
  bool check_invariants = true;
  bool skip_steady = false;  // skip whole periods of a state that recurs
  int threads = 1;           // that partitions share; results do not depend on it
  // Fabrics with fewer directed links are one partition, whose order of events is the simplest.
  uint32_t partitioned_links = 2048;
};

}  // namespace weft::packet
