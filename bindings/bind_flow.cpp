// Max-min fair rates and transfers at these rates. Rates are bits per second, times ps.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "bind_flow_list.hpp"
#include "flow/simulation.hpp"
#include "flow/transfers.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace weft::flow;
using weft::packet::NetworkSpec;
using weft::packet::RunSpec;
using weft::packet::WorkloadSpec;

namespace {

constexpr double kBitsPerSecond = 8e12;  // of a byte per ps

using Queues = std::vector<std::pair<double, int>>;
using Path = std::vector<std::array<uint32_t, 2>>;

std::vector<QueueSpec> make_queues(const Queues& queues) {
  std::vector<QueueSpec> specs;
  for (const auto& [weight, priority] : queues) specs.push_back({weight, priority});
  return specs;
}

std::vector<Hop> make_path(const Path& path) {
  std::vector<Hop> hops;
  for (const auto& [port, queue] : path) hops.push_back({port, queue});
  return hops;
}

void bind_max_min(nb::module_& m) {
  nb::class_<MaxMin>(m, "MaxMin")
      .def(nb::init<>())
      .def(
          "add_port",
          [](MaxMin& self, double capacity, const Queues& queues) {
            return self.add_port(capacity, make_queues(queues));
          },
          "capacity"_a, "queues"_a = Queues{{1.0, 0}})
      .def(
          "add_flow",
          [](MaxMin& self, const Path& path, double weight, double cap) {
            return self.add_flow(make_path(path), weight, cap);
          },
          "path"_a, "weight"_a = 1.0, "cap"_a = kUnlimited)
      .def("remove_flow", &MaxMin::remove_flow, "flow"_a)
      .def(
          "set_queues",
          [](MaxMin& self, uint32_t port, const Queues& queues) {
            self.set_queues(port, make_queues(queues));
          },
          "port"_a, "queues"_a)
      .def("set_queue", &MaxMin::set_queue, "flow"_a, "hop"_a, "queue"_a)
      .def("set_tolerance", &MaxMin::set_tolerance, "tolerance"_a)
      .def("solve", &MaxMin::solve, nb::call_guard<nb::gil_scoped_release>())
      .def("rate", &MaxMin::rate, "flow"_a)
      .def_prop_ro("port_solutions", &MaxMin::port_solutions)
      .def_prop_ro("sweeps", &MaxMin::sweeps);
}

void bind_transfers(nb::module_& m) {
  nb::class_<Transfers>(m, "Transfers")
      .def(nb::init<>())
      .def(
          "add_port",
          [](Transfers& self, double rate_bps, const Queues& queues) {
            return self.add_port(rate_bps / kBitsPerSecond, make_queues(queues));
          },
          "rate_bps"_a, "queues"_a = Queues{{1.0, 0}})
      .def(
          "start",
          [](Transfers& self, const Path& path, double size_bytes, double weight, double cap_bps) {
            return self.start(make_path(path), size_bytes, weight, cap_bps / kBitsPerSecond);
          },
          "path"_a, "size_bytes"_a, "weight"_a = 1.0, "cap_bps"_a = kUnlimited)
      .def("stop", &Transfers::stop, "transfer"_a)
      .def("set_step", &Transfers::set_step, "step_ps"_a)
      .def("set_tolerance", &Transfers::set_tolerance, "tolerance"_a)
      .def(
          "set_queues",
          [](Transfers& self, uint32_t port, const Queues& queues) {
            self.set_queues(port, make_queues(queues));
          },
          "port"_a, "queues"_a)
      .def("set_queue", &Transfers::set_queue, "transfer"_a, "hop"_a, "queue"_a)
      .def("set_priority", &Transfers::set_priority, "transfer"_a, "priority"_a)
      .def("serve_by_queues", &Transfers::serve_by_queues)
      .def("serve_by_priority", &Transfers::serve_by_priority)
      .def("serve_by_bytes_left", &Transfers::serve_by_bytes_left,
           "cutoffs"_a = std::vector<double>{})
      .def("next_end_ps", &Transfers::next_end, nb::call_guard<nb::gil_scoped_release>())
      .def("advance", &Transfers::advance, "time_ps"_a)
      .def("rate_bps",
           [](Transfers& self, uint32_t transfer) { return self.rate(transfer) * kBitsPerSecond; })
      .def("sent_bytes", &Transfers::sent, "transfer"_a)
      .def("carried_bytes", &Transfers::carried, "port"_a, "queue"_a = 0)
      .def_prop_ro("now_ps", &Transfers::now)
      .def_prop_ro("active", &Transfers::active)
      .def_prop_ro("port_solutions", &Transfers::port_solutions);
}

using Weights = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using PortNumbers = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Row i of each is of port i of `ports`; without rows of `queue_of_job` jobs stay in their queues.
void program(Simulation& self, const PortNumbers& ports, const Weights& weights,
             const Numbers& priorities, const Numbers& queue_of_job) {
  const size_t queues = weights.shape(1), jobs = queue_of_job.shape(1);
  std::vector<QueueSpec> specs;
  for (size_t i = 0; i < ports.size() * queues; ++i) {
    specs.push_back({weights.data()[i], static_cast<int>(priorities.data()[i])});
  }
  std::vector<PortProgram> programs;
  for (size_t i = 0; i < ports.size(); ++i) {
    PortProgram row{ports.data()[i], {&specs[i * queues], queues}, {}};
    if (queue_of_job.shape(0) > 0) row.queue_of_job = {queue_of_job.data() + i * jobs, jobs};
    programs.push_back(row);
  }
  self.program(programs);
}

// An array of its own, of `rows` rows.
template <class T>
nb::ndarray<nb::numpy, T> to_array(std::vector<T> values, size_t rows) {
  auto* data = new std::vector<T>(std::move(values));
  const nb::capsule owner(data, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(data->data(), {rows, rows ? data->size() / rows : 0}, owner);
}

std::vector<uint32_t> list_jobs(const Simulation& self, bool (Simulation::*is)(size_t) const) {
  std::vector<uint32_t> jobs;
  for (size_t job = 0; job < self.jobs(); ++job) {
    if ((self.*is)(job)) jobs.push_back(static_cast<uint32_t>(job));
  }
  return jobs;
}

void bind_control(nb::class_<Simulation>& simulation) {
  simulation.def("take_change", &Simulation::take_change)
      .def_prop_ro("jobs", &Simulation::jobs)
      .def_prop_ro("ports", &Simulation::ports)
      .def_prop_ro("present",
                   [](const Simulation& s) { return list_jobs(s, &Simulation::is_present); })
      .def_prop_ro("sending",
                   [](const Simulation& s) { return list_jobs(s, &Simulation::is_sending); })
      .def(
          "jobs_at_ports",
          [](const Simulation& s) { return to_array(s.jobs_at_ports(), s.ports()); },
          nb::rv_policy::automatic)
      .def(
          "bytes_left", [](const Simulation& s) { return to_array(s.bytes_left(), s.jobs()); },
          nb::rv_policy::automatic)
      .def("program", &program, "ports"_a, "weights"_a, "priorities"_a, "queue_of_job"_a)
      .def(
          "order_jobs",
          [](Simulation& s, const std::vector<uint32_t>& priorities) { s.order_jobs(priorities); },
          "priorities"_a)
      .def("order_by_bytes_left", &Simulation::order_by_bytes_left, "cutoffs"_a)
      .def("order_by_queues", &Simulation::order_by_queues);
}

void bind_flow_simulation(nb::module_& m) {
  nb::class_<Simulation> simulation(m, "FlowSimulation");
  bind_control(simulation);
  bind_flow_results(simulation);
  simulation
      .def(
          "__init__",
          [](Simulation* self, const NetworkSpec& network, FlowList& flows, const RunSpec& run,
             std::shared_ptr<const WorkloadSpec> workload, Time step, double tolerance,
             uint32_t queues, bool watch_stages) {
            new (self) Simulation(network, std::move(flows), run, std::move(workload),
                                  Accuracy{step, tolerance}, Control{queues, watch_stages});
            flows.clear();
          },
          "network"_a, "flows"_a, "run"_a, "workload"_a.none() = nb::none(), nb::kw_only(),
          "step_ps"_a = 0, "tolerance"_a = 0.0, "queues"_a = 0, "watch_stages"_a = false)
      .def("run", &Simulation::run, "max_events"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("carried_bytes", &Simulation::carried);
}

}  // namespace

void bind_flow(nb::module_& m) {
  bind_max_min(m);
  bind_transfers(m);
  bind_flow_simulation(m);
}
