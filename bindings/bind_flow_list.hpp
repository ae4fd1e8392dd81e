// FlowList of Python is this vector itself: whoever takes flows includes this header, so that no
// list of them is converted flow by flow. Results of flows are read as columns.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>
#include <vector>

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
