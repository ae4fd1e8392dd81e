// Workloads: arrays in, times out. The GIL is released while a network runs.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "workload/loggop.hpp"
#include "workload/operations.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace weft::workload;

namespace {

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::vector<T> copy_of(const Input<T>& array) {
  return {array.data(), array.data() + array.size()};
}

nb::ndarray<nb::numpy, Time> array_of(std::vector<Time> values) {
  auto* kept = new std::vector<Time>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<Time>*>(p); });
  return {kept->data(), {kept->size()}, owner};
}

void init(Operations* self, uint32_t ranks, const Input<uint8_t>& kind, const Input<uint32_t>& rank,
          const Input<uint32_t>& peer, const Input<uint32_t>& tag, const Input<int64_t>& amount,
          const Input<uint8_t>& cpu, const Input<uint32_t>& dependency_start,
          const Input<uint32_t>& dependency, const Input<uint8_t>& on_start) {
  new (self) Operations;
  self->ranks = ranks;
  self->kind.resize(kind.size());
  std::transform(kind.data(), kind.data() + kind.size(), self->kind.begin(),
                 [](uint8_t k) { return static_cast<Kind>(k); });
  self->rank = copy_of(rank);
  self->peer = copy_of(peer);
  self->tag = copy_of(tag);
  self->amount = copy_of(amount);
  self->cpu = copy_of(cpu);
  self->dependency_start = copy_of(dependency_start);
  self->dependency = copy_of(dependency);
  self->on_start = copy_of(on_start);
  self->rank_start.assign(size_t{ranks} + 1, 0);
  for (const uint32_t r : self->rank) ++self->rank_start[r + 1];
  for (uint32_t r = 0; r < ranks; ++r) self->rank_start[r + 1] += self->rank_start[r];
}

std::optional<uint32_t> cycle_of(const Operations& operations) {
  const uint32_t operation = find_cycle(operations);
  return operation == kNone ? std::nullopt : std::optional(operation);
}

using Counts = std::tuple<uint32_t, uint32_t, uint32_t, uint32_t, uint32_t>;

std::optional<Counts> unmatched_of(const Operations& operations) {
  const Unmatched u = find_unmatched(operations);
  if (u.sends == u.receives) return std::nullopt;
  return Counts{u.source, u.destination, u.tag, u.sends, u.receives};
}

}  // namespace

void bind_workload(nb::module_& m) {
  nb::class_<Operations>(m, "OperationArrays")
      .def("__init__", &init, nb::kw_only(), "ranks"_a, "kind"_a, "rank"_a, "peer"_a, "tag"_a,
           "amount"_a, "cpu"_a, "dependency_start"_a, "dependency"_a, "on_start"_a)
      .def_prop_ro("size", &Operations::size)
      .def("find_cycle", &cycle_of)
      .def("find_unmatched", &unmatched_of);
  nb::class_<LogGop>(m, "LogGop")
      .def(nb::init<>())
      .def_rw("L_ps", &LogGop::L)
      .def_rw("o_ps", &LogGop::o)
      .def_rw("g_ps", &LogGop::g)
      .def_rw("G_ps_per_byte", &LogGop::G)
      .def_rw("O_ps_per_byte", &LogGop::O)
      .def_rw("S_bytes", &LogGop::S);
  m.def(
      "run_loggop",
      [](const Operations& operations, const LogGop& parameters) {
        LogGopTimes times;
        {
          nb::gil_scoped_release release;
          times = run_loggop(operations, parameters);
        }
        return nb::make_tuple(array_of(std::move(times.rank)), array_of(std::move(times.ended)));
      },
      "operations"_a, "parameters"_a);
}
