// The flow-level simulation: the flows of a scenario as transfers at max-min fair rates.
//
// A flow is a queue pair: it sends its messages in order, one transfer at a time. A message counts
// with the headers of its packets; a transfer takes bytes over rate, then the path's latency. Not
// modelled: queueing and head-of-line blocking, credits, the bandwidth of ACKs and READ requests.
// A stream is one transfer of all its messages. A workload posts messages one by one, see
// workload/replay.hpp. A stream's rate is capped by `rate`, by its window over
// the unloaded round trip, and every flow's by what the adapter needs per message, packet, byte.
//
// A job is an entry of the scenario: traffic or a job. With a `Control`, ports have so many queues
// and all jobs begin in the first; `run` returns when a job arrives or leaves (and, if it watches
// stages, begins or ceases to send), before rates are solved again, and the caller may then program
// ports or give flows an order. Entry point: `Simulation`. Units: ps, bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "flow/paths.hpp"
#include "flow/transfers.hpp"
#include "packet/simulation.hpp"
#include "packet/spec.hpp"
#include "workload/replay.hpp"

namespace weft::flow {

// Who changes ports during the run: the queues of each, 0 for none but the lanes of the network.
struct Control {
  uint32_t queues = 0;
  bool watch_stages = false;
};

struct PortProgram {
  uint32_t port;
  std::span<const QueueSpec> queues;
  std::span<const uint32_t> queue_of_job;  // empty: as before
};

// How exactly rates are solved: see `Transfers` and `MaxMin`.
struct Accuracy {
  Time step = 0;
  double tolerance = 0;
};

class Simulation : private workload::Network {
 public:
  Simulation(const packet::NetworkSpec& network, std::vector<packet::FlowSpec> flows,
             const packet::RunSpec& run,
             std::shared_ptr<const packet::WorkloadSpec> workload = nullptr,
             const Accuracy& accuracy = {}, const Control& control = {});
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // Handles up to `max_events` events, or those until jobs change. Call again while kRunning.
  packet::Status run(uint64_t max_events);
  // Whether jobs have changed since the last call; only with a `Control`.
  bool take_change() { return std::exchange(jobs_changed_, false); }

  size_t jobs() const { return jobs_.size(); }
  size_t ports() const { return ports_; }
  bool is_present(size_t job) const { return jobs_[job].present; }
  bool is_sending(size_t job) const { return jobs_[job].sending > 0; }
  // By port and job: whether a flow of the job passes the port.
  std::vector<uint8_t> jobs_at_ports() const;
  // By job and port: bytes posted and not yet sent.
  std::vector<double> bytes_left() const;
  // Checked by the caller: ports, as many queues as the control has, queues that are there.
  void program(std::span<const PortProgram> programs);
  // Strict priority of each job's flows, 0 first; by bytes left; by queues again. See `Transfers`.
  void order_jobs(std::span<const uint32_t> priorities);
  void order_by_bytes_left(std::vector<double> cutoffs) {
    transfers_.serve_by_bytes_left(std::move(cutoffs));
  }
  void order_by_queues() { transfers_.serve_by_queues(); }

  Time now() const { return transfers_.now(); }
  uint64_t events() const { return events_; }
  packet::FlowResult flow(size_t i) const;
  size_t flows() const { return flows_.size(); }
  // Bytes on the wire of a port (two per cable) and lane or queue, without those of ACKs.
  std::vector<double> carried() const;
  // When a rank of the workload, or one of its operations, ended; workload::kNever = not yet.
  Time rank_finished(uint32_t rank) const { return replay_->finished(rank); }
  const std::vector<Time>& operations_ended() const { return replay_->progress().ended(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  enum What : uint8_t { kBegin, kStop, kWarmUp, kDelivered, kCompleted, kRank, kArrive };

  struct Event {
    Time time;
    uint64_t sequence;  // events of equal times in the order in which they were made
    What what;
    uint32_t id;
    bool operator<(const Event& other) const {  // of a heap: the earliest on top
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };
  struct Message {
    Time ready;  // for the wire
    double wire_bytes, payload_per_wire;
  };
  struct Flow {
    packet::FlowSpec spec;
    Path path;
    double cap = kUnlimited;
    Time delivery = 0;              // from the last byte on the wire to its delivery
    Time completion = 0;            // from the delivery to the completion
    std::vector<Message> messages;  // from `first` on: not yet sent
    size_t first = 0;
    std::vector<uint32_t> sends;  // operations of a workload, as posted
    uint32_t transfer = kNone;
    double payload = 0;         // of ended transfers
    double payload_before = 0;  // of all until the warm-up
    bool stopped = false, ended = false;
    packet::FlowResult result;

    const Message& front() const { return messages[first]; }
    bool is_idle() const { return first == messages.size(); }
  };

  struct Job {
    Time arrival = kNever;
    uint32_t unfinished = 0;  // streams and ranks
    uint32_t sending = 0;     // flows that have messages
    uint32_t priority = 0;
    bool present = false;
  };

  void schedule(Time time, What what, uint32_t id) {
    events_to_come_.push({time, sequence_++, what, id});
  }
  void build_flow(uint32_t id, const Paths& paths);
  void build_workload();
  void expect(uint32_t job, Time arrival);
  void leave(uint32_t job);
  void add_sending(uint32_t job, int change);
  double find_cap(const Flow& flow, double wire_bytes, Time round_trip) const;
  Time find_post_time(const packet::FlowSpec& spec, int64_t size) const;
  Time find_fetch_time(const packet::FlowSpec& spec, int64_t size) const;
  Time find_seen_time() const { return adapter_.pcie_write + adapter_.poll; }
  void post(uint32_t send, Time now) override;
  void wake(uint32_t rank, Time when) override { schedule(when, kRank, rank); }
  void advance(uint32_t rank);
  bool is_waiting() const;
  void add_message(uint32_t flow, const Message& message);
  void begin(uint32_t flow);
  void end_transfer(uint32_t flow);
  void handle(const Event& event);
  void deliver(uint32_t flow);
  void complete(uint32_t flow);
  void end_stream(uint32_t flow);
  void finish(uint32_t traffic);
  void stop(uint32_t flow);
  double find_payload(const Flow& flow) const;

  packet::RunSpec run_;
  packet::AdapterSpec adapter_;
  Transfers transfers_;
  int lanes_ = 1;
  size_t ports_ = 0;
  std::vector<Flow> flows_;
  std::vector<uint32_t> flow_of_;  // by transfer
  std::vector<uint32_t> ended_;    // flows whose transfers end now
  std::priority_queue<Event> events_to_come_;
  std::shared_ptr<const packet::WorkloadSpec> workload_;
  std::unique_ptr<workload::Replay> replay_;
  Control control_;
  std::vector<Job> jobs_;
  std::vector<uint32_t> queue_of_;  // by port and job
  bool jobs_changed_ = false;
  std::vector<uint8_t> is_done_;         // by rank
  std::vector<uint32_t> unfinished_of_;  // by entry of the scenario
  uint32_t unfinished_ = 0;
  bool endless_ = false;
  uint64_t events_ = 0, sequence_ = 0;
};

}  // namespace weft::flow
