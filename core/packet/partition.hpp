// A part of the fabric with a clock of its own: switches, their hosts, the links that leave them.
//
// Two or three events per hop: a packet is ready at a switch or delivered to a host (`kArrive`),
// an output may have something to send (`kKick`). The end of a transmission, the return of a
// credit, PCIe transfers and software are timestamps, and become an event only when something
// waits for them. What goes to another partition is mail: it takes effect a lookahead later, so
// partitions run a window of that length without looking at each other, and read their mail
// before the next. `EventLoop` is what happens at an event. Entry point: `Partition`. Units: ps,
// bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "packet/event_queue.hpp"
#include "packet/packet.hpp"
#include "packet/spec.hpp"
#include "packet/state.hpp"
#include "stats/histogram.hpp"

namespace weft::packet {

class Simulation;

// A law of the fabric was broken: a drop, a negative credit, reordering.
class BrokenInvariant : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

struct GroupResult {
  stats::Histogram rtt, one_way, switch_time;
};

class PlacedWorkload;
class Partition;
using Partitions = std::vector<std::unique_ptr<Partition>>;

class Partition {
 public:
  enum class Stop : uint8_t { kNoMore, kBudget, kEnd };

  Partition(Simulation& simulation, uint32_t number, uint32_t partitions);
  virtual ~Partition();

  // Skips whole periods of a state that recurs, where that can happen.
  void skip_steady();
  // Simulated time that was skipped.
  Time skipped() const;

  // Handles up to `max_events` events before `end`. kEnd: the next event ends the run.
  virtual Stop run(Time end, uint64_t max_events) = 0;

  // ---- Windows of several partitions ----
  // A window takes steps: the mail of the last one is read, memory is asked for what the events
  // before `end` read, and these are handled. One thread takes the steps of several partitions in
  // turn, so that memory works for some while another runs.
  static constexpr int kSteps = 6;
  void take_step(int step, const Partitions& all, uint32_t window, Time end);
  // Takes in what the others sent in that window.
  virtual void read_mail(const Partitions& all, uint32_t window) = 0;
  // All have read their mail.
  void empty_outboxes();
  // Nothing can happen before: the next event here, or what the mail just sent leads to.
  Time next_time() { return std::min(queue_.top().time, mail_time_); }

  void schedule_timer(Time t, uint32_t flow) { schedule(t, kTimer, flow); }
  void schedule_end(Time t) { schedule(t, kEnd, 0); }
  void schedule_sample(Time t) { schedule(t, kSample, 0); }

  uint32_t number() const { return number_; }
  Time now() const { return now_; }
  Time last_event() const { return last_event_; }
  uint64_t events() const { return events_; }
  uint64_t transmissions() const { return transmissions_; }
  Time head_of_line() const { return head_of_line_; }
  size_t live_packets() const { return pool_.live(); }
  size_t pending() const { return queue_.size(); }
  // Nothing is to come but the end.
  bool is_idle() const { return queue_.size() == 1 && mail_time_ == kNever; }
  const Packet& packet(uint32_t id) const { return pool_[id]; }
  const GroupResult& group(size_t i) const { return groups_.at(i); }
  // Posts on a flow whose sender is here what an operation of the workload sends.
  virtual void post_operation(uint32_t flow, Time now, int64_t size) = 0;
  void schedule_rank(Time t, uint32_t rank) { schedule(t, kRank, rank); }
  void set_workload(PlacedWorkload& workload) { workload_ = &workload; }

  // Traffic entries of flows that finished, and when the last did; the caller empties the list.
  std::vector<uint32_t>& finished() { return finished_; }
  Time last_finish() const { return last_finish_; }
  // The lane of a service level on a host's link.
  uint8_t first_lane(uint32_t link, int sl) const;
  [[noreturn]] void broken(const std::string& law, uint32_t link, const Packet& p) const;

 protected:
  enum What : uint32_t { kArrive, kKick, kTimer, kAckReady, kRank, kSample, kEnd };
  static constexpr uint32_t kIdBits = 28, kIdMask = (1u << kIdBits) - 1;

  class Steady;

  struct Arrival {
    Packet packet;
    Time time;
  };
  struct Credit {
    Time freed;
    uint32_t link;
    int32_t blocks;
    int32_t vl;
  };
  // To one partition, sent in one window.
  struct Mail {
    std::vector<Arrival> arrivals;
    std::vector<Credit> credits;
  };
  // Windows take turns with two: one is written while the other is read.
  struct Outbox {
    std::vector<Mail> to;    // by partition
    uint64_t not_empty = 0;  // partitions (bits)
  };

  void prefetch_mail(const Partitions& all, uint32_t window) const;
  void begin_window(const Partitions& all, uint32_t window, Time end);
  void run_window(Time end);
  virtual void prefetch(int step) const = 0;

  void schedule(Time t, What what, uint32_t id) { queue_.push(t, what << kIdBits | id); }
  uint8_t lane_of(uint32_t node, uint32_t in_port, uint32_t out_port, int sl) const;
  const Mail* find_mail(const Partition& sender, uint32_t window) const;

  Simulation& simulation_;
  PlacedWorkload* workload_ = nullptr;
  const uint32_t number_;
  const bool alone_;

  // Parameters, by value: they are read at every event.
  const RunSpec run_;
  const SwitchSpec switch_;
  const CreditSpec credit_;
  const AdapterSpec adapter_;
  const int lanes_;
  const uint32_t lane_bits_, words_, max_ports_, hosts_;
  const double fetch_ps_per_byte_, store_ps_per_byte_, loopback_ps_per_byte_;

  Time now_ = 0;
  Time last_event_ = 0;
  uint64_t events_ = 0;
  uint64_t transmissions_ = 0;
  Time head_of_line_ = 0;
  EventQueue queue_;
  PacketPool pool_;
  Rng rng_;
  std::vector<GroupResult> groups_;
  std::vector<uint32_t> finished_;
  Time last_finish_ = 0;
  Outbox outbox_[2];
  Outbox* sending_ = nullptr;  // of the window that runs
  Time mail_time_ = kNever;
  std::span<const Event> window_events_;  // valid until the window runs
  std::unique_ptr<Steady> steady_;

  // The fabric, which all partitions share.
  Link* const links_;
  OutLane* const out_;
  InLane* const in_;
  uint64_t* const marked_;
  SendLane* const send_;
  Adapter* const adapters_;
  Granting* const granting_;
  Queue* const virtual_queues_;
  int* const feeding_;
  uint64_t* const waiting_;
  VlArbiter* const arbiters_;
  const VlTables* const* const tables_;
  Flow* const flows_;
  Rng* const arrivals_;
  Sink* const sinks_;
  const uint32_t* const index_;
  const uint32_t* const host_node_;
  const uint32_t* const host_link_;
  const uint32_t* const port_base_;
  const uint32_t* const in_link_;
  const uint32_t* const out_link_;
  const uint8_t* const next_hop_;  // or null, where a byte cannot hold the groups
  const uint16_t* const next_hop_wide_;
  const uint32_t* const group_start_;
  const uint32_t* const group_ports_;
  const SlToVl* const lane_maps_;
  const uint32_t* const lane_map_base_;  // or null, where all nodes have the same map
  const uint32_t* const lane_map_;
};

}  // namespace weft::packet
