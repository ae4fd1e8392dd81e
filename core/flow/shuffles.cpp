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
  most_ = capacity_.empty() ? 0 : *std::ranges::max_element(capacity_);
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
  empty_lanes();
  place_by_job();
  changed_ = true;
}

void Shuffles::empty_lanes() {
  share_.resize(ports_ * lanes_);
  for (size_t lane = 0; lane < share_.size(); ++lane) share_[lane] = capacity_[lane / lanes_];
  tally_.assign(share_.size(), {});
  busy_.clear();
}

void Shuffles::order_flows(std::vector<double> cutoffs) {
  if (cutoffs.empty() || cutoffs.size() >= kMostLanes || !std::ranges::is_sorted(cutoffs)) {
    throw std::invalid_argument("1 to 63 ascending cutoffs");
  }
  cutoffs_ = std::move(cutoffs);
  table_.strict = table_.lending = true;
  lanes_ = static_cast<uint32_t>(cutoffs_.size()) + 1;
  empty_lanes();
  std::ranges::fill(flow_lane_, kMostLanes);
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
  count_flows();
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

void Shuffles::place_by_job() {
  lane_at_.resize(path_.size());
  for (uint32_t flow = 0; flow < job_of_.size(); ++flow) {
    const uint8_t* lane = &table_.lane[job_of_[flow] * ports_];
    for (uint64_t h = path_start_[flow]; h < path_start_[flow + 1]; ++h) {
      lane_at_[h] = path_[h] * lanes_ + lane[path_[h]];
    }
  }
}

void Shuffles::place_by_size() {
  for (const uint32_t flow : active_) {
    const auto above = std::ranges::lower_bound(cutoffs_, left_[flow]);
    const auto lane = static_cast<uint8_t>(above - cutoffs_.begin());
    if (lane == flow_lane_[flow]) continue;
    flow_lane_[flow] = lane;
    for (uint64_t h = path_start_[flow]; h < path_start_[flow + 1]; ++h) {
      lane_at_[h] = path_[h] * lanes_ + lane;
    }
  }
}

// Which lanes have flows that send, and how many.
void Shuffles::count_flows() {
  for (const uint32_t lane : busy_) tally_[lane].count = 0;
  for (const uint32_t flow : active_) {
    for (uint64_t h = path_start_[flow]; h < path_start_[flow + 1]; ++h)
      ++tally_[lane_at_[h]].count;
  }
  busy_.clear();
  busy_ports_.clear();
  for (const uint32_t port : used_) {
    const size_t before = busy_.size();
    for (uint32_t lane = port * lanes_; lane < (port + 1) * lanes_; ++lane) {
      if (tally_[lane].count > 0) {
        busy_.push_back(lane);
      } else {
        share_[lane] = capacity_[port];  // that of flows to come
      }
    }
    if (busy_.size() > before) busy_ports_.emplace_back(port, busy_.size());
  }
}

// Sets rates by the shares, and sums what flows could take elsewhere. Returns the relative change.
double Shuffles::gather() {
  for (const uint32_t lane : busy_) tally_[lane] = {0, 0, 0, 0, tally_[lane].count};
  double sum = 0, change = 0;
  for (const uint32_t flow : active_) {
    const uint64_t begin = path_start_[flow];
    const auto hops = static_cast<uint32_t>(path_start_[flow + 1] - begin);
    const uint32_t* lane = &lane_at_[begin];
    double first = kNever, second = most_;
    uint32_t at = 0;
    for (uint32_t h = 0; h < hops; ++h) {
      const double share = share_[lane[h]];
      second = std::min(second, std::max(first, share));
      at = share < first ? h : at;
      first = std::min(first, share);
    }
    for (uint32_t h = 0; h < hops; ++h) {
      Tally& tally = tally_[lane[h]];
      tally.limited += first;
      tally.largest = std::max(tally.largest, first);
    }
    // The lane that limits the flow is among them.
    Tally& tally = tally_[lane[at]];
    tally.limited -= first;
    tally.free += second;
    tally.largest = std::max(tally.largest, second);
    ++tally.free_count;
    sum += first;
    change += std::abs(first - rate_[flow]);
    rate_[flow] = first;
  }
  return sum > 0 ? change / sum : 0;
}

void Shuffles::share_ports() {
  size_t begin = 0;
  for (const auto& [port, end] : busy_ports_) {
    const std::span<uint32_t> lanes(&busy_[begin], end - begin);
    begin = end;
    if (!table_.lending) {
      for (const uint32_t lane : lanes) set_share(lane, capacity_[port] * table_.weight[lane]);
    } else if (table_.strict) {
      share_in_order(capacity_[port], lanes);
    } else {
      share_by_weight(capacity_[port], lanes);
    }
  }
}

// The share at which the flows of the lane fill the supply, by a step from the last one.
void Shuffles::set_share(uint32_t lane, double supply) {
  const Tally& tally = tally_[lane];
  double share = supply / tally.count;
  if (tally.free_count > 0 && supply > tally.limited) {
    share = (supply - tally.limited) / tally.free_count;
  } else if (supply >= tally.wanted()) {
    share = tally.largest + (supply - tally.wanted());  // the largest flow could take the rest
  }
  // More than the port has limits nothing, and must not look like something to give elsewhere.
  share = std::min(share, capacity_[lane / lanes_]);
  share_[lane] += step_ * (share - share_[lane]);
}

void Shuffles::share_in_order(double capacity, std::span<const uint32_t> lanes) {
  for (const uint32_t lane : lanes) {
    set_share(lane, capacity);
    capacity = std::max(0.0, capacity - tally_[lane].wanted());
  }
}

void Shuffles::share_by_weight(double capacity, std::span<uint32_t> lanes) {
  if (lanes.size() == 1) return set_share(lanes[0], capacity);
  const auto find_level = [&](uint32_t lane) {
    return tally_[lane].wanted() / table_.weight[lane];
  };
  std::ranges::sort(lanes, {}, find_level);
  double weight = 0;
  for (const uint32_t lane : lanes) weight += table_.weight[lane];
  // With q always hungry, w(q) t + sum of min(D, w t) of the others = C. Every k, the first k of
  // the others at D and the rest at w t, gives a t that is no larger than the solution.
  for (const uint32_t lane : lanes) {
    double left = capacity, rest = weight, t = left / rest;
    for (const uint32_t other : lanes) {
      if (other == lane) continue;
      left -= tally_[other].wanted();
      rest -= table_.weight[other];
      t = std::max(t, left / rest);
    }
    set_share(lane, table_.weight[lane] * t);
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
