// weft._core.Histogram: names, arrays and the GIL; the arithmetic is core/stats.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "stats/histogram.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using weft::stats::Histogram;
using weft::stats::int128;
using weft::stats::Sparse;

namespace {

template <class T>
using Vector = nb::ndarray<nb::numpy, const T, nb::ndim<1>, nb::c_contig>;
template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Hands a vector's memory to numpy without a copy of its own.
template <class T>
Vector<T> to_numpy(std::vector<T>&& values) {
  auto* held = new std::vector<T>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return Vector<T>(held->data(), {held->size()}, owner);
}

nb::object to_python(int128 value) {
  const auto high = static_cast<int64_t>(value >> 64);
  const auto low = static_cast<uint64_t>(value);
  return (nb::int_(high) << nb::int_(64)) + nb::int_(low);
}

int128 from_python(const nb::int_& value) {
  const auto high = nb::cast<int64_t>(value >> nb::int_(64));
  const auto low = nb::cast<uint64_t>(value & nb::int_(~uint64_t{0}));
  return (static_cast<int128>(high) << 64) | static_cast<int128>(low);
}

void record_many(Histogram& histogram, const Input<int64_t>& values) {
  nb::gil_scoped_release release;
  for (size_t i = 0; i < values.shape(0); ++i) histogram.record(values.data()[i]);
}

nb::tuple buckets(const Histogram& histogram) {
  std::vector<int64_t> lower, upper;
  std::vector<uint64_t> count;
  for (const auto& bucket : histogram.buckets()) {
    lower.push_back(bucket.lower);
    upper.push_back(bucket.upper);
    count.push_back(bucket.count);
  }
  return nb::make_tuple(to_numpy(std::move(lower)), to_numpy(std::move(upper)),
                        to_numpy(std::move(count)));
}

nb::tuple to_sparse(const Histogram& histogram) {
  Sparse sparse = histogram.to_sparse();
  return nb::make_tuple(to_numpy(std::move(sparse.keys)), to_numpy(std::move(sparse.counts)),
                        sparse.min, sparse.max, to_python(sparse.sum));
}

Histogram from_sparse(const Input<int32_t>& keys, const Input<uint64_t>& counts, int64_t min,
                      int64_t max, const nb::int_& sum) {
  Sparse sparse;
  sparse.keys.assign(keys.data(), keys.data() + keys.shape(0));
  sparse.counts.assign(counts.data(), counts.data() + counts.shape(0));
  sparse.min = min;
  sparse.max = max;
  sparse.sum = from_python(sum);
  return Histogram::from_sparse(sparse);
}

std::string repr(const Histogram& histogram) {
  if (histogram.empty()) return "Histogram(count=0)";
  return "Histogram(count=" + std::to_string(histogram.count()) +
         ", min=" + std::to_string(histogram.min()) +
         ", median=" + std::to_string(histogram.quantile(0.5)) +
         ", max=" + std::to_string(histogram.max()) + ")";
}

}  // namespace

void bind_histogram(nb::module_& m) {
  auto type =
      nb::class_<Histogram>(m, "Histogram", "Log-bucket histogram of 64-bit integers.")
          .def(nb::init<>())
          .def("record", nb::overload_cast<int64_t, uint64_t>(&Histogram::record), "value"_a,
               "n"_a = 1)
          .def("record_many", &record_many, "values"_a.noconvert())
          .def("merge", &Histogram::merge, "other"_a)
          .def("quantile", &Histogram::quantile, "q"_a)
          .def(
              "quantile_interval",
              [](const Histogram& self, double q, double confidence) {
                const auto interval = self.quantile_interval(q, confidence);
                return std::make_pair(interval.low, interval.high);
              },
              "q"_a, "confidence"_a = 0.95)
          .def_prop_ro("count", &Histogram::count)
          .def_prop_ro("min", &Histogram::min)
          .def_prop_ro("max", &Histogram::max)
          .def_prop_ro("mean", &Histogram::mean)
          .def("buckets", &buckets)
          .def("to_sparse", &to_sparse)
          .def_static("from_sparse", &from_sparse, "keys"_a.noconvert(), "counts"_a.noconvert(),
                      "min"_a, "max"_a, "sum"_a)
          .def(
              "__eq__", [](const Histogram& a, const Histogram& b) { return a == b; },
              nb::is_operator())
          .def("__repr__", &repr)
          .def("__getstate__", &to_sparse)
          .def("__setstate__", [](Histogram& self,
                                  const std::tuple<Input<int32_t>, Input<uint64_t>, int64_t,
                                                   int64_t, nb::int_>& state) {
            std::apply([&](const auto&... parts) { new (&self) Histogram(from_sparse(parts...)); },
                       state);
          });
  type.attr("__hash__") = nb::none();
}
