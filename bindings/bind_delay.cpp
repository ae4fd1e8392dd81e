// What the delay transport injected, and what timing costs; the GIL is released while loops run.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bind_endpoint.hpp"
#include "probe/plain_exchange.hpp"
#include "probe/timing_cost.hpp"
#include "transport/delay/endpoint.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using weft::python::OpenEndpoint;
using namespace weft::transport;

namespace {

using Numbers = nb::ndarray<nb::numpy, const int64_t, nb::ndim<1>, nb::c_contig>;

auto histogram(DelayTimes DelayTruth::*times) {
  return [times](const DelayTruth& self) { return (self.*times).histogram; };
}

auto samples(DelayTimes DelayTruth::*times) {
  return [times](nb::handle_t<DelayTruth> self) {
    const auto& values = (nb::cast<const DelayTruth&>(self).*times).samples;
    return Numbers(values.data(), {values.size()}, self);
  };
}

DelayTruth truth_of(OpenEndpoint& endpoint) {
  const DelayTruth* truth = delay_truth(endpoint.use());
  if (truth == nullptr)
    throw weft::Error("endpoint", "only the delay transport knows the truth",
                      "open it with transport delay");
  return *truth;
}

}  // namespace

void bind_delay(nb::module_& m) {
  nb::class_<DelayTruth>(m, "DelayTruth")
      .def_ro("messages", &DelayTruth::messages)
      .def_ro("lost", &DelayTruth::lost)
      .def_prop_ro("wire_rtt", histogram(&DelayTruth::wire_rtt))
      .def_prop_ro("completion", histogram(&DelayTruth::completion))
      .def_prop_ro("echo", histogram(&DelayTruth::echo))
      .def_prop_ro("completion_late", histogram(&DelayTruth::completion_late))
      .def_prop_ro("arrival_late", histogram(&DelayTruth::arrival_late))
      .def_prop_ro("wire_rtt_samples", samples(&DelayTruth::wire_rtt))
      .def_prop_ro("completion_samples", samples(&DelayTruth::completion))
      .def_prop_ro("echo_samples", samples(&DelayTruth::echo))
      .def_prop_ro("completion_late_samples", samples(&DelayTruth::completion_late))
      .def_prop_ro("completion_away_samples", samples(&DelayTruth::completion_away))
      .def_prop_ro("arrival_late_samples", samples(&DelayTruth::arrival_late))
      .def_prop_ro("arrival_away_samples", samples(&DelayTruth::arrival_away))
      .def_prop_ro("turnaround_samples", samples(&DelayTruth::turnaround));
  m.def("delay_truth", &truth_of, "endpoint"_a);
  m.def(
      "timing_cost",
      [](uint64_t messages) {
        nb::gil_scoped_release release;
        const auto cost = weft::probe::timing_cost(messages);
        return std::make_pair(cost.with_ns, cost.without_ns);
      },
      "messages"_a);
  using weft::probe::PlainExchange;
  using weft::probe::PlainFabric;
  nb::class_<PlainExchange>(m, "PlainExchange")
      .def(
          "__init__",
          [](PlainExchange* self, uint8_t first, uint32_t messages, bool spins, int64_t idle_ns,
             int64_t awake_ns, int64_t timeout_ns) {
            new (self)
                PlainExchange{std::byte{first}, messages, spins, idle_ns, awake_ns, timeout_ns};
          },
          nb::kw_only(), "first"_a, "messages"_a, "spins"_a, "idle_ns"_a, "awake_ns"_a,
          "timeout_ns"_a);
  m.def("exchange_plainly", &weft::probe::exchange_plainly, "socket"_a, "exchange"_a,
        nb::call_guard<nb::gil_scoped_release>());
  nb::class_<PlainFabric>(m, "PlainFabric")
      .def(nb::init<const std::string&, const std::string&, bool>(), "provider"_a, "address"_a,
           nb::kw_only(), "spins"_a)
      .def("name",
           [](const PlainFabric& self) {
             const std::string name = self.name();
             return nb::bytes(name.data(), name.size());
           })
      .def(
          "exchange",
          [](PlainFabric& self, nb::bytes peer, const PlainExchange& exchange) {
            const std::string name(peer.c_str(), peer.size());
            nb::gil_scoped_release release;
            return self.exchange(name, exchange);
          },
          "peer"_a, "exchange"_a)
      .def("echo", &PlainFabric::echo, nb::call_guard<nb::gil_scoped_release>());
}
