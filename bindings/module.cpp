// weft._core: the C++ core seen from Python. One bind_<noun>.cpp per noun.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_allocate(nb::module_& m);
void bind_clock(nb::module_& m);
void bind_delay(nb::module_& m);
void bind_fabric(nb::module_& m);
void bind_flow(nb::module_& m);
void bind_histogram(nb::module_& m);
void bind_packet(nb::module_& m);
void bind_probe(nb::module_& m);
void bind_shuffles(nb::module_& m);
void bind_transport(nb::module_& m);
void bind_workload(nb::module_& m);

NB_MODULE(_core, m) {
  bind_histogram(m);
  bind_packet(m);
  bind_fabric(m);
  bind_clock(m);
  bind_transport(m);
  bind_probe(m);
  bind_delay(m);
  bind_allocate(m);
  bind_workload(m);
  bind_flow(m);
  bind_shuffles(m);
}
