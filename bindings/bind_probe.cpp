// weft._core's timed loops: names, units, the GIL; the loops are core/probe.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "bind_endpoint.hpp"
#include "probe/loops.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using weft::python::OpenEndpoint;
using namespace weft::probe;

namespace {

using Numbers = nb::ndarray<nb::numpy, const int64_t, nb::ndim<1>, nb::c_contig>;

// A view of the result's own memory, which lives as long as the array does.
template <class Result>
auto view(std::vector<int64_t> Result::*member) {
  return [member](nb::handle_t<Result> self) {
    const auto& values = nb::cast<const Result&>(self).*member;
    return Numbers(values.data(), {values.size()}, self);
  };
}

std::vector<Endpoint*> all_of(const std::vector<OpenEndpoint*>& endpoints) {
  std::vector<Endpoint*> used;
  for (OpenEndpoint* endpoint : endpoints) used.push_back(&endpoint->use());
  return used;
}

StreamSpec stream_spec(const RunSpec& run, uint32_t window, uint32_t post_list,
                       uint32_t signal_every, double rate) {
  return {run, window, post_list, signal_every, rate};
}

PairOrder order_named(const std::string& name) {
  if (name == "wire-first") return PairOrder::wire_first;
  if (name == "loopback-first") return PairOrder::loopback_first;
  if (name == "alternating") return PairOrder::alternating;
  throw weft::Error("order", "'" + name + "' is unknown",
                    "use wire-first, loopback-first or alternating");
}

void bind_run(nb::module_& m) {
  nb::class_<StopFlag>(m, "StopFlag")
      .def(nb::init<>())
      .def("set", &StopFlag::set)
      .def("finish_at", &StopFlag::finish_at, "messages"_a)
      .def_prop_ro("is_set", &StopFlag::is_set)
      .def_prop_ro("done", &StopFlag::done);
  nb::class_<RunSpec>(m, "LoopSpec")
      .def(nb::init<>())
      .def_rw("count", &RunSpec::count)
      .def_rw("duration_ns", &RunSpec::duration_ns)
      .def_rw("warmup", &RunSpec::warmup)
      .def_rw("bytes", &RunSpec::bytes)
      .def_prop_rw(
          "op", [](const RunSpec& self) { return std::string(name_of(self.op)); },
          [](RunSpec& self, const std::string& name) { self.op = weft::transport::op_named(name); })
      .def_rw("block", &RunSpec::block)
      .def_rw("validate", &RunSpec::validate)
      .def_rw("cpu", &RunSpec::cpu)
      .def_rw("samples", &RunSpec::samples)
      .def_rw("loss_timeout_ns", &RunSpec::loss_timeout_ns)
      .def_rw("seed", &RunSpec::seed);
}

void bind_results(nb::module_& m) {
  nb::class_<Counts>(m, "Counts")
      .def_ro("sent", &Counts::sent)
      .def_ro("received", &Counts::received)
      .def_ro("lost", &Counts::lost)
      .def_ro("reordered", &Counts::reordered)
      .def_ro("duplicates", &Counts::duplicates)
      .def_ro("corrupted", &Counts::corrupted)
      .def_ro("bytes", &Counts::bytes)
      .def_ro("elapsed_ns", &Counts::elapsed_ns)
      .def_prop_ro("user_ns", [](const Counts& self) { return self.cpu.user_ns; })
      .def_prop_ro("system_ns", [](const Counts& self) { return self.cpu.system_ns; })
      .def_ro("stopped", &Counts::stopped)
      .def_ro("error", &Counts::error);
  nb::class_<LatencyResult>(m, "LatencyResult")
      .def_ro("counts", &LatencyResult::counts)
      .def_ro("latency", &LatencyResult::latency)
      .def_prop_ro("samples", view(&LatencyResult::samples));
  nb::class_<PostPollResult>(m, "PostPollResult")
      .def_ro("counts", &PostPollResult::counts)
      .def_ro("rtt", &PostPollResult::rtt)
      .def_ro("post_poll", &PostPollResult::post_poll)
      .def_ro("loopback", &PostPollResult::loopback)
      .def_ro("device_rtt", &PostPollResult::device_rtt)
      .def_ro("negative", &PostPollResult::negative)
      .def_prop_ro("samples", view(&PostPollResult::samples))
      .def_prop_ro("loopback_samples", view(&PostPollResult::loopback_samples));
  nb::class_<PacedResult>(m, "PacedResult")
      .def_ro("counts", &PacedResult::counts)
      .def_ro("latency", &PacedResult::latency)
      .def_ro("service", &PacedResult::service)
      .def_ro("lateness", &PacedResult::lateness)
      .def_prop_ro("samples", view(&PacedResult::samples))
      .def_prop_ro("intended_ns", view(&PacedResult::intended_ns))
      .def_prop_ro("late_ps", view(&PacedResult::late_ps));
}

void bind_latency_loops(nb::module_& m) {
  m.def(
      "ping_pong",
      [](OpenEndpoint& endpoint, const RunSpec& spec, StopFlag& stop) {
        return ping_pong(endpoint.use(), spec, stop);
      },
      "endpoint"_a, "spec"_a, "stop"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "echo",
      [](OpenEndpoint& endpoint, const RunSpec& spec, StopFlag& stop) {
        return echo(endpoint.use(), spec, stop);
      },
      "endpoint"_a, "spec"_a, "stop"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "write_ping_pong",
      [](OpenEndpoint& endpoint, const RunSpec& spec, StopFlag& stop) {
        return write_ping_pong(endpoint.use(), spec, stop);
      },
      "endpoint"_a, "spec"_a, "stop"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "write_echo",
      [](OpenEndpoint& endpoint, const RunSpec& spec, StopFlag& stop) {
        return write_echo(endpoint.use(), spec, stop);
      },
      "endpoint"_a, "spec"_a, "stop"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "complete",
      [](OpenEndpoint& endpoint, const RunSpec& spec, StopFlag& stop) {
        return complete(endpoint.use(), spec, stop);
      },
      "endpoint"_a, "spec"_a, "stop"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "post_poll",
      [](OpenEndpoint& wire, OpenEndpoint& loopback, const RunSpec& spec, const std::string& order,
         double device_hz, StopFlag& stop) {
        return post_poll(wire.use(), loopback.use(), spec, order_named(order), device_hz, stop);
      },
      "wire"_a, "loopback"_a, "spec"_a, "order"_a, "device_hz"_a, "stop"_a,
      nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "paced",
      [](OpenEndpoint& endpoint, const RunSpec& spec, StopFlag& stop, double rate, bool poisson,
         uint32_t window) {
        return paced(endpoint.use(), {spec, rate, poisson, window}, stop);
      },
      "endpoint"_a, "spec"_a, "stop"_a, nb::kw_only(), "rate"_a, "poisson"_a = false,
      "window"_a = 64, nb::call_guard<nb::gil_scoped_release>());
}

void bind_stream_loops(nb::module_& m) {
  m.def(
      "stream",
      [](const std::vector<OpenEndpoint*>& endpoints, const RunSpec& spec, StopFlag& stop,
         uint32_t window, uint32_t post_list, uint32_t signal_every, double rate) {
        const auto used = all_of(endpoints);
        nb::gil_scoped_release release;
        return stream(used, stream_spec(spec, window, post_list, signal_every, rate), stop);
      },
      "endpoints"_a, "spec"_a, "stop"_a, nb::kw_only(), "window"_a = 1, "post_list"_a = 1,
      "signal_every"_a = 1, "rate"_a = 0.0);
  m.def(
      "sink",
      [](const std::vector<OpenEndpoint*>& endpoints, const RunSpec& spec, StopFlag& stop) {
        const auto used = all_of(endpoints);
        nb::gil_scoped_release release;
        return sink(used, spec, stop);
      },
      "endpoints"_a, "spec"_a, "stop"_a);
  m.def(
      "duplex",
      [](const std::vector<OpenEndpoint*>& endpoints, const RunSpec& spec, StopFlag& stop,
         uint32_t window, uint32_t post_list, uint32_t signal_every, double rate) {
        const auto used = all_of(endpoints);
        nb::gil_scoped_release release;
        auto both = duplex(used, stream_spec(spec, window, post_list, signal_every, rate), stop);
        return std::make_pair(std::move(both.sent), std::move(both.received));
      },
      "endpoints"_a, "spec"_a, "stop"_a, nb::kw_only(), "window"_a = 1, "post_list"_a = 1,
      "signal_every"_a = 1, "rate"_a = 0.0);
  m.def(
      "serve_window",
      [](const std::vector<OpenEndpoint*>& endpoints, const RunSpec& spec, StopFlag& stop) {
        const auto used = all_of(endpoints);
        nb::gil_scoped_release release;
        return serve_window(used, spec, stop);
      },
      "endpoints"_a, "spec"_a, "stop"_a);
}

template <class Loop>
void bind_transfer(nb::module_& m, const char* name, Loop loop) {
  m.def(
      name,
      [loop](OpenEndpoint& endpoint, const RunSpec& spec, StopFlag& stop, uint32_t outstanding,
             uint32_t signal_every, uint32_t remote_slots) {
        return loop(endpoint.use(), {spec, outstanding, signal_every, remote_slots}, stop);
      },
      "endpoint"_a, "spec"_a, "stop"_a, nb::kw_only(), "outstanding"_a, "signal_every"_a,
      "remote_slots"_a = 1, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_probe(nb::module_& m) {
  bind_run(m);
  bind_results(m);
  bind_latency_loops(m);
  bind_stream_loops(m);
  bind_transfer(m, "transfer_send", &transfer_send);
  bind_transfer(m, "transfer_receive", &transfer_receive);
}
