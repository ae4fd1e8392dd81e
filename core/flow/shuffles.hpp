// Many jobs that shuffle at once, over ports with lanes, at fair rates that are solved in batches.
//
// `Transfers` solves rates anew whenever a transfer ends. Twenty jobs of 97 instances have 186,000
// flows at a time, and here all instances of a job go in step, so rates are solved when a job
// begins or ceases to send, and whenever a small part (`batch`) of the flows has ended since. What
// the ended flows leave is unused until then; no port is ever overloaded.
//
// A job repeats its stages. A stage computes for a while; every flow of the job sends `early` bytes
// from its begin and `late` bytes when it has computed; it ends when both are done. A flow passes
// ports; at each it is in a lane, by its job or by the bytes it has left (`cutoffs`).
//
// Rates are those of max_min.hpp with one flow per weight: a lane q of weight w at a port of
// capacity C gets what a work-conserving server gives it, its flows share that max-min. Lanes share
// a port by weight, or strictly in their order. Method: every pass takes from each flow what it
// could get elsewhere, then every port computes the shares of its lanes (one step of Newton's
// method on s(q)), until rates change by at most `tolerance` of their sum. Shares of the last time
// are the start; after a few passes shares go half of the way, since cycles of ports overshoot.
// Then flows through a port that is over its capacity are scaled down. Entry point: `Shuffles`.
// Units: s, bytes, bytes per second.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace weft::flow {

struct ShuffleStage {
  double compute_s = 0;
  double early_bytes = 0, late_bytes = 0;  // of each flow
};

struct ShuffleJob {
  std::vector<ShuffleStage> stages;
  uint32_t loops = 1;
  double start_s = 0;
  uint32_t first_flow = 0, flows = 0;
};

// Lane of job j at port p: lane[j * ports + p]; weight of lane q there: weight[p * lanes + q].
struct LaneTable {
  uint32_t lanes = 1;
  std::vector<uint8_t> lane;
  std::vector<double> weight;
  bool strict = false;  // lane 0 first, weights do not count
  bool lending = true;  // false: a weight is the part of the port that its lane never exceeds
};

class Shuffles {
 public:
  // The ports of flow f are path[path_start[f]] to path[path_start[f + 1]].
  Shuffles(std::vector<double> capacity, std::vector<uint64_t> path_start,
           std::vector<uint32_t> path, std::vector<ShuffleJob> jobs, double batch,
           double tolerance);

  void program(LaneTable table);
  // Strict lanes by bytes left instead: a flow is in the lane after the last cutoff it exceeds.
  void order_flows(std::vector<double> cutoffs);

  // Until a job begins or finishes, or (`at_sends`) begins or ceases to send. False: all finished.
  bool run(bool at_sends);

  double now() const { return now_; }
  const std::vector<double>& finished() const { return finished_; }  // by job; infinite: not yet
  std::vector<uint8_t> sending() const;                              // by job
  std::vector<uint8_t> present() const;                              // by job
  // Bytes left of each job at each port: [job * ports + port].
  std::vector<double> left_at_ports() const;
  uint64_t solutions() const { return solutions_; }
  uint64_t passes() const { return passes_; }
  // Rates now, by flow; 0 of flows that do not send.
  std::vector<double> rates();

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr int kMostPasses = 200, kUndamped = 6;

  struct State {
    uint32_t loop = 0, stage = 0;
    uint32_t active = 0;       // flows that send
    double computed = kNever;  // when it will have computed
    bool begun = false, is_computed = true;
  };
  // What a pass adds up for a lane: what flows that another lane limits take, what those that this
  // one limits could take elsewhere, and the most of one flow.
  struct Tally {
    double limited, free, largest;
    uint32_t free_count;
    uint32_t count;  // flows that send

    double wanted() const { return limited + free; }
  };

  void begin_stage(uint32_t job);
  void end_compute(uint32_t job);
  void end_stages();
  void send(uint32_t job, double bytes);
  void place_by_size();
  void empty_lanes();
  void place_by_job();
  void count_flows();
  void solve();
  double gather();
  void share_ports();
  void share_by_weight(double capacity, std::span<uint32_t> lanes);
  void share_in_order(double capacity, std::span<const uint32_t> lanes);
  void set_share(uint32_t lane, double supply);
  void scale_down();
  double find_next() const;
  void advance(double until);

  std::vector<double> capacity_;
  std::vector<uint64_t> path_start_;
  std::vector<uint32_t> path_;
  std::vector<ShuffleJob> jobs_;
  double batch_, tolerance_;
  size_t ports_;
  double most_;  // capacity of any port
  uint32_t lanes_ = 1;
  LaneTable table_;
  std::vector<double> cutoffs_;
  std::vector<uint32_t> job_of_;
  std::vector<uint8_t> flow_lane_;
  std::vector<double> left_, rate_;
  std::vector<uint32_t> active_;
  std::vector<uint32_t> lane_at_;  // by hop, as `path_`: port * lanes + lane
  std::vector<double> share_;      // by lane
  std::vector<Tally> tally_;
  std::vector<double> load_;    // by port
  std::vector<uint32_t> used_;  // ports that any flow passes
  std::vector<uint32_t> busy_;  // lanes in which flows send, port by port
  std::vector<std::pair<uint32_t, uint32_t>> busy_ports_;  // and where its lanes end in `busy_`
  std::vector<State> states_;
  std::vector<double> finished_;
  double now_ = 0;
  double step_ = 1;  // of the way to new shares
  bool changed_ = true, paused_ = false, sends_changed_ = false;
  uint64_t solutions_ = 0, passes_ = 0;
};

}  // namespace weft::flow
