// Not written yet.
#include "base/error.hpp"
#include "transport/endpoint.hpp"

namespace weft::transport {

std::unique_ptr<Endpoint> open_ofi(const Config&) {
  throw Error("ofi", "not built yet");
}
std::vector<Availability> ofi_availability() {
  return {};
}

}  // namespace weft::transport
