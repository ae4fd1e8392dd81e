// The allocation of shares: arrays in, arrays out. The GIL is released while ports are solved.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <mutex>
#include <span>

#include "allocate/solve.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using weft::allocate::Models;
using weft::allocate::Solver;

namespace {

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using InOut = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const Input<T>& array) {
  return {array.data(), array.size()};
}

template <class T>
std::span<T> span_of(const InOut<T>& array) {
  return {array.data(), array.size()};
}

// The curves, and one solver with its memory.
struct Allocator {
  Models models;
  Solver solver;
  std::mutex busy;

  Allocator(const Input<uint8_t>& kinds, const Input<double>& floors, const Input<int64_t>& offsets,
            const Input<double>& numbers)
      : models(span_of(kinds), span_of(floors), span_of(offsets), span_of(numbers)),
        solver(models) {}

  void solve(const Input<int64_t>& offsets, const Input<int32_t>& applications,
             const Input<int64_t>& units, const Input<int64_t>& budget,
             const InOut<int64_t>& weights, const InOut<double>& objective,
             const InOut<double>& gap, const InOut<double>& multiplier, double tolerance,
             int64_t nodes, double programme_steps, size_t threads) {
    const weft::allocate::Ports ports{span_of(offsets), span_of(applications), span_of(units),
                                      span_of(budget)};
    const weft::allocate::Answer answer{span_of(weights), span_of(objective), span_of(gap),
                                        span_of(multiplier)};
    nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> alone(busy);
    solver.solve(ports, answer, {tolerance, nodes, programme_steps}, threads);
  }
};

}  // namespace

void bind_allocate(nb::module_& m) {
  const weft::allocate::Limits limits;
  nb::class_<Allocator>(m, "Allocator")
      .def(nb::init<const Input<uint8_t>&, const Input<double>&, const Input<int64_t>&,
                    const Input<double>&>(),
           "kinds"_a, "floors"_a, "offsets"_a, "numbers"_a)
      .def("solve", &Allocator::solve, "offsets"_a, "applications"_a, "units"_a, "budget"_a,
           "weights"_a.noconvert(), "objective"_a.noconvert(), "gap"_a.noconvert(),
           "multiplier"_a.noconvert(), "tolerance"_a = limits.tolerance, "nodes"_a = limits.nodes,
           "programme_steps"_a = limits.programme_steps, "threads"_a = 1);
}
