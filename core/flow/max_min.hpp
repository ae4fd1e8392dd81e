// Weighted max-min fair rates with queues and strict priorities, re-solved where they change.
//
// A port p has a capacity C(p) and queues q, each with a weight w(q) and a priority; priority 0
// goes first. A flow f has a weight u(f), a cap c(f) and a path of hops, one queue at each port.
// Rates r are fair if every port divides its capacity as a work-conserving server would:
//
//   e(f,q) = min(c(f), u(f) s(q') over the other hops q' of f)    what f could take but for q
//   D(q)   = sum of e(f,q) over the flows of q                    what q could take
//   S(q)   = w(q) t;  t: w(q) t + sum over q' of min(D(q'), w(q') t) = R    what q could get
//   s(q)   : sum over the flows of q of min(e(f,q), u(f) s(q)) = S(q)       its share per weight
//   r(f)   = min(c(f), u(f) s(q) over the hops q of f)
//
// q' are the other queues of q's priority at its port, and R is what those that go before have left
// of C(p). Where D(q) < S(q), q limits no flow. Then s(q) is what its largest flow could get (the
// flow with the largest e/u counts as unlimited), so that shares are finite and continuous.
//
// With one queue per port these are the weighted max-min rates, which are unique: each flow has its
// cap, or a full port at which no flow has a larger r/u. With several queues, each flow has its cap
// or a full port at which no flow of its queue has a larger r/u and no queue of its priority a
// larger (sum of r)/w. Such rates exist, but may be several: two flows of different queues that
// share two equal ports, with weights 2:1 at one and 1:2 at the other, may have any split between
// the two.
//
// Method: a change makes its ports dirty. A dirty port solves its own equations for the e it sees;
// a share that changes gives its flows new e at their other hops, and those ports are dirty only if
// the old or the new e is below the share there. Where shares do not change the work ends. At one
// queue per port this ends at the solution from any start (Charny's consistent marking): a port
// depends only on ports with smaller shares. The work follows the bottlenecks that change, not the
// component. Where much is dirty, all ports are first solved together in sweeps over the flows, one
// Newton step of each share per sweep; what then still changes is solved port by port.
//
// With several queues, ports may depend on each other in a cycle, and shares converge like a
// geometric series. A change below `tolerance` of a share is not passed on. A port that is solved
// more than kPatience times in a call goes a part of the way, and its tolerance doubles every few
// times, so that the work is bounded whatever the weights; if a port is then above its capacity,
// its flows are slowed to fit. Entry point: `MaxMin`. Units: any unit of rate; weights have none.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace weft::flow {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct QueueSpec {
  double weight = 1;
  int priority = 0;  // 0 goes first
};

struct Hop {
  uint32_t port = 0, queue = 0;  // queue: its number at the port
};

class MaxMin {
 public:
  uint32_t add_port(double capacity, std::span<const QueueSpec> queues);
  uint32_t add_flow(std::span<const Hop> path, double weight = 1, double cap = kUnlimited);
  void remove_flow(uint32_t flow);
  // Other weights and priorities for the queues of a port, as many as it has.
  void set_queues(uint32_t port, std::span<const QueueSpec> queues);
  // Moves a flow to another queue of the port of one of its hops.
  void set_queue(uint32_t flow, uint32_t hop, uint32_t queue);
  // The relative change of a share that is not passed on, 0 to 0.1; without it kRounding.
  void set_tolerance(double tolerance);

  // Solves what has changed since the last time. Returns the flows that have another rate.
  const std::vector<uint32_t>& solve();

  // Goes a few sweeps towards the solution, for all flows. Ports that have not settled divide what
  // they have in proportion to shares. Returns the flows that have another rate.
  const std::vector<uint32_t>& refine();
  // Whether the last refinement has settled.
  bool is_refined() const { return is_refined_; }

  double rate(uint32_t flow) const { return flows_[flow].rate; }
  double weight(uint32_t flow) const { return flows_[flow].weight; }
  double cap(uint32_t flow) const { return flows_[flow].cap; }
  double capacity(uint32_t port) const { return ports_[port].capacity; }
  size_t ports() const { return ports_.size(); }
  size_t flows() const { return live_; }
  // That sweeps are worth their overhead for.
  bool has_many_flows() const { return live_ >= kManyFlows; }
  // Ports solved since the start, those of sweeps included: a measure of the work.
  uint64_t port_solutions() const { return port_solutions_; }
  uint64_t sweeps() const { return sweeps_; }
  // Queues are numbered over all ports, in the order in which they were added.
  uint32_t queue_id(uint32_t port, uint32_t queue) const {
    return ports_[port].first_queue + queue;
  }
  template <class Visit>
  void for_each_queue(uint32_t flow, Visit&& visit) const {
    for (uint32_t i = 0; i < flows_[flow].hops; ++i) visit(hops_[flows_[flow].first_hop + i].queue);
  }
  template <class Visit>
  void for_each_port(uint32_t flow, Visit&& visit) const {
    for_each_queue(flow, [&](uint32_t queue) { visit(queues_[queue].port); });
  }

 private:
  // Differences below this are rounding: the result of a port is a quotient of sums.
  static constexpr double kRounding = 1e-13;
  static constexpr uint32_t kCap = UINT32_MAX;
  static constexpr size_t kManyFlows = 256;

  struct Port {
    double capacity;
    uint32_t first_queue, queues;
    uint32_t solutions = 0;  // in this call
    uint32_t members = 0;    // hops of flows
    bool dirty = false;
  };
  struct Member {
    uint32_t flow, hop;
  };
  struct Queue {
    double weight;
    int priority;
    uint32_t port;
    double flow_weight = 0;  // sum of u
    std::vector<Member> members;
  };
  struct PathHop {
    uint32_t queue, position;
  };
  // The smallest limit of a flow, at which hop, and the smallest of the others.
  struct Least {
    double first, second;
    uint32_t hop;

    double elsewhere(uint32_t at) const { return at == hop ? second : first; }
  };
  struct alignas(64) Flow {
    double weight, cap;
    Least least;
    uint32_t first_hop, hops;
    double rate = 0;
    bool changed = false, live = false;
  };
  // Flows of the port in hand: e, u, and e/u with the largest of each queue unlimited.
  struct Demand {
    double limit, weight, level;
  };
  // A queue with flows at the port in hand: D(q), w(q), and S(q) as the result.
  struct Claim {
    double wanted, weight;
    int priority;
    uint32_t queue;
    size_t first_demand = 0;
    double supply = 0;
    double level = weight > 0 ? wanted / weight : kUnlimited;
  };
  // What a sweep adds up for a queue: of flows that another hop or their cap limits, e; of those
  // that this queue limits, e and u; of all, the largest e/u.
  struct Tally {
    double limited = 0, free = 0, free_weight = 0, top = 0;
  };

  static bool differ(double a, double b, double tolerance);
  double find_tolerance(const Port& port) const;
  Least find_least(const Flow& flow) const;
  void add_member(uint32_t flow, uint32_t hop, uint32_t queue);
  void remove_member(const PathHop& hop);
  void mark(uint32_t port);
  void note_change(uint32_t flow);
  bool is_much_dirty() const { return 4 * dirty_members_ > members_ && has_many_flows(); }
  bool sweep(uint32_t most);
  void mark_all();
  void tally_flows();
  bool step_port(uint32_t port, double part);
  double find_step(uint32_t queue, double supply) const;
  void solve_ports();
  void solve_port(uint32_t port);
  void divide_capacity(const Port& port);
  static void divide_priority(std::span<Claim> claims, double& left);
  double gather(const Queue& queue);
  static double divide(std::span<const Demand> demands, double supply, double share);
  void set_share(uint32_t queue, double share);
  void pass_on(uint32_t queue);
  void fit(uint32_t port);

  std::vector<Port> ports_;
  std::vector<Queue> queues_;
  std::vector<double> shares_;  // s by queue
  std::vector<Flow> flows_;
  std::vector<PathHop> hops_;
  std::vector<uint32_t> free_flows_;
  std::vector<std::vector<uint32_t>> free_paths_;  // by length
  std::vector<uint32_t> dirty_, next_dirty_, visited_, changed_, result_;
  uint64_t dirty_members_ = 0, members_ = 0;
  size_t live_ = 0;
  uint64_t port_solutions_ = 0, sweeps_ = 0;
  double tolerance_ = 0;
  bool swept_ = false, is_refined_ = true;

  std::vector<Demand> demands_;
  std::vector<double> excess_;  // by port: what shares promise over what it has, at least 1
  std::vector<Tally> tallies_;  // by queue
  std::vector<Claim> claims_;
};

}  // namespace weft::flow
