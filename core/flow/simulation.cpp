#include "flow/simulation.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace weft::flow {

namespace {

// At 0 bits per second it takes no time.
Time dma_time(int64_t bytes, double rate_bps) {
  return rate_bps > 0 ? static_cast<Time>(static_cast<double>(bytes) * 8e12 / rate_bps) : 0;
}

}  // namespace

using packet::FlowSpec;
using packet::Op;
using packet::Pattern;
using packet::Status;
using packet::Transport;

Simulation::Simulation(const packet::NetworkSpec& network, std::vector<FlowSpec> flows,
                       const packet::RunSpec& run,
                       std::shared_ptr<const packet::WorkloadSpec> workload,
                       const Accuracy& accuracy, const Control& control)
    : run_(run),
      adapter_(network.adapter),
      lanes_(control.queues > 0 ? static_cast<int>(control.queues) : network.lanes),
      workload_(std::move(workload)),
      control_(control) {
  const Paths paths(network);
  transfers_.set_step(accuracy.step);
  transfers_.set_tolerance(accuracy.tolerance);
  paths.add_ports(transfers_, control.queues);
  ports_ = 2 * network.cables.size();
  flows_.resize(flows.size());
  for (uint32_t i = 0; i < flows_.size(); ++i) {
    flows_[i].spec = std::move(flows[i]);
    build_flow(i, paths);
  }
  if (workload_) build_workload();
  queue_of_.assign(ports_ * jobs_.size(), 0);
  for (uint32_t job = 0; job < jobs_.size(); ++job) {
    if (control_.queues > 0 && jobs_[job].arrival != kNever) {
      schedule(jobs_[job].arrival, kArrive, job);
    }
  }
  if (run_.warmup > 0) schedule(run_.warmup, kWarmUp, 0);
}

void Simulation::build_flow(uint32_t id, const Paths& paths) {
  Flow& flow = flows_[id];
  FlowSpec& spec = flow.spec;
  const bool stream = spec.pattern == Pattern::kStream;
  if (!stream && spec.pattern != Pattern::kWorkload) {
    throw std::invalid_argument("only streams and workloads have a meaning at flow level");
  }
  const bool read = spec.op == Op::kRead;
  const uint32_t number = run_.first_flow + id;
  const Path there = paths.find(spec.src, spec.dst, spec.sl, number);
  const Path back = paths.find(spec.dst, spec.src, spec.sl, number);
  flow.path = read ? back : there;
  for (Hop& hop : flow.path.hops) hop.queue = control_.queues > 0 ? 0 : hop.queue;
  // A READ's request, an ACK: one packet without payload, which does not wait.
  const Path& other = read ? there : back;
  const int small = read             ? packet::request_header(spec.transport, spec.op, true, true)
                    : spec.ack_bytes ? spec.ack_bytes
                                     : packet::ack_bytes();
  const Time answer = other.latency + adapter_.rx + static_cast<Time>(small / other.slowest);
  flow.delivery = flow.path.latency + adapter_.rx;
  flow.completion = read ? 0 : answer;
  if (is_write(spec.op)) {  // acknowledged when its last packet is in memory
    const int64_t last = (spec.size - 1) % spec.mtu + 1;
    flow.completion += dma_time(last, adapter_.pcie_write_bps) + adapter_.write_ack;
  }
  Time before = find_post_time(spec, spec.size);
  if (read) before += answer + find_fetch_time(spec, spec.size) + adapter_.tx;
  const auto wire =
      static_cast<double>(packet::message_wire_bytes(spec.transport, spec.op, spec.size, spec.mtu));
  flow.cap = find_cap(flow, wire, before + flow.delivery + flow.completion + find_seen_time());

  if (unfinished_of_.size() <= spec.traffic) unfinished_of_.resize(spec.traffic + 1, 0);
  if (spec.stops_with >= 0) {
    // Its end is that of another: it neither holds up the end of the run nor brings it about.
  } else if (spec.messages < 0) {
    endless_ = true;
  } else if (spec.messages > 0) {
    ++unfinished_;
    ++unfinished_of_[spec.traffic];
  }
  if (spec.stop <= run_.duration) schedule(spec.stop, kStop, id);
  if (!stream) {
    if (jobs_.size() <= spec.traffic) jobs_.resize(spec.traffic + 1);
    return;
  }
  expect(spec.traffic, spec.start);
  const double messages = spec.messages < 0 ? kUnlimited : static_cast<double>(spec.messages);
  add_message(id, {spec.start + before, messages * wire, static_cast<double>(spec.size) / wire});
}

void Simulation::build_workload() {
  const uint32_t ranks = workload_->operations.ranks;
  is_done_.assign(ranks, 0);
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const uint32_t traffic = workload_->traffic[rank];
    if (unfinished_of_.size() <= traffic) unfinished_of_.resize(traffic + 1, 0);
    ++unfinished_of_[traffic];
    ++unfinished_;
    expect(traffic, workload_->begin[rank]);
  }
  workload::Network& network = *this;
  replay_ = std::make_unique<workload::Replay>(workload_->operations, workload_->begin, network);
  replay_->start();
}

// One more stream or rank of a job.
void Simulation::expect(uint32_t job, Time arrival) {
  if (jobs_.size() <= job) jobs_.resize(job + 1);
  jobs_[job].arrival = std::min(jobs_[job].arrival, arrival);
  ++jobs_[job].unfinished;
}

// A stream or rank of a job has finished or stopped.
void Simulation::leave(uint32_t job) {
  if (--jobs_[job].unfinished > 0) return;
  jobs_[job].present = false;
  jobs_changed_ |= control_.queues > 0;
}

void Simulation::add_sending(uint32_t job, int change) {
  uint32_t& sending = jobs_[job].sending;
  const bool before = sending > 0;
  sending += static_cast<uint32_t>(change);
  if (before != (sending > 0)) jobs_changed_ |= control_.queues > 0 && control_.watch_stages;
}

// Software to the first byte on the wire; of a READ, of its request.
Time Simulation::find_post_time(const FlowSpec& spec, int64_t size) const {
  const bool inlined = spec.allow_inline && size <= adapter_.inline_bytes;
  const Time fetch = inlined || spec.op == Op::kRead ? 0 : find_fetch_time(spec, size);
  return adapter_.post + fetch + adapter_.tx;
}

// The adapter reads the first packet of a message from memory.
Time Simulation::find_fetch_time(const FlowSpec& spec, int64_t size) const {
  return adapter_.pcie_read + dma_time(std::min<int64_t>(size, spec.mtu), adapter_.pcie_read_bps);
}

// What a flow alone could have, in bytes on the wire.
double Simulation::find_cap(const Flow& flow, double wire, Time round_trip) const {
  const FlowSpec& spec = flow.spec;
  const double payload = static_cast<double>(spec.size);
  const double packets = std::ceil(payload / spec.mtu);
  double cap = kUnlimited;
  const auto limit = [&](double ps_per_message) {
    if (ps_per_message > 0) cap = std::min(cap, wire / ps_per_message);
  };
  if (spec.rate_bps > 0) limit(payload * 8e12 / spec.rate_bps);
  if (adapter_.pcie_read_bps > 0) limit(payload * 8e12 / adapter_.pcie_read_bps);
  if (adapter_.pcie_write_bps > 0) limit(payload * 8e12 / adapter_.pcie_write_bps);
  limit(packets * static_cast<double>(adapter_.packet_gap));
  const bool is_windowed =
      spec.pattern == Pattern::kStream && (spec.messages < 0 || spec.messages > spec.window);
  limit(is_windowed * static_cast<double>(adapter_.message_gap) +
        is_windowed * static_cast<double>(adapter_.doorbell_gap) / spec.batch);
  if (is_windowed && spec.transport == Transport::kRc) {
    limit((static_cast<double>(round_trip) + wire / flow.path.slowest) / spec.window);
  }
  return cap;
}

void Simulation::post(uint32_t send, Time now) {
  const int64_t size = workload_->operations.amount[send];
  const uint32_t id = workload_->flow[send];
  if (id == workload::kNone) {  // ranks of one host
    const double ps_per_byte = adapter_.loopback_bps > 0 ? 8e12 / adapter_.loopback_bps : 0;
    const Time end = now + static_cast<Time>(static_cast<double>(size) * ps_per_byte);
    replay_->sent(send, end);
    return replay_->arrived(send, end);
  }
  Flow& flow = flows_[id];
  const FlowSpec& spec = flow.spec;
  const auto wire =
      static_cast<double>(packet::message_wire_bytes(spec.transport, spec.op, size, spec.mtu));
  flow.sends.push_back(send);
  ++flow.result.posted;
  add_message(id, {now + find_post_time(spec, size), wire, static_cast<double>(size) / wire});
}

void Simulation::advance(uint32_t rank) {
  replay_->advance(rank, now());
  if (replay_->is_done(rank) && !std::exchange(is_done_[rank], uint8_t{1})) {
    leave(workload_->traffic[rank]);
    finish(workload_->traffic[rank]);
  }
}

// Whether a rank waits for something that no transfer will bring.
bool Simulation::is_waiting() const {
  return transfers_.active() == 0 &&
         std::find(is_done_.begin(), is_done_.end(), 0) != is_done_.end();
}

void Simulation::add_message(uint32_t id, const Message& message) {
  Flow& flow = flows_[id];
  const bool was_idle = flow.is_idle();
  flow.messages.push_back(message);
  if (!was_idle) return;
  add_sending(flow.spec.traffic, 1);
  begin(id);
}

// The first message of a flow goes on the wire, now or when it is ready.
void Simulation::begin(uint32_t id) {
  Flow& flow = flows_[id];
  const Message& message = flow.front();
  if (message.ready > now()) return schedule(message.ready, kBegin, id);
  flow.transfer = transfers_.start(flow.path.hops, message.wire_bytes, 1, flow.cap);
  if (flow_of_.size() <= flow.transfer) flow_of_.resize(flow.transfer + 1, kNone);
  flow_of_[flow.transfer] = id;
  transfers_.set_priority(flow.transfer, jobs_[flow.spec.traffic].priority);
}

Status Simulation::run(uint64_t max_events) {
  for (uint64_t n = 0; n < max_events;) {
    if (run_.stop_when_done && !endless_ && unfinished_ == 0) return Status::kFinished;
    if (jobs_changed_) return Status::kRunning;
    Time next = transfers_.next_end();
    if (!events_to_come_.empty()) next = std::min(next, events_to_come_.top().time);
    if (next == kNever && is_waiting()) return Status::kDeadlock;
    if (next > run_.duration) {
      transfers_.advance(run_.duration);
      return Status::kTimeUp;
    }
    // The next messages may get the numbers of transfers that have ended.
    ended_.clear();
    for (const uint32_t transfer : transfers_.advance(next)) ended_.push_back(flow_of_[transfer]);
    for (const uint32_t flow : ended_) end_transfer(flow);
    n += ended_.size();
    // All of one time before rates are solved again.
    while (!events_to_come_.empty() && events_to_come_.top().time == next) {
      const Event event = events_to_come_.top();
      events_to_come_.pop();
      handle(event);
      ++n;
    }
    events_ += 1;
    ++n;
  }
  return Status::kRunning;
}

void Simulation::handle(const Event& event) {
  switch (event.what) {
    case kBegin:
      if (!flows_[event.id].stopped) begin(event.id);
      break;
    case kStop:
      stop(event.id);
      break;
    case kWarmUp:
      for (Flow& flow : flows_) flow.payload_before = find_payload(flow);
      break;
    case kDelivered:
      deliver(event.id);
      break;
    case kCompleted:
      complete(event.id);
      break;
    case kRank:
      advance(event.id);
      break;
    case kArrive:
      jobs_[event.id].present = jobs_[event.id].unfinished > 0;
      jobs_changed_ = true;
      break;
  }
}

void Simulation::end_transfer(uint32_t id) {
  Flow& flow = flows_[id];
  flow.payload += flow.front().wire_bytes * flow.front().payload_per_wire;
  flow.transfer = kNone;
  if (++flow.first == flow.messages.size()) {
    flow.messages.clear();
    flow.first = 0;
  }
  schedule(now() + flow.delivery, kDelivered, id);
  if (flow.spec.pattern == Pattern::kWorkload && flow.spec.transport != Transport::kRc) {
    replay_->sent(flow.sends[flow.result.completed++], now() + find_seen_time());
  }
  if (flow.is_idle()) {
    add_sending(flow.spec.traffic, -1);
  } else {
    begin(id);
  }
}

void Simulation::deliver(uint32_t id) {
  Flow& flow = flows_[id];
  const bool stream = flow.spec.pattern == Pattern::kStream;
  flow.result.last_delivery = now();
  flow.result.delivered = stream ? flow.spec.messages : flow.result.delivered + 1;
  if (!stream) {
    if (now() >= run_.warmup) ++flow.result.messages;
    replay_->arrived(flow.sends[flow.result.delivered - 1], now() + find_seen_time());
  }
  if (flow.spec.transport == Transport::kRc) {
    schedule(now() + flow.completion, kCompleted, id);
  } else if (flow.result.delivered == flow.spec.messages) {
    end_stream(id);
  }
}

// The ACK is back.
void Simulation::complete(uint32_t id) {
  Flow& flow = flows_[id];
  if (flow.spec.pattern == Pattern::kStream) {
    flow.result.completed = flow.spec.messages;
  } else {
    replay_->sent(flow.sends[flow.result.completed++], now() + find_seen_time());
  }
  if (flow.result.completed < flow.spec.messages) return;
  end_stream(id);
}

// All messages of a flow are there.
void Simulation::end_stream(uint32_t id) {
  Flow& flow = flows_[id];
  flow.result.finished = now();
  if (flow.spec.pattern == Pattern::kStream && !std::exchange(flow.ended, true)) {
    leave(flow.spec.traffic);
  }
  if (flow.spec.stops_with < 0) finish(flow.spec.traffic);
}

// A flow or a rank of this traffic has finished; with its last one, traffic that follows it stops.
void Simulation::finish(uint32_t traffic) {
  --unfinished_;
  if (--unfinished_of_[traffic] > 0) return;
  for (uint32_t i = 0; i < flows_.size(); ++i) {
    if (flows_[i].spec.stops_with != static_cast<int32_t>(traffic)) continue;
    flows_[i].spec.stop = std::min(flows_[i].spec.stop, now());
    stop(i);
  }
}

void Simulation::stop(uint32_t id) {
  Flow& flow = flows_[id];
  if (flow.stopped) return;
  flow.stopped = true;
  flow.payload = find_payload(flow);
  if (!flow.is_idle()) add_sending(flow.spec.traffic, -1);
  if (flow.spec.pattern == Pattern::kStream && !std::exchange(flow.ended, true)) {
    leave(flow.spec.traffic);
  }
  flow.messages.clear();
  flow.first = 0;
  if (flow.transfer == kNone) return;
  transfers_.stop(flow.transfer);
  flow.transfer = kNone;
  flow.result.last_delivery = now();
}

double Simulation::find_payload(const Flow& flow) const {
  if (flow.transfer == kNone) return flow.payload;
  return flow.payload + transfers_.sent(flow.transfer) * flow.front().payload_per_wire;
}

packet::FlowResult Simulation::flow(size_t i) const {
  const Flow& flow = flows_[i];
  packet::FlowResult result = flow.result;
  const double payload = find_payload(flow), after = payload - flow.payload_before;
  result.bytes = std::llround(after);
  if (flow.transfer != kNone) result.last_delivery = now();
  if (flow.spec.pattern == Pattern::kStream) {
    const auto whole = [&](double bytes) {
      return static_cast<int64_t>(bytes / static_cast<double>(flow.spec.size) + 1e-9);
    };
    result.messages = whole(after);
    result.delivered = whole(payload);
  }
  result.stop = flow.spec.stop;
  return result;
}

std::vector<double> Simulation::carried() const {
  std::vector<double> bytes;
  for (uint32_t port = 0; port < ports_; ++port) {
    for (int lane = 0; lane < lanes_; ++lane) bytes.push_back(transfers_.carried(port, lane));
  }
  for (const Flow& flow : flows_) {
    if (flow.transfer == kNone) continue;
    for (const Hop& hop : flow.path.hops) {
      bytes[size_t{hop.port} * lanes_ + hop.queue] += transfers_.uncounted(flow.transfer);
    }
  }
  return bytes;
}

// ---- Control ----------------------------------------------------------------------------------

std::vector<uint8_t> Simulation::jobs_at_ports() const {
  std::vector<uint8_t> passes(ports_ * jobs_.size(), 0);
  for (const Flow& flow : flows_) {
    for (const Hop& hop : flow.path.hops) passes[hop.port * jobs_.size() + flow.spec.traffic] = 1;
  }
  return passes;
}

std::vector<double> Simulation::bytes_left() const {
  std::vector<double> left(jobs_.size() * ports_, 0);
  for (const Flow& flow : flows_) {
    if (flow.is_idle()) continue;
    double bytes = flow.transfer == kNone ? 0 : -transfers_.sent(flow.transfer);
    for (size_t i = flow.first; i < flow.messages.size(); ++i) bytes += flow.messages[i].wire_bytes;
    for (const Hop& hop : flow.path.hops) left[flow.spec.traffic * ports_ + hop.port] += bytes;
  }
  return left;
}

void Simulation::program(std::span<const PortProgram> programs) {
  std::vector<uint8_t> is_moved(ports_, 0);
  for (const PortProgram& program : programs) {
    transfers_.set_queues(program.port, program.queues);
    if (program.queue_of_job.empty()) continue;
    uint32_t* queue_of = &queue_of_[program.port * jobs_.size()];
    for (size_t job = 0; job < jobs_.size(); ++job) {
      is_moved[program.port] |= queue_of[job] != program.queue_of_job[job];
      queue_of[job] = program.queue_of_job[job];
    }
  }
  if (std::find(is_moved.begin(), is_moved.end(), 1) == is_moved.end()) return;
  for (Flow& flow : flows_) {
    for (uint32_t i = 0; i < flow.path.hops.size(); ++i) {
      Hop& hop = flow.path.hops[i];
      const uint32_t queue = queue_of_[hop.port * jobs_.size() + flow.spec.traffic];
      if (!is_moved[hop.port] || hop.queue == queue) continue;
      hop.queue = queue;
      if (flow.transfer != kNone) transfers_.set_queue(flow.transfer, i, queue);
    }
  }
}

void Simulation::order_jobs(std::span<const uint32_t> priorities) {
  for (size_t job = 0; job < jobs_.size(); ++job) jobs_[job].priority = priorities[job];
  for (const Flow& flow : flows_) {
    if (flow.transfer == kNone) continue;
    transfers_.set_priority(flow.transfer, jobs_[flow.spec.traffic].priority);
  }
  transfers_.serve_by_priority();
}

}  // namespace weft::flow
