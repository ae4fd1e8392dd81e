// Tables of routes: arrays in, arrays out. The GIL is released while they are filled.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <span>

#include "fabric/route_table.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace weft::fabric;

namespace {

template <class T, size_t N>
using Input = nb::ndarray<const T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <class T, size_t N>
using InOut = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;

template <class Array>
auto span_of(const Array& array) {
  return std::span(array.data(), array.size());
}

}  // namespace

void bind_fabric(nb::module_& m) {
  m.def(
      "group_ports",
      [](const Input<uint64_t, 3>& usable, const InOut<int32_t, 2>& group) {
        nb::gil_scoped_release release;
        return group_ports({usable.shape(0), usable.shape(1), group.shape(1), span_of(usable)},
                           span_of(group));
      },
      "usable"_a, "group"_a.noconvert());
  m.def(
      "spread_destinations",
      [](const Input<int32_t, 2>& group, const std::vector<Ports>& groups,
         const Input<uint8_t, 2>& up, const Input<int64_t, 1>& divisor,
         const Input<int32_t, 1>& target_of, const InOut<int16_t, 2>& ports) {
        nb::gil_scoped_release release;
        spread_destinations({up.shape(1), span_of(group), span_of(up), span_of(divisor),
                             span_of(target_of), group.shape(1)},
                            groups, span_of(ports));
      },
      "group"_a, "groups"_a, "up"_a, "divisor"_a, "target_of"_a, "ports"_a.noconvert());
  m.def(
      "number_ports",
      [](const InOut<int16_t, 2>& ports) {
        nb::gil_scoped_release release;
        return number_ports(span_of(ports));
      },
      "ports"_a.noconvert());
  m.def(
      "find_lost_pair",
      [](const Input<uint16_t, 2>& next_hop, const std::vector<uint32_t>& group_start,
         const std::vector<uint32_t>& group_ports, const Input<int32_t, 2>& peer,
         const Input<int32_t, 1>& first_switch, const Input<int32_t, 1>& destination,
         const Input<int64_t, 1>& order) {
        nb::gil_scoped_release release;
        return find_lost_pair({next_hop.shape(0), next_hop.shape(1), peer.shape(1),
                               span_of(next_hop), group_start, group_ports, span_of(peer)},
                              span_of(first_switch), span_of(destination), span_of(order));
      },
      "next_hop"_a, "group_start"_a, "group_ports"_a, "peer"_a, "first_switch"_a, "destination"_a,
      "order"_a);
}
