// Receivers that grant, after Homa (Montazeri et al., SIGCOMM 2018). Part of partition.cpp.
//
// A message sends its first bytes unasked, at a priority by its size. Its receiver grants the
// others: to a few messages at a time, those with the fewest bytes left, each so many bytes beyond
// what has arrived; a grant has the priority of the bytes it is for. Granted messages have the
// lowest priorities, so that one with fewer bytes can come before them. A sender, too, serves the
// message with the fewest bytes left. Packets of a message may overtake each other; messages of a
// flow begin in their order.
#pragma once

#include "packet/event_loop.hpp"

namespace weft::packet {

// ---- Sending ------------------------------------------------------------------------------

// In whole packets, one at least.
template <bool kPlain>
inline int64_t EventLoop<kPlain>::ahead(const Flow& flow) const {
  const int mtu = flow.spec.mtu;
  return std::max<int64_t>(mtu, adapter_.grants.ahead / mtu * mtu);
}

template <bool kPlain>
inline void EventLoop<kPlain>::begin_message(uint32_t id) {
  Flow& flow = flows_[id];
  flow.active = true;
  flow.granted = std::min(flow.front().size, ahead(flow));
  offer_message(id);
}

// The next packet of the message at the front may go, at its priority.
template <bool kPlain>
inline void EventLoop<kPlain>::offer_message(uint32_t id) {
  Flow& flow = flows_[id];
  const GrantSpec& grants = adapter_.grants;
  const int64_t left = flow.front().size - flow.offset;
  flow.sl = flow.granted_sl;
  if (flow.offset < ahead(flow)) {
    const int64_t key = grants.by_left ? left : flow.front().size;
    const auto& cutoffs = grants.cutoffs;
    const auto level = std::lower_bound(cutoffs.begin(), cutoffs.end(), key) - cutoffs.begin();
    flow.sl = static_cast<uint8_t>(level);
  }
  flow.vl = lane_at(links_[flow.link].from, 0, links_[flow.link].port, flow.sl);
  prepare_head(flow);
  granting_[flow.spec.src].sendable.emplace(left, id);
}

// After a packet.
template <bool kPlain>
inline void EventLoop<kPlain>::send_on(uint32_t id, int payload, bool last) {
  Flow& flow = flows_[id];
  granting_[flow.spec.src].sendable.erase({flow.front().size - flow.offset, id});
  flow.offset = last ? 0 : flow.offset + payload;
  if (!last) {
    if (flow.offset < flow.granted) offer_message(id);
    return;
  }
  flow.pop();
  flow.active = flow.count > 0;
  if (flow.active) begin_message(id);
  locally_completed(id);
}

template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::host_transmit_granted(uint32_t link) {
  for (int vl = 0; vl < lane_count(); ++vl) {
    Fifo& control = send_lane(link, vl).responses;
    if (control.empty() || !has_credit(link, vl, pool_[control.head].blocks())) continue;
    transmit(link, control.pop(pool_));
    return ensure_kick(link, links_[link].busy_until);
  }
  const uint32_t host = links_[link].host;
  Time wake = kNever;
  for (const auto& [left, id] : granting_[host].sendable) {
    const Flow& flow = flows_[id];
    const Time ready =
        std::max({flow.not_before, flow.ring[flow.first].ready, adapters_[host].pace_until});
    if (ready > now_) {
      wake = std::min(wake, ready);
    } else if (has_credit(link, flow.vl, blocks_of(flow.head_wire))) {
      send_request(link, id);
      return ensure_kick(link, links_[link].busy_until);
    }
  }
  if (wake != kNever) ensure_kick(link, wake);
}

template <bool kPlain>
inline void EventLoop<kPlain>::receive_grant(uint32_t packet) {
  const Packet p = pool_[packet];
  pool_.give(packet);
  Flow& flow = flows_[p.flow];
  const bool waits = flow.offset == flow.granted;
  flow.granted = p.intended >> 4;
  flow.granted_sl = static_cast<uint8_t>(p.intended & 15);
  if (waits) offer_message(p.flow);
  host_transmit(flow.link);
}

// ---- Receiving ----------------------------------------------------------------------------

// The sender has written it down before the message left.
template <bool kPlain>
inline int64_t EventLoop<kPlain>::message_size(uint32_t id, uint32_t message) const {
  const FlowSpec& spec = flows_[id].spec;
  if (spec.pattern == Pattern::kWorkload) return workload_->size(id, message);
  return spec.schedule.empty() ? spec.size : spec.schedule[message].size;
}

// Counts the packet's bytes. It is the last of its message if with it all of them are there.
template <bool kPlain>
inline void EventLoop<kPlain>::collect(uint32_t packet) {
  Packet& p = pool_[packet];
  Granting& host = granting_[p.dst];
  const auto [place, is_new] = host.inbound.try_emplace({p.flow, p.message});
  Inbound& message = place->second;
  if (is_new) {
    message.size = message_size(p.flow, p.message);
    message.granted = std::min(message.size, ahead(flows_[p.flow]));
  }
  host.ungranted.erase({message.size - message.received, p.flow, p.message});
  message.received += p.payload;
  if (run_.check_invariants && message.received > message.granted) {
    broken("bytes that were not granted", p.in_link, p);
  }
  const bool last = message.received == message.size;
  p.flags = static_cast<uint8_t>(last ? p.flags | kLast : p.flags & ~kLast);
  if (message.granted < message.size) {
    host.ungranted.insert({message.size - message.received, p.flow, p.message});
  }
  if (last) host.inbound.erase(place);
  grant(p.dst);
}

// To the messages with the fewest bytes left that are not granted to their end.
template <bool kPlain>
inline void EventLoop<kPlain>::grant(uint32_t at) {
  const GrantSpec& grants = adapter_.grants;
  Granting& host = granting_[at];
  const int count = std::min<int>(grants.messages, static_cast<int>(host.ungranted.size()));
  // The last of them has the lowest priority, whether there are many or few.
  const int first = static_cast<int>(grants.cutoffs.size()) + 1;
  int level = std::max(grants.priorities - count, std::min(first, grants.priorities - 1));
  auto next = host.ungranted.begin();
  for (int i = 0; i < count; ++i) {
    const auto place = next++;
    const auto [left, flow, number] = *place;
    Inbound& message = host.inbound.find({flow, number})->second;
    const int64_t to = std::min(message.size, message.received + ahead(flows_[flow]));
    if (to > message.granted) {
      message.granted = to;
      if (to == message.size) host.ungranted.erase(place);
      send_grant(flow, number, to, level);
    }
    level = std::min(level + 1, grants.priorities - 1);
  }
}

template <bool kPlain>
inline void EventLoop<kPlain>::send_grant(uint32_t flow, uint32_t message, int64_t to, int level) {
  const FlowSpec& spec = flows_[flow].spec;
  const uint32_t packet = pool_.take();
  Packet& p = pool_[packet];
  p = {};
  p.intended = to << 4 | level;
  p.flow = flow;
  p.message = message;
  p.dst = spec.src;
  p.wire_bytes = grant_bytes();
  p.set(spec.sl, Kind::kGrant);
  respond(packet);
}

}  // namespace weft::packet
