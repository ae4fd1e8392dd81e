// Not written yet.
#include "base/error.hpp"
#include "transport/endpoint.hpp"

namespace weft::transport {

std::unique_ptr<Endpoint> open_verbs(const Config&) {
  throw Error("verbs", "not built yet");
}
std::vector<Availability> verbs_availability() {
  return {};
}

}  // namespace weft::transport
