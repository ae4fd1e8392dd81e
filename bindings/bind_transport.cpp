// weft._core.Endpoint and its configuration; the transports are core/transport.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "base/error.hpp"
#include "bind_endpoint.hpp"
#include "transport/endpoint.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using weft::python::OpenEndpoint;
using namespace weft::transport;

namespace {

nb::bytes to_bytes(const std::string& text) {
  return nb::bytes(text.data(), text.size());
}

void bind_delay_config(nb::module_& m) {
  nb::class_<DelayConfig>(m, "DelayConfig")
      .def(nb::init<>())
      .def_rw("wire", &DelayConfig::wire)
      .def_rw("loopback", &DelayConfig::loopback)
      .def_rw("host_post", &DelayConfig::host_post)
      .def_rw("host_complete", &DelayConfig::host_complete)
      .def_rw("remote_host", &DelayConfig::remote_host)
      .def_rw("remote_memory", &DelayConfig::remote_memory)
      .def_rw("adapter_ns", &DelayConfig::adapter_ns)
      .def_rw("receive_ns", &DelayConfig::receive_ns)
      .def_rw("rate_gbps", &DelayConfig::rate_gbps)
      .def_rw("loss", &DelayConfig::loss)
      .def_rw("stall_every_ns", &DelayConfig::stall_every_ns)
      .def_rw("stall_ns", &DelayConfig::stall_ns)
      .def_rw("seed", &DelayConfig::seed)
      .def_rw("peer", &DelayConfig::peer)
      .def_rw("samples", &DelayConfig::samples);
}

void bind_config(nb::module_& m) {
  nb::class_<Config>(m, "EndpointConfig")
      .def(nb::init<>())
      .def_rw("transport", &Config::transport)
      .def_rw("device", &Config::device)
      .def_rw("endpoint", &Config::endpoint)
      .def_rw("address", &Config::address)
      .def_rw("server", &Config::server)
      .def_rw("send_bytes", &Config::send_bytes)
      .def_rw("receive_bytes", &Config::receive_bytes)
      .def_rw("depth", &Config::depth)
      .def_rw("receive_depth", &Config::receive_depth)
      .def_rw("remote_bytes", &Config::remote_bytes)
      .def_rw("one_buffer", &Config::one_buffer)
      .def_rw("events", &Config::events)
      .def_rw("inline_bytes", &Config::inline_bytes)
      .def_rw("inline_by_device", &Config::inline_by_device)
      .def_rw("offset", &Config::offset)
      .def_rw("pages", &Config::pages)
      .def_rw("memory", &Config::memory)
      .def_rw("contents", &Config::contents)
      .def_rw("node", &Config::node)
      .def_rw("port", &Config::port)
      .def_rw("gid_index", &Config::gid_index)
      .def_rw("partition", &Config::partition)
      .def_rw("path_mtu", &Config::path_mtu)
      .def_rw("posting", &Config::posting)
      .def_rw("strict_ordering", &Config::strict_ordering)
      .def_rw("separate_contexts", &Config::separate_contexts)
      .def_rw("queue_members", &Config::queue_members)
      .def_rw("service_level", &Config::service_level)
      .def_rw("traffic_class", &Config::traffic_class)
      .def_rw("class_is_optional", &Config::class_is_optional)
      .def_rw("priority", &Config::priority)
      .def_rw("device_timestamps", &Config::device_timestamps)
      .def_rw("delivery", &Config::delivery)
      .def_rw("congestion", &Config::congestion)
      .def_rw("nagle", &Config::nagle)
      .def_rw("busy_poll_us", &Config::busy_poll_us)
      .def_rw("delay", &Config::delay);
}

void bind_availability(nb::module_& m) {
  nb::class_<Availability>(m, "Availability")
      .def_ro("transport", &Availability::transport)
      .def_ro("device", &Availability::device)
      .def_ro("available", &Availability::available)
      .def_ro("reason", &Availability::reason)
      .def_ro("remedy", &Availability::remedy)
      .def_ro("endpoints", &Availability::endpoints)
      .def_ro("operations", &Availability::operations)
      .def_ro("max_bytes", &Availability::max_bytes)
      .def_ro("facts", &Availability::facts);
  m.def("chosen_device", &chosen_device, "config"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("availability", &availability, "transport"_a = "",
        nb::call_guard<nb::gil_scoped_release>());
}

void bind_endpoint(nb::module_& m) {
  nb::class_<OpenEndpoint>(m, "Endpoint")
      .def_static(
          "open", [](const Config& config) { return new OpenEndpoint(open(config)); }, "config"_a,
          nb::call_guard<nb::gil_scoped_release>())
      .def("address", [](OpenEndpoint& self) { return to_bytes(self.use().address()); })
      .def(
          "connect",
          [](OpenEndpoint& self, const nb::bytes& peer, int timeout_ms) {
            const std::string address(peer.c_str(), peer.size());
            nb::gil_scoped_release release;
            self.use().connect(address, timeout_ms);
          },
          "peer"_a, "timeout_ms"_a)
      .def("describe", [](OpenEndpoint& self) { return self.use().describe(); })
      .def_prop_ro("is_marked", [](OpenEndpoint& self) { return self.use().is_marked(); })
      .def_prop_ro("is_reliable", [](OpenEndpoint& self) { return self.use().is_reliable(); })
      .def("close", &OpenEndpoint::close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_transport(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const weft::Error& error) {
      const nb::object type = nb::module_::import_("weft.errors").attr("InputError");
      const nb::object made = type(error.where(), error.problem(), error.remedy());
      PyErr_SetObject(type.ptr(), made.ptr());
    }
  });
  bind_delay_config(m);
  bind_config(m);
  bind_availability(m);
  bind_endpoint(m);
}
