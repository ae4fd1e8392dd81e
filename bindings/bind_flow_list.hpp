// FlowList of Python is this vector itself: whoever takes flows includes this header, so that no
// list of them is converted flow by flow. Results of flows are read as columns.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "packet/simulation.hpp"
#include "packet/spec.hpp"

using FlowList = std::vector<weft::packet::FlowSpec>;
NB_MAKE_OPAQUE(FlowList)

namespace nb = nanobind;

using Column = nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>;

// An array of `count` numbers and its owner.
inline std::pair<int64_t*, nb::capsule> allocate(size_t count) {
  auto* data = new int64_t[count];
  return {data, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<int64_t*>(p); })};
}

// One number of each of `count` items, as an array of its own.
template <class Read>
Column column(size_t count, Read read) {
  const auto [data, owner] = allocate(count);
  for (size_t i = 0; i < count; ++i) data[i] = static_cast<int64_t>(read(i));
  return Column(data, {count}, owner);
}

// One number of the result of each flow.
template <class Simulation, auto Member>
Column result_column(const Simulation& sim) {
  return column(sim.flows(), [&](size_t i) { return sim.flow(i).*Member; });
}

// What simulations of packets and of flows have in common: the time, and results of each flow,
// rank and operation.
template <class Simulation>
void bind_flow_results(nb::class_<Simulation>& simulation) {
  using weft::packet::FlowResult;
  simulation.def_prop_ro("now_ps", &Simulation::now)
      .def_prop_ro("events", &Simulation::events)
      .def("flow", &Simulation::flow)
      .def_prop_ro("flow_deliveries", &result_column<Simulation, &FlowResult::delivered>,
                   nb::rv_policy::automatic)
      .def_prop_ro("flow_bytes", &result_column<Simulation, &FlowResult::bytes>,
                   nb::rv_policy::automatic)
      .def_prop_ro("flow_messages", &result_column<Simulation, &FlowResult::messages>,
                   nb::rv_policy::automatic)
      .def_prop_ro("flow_last_deliveries_ps",
                   &result_column<Simulation, &FlowResult::last_delivery>, nb::rv_policy::automatic)
      .def_prop_ro("flow_ends_ps", &result_column<Simulation, &FlowResult::finished>,
                   nb::rv_policy::automatic)
      .def_prop_ro("flow_stops_ps", &result_column<Simulation, &FlowResult::stop>,
                   nb::rv_policy::automatic)
      .def("rank_finished_ps", &Simulation::rank_finished)
      .def(
          "operations_ended_ps",
          [](const Simulation& s) {
            return nb::ndarray<nb::numpy, const weft::packet::Time>(s.operations_ended().data(),
                                                                    {s.operations_ended().size()});
          },
          nb::rv_policy::reference_internal);
}
