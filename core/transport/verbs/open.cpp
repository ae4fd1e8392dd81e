// The verbs transport's way in, and what stands in for it where it could not be built.
#include "base/error.hpp"
#include "transport/endpoint.hpp"
#include "transport/verbs/endpoint.hpp"

namespace weft::transport {

#ifdef WEFT_HAVE_VERBS
std::unique_ptr<Endpoint> open_verbs(const Config& config) {
  return std::make_unique<verbs::VerbsEndpoint>(config);
}
std::string chosen_verbs_device(const Config& config) {
  return verbs::choose_port(config).device;
}
#else
namespace {
constexpr const char* kReason = "weft was built without infiniband/verbs.h";
constexpr const char* kRemedy = "apt-get install libibverbs-dev, then make build";
}  // namespace

std::unique_ptr<Endpoint> open_verbs(const Config&) {
  throw Error("verbs", kReason, kRemedy);
}
std::string chosen_verbs_device(const Config&) {
  throw Error("verbs", kReason, kRemedy);
}
std::vector<Availability> verbs_availability() {
  Availability entry;
  entry.transport = "verbs";
  entry.reason = kReason;
  entry.remedy = kRemedy;
  return {entry};
}
#endif

}  // namespace weft::transport
