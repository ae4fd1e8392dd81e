// Not written yet.
#include "base/error.hpp"
#include "transport/endpoint.hpp"

namespace weft::transport {

std::unique_ptr<Endpoint> open_delay(const Config&) {
  throw Error("delay", "not built yet");
}
std::vector<Availability> delay_availability() {
  return {};
}

}  // namespace weft::transport
