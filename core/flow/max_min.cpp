#include "flow/max_min.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace weft::flow {

namespace {

// Solutions of a port in a call before it is damped, by half and later by more, and
// solutions after which its tolerance doubles: after some 3,000 it takes whatever it has.
constexpr uint32_t kPatience = 128, kStubborn = 640, kDoubling = 64;
constexpr double kCoarsest = 0.5;
// Most sweeps of a solution, and of a refinement. Without damping ports overshoot together.
constexpr uint32_t kSweeps = 64, kRefinements = 4, kUndamped = 2;
constexpr double kDamping = 0.7;

}  // namespace

bool MaxMin::differ(double a, double b, double tolerance) {
  return a != b && !(std::abs(a - b) <= tolerance * std::min(a, b));
}

// A port that has been solved very often settles for less.
double MaxMin::find_tolerance(const Port& port) const {
  const double tolerance = std::max(kRounding, tolerance_);
  if (port.solutions <= kPatience) return tolerance;
  const uint32_t doublings = (port.solutions - kPatience) / kDoubling;
  return std::min(kCoarsest, std::ldexp(tolerance, static_cast<int>(std::min(doublings, 60u))));
}

void MaxMin::set_tolerance(double tolerance) {
  if (!(tolerance >= 0 && tolerance <= 0.1)) {
    throw std::invalid_argument("a tolerance must be 0 to 0.1");
  }
  tolerance_ = tolerance;
}

uint32_t MaxMin::add_port(double capacity, std::span<const QueueSpec> queues) {
  if (!(capacity > 0)) throw std::invalid_argument("a port's capacity must be over 0");
  if (queues.empty()) throw std::invalid_argument("a port needs a queue");
  const auto id = static_cast<uint32_t>(ports_.size());
  const auto first = static_cast<uint32_t>(queues_.size());
  ports_.push_back({capacity, first, static_cast<uint32_t>(queues.size())});
  queues_.resize(first + queues.size());
  for (uint32_t q = first; q < queues_.size(); ++q) queues_[q].port = id;
  shares_.resize(queues_.size(), kUnlimited);
  set_queues(id, queues);
  return id;
}

void MaxMin::set_queues(uint32_t port, std::span<const QueueSpec> queues) {
  if (port >= ports_.size() || queues.size() != ports_[port].queues) {
    throw std::invalid_argument("a port that is not there, or another number of queues");
  }
  for (const QueueSpec& q : queues) {
    if (!(q.weight >= 0 && q.weight < kUnlimited)) {
      throw std::invalid_argument("a queue's weight must be 0 or more");
    }
  }
  for (size_t i = 0; i < queues.size(); ++i) {
    Queue& queue = queues_[ports_[port].first_queue + i];
    queue.weight = queues[i].weight;
    queue.priority = queues[i].priority;
  }
  if (ports_[port].members > 0) mark(port);
}

uint32_t MaxMin::add_flow(std::span<const Hop> path, double weight, double cap) {
  if (!(weight > 0)) throw std::invalid_argument("a flow's weight must be over 0");
  if (path.empty() && cap == kUnlimited) throw std::invalid_argument("nothing limits the flow");
  for (const Hop& hop : path) {
    if (hop.port >= ports_.size() || hop.queue >= ports_[hop.port].queues) {
      throw std::invalid_argument("a hop names a port or queue that is not there");
    }
  }
  uint32_t id = static_cast<uint32_t>(flows_.size());
  if (free_flows_.empty()) {
    flows_.emplace_back();
  } else {
    id = free_flows_.back();
    free_flows_.pop_back();
  }
  Flow& flow = flows_[id];
  const bool changed = flow.changed;
  flow = {};
  flow.changed = changed;
  flow.live = true;
  flow.weight = weight;
  flow.cap = cap;
  flow.hops = static_cast<uint32_t>(path.size());
  if (free_paths_.size() <= path.size()) free_paths_.resize(path.size() + 1);
  auto& free = free_paths_[path.size()];
  if (free.empty()) {
    flow.first_hop = static_cast<uint32_t>(hops_.size());
    hops_.resize(hops_.size() + path.size());
  } else {
    flow.first_hop = free.back();
    free.pop_back();
  }
  for (uint32_t i = 0; i < flow.hops; ++i) {
    add_member(id, i, ports_[path[i].port].first_queue + path[i].queue);
  }
  flow.least = find_least(flow);
  note_change(id);
  ++live_;
  return id;
}

void MaxMin::remove_flow(uint32_t id) {
  Flow& flow = flows_[id];
  for (uint32_t i = 0; i < flow.hops; ++i) remove_member(hops_[flow.first_hop + i]);
  free_paths_[flow.hops].push_back(flow.first_hop);
  flow.hops = 0;
  flow.rate = 0;
  flow.least = {0, 0, kCap};
  flow.live = false;
  free_flows_.push_back(id);
  --live_;
}

void MaxMin::set_queue(uint32_t id, uint32_t hop, uint32_t queue) {
  Flow& flow = flows_[id];
  if (hop >= flow.hops) throw std::invalid_argument("the flow has no such hop");
  const PathHop before = hops_[flow.first_hop + hop];
  const Port& port = ports_[queues_[before.queue].port];
  if (queue >= port.queues) throw std::invalid_argument("the port has no such queue");
  if (before.queue == port.first_queue + queue) return;
  remove_member(before);
  add_member(id, hop, port.first_queue + queue);
  flow.least = find_least(flow);
  note_change(id);
  // What it could take elsewhere may be another now.
  for (uint32_t i = 0; i < flow.hops; ++i) mark(queues_[hops_[flow.first_hop + i].queue].port);
}

void MaxMin::add_member(uint32_t id, uint32_t hop, uint32_t q) {
  Queue& queue = queues_[q];
  // An empty queue's share is from another time.
  if (queue.members.empty()) shares_[q] = kUnlimited;
  hops_[flows_[id].first_hop + hop] = {q, static_cast<uint32_t>(queue.members.size())};
  queue.members.push_back({id, hop});
  queue.flow_weight += flows_[id].weight;
  Port& port = ports_[queue.port];
  ++port.members;
  ++members_;
  if (port.dirty) ++dirty_members_;
  mark(queue.port);
}

void MaxMin::remove_member(const PathHop& hop) {
  Queue& queue = queues_[hop.queue];
  const Flow& flow = flows_[queue.members[hop.position].flow];
  queue.flow_weight = queue.members.size() == 1 ? 0 : queue.flow_weight - flow.weight;
  const Member last = queue.members.back();
  queue.members[hop.position] = last;
  hops_[flows_[last.flow].first_hop + last.hop].position = hop.position;
  queue.members.pop_back();
  Port& port = ports_[queue.port];
  --port.members;
  --members_;
  if (port.dirty) --dirty_members_;
  mark(queue.port);
}

MaxMin::Least MaxMin::find_least(const Flow& flow) const {
  Least least{flow.cap, kUnlimited, kCap};
  const PathHop* hops = hops_.data() + flow.first_hop;
  for (uint32_t i = 0; i < flow.hops; ++i) {
    const double limit = flow.weight * shares_[hops[i].queue];
    least.second = std::min(least.second, std::max(least.first, limit));
    least.hop = limit < least.first ? i : least.hop;
    least.first = std::min(least.first, limit);
  }
  return least;
}

void MaxMin::mark(uint32_t id) {
  Port& port = ports_[id];
  if (port.dirty) return;
  port.dirty = true;
  dirty_members_ += port.members;
  next_dirty_.push_back(id);
}

void MaxMin::note_change(uint32_t id) {
  if (flows_[id].changed) return;
  flows_[id].changed = true;
  changed_.push_back(id);
}

const std::vector<uint32_t>& MaxMin::solve() {
  if (is_much_dirty() && !sweep(kSweeps)) mark_all();
  solve_ports();
  result_.clear();
  const auto collect = [&](uint32_t id) {
    Flow& flow = flows_[id];
    flow.changed = false;
    if (!flow.live || !differ(flow.rate, flow.least.first, tolerance_)) return;
    flow.rate = flow.least.first;
    result_.push_back(id);
  };
  for (const uint32_t id : changed_) collect(id);
  changed_.clear();
  if (swept_) {
    for (uint32_t id = 0; id < flows_.size(); ++id) collect(id);
  }
  swept_ = false;
  for (const uint32_t port : visited_) {
    if (ports_[port].solutions > kPatience) fit(port);
    ports_[port].solutions = 0;
  }
  visited_.clear();
  return result_;
}

// ---- Sweeps over all flows --------------------------------------------------------------------

// At most `most` of them; whether shares have settled. No port is dirty then.
bool MaxMin::sweep(uint32_t most) {
  swept_ = true;
  for (const uint32_t port : next_dirty_) ports_[port].dirty = false;
  next_dirty_.clear();
  dirty_members_ = 0;
  bool is_settled = false;
  for (uint32_t n = 0; n < most && !is_settled; ++n) {
    tally_flows();
    ++sweeps_;
    is_settled = true;
    for (uint32_t port = 0; port < ports_.size(); ++port) {
      if (ports_[port].members > 0 && step_port(port, n < kUndamped ? 1 : kDamping)) {
        is_settled = false;
      }
    }
  }
  for (Flow& flow : flows_) {
    if (flow.live) flow.least = find_least(flow);
  }
  return is_settled;
}

void MaxMin::mark_all() {
  for (uint32_t port = 0; port < ports_.size(); ++port) {
    if (ports_[port].members > 0) mark(port);
  }
}

const std::vector<uint32_t>& MaxMin::refine() {
  is_refined_ = sweep(kRefinements);
  // Shares that are not settled may promise more than a port has.
  excess_.assign(ports_.size(), 0);
  for (const Flow& flow : flows_) {
    const PathHop* hops = hops_.data() + flow.first_hop;
    for (uint32_t i = 0; i < flow.hops; ++i) {
      excess_[queues_[hops[i].queue].port] += flow.least.first;
    }
  }
  for (uint32_t port = 0; port < ports_.size(); ++port) {
    excess_[port] = std::max(1.0, excess_[port] / ports_[port].capacity);
  }
  result_.clear();
  for (uint32_t id = 0; id < flows_.size(); ++id) {
    Flow& flow = flows_[id];
    flow.changed = false;
    if (!flow.live) continue;
    double excess = 1;
    for_each_port(id, [&](uint32_t port) { excess = std::max(excess, excess_[port]); });
    const double rate = flow.least.first / excess;
    if (!differ(flow.rate, rate, tolerance_)) continue;
    flow.rate = rate;
    result_.push_back(id);
  }
  changed_.clear();
  swept_ = false;
  return result_;
}

void MaxMin::tally_flows() {
  tallies_.assign(queues_.size(), Tally{});
  for (const Flow& flow : flows_) {
    const PathHop* hops = hops_.data() + flow.first_hop;
    const Least least = find_least(flow);
    const double level = least.first / flow.weight;
    for (uint32_t i = 0; i < flow.hops; ++i) {
      Tally& tally = tallies_[hops[i].queue];
      tally.limited += least.first;
      tally.top = std::max(tally.top, level);
    }
    if (least.hop == kCap) continue;
    Tally& tally = tallies_[hops[least.hop].queue];
    tally.limited -= least.first;
    tally.free += least.second;
    tally.free_weight += flow.weight;
    tally.top = std::max(tally.top, least.second / flow.weight);
  }
}

// One step of the shares of a port towards its solution; whether one of them changes.
bool MaxMin::step_port(uint32_t id, double part) {
  const Port& port = ports_[id];
  ++port_solutions_;
  claims_.clear();
  for (uint32_t q = port.first_queue; q < port.first_queue + port.queues; ++q) {
    if (queues_[q].members.empty()) continue;
    const double wanted = tallies_[q].limited + tallies_[q].free;
    claims_.push_back({wanted, queues_[q].weight, queues_[q].priority, q});
  }
  divide_capacity(port);
  bool changes = false;
  for (const Claim& claim : claims_) {
    double& share = shares_[claim.queue];
    const double next = find_step(claim.queue, claim.supply);
    if (!differ(share, next, std::max(kRounding, tolerance_))) continue;
    // A share above what all flows could take limits none, before and after.
    changes |= std::min(share, next) < tallies_[claim.queue].top;
    share = share < kUnlimited ? share + part * (next - share) : next;
  }
  return changes;
}

// Newton's step for the share: the sum of min(e, u s) is concave and grows with s, so that a step
// ends at the solution or below it; S over all weights is below it too.
double MaxMin::find_step(uint32_t q, double supply) const {
  const Tally& tally = tallies_[q];
  const double least = supply / queues_[q].flow_weight;
  if (tally.free_weight > 0) {
    return std::max(least, (supply - tally.limited) / tally.free_weight);
  }
  if (shares_[q] == kUnlimited) return least;
  // The queue limits no flow: the largest, of about mean weight, could have what is left, and
  // bears what is missing.
  const double weight = queues_[q].flow_weight / static_cast<double>(queues_[q].members.size());
  return std::max(least, tally.top + (supply - tally.limited) / weight);
}

// ---- Port by port -----------------------------------------------------------------------------

void MaxMin::solve_ports() {
  while (!next_dirty_.empty()) {
    dirty_.swap(next_dirty_);
    next_dirty_.clear();
    for (const uint32_t port : dirty_) {
      ports_[port].dirty = false;
      dirty_members_ -= ports_[port].members;
      if (ports_[port].solutions == 0) visited_.push_back(port);
      solve_port(port);
    }
  }
}

void MaxMin::solve_port(uint32_t id) {
  Port& port = ports_[id];
  ++port_solutions_;
  ++port.solutions;
  if (port.members == 0) return;
  claims_.clear();
  demands_.clear();
  for (uint32_t q = port.first_queue; q < port.first_queue + port.queues; ++q) {
    const Queue& queue = queues_[q];
    if (queue.members.empty()) continue;
    const size_t first = demands_.size();
    claims_.push_back({gather(queue), queue.weight, queue.priority, q, first});
  }
  divide_capacity(port);
  const std::span<const Demand> demands = demands_;
  for (const Claim& claim : claims_) {
    const auto members = demands.subspan(claim.first_demand, queues_[claim.queue].members.size());
    set_share(claim.queue, divide(members, claim.supply, shares_[claim.queue]));
  }
}

// Gives each claim its supply, S(q).
void MaxMin::divide_capacity(const Port& port) {
  if (port.queues == 1) {
    claims_[0].supply = port.capacity;
    return;
  }
  // By priority, and within one by D(q)/w(q): in this order queues get all they want.
  std::sort(claims_.begin(), claims_.end(), [](const Claim& a, const Claim& b) {
    return a.priority != b.priority ? a.priority < b.priority : a.level < b.level;
  });
  const std::span<Claim> claims = claims_;
  double left = port.capacity;
  for (size_t first = 0, end = 0; first < claims.size(); first = end) {
    while (end < claims.size() && claims[end].priority == claims[first].priority) ++end;
    divide_priority(claims.subspan(first, end - first), left);
  }
}

void MaxMin::divide_priority(std::span<Claim> claims, double& left) {
  double weight = 0, wanted = 0;
  for (const Claim& claim : claims) {
    weight += claim.weight;
    if (claim.weight > 0) wanted += claim.wanted;
  }
  // The t of one claim, if its own demand counts as unlimited.
  const auto fill = [&](size_t own) {
    double rest = left, unsatisfied = weight;
    for (size_t i = 0; i < claims.size(); ++i) {
      if (i == own || claims[i].weight == 0) continue;
      if (claims[i].wanted * unsatisfied >= claims[i].weight * rest) break;
      rest -= claims[i].wanted;
      unsatisfied = std::max(unsatisfied - claims[i].weight, claims[own].weight);
    }
    return std::max(0.0, rest) / unsatisfied;
  };
  double common = -1;  // the t of all claims that are not satisfied
  for (size_t i = 0; i < claims.size(); ++i) {
    Claim& claim = claims[i];
    if (claim.weight == 0) {
      claim.supply = 0;
      continue;
    }
    const double t = common >= 0 ? common : fill(i);
    claim.supply = claim.weight * t;
    // Its demand is above its supply, and so are those of all that come after it.
    if (common < 0 && claim.wanted >= claim.supply) common = t;
  }
  left = std::max(0.0, left - wanted);
}

// Notes what the flows of a queue could take, were it not for the queue. Returns their sum.
double MaxMin::gather(const Queue& queue) {
  const size_t first = demands_.size();
  double sum = 0;
  size_t largest = first;
  for (const Member& member : queue.members) {
    const Flow& flow = flows_[member.flow];
    const double limit = flow.least.elsewhere(member.hop);
    sum += limit;
    demands_.push_back({limit, flow.weight, limit / flow.weight});
    if (demands_.back().level > demands_[largest].level) largest = demands_.size() - 1;
  }
  demands_[largest].level = kUnlimited;
  return sum;
}

// The share at which the flows fill `supply`: Newton's steps, from below after the first.
double MaxMin::divide(std::span<const Demand> demands, double supply, double share) {
  bool is_first = true;
  for (size_t limited = SIZE_MAX;;) {
    double left = supply, weight = 0, total = 0;
    size_t count = 0;
    for (const Demand& demand : demands) {
      total += demand.weight;
      if (demand.level < share) {
        left -= demand.limit;
        ++count;
      } else {
        weight += demand.weight;
      }
    }
    const double next = weight > 0 ? left / weight : 0;
    if (is_first) {
      share = std::max(supply / total, next);
      is_first = false;
      continue;
    }
    if (count == limited) return share;
    limited = count;
    share = std::max(share, next);
  }
}

void MaxMin::set_share(uint32_t q, double share) {
  const Port& port = ports_[queues_[q].port];
  const double before = shares_[q];
  const double tolerance = find_tolerance(port);
  const bool is_starved = share <= kRounding * port.capacity;
  if (port.solutions > kPatience && before < kUnlimited && !is_starved) {
    // Relative to the port as well: shares may oscillate about 0.
    const double scale = std::max({share, before, port.capacity * tolerance});
    if (std::abs(share - before) <= tolerance * scale) {
      share = before;
    } else {
      const uint32_t late = std::max(port.solutions, kStubborn) - kStubborn;
      share = before + (share - before) / (2 + late / 128.0);
      mark(queues_[q].port);  // not there yet
    }
  } else if (!differ(share, before, tolerance)) {
    share = before;
  }
  if (share == before) return;
  shares_[q] = share;
  pass_on(q);
}

// A new share limits the flows of its queue; ports that see another e are dirty.
void MaxMin::pass_on(uint32_t q) {
  for (const Member& member : queues_[q].members) {
    Flow& flow = flows_[member.flow];
    const PathHop* hops = &hops_[flow.first_hop];
    const Least before = flow.least;
    flow.least = find_least(flow);
    if (flow.least.first != before.first) note_change(member.flow);
    for (uint32_t i = 0; i < flow.hops; ++i) {
      const double old_limit = before.elsewhere(i), new_limit = flow.least.elsewhere(i);
      if (i == member.hop || old_limit == new_limit) continue;
      const double here = flow.weight * shares_[hops[i].queue];
      if (std::min(old_limit, new_limit) < here) mark(queues_[hops[i].queue].port);
    }
  }
}

// Slows the flows of a port that did not settle, so that it is not above its capacity.
void MaxMin::fit(uint32_t id) {
  const Port& port = ports_[id];
  double load = 0;
  const auto visit = [&](auto&& act) {
    for (uint32_t q = port.first_queue; q < port.first_queue + port.queues; ++q) {
      for (const Member& member : queues_[q].members) act(member.flow);
    }
  };
  visit([&](uint32_t flow) { load += flows_[flow].rate; });
  if (load <= port.capacity * (1 + std::max(kRounding, tolerance_))) return;
  visit([&](uint32_t flow) {
    flows_[flow].rate *= port.capacity / load;
    result_.push_back(flow);
  });
}

}  // namespace weft::flow
