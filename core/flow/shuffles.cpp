#include "flow/shuffles.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

namespace weft::flow {

namespace {

constexpr uint32_t kMostLanes = 64, kMostHops = 16;
constexpr double kRounding = 1e-9;  // of a flow's bytes: less is left over by rounding

}  // namespace

Shuffles::Shuffles(std::vector<double> capacity, std::vector<uint64_t> path_start,
                   std::vector<uint32_t> path, std::vector<ShuffleJob> jobs, double batch,
                   double tolerance)
    : capacity_(std::move(capacity)),
      path_start_(std::move(path_start)),
      path_(std::move(path)),
      jobs_(std::move(jobs)),
      batch_(batch),
      tolerance_(tolerance),
      ports_(capacity_.size()) {
  if (path_start_.empty() || path_start_.back() != path_.size()) {
    throw std::invalid_argument("paths do not end where the ports do");
  }
  for (const double rate : capacity_) {
    if (!(rate > 0)) throw std::invalid_argument("a port's capacity must be over 0");
  }
  const size_t flows = path_start_.size() - 1;
  for (size_t f = 0; f < flows; ++f) {
    if (path_start_[f] >= path_start_[f + 1] || path_start_[f + 1] - path_start_[f] > kMostHops) {
      throw std::invalid_argument("a flow passes 1 to 16 ports");
    }
  }
  std::vector<uint8_t> is_used(ports_);
  for (const uint32_t port : path_) {
    if (port >= ports_) throw std::invalid_argument("a path names a port that is not there");
    is_used[port] = 1;
  }
  for (uint32_t port = 0; port < ports_; ++port) {
    if (is_used[port]) used_.push_back(port);
  }
  job_of_.resize(flows);
  for (uint32_t j = 0; j < jobs_.size(); ++j) {
    const ShuffleJob& job = jobs_[j];
    if (size_t{job.first_flow} + job.flows > flows || job.stages.empty() || job.loops == 0) {
      throw std::invalid_argument("a job needs stages, loops and flows that are there");
    }
    std::fill_n(job_of_.begin() + job.first_flow, job.flows, j);
  }
  flow_lane_.resize(flows);
  left_.resize(flows);
  rate_.resize(flows);
  load_.resize(ports_);
  states_.resize(jobs_.size());
  finished_.assign(jobs_.size(), kNever);
  program({1, std::vector<uint8_t>(jobs_.size() * ports_), std::vector<double>(ports_, 1)});
}

void Shuffles::program(LaneTable table) {
  if (table.lanes < 1 || table.lanes > kMostLanes) {
    throw std::invalid_argument("a port has 1 to 64 lanes");
  }
  if (table.lane.size() != jobs_.size() * ports_ || table.weight.size() != ports_ * table.lanes) {
    throw std::invalid_argument("a lane for each job and a weight for each lane of each port");
  }
  for (const uint8_t lane : table.lane) {
    if (lane >= table.lanes) throw std::invalid_argument("a lane that is not there");
  }
  for (const double weight : table.weight) {
    if (!(weight > 0)) throw std::invalid_argument("a lane's weight must be over 0");
  }
  table_ = std::move(table);
  cutoffs_.clear();
  lanes_ = table_.lanes;
  queue_.assign(ports_ * lanes_, {kNever, 0, 0, 0, 0, 0});
  changed_ = true;
}

void Shuffles::order_flows(std::vector<double> cutoffs) {
  if (cutoffs.empty() || cutoffs.size() >= kMostLanes || !std::ranges::is_sorted(cutoffs)) {
    throw std::invalid_argument("1 to 63 ascending cutoffs");
  }
  cutoffs_ = std::move(cutoffs);
  table_.strict = table_.lending = true;
  lanes_ = static_cast<uint32_t>(cutoffs_.size()) + 1;
  queue_.assign(ports_ * lanes_, {kNever, 0, 0, 0, 0, 0});
  changed_ = true;
}

std::vector<uint8_t> Shuffles::sending() const {
  std::vector<uint8_t> is_sending;
  for (const State& state : states_) is_sending.push_back(state.active > 0);
  return is_sending;
}

std::vector<uint8_t> Shuffles::present() const {
  std::vector<uint8_t> is_present;
  for (size_t j = 0; j < jobs_.size(); ++j) {
    is_present.push_back(states_[j].begun && finished_[j] == kNever);
  }
  return is_present;
}

std::vector<double> Shuffles::left_at_ports() const {
  std::vector<double> bytes(jobs_.size() * ports_);
  for (const uint32_t flow : active_) {
    double* row = &bytes[job_of_[flow] * ports_];
    for (uint64_t h = path_start_[flow]; h < path_start_[flow + 1]; ++h)
      row[path_[h]] += left_[flow];
  }
  return bytes;
}

std::vector<double> Shuffles::rates() {
  solve();
  return rate_;
}

// ---- Jobs --------------------------------------------------------------------------------------

void Shuffles::send(uint32_t j, double bytes) {
  const ShuffleJob& job = jobs_[j];
  if (bytes <= 0 || job.flows == 0) return;
  if (states_[j].active == 0) sends_changed_ = true;
  for (uint32_t flow = job.first_flow; flow < job.first_flow + job.flows; ++flow) {
    if (left_[flow] == 0) {
      active_.push_back(flow);
      ++states_[j].active;
    }
    left_[flow] += bytes;
  }
  changed_ = true;
}

void Shuffles::begin_stage(uint32_t j) {
  State& state = states_[j];
  const ShuffleStage& stage = jobs_[j].stages[state.stage];
  state.is_computed = false;
  state.computed = now_ + stage.compute_s;
  send(j, stage.early_bytes);
  if (stage.compute_s <= 0) end_compute(j);
}

void Shuffles::end_compute(uint32_t j) {
  State& state = states_[j];
  state.is_computed = true;
  state.computed = kNever;
  send(j, jobs_[j].stages[state.stage].late_bytes);
}

// Stages that are done make way for the next; a stage of nothing is done at once.
void Shuffles::end_stages() {
  for (uint32_t j = 0; j < jobs_.size(); ++j) {
    State& state = states_[j];
    while (state.begun && finished_[j] == kNever && state.is_computed && state.active == 0) {
      if (++state.stage == jobs_[j].stages.size()) {
        state.stage = 0;
        ++state.loop;
      }
      if (state.loop == jobs_[j].loops) {
        finished_[j] = now_;
        paused_ = true;
      } else {
        begin_stage(j);
      }
    }
  }
}

bool Shuffles::run(bool at_sends) {
  for (;;) {
    paused_ = sends_changed_ = false;
    for (uint32_t j = 0; j < jobs_.size(); ++j) {
      State& state = states_[j];
      if (!state.begun && jobs_[j].start_s <= now_) {
        state.begun = paused_ = true;
        begin_stage(j);
      } else if (state.begun && state.computed <= now_) {
        end_compute(j);
      }
    }
    end_stages();
    if (std::ranges::all_of(finished_, [](double end) { return end < kNever; })) return false;
    if (paused_ || (at_sends && sends_changed_)) return true;
    const double next = find_next();
    if (changed_) solve();
    advance(next);
    if (at_sends && sends_changed_) {
      end_stages();
      return std::ranges::any_of(finished_, [](double end) { return end == kNever; });
    }
  }
}

// When the next job begins or has computed.
double Shuffles::find_next() const {
  double next = kNever;
  for (uint32_t j = 0; j < jobs_.size(); ++j) {
    next = std::min(next, states_[j].begun ? states_[j].computed : jobs_[j].start_s);
  }
  return next;
}

// Moves on to `until`, or to the first of: a job has nothing left to send; enough flows have ended.
void Shuffles::advance(double until) {
  std::vector<double> ends(active_.size()), last(jobs_.size(), 0);
  for (size_t i = 0; i < active_.size(); ++i) {
    const uint32_t flow = active_[i];
    ends[i] = rate_[flow] > 0 ? left_[flow] / rate_[flow] : kNever;
    last[job_of_[flow]] = std::max(last[job_of_[flow]], ends[i]);
  }
  double step = until - now_;
  for (uint32_t j = 0; j < jobs_.size(); ++j) {
    if (states_[j].active > 0) step = std::min(step, last[j]);
  }
  if (!ends.empty()) {
    const auto part = static_cast<size_t>(batch_ * static_cast<double>(ends.size()));
    std::vector<double> sorted = ends;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(part), sorted.end());
    step = std::min(step, sorted[part]);
  }
  if (step == kNever) throw std::runtime_error("flows that can never send");
  now_ = step == until - now_ ? until : now_ + step;
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    const uint32_t flow = active_[i];
    if (ends[i] > step * (1 + kRounding)) {
      left_[flow] -= rate_[flow] * step;
      active_[kept++] = flow;
      continue;
    }
    left_[flow] = rate_[flow] = 0;
    if (--states_[job_of_[flow]].active == 0) sends_changed_ = true;
  }
  if (kept < active_.size() || !cutoffs_.empty()) changed_ = true;
  active_.resize(kept);
}

// ---- Rates -------------------------------------------------------------------------------------

void Shuffles::solve() {
  changed_ = false;
  ++solutions_;
  if (!cutoffs_.empty()) place_by_size();
  // Rates can stand still for a pass while shares elsewhere still move.
  for (int pass = 0, settled = 0; pass < kMostPasses; ++pass) {
    ++passes_;
    settled = gather() <= tolerance_ ? settled + 1 : 0;
    if (pass > 0 && settled >= 2) break;
    step_ = pass < kUndamped ? 1 : 0.5;
    share_ports();
  }
  scale_down();
}

void Shuffles::place_by_size() {
  for (const uint32_t flow : active_) {
    const auto above = std::ranges::lower_bound(cutoffs_, left_[flow]);
    flow_lane_[flow] = static_cast<uint8_t>(above - cutoffs_.begin());
  }
}

// Sets rates by the shares, and sums what flows could take elsewhere. Returns the relative change.
double Shuffles::gather() {
  for (const uint32_t port : used_) {
    for (uint32_t q = port * lanes_; q < (port + 1) * lanes_; ++q) {
      Lane& lane = queue_[q];
      // An empty lane's share is from another time.
      if (lane.count == 0) lane.share = capacity_[port];
      lane.wanted = lane.limited = lane.largest = 0;
      lane.count = lane.limited_count = 0;
    }
  }
  double sum = 0, change = 0;
  std::array<uint32_t, kMostHops> queues;
  for (const uint32_t flow : active_) {
    const uint64_t begin = path_start_[flow];
    const auto hops = static_cast<uint32_t>(path_start_[flow + 1] - begin);
    double first = kNever, second = kNever;
    uint32_t at = hops;
    for (uint32_t h = 0; h < hops; ++h) {
      queues[h] = lane_at(flow, path_[begin + h]);
      const double share = queue_[queues[h]].share;
      if (share < first) {
        second = first;
        first = share;
        at = h;
      } else if (share < second) {
        second = share;
      }
    }
    for (uint32_t h = 0; h < hops; ++h) {
      Lane& lane = queue_[queues[h]];
      const double elsewhere = std::min(h == at ? second : first, capacity_[path_[begin + h]]);
      lane.wanted += elsewhere;
      ++lane.count;
      lane.largest = std::max(lane.largest, elsewhere);
      if (elsewhere < lane.share) {
        lane.limited += elsewhere;
        ++lane.limited_count;
      }
    }
    sum += first;
    change += std::abs(first - rate_[flow]);
    rate_[flow] = first;
  }
  return sum > 0 ? change / sum : 0;
}

void Shuffles::share_ports() {
  for (const uint32_t port : used_) {
    if (!table_.lending) {
      share_fixed(port);
    } else if (table_.strict) {
      share_in_order(port);
    } else {
      share_by_weight(port);
    }
  }
}

// The share at which the flows of the lane fill the supply, by a step from the last one.
void Shuffles::set_share(Lane& lane, double supply) const {
  double share = supply / lane.count;
  if (lane.count > lane.limited_count && supply > lane.limited) {
    share = (supply - lane.limited) / (lane.count - lane.limited_count);
  } else if (supply >= lane.wanted) {
    share = lane.largest + (supply - lane.wanted);  // the largest flow could take the rest
  }
  lane.share += step_ * (share - lane.share);
}

void Shuffles::share_fixed(uint32_t port) {
  for (uint32_t q = port * lanes_; q < (port + 1) * lanes_; ++q) {
    if (queue_[q].count > 0) set_share(queue_[q], capacity_[port] * table_.weight[q]);
  }
}

void Shuffles::share_in_order(uint32_t port) {
  double left = capacity_[port];
  for (uint32_t q = port * lanes_; q < (port + 1) * lanes_; ++q) {
    if (queue_[q].count == 0) continue;
    set_share(queue_[q], left);
    left = std::max(0.0, left - queue_[q].wanted);
  }
}

void Shuffles::share_by_weight(uint32_t port) {
  std::array<uint32_t, kMostLanes> present;
  size_t count = 0;
  double weight = 0;
  const double* weights = &table_.weight[size_t{port} * lanes_];
  Lane* lanes = &queue_[size_t{port} * lanes_];
  for (uint32_t q = 0; q < lanes_; ++q) {
    if (lanes[q].count == 0) continue;
    present[count++] = q;
    weight += weights[q];
  }
  if (count == 1) return set_share(lanes[present[0]], capacity_[port]);
  std::sort(present.begin(), present.begin() + static_cast<ptrdiff_t>(count),
            [&](uint32_t a, uint32_t b) {
              return lanes[a].wanted * weights[b] < lanes[b].wanted * weights[a];
            });
  // With q always hungry, w(q) t + sum of min(D, w t) of the others = C. Every k, the first k of
  // the others at D and the rest at w t, gives a t that is no larger than the solution.
  for (size_t i = 0; i < count; ++i) {
    double left = capacity_[port], rest = weight, t = left / rest;
    for (size_t k = 0; k < count; ++k) {
      if (k == i) continue;
      left -= lanes[present[k]].wanted;
      rest -= weights[present[k]];
      t = std::max(t, left / rest);
    }
    set_share(lanes[present[i]], weights[present[i]] * t);
  }
}

// What has not quite settled must not overload a port.
void Shuffles::scale_down() {
  for (const uint32_t port : used_) load_[port] = 0;
  for (const uint32_t flow : active_) {
    for (uint64_t h = path_start_[flow]; h < path_start_[flow + 1]; ++h) {
      load_[path_[h]] += rate_[flow];
    }
  }
  for (const uint32_t flow : active_) {
    double over = 1;
    for (uint64_t h = path_start_[flow]; h < path_start_[flow + 1]; ++h) {
      over = std::max(over, load_[path_[h]] / capacity_[path_[h]]);
    }
    rate_[flow] /= over;
  }
}

}  // namespace weft::flow
