// weft._core.Clock, and what a host does to whoever spins on it; the work is core/base.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "base/buffer.hpp"
#include "base/clock.hpp"
#include "base/noise.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using weft::Clock;
using weft::Hiccups;

namespace {

std::pair<bool, std::string> invariant() {
  std::string reason;
  const bool result = Clock::invariant(&reason);
  return {result, reason};
}

std::string pages_of(size_t bytes, const std::string& pages, int node) {
  return weft::Buffer(bytes, pages, node).pages();
}

}  // namespace

void bind_clock(nb::module_& m) {
  using unlocked = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Clock>(m, "Clock")
      .def_static("calibrate", &Clock::calibrate, "seconds"_a = 0.1, unlocked())
      .def_static("shared", &Clock::shared, nb::rv_policy::reference, unlocked())
      .def_static("source", &Clock::source)
      .def_static("invariant", &invariant)
      .def_prop_ro("hz", &Clock::hz)
      .def_prop_ro("error_ppm", &Clock::error_ppm)
      .def_prop_ro("step_ps", &Clock::step_ps)
      .def_prop_ro("read_ps", &Clock::read_ps);
  nb::class_<Hiccups>(m, "Hiccups")
      .def_ro("gaps", &Hiccups::gaps)
      .def_ro("elapsed_ns", &Hiccups::elapsed_ns)
      .def_ro("readings", &Hiccups::readings);
  m.def("hiccups", &weft::hiccups, "seconds"_a, "cpu"_a = -1, "threshold_ns"_a = 1000, unlocked());
  m.def("core_distance", &weft::core_distance, "cpu_a"_a, "cpu_b"_a, "rounds"_a = 20'000,
        "seconds"_a = 1.0, unlocked());
  m.def("huge_pages_of", &pages_of, "bytes"_a, "pages"_a = "auto", "node"_a = -1, unlocked());
}
