// The events of a partition: what happens at links, switches and hosts.
//
// Compiled twice. A plain fabric has one lane, one FIFO per input, at most 64 ports a switch and
// 254 groups of routes, no random times, no congestion control, no grants and hosts without PCIe:
// there all of that is known to the compiler. Both give the same results. Entry points:
// `EventLoop`, `make_partition`. Units: ps, bytes.
#pragma once

#include <memory>

#include "packet/partition.hpp"

namespace weft::packet {

// A partition for the fabric of `simulation`, by what that has.
std::unique_ptr<Partition> make_partition(Simulation& simulation, uint32_t number,
                                          uint32_t partitions);

template <bool kPlain>
class EventLoop final : public Partition {
 public:
  using Partition::Partition;

  Stop run(Time end, uint64_t max_events) override;
  void read_mail(const Partitions& all, uint32_t window) override;
  void prefetch(int step) const override;
  void post_operation(uint32_t flow, Time now, int64_t size) override {
    post(flow, now, now, size);
  }

 private:
  int lane_count() const { return kPlain ? 1 : lanes_; }
  uint32_t lane_bits() const { return kPlain ? 0 : lane_bits_; }
  uint32_t word_count() const { return kPlain ? 1 : words_; }
  bool has_virtual_queues() const { return !kPlain && switch_.virtual_output_queues; }
  int crossbar_speedup() const { return kPlain ? 0 : switch_.crossbar_speedup; }
  bool has_congestion_control() const { return !kPlain && switch_.congestion.enabled; }
  bool has_grants() const { return !kPlain && adapter_.grants.enabled; }
  bool has_wide_routes() const { return !kPlain && !next_hop_; }

  void ensure_kick(uint32_t link, Time t) {
    if (t < links_[link].kick_at) {
      links_[link].kick_at = t;
      schedule(t, kKick, link);
    }
  }

  // Links.
  OutLane& out_lane(uint32_t link, int vl) { return out_[link * lane_count() + vl]; }
  InLane& in_lane(uint32_t link, int vl) { return in_[link * lane_count() + vl]; }
  static uint16_t lane_bit(int vl) { return static_cast<uint16_t>(1u << vl); }
  Queue& queue(uint32_t id) { return has_virtual_queues() ? virtual_queues_[id] : in_[id].queue; }
  void transmit(uint32_t link, uint32_t packet);
  void send_arrival(const Link& link, Time time, uint32_t packet);
  void send_credit(const Link& link, const Credit& credit);
  void give_back(uint32_t link, int vl, Time freed, int blocks);
  void take_back(uint32_t link, int vl, Time freed, int blocks);
  bool has_credit(uint32_t link, int vl, int blocks);
  void note_blocked(OutLane& lane) {
    if (lane.blocked_since == kNever) lane.blocked_since = now_;
  }

  // Switches.
  void arrive_at_switch(uint32_t packet);
  uint32_t route(uint32_t node, const Packet& p) const;
  uint8_t lane_at(uint32_t node, uint32_t in_port, uint32_t out_port, int sl) const {
    return kPlain ? lane_maps_[0][sl] : lane_of(node, in_port, out_port, sl);
  }
  uint32_t queue_of(const Packet& p) const;
  uint32_t waiting_bit(const Packet& p) const {
    return links_[p.in_link].to_in << lane_bits() | p.vl;
  }
  void step_back(uint32_t link, int vl, uint32_t bit);
  uint32_t queue_at(const Link& out, uint32_t bit) const;
  uint32_t stand(uint32_t queue);
  void offer(uint32_t queue);
  void release(uint32_t link);
  bool crossbar_full(uint32_t in_link) const {
    return crossbar_speedup() && feeding_[in_link] == crossbar_speedup();
  }
  void take_crossbar(uint32_t in_link);
  void free_crossbar(uint32_t queue, uint32_t link);
  void switch_transmit(uint32_t link);
  void switch_transmit_lanes(uint32_t link);
  uint32_t pick_input(uint32_t link, int vl);
  void send_from_queue(uint32_t link, int vl, uint32_t bit, uint32_t queue);
  void mark_congestion(uint32_t link, OutLane& lane, Packet& p);

  // Hosts.
  void post(uint32_t flow, Time software, Time intended, int64_t size, Time switch_time = 0);
  void post_next(uint32_t flow, Time software);
  void on_timer(uint32_t flow);
  void next_due(uint32_t flow);
  void activate(uint32_t flow);
  SendLane& send_lane(uint32_t link, int vl) {
    return send_[links_[link].host * lane_count() + vl];
  }
  void deactivate_front(SendLane& lane);
  void rotate(SendLane& lane);
  uint32_t pick_flow(uint32_t link, int vl, Time& wake);
  void host_transmit(uint32_t link);
  void host_transmit_lanes(uint32_t link);
  void wake_when_sendable(uint32_t link);
  void prepare_head(Flow& flow) const;
  void send_request(uint32_t link, uint32_t flow);
  void pace(uint32_t flow, uint32_t link, int payload, bool first, bool last);
  int congestion_index(Flow& flow) const;
  void deliver_to_host(uint32_t packet);
  void count_delivery(uint32_t flow, const Packet& p);
  void receive_request(uint32_t packet);
  void receive_ack(uint32_t packet);
  void receive_read(uint32_t packet);
  void receive_response(uint32_t packet);
  void message_delivered(uint32_t flow, const Packet& p);
  void acknowledge(uint32_t packet, uint32_t flow);
  void notify_congestion(uint32_t packet, uint32_t sender);
  void slow_down(Flow& flow);
  int64_t ahead(const Flow& flow) const;
  int64_t message_size(uint32_t flow, uint32_t message) const;
  void begin_message(uint32_t flow);
  void offer_message(uint32_t flow);
  void send_on(uint32_t flow, int payload, bool last);
  void host_transmit_granted(uint32_t link);
  void collect(uint32_t packet);
  void grant(uint32_t host);
  void send_grant(uint32_t flow, uint32_t message, int64_t to, int level);
  void receive_grant(uint32_t packet);
  void respond(uint32_t packet);
  Time completion_seen();
  void sample_completion(uint32_t flow, Time seen, const Packet& p);
  void completed(uint32_t flow, const Packet& p);
  void locally_completed(uint32_t flow);
  void finish(const Flow& flow, Time& finished);
  void end_traffic(uint32_t traffic);
  Time jitter(Time mean) {
    return !kPlain && mean ? rng_.exponential(static_cast<double>(mean)) : 0;
  }
  Time hiccup() {
    if (kPlain || adapter_.hiccup_mean == 0 || rng_.uniform() > adapter_.hiccup_probability)
      return 0;
    return jitter(adapter_.hiccup_mean);
  }
  Time fetch_time(int64_t bytes) const {
    if (kPlain || fetch_ps_per_byte_ == 0) return 0;
    return static_cast<Time>(static_cast<double>(bytes) * fetch_ps_per_byte_);
  }
  Time store_time(int64_t bytes) const {
    if (kPlain || store_ps_per_byte_ == 0) return 0;
    return static_cast<Time>(static_cast<double>(bytes) * store_ps_per_byte_);
  }

  template <bool kLooks>
  Stop run_events(Time end, uint64_t max_events);
  template <int kStep>
  void prefetch_events() const;
  template <int kStep>
  void prefetch_arrival(uint32_t packet) const;
  template <int kStep>
  void prefetch_kick(uint32_t link) const;
  void prefetch_lane(uint32_t link, uint32_t vl) const;
};

}  // namespace weft::packet
