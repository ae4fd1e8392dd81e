// The state of a fabric: links, lanes, queues, flows.
//
// Whatever lies at the sending end of a link or flow belongs to the partition of the sender, the
// rest to that of the receiver; neither writes what the other has. Units: ps, bytes.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "packet/arbiter.hpp"
#include "packet/credit.hpp"
#include "packet/packet.hpp"
#include "packet/spec.hpp"

namespace weft::packet {

inline constexpr uint32_t kNone = UINT32_MAX;
inline constexpr uint32_t kNoRoute = 255, kNoRouteWide = 65535;  // groups of routes

// One cache line: what never changes, and what the sender alone writes and reads.
struct alignas(64) Link {
  Time delay = 0;
  uint64_t ps_per_byte_q24 = 0;
  uint32_t from = 0, to = 0;
  uint32_t port = 0;      // number at the sender
  uint32_t to_in = 0;     // index among the receiver's inputs
  uint32_t host = kNone;  // number of the sending host
  uint8_t from_part = 0, to_part = 0;
  bool from_switch : 1 = false, to_switch : 1 = false;
  bool crosses : 1 = false;  // from one partition to another

  uint32_t active_queue = kNone;  // switch queue whose packet is leaving
  uint16_t backlogged = 0;        // lanes (bits) for which this node has packets
  uint16_t offered = 0;           // switches: lanes with a head that may leave now
  Time busy_until = 0;
  Time kick_at = kNever;

  Time ser(int bytes) const {
    return static_cast<Time>((static_cast<uint64_t>(bytes) * ps_per_byte_q24) >> 24);
  }
};
static_assert(sizeof(Link) == 64);

// A lane of a link as its sender sees it; two cache lines, which the processor fetches as a pair.
struct alignas(128) OutLane {
  CreditLoop credits;
  int need = 0;  // blocks that a waiting head lacks; 0 = not starved
  uint32_t cursor = 0;
  Time blocked_since = kNever;            // a head waits for credits
  Time waited_until = 0;                  // the last such wait ended
  Time last_ready = 0;                    // the last packet sent is at the far end
  int64_t backlog = 0, peak_backlog = 0;  // bytes at this switch that want this lane
  uint64_t xmit_bytes = 0, xmit_packets = 0;
  Time xmit_wait = 0;
  uint32_t unmarked = 0;  // eligible packets since the last mark
};
static_assert(sizeof(OutLane) == 128);

// A host's adapter.
struct Adapter {
  Time pace_until = 0;  // requests wait for its pipeline and PCIe
  Time drained = 0;     // PCIe writes of what it received are done
};

// A message that arrives at a host that grants.
struct Inbound {
  int64_t size, granted, received = 0;
};

// Grants of a host: what it may send, and what it is sent. Fewest bytes left come first.
struct Granting {
  std::set<std::pair<int64_t, uint32_t>> sendable;              // bytes left, flow
  std::map<std::pair<uint32_t, uint32_t>, Inbound> inbound;     // by flow and message
  std::set<std::tuple<int64_t, uint32_t, uint32_t>> ungranted;  // bytes left, flow, message
};

// What a host has to send on a lane of its link.
struct SendLane {
  Fifo responses;
  uint32_t active_first = kNone;  // flows with something to send, taking turns
  uint32_t active_last = kNone;
};

// A switch's queue: one per input lane, or per input lane and output.
struct Queue {
  Fifo fifo;
  Time busy_until = 0;
  Time head_age = 0;  // of the head on offer
  int head_blocks = 0;
  uint32_t out = kNone;  // link its last packet left on
};

// A lane of a link as its receiver sees it; one cache line.
struct alignas(64) InLane {
  Queue queue;  // not used with virtual output queues
  int used = 0, capacity = 0, peak = 0;
  uint64_t rcv_bytes = 0, rcv_packets = 0;
};
static_assert(sizeof(InLane) == 64);

struct Message {
  Time intended, ready;
  int64_t size;
  int64_t number;
  Time switch_time;  // spent in switches by what this answers
};

// The sending half of a flow.
struct Flow {
  FlowSpec spec;
  uint32_t link = 0;  // of the source host
  uint8_t vl = 0, sl = 0;
  uint8_t granted_sl = 0;    // of bytes that were granted
  int64_t granted = 0;       // bytes of the message at the front that may be sent
  uint32_t owner = kNone;    // responder of a READ or a ping-pong: the requesting flow
  uint32_t partner = kNone;  // its responder
  bool active = false;
  uint32_t next_active = kNone;
  Time not_before = 0;
  int64_t offset = 0;
  int head_wire = 0, head_payload = 0;  // of the next packet
  int in_batch = 0;
  Time message_start = 0;
  Time rate_due = 0;
  int unacked_packets = 0;
  int64_t promised = 0;  // messages that the ACKs asked for will complete
  int ccti = 0;
  Time ccti_at = 0;
  Time due = 0;
  uint32_t next_scheduled = 0;
  Time loopback_seen = 0;
  int64_t posted = 0, completed = 0;
  Time finished = kNever;
  std::vector<Message> ring;
  uint32_t first = 0, count = 0;

  Message& front() { return ring[first]; }
  void push(const Message& m);
  void pop() {
    first = (first + 1) & static_cast<uint32_t>(ring.size() - 1);
    --count;
  }
};

// The receiving half of a flow; one cache line.
struct alignas(64) Sink {
  int64_t delivered = 0;            // messages
  int64_t received = 0;             // bytes of the message in progress
  int64_t bytes = 0, messages = 0;  // after the warm-up
  Time first_delivery = kNever, last_delivery = 0;
  Time finished = kNever;
  bool marked = false;  // a FECN not yet answered
};
static_assert(sizeof(Sink) == 64);

}  // namespace weft::packet
