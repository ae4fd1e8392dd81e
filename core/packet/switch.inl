// The switch: input buffers, routing, arbitration, marking. Part of simulation.cpp.
//
// A packet waits in the queue of its input lane; only heads compete for an output, which is what
// blocks the packets behind them (head-of-line blocking). A head whose output is chosen leaves at
// once, and its space is given back when its last byte has left.
#pragma once

#include "packet/simulation.hpp"

namespace weft::packet {

inline uint32_t Simulation::route(uint32_t node, const Packet& p) const {
  const size_t at = size_t{index_[node]} * hosts_ + p.dst;
  const uint32_t group = next_hop_wide_.empty() ? next_hop_[at] : next_hop_wide_[at];
  if (group == (next_hop_wide_.empty() ? kNoRoute : kNoRouteWide)) return kNone;
  const uint32_t first = group_start_[group], ports = group_start_[group + 1] - first;
  uint32_t choice = 0;
  if (ports > 1) {
    uint64_t x = p.flow * 0x9E3779B97F4A7C15ull + node * 0xBF58476D1CE4E5B9ull;
    x ^= x >> 32;
    x *= 0x94D049BB133111EBull;
    x ^= x >> 29;
    choice = static_cast<uint32_t>(x % ports);
  }
  return out_link_[port_base_[node] + group_ports_[first + choice] - 1];
}

// The lane of a service level on the way from one port of a node to another; 0 = from the host
// itself.
inline uint8_t Simulation::lane_of(uint32_t node, uint32_t in_port, uint32_t out_port,
                                   int sl) const {
  uint8_t vl = sl2vl_[sl];
  for (const Sl2VlOverride& o : sl2vl_overrides_) {
    if (o.node == node && (!o.in_port || o.in_port == in_port) &&
        (!o.out_port || o.out_port == out_port)) {
      vl = o.map[sl];
    }
  }
  return vl;
}

inline uint32_t Simulation::queue_of(const Packet& p) const {
  const uint32_t lane = p.in_link * lanes_ + p.vl;
  return switch_.virtual_output_queues ? lane * max_ports_ + links_[p.out_link].port - 1 : lane;
}

inline void Simulation::arrive_at_switch(uint32_t packet) {
  Packet& p = pool_[packet];
  const Link& from = links_[p.in_link];
  p.out_link = route(from.to, p);
  if (p.out_link == kNone) broken("no route", p.in_link, p);
  // A faster output must not run out of bytes: it starts late enough to end with the input.
  if (links_[p.out_link].ps_per_byte_q24 < from.ps_per_byte_q24) {
    const Time lag = ser(from, p.wire_bytes) - ser(links_[p.out_link], p.wire_bytes);
    const Time earliest = p.arrived + lag + switch_.latency;
    if (earliest > now_) return schedule(earliest, kArrive, packet);
  }
  p.out_vl = lane_of(from.to, from.to_in + 1, links_[p.out_link].port, p.sl());
  InLane& in = in_lane(p.in_link, p.vl);
  in.used += p.blocks();
  if (run_.check_invariants && in.used > in.capacity) broken("buffer over capacity", p.in_link, p);
  in.peak = std::max(in.peak, in.used);
  in.rcv_bytes += p.wire_bytes;
  ++in.rcv_packets;

  OutLane& lane = out_lane(p.out_link, p.out_vl);
  lane.backlog += p.wire_bytes;
  lane.peak_backlog = std::max(lane.peak_backlog, lane.backlog);

  const uint32_t id = queue_of(p);
  Queue& queue = this->queue(id);
  const bool first = queue.fifo.empty();
  queue.fifo.push(pool_, packet);
  if (!first) return;
  if (queue.busy_until <= now_) {
    offer(id);
  } else {
    ensure_kick(queue.out, queue.busy_until);
  }
}

// The head of a queue becomes a candidate for its output, which is returned.
inline uint32_t Simulation::stand(uint32_t id) {
  Queue& queue = this->queue(id);
  const Packet& p = pool_[queue.fifo.head];
  queue.head_age = p.age;
  queue.head_blocks = p.blocks();
  const uint32_t bit = links_[p.in_link].to_in * lanes_ + p.vl;
  waiting_[(p.out_link * lanes_ + p.out_vl) * words_ + (bit >> 6)] |= uint64_t{1} << (bit & 63);
  return p.out_link;
}

inline void Simulation::offer(uint32_t id) {
  const uint32_t out = stand(id);
  if (links_[out].busy_until <= now_) {
    switch_transmit(out);
  } else {
    ensure_kick(out, links_[out].busy_until);
  }
}

// The queue that a bit of an output's waiting set stands for.
inline uint32_t Simulation::queue_at(const Link& out, uint32_t bit) const {
  const uint32_t base = port_base_[out.from];
  if (lanes_ == 1 && !switch_.virtual_output_queues) [[likely]]
    return in_link_[base + bit];
  const uint32_t in = bit / lanes_;
  const uint32_t lane = in_link_[base + in] * lanes_ + (bit - in * lanes_);
  return switch_.virtual_output_queues ? lane * max_ports_ + out.port - 1 : lane;
}

// The last packet sent on `link` has left: the next one of its queue may compete.
inline void Simulation::release(uint32_t link) {
  const uint32_t id = links_[link].active_queue;
  if (id == kNone) return;
  links_[link].active_queue = kNone;
  const Queue& queue = this->queue(id);
  if (queue.out != link || queue.busy_until > now_ || queue.fifo.empty()) return;
  if (pool_[queue.fifo.head].out_link == link) {
    stand(id);  // the caller arbitrates this output next
  } else {
    offer(id);
  }
}

// The input lane (as a bit number) that this output lane serves next, or kNone.
inline uint32_t Simulation::pick_input(uint32_t link, int vl) {
  OutLane& lane = out_lane(link, vl);
  const uint64_t* words = &waiting_[(link * lanes_ + vl) * words_];
  if (switch_.order == Order::kRoundRobin) {
    const uint32_t total = words_ * 64;
    const uint32_t start = lane.cursor + 1 == total ? 0 : lane.cursor + 1;
    for (uint32_t step = 0; step <= words_; ++step) {
      const uint32_t word = (start / 64 + step) % words_;
      uint64_t bits = words[word];
      if (step == 0) bits &= ~uint64_t{0} << (start & 63);
      if (bits) return word * 64 + static_cast<uint32_t>(std::countr_zero(bits));
    }
    return kNone;
  }
  uint32_t best = kNone;
  Time oldest = kNever;
  const Link& out = links_[link];
  for (uint32_t word = 0; word < words_; ++word) {
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
[[gnu::noinline]] inline void Simulation::mark_congestion(uint32_t link, OutLane& lane, Packet& p) {
  if (p.kind() == Kind::kAck || lane.backlog < switch_.congestion.threshold_bytes) return;
  const bool waited = lane.blocked_since != kNever || lane.waited_until > p.arrived;
  if (waited && links_[link].to_switch) return;
  if (lane.unmarked++ < static_cast<uint32_t>(switch_.congestion.marking_rate)) return;
  lane.unmarked = 0;
  p.flags |= kFecn;
  ++lane.marked;
}

[[gnu::always_inline]] inline void Simulation::send_from_queue(uint32_t link, int vl,
                                                               uint32_t bit) {
  const uint32_t id = queue_at(links_[link], bit);
  Queue& queue = this->queue(id);
  const uint32_t packet = queue.fifo.pop(pool_);
  Packet& p = pool_[packet];
  const uint32_t in_link = p.in_link;
  const int in_vl = p.vl;
  OutLane& lane = out_lane(link, vl);
  waiting_[(link * lanes_ + vl) * words_ + (bit >> 6)] &= ~(uint64_t{1} << (bit & 63));
  lane.cursor = bit;
  lane.backlog -= p.wire_bytes;
  if (switch_.congestion.enabled) mark_congestion(link, lane, p);
  p.switch_time += now_ - p.arrived;
  const int blocks = p.blocks();
  in_lane(in_link, in_vl).used -= blocks;
  p.vl = static_cast<uint8_t>(vl);
  transmit(link, packet);
  const Time end = links_[link].busy_until;
  queue.busy_until = end;
  queue.out = link;
  links_[link].active_queue = id;
  give_back(in_link, in_vl, end, blocks);
  if (!queue.fifo.empty() || lane.backlog > 0) {
    ensure_kick(link, end);
  } else if (lanes_ > 1) {
    for (int other = 0; other < lanes_; ++other) {
      if (out_lane(link, other).backlog > 0) return ensure_kick(link, end);
    }
  }
}

inline void Simulation::switch_transmit(uint32_t link) {
  if (links_[link].busy_until > now_) return;
  release(link);
  if (links_[link].busy_until > now_) return;  // taken while the released queue was offered
  if (lanes_ == 1) {
    const uint32_t bit = pick_input(link, 0);
    if (bit == kNone) return;
    const int blocks = queue(queue_at(links_[link], bit)).head_blocks;
    if (has_credit(link, 0, blocks)) send_from_queue(link, 0, bit);
    return;
  }
  switch_transmit_lanes(link);
}

// Several lanes: the arbitration tables choose among those that have a head and credit for it.
[[gnu::noinline]] void Simulation::switch_transmit_lanes(uint32_t link) {
  uint32_t choice[16];
  int blocks[16];
  uint32_t ready = 0;
  for (int vl = 0; vl < lanes_; ++vl) {
    choice[vl] = pick_input(link, vl);
    if (choice[vl] == kNone) continue;
    blocks[vl] = queue(queue_at(links_[link], choice[vl])).head_blocks;
    if (has_credit(link, vl, blocks[vl])) ready |= 1u << vl;
  }
  if (!ready) return;
  const int vl = links_[link].arbiter.choose(*links_[link].tables, ready);
  if (vl < 0) return;
  send_from_queue(link, vl, choice[vl]);
  links_[link].arbiter.sent(blocks[vl] * kBlock, blocks[vl]);
}

}  // namespace weft::packet
