// Which RDMA devices and ports there are, what each can do, or why none can be used.
#include <cstring>
#include <sstream>
#include <tuple>

#include "transport/verbs/device.hpp"
#include "transport/verbs/errors.hpp"

#ifdef WEFT_HAVE_VERBS
namespace weft::transport::verbs {

namespace {

Availability unavailable(const std::string& device, const std::string& reason,
                         const std::string& remedy) {
  Availability entry;
  entry.transport = "verbs";
  entry.device = device;
  entry.reason = reason;
  entry.remedy = remedy;
  return entry;
}

std::string hex(uint32_t value) {
  std::ostringstream out;
  out << "0x" << std::hex << value;
  return out.str();
}

std::map<std::string, std::string> facts_of(const Device& device, const Port& port) {
  const ibv_device_attr& limits = device.limits();
  std::map<std::string, std::string> facts = {
      {"port", std::to_string(port.number)},
      {"state", port.state()},
      {"link_layer", port.link_layer()},
      {"rate", port.rate},
      {"mtu_bytes", std::to_string(port.mtu())},
      {"max_mtu_bytes", std::to_string(128u << port.attr.max_mtu)},
      {"lid", std::to_string(port.attr.lid)},
      {"partition", hex_of(choose_partition({}, device, port).key)},
      {"interfaces", port.netdevs},
      {"firmware", limits.fw_ver},
      {"vendor", hex(limits.vendor_id) + " part " + hex(limits.vendor_part_id)},
      {"node", std::to_string(device.node())},
      {"max_depth", std::to_string(limits.max_qp_wr)},
      {"max_completions", std::to_string(limits.max_cqe)},
      {"max_qps", std::to_string(limits.max_qp)},
      {"max_reads_outstanding", std::to_string(limits.max_qp_init_rd_atom)},
      {"atomics", device.has_atomics() ? "yes" : "no"},
      {"ud_max_bytes", std::to_string(max_bytes(Kind::ud, port))},
      {"timestamps", device.has_timestamps()
                         ? "yes, " + std::to_string(device.clock_hz()) + " Hz; unverified"
                         : "no"},
  };
  std::string gids;
  for (const auto& gid : port.gids)
    gids += (gids.empty() ? "" : ", ") + std::to_string(gid.index) + ": " + gid.text + " (" +
            gid.type + ")";
  facts["gids"] = gids;
  if (device.is_efa()) facts["srd"] = "unverified: never ran on an Elastic Fabric Adapter";
  return facts;
}

// Why this port cannot be used, and what to do; nothing where it can.
std::pair<std::string, std::string> refusal_of(const Device& device, const Port& port) {
  const std::string where = "port " + std::to_string(port.number);
  if (device.is_iwarp()) return {kIwarpProblem, kIwarpRemedy};
  if (!port.is_active())
    return {where + " is " + port.state(), inactive_remedy(port, device.ports())};
  if (!port.is_infiniband() && port.gids.empty())
    return {where + " has no GID", "give its network interface an address"};
  return {};
}

Availability entry_of(const Device& device, const Port& port) {
  Availability entry = unavailable(device.name(), "", "");
  for (const Kind kind : device.kinds()) entry.endpoints.emplace_back(name_of(kind));
  for (const Op op : operations(device.kinds().front(), device))
    entry.operations.emplace_back(transport::name_of(op));
  entry.max_bytes = port.attr.max_msg_sz;
  entry.facts = facts_of(device, port);
  std::tie(entry.reason, entry.remedy) = refusal_of(device, port);
  entry.available = entry.reason.empty();
  return entry;
}

std::vector<Availability> entries_of(const std::string& name) {
  std::vector<Availability> entries;
  try {
    const Device device(name);
    for (const auto& port : device.ports()) entries.push_back(entry_of(device, port));
  } catch (const Error& error) {
    entries.push_back(unavailable(name, error.problem(), error.remedy()));
  }
  return entries;
}

}  // namespace

}  // namespace weft::transport::verbs

namespace weft::transport {

std::vector<Availability> verbs_availability() {
  try {
    std::vector<Availability> all;
    for (const auto& name : verbs::device_names())
      for (auto& entry : verbs::entries_of(name)) all.push_back(std::move(entry));
    if (all.empty())
      all.push_back(verbs::unavailable("", "there is no RDMA device", verbs::no_device_remedy()));
    return all;
  } catch (const Error& error) {
    return {verbs::unavailable("", error.problem(), error.remedy())};
  }
}

}  // namespace weft::transport
#endif
