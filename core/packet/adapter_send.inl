// The host's sending side: posting, turns among flows, pacing. Part of partition.cpp.
//
// A posted message becomes sendable after doorbell, DMA fetch (unless inlined) and the adapter's
// pipeline; flows with something to send take turns packet by packet, answers go first. Requests
// are paced by the adapter's packet rate and by PCIe. All of it is timestamps: a message that
// software will post later is queued now with its later ready time.
#pragma once

#include "packet/event_loop.hpp"

namespace weft::packet {

inline void Flow::push(const Message& m) {
  if (count == ring.size()) {
    std::vector<Message> larger(ring.empty() ? 1 : 2 * ring.size());
    for (size_t i = 0; i < count; ++i) larger[i] = ring[(first + i) & (ring.size() - 1)];
    ring.swap(larger);
    first = 0;
  }
  ring[(first + count++) & (ring.size() - 1)] = m;
}

// ---- Posting ------------------------------------------------------------------------------

template <bool kPlain>
inline void EventLoop<kPlain>::post(uint32_t id, Time software, Time intended, int64_t size,
                                    Time switch_time) {
  Flow& flow = flows_[id];
  const FlowSpec& spec = flow.spec;
  const bool response = flow.owner != kNone && spec.op == Op::kRead;
  Time ready = software;
  if (!response) ready += adapter_.post + hiccup();
  const bool inlined = spec.allow_inline && size <= adapter_.inline_bytes;
  const bool fetch = response || (spec.op != Op::kRead && !inlined);
  if (fetch) ready += adapter_.pcie_read + fetch_time(std::min<int64_t>(size, spec.mtu));
  ready += adapter_.tx;
  const int64_t number = flow.posted++;
  if (spec.estimator >= Estimator::kRPerfWireFirst) {
    const bool loopback_first = spec.estimator == Estimator::kRPerfLoopbackFirst ||
                                (spec.estimator == Estimator::kRPerfAlternating && number % 2);
    Time loopback = ready;
    (loopback_first ? ready : loopback) += adapter_.packet_gap;
    loopback += static_cast<Time>(static_cast<double>(size) * loopback_ps_per_byte_);
    // The loopback message and its ACK pass the receive pipeline like those of the wire.
    flow.loopback_seen = loopback + 2 * adapter_.rx + adapter_.pcie_write + adapter_.poll +
                         jitter(adapter_.poll_jitter_mean);
  }
  flow.push({intended, ready, size, number, switch_time});
  if (flow.active) return;
  if (has_grants()) {
    begin_message(id);
  } else {
    prepare_head(flow);
    activate(id);
  }
  const Time soonest = std::max({ready, flow.not_before, links_[flow.link].busy_until});
  if (soonest <= now_) {
    host_transmit(flow.link);
  } else {
    ensure_kick(flow.link, soonest);
  }
}

// Software posts the flow's next message at `software`, if there is one to post.
template <bool kPlain>
inline void EventLoop<kPlain>::post_next(uint32_t id, Time software) {
  const FlowSpec& spec = flows_[id].spec;
  if (spec.messages >= 0 && flows_[id].posted >= spec.messages) return;
  if (software >= spec.stop) return;
  post(id, software, software, spec.size);
}

template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::on_timer(uint32_t id) {
  Flow& flow = flows_[id];
  const FlowSpec& spec = flow.spec;
  switch (spec.pattern) {
    case Pattern::kStream:
      for (int i = 0; i < spec.window; ++i) post_next(id, now_);
      break;
    case Pattern::kProbe:
      post_next(id, now_);
      break;
    case Pattern::kTriggered:
      for (int64_t i = 0; i < spec.initial_triggers; ++i) post_next(id, now_);
      break;
    case Pattern::kPaced:
      if (spec.messages >= 0 && flow.posted >= spec.messages) return;
      if (now_ >= spec.stop) return;
      post(id, now_, flow.due, spec.size);
      next_due(id);
      if (flow.due < spec.stop) schedule(flow.due, kTimer, id);
      break;
    case Pattern::kSchedule: {
      const size_t i = flow.next_scheduled++;
      post(id, now_, spec.schedule[i].time, spec.schedule[i].size);
      if (i + 1 < spec.schedule.size()) schedule(spec.schedule[i + 1].time, kTimer, id);
      break;
    }
    case Pattern::kWorkload:
      break;  // has no timer
  }
}

template <bool kPlain>
inline void EventLoop<kPlain>::next_due(uint32_t id) {
  Flow& flow = flows_[id];
  const Time interval = flow.spec.interval;
  flow.due +=
      flow.spec.poisson ? arrivals_[id].exponential(static_cast<double>(interval)) : interval;
}

// ---- Sending ------------------------------------------------------------------------------

template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::activate(uint32_t id) {
  Flow& flow = flows_[id];
  SendLane& lane = send_lane(flow.link, flow.vl);
  flow.active = true;
  flow.next_active = kNone;
  if (lane_count() > 1) links_[flow.link].backlogged |= lane_bit(flow.vl);
  if (lane.active_first == kNone) {
    lane.active_first = id;
  } else {
    flows_[lane.active_last].next_active = id;
  }
  lane.active_last = id;
}

template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::deactivate_front(SendLane& lane) {
  Flow& flow = flows_[lane.active_first];
  flow.active = false;
  lane.active_first = flow.next_active;
  if (lane.active_first == kNone) lane.active_last = kNone;
}

template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::rotate(SendLane& lane) {
  const uint32_t id = lane.active_first;
  if (id == lane.active_last) return;
  lane.active_first = flows_[id].next_active;
  flows_[id].next_active = kNone;
  flows_[lane.active_last].next_active = id;
  lane.active_last = id;
}

// Brings the next flow that may send now to the front of its lane; `wake` = when one may, if none.
template <bool kPlain>
[[gnu::always_inline]] inline uint32_t EventLoop<kPlain>::pick_flow(uint32_t link, int vl,
                                                                    Time& wake) {
  SendLane& lane = send_lane(link, vl);
  if (lane.active_first == kNone) return kNone;
  const Time paced = adapters_[links_[link].host].pace_until;
  if (paced > now_) {
    wake = std::min(wake, paced);
    return kNone;
  }
  const uint32_t last = lane.active_last;
  for (;;) {
    const uint32_t id = lane.active_first;
    Flow& flow = flows_[id];
    const Time ready = std::max(flow.not_before, flow.front().ready);
    if (ready <= now_) return id;
    wake = std::min(wake, ready);
    rotate(lane);
    if (id == last) return kNone;
  }
}

// After a packet: when the next one of a single lane can go, by port and credit.
template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::wake_when_sendable(uint32_t link) {
  const SendLane& waiting = send_lane(link, 0);
  int wire;
  if (!waiting.responses.empty()) {
    wire = pool_[waiting.responses.head].wire_bytes;
  } else if (waiting.active_first != kNone) {
    wire = flows_[waiting.active_first].head_wire;
  } else {
    return;
  }
  OutLane& lane = out_[link];
  const Time free = links_[link].busy_until;
  const int blocks = blocks_of(wire);
  if (lane.credits.available() >= blocks) return ensure_kick(link, free);
  lane.need = blocks;
  if (lane.blocked_since == kNever) lane.blocked_since = free;
  const Time enough = lane.credits.when(blocks);
  if (enough != kNever) ensure_kick(link, std::max(enough, free));
}

// Sizes of the next packet of the message at the front.
template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::prepare_head(Flow& flow) const {
  const FlowSpec& spec = flow.spec;
  if (spec.op == Op::kRead && flow.owner == kNone) {
    flow.head_payload = 0;
    flow.head_wire = request_header(spec.transport, spec.op, true, true);
    return;
  }
  const int64_t left = flow.front().size - flow.offset;
  flow.head_payload = static_cast<int>(std::min<int64_t>(spec.mtu, left));
  const bool first = flow.offset == 0, last = flow.head_payload == left;
  const int header = spec.op == Op::kRead ? response_header(first, last)
                                          : request_header(spec.transport, spec.op, first, last);
  flow.head_wire = padded(flow.head_payload) + header;
}

// Sends the next packet of the flow at the front of its lane.
template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::send_request(uint32_t link, uint32_t id) {
  Flow& flow = flows_[id];
  const FlowSpec& spec = flow.spec;
  const Message& message = flow.front();
  const bool read = spec.op == Op::kRead;
  const bool response = read && flow.owner != kNone;
  const int payload = flow.head_payload;
  const bool first = flow.offset == 0;
  const bool last = (read && !response) || flow.offset + payload == message.size;

  const uint32_t packet = pool_.take();
  Packet& p = pool_[packet];
  p.intended = message.intended;
  p.switch_time = message.switch_time;
  p.flow = response ? flow.owner : id;
  p.message = static_cast<uint32_t>(message.number);
  p.dst = spec.dst;
  p.wire_bytes = static_cast<uint16_t>(flow.head_wire);
  p.payload = static_cast<uint16_t>(payload);
  p.vl = flow.vl;
  p.set(flow.sl, !read ? Kind::kData : response ? Kind::kReadResponse : Kind::kReadRequest);
  p.flags = static_cast<uint8_t>((first ? kFirst : 0) | (last ? kLast : 0));
  if (spec.transport == Transport::kRc && !response) {
    // Every so many packets; and at the end of what is posted, if no ACK on its way completes
    // anything.
    const bool final = flow.posted == spec.messages;
    const bool end = flow.count == 1 && (final || flow.promised <= flow.completed);
    if (++flow.unacked_packets == spec.ack_every || (last && (spec.ack_every == 0 || end))) {
      p.flags |= kAckRequest;
      flow.unacked_packets = 0;
      flow.promised = message.number + last;
    }
  }
  transmit(link, packet);
  pace(id, link, payload, first, last);
  if (has_grants()) return send_on(id, payload, last);
  flow.offset = last ? 0 : flow.offset + payload;
  SendLane& lane = send_lane(link, flow.vl);
  if (last) flow.pop();
  if (flow.count == 0) {
    deactivate_front(lane);
  } else {
    prepare_head(flow);
    rotate(lane);
  }
  if (last && spec.transport != Transport::kRc) locally_completed(id);
}

// When the flow and the adapter may send again.
template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::pace(uint32_t id, uint32_t link, int payload,
                                                           bool first, bool last) {
  Flow& flow = flows_[id];
  const FlowSpec& spec = flow.spec;
  const Time start = now_;
  adapters_[spec.src].pace_until = start + std::max(adapter_.packet_gap, fetch_time(payload));
  if (first) flow.message_start = start;
  flow.not_before = start;
  if (last) {
    Time gap = adapter_.message_gap;
    if (++flow.in_batch >= spec.batch) {
      flow.in_batch = 0;
      gap += adapter_.doorbell_gap;
    }
    flow.not_before = std::max(start, flow.message_start + gap);
  }
  if (spec.rate_bps > 0) {
    const auto period = static_cast<Time>(payload * 8e12 / spec.rate_bps);
    flow.rate_due = std::max(flow.rate_due, start) + period;  // an idle flow saves nothing up
    flow.not_before = std::max(flow.not_before, flow.rate_due);
  }
  if (has_congestion_control()) {
    const double packet = static_cast<double>(links_[link].busy_until - start);
    const double delay = packet * (1 + switch_.congestion.step * congestion_index(flow));
    flow.not_before = std::max(flow.not_before, start + static_cast<Time>(delay));
  }
}

template <bool kPlain>
inline int EventLoop<kPlain>::congestion_index(Flow& flow) const {
  if (switch_.congestion.timer > 0) {
    const Time periods = (now_ - flow.ccti_at) / switch_.congestion.timer;
    flow.ccti -= static_cast<int>(std::min<Time>(periods, flow.ccti));
    flow.ccti_at += periods * switch_.congestion.timer;
  }
  return flow.ccti;
}

// Several lanes: the arbitration tables choose among those that can send.
template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::host_transmit_lanes(uint32_t link) {
  Time wake = kNever;
  uint32_t flow_of[16];
  int wire_of[16];
  uint32_t ready = 0;
  for (uint32_t lanes = links_[link].backlogged; lanes; lanes &= lanes - 1) {
    const int vl = std::countr_zero(lanes);
    SendLane& lane = send_lane(link, vl);
    int wire;
    flow_of[vl] = kNone;
    if (!lane.responses.empty()) {
      wire = pool_[lane.responses.head].wire_bytes;
    } else {
      const uint32_t id = pick_flow(link, vl, wake);
      if (id == kNone) continue;
      flow_of[vl] = id;
      wire = flows_[id].head_wire;
    }
    wire_of[vl] = wire;
    if (has_credit(link, vl, blocks_of(wire))) ready |= 1u << vl;
  }
  if (!ready) {
    if (wake != kNever) ensure_kick(link, wake);
    return;
  }
  const int vl = arbiters_[link].choose(*tables_[link], ready);
  if (vl < 0) {
    if (wake != kNever) ensure_kick(link, wake);
    return;
  }
  const int blocks = blocks_of(wire_of[vl]);
  arbiters_[link].sent(blocks * kBlock, blocks);
  SendLane& lane = send_lane(link, vl);
  if (flow_of[vl] == kNone) {
    transmit(link, lane.responses.pop(pool_));
  } else {
    send_request(link, flow_of[vl]);
  }
  if (lane.responses.empty() && lane.active_first == kNone) {
    links_[link].backlogged &= ~lane_bit(vl);
  }
  if (links_[link].backlogged) ensure_kick(link, links_[link].busy_until);
}

template <bool kPlain>
inline void EventLoop<kPlain>::host_transmit(uint32_t link) {
  if (links_[link].busy_until > now_) return ensure_kick(link, links_[link].busy_until);
  if (has_grants()) return host_transmit_granted(link);
  if (lane_count() > 1) return host_transmit_lanes(link);
  SendLane& lane = send_lane(link, 0);
  if (!lane.responses.empty()) {
    if (!has_credit(link, 0, pool_[lane.responses.head].blocks())) return;
    transmit(link, lane.responses.pop(pool_));
  } else {
    Time wake = kNever;
    const uint32_t id = pick_flow(link, 0, wake);
    if (id == kNone) {
      if (wake != kNever) ensure_kick(link, wake);
      return;
    }
    if (!has_credit(link, 0, blocks_of(flows_[id].head_wire))) return;
    send_request(link, id);
  }
  wake_when_sendable(link);
}

}  // namespace weft::packet
