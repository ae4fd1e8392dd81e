// Where there is no Linux, tcp and udp say so; simulation needs neither.
#if !defined(__linux__)
#include "base/error.hpp"
#include "transport/endpoint.hpp"

namespace weft::transport {

namespace {

constexpr const char* kReason = "this build is not for Linux";
constexpr const char* kRemedy = "measure on Linux";

std::vector<Availability> missing(const char* transport) {
  Availability entry;
  entry.transport = transport;
  entry.reason = kReason;
  entry.remedy = kRemedy;
  return {entry};
}

}  // namespace

std::unique_ptr<Endpoint> open_tcp(const Config&) {
  throw Error("tcp", kReason, kRemedy);
}
std::unique_ptr<Endpoint> open_udp(const Config&) {
  throw Error("udp", kReason, kRemedy);
}
std::vector<Availability> tcp_availability() {
  return missing("tcp");
}
std::vector<Availability> udp_availability() {
  return missing("udp");
}

}  // namespace weft::transport
#endif
