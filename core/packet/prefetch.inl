// Asks memory for what the events of a window will read. Part of partition.cpp.
//
// A large fabric does not fit the caches, and each event reads some ten cache lines of it. The
// events of the next window are known, so their lines are asked for in steps, each of which reads
// what the last has brought: packets and links; input lanes; routes and the packets that wait;
// output lanes. One thread takes the steps of several partitions in turn (`take_step`), so that
// the lines are there when a partition runs.
//
// `asm volatile`: without it GCC takes a function that only prefetches for one that does nothing,
// and drops its calls.
#pragma once

#include "packet/event_loop.hpp"

namespace weft::packet {

// The lanes whose credits come back.
inline void Partition::prefetch_mail(const Partitions& all, uint32_t window) const {
  asm volatile("");
  for (const auto& other : all) {
    const Mail* mail = find_mail(*other, window);
    if (!mail) continue;
    for (const Credit& credit : mail->credits) {
      __builtin_prefetch(&out_[credit.link * lanes_ + credit.vl]);
      __builtin_prefetch(&links_[credit.link]);
    }
  }
}

template <bool kPlain>
void EventLoop<kPlain>::prefetch(int step) const {
  asm volatile("");
  switch (step) {
    case 0:
      return prefetch_events<0>();
    case 1:
      return prefetch_events<1>();
    case 2:
      return prefetch_events<2>();
    default:
      return prefetch_events<3>();
  }
}

template <bool kPlain>
template <int kStep>
[[gnu::always_inline]] inline void EventLoop<kPlain>::prefetch_events() const {
  for (const Event& event : window_events_) {
    const uint32_t id = event.what & kIdMask;
    if (event.what >> kIdBits == kArrive) {
      prefetch_arrival<kStep>(id);
    } else if (event.what >> kIdBits == kKick) {
      prefetch_kick<kStep>(id);
    }
  }
}

template <bool kPlain>
[[gnu::always_inline]] inline void EventLoop<kPlain>::prefetch_lane(uint32_t link,
                                                                    uint32_t vl) const {
  const OutLane* lane = &out_[link * lane_count() + vl];
  __builtin_prefetch(lane);
  __builtin_prefetch(&lane->last_ready);
}

template <bool kPlain>
template <int kStep>
[[gnu::always_inline]] inline void EventLoop<kPlain>::prefetch_arrival(uint32_t packet) const {
  const Packet& p = pool_[packet];
  if constexpr (kStep == 0) return __builtin_prefetch(&p);
  const Link& link = links_[p.in_link];
  const InLane& in = in_[p.in_link * lane_count() + p.vl];
  if constexpr (kStep == 1) {
    __builtin_prefetch(&link);
    __builtin_prefetch(&in);
    return;
  }
  if (!link.to_switch) {
    if constexpr (kStep == 2) {
      prefetch_lane(p.in_link, p.vl);
      __builtin_prefetch(&sinks_[p.flow]);
      __builtin_prefetch(&flows_[p.flow]);
      __builtin_prefetch(&adapters_[p.dst]);
      const uint32_t back = host_link_[p.dst];
      __builtin_prefetch(&links_[back]);
      __builtin_prefetch(&send_[p.dst * lane_count()]);
      prefetch_lane(back, 0);
    }
    return;
  }
  if constexpr (kStep == 2) {
    if (next_hop_) __builtin_prefetch(&next_hop_[size_t{index_[link.to]} * hosts_ + p.dst]);
    if (!in.queue.fifo.empty()) __builtin_prefetch(&pool_[in.queue.fifo.tail]);
    if (!link.crosses) prefetch_lane(p.in_link, p.vl);
    return;
  }
  const uint32_t port = route(link.to, p);
  if (port == kNone) return;
  const uint32_t out = out_link_[port_base_[link.to] + port - 1];
  const uint32_t lane = lane_at(link.to, link.to_in + 1, port, p.sl());
  __builtin_prefetch(&links_[out]);
  __builtin_prefetch(&waiting_[(out * lane_count() + lane) * word_count()]);
  prefetch_lane(out, lane);
  if (has_virtual_queues())
    __builtin_prefetch(&virtual_queues_[(&in - in_) * max_ports_ + port - 1]);
}

template <bool kPlain>
template <int kStep>
[[gnu::always_inline]] inline void EventLoop<kPlain>::prefetch_kick(uint32_t id) const {
  const Link& link = links_[id];
  const uint64_t* waiting = &waiting_[id * lane_count() * word_count()];
  if constexpr (kStep == 0) {
    __builtin_prefetch(&link);
    __builtin_prefetch(waiting);
    return prefetch_lane(id, 0);
  }
  if (!link.from_switch) {
    const SendLane& lane = send_[link.host * lane_count()];
    if constexpr (kStep == 1) {
      __builtin_prefetch(&lane);
      __builtin_prefetch(&adapters_[link.host]);
    } else if (lane.active_first != kNone) {
      const Flow& flow = flows_[lane.active_first];
      if constexpr (kStep == 2) {
        __builtin_prefetch(&flow);
        __builtin_prefetch(&flow.not_before);
        __builtin_prefetch(&flow.ring);
      } else {
        __builtin_prefetch(flow.ring.data() + flow.first);
      }
    }
    return;
  }
  const auto look = [&](uint32_t queue) __attribute__((always_inline)) {
    const uint32_t lane = has_virtual_queues() ? queue / max_ports_ : queue;
    const Fifo& fifo = has_virtual_queues() ? virtual_queues_[queue].fifo : in_[queue].queue.fifo;
    if constexpr (kStep == 1) {
      __builtin_prefetch(&fifo);
      if (has_virtual_queues()) __builtin_prefetch(&in_[lane]);
      return;
    }
    if (fifo.empty()) return;
    if constexpr (kStep == 2) {
      const uint32_t in_link = lane / static_cast<uint32_t>(lane_count());
      __builtin_prefetch(&links_[in_link]);
      prefetch_lane(in_link, lane % static_cast<uint32_t>(lane_count()));
      return __builtin_prefetch(&pool_[fifo.head]);
    }
    const uint32_t next = pool_[fifo.head].next;
    if (next != kNoPacket) __builtin_prefetch(&pool_[next]);
  };
  if (link.active_queue != kNone) look(link.active_queue);
  for (uint64_t bits = *waiting; bits; bits &= bits - 1) {
    look(queue_at(link, static_cast<uint32_t>(std::countr_zero(bits))));
  }
}

}  // namespace weft::packet
