// The switch: input buffers, routing, arbitration, marking. Part of partition.cpp.
//
// A packet waits in the queue of its input lane; only heads compete for an output, which is what
// blocks the packets behind them (head-of-line blocking). A head whose output is chosen leaves at
// once, and its space is given back when its last byte has left.
#pragma once

#include "packet/event_loop.hpp"
#include "packet/route.hpp"

namespace weft::packet {

// The port by which a packet leaves a switch, or kNone.
template <bool kPlain>
inline uint32_t EventLoop<kPlain>::route(uint32_t node, const Packet& p) const {
  const size_t at = size_t{index_[node]} * hosts_ + p.dst;
  const uint32_t group = has_wide_routes() ? next_hop_wide_[at] : next_hop_[at];
  if (group == (has_wide_routes() ? kNoRouteWide : kNoRoute)) return kNone;
  const uint32_t first = group_start_[group], ports = group_start_[group + 1] - first;
  return group_ports_[first + choose_port(run_.first_flow + p.flow, node, ports)];
}

template <bool kPlain>
inline uint32_t EventLoop<kPlain>::queue_of(const Packet& p) const {
  const uint32_t lane = p.in_link * lane_count() + p.vl;
  return has_virtual_queues() ? lane * max_ports_ + links_[p.out_link].port - 1 : lane;
}

template <bool kPlain>
inline void EventLoop<kPlain>::arrive_at_switch(uint32_t packet) {
  Packet& p = pool_[packet];
  const Link& from = links_[p.in_link];
  const uint32_t port = route(from.to, p);
  if (port == kNone) broken("no route", p.in_link, p);
  p.out_link = out_link_[port_base_[from.to] + port - 1];
  // A faster output must not run out of bytes: it starts late enough to end with the input.
  if (links_[p.out_link].ps_per_byte_q24 < from.ps_per_byte_q24) {
    const Time lag = from.ser(p.wire_bytes) - links_[p.out_link].ser(p.wire_bytes);
    const Time earliest = p.arrived + lag + switch_.latency;
    if (earliest > now_) return schedule(earliest, kArrive, packet);
  }
  p.out_vl = lane_at(from.to, from.to_in + 1, port, p.sl());
  InLane& in = in_lane(p.in_link, p.vl);
  in.used += p.blocks();
  if (run_.check_invariants && in.used > in.capacity) broken("buffer over capacity", p.in_link, p);
  in.peak = std::max(in.peak, in.used);
  in.rcv_bytes += p.wire_bytes;
  ++in.rcv_packets;

  OutLane& lane = out_lane(p.out_link, p.out_vl);
  lane.backlog += p.wire_bytes;
  lane.peak_backlog = std::max(lane.peak_backlog, lane.backlog);
  links_[p.out_link].backlogged |= lane_bit(p.out_vl);

  const uint32_t id = queue_of(p);
  Queue& queue = this->queue(id);
  const bool first = queue.fifo.empty();
  queue.fifo.push(pool_, packet);
  if (!first || crossbar_full(p.in_link)) return;
  if (queue.busy_until <= now_) {
    offer(id);
  } else {
    ensure_kick(queue.out, queue.busy_until);
  }
}

// The head of a queue becomes a candidate for its output, which is returned.
template <bool kPlain>
inline uint32_t EventLoop<kPlain>::stand(uint32_t id) {
  Queue& queue = this->queue(id);
  const Packet& p = pool_[queue.fifo.head];
  queue.head_age = p.age;
  queue.head_blocks = p.blocks();
  const uint32_t bit = waiting_bit(p);
  waiting_[(p.out_link * lane_count() + p.out_vl) * word_count() + (bit >> 6)] |= uint64_t{1}
                                                                                  << (bit & 63);
  links_[p.out_link].offered |= lane_bit(p.out_vl);
  return p.out_link;
}

// A head no longer competes for its output.
template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::step_back(uint32_t link, int vl,
                                                                uint32_t bit) {
  uint64_t* words = &waiting_[(link * lane_count() + vl) * word_count()];
  words[bit >> 6] &= ~(uint64_t{1} << (bit & 63));
  if (lane_count() == 1) return;
  for (uint32_t word = 0; word < word_count(); ++word) {
    if (words[word]) return;
  }
  links_[link].offered &= ~lane_bit(vl);
}

template <bool kPlain>
inline void EventLoop<kPlain>::offer(uint32_t id) {
  const uint32_t out = stand(id);
  if (links_[out].busy_until <= now_) {
    switch_transmit(out);
  } else {
    ensure_kick(out, links_[out].busy_until);
  }
}

// The queue that a bit of an output's waiting set stands for.
template <bool kPlain>
inline uint32_t EventLoop<kPlain>::queue_at(const Link& out, uint32_t bit) const {
  const uint32_t in = in_link_[port_base_[out.from] + (bit >> lane_bits())];
  const uint32_t lane = in * lane_count() + (bit & ((1u << lane_bits()) - 1));
  return has_virtual_queues() ? lane * max_ports_ + out.port - 1 : lane;
}

// The last packet sent on `link` has left: the next one of its queue may compete.
template <bool kPlain>
inline void EventLoop<kPlain>::release(uint32_t link) {
  const uint32_t id = links_[link].active_queue;
  if (id == kNone) return;
  links_[link].active_queue = kNone;
  if (crossbar_speedup()) return free_crossbar(id, link);
  const Queue& queue = this->queue(id);
  if (queue.out != link || queue.busy_until > now_ || queue.fifo.empty()) return;
  if (pool_[queue.fifo.head].out_link == link) {
    stand(id);  // the caller arbitrates this output next
  } else {
    offer(id);
  }
}

// The port feeds one more output. At the limit its other heads step back.
template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::take_crossbar(uint32_t in_link) {
  ++feeding_[in_link];
  if (!crossbar_full(in_link)) return;
  const uint32_t lanes = in_link * lane_count();
  for (uint32_t id = lanes * max_ports_; id < (lanes + lane_count()) * max_ports_; ++id) {
    const Fifo& fifo = queue(id).fifo;
    if (fifo.empty()) continue;
    const Packet& p = pool_[fifo.head];
    step_back(p.out_link, p.out_vl, waiting_bit(p));
  }
}

// The port feeds one output less: its heads compete again, those for the outputs after this one
// first, so that outputs take turns. The caller arbitrates this output next.
template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::free_crossbar(uint32_t id, uint32_t link) {
  const uint32_t in_link = id / max_ports_ / lane_count(), node = links_[link].from;
  const uint32_t ports = port_base_[node + 1] - port_base_[node];
  const bool was_full = crossbar_full(in_link);
  --feeding_[in_link];
  for (uint32_t step = was_full ? 1 : ports; step <= ports && !crossbar_full(in_link); ++step) {
    const uint32_t port = (links_[link].port - 1 + step) % ports;
    const uint32_t out = out_link_[port_base_[node] + port];
    bool any = false;
    for (int vl = 0; vl < lane_count(); ++vl) {
      const uint32_t candidate = (in_link * lane_count() + vl) * max_ports_ + port;
      if (queue(candidate).fifo.empty() || queue(candidate).busy_until > now_) continue;
      stand(candidate);
      any = true;
    }
    if (any && out != link) switch_transmit(out);
  }
}

// The input lane (as a bit number) that this output lane serves next, or kNone.
template <bool kPlain>
inline uint32_t EventLoop<kPlain>::pick_input(uint32_t link, int vl) {
  const uint64_t* words = &waiting_[(link * lane_count() + vl) * word_count()];
  if (word_count() == 1 && (words[0] & (words[0] - 1)) == 0) {  // at most one
    return words[0] ? static_cast<uint32_t>(std::countr_zero(words[0])) : kNone;
  }
  if (switch_.order == Order::kRoundRobin) {
    const OutLane& lane = out_lane(link, vl);
    const uint32_t total = word_count() * 64;
    const uint32_t start = lane.cursor + 1 == total ? 0 : lane.cursor + 1;
    for (uint32_t step = 0; step <= word_count(); ++step) {
      const uint32_t word = (start / 64 + step) % word_count();
      uint64_t bits = words[word];
      if (step == 0) bits &= ~uint64_t{0} << (start & 63);
      if (bits) return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
    }
    return kNone;
  }
  uint32_t best = kNone;
  Time oldest = kNever;
  const Link& out = links_[link];
  for (uint32_t word = 0; word < word_count(); ++word) {
    for (uint64_t bits = words[word]; bits; bits &= bits - 1) {
      const uint32_t bit = word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
      const Time age = queue(queue_at(out, bit)).head_age;
      if (age < oldest) {
        oldest = age;
        best = bit;
      }
    }
  }
  return best;
}

// FECN at the root of congestion only. A lane that waited for a switch's credits while this packet
// stood in it is a victim: it is full because of what lies behind that switch. A host that is slow
// to return credits is itself the root.
template <bool kPlain>
[[gnu::noinline]] inline void EventLoop<kPlain>::mark_congestion(uint32_t link, OutLane& lane,
                                                                 Packet& p) {
  if (p.kind() == Kind::kAck || lane.backlog < switch_.congestion.threshold_bytes) return;
  const bool waited = lane.blocked_since != kNever || lane.waited_until > p.arrived;
  if (waited && links_[link].to_switch) return;
  if (lane.unmarked++ < static_cast<uint32_t>(switch_.congestion.marking_rate)) return;
  lane.unmarked = 0;
  p.flags |= kFecn;
  ++marked_[&lane - out_];
}

template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::send_from_queue(uint32_t link, int vl,
                                                                      uint32_t bit, uint32_t id) {
  Queue& queue = this->queue(id);
  const uint32_t packet = queue.fifo.pop(pool_);
  Packet& p = pool_[packet];
  const uint32_t in_link = p.in_link;
  const int in_vl = p.vl;
  OutLane& lane = out_lane(link, vl);
  step_back(link, vl, bit);
  lane.cursor = bit;
  lane.backlog -= p.wire_bytes;
  if (lane.backlog == 0) links_[link].backlogged &= ~lane_bit(vl);
  if (has_congestion_control()) mark_congestion(link, lane, p);
  p.switch_time += now_ - p.arrived;
  const int blocks = p.blocks();
  if (queue.busy_until >
      links_[link].busy_until) {  // the output stood idle until this was the head
    const Time ready = p.arrived + switch_.latency;
    head_of_line_ += std::max<Time>(0, queue.busy_until - std::max(links_[link].busy_until, ready));
  }
  in_lane(in_link, in_vl).used -= blocks;
  p.vl = static_cast<uint8_t>(vl);
  transmit(link, packet);
  const Time end = links_[link].busy_until;
  queue.busy_until = end;
  queue.out = link;
  links_[link].active_queue = id;
  give_back(in_link, in_vl, end, blocks);
  if (crossbar_speedup()) {
    take_crossbar(in_link);
    ensure_kick(link, end);
  } else if (!queue.fifo.empty() || links_[link].backlogged) {
    ensure_kick(link, end);
  }
}

template <bool kPlain>
inline void EventLoop<kPlain>::switch_transmit(uint32_t link) {
  if (links_[link].busy_until > now_) return;
  release(link);
  if (links_[link].busy_until > now_) return;  // taken while the released queue was offered
  if (lane_count() == 1) {
    const uint32_t bit = pick_input(link, 0);
    if (bit == kNone) return;
    const uint32_t id = queue_at(links_[link], bit);
    if (has_credit(link, 0, queue(id).head_blocks)) send_from_queue(link, 0, bit, id);
    return;
  }
  switch_transmit_lanes(link);
}

// Several lanes: the arbitration tables choose among those that have a head and credit for it.
template <bool kPlain>
[[gnu::noinline]] void EventLoop<kPlain>::switch_transmit_lanes(uint32_t link) {
  uint32_t choice[16];
  int blocks[16];
  uint32_t ready = 0;
  for (uint32_t offered = links_[link].offered; offered; offered &= offered - 1) {
    const int vl = std::countr_zero(offered);
    choice[vl] = pick_input(link, vl);
    blocks[vl] = queue(queue_at(links_[link], choice[vl])).head_blocks;
    if (has_credit(link, vl, blocks[vl])) ready |= 1u << vl;
  }
  if (!ready) return;
  const int vl = arbiters_[link].choose(*tables_[link], ready);
  if (vl < 0) return;
  send_from_queue(link, vl, choice[vl], queue_at(links_[link], choice[vl]));
  arbiters_[link].sent(blocks[vl] * kBlock, blocks[vl]);
}

}  // namespace weft::packet
