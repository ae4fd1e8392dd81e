#include "packet/simulation.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <latch>
#include <optional>
#include <stdexcept>
#include <thread>

#include "base/barrier.hpp"
#include "packet/event_loop.hpp"
#include "packet/partitioning.hpp"
#include "packet/placed_workload.hpp"
#include "packet/random_streams.hpp"

namespace weft::packet {

Simulation::Simulation(const NetworkSpec& network, std::vector<FlowSpec> flows, const RunSpec& run,
                       std::shared_ptr<const WorkloadSpec> workload)
    : run_(run),
      switch_(network.switches),
      credit_(network.credits),
      adapter_(network.adapter),
      lanes_(network.lanes),
      memory_(2 * network.cables.size() < kHugeLinks ? std::pmr::new_delete_resource()
                                                     : &huge_pages_),
      is_switch_(network.is_switch) {
  const auto ps_per_byte = [](double bps) { return bps > 0 ? 8e12 / bps : 0; };
  fetch_ps_per_byte_ = ps_per_byte(adapter_.pcie_read_bps);
  store_ps_per_byte_ = ps_per_byte(adapter_.pcie_write_bps);
  loopback_ps_per_byte_ = ps_per_byte(adapter_.loopback_bps);
  build_links(network);
  build_routes(network);
  build_lanes(network);
  build_lane_maps(network);
  build_flows(std::move(flows));
  build_partitions(network);
  for (uint32_t i = 0; i < flows_.size(); ++i) {
    if (flows_[i].owner == kNone) start(i);
  }
  if (workload) place(std::move(workload));
  for (const auto& partition : partitions_) partition->schedule_end(run_.duration + 1);
  done_ = run_.stop_when_done && !endless_ && unfinished_ == 0;
  if (run_.sample_interval > 0) next_sample_ = 0;
  if (partitions_.size() > 1) return;
  if (done_) partitions_[0]->schedule_end(0);
  if (run_.sample_interval > 0) partitions_[0]->schedule_sample(0);
  if (run_.skip_steady) partitions_[0]->skip_steady();
}

// A few events per bucket: packet times divided by the links that may each have one.
int Simulation::event_width_log2(uint32_t partition) const {
  const auto here = [&](const Link& link) { return link.from_part == partition; };
  const auto links = std::count_if(links_.begin(), links_.end(), here);
  const double packet_ps = links_.empty() ? 1e6 : static_cast<double>(links_[0].ser(4096));
  const double spacing = packet_ps / static_cast<double>(std::max<int64_t>(links, 1));
  const int events_log2 = lookahead_ == kNever ? 3 : 6;  // of a large fabric: some to look ahead
  return std::clamp(static_cast<int>(std::log2(std::max(spacing, 1.0))) + events_log2, 7, 16);
}

void Simulation::build_links(const NetworkSpec& network) {
  const size_t nodes = is_switch_.size();
  index_.resize(nodes);
  port_base_.resize(nodes + 1, 0);
  std::vector<uint32_t> ports(nodes, 0);
  for (const Cable& c : network.cables) {
    ports[c.a] = std::max(ports[c.a], c.a_port);
    ports[c.b] = std::max(ports[c.b], c.b_port);
  }
  uint32_t switches = 0;
  for (uint32_t n = 0; n < nodes; ++n) {
    port_base_[n + 1] = port_base_[n] + ports[n];
    if (is_switch_[n]) {
      index_[n] = switches++;
      max_ports_ = std::max(max_ports_, ports[n]);
    } else {
      index_[n] = hosts_++;
      host_node_.push_back(n);
    }
  }
  in_link_.assign(port_base_[nodes], kNone);
  out_link_.assign(port_base_[nodes], kNone);
  host_link_.assign(hosts_, kNone);
  const auto add = [&](uint32_t a, uint32_t a_port, uint32_t b, uint32_t b_port, const Cable& c) {
    Link link;
    link.delay = c.delay;
    link.ps_per_byte_q24 = static_cast<uint64_t>(std::llround(8e12 / c.rate_bps * (1 << 24)));
    link.from = a;
    link.to = b;
    link.port = a_port;
    link.to_in = b_port - 1;
    if (!is_switch_[a]) link.host = index_[a];
    link.from_switch = is_switch_[a];
    link.to_switch = is_switch_[b];
    const auto id = static_cast<uint32_t>(links_.size());
    out_link_[port_base_[a] + a_port - 1] = id;
    in_link_[port_base_[b] + b_port - 1] = id;
    if (!is_switch_[a]) host_link_[index_[a]] = id;
    links_.push_back(link);
  };
  links_.reserve(2 * network.cables.size());
  for (const Cable& c : network.cables) {
    add(c.a, c.a_port, c.b, c.b_port, c);
    add(c.b, c.b_port, c.a, c.a_port, c);
  }
}

void Simulation::build_routes(const NetworkSpec& network) {
  group_start_ = network.group_start;
  group_ports_ = network.group_ports;
  const size_t groups = group_start_.empty() ? 0 : group_start_.size() - 1;
  if (groups >= kNoRouteWide) throw std::invalid_argument("more than 65534 distinct routes");
  // 65535 (no route) becomes the largest value of either type.
  if (groups < kNoRoute) {
    next_hop_.assign(network.next_hop.begin(), network.next_hop.end());
  } else {
    next_hop_wide_.assign(network.next_hop.begin(), network.next_hop.end());
  }
}

void Simulation::build_lanes(const NetworkSpec& network) {
  const size_t lanes = links_.size() * lanes_;
  out_.resize(lanes);
  in_.resize(lanes);
  marked_.assign(lanes, 0);
  send_.resize(size_t{hosts_} * lanes_);
  adapters_.resize(hosts_);
  granting_.resize(adapter_.grants.enabled ? hosts_ : 0);
  if (switch_.virtual_output_queues) virtual_queues_.resize(lanes * max_ports_);
  feeding_.assign(links_.size(), 0);
  arbiters_.resize(links_.size());
  lane_bits_ = static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(lanes_ - 1)));
  words_ = ((max_ports_ << lane_bits_) + 63) / 64;
  waiting_.assign(lanes * words_, 0);
  for (size_t i = 0; i < lanes; ++i) {
    const bool to_switch = links_[i / lanes_].to_switch;
    const int64_t bytes = to_switch ? credit_.switch_buffer_bytes : credit_.host_buffer_bytes;
    in_[i].capacity = static_cast<int>(bytes / kBlock);
  }
  for (const BufferOverride& o : network.buffer_overrides) {
    const uint32_t link = in_link_[port_base_[o.node] + o.port - 1];
    for (int vl = 0; link != kNone && vl < lanes_; ++vl) {
      if (o.vl < 0 || o.vl == vl) in_lane(link, vl).capacity = static_cast<int>(o.bytes / kBlock);
    }
  }
  for (size_t i = 0; i < lanes; ++i) out_[i].credits.init(in_[i].capacity);
  tables_.emplace_back(network.arbitration);
  for (const ArbOverride& o : network.arbitration_overrides) tables_.emplace_back(o.tables);
  tables_of_.assign(links_.size(), &tables_[0]);
  for (size_t i = 0; i < network.arbitration_overrides.size(); ++i) {
    const ArbOverride& o = network.arbitration_overrides[i];
    const uint32_t link = out_link_[port_base_[o.node] + o.port - 1];
    if (link != kNone) tables_of_[link] = &tables_[i + 1];
  }
}

void Simulation::set_arbitration(uint32_t node, uint32_t port, const ArbTables& tables) {
  const bool is_there =
      node < is_switch_.size() && port > 0 && port_base_[node] + port <= port_base_[node + 1];
  const uint32_t link = is_there ? out_link_[port_base_[node] + port - 1] : kNone;
  if (link == kNone) throw std::invalid_argument("no such port");
  tables_of_[link] = &tables_.emplace_back(tables);
  arbiters_[link] = {};
}

// One map per pair of ports, for nodes that have any of their own; a later override wins.
void Simulation::build_lane_maps(const NetworkSpec& network) {
  lane_maps_ = {network.sl2vl};
  if (network.sl2vl_overrides.empty()) return;
  lane_map_base_.assign(is_switch_.size(), kNone);
  for (const Sl2VlOverride& o : network.sl2vl_overrides) {
    const uint32_t ports = port_base_[o.node + 1] - port_base_[o.node];
    uint32_t& base = lane_map_base_[o.node];
    if (base == kNone) {
      base = static_cast<uint32_t>(lane_map_.size());
      lane_map_.resize(lane_map_.size() + size_t{ports + 1} * ports, 0);
    }
    const auto map = static_cast<uint32_t>(lane_maps_.size());
    lane_maps_.push_back(o.map);
    for (uint32_t in = 0; in <= ports; ++in) {
      for (uint32_t out = 1; out <= ports; ++out) {
        if (o.in_port && o.in_port != in) continue;
        if (o.out_port && o.out_port != out) continue;
        lane_map_[base + in * ports + out - 1] = map;
      }
    }
  }
}

void Simulation::build_flows(std::vector<FlowSpec> specs) {
  const size_t requested = specs.size();
  flows_.reserve(2 * requested);
  for (FlowSpec& spec : specs) {
    Flow flow;
    flow.spec = std::move(spec);
    flows_.push_back(std::move(flow));
  }
  specs = std::vector<FlowSpec>();
  const auto is_random = [](const Flow& flow) { return flow.spec.poisson; };
  if (std::any_of(flows_.begin(), flows_.end(), is_random)) {
    for (size_t i = 0; i < requested; ++i) {
      arrivals_.emplace_back(seed_flow(run_.seed, run_.first_flow + i));
    }
  }
  // READs and ping-pongs are answered by a flow of the other host.
  for (size_t i = 0; i < requested; ++i) {
    const FlowSpec& spec = flows_[i].spec;
    if (spec.op != Op::kRead && spec.estimator != Estimator::kPingPong) continue;
    Flow answer;
    answer.spec = spec;
    std::swap(answer.spec.src, answer.spec.dst);
    answer.spec.triggers = -1;
    answer.spec.schedule.clear();
    answer.owner = static_cast<uint32_t>(i);
    flows_[i].partner = static_cast<uint32_t>(flows_.size());
    flows_.push_back(std::move(answer));
  }
  sinks_.resize(flows_.size());
}

void Simulation::build_partitions(const NetworkSpec& network) {
  Partitioning cut = partition_fabric(network, run_.partitioned_links);
  if (triggers_cross(cut.of_node)) cut = {std::vector<uint8_t>(is_switch_.size(), 0), 1, kNever};
  lookahead_ = cut.lookahead;
  for (Link& link : links_) {
    link.from_part = cut.of_node[link.from];
    link.to_part = cut.of_node[link.to];
    link.crosses = link.from_part != link.to_part;
  }
  for (uint32_t i = 0; i < cut.count; ++i) {
    partitions_.push_back(make_partition(*this, i, cut.count));
  }
  errors_.resize(cut.count);
  for (Flow& flow : flows_) {
    flow.link = host_link_[flow.spec.src];
    flow.sl = static_cast<uint8_t>(flow.spec.sl);
    flow.vl = partitions_[0]->first_lane(flow.link, flow.sl);
  }
}

// Whether a message posts another one on a host of another partition.
bool Simulation::triggers_cross(const std::vector<uint8_t>& of_node) const {
  return std::any_of(flows_.begin(), flows_.end(), [&](const Flow& flow) {
    if (flow.spec.triggers < 0) return false;
    const uint32_t at = flow.spec.op == Op::kRead ? flow.spec.src : flow.spec.dst;
    const uint32_t next = flows_[static_cast<size_t>(flow.spec.triggers)].spec.src;
    return of_node[host_node_[at]] != of_node[host_node_[next]];
  });
}

void Simulation::start(uint32_t id) {
  Flow& flow = flows_[id];
  const FlowSpec& spec = flow.spec;
  if (unfinished_of_.size() <= spec.traffic) unfinished_of_.resize(spec.traffic + 1, 0);
  if (spec.stops_with >= 0) {
    // Its end is that of another: it neither holds up the end of the run nor brings it about.
  } else if (spec.messages < 0) {
    endless_ = true;
  } else if (spec.messages > 0) {
    ++unfinished_;
    ++unfinished_of_[spec.traffic];
  }
  flow.due = spec.start;
  Partition& partition = *partitions_[links_[flow.link].from_part];
  if (spec.pattern == Pattern::kSchedule) {
    if (!spec.schedule.empty()) partition.schedule_timer(spec.schedule[0].time, id);
  } else if (spec.pattern == Pattern::kWorkload) {
    // Posts when the workload does.
  } else if (spec.pattern != Pattern::kTriggered || spec.initial_triggers > 0) {
    partition.schedule_timer(spec.start, id);
  }
}

// Ranks count as flows do: the run is done when they are.
void Simulation::place(std::shared_ptr<const WorkloadSpec> spec) {
  workload_spec_ = std::move(spec);
  std::vector<Partition*> partition;
  for (uint32_t rank = 0; rank < workload_spec_->operations.ranks; ++rank) {
    const Link& link = links_[host_link_[workload_spec_->host[rank]]];
    partition.push_back(partitions_[link.from_part].get());
    const uint32_t traffic = workload_spec_->traffic[rank];
    if (unfinished_of_.size() <= traffic) unfinished_of_.resize(traffic + 1, 0);
    ++unfinished_of_[traffic];
    ++unfinished_;
  }
  workload_ = std::make_unique<PlacedWorkload>(*workload_spec_, std::move(partition), flows_,
                                               loopback_ps_per_byte_);
  for (const auto& each : partitions_) each->set_workload(*workload_);
}

// ---- Running ------------------------------------------------------------------------------

Status Simulation::run(uint64_t max_events) {
  if (partitions_.size() > 1) return run_windows(max_events);
  Partition& partition = *partitions_[0];
  const Partition::Stop stop = partition.run(kNever, max_events);
  now_ = partition.now();
  if (stop == Partition::Stop::kBudget) return Status::kRunning;
  return end(partition.pending() == 1);
}

Status Simulation::run_windows(uint64_t max_events) {
  const uint64_t until = events() + max_events;
  if (window_ == 0) over_ = plan_window(UINT64_MAX);
  bool is_broken = false;
  for (uint64_t done = events(); !over_ && !is_broken && done < until; done = events()) {
    const bool alone = runs_alone();
    const auto start = std::chrono::steady_clock::now();
    run_burst(std::min(until, done + kBurst), alone ? 1 : run_.threads);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    pace_s_[alone] = time.count() / static_cast<double>(events() - done + 1);
    is_broken = std::any_of(errors_.begin(), errors_.end(), [](const auto& e) { return e; });
  }
  // What is under way shows in the fabric's state.
  for (const auto& partition : partitions_) partition->read_mail(partitions_, window_ - 1);
  for (const auto& partition : partitions_) partition->empty_outboxes();
  for (const std::exception_ptr& error : errors_) {
    if (error) std::rethrow_exception(error);
  }
  if (!over_) return Status::kRunning;
  bool last = !done_;
  for (const auto& partition : partitions_) last &= partition->pending() == 1;
  if (last) {
    now_ = 0;
    for (const auto& partition : partitions_) now_ = std::max(now_, partition->last_event());
  }
  return end(last);
}

// Whether one thread alone runs the next burst. Where other programs hold the processors, threads
// that wait for each other are slower than one: both are timed, now and then again, and the faster
// one runs. Results do not depend on it.
bool Simulation::runs_alone() {
  if (run_.threads <= 1) return true;
  const uint32_t burst = burst_++;
  if (burst < 2) return burst == 1;
  const bool alone = pace_s_[1] < pace_s_[0];
  return burst % kProbeEvery == 0 ? !alone : alone;
}

void Simulation::run_burst(uint64_t until, int most_threads) {
  const size_t count = std::clamp<size_t>(most_threads, 1, partitions_.size());
  std::vector<std::vector<Partition*>> shares;
  std::optional<Barrier> barrier;
  std::latch shared_out(1);
  bool stop = false;
  const auto work = [&](const std::vector<Partition*>& share) {
    while (!stop) {
      run_window(share);
      barrier->meet([&] { stop = plan_window(until); });
    }
  };
  std::vector<std::jthread> threads;
  try {
    for (size_t i = 1; i < count; ++i) {
      threads.emplace_back([&, i] {
        shared_out.wait();
        work(shares[i]);
      });
    }
  } catch (const std::exception&) {  // no more can be started: those that were do the work
    run_.threads = static_cast<int>(threads.size() + 1);
  }
  shares = share_out(threads.size() + 1);
  barrier.emplace(static_cast<uint32_t>(shares.size()));
  shared_out.count_down();
  work(shares[0]);
}

// Each partition is one step ahead of the one after it; the last step of all is to run.
void Simulation::run_window(const std::vector<Partition*>& share) {
  for (size_t turn = 0; turn < share.size() + Partition::kSteps - 1; ++turn) {
    for (int step = Partition::kSteps - 1; step >= 0; --step) {
      const size_t place = turn - static_cast<size_t>(step);
      if (place >= share.size()) continue;  // before the first or behind the last
      Partition& partition = *share[place];
      if (errors_[partition.number()]) continue;
      try {
        partition.take_step(step, partitions_, window_, window_end_);
      } catch (...) {
        errors_[partition.number()] = std::current_exception();
      }
    }
  }
}

// Each thread's partitions: those with most events so far first, to the thread with fewest.
std::vector<std::vector<Partition*>> Simulation::share_out(size_t threads) const {
  std::vector<Partition*> order;
  for (const auto& partition : partitions_) order.push_back(partition.get());
  std::stable_sort(order.begin(), order.end(), [](const Partition* a, const Partition* b) {
    return a->events() > b->events();
  });
  std::vector<std::vector<Partition*>> shares(threads);
  std::vector<uint64_t> load(threads, 0);
  for (Partition* partition : order) {
    const auto least = std::min_element(load.begin(), load.end()) - load.begin();
    shares[static_cast<size_t>(least)].push_back(partition);
    load[static_cast<size_t>(least)] += partition->events() + 1;
  }
  return shares;
}

// After a window: what concerns all partitions, and how long the next one lasts. Whether to stop
// here: it is over, something broke, or `until` events are done.
bool Simulation::plan_window(uint64_t until) {
  ++window_;
  uint64_t events = 0;
  Time next = kNever, finish = 0;
  for (const auto& partition : partitions_) {
    events += partition->events();
    next = std::min(next, partition->next_time());
    finish = std::max(finish, partition->last_finish());
    for (const uint32_t traffic : partition->finished()) end_part(traffic, window_end_);
    partition->finished().clear();
  }
  if (keeps_accounts_) account_window();
  now_ = window_end_;
  if (std::any_of(errors_.begin(), errors_.end(), [](const auto& e) { return e != nullptr; })) {
    return true;
  }
  if (done_) now_ = finish;
  over_ = done_ || next > run_.duration;
  if (!done_) take_samples(next);
  if (over_) return true;
  window_end_ = std::min({next + lookahead_, run_.duration + 1, next_sample_});
  return events >= until;
}

// Those until `next`, the time of the next event; after the last one, another sample.
void Simulation::take_samples(Time next) {
  if (next_sample_ > run_.duration) return;
  const auto is_idle = [](const auto& partition) { return partition->is_idle(); };
  const bool idle = std::all_of(partitions_.begin(), partitions_.end(), is_idle);
  const Time last = idle ? next_sample_ : next;
  for (; next_sample_ <= std::min(last, run_.duration); next_sample_ += run_.sample_interval) {
    sample(next_sample_);
  }
}

void Simulation::account_window() {
  events_before_.resize(partitions_.size());
  for (size_t i = 0; i < partitions_.size(); ++i) {
    const uint64_t events = partitions_[i]->events();
    window_events_.push_back(static_cast<uint32_t>(events - events_before_[i]));
    events_before_[i] = events;
  }
}

bool Simulation::end_part(uint32_t traffic, Time now) {
  if (--unfinished_of_[traffic] == 0) {
    for (Flow& flow : flows_) {
      const bool follows = flow.spec.stops_with == static_cast<int32_t>(traffic);
      if (follows) flow.spec.stop = std::min(flow.spec.stop, now);
    }
  }
  --unfinished_;
  done_ = run_.stop_when_done && !endless_ && unfinished_ == 0;
  return done_;
}

// The end comes after the duration, or earlier because every flow has finished, or because the
// end itself is the `last` event.
Status Simulation::end(bool last) {
  if (run_.check_invariants && packets_alive() == 0) check_credits();
  if (done_) return Status::kFinished;
  if (last) {
    const bool waiting = workload_ && !workload_->is_done();
    const bool stuck = waiting || packets_alive() || !blocked(0).empty();
    return stuck ? Status::kDeadlock : Status::kFinished;
  }
  now_ = run_.duration;
  return Status::kTimeUp;
}

// With no packet left every lane has all its credits back, or on their way.
void Simulation::check_credits() const {
  for (size_t i = 0; i < out_.size(); ++i) {
    const CreditLoop& credits = out_[i].credits;
    if (credits.available() + credits.in_flight() == in_[i].capacity) continue;
    Packet nothing{};
    nothing.vl = static_cast<uint8_t>(i % lanes_);
    partitions_[0]->broken("credits lost", static_cast<uint32_t>(i / lanes_), nothing);
  }
}

uint64_t Simulation::packet_hops() const {
  uint64_t unfinished = 0;
  for (const Link& link : links_) unfinished += link.busy_until > now_;
  uint64_t transmissions = 0;
  for (const auto& partition : partitions_) transmissions += partition->transmissions();
  return transmissions - unfinished;
}

uint64_t Simulation::events() const {
  uint64_t events = 0;
  for (const auto& partition : partitions_) events += partition->events();
  return events;
}

size_t Simulation::packets_alive() const {
  size_t packets = 0;
  for (const auto& partition : partitions_) packets += partition->live_packets();
  return packets;
}

GroupResult Simulation::group(size_t i) const {
  GroupResult sum = partitions_[0]->group(i);
  for (size_t p = 1; p < partitions_.size(); ++p) {
    const GroupResult& part = partitions_[p]->group(i);
    sum.rtt.merge(part.rtt);
    sum.one_way.merge(part.one_way);
    sum.switch_time.merge(part.switch_time);
  }
  return sum;
}

Simulation::~Simulation() = default;

Time Simulation::rank_finished(uint32_t rank) const {
  return workload_->replay().finished(rank);
}

const std::vector<Time>& Simulation::operations_ended() const {
  return workload_->replay().progress().ended();
}

FlowResult Simulation::flow(size_t i) const {
  const Flow& flow = flows_[i];
  const Sink& sink = sinks_[i];
  return {.posted = flow.posted,
          .completed = flow.completed,
          .delivered = sink.delivered,
          .bytes = sink.bytes,
          .messages = sink.messages,
          .first_delivery = sink.first_delivery,
          .last_delivery = sink.last_delivery,
          .finished = std::min(flow.finished, sink.finished),
          .stop = flow.spec.stop};
}

double Simulation::head_of_line_share() const {
  Time sending = 0;
  for (size_t i = 0; i < out_.size(); ++i) {
    const Link& link = links_[i / lanes_];
    if (!link.from_switch) continue;
    // In two parts, as the whole product overflows after a second of sending.
    const uint64_t high = out_[i].xmit_bytes >> 24, low = out_[i].xmit_bytes & 0xFFFFFF;
    sending +=
        static_cast<Time>(high * link.ps_per_byte_q24 + ((low * link.ps_per_byte_q24) >> 24));
  }
  Time idle = 0;
  for (const auto& partition : partitions_) idle += partition->head_of_line();
  const Time both = idle + sending;
  return both > 0 ? static_cast<double>(idle) / static_cast<double>(both) : 0;
}

LaneCounters Simulation::counters(size_t link, int vl) const {
  const OutLane& out = out_[link * lanes_ + vl];
  const InLane& in = in_[link * lanes_ + vl];
  const Time waiting = out.blocked_since < now_ ? now_ - out.blocked_since : 0;
  return {out.xmit_bytes, out.xmit_packets,        in.rcv_bytes,
          in.rcv_packets, out.xmit_wait + waiting, marked_[link * lanes_ + vl],
          in.peak,        out.peak_backlog};
}

std::vector<BlockedLane> Simulation::blocked(Time limit) const {
  std::vector<BlockedLane> heads;
  const auto add = [&](uint32_t link, int vl, uint32_t out, int out_vl, int blocks, Time since) {
    const OutLane& lane = out_[out * lanes_ + out_vl];
    // A head with credit may still wait behind one that lacks it.
    const int need = std::max(blocks, lane.need);
    const int credit = lane.credits.available();
    const Time waited = now_ - std::min(now_, std::max(since, lane.last_ready));
    if (waited < limit) return;
    heads.push_back({link, static_cast<uint32_t>(vl), out, static_cast<uint32_t>(out_vl), waited,
                     credit < need, credit + lane.credits.in_flight() < need});
  };
  const auto add_head = [&](const Queue& queue, uint32_t partition) {
    if (queue.fifo.empty()) return;
    const Packet& p = partitions_[partition]->packet(queue.fifo.head);
    add(p.in_link, p.vl, p.out_link, p.out_vl, p.blocks(), std::max(p.arrived, queue.busy_until));
  };
  for (size_t i = 0; i < in_.size(); ++i) {
    if (in_[i].used == 0) continue;
    const uint32_t at = links_[i / lanes_].to_part;
    if (!switch_.virtual_output_queues) add_head(in_[i].queue, at);
    for (size_t q = i * max_ports_; q < std::min((i + 1) * max_ports_, virtual_queues_.size());
         ++q) {
      add_head(virtual_queues_[q], at);
    }
  }
  for (const uint32_t link : host_link_) {
    if (link == kNone) continue;
    for (int vl = 0; vl < lanes_; ++vl) {
      const SendLane& lane = send_[links_[link].host * lanes_ + vl];
      if (!lane.responses.empty()) {
        const Packet& p = partitions_[links_[link].from_part]->packet(lane.responses.head);
        add(link, vl, link, vl, p.blocks(), p.arrived);
      } else if (lane.active_first != kNone) {
        const Flow& flow = flows_[lane.active_first];
        add(link, vl, link, vl, blocks_of(flow.head_wire),
            std::max(flow.ring[flow.first].ready, flow.not_before));
      }
    }
  }
  return heads;
}

// A head can move again if credit is on its way or if the input lane that it waits for can free
// space, which takes one head there that can move. Striking out all that can leaves what never
// will.
std::vector<BlockedLane> Simulation::deadlock_cycle() const {
  const std::vector<BlockedLane> heads = blocked(0);
  std::vector<std::vector<uint32_t>> at(links_.size() * lanes_);
  std::vector<uint8_t> stuck(heads.size());
  for (uint32_t i = 0; i < heads.size(); ++i) {
    // Behind a queue per output, a packet still on the wire may pass those that wait.
    const size_t there = heads[i].out_link * lanes_ + heads[i].out_vl;
    const CreditLoop& credits = out_[there].credits;
    const int free = credits.available() + credits.in_flight();
    const bool all_here =
        !switch_.virtual_output_queues || in_[there].used + free == in_[there].capacity;
    stuck[i] = heads[i].hopeless && all_here;
    if (heads[i].link != heads[i].out_link) at[heads[i].link * lanes_ + heads[i].vl].push_back(i);
  }
  const auto waits_for = [&](uint32_t i) -> const std::vector<uint32_t>& {
    return at[heads[i].out_link * lanes_ + heads[i].out_vl];
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t i = 0; i < heads.size(); ++i) {
      const auto& there = waits_for(i);
      const auto free = [&](uint32_t j) { return !stuck[j]; };
      if (!stuck[i] || (!there.empty() && std::none_of(there.begin(), there.end(), free))) continue;
      stuck[i] = 0;
      changed = true;
    }
  }
  const auto first = std::find(stuck.begin(), stuck.end(), 1);
  if (first == stuck.end()) return {};
  std::vector<uint32_t> path;
  auto i = static_cast<uint32_t>(first - stuck.begin());
  while (std::find(path.begin(), path.end(), i) == path.end()) {
    path.push_back(i);
    i = waits_for(i)[0];
  }
  std::vector<BlockedLane> cycle;
  for (auto step = std::find(path.begin(), path.end(), i); step != path.end(); ++step) {
    cycle.push_back(heads[*step]);
  }
  return cycle;
}

void Simulation::sample(Time now) {
  sample_times_.push_back(now);
  for (const OutLane& lane : out_) samples_.push_back(static_cast<int32_t>(lane.backlog));
}

}  // namespace weft::packet
