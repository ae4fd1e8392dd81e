// Jobs that shuffle, at fair rates solved in batches. Times are s, sizes bytes, rates bytes per s.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "flow/shuffles.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using weft::flow::LaneTable;
using weft::flow::ShuffleJob;
using weft::flow::Shuffles;

namespace {

template <class T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Stage = std::tuple<double, double, double>;
using Job = std::tuple<std::vector<Stage>, uint32_t, double, uint32_t, uint32_t>;

template <class T>
std::vector<T> to_vector(const Array<T>& array) {
  return {array.data(), array.data() + array.size()};
}

template <class T>
nb::ndarray<nb::numpy, T> to_array(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(kept->data(), {kept->size()}, owner);
}

std::vector<ShuffleJob> make_jobs(const std::vector<Job>& jobs) {
  std::vector<ShuffleJob> made;
  for (const auto& [stages, loops, start, first, flows] : jobs) {
    ShuffleJob& job = made.emplace_back();
    for (const auto& [compute, early, late] : stages) job.stages.push_back({compute, early, late});
    job.loops = loops;
    job.start_s = start;
    job.first_flow = first;
    job.flows = flows;
  }
  return made;
}

}  // namespace

void bind_shuffles(nb::module_& m) {
  nb::class_<Shuffles>(m, "Shuffles")
      .def(
          "__init__",
          [](Shuffles* self, const Array<double>& capacity, const Array<uint64_t>& path_start,
             const Array<uint32_t>& path, const std::vector<Job>& jobs, double batch,
             double tolerance) {
            new (self) Shuffles(to_vector(capacity), to_vector(path_start), to_vector(path),
                                make_jobs(jobs), batch, tolerance);
          },
          "capacity"_a, "path_start"_a, "path"_a, "jobs"_a, "batch"_a = 0.0, "tolerance"_a = 1e-6)
      .def(
          "program",
          [](Shuffles& self, uint32_t lanes, const Array<uint8_t>& lane,
             const Array<double>& weight, bool strict, bool lending) {
            self.program({lanes, to_vector(lane), to_vector(weight), strict, lending});
          },
          "lanes"_a, "lane"_a, "weight"_a, "strict"_a = false, "lending"_a = true)
      .def("order_flows", &Shuffles::order_flows, "cutoffs_bytes"_a)
      .def("run", &Shuffles::run, "at_sends"_a = false, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("now_s", &Shuffles::now)
      .def_prop_ro(
          "finished_s", [](const Shuffles& s) { return to_array(s.finished()); },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "sending", [](const Shuffles& s) { return to_array(s.sending()); },
          nb::rv_policy::automatic)
      .def_prop_ro(
          "present", [](const Shuffles& s) { return to_array(s.present()); },
          nb::rv_policy::automatic)
      .def("left_at_ports", [](const Shuffles& s) { return to_array(s.left_at_ports()); })
      .def("rates", [](Shuffles& s) { return to_array(s.rates()); })
      .def_prop_ro("solutions", &Shuffles::solutions)
      .def_prop_ro("passes", &Shuffles::passes);
}
