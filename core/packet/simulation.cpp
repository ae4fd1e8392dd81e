#include "packet/simulation.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>

// The hot paths are one translation unit so that the compiler sees through them.
#include "packet/adapter_receive.inl"
#include "packet/adapter_send.inl"
#include "packet/link.inl"
#include "packet/switch.inl"

namespace weft::packet {

Simulation::Simulation(const NetworkSpec& network, std::vector<FlowSpec> flows, const RunSpec& run)
    : run_(run),
      switch_(network.switches),
      credit_(network.credits),
      adapter_(network.adapter),
      lanes_(network.lanes),
      sl2vl_(network.sl2vl),
      sl2vl_overrides_(network.sl2vl_overrides),
      rng_(run.seed),
      is_switch_(network.is_switch),
      groups_(run.groups) {
  const auto ps_per_byte = [](double bps) { return bps > 0 ? 8e12 / bps : 0; };
  fetch_ps_per_byte_ = ps_per_byte(adapter_.pcie_read_bps);
  store_ps_per_byte_ = ps_per_byte(adapter_.pcie_write_bps);
  loopback_ps_per_byte_ = ps_per_byte(adapter_.loopback_bps);
  build_links(network);
  build_routes(network);
  build_lanes(network);
  if (links_.size() <= kFewLinks) {
    queue_ = EventQueue(EventQueue::kOneSlice, 6);
  } else {
    queue_ = EventQueue(event_width_log2(), 12);
  }
  build_flows(std::move(flows));
  schedule(run_.duration + 1, kEnd, 0);
  note_if_done();
  if (run_.sample_interval > 0) schedule(0, kSample, 0);
}

// A few events per bucket: packet times divided by the links that may each have one.
int Simulation::event_width_log2() const {
  const double packet_ps = links_.empty() ? 1e6 : static_cast<double>(ser(links_[0], 4096));
  const double spacing = packet_ps / static_cast<double>(std::max<size_t>(links_.size(), 1));
  return std::clamp(static_cast<int>(std::log2(std::max(spacing, 1.0))) + 3, 7, 16);
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
  // -1 (no route) becomes the largest value of either type.
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
  send_.resize(size_t{hosts_} * lanes_);
  if (switch_.virtual_output_queues) virtual_queues_.resize(lanes * max_ports_);
  words_ = (max_ports_ * lanes_ + 63) / 64;
  waiting_.assign(lanes * words_, 0);
  for (size_t i = 0; i < lanes; ++i) {
    const bool to_switch = links_[i / lanes_].to_switch;
    const int64_t bytes = to_switch ? credit_.switch_buffer_bytes : credit_.host_buffer_bytes;
    in_[i].capacity = static_cast<int>(bytes / kBlock);
    out_[i].credits.init(in_[i].capacity);
  }
  tables_.push_back(network.arbitration);
  for (const ArbOverride& o : network.arbitration_overrides) tables_.push_back(o.tables);
  for (Link& link : links_) link.tables = &tables_[0];
  for (size_t i = 0; i < network.arbitration_overrides.size(); ++i) {
    const ArbOverride& o = network.arbitration_overrides[i];
    const uint32_t link = out_link_[port_base_[o.node] + o.port - 1];
    if (link != kNone) links_[link].tables = &tables_[i + 1];
  }
}

void Simulation::build_flows(std::vector<FlowSpec> specs) {
  const size_t requested = specs.size();
  flows_.reserve(2 * requested);
  for (FlowSpec& spec : specs) {
    Flow flow;
    flow.spec = std::move(spec);
    flow.rng = Rng(run_.seed * 0x9E3779B97F4A7C15ull + flows_.size() + 1);
    flows_.push_back(std::move(flow));
  }
  // READs and ping-pongs are answered by a flow of the other host.
  for (size_t i = 0; i < requested; ++i) {
    const FlowSpec& spec = flows_[i].spec;
    if (spec.op != Op::kRead && spec.estimator != Estimator::kPingPong) continue;
    Flow answer;
    answer.spec = spec;
    std::swap(answer.spec.src, answer.spec.dst);
    answer.spec.triggers = -1;
    answer.spec.schedule_times.clear();
    answer.spec.schedule_sizes.clear();
    answer.owner = static_cast<uint32_t>(i);
    answer.rng = Rng(run_.seed * 0xBF58476D1CE4E5B9ull + i + 1);
    flows_[i].partner = static_cast<uint32_t>(flows_.size());
    flows_.push_back(std::move(answer));
  }
  for (uint32_t i = 0; i < flows_.size(); ++i) {
    Flow& flow = flows_[i];
    flow.link = host_link_[flow.spec.src];
    flow.vl = lane_of(links_[flow.link].from, 0, links_[flow.link].port, flow.spec.sl);
    if (flow.owner == kNone) start(i);
  }
}

void Simulation::start(uint32_t id) {
  Flow& flow = flows_[id];
  const FlowSpec& spec = flow.spec;
  if (spec.messages < 0) {
    endless_ = true;
  } else if (spec.messages > 0) {
    ++unfinished_;
  }
  flow.due = spec.start;
  if (spec.pattern == Pattern::kSchedule) {
    if (!spec.schedule_times.empty()) schedule(spec.schedule_times[0], kTimer, id);
  } else if (spec.pattern != Pattern::kTriggered || spec.initial_triggers > 0) {
    schedule(spec.start, kTimer, id);
  }
}

Status Simulation::run(uint64_t max_events) {
  for (uint64_t n = 0; n < max_events; ++n) {
    const Event event = queue_.top();
    const uint32_t what = event.what >> kIdBits;
    if (what == kEnd) [[unlikely]]
      return end();
    queue_.pop();
    now_ = event.time;
    ++events_;
    const uint32_t id = event.what & ((1u << kIdBits) - 1);
    switch (what) {
      case kArrive:
        if (links_[pool_[id].in_link].to_switch) {
          arrive_at_switch(id);
        } else {
          deliver_to_host(id);
        }
        break;
      case kKick: {
        Link& link = links_[id];
        if (event.time != link.kick_at) break;  // superseded by an earlier one
        link.kick_at = kNever;
        if (link.busy_until > now_) {
          ensure_kick(id, link.busy_until);
        } else if (link.from_switch) {
          switch_transmit(id);
        } else {
          host_transmit(id);
        }
        break;
      }
      case kTimer:
        on_timer(id);
        break;
      case kAckReady:
        respond(id);
        break;
      case kSample:
        sample();
        break;
    }
  }
  return Status::kRunning;
}

// The end event stays in the queue: it is either the last of all, or comes after the duration,
// or was brought forward because every flow has finished.
Status Simulation::end() {
  const Event event = queue_.top();
  queue_.pop();
  const bool last = queue_.empty();
  schedule(event.time, kEnd, 0);
  if (run_.check_invariants && pool_.live() == 0) check_credits();
  if (done_) return Status::kFinished;
  if (last) return pool_.live() || !blocked(0).empty() ? Status::kDeadlock : Status::kFinished;
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
    broken("credits lost", static_cast<uint32_t>(i / lanes_), nothing);
  }
}

uint64_t Simulation::packet_hops() const {
  uint64_t unfinished = 0;
  for (const Link& link : links_) unfinished += link.busy_until > now_;
  return transmissions_ - unfinished;
}

FlowResult Simulation::flow(size_t i) const {
  return flows_[i].result;
}

LaneCounters Simulation::counters(size_t link, int vl) const {
  const OutLane& out = out_[link * lanes_ + vl];
  const InLane& in = in_[link * lanes_ + vl];
  const Time waiting = out.blocked_since < now_ ? now_ - out.blocked_since : 0;
  return {out.xmit_bytes,          out.xmit_packets, in.rcv_bytes, in.rcv_packets,
          out.xmit_wait + waiting, out.marked,       in.peak,      out.peak_backlog};
}

std::vector<BlockedLane> Simulation::blocked(Time limit) const {
  std::vector<BlockedLane> lanes;
  const auto add = [&](uint32_t link, int vl, uint32_t out, int out_vl, int blocks, Time since) {
    const OutLane& lane = out_[out * lanes_ + out_vl];
    // A head with credit may still wait behind one that lacks it.
    const bool no_credit = lane.credits.available() < std::max(blocks, lane.need);
    if (now_ - since < limit) return;
    lanes.push_back({link, static_cast<uint32_t>(vl), out, static_cast<uint32_t>(out_vl),
                     now_ - since, no_credit});
  };
  const auto add_head = [&](const Queue& queue) {
    if (queue.fifo.empty()) return;
    const Packet& p = pool_[queue.fifo.head];
    add(p.in_link, p.vl, p.out_link, p.out_vl, p.blocks(), p.arrived);
  };
  for (const InLane& lane : in_) add_head(lane.queue);
  for (const Queue& queue : virtual_queues_) add_head(queue);
  for (const uint32_t link : host_link_) {
    if (link == kNone) continue;
    for (int vl = 0; vl < lanes_; ++vl) {
      const SendLane& lane = send_[links_[link].host * lanes_ + vl];
      if (!lane.responses.empty()) {
        const Packet& p = pool_[lane.responses.head];
        add(link, vl, link, vl, p.blocks(), p.arrived);
      } else if (lane.active_first != kNone) {
        const Flow& flow = flows_[lane.active_first];
        const Time moved = out_[link * lanes_ + vl].last_ready;  // the lane's last packet
        add(link, vl, link, vl, blocks_of(flow.head_wire),
            std::min(now_, std::max({flow.ring[flow.first].ready, flow.not_before, moved})));
      }
    }
  }
  return lanes;
}

// An input lane waits for the input lanes at the far end of the link it lacks credit on.
std::vector<BlockedLane> Simulation::deadlock_cycle() const {
  const std::vector<BlockedLane> lanes = blocked(0);
  std::vector<std::vector<uint32_t>> at(links_.size() * lanes_);
  for (uint32_t i = 0; i < lanes.size(); ++i) {
    if (lanes[i].link != lanes[i].out_link) at[lanes[i].link * lanes_ + lanes[i].vl].push_back(i);
  }
  static const std::vector<uint32_t> nothing;
  const auto waits_for = [&](uint32_t i) -> const std::vector<uint32_t>& {
    return lanes[i].no_credit ? at[lanes[i].out_link * lanes_ + lanes[i].out_vl] : nothing;
  };
  std::vector<uint8_t> state(lanes.size(), 0);  // 0 new, 1 on the path, 2 done
  std::vector<std::pair<uint32_t, size_t>> path;
  for (uint32_t begin = 0; begin < lanes.size(); ++begin) {
    if (state[begin] == 0) path.push_back({begin, 0});
    while (!path.empty()) {
      const uint32_t i = path.back().first;
      state[i] = 1;
      if (path.back().second == waits_for(i).size()) {
        state[i] = 2;
        path.pop_back();
        continue;
      }
      const uint32_t to = waits_for(i)[path.back().second++];
      if (state[to] == 0) path.push_back({to, 0});
      if (state[to] != 1) continue;
      std::vector<BlockedLane> cycle;
      for (const auto& step : path) {
        if (!cycle.empty() || step.first == to) cycle.push_back(lanes[step.first]);
      }
      return cycle;
    }
  }
  return {};
}

void Simulation::sample() {
  sample_times_.push_back(now_);
  for (const OutLane& lane : out_) samples_.push_back(static_cast<int32_t>(lane.backlog));
  // The end event is always there; with nothing else to come there is nothing to sample.
  if (queue_.size() > 1) schedule(now_ + run_.sample_interval, kSample, 0);
}

void Simulation::broken(const std::string& law, uint32_t link, const Packet& p) const {
  std::ostringstream text;
  text << law << " at " << now_ << " ps on the link from node " << links_[link].from << " port "
       << links_[link].port << " to node " << links_[link].to << ", lane " << int{p.vl}
       << ": packet of flow " << p.flow << ", message " << p.message << ", " << p.wire_bytes
       << " bytes";
  throw BrokenInvariant(text.str());
}

}  // namespace weft::packet
