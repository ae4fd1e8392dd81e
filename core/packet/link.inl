// The link: serialisation, flight and credits. Part of partition.cpp.
#pragma once

#include "packet/event_loop.hpp"

namespace weft::packet {

// The packet's last byte leaves at now + serialisation; its head reaches the far end `delay` from
// now, and a switch may forward it `latency` after that (virtual cut-through).
template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::transmit(uint32_t id, uint32_t packet) {
  Link& link = links_[id];
  Packet& p = pool_[packet];
  OutLane& lane = out_lane(id, p.vl);
  const int blocks = p.blocks();
  lane.credits.consume(blocks);
  if (run_.check_invariants && lane.credits.available() < 0) broken("negative credit", id, p);
  if (lane.blocked_since != kNever) {
    lane.xmit_wait += now_ - lane.blocked_since;
    lane.blocked_since = kNever;
    lane.waited_until = now_;
  }
  if (run_.check_invariants && link.busy_until > now_) broken("two packets on one link", id, p);
  const Time time = link.ser(p.wire_bytes);
  link.busy_until = now_ + time;
  lane.xmit_bytes += p.wire_bytes;
  ++lane.xmit_packets;
  ++transmissions_;
  p.in_link = id;
  p.arrived = now_ + link.delay;
  if (link.to_switch) {
    if (switch_.order == Order::kFcfs || !link.from_switch) p.age = p.arrived;
    Time ready = p.arrived + switch_.latency;
    if (!kPlain && switch_.jitter_mean > 0) ready += jitter(switch_.jitter_mean);
    // Jitter delays a packet, it never lets one overtake.
    lane.last_ready = std::max(lane.last_ready, ready);
    if (link.crosses) return send_arrival(link, lane.last_ready, packet);
    schedule(lane.last_ready, kArrive, packet);
  } else {
    lane.last_ready = link.busy_until + link.delay + adapter_.rx;
    schedule(lane.last_ready, kArrive, packet);
  }
}

template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::give_back(uint32_t id, int vl, Time freed,
                                                                int blocks) {
  const Link& link = links_[id];
  if (link.crosses) return send_credit(link, {freed, id, blocks, vl});
  take_back(id, vl, freed, blocks);
}

// The sender's side of a credit.
template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::take_back(uint32_t id, int vl, Time freed,
                                                                int blocks) {
  OutLane& lane = out_lane(id, vl);
  lane.credits.give_back(freed, blocks, credit_.interval, links_[id].delay + credit_.delay);
  if (lane.need == 0) return;
  const Time enough = lane.credits.when(lane.need);
  if (enough != kNever) ensure_kick(id, std::max(enough, now_));
}

// A packet leaves for another partition, whose pool takes it in.
template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::send_arrival(const Link& link, Time time,
                                                              uint32_t packet) {
  sending_->not_empty |= uint64_t{1} << link.to_part;
  sending_->to[link.to_part].arrivals.push_back({pool_[packet], time});
  mail_time_ = std::min(mail_time_, time);
  pool_.give(packet);
}

template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::send_credit(const Link& link,
                                                             const Credit& credit) {
  sending_->not_empty |= uint64_t{1} << link.from_part;
  sending_->to[link.from_part].credits.push_back(credit);
  mail_time_ = std::min(mail_time_, credit.freed + link.delay + credit_.delay);
}

template <bool kPlain>
[[gnu::always_inline]] inline bool EventLoop<kPlain>::has_credit(uint32_t id, int vl, int blocks) {
  OutLane& lane = out_lane(id, vl);
  lane.credits.mature(now_);
  if (lane.credits.available() >= blocks) {
    lane.need = 0;
    return true;
  }
  lane.need = blocks;
  note_blocked(lane);
  const Time enough = lane.credits.when(blocks);
  if (enough != kNever) ensure_kick(id, enough);
  return false;
}

}  // namespace weft::packet
