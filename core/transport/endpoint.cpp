#include "transport/endpoint.hpp"

#include <array>
#include <utility>

#include "base/error.hpp"
#include "transport/staged.hpp"

namespace weft::transport {

namespace {

constexpr std::array<std::pair<Op, const char*>, 8> kNames{{{Op::send, "send"},
                                                            {Op::tagged, "tagged"},
                                                            {Op::inject, "inject"},
                                                            {Op::write, "write"},
                                                            {Op::write_imm, "write-imm"},
                                                            {Op::read, "read"},
                                                            {Op::fetch_add, "fetch-add"},
                                                            {Op::compare_swap, "compare-swap"}}};

}  // namespace

const char* name_of(Op op) {
  return kNames[static_cast<size_t>(op)].second;
}

Op op_named(const std::string& name) {
  for (const auto& [op, text] : kNames)
    if (name == text) return op;
  throw Error("operation", "'" + name + "' is unknown",
              "use send, tagged, inject, write, write-imm, read, fetch-add or compare-swap");
}

namespace {

std::unique_ptr<Endpoint> open_named(const Config& config) {
  if (config.transport == "tcp") return open_tcp(config);
  if (config.transport == "udp") return open_udp(config);
  if (config.transport == "verbs") return open_verbs(config);
  if (config.transport == "ofi") return open_ofi(config);
  if (config.transport == "delay") return open_delay(config);
  throw Error("transport", "'" + config.transport + "' is unknown",
              "use verbs, ofi, tcp, udp or delay");
}

// Registered with the adapter where that can be, else staged by copy; describe() says which.
std::unique_ptr<Endpoint> open_on_gpu(const Config& config) {
  std::string reason = config.transport + " reaches the host's memory alone";
  if (config.transport == "verbs" || config.transport == "ofi") try {
      return open_named(config);
    } catch (const Error& error) {
      reason = error.problem();
    }
  Config host = config;
  host.memory = "host";
  return open_staged(open_named(host), config, reason);
}

}  // namespace

std::unique_ptr<Endpoint> open(const Config& config) {
  if (config.depth == 0 || config.receive_depth == 0)
    throw Error(config.transport, "a queue of depth 0 holds no message", "use --depth 1 or more");
  auto endpoint = config.memory == "host" ? open_named(config) : open_on_gpu(config);
  endpoint->depth_ = config.depth;
  return endpoint;
}

std::string chosen_device(const Config& config) {
  return config.transport == "verbs" ? chosen_verbs_device(config) : "";
}

std::vector<Availability> availability(const std::string& transport) {
  using List = std::vector<Availability> (*)();
  const std::array<std::pair<const char*, List>, 5> lists{{{"verbs", verbs_availability},
                                                           {"ofi", ofi_availability},
                                                           {"tcp", tcp_availability},
                                                           {"udp", udp_availability},
                                                           {"delay", delay_availability}}};
  std::vector<Availability> entries;
  for (const auto& [name, list] : lists) {
    if (!transport.empty() && transport != name) continue;
    for (auto& entry : list()) entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace weft::transport
