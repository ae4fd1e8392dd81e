// The packet-level simulation: one fabric, its flows, one clock.
//
// Two or three events per hop: a packet is ready at a switch or delivered to a host (`kArrive`),
// an output may have something to send (`kKick`). The end of a transmission, the return of a
// credit, PCIe transfers and software are timestamps, and become an event only when something
// waits for them. Entry point: `Simulation`. Units: ps, bytes.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "packet/arbiter.hpp"
#include "packet/credit.hpp"
#include "packet/event_queue.hpp"
#include "packet/packet.hpp"
#include "packet/spec.hpp"
#include "stats/histogram.hpp"

namespace weft::packet {

// A law of the fabric was broken: a drop, a negative credit, reordering.
class BrokenInvariant : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

enum class Status : uint8_t { kRunning, kTimeUp, kFinished, kDeadlock };

struct LaneCounters {
  uint64_t xmit_bytes = 0, xmit_packets = 0;
  uint64_t rcv_bytes = 0, rcv_packets = 0;
  Time xmit_wait = 0;
  uint64_t marked = 0;
  int peak_blocks = 0;       // receiving buffer
  int64_t peak_backlog = 0;  // bytes waiting for this output
};

struct FlowResult {
  int64_t posted = 0, completed = 0, delivered = 0;
  int64_t bytes = 0;     // payload delivered after the warm-up
  int64_t messages = 0;  // messages delivered after the warm-up
  Time first_delivery = kNever, last_delivery = 0;
  Time finished = kNever;
};

struct GroupResult {
  stats::Histogram rtt, one_way, switch_time;
};

struct BlockedLane {
  uint32_t link, vl;          // the input lane whose head waits
  uint32_t out_link, out_vl;  // where it wants to go
  Time waited;
  bool no_credit;
};

class Simulation {
 public:
  Simulation(const NetworkSpec& network, std::vector<FlowSpec> flows, const RunSpec& run);

  // Handles up to `max_events` events. Call again while kRunning.
  Status run(uint64_t max_events);

  Time now() const { return now_; }
  uint64_t events() const { return events_; }
  uint64_t packet_hops() const;
  size_t packets_alive() const { return pool_.live(); }
  const std::vector<GroupResult>& groups() const { return groups_; }
  FlowResult flow(size_t i) const;
  size_t flows() const { return flows_.size(); }
  size_t links() const { return links_.size(); }
  int lanes() const { return lanes_; }
  LaneCounters counters(size_t link, int vl) const;
  uint32_t link_from(size_t link) const { return links_[link].from; }
  uint32_t link_port(size_t link) const { return links_[link].port; }
  uint32_t link_to(size_t link) const { return links_[link].to; }
  // Heads that have waited longer than `limit`; all waiting heads for limit 0.
  std::vector<BlockedLane> blocked(Time limit) const;
  // The cycle of input lanes that wait for each other, empty if there is none.
  std::vector<BlockedLane> deadlock_cycle() const;
  const std::vector<Time>& sample_times() const { return sample_times_; }
  // Backlog in bytes, [sample][link * lanes + vl].
  const std::vector<int32_t>& samples() const { return samples_; }

 private:
  enum What : uint32_t { kArrive, kKick, kTimer, kAckReady, kSample, kEnd };
  static constexpr uint32_t kIdBits = 28;
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kFewLinks = 40;  // up to here one sorted array holds all events best

  struct alignas(64) Link {
    Time busy_until = 0;
    Time kick_at = kNever;
    Time delay = 0;
    uint64_t ps_per_byte_q24 = 0;
    uint32_t from = 0, to = 0;
    uint32_t port = 0;   // number at the sender
    uint32_t to_in = 0;  // index among the receiver's inputs
    bool from_switch = false, to_switch = false;
    uint32_t active_queue = kNone;  // switch queue whose packet is leaving
    uint32_t host = kNone;          // number of the sending host
    Time pace_until = 0;            // hosts: adapter and PCIe pacing of requests
    Time drained = 0;               // receiving host: PCIe writes done until then
    const ArbTables* tables = nullptr;
    VlArbiter arbiter;
  };

  // A lane of a link as its sender sees it; two cache lines.
  struct alignas(64) OutLane {
    CreditLoop credits;
    int need = 0;  // blocks that a waiting head lacks; 0 = not starved
    uint32_t cursor = 0;
    Time blocked_since = kNever;  // a head waits for credits
    Time waited_until = 0;        // the last such wait ended
    Time last_ready = 0;
    int64_t backlog = 0, peak_backlog = 0;  // bytes at this switch that want this lane
    uint64_t xmit_bytes = 0, xmit_packets = 0;
    Time xmit_wait = 0;
    uint32_t unmarked = 0, marked = 0;
  };
  static_assert(sizeof(OutLane) == 128);

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
    uint32_t number;
    Time switch_time;  // spent in switches by what this answers
  };

  struct Flow {
    FlowSpec spec;
    uint32_t link = 0;  // of the source host
    uint8_t vl = 0;
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
    size_t next_scheduled = 0;
    Time loopback_seen = 0;
    bool marked = false;   // receiver: a FECN not yet answered
    int64_t received = 0;  // receiver: bytes of the message in progress
    Rng rng;
    FlowResult result;
    std::vector<Message> ring;
    size_t first = 0, count = 0;

    Message& front() { return ring[first]; }
    void push(const Message& m);
    void pop() {
      first = (first + 1) & (ring.size() - 1);
      --count;
    }
  };

  static Time ser(const Link& link, int bytes) {
    return static_cast<Time>((static_cast<uint64_t>(bytes) * link.ps_per_byte_q24) >> 24);
  }

  void schedule(Time t, What what, uint32_t id) { queue_.push(t, what << kIdBits | id); }
  void ensure_kick(uint32_t link, Time t) {
    if (t < links_[link].kick_at) {
      links_[link].kick_at = t;
      schedule(t, kKick, link);
    }
  }

  // Set-up.
  void build_links(const NetworkSpec& network);
  void build_routes(const NetworkSpec& network);
  void build_lanes(const NetworkSpec& network);
  void build_flows(std::vector<FlowSpec> flows);
  void start(uint32_t flow);
  int event_width_log2() const;

  // Links.
  OutLane& out_lane(uint32_t link, int vl) { return out_[link * lanes_ + vl]; }
  InLane& in_lane(uint32_t link, int vl) { return in_[link * lanes_ + vl]; }
  Queue& queue(uint32_t id) {
    return switch_.virtual_output_queues ? virtual_queues_[id] : in_[id].queue;
  }
  void transmit(uint32_t link, uint32_t packet);
  void give_back(uint32_t link, int vl, Time freed, int blocks);
  bool has_credit(uint32_t link, int vl, int blocks);
  void note_blocked(OutLane& lane) {
    if (lane.blocked_since == kNever) lane.blocked_since = now_;
  }

  // Switches.
  void arrive_at_switch(uint32_t packet);
  uint32_t route(uint32_t node, const Packet& p) const;
  uint8_t lane_of(uint32_t node, uint32_t in_port, uint32_t out_port, int sl) const;
  uint32_t queue_of(const Packet& p) const;
  uint32_t queue_at(const Link& out, uint32_t bit) const;
  uint32_t stand(uint32_t queue);
  void offer(uint32_t queue);
  void release(uint32_t link);
  void switch_transmit(uint32_t link);
  void switch_transmit_lanes(uint32_t link);
  uint32_t pick_input(uint32_t link, int vl);
  void send_from_queue(uint32_t link, int vl, uint32_t bit);
  void mark_congestion(uint32_t link, OutLane& lane, Packet& p);

  // Hosts.
  void post(uint32_t flow, Time software, Time intended, int64_t size, Time switch_time = 0);
  void post_next(uint32_t flow, Time software);
  void on_timer(uint32_t flow);
  void next_due(Flow& flow);
  void activate(uint32_t flow);
  SendLane& send_lane(uint32_t link, int vl) { return send_[links_[link].host * lanes_ + vl]; }
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
  void count_delivery(Flow& flow, const Packet& p);
  void receive_request(uint32_t packet);
  void receive_ack(uint32_t packet);
  void receive_read(uint32_t packet);
  void receive_response(uint32_t packet);
  void message_delivered(uint32_t flow, const Packet& p);
  void acknowledge(uint32_t packet, Flow& flow);
  void notify_congestion(uint32_t packet, uint32_t sender);
  void slow_down(Flow& flow);
  void respond(uint32_t packet);
  Time completion_seen();
  void sample_completion(uint32_t flow, Time seen, const Packet& p);
  void completed(uint32_t flow, const Packet& p);
  void locally_completed(uint32_t flow);
  void finish(Flow& flow);
  Time jitter(Time mean) { return mean ? rng_.exponential(static_cast<double>(mean)) : 0; }
  Time hiccup() {
    if (adapter_.hiccup_mean == 0 || rng_.uniform() > adapter_.hiccup_probability) return 0;
    return jitter(adapter_.hiccup_mean);
  }
  Time fetch_time(int64_t bytes) const {
    if (fetch_ps_per_byte_ == 0) return 0;
    return static_cast<Time>(static_cast<double>(bytes) * fetch_ps_per_byte_);
  }
  Time store_time(int64_t bytes) const {
    if (store_ps_per_byte_ == 0) return 0;
    return static_cast<Time>(static_cast<double>(bytes) * store_ps_per_byte_);
  }

  Status end();
  void check_credits() const;
  void note_if_done() {
    done_ = run_.stop_when_done && !endless_ && unfinished_ == 0;
    if (done_) schedule(now_, kEnd, 0);
  }
  void sample();
  void broken(const std::string& law, uint32_t link, const Packet& p) const;

  RunSpec run_;
  SwitchSpec switch_;
  CreditSpec credit_;
  AdapterSpec adapter_;
  int lanes_ = 1;
  SlToVl sl2vl_{};
  std::vector<Sl2VlOverride> sl2vl_overrides_;
  std::vector<ArbTables> tables_;
  double fetch_ps_per_byte_ = 0, store_ps_per_byte_ = 0, loopback_ps_per_byte_ = 0;

  Time now_ = 0;
  uint64_t events_ = 0;
  uint64_t transmissions_ = 0;
  size_t unfinished_ = 0;
  bool endless_ = false;
  bool done_ = false;
  EventQueue queue_;
  PacketPool pool_;
  Rng rng_;

  std::vector<Link> links_;
  std::vector<OutLane> out_;
  std::vector<InLane> in_;
  std::vector<SendLane> send_;         // [host][lane]
  std::vector<Queue> virtual_queues_;  // [input lane][output port]
  std::vector<uint64_t> waiting_;      // [out lane][word]: input lanes whose head wants this lane
  uint32_t words_ = 1;
  uint32_t max_ports_ = 1;

  std::vector<uint8_t> is_switch_;
  std::vector<uint32_t> index_;      // of a node among switches, or among hosts
  std::vector<uint32_t> host_node_;  // node of a host
  std::vector<uint32_t> host_link_;  // outgoing link of a host
  std::vector<uint32_t> port_base_;  // of a node in in_link_
  std::vector<uint32_t> in_link_;    // [port_base + port - 1]
  std::vector<uint32_t> out_link_;
  std::vector<uint8_t> next_hop_;        // [switch][host]: group, kNoRoute = none
  std::vector<uint16_t> next_hop_wide_;  // the same where a byte cannot hold the groups
  std::vector<uint32_t> group_start_, group_ports_;
  uint32_t hosts_ = 0;
  static constexpr uint32_t kNoRoute = 255, kNoRouteWide = 65535;

  std::vector<Flow> flows_;
  std::vector<GroupResult> groups_;
  std::vector<Time> sample_times_;
  std::vector<int32_t> samples_;
};

}  // namespace weft::packet
