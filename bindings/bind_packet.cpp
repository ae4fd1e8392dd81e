// The packet simulator: specs in, results out. The GIL is released while events run.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "packet/simulation.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace weft::packet;

namespace {

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
      .value("TRIGGERED", Pattern::kTriggered);
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
          "high"_a, "low"_a, "high_limit"_a);
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
      .def_rw("congestion", &SwitchSpec::congestion);
  nb::class_<CreditSpec>(m, "CreditSpec")
      .def(nb::init<>())
      .def_rw("switch_buffer_bytes", &CreditSpec::switch_buffer_bytes)
      .def_rw("host_buffer_bytes", &CreditSpec::host_buffer_bytes)
      .def_rw("interval_ps", &CreditSpec::interval)
      .def_rw("delay_ps", &CreditSpec::delay);
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
      .def_rw("loopback_bps", &AdapterSpec::loopback_bps);
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
              nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> next_hop,
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
      .def_rw("triggers", &FlowSpec::triggers)
      .def_rw("initial_triggers", &FlowSpec::initial_triggers)
      .def_rw("schedule_times_ps", &FlowSpec::schedule_times)
      .def_rw("schedule_sizes_bytes", &FlowSpec::schedule_sizes);
  nb::class_<RunSpec>(m, "RunSpec")
      .def(nb::init<>())
      .def_rw("seed", &RunSpec::seed)
      .def_rw("duration_ps", &RunSpec::duration)
      .def_rw("warmup_ps", &RunSpec::warmup)
      .def_rw("sample_interval_ps", &RunSpec::sample_interval)
      .def_rw("groups", &RunSpec::groups)
      .def_rw("stop_when_done", &RunSpec::stop_when_done)
      .def_rw("check_invariants", &RunSpec::check_invariants);
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
      .def_ro("finished_ps", &FlowResult::finished);
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

void bind_simulation(nb::module_& m) {
  nb::exception<BrokenInvariant>(m, "BrokenInvariant");
  nb::class_<Simulation>(m, "Simulation")
      .def(nb::init<const NetworkSpec&, std::vector<FlowSpec>, const RunSpec&>())
      .def("run", &Simulation::run, "max_events"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("now_ps", &Simulation::now)
      .def_prop_ro("events", &Simulation::events)
      .def_prop_ro("packet_hops", &Simulation::packet_hops)
      .def_prop_ro("packets_alive", &Simulation::packets_alive)
      .def("group", [](const Simulation& s, size_t i) { return s.groups().at(i); })
      .def("flow", &Simulation::flow)
      .def_prop_ro("links", &Simulation::links)
      .def("link",
           [](const Simulation& s, size_t i) {
             return nb::make_tuple(s.link_from(i), s.link_port(i), s.link_to(i));
           })
      .def("counters", &Simulation::counters)
      .def("blocked", &Simulation::blocked, "limit_ps"_a)
      .def("deadlock_cycle", &Simulation::deadlock_cycle)
      .def_prop_ro("sample_times_ps", &Simulation::sample_times)
      .def("samples", &samples_array, nb::rv_policy::reference_internal);
}

}  // namespace

void bind_packet(nb::module_& m) {
  bind_enums(m);
  m.def("largest_header", &largest_header, "transport"_a, "op"_a);
  bind_parts(m);
  bind_network(m);
  bind_results(m);
  bind_simulation(m);
}
