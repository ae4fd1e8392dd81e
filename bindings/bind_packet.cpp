// The packet simulator: specs in, results out. The GIL is released while events run.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/bind_vector.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/barrier.hpp"
#include "bind_flow_list.hpp"
#include "packet/simulation.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace weft::packet;

namespace {

template <auto Member>
Column flow_column(const FlowList& flows) {
  return column(flows.size(), [&](size_t i) { return flows[i].*Member; });
}

// Rows of all links, or of all their lanes.
using Table = nb::ndarray<nb::numpy, int64_t, nb::ndim<2>>;

template <size_t Columns, class Read>
Table table(size_t count, Read read) {
  const auto [data, owner] = allocate(count * Columns);
  for (size_t i = 0; i < count; ++i) {
    const std::array<int64_t, Columns> row = read(i);
    std::copy(row.begin(), row.end(), data + i * Columns);
  }
  return Table(data, {count, Columns}, owner);
}

Table link_table(const Simulation& sim) {
  return table<3>(sim.links(), [&](size_t i) {
    return std::array<int64_t, 3>{sim.link_from(i), sim.link_port(i), sim.link_to(i)};
  });
}

Table counter_table(const Simulation& sim) {
  const auto lanes = static_cast<size_t>(sim.lanes());
  return table<8>(sim.links() * lanes, [&](size_t i) {
    const LaneCounters c = sim.counters(i / lanes, static_cast<int>(i % lanes));
    return std::array<int64_t, 8>{static_cast<int64_t>(c.xmit_bytes),
                                  static_cast<int64_t>(c.xmit_packets),
                                  static_cast<int64_t>(c.rcv_bytes),
                                  static_cast<int64_t>(c.rcv_packets),
                                  c.xmit_wait,
                                  static_cast<int64_t>(c.marked),
                                  c.peak_blocks,
                                  c.peak_backlog};
  });
}

using HostNumbers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

using Schedule = std::vector<std::pair<Time, int64_t>>;  // (ps, bytes)

Schedule get_schedule(const FlowSpec& flow) {
  Schedule schedule;
  for (const ScheduledMessage& m : flow.schedule) schedule.emplace_back(m.time, m.size);
  return schedule;
}

void set_schedule(FlowSpec& flow, const Schedule& schedule) {
  flow.schedule.clear();
  for (const auto& [time, size] : schedule) flow.schedule.push_back({time, size});
}

void add_flows(FlowList& flows, const FlowSpec& like, const HostNumbers& sources,
               const HostNumbers& targets) {
  if (sources.size() != targets.size()) throw nb::value_error("a source without a target");
  flows.reserve(flows.size() + sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    FlowSpec& flow = flows.emplace_back(like);
    flow.src = static_cast<uint32_t>(sources.data()[i]);
    flow.dst = static_cast<uint32_t>(targets.data()[i]);
  }
}

// Flows of a part: of one group each, or all of the first; triggers count from the part's start.
void extend_part(FlowList& flows, const FlowList& part, const std::vector<uint32_t>& groups,
                 uint32_t traffic) {
  const auto base = static_cast<int32_t>(flows.size());
  flows.reserve(flows.size() + part.size());
  for (size_t i = 0; i < part.size(); ++i) {
    FlowSpec& flow = flows.emplace_back(part[i]);
    flow.group = groups[std::min(i, groups.size() - 1)];
    flow.traffic = traffic;
    if (flow.triggers >= 0) flow.triggers += base;
  }
}

void bind_enums(nb::module_& m) {
  nb::enum_<Transport>(m, "Transport")
      .value("RC", Transport::kRc)
      .value("UC", Transport::kUc)
      .value("UD", Transport::kUd);
  nb::enum_<Op>(m, "Op")
      .value("SEND", Op::kSend)
      .value("WRITE", Op::kWrite)
      .value("WRITE_WITH_IMM", Op::kWriteImm)
      .value("READ", Op::kRead);
  nb::enum_<Order>(m, "Order")
      .value("FCFS", Order::kFcfs)
      .value("FCFS_AGE", Order::kFcfsAge)
      .value("ROUND_ROBIN", Order::kRoundRobin);
  nb::enum_<Pattern>(m, "Pattern")
      .value("STREAM", Pattern::kStream)
      .value("PROBE", Pattern::kProbe)
      .value("PACED", Pattern::kPaced)
      .value("SCHEDULE", Pattern::kSchedule)
      .value("TRIGGERED", Pattern::kTriggered)
      .value("WORKLOAD", Pattern::kWorkload);
  nb::enum_<Estimator>(m, "Estimator")
      .value("COMPLETION", Estimator::kCompletion)
      .value("PING_PONG", Estimator::kPingPong)
      .value("RPERF_WIRE_FIRST", Estimator::kRPerfWireFirst)
      .value("RPERF_LOOPBACK_FIRST", Estimator::kRPerfLoopbackFirst)
      .value("RPERF_ALTERNATING", Estimator::kRPerfAlternating);
  nb::enum_<Status>(m, "Status")
      .value("RUNNING", Status::kRunning)
      .value("TIME_UP", Status::kTimeUp)
      .value("FINISHED", Status::kFinished)
      .value("DEADLOCK", Status::kDeadlock);
}

ArbTables make_tables(const std::vector<std::array<int, 2>>& high,
                      const std::vector<std::array<int, 2>>& low, int high_limit) {
  ArbTables tables;
  for (const auto& [vl, weight] : high) {
    tables.high.push_back({static_cast<uint8_t>(vl), static_cast<uint8_t>(weight)});
  }
  for (const auto& [vl, weight] : low) {
    tables.low.push_back({static_cast<uint8_t>(vl), static_cast<uint8_t>(weight)});
  }
  tables.high_limit = high_limit;
  return tables;
}

void bind_parts(nb::module_& m) {
  nb::class_<ArbTables>(m, "ArbTables")
      .def(
          "__init__",
          [](ArbTables* self, const std::vector<std::array<int, 2>>& high,
             const std::vector<std::array<int, 2>>& low,
             int high_limit) { new (self) ArbTables(make_tables(high, low, high_limit)); },
          "high"_a, "low"_a, "high_limit"_a)
      .def_rw("strict", &ArbTables::strict);
  nb::class_<CongestionControl>(m, "CongestionControl")
      .def(nb::init<>())
      .def_rw("enabled", &CongestionControl::enabled)
      .def_rw("threshold_bytes", &CongestionControl::threshold_bytes)
      .def_rw("marking_rate", &CongestionControl::marking_rate)
      .def_rw("increase", &CongestionControl::increase)
      .def_rw("limit", &CongestionControl::limit)
      .def_rw("timer_ps", &CongestionControl::timer)
      .def_rw("step", &CongestionControl::step);
  nb::class_<SwitchSpec>(m, "SwitchSpec")
      .def(nb::init<>())
      .def_rw("latency_ps", &SwitchSpec::latency)
      .def_rw("jitter_mean_ps", &SwitchSpec::jitter_mean)
      .def_rw("order", &SwitchSpec::order)
      .def_rw("virtual_output_queues", &SwitchSpec::virtual_output_queues)
      .def_rw("crossbar_speedup", &SwitchSpec::crossbar_speedup)
      .def_rw("congestion", &SwitchSpec::congestion);
  nb::class_<CreditSpec>(m, "CreditSpec")
      .def(nb::init<>())
      .def_rw("switch_buffer_bytes", &CreditSpec::switch_buffer_bytes)
      .def_rw("host_buffer_bytes", &CreditSpec::host_buffer_bytes)
      .def_rw("interval_ps", &CreditSpec::interval)
      .def_rw("delay_ps", &CreditSpec::delay);
  nb::class_<GrantSpec>(m, "GrantSpec")
      .def(nb::init<>())
      .def_rw("enabled", &GrantSpec::enabled)
      .def_rw("ahead_bytes", &GrantSpec::ahead)
      .def_rw("messages", &GrantSpec::messages)
      .def_rw("cutoffs_bytes", &GrantSpec::cutoffs)
      .def_rw("by_left", &GrantSpec::by_left)
      .def_rw("priorities", &GrantSpec::priorities);
  nb::class_<AdapterSpec>(m, "AdapterSpec")
      .def(nb::init<>())
      .def_rw("post_ps", &AdapterSpec::post)
      .def_rw("hiccup_mean_ps", &AdapterSpec::hiccup_mean)
      .def_rw("hiccup_probability", &AdapterSpec::hiccup_probability)
      .def_rw("poll_ps", &AdapterSpec::poll)
      .def_rw("poll_jitter_mean_ps", &AdapterSpec::poll_jitter_mean)
      .def_rw("pcie_read_ps", &AdapterSpec::pcie_read)
      .def_rw("pcie_write_ps", &AdapterSpec::pcie_write)
      .def_rw("pcie_read_bps", &AdapterSpec::pcie_read_bps)
      .def_rw("pcie_write_bps", &AdapterSpec::pcie_write_bps)
      .def_rw("tx_ps", &AdapterSpec::tx)
      .def_rw("rx_ps", &AdapterSpec::rx)
      .def_rw("write_ack_ps", &AdapterSpec::write_ack)
      .def_rw("doorbell_gap_ps", &AdapterSpec::doorbell_gap)
      .def_rw("message_gap_ps", &AdapterSpec::message_gap)
      .def_rw("packet_gap_ps", &AdapterSpec::packet_gap)
      .def_rw("inline_bytes", &AdapterSpec::inline_bytes)
      .def_rw("loopback_bps", &AdapterSpec::loopback_bps)
      .def_rw("grants", &AdapterSpec::grants);
}

using Numbers = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<uint32_t> copy_of(const Numbers& numbers) {
  return {numbers.data(), numbers.data() + numbers.size()};
}

void bind_placed_workload(nb::module_& m) {
  nb::class_<WorkloadSpec>(m, "WorkloadSpec")
      .def(
          "__init__",
          [](WorkloadSpec* self, const weft::workload::Operations& operations, const Numbers& host,
             const Numbers& traffic, std::vector<Time> begin_ps, const Numbers& flow) {
            new (self) WorkloadSpec{operations, copy_of(host), copy_of(traffic),
                                    std::move(begin_ps), copy_of(flow)};
          },
          nb::kw_only(), "operations"_a, "host"_a, "traffic"_a, "begin_ps"_a, "flow"_a);
}

void bind_network(nb::module_& m) {
  nb::class_<NetworkSpec>(m, "NetworkSpec")
      .def(nb::init<>())
      .def_rw("is_switch", &NetworkSpec::is_switch)
      .def("add_cable",
           [](NetworkSpec& n, uint32_t a, uint32_t a_port, uint32_t b, uint32_t b_port,
              double rate_bps, Time delay_ps) {
             n.cables.push_back({a, a_port, b, b_port, rate_bps, delay_ps});
           })
      .def("set_routes",
           [](NetworkSpec& n,
              nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> next_hop,
              std::vector<uint32_t> start, std::vector<uint32_t> ports) {
             n.next_hop.assign(next_hop.data(), next_hop.data() + next_hop.size());
             n.group_start = std::move(start);
             n.group_ports = std::move(ports);
           })
      .def_rw("lanes", &NetworkSpec::lanes)
      .def_rw("sl2vl", &NetworkSpec::sl2vl)
      .def_rw("arbitration", &NetworkSpec::arbitration)
      .def("override_sl2vl",
           [](NetworkSpec& n, uint32_t node, uint32_t in_port, uint32_t out_port, SlToVl map) {
             n.sl2vl_overrides.push_back({node, in_port, out_port, map});
           })
      .def("override_arbitration",
           [](NetworkSpec& n, uint32_t node, uint32_t port, const ArbTables& tables) {
             n.arbitration_overrides.push_back({node, port, tables});
           })
      .def("override_buffer",
           [](NetworkSpec& n, uint32_t node, uint32_t port, int vl, int64_t bytes) {
             n.buffer_overrides.push_back({node, port, vl, bytes});
           })
      .def_rw("switches", &NetworkSpec::switches)
      .def_rw("credits", &NetworkSpec::credits)
      .def_rw("adapter", &NetworkSpec::adapter);
  nb::class_<FlowSpec>(m, "FlowSpec")
      .def(nb::init<>())
      .def(nb::init<const FlowSpec&>())
      .def_rw("src", &FlowSpec::src)
      .def_rw("dst", &FlowSpec::dst)
      .def_rw("pattern", &FlowSpec::pattern)
      .def_rw("estimator", &FlowSpec::estimator)
      .def_rw("transport", &FlowSpec::transport)
      .def_rw("op", &FlowSpec::op)
      .def_rw("size_bytes", &FlowSpec::size)
      .def_rw("mtu", &FlowSpec::mtu)
      .def_rw("sl", &FlowSpec::sl)
      .def_rw("window", &FlowSpec::window)
      .def_rw("batch", &FlowSpec::batch)
      .def_rw("ack_every", &FlowSpec::ack_every)
      .def_rw("ack_bytes", &FlowSpec::ack_bytes)
      .def_rw("rate_bps", &FlowSpec::rate_bps)
      .def_rw("messages", &FlowSpec::messages)
      .def_rw("start_ps", &FlowSpec::start)
      .def_rw("stop_ps", &FlowSpec::stop)
      .def_rw("think_ps", &FlowSpec::think)
      .def_rw("interval_ps", &FlowSpec::interval)
      .def_rw("poisson", &FlowSpec::poisson)
      .def_rw("allow_inline", &FlowSpec::allow_inline)
      .def_rw("group", &FlowSpec::group)
      .def_rw("traffic", &FlowSpec::traffic)
      .def_rw("stops_with", &FlowSpec::stops_with)
      .def_rw("triggers", &FlowSpec::triggers)
      .def_rw("initial_triggers", &FlowSpec::initial_triggers)
      .def_prop_rw("schedule", &get_schedule, &set_schedule);
  nb::bind_vector<FlowList>(m, "FlowList")
      .def("add", &add_flows, "like"_a, "sources"_a, "targets"_a)
      .def("extend_part", &extend_part, "part"_a, "groups"_a, "traffic"_a)
      .def_prop_ro("sources", &flow_column<&FlowSpec::src>, nb::rv_policy::automatic)
      .def_prop_ro("targets", &flow_column<&FlowSpec::dst>, nb::rv_policy::automatic)
      .def_prop_ro("service_levels", &flow_column<&FlowSpec::sl>, nb::rv_policy::automatic)
      .def_prop_ro("messages", &flow_column<&FlowSpec::messages>, nb::rv_policy::automatic)
      .def_prop_ro("starts_ps", &flow_column<&FlowSpec::start>, nb::rv_policy::automatic)
      .def_prop_ro("stops_with", &flow_column<&FlowSpec::stops_with>, nb::rv_policy::automatic)
      .def_prop_ro("largest_packet_bytes", [](const FlowList& flows) {
        int largest = 0;
        for (const FlowSpec& flow : flows) largest = std::max(largest, largest_packet(flow));
        return largest;
      });
  nb::class_<RunSpec>(m, "RunSpec")
      .def(nb::init<>())
      .def_rw("seed", &RunSpec::seed)
      .def_rw("duration_ps", &RunSpec::duration)
      .def_rw("warmup_ps", &RunSpec::warmup)
      .def_rw("sample_interval_ps", &RunSpec::sample_interval)
      .def_rw("groups", &RunSpec::groups)
      .def_rw("first_flow", &RunSpec::first_flow)
      .def_rw("stop_when_done", &RunSpec::stop_when_done)
      .def_rw("check_invariants", &RunSpec::check_invariants)
      .def_rw("skip_steady", &RunSpec::skip_steady)
      .def_rw("threads", &RunSpec::threads)
      .def_rw("partitioned_links", &RunSpec::partitioned_links);
}

void bind_results(nb::module_& m) {
  nb::class_<LaneCounters>(m, "LaneCounters")
      .def_ro("xmit_bytes", &LaneCounters::xmit_bytes)
      .def_ro("xmit_packets", &LaneCounters::xmit_packets)
      .def_ro("rcv_bytes", &LaneCounters::rcv_bytes)
      .def_ro("rcv_packets", &LaneCounters::rcv_packets)
      .def_ro("xmit_wait_ps", &LaneCounters::xmit_wait)
      .def_ro("marked", &LaneCounters::marked)
      .def_ro("peak_blocks", &LaneCounters::peak_blocks)
      .def_ro("peak_backlog_bytes", &LaneCounters::peak_backlog);
  nb::class_<FlowResult>(m, "FlowResult")
      .def_ro("posted", &FlowResult::posted)
      .def_ro("completed", &FlowResult::completed)
      .def_ro("delivered", &FlowResult::delivered)
      .def_ro("bytes", &FlowResult::bytes)
      .def_ro("messages", &FlowResult::messages)
      .def_ro("first_delivery_ps", &FlowResult::first_delivery)
      .def_ro("last_delivery_ps", &FlowResult::last_delivery)
      .def_ro("finished_ps", &FlowResult::finished)
      .def_ro("stop_ps", &FlowResult::stop);
  nb::class_<GroupResult>(m, "GroupResult")
      .def_ro("rtt", &GroupResult::rtt)
      .def_ro("one_way", &GroupResult::one_way)
      .def_ro("switch_time", &GroupResult::switch_time);
  nb::class_<BlockedLane>(m, "BlockedLane")
      .def_ro("link", &BlockedLane::link)
      .def_ro("vl", &BlockedLane::vl)
      .def_ro("out_link", &BlockedLane::out_link)
      .def_ro("out_vl", &BlockedLane::out_vl)
      .def_ro("waited_ps", &BlockedLane::waited)
      .def_ro("no_credit", &BlockedLane::no_credit);
}

nb::ndarray<nb::numpy, const int32_t> samples_array(const Simulation& sim) {
  const size_t columns = sim.links() * static_cast<size_t>(sim.lanes());
  return nb::ndarray<nb::numpy, const int32_t>(sim.samples().data(),
                                               {sim.sample_times().size(), columns});
}

nb::ndarray<nb::numpy, const uint32_t> window_events_array(const Simulation& sim) {
  const size_t windows = sim.window_events().size() / sim.partitions();
  return nb::ndarray<nb::numpy, const uint32_t>(sim.window_events().data(),
                                                {windows, sim.partitions()});
}

void bind_simulation(nb::module_& m) {
  m.def("measure_barrier_ns", &weft::measure_barrier_ns, "threads"_a, "meetings"_a,
        nb::call_guard<nb::gil_scoped_release>());
  nb::exception<BrokenInvariant>(m, "BrokenInvariant");
  nb::class_<Simulation> simulation(m, "Simulation");
  bind_flow_results(simulation);
  simulation
      .def(
          "__init__",
          [](Simulation* self, const NetworkSpec& network, FlowList& flows, const RunSpec& run,
             std::shared_ptr<const WorkloadSpec> workload) {
            new (self) Simulation(network, std::move(flows), run, std::move(workload));
            flows.clear();
          },
          "network"_a, "flows"_a, "run"_a, "workload"_a.none() = nb::none())
      .def("run", &Simulation::run, "max_events"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("set_arbitration", &Simulation::set_arbitration, "node"_a, "port"_a, "tables"_a)
      .def("set_rate", &Simulation::set_rate, "flow"_a, "rate_bps"_a)
      .def_prop_ro("skipped_ps", &Simulation::skipped)
      .def_prop_ro("packet_hops", &Simulation::packet_hops)
      .def_prop_ro("packets_alive", &Simulation::packets_alive)
      .def_prop_ro("partitions", &Simulation::partitions)
      .def_prop_ro("lookahead_ps", &Simulation::lookahead)
      .def_prop_ro("threads", &Simulation::threads)
      .def("keep_accounts", &Simulation::keep_accounts)
      .def("window_events", &window_events_array, nb::rv_policy::reference_internal)
      .def("group", [](const Simulation& s, size_t i) { return s.group(i); })
      .def_prop_ro("links", &Simulation::links)
      .def("link",
           [](const Simulation& s, size_t i) {
             return nb::make_tuple(s.link_from(i), s.link_port(i), s.link_to(i));
           })
      .def("counters", &Simulation::counters)
      .def("link_table", &link_table)
      .def("counter_table", &counter_table)
      .def("head_of_line_share", &Simulation::head_of_line_share)
      .def("blocked", &Simulation::blocked, "limit_ps"_a)
      .def("deadlock_cycle", &Simulation::deadlock_cycle)
      .def_prop_ro("sample_times_ps", &Simulation::sample_times)
      .def("samples", &samples_array, nb::rv_policy::reference_internal);
}

}  // namespace

void bind_packet(nb::module_& m) {
  bind_enums(m);
  bind_parts(m);
  bind_network(m);
  bind_placed_workload(m);
  bind_results(m);
  bind_simulation(m);
}
