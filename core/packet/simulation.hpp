// The packet-level simulation: one fabric, its flows, and the partitions that run them.
//
// A small fabric is one partition. A large one has several, which run windows of time as long as
// the lookahead between them; they meet after each, and what concerns all of them (flows that
// stop with others, samples, the end) happens there. Partitions and windows depend on the fabric
// and its traffic, never on the threads: results are the same for any number of them.
// Entry point: `Simulation`. Units: ps, bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <memory_resource>
#include <string>
#include <vector>

#include "base/huge_pages.hpp"
#include "packet/partition.hpp"
#include "packet/spec.hpp"
#include "packet/state.hpp"

namespace weft::packet {

enum class Status : uint8_t { kRunning, kTimeUp, kFinished, kDeadlock };

struct LaneCounters {
  uint64_t xmit_bytes = 0, xmit_packets = 0;
  uint64_t rcv_bytes = 0, rcv_packets = 0;
  Time xmit_wait = 0;
  uint64_t marked = 0;
  int peak_blocks = 0;       // receiving buffer
  int64_t peak_backlog = 0;  // bytes waiting for this output

  bool operator==(const LaneCounters&) const = default;
};

struct FlowResult {
  int64_t posted = 0, completed = 0, delivered = 0;
  int64_t bytes = 0;     // payload delivered after the warm-up
  int64_t messages = 0;  // messages delivered after the warm-up
  Time first_delivery = kNever, last_delivery = 0;
  Time finished = kNever;
  Time stop = kNever;  // no new message from then on

  bool operator==(const FlowResult&) const = default;
};

struct BlockedLane {
  uint32_t link, vl;          // the input lane whose head waits
  uint32_t out_link, out_vl;  // where it wants to go
  Time waited;                // since it became the head and the output lane last sent
  bool no_credit;
  bool hopeless;  // and none is on its way
};

class Simulation {
 public:
  Simulation(const NetworkSpec& network, std::vector<FlowSpec> flows, const RunSpec& run,
             std::shared_ptr<const WorkloadSpec> workload = nullptr);
  ~Simulation();
  Simulation(const Simulation&) = delete;  // its partitions refer to it
  Simulation& operator=(const Simulation&) = delete;

  // Handles up to `max_events` events. Call again while kRunning.
  Status run(uint64_t max_events);

  // Between two calls of `run`: other VL arbitration of an output port, another cap on the payload
  // of a flow (0 = none).
  void set_arbitration(uint32_t node, uint32_t port, const ArbTables& tables);
  void set_rate(size_t flow, double rate_bps) { flows_[flow].spec.rate_bps = rate_bps; }

  Time now() const { return now_; }
  uint64_t events() const;
  // Simulated time that was skipped because the run repeated itself.
  Time skipped() const { return partitions_[0]->skipped(); }
  uint64_t packet_hops() const;
  size_t packets_alive() const;
  size_t partitions() const { return partitions_.size(); }
  Time lookahead() const { return lookahead_; }
  // Threads of the run: fewer than asked for if the system has refused to start one.
  int threads() const { return run_.threads; }
  // From now on, note the events of each window and partition: [window][partition].
  void keep_accounts() { keeps_accounts_ = true; }
  const std::vector<uint32_t>& window_events() const { return window_events_; }
  GroupResult group(size_t i) const;
  FlowResult flow(size_t i) const;
  size_t flows() const { return flows_.size(); }
  size_t links() const { return links_.size(); }
  int lanes() const { return lanes_; }
  LaneCounters counters(size_t link, int vl) const;
  uint32_t link_from(size_t link) const { return links_[link].from; }
  uint32_t link_port(size_t link) const { return links_[link].port; }
  uint32_t link_to(size_t link) const { return links_[link].to; }
  // Time in which switch outputs stood idle while a packet for them waited behind another head, as
  // a share of that time and the time in which they sent.
  double head_of_line_share() const;
  // Heads that have waited longer than `limit`; all waiting heads for limit 0.
  std::vector<BlockedLane> blocked(Time limit) const;
  // A cycle of input lanes that wait for each other and can never move again, or nothing.
  std::vector<BlockedLane> deadlock_cycle() const;
  const std::vector<Time>& sample_times() const { return sample_times_; }
  // When a rank of the workload, or one of its operations, ended; workload::kNever = not yet.
  Time rank_finished(uint32_t rank) const;
  const std::vector<Time>& operations_ended() const;
  // Backlog in bytes, [sample][link * lanes + vl].
  const std::vector<int32_t>& samples() const { return samples_; }

 private:
  friend class Partition;
  template <bool>
  friend class EventLoop;
  friend std::unique_ptr<Partition> make_partition(Simulation&, uint32_t, uint32_t);

  // Set-up.
  void build_links(const NetworkSpec& network);
  void build_routes(const NetworkSpec& network);
  void build_lanes(const NetworkSpec& network);
  void build_lane_maps(const NetworkSpec& network);
  void build_flows(std::vector<FlowSpec> flows);
  void build_partitions(const NetworkSpec& network);
  bool triggers_cross(const std::vector<uint8_t>& of_node) const;
  void start(uint32_t flow);
  void place(std::shared_ptr<const WorkloadSpec> workload);
  int event_width_log2(uint32_t partition) const;
  InLane& in_lane(uint32_t link, int vl) { return in_[link * lanes_ + vl]; }

  // Running.
  Status run_windows(uint64_t max_events);
  bool runs_alone();
  void run_burst(uint64_t until, int most_threads);
  void run_window(const std::vector<Partition*>& share);
  bool plan_window(uint64_t until);
  void take_samples(Time next);
  void account_window();
  std::vector<std::vector<Partition*>> share_out(size_t threads) const;
  Status end(bool last);
  void check_credits() const;
  // A flow or rank of this traffic has ended; after the last, those that stop with it stop.
  // Whether all is done.
  bool end_part(uint32_t traffic, Time now);
  void sample(Time now);

  RunSpec run_;
  SwitchSpec switch_;
  CreditSpec credit_;
  AdapterSpec adapter_;
  int lanes_ = 1;
  std::deque<VlTables> tables_;
  std::vector<const VlTables*> tables_of_;  // by link
  double fetch_ps_per_byte_ = 0, store_ps_per_byte_ = 0, loopback_ps_per_byte_ = 0;

  Time now_ = 0;
  size_t unfinished_ = 0;
  std::vector<uint32_t> unfinished_of_;  // by traffic
  bool endless_ = false;
  bool done_ = false;

  // Of what events read at random; that of a smaller fabric is in the caches anyway.
  static constexpr size_t kHugeLinks = 2048;
  HugePages huge_pages_;
  std::pmr::memory_resource* const memory_;

  Partitions partitions_;
  Time lookahead_ = kNever;
  uint32_t window_ = 0;  // number of the next one
  Time window_end_ = 0;
  Time next_sample_ = kNever;
  bool over_ = false;
  std::vector<std::exception_ptr> errors_;    // by partition
  static constexpr uint64_t kBurst = 50'000;  // events: some milliseconds
  static constexpr uint32_t kProbeEvery = 16;
  uint32_t burst_ = 0;
  double pace_s_[2] = {0, 0};  // per event, by threads and by one alone
  bool keeps_accounts_ = false;
  std::vector<uint64_t> events_before_;  // by partition: at the window's start
  std::vector<uint32_t> window_events_;

  std::pmr::vector<Link> links_{memory_};
  std::pmr::vector<OutLane> out_{memory_};
  std::pmr::vector<InLane> in_{memory_};
  std::vector<uint64_t> marked_;                     // packets marked, by lane of a link
  std::pmr::vector<SendLane> send_{memory_};         // [host][lane]
  std::pmr::vector<Adapter> adapters_{memory_};      // by host
  std::vector<Granting> granting_;                   // by host, where hosts grant
  std::pmr::vector<Queue> virtual_queues_{memory_};  // [input lane][output port]
  std::vector<int> feeding_;                         // by input link: outputs that it feeds now
  // [out lane][word]: input lanes whose head wants this lane
  std::pmr::vector<uint64_t> waiting_{memory_};
  uint32_t lane_bits_ = 0;  // bit of an input lane in `waiting_`: input << lane_bits_ | lane
  uint32_t words_ = 1;
  uint32_t max_ports_ = 1;

  std::vector<uint8_t> is_switch_;
  std::pmr::vector<uint32_t> index_{memory_};      // of a node among switches, or among hosts
  std::vector<uint32_t> host_node_;                // node of a host
  std::pmr::vector<uint32_t> host_link_{memory_};  // outgoing link of a host
  std::pmr::vector<uint32_t> port_base_{memory_};  // of a node in in_link_
  std::pmr::vector<uint32_t> in_link_{memory_};    // [port_base + port - 1]
  std::pmr::vector<uint32_t> out_link_{memory_};
  std::pmr::vector<uint8_t> next_hop_{memory_};  // [switch][host]: group, kNoRoute = none
  std::pmr::vector<uint16_t> next_hop_wide_{
      memory_};  // the same where a byte cannot hold the groups
  std::vector<uint32_t> group_start_, group_ports_;
  std::vector<SlToVl> lane_maps_;        // 0 = the fabric's
  std::vector<uint32_t> lane_map_base_;  // of a node in lane_map_, kNone = the fabric's map
  std::vector<uint32_t> lane_map_;       // [base + in port * ports + out port - 1]
  uint32_t hosts_ = 0;

  std::pmr::vector<VlArbiter> arbiters_{memory_};  // by link
  std::pmr::vector<Flow> flows_{memory_};
  std::vector<Rng> arrivals_;  // by flow, if any has random ones
  std::pmr::vector<Sink> sinks_{memory_};
  std::shared_ptr<const WorkloadSpec> workload_spec_;
  std::unique_ptr<PlacedWorkload> workload_;
  std::vector<Time> sample_times_;
  std::vector<int32_t> samples_;
};

}  // namespace weft::packet
