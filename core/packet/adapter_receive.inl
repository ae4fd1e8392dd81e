// The host's receiving side: deliveries, ACKs, completions, estimators. Part of partition.cpp.
//
// A SEND is acknowledged when the adapter has it, a WRITE when its DMA write is done; both in
// order. Software acts on completions it has polled, and a probe's sample is what its software
// sees.
#pragma once

#include "packet/event_loop.hpp"

namespace weft::packet {

template <bool kPlain>
inline void EventLoop<kPlain>::deliver_to_host(uint32_t packet) {
  Packet& p = pool_[packet];
  const Link& link = links_[p.in_link];
  if (run_.check_invariants && host_node_[p.dst] != link.to) broken("wrong host", p.in_link, p);
  InLane& lane = in_lane(p.in_link, p.vl);
  lane.rcv_bytes += p.wire_bytes;
  ++lane.rcv_packets;
  // The buffer drains into memory at the rate of PCIe.
  Time& drained = adapters_[p.dst].drained;
  drained = std::max(drained, now_) + store_time(p.payload);
  give_back(p.in_link, p.vl, drained, p.blocks());
  switch (p.kind()) {
    case Kind::kData:
      receive_request(packet);
      break;
    case Kind::kReadRequest:
      receive_read(packet);
      break;
    case Kind::kReadResponse:
      receive_response(packet);
      break;
    case Kind::kAck:
      receive_ack(packet);
      break;
    case Kind::kNotification:
      slow_down(flows_[p.flow]);
      pool_.give(packet);
      break;
    case Kind::kGrant:
      receive_grant(packet);
      break;
  }
}

template <bool kPlain>
inline void EventLoop<kPlain>::count_delivery(uint32_t flow, const Packet& p) {
  Sink& sink = sinks_[flow];
  if (run_.check_invariants && !has_grants()) {  // which change lanes, and packets overtake
    const bool begins = p.flags & kFirst;
    if (p.message != static_cast<uint32_t>(sink.delivered) || begins != (sink.received == 0)) {
      broken("packet out of order", p.in_link, p);
    }
    sink.received = p.flags & kLast ? 0 : sink.received + p.payload;
  }
  if (now_ >= run_.warmup) {
    sink.bytes += p.payload;
    sink.messages += (p.flags & kLast) != 0;
    sink.first_delivery = std::min(sink.first_delivery, now_);
    sink.last_delivery = now_;
  }
  if (p.flags & kLast) ++sink.delivered;
}

template <bool kPlain>
inline void EventLoop<kPlain>::receive_request(uint32_t packet) {
  if (has_grants()) collect(packet);
  Packet& p = pool_[packet];
  const uint32_t id = p.flow;
  count_delivery(id, p);
  const bool last = p.flags & kLast;
  const Packet seen = p;  // the packet turns into its own ACK
  sinks_[id].marked |= (p.flags & kFecn) != 0;
  if (p.flags & kAckRequest) {
    acknowledge(packet, id);
  } else {
    notify_congestion(packet, id);
  }
  if (last) message_delivered(id, seen);
}

template <bool kPlain>
inline void EventLoop<kPlain>::message_delivered(uint32_t id, const Packet& p) {
  const Flow& flow = flows_[id];
  Sink& sink = sinks_[id];
  const bool reliable = flow.spec.transport == Transport::kRc;
  if (p.intended >= run_.warmup && flow.owner == kNone) {  // a pong is not one way
    groups_[flow.spec.group].one_way.record(now_ - p.intended);
  }
  if (!reliable && flow.partner == kNone && sink.delivered == flow.spec.messages) {
    finish(flow, sink.finished);
  }
  const Time seen = completion_seen();
  if (flow.partner != kNone) {  // ping: software answers
    post(flow.partner, seen, p.intended, flow.spec.size, p.switch_time);
  } else if (flow.owner != kNone) {  // pong
    Flow& owner = flows_[flow.owner];
    sample_completion(flow.owner, seen, p);
    if (sink.delivered == owner.spec.messages) finish(owner, owner.finished);
    post_next(flow.owner, seen + owner.spec.think);
  }
  if (flow.spec.triggers >= 0) {
    post_next(static_cast<uint32_t>(flow.spec.triggers), seen);
  }
  if (flow.spec.pattern == Pattern::kWorkload) workload_->delivered(id, p.message, seen);
}

template <bool kPlain>
inline void EventLoop<kPlain>::acknowledge(uint32_t packet, uint32_t id) {
  Packet& p = pool_[packet];
  const Flow& flow = flows_[id];
  Sink& sink = sinks_[id];
  // DMA writes are done in order, so ACKs of WRITEs are too.
  const Time stored = std::max(now_, adapters_[flow.spec.dst].drained) + adapter_.write_ack;
  const int size = flow.spec.ack_bytes ? flow.spec.ack_bytes : ack_bytes();
  p.set(flow.spec.sl, Kind::kAck);
  p.dst = flow.spec.src;
  p.wire_bytes = static_cast<uint16_t>(size);
  p.payload = 0;
  p.flags = static_cast<uint8_t>((p.flags & kLast) | (sink.marked ? kBecn : 0));
  sink.marked = false;
  if (is_write(flow.spec.op) && stored > now_) {
    schedule(stored, kAckReady, packet);
  } else {
    respond(packet);
  }
}

// A marked packet with no ACK to carry the BECN is answered by a congestion notification packet;
// others end here.
template <bool kPlain>
inline void EventLoop<kPlain>::notify_congestion(uint32_t packet, uint32_t sender) {
  const Flow& flow = flows_[sender];
  Sink& sink = sinks_[sender];
  if (!sink.marked) return pool_.give(packet);
  sink.marked = false;
  Packet& p = pool_[packet];
  p.set(flow.spec.sl, Kind::kNotification);
  p.flow = sender;
  p.dst = flow.spec.src;
  p.wire_bytes = notification_bytes();
  p.payload = 0;
  p.flags = kBecn;
  respond(packet);
}

template <bool kPlain>
inline void EventLoop<kPlain>::slow_down(Flow& flow) {
  const int index = congestion_index(flow);
  if (index == 0) flow.ccti_at = now_;
  flow.ccti = std::min(index + switch_.congestion.increase, switch_.congestion.limit);
}

// An answer leaves by the link of the host it was made on.
template <bool kPlain>
inline void EventLoop<kPlain>::respond(uint32_t packet) {
  Packet& p = pool_[packet];
  const uint32_t link = host_link_[flows_[p.flow].spec.dst];
  p.vl = lane_at(links_[link].from, 0, links_[link].port, p.sl());
  send_lane(link, p.vl).responses.push(pool_, packet);
  if (lane_count() > 1) links_[link].backlogged |= lane_bit(p.vl);
  host_transmit(link);
}

template <bool kPlain>
inline void EventLoop<kPlain>::receive_ack(uint32_t packet) {
  const Packet p = pool_[packet];
  pool_.give(packet);
  Flow& flow = flows_[p.flow];

  if (p.flags & kBecn) slow_down(flow);
  completed(p.flow, p);
}

template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::receive_read(uint32_t packet) {
  const Packet p = pool_[packet];
  pool_.give(packet);
  const Flow& flow = flows_[p.flow];
  const int64_t size =
      flow.spec.schedule.empty() ? flow.spec.size : flow.spec.schedule[p.message].size;
  post(flow.partner, now_, p.intended, size, p.switch_time);
}

template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::receive_response(uint32_t packet) {
  const Packet p = pool_[packet];
  Flow& flow = flows_[p.flow];
  count_delivery(p.flow, p);
  sinks_[flow.partner].marked = p.flags & kFecn;
  notify_congestion(packet, flow.partner);
  if (!(p.flags & kLast)) return;
  if (p.intended >= run_.warmup) groups_[flow.spec.group].one_way.record(now_ - p.intended);
  completed(p.flow, p);
  if (flow.spec.triggers >= 0) post_next(static_cast<uint32_t>(flow.spec.triggers), now_);
}

// ---- Completing ---------------------------------------------------------------------------

template <bool kPlain>
inline Time EventLoop<kPlain>::completion_seen() {
  return now_ + adapter_.pcie_write + adapter_.poll + jitter(adapter_.poll_jitter_mean);
}

template <bool kPlain>
inline void EventLoop<kPlain>::sample_completion(uint32_t id, Time seen, const Packet& p) {
  Flow& flow = flows_[id];
  if (p.intended < run_.warmup) return;
  GroupResult& group = groups_[flow.spec.group];
  const bool rperf = flow.spec.estimator >= Estimator::kRPerfWireFirst;
  group.rtt.record(seen - (rperf ? flow.loopback_seen : p.intended));
  if (flow.spec.pattern != Pattern::kStream) group.switch_time.record(p.switch_time);
}

// A message is complete at the requester's adapter.
template <bool kPlain>
inline void EventLoop<kPlain>::completed(uint32_t id, const Packet& p) {
  Flow& flow = flows_[id];
  const FlowSpec& spec = flow.spec;
  const int64_t before = flow.completed;
  const bool last = p.flags & kLast;
  flow.completed = std::max(before, p.message_near(before) + last);
  if (flow.completed == before) return;
  if (spec.estimator == Estimator::kPingPong) return;  // the pong is the sample
  if (flow.completed == spec.messages) finish(flow, flow.finished);
  const Time seen = completion_seen();
  if (last) sample_completion(id, seen, p);
  if (spec.pattern == Pattern::kStream) {
    for (int64_t i = before; i < flow.completed; ++i) post_next(id, seen);
  } else if (spec.pattern == Pattern::kProbe) {
    const bool rperf = spec.estimator >= Estimator::kRPerfWireFirst;
    post_next(id, std::max(seen, rperf ? flow.loopback_seen : seen) + spec.think);
  } else if (spec.pattern == Pattern::kWorkload) {
    for (int64_t i = before; i < flow.completed; ++i) workload_->sent(id, i, seen);
  }
}

// Unreliable transports complete when the last byte has left.
template <bool kPlain>
inline void EventLoop<kPlain>::locally_completed(uint32_t id) {
  Flow& flow = flows_[id];
  const int64_t message = flow.completed++;
  const Pattern pattern = flow.spec.pattern;
  if (pattern != Pattern::kStream && pattern != Pattern::kWorkload) return;
  const Time left = links_[flow.link].busy_until;
  const Time seen = left + adapter_.pcie_write + adapter_.poll + jitter(adapter_.poll_jitter_mean);
  if (pattern == Pattern::kStream) {
    post_next(id, seen);
  } else {
    workload_->sent(id, message, seen);
  }
}

template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::finish(const Flow& flow, Time& finished) {
  if (flow.owner != kNone || finished != kNever) return;
  finished = now_;
  if (flow.spec.stops_with < 0) end_traffic(flow.spec.traffic);
}

// A flow or rank of this traffic has ended. Alone, a partition draws the consequences at once;
// among others, they come with the end of the window.
template <bool kPlain>
inline void EventLoop<kPlain>::end_traffic(uint32_t traffic) {
  last_finish_ = now_;
  if (!alone_) {
    finished_.push_back(traffic);
  } else if (simulation_.end_part(traffic, now_)) {
    schedule(now_, kEnd, 0);
  }
}

}  // namespace weft::packet
