#include "transport/verbs/device.hpp"

#ifdef WEFT_HAVE_VERBS
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <set>

#include "transport/verbs/errors.hpp"

namespace weft::transport::verbs {

namespace {

constexpr const char* kSysfs = "/sys/class/infiniband/";

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool is_mapped_ipv4(const ibv_gid& gid) {
  return IN6_IS_ADDR_V4MAPPED(gid.raw);
}
bool is_link_local(const ibv_gid& gid) {
  return IN6_IS_ADDR_LINKLOCAL(gid.raw);
}

std::string text_of(const ibv_gid& gid) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_mapped_ipv4(gid))
    inet_ntop(AF_INET, gid.raw + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, gid.raw, text, sizeof text);
  return text;
}

std::optional<ibv_gid> gid_of(const std::string& address) {
  ibv_gid gid{};
  if (inet_pton(AF_INET6, address.c_str(), gid.raw) == 1) return gid;
  gid.raw[10] = gid.raw[11] = 0xff;
  if (inet_pton(AF_INET, address.c_str(), gid.raw + 12) == 1) return gid;
  return std::nullopt;
}

// Ones at the start of a netmask.
int bits_of(const sockaddr* mask) {
  if (mask == nullptr) return 64;
  if (mask->sa_family == AF_INET)
    return std::popcount(reinterpret_cast<const sockaddr_in*>(mask)->sin_addr.s_addr);
  int bits = 0;
  for (const uint8_t byte : reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr.s6_addr)
    bits += std::popcount(byte);
  return bits;
}

// The interface addresses of this host, as GIDs, with the bits of their subnets.
std::vector<std::pair<ibv_gid, int>> interface_subnets() {
  std::vector<std::pair<ibv_gid, int>> subnets;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return subnets;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    ibv_gid gid{};
    if (entry->ifa_addr->sa_family == AF_INET) {
      gid.raw[10] = gid.raw[11] = 0xff;
      std::memcpy(gid.raw + 12, &reinterpret_cast<sockaddr_in*>(entry->ifa_addr)->sin_addr, 4);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      std::memcpy(gid.raw, &reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr, 16);
    } else {
      continue;
    }
    subnets.emplace_back(gid, bits_of(entry->ifa_netmask));
  }
  return subnets;
}

std::vector<Gid> gids_of(ibv_context* context, const std::string& sysfs, int port, int entries) {
  std::vector<Gid> gids;
  const ibv_gid zero{};
  const auto subnets = interface_subnets();
  for (int i = 0; i < entries; ++i) {
    Gid gid;
    gid.index = i;
    if (library().query_gid(context, static_cast<uint8_t>(port), i, &gid.raw) != 0) continue;
    if (std::memcmp(&gid.raw, &zero, sizeof zero) == 0) continue;
    gid.text = text_of(gid.raw);
    gid.type = line_of(sysfs + "/gid_attrs/types/" + std::to_string(i));
    gid.netdev = line_of(sysfs + "/gid_attrs/ndevs/" + std::to_string(i));
    if (is_mapped_ipv4(gid.raw)) gid.prefix_bits = 32;
    for (const auto& [address, bits] : subnets)
      if (std::memcmp(&address, &gid.raw, sizeof address) == 0) gid.prefix_bits = bits;
    gids.push_back(gid);
  }
  return gids;
}

int rank_of(const Gid& gid) {
  if (gid.type != "RoCE v2") return is_link_local(gid.raw) ? 5 : 4;
  if (is_mapped_ipv4(gid.raw)) return 1;
  return is_link_local(gid.raw) ? 3 : 2;
}

std::string list_of(const std::vector<Gid>& gids) {
  std::string text;
  for (const auto& gid : gids) text += (text.empty() ? "" : ", ") + gid.text;
  return text.empty() ? "none" : text;
}

const Gid* with_address(const std::vector<Gid>& gids, const ibv_gid& raw) {
  const Gid* best = nullptr;
  for (const auto& gid : gids)
    if (std::memcmp(&gid.raw, &raw, sizeof raw) == 0 && (!best || rank_of(gid) < rank_of(*best)))
      best = &gid;
  return best;
}

ibv_gid wanted_gid(const std::string& address) {
  const auto wanted = gid_of(address);
  if (!wanted)
    throw Error("verbs", "'" + address + "' is not an IP address",
                "give the address of the device's network interface");
  return *wanted;
}

}  // namespace

std::string hex_of(uint16_t value) {
  char text[8];
  std::snprintf(text, sizeof text, "0x%04x", value);
  return text;
}

const char* name_of(Kind kind) {
  constexpr const char* names[] = {"rc", "uc", "ud", "srd"};
  return names[static_cast<size_t>(kind)];
}

std::string Port::link_layer() const {
  if (is_infiniband()) return "InfiniBand";
  return attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "unspecified";
}

std::string Port::state() const {
  constexpr const char* names[] = {"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
  const auto number = static_cast<size_t>(attr.state);
  return number < std::size(names) ? names[number] : std::to_string(number);
}

Device::Device(const std::string& name) : name_(name) {
  int count = 0;
  ibv_device** list = library().get_device_list(&count);
  for (int i = 0; list != nullptr && i < count && !context_; ++i)
    if (name == library().get_device_name(list[i])) context_.reset(library().open_device(list[i]));
  const int code = errno;
  const bool listed = list != nullptr && std::any_of(list, list + count, [&](ibv_device* device) {
                        return name == library().get_device_name(device);
                      });
  if (list != nullptr) library().free_device_list(list);
  if (!listed) {
    std::string names;
    for (const auto& other : device_names()) names += (names.empty() ? "" : ", ") + other;
    throw Error("verbs", "there is no device '" + name + "'",
                names.empty() ? no_device_remedy() : "use one of: " + names);
  }
  if (!context_) throw failed_call(name, "open the device", code);
  if (const int error = ibv_query_device_ex(context_.get(), nullptr, &attr_); error != 0)
    throw failed_call(name, "query the device", error);
}

Port Device::port(int number) const {
  Port port;
  port.number = number;
  const int ports = attr_.orig_attr.phys_port_cnt;
  if (number < 1 || number > ports)
    throw Error(name_, "port " + std::to_string(number) + " does not exist",
                "use 1 to " + std::to_string(ports));
  if (const int code = ibv_query_port(context_.get(), static_cast<uint8_t>(number), &port.attr))
    throw failed_call(name_ + " port " + std::to_string(number), "query the port", code);
  const std::string sysfs = kSysfs + name_ + "/ports/" + std::to_string(number);
  port.gids = gids_of(context_.get(), sysfs, number, port.attr.gid_tbl_len);
  port.rate = line_of(sysfs + "/rate");
  std::set<std::string> netdevs;
  for (const auto& gid : port.gids) netdevs.insert(gid.netdev);
  for (const auto& netdev : netdevs)
    if (!netdev.empty()) port.netdevs += (port.netdevs.empty() ? "" : " ") + netdev;
  return port;
}

std::vector<Port> Device::ports() const {
  std::vector<Port> all;
  for (int number = 1; number <= attr_.orig_attr.phys_port_cnt; ++number)
    all.push_back(port(number));
  return all;
}

std::vector<Kind> Device::kinds() const {
  if (is_efa()) return {Kind::ud, Kind::srd};
  return {Kind::rc, Kind::uc, Kind::ud};
}

int Device::node() const {
  const std::string text = line_of(kSysfs + name_ + "/device/numa_node");
  return text.empty() ? -1 : std::atoi(text.c_str());
}

std::string no_device_remedy() {
  return "load the adapter's driver (modprobe mlx5_ib, efa, ...), or make a soft RoCE device: "
         "modprobe rdma_rxe && rdma link add rxe0 type rxe netdev INTERFACE";
}

std::vector<std::string> device_names() {
  int count = 0;
  errno = 0;
  ibv_device** list = library().get_device_list(&count);
  if (list == nullptr)
    throw Error("verbs",
                errno == ENOSYS
                    ? std::string("the running kernel has no RDMA support loaded (ib_uverbs)")
                    : std::string("devices cannot be listed: ") + std::strerror(errno),
                "modprobe ib_uverbs; " + no_device_remedy());
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(library().get_device_name(list[i]));
  library().free_device_list(list);
  return names;
}

uint32_t max_bytes(Kind kind, const Port& port) {
  return kind == Kind::ud ? std::min(port.mtu(), port.attr.max_msg_sz) : port.attr.max_msg_sz;
}

std::vector<Op> operations(Kind kind, const Device& device) {
  if (kind == Kind::ud || kind == Kind::srd) return {Op::send};
  if (kind == Kind::uc) return {Op::send, Op::write, Op::write_imm};
  if (!device.has_atomics()) return {Op::send, Op::write, Op::write_imm, Op::read};
  return {Op::send, Op::write, Op::write_imm, Op::read, Op::fetch_add, Op::compare_swap};
}

Gid choose_gid(const Config& config, const Device& device, const Port& port) {
  const std::string where = device.name() + " port " + std::to_string(port.number);
  if (config.gid_index >= 0) {
    for (const auto& gid : port.gids)
      if (gid.index == config.gid_index) return gid;
    throw Error(where, "GID index " + std::to_string(config.gid_index) + " is empty",
                "choose another with --gid-index; used: " + list_of(port.gids));
  }
  if (!config.address.empty() && !port.is_infiniband()) {
    const Gid* gid = with_address(port.gids, wanted_gid(config.address));
    if (gid != nullptr) return *gid;
    throw Error(where, "no GID has the address " + config.address,
                "its addresses are: " + list_of(port.gids));
  }
  if (port.gids.empty()) {
    if (port.is_infiniband()) return {};
    throw Error(where, "has no GID", "give its network interface an address and set it up");
  }
  if (port.is_infiniband()) return port.gids.front();
  return *std::min_element(port.gids.begin(), port.gids.end(),
                           [](const Gid& a, const Gid& b) { return rank_of(a) < rank_of(b); });
}

Partition choose_partition(const Config& config, const Device& device, const Port& port) {
  std::string keys;
  for (int i = 0; i < port.attr.pkey_tbl_len; ++i) {
    __be16 raw = 0;
    if (library().query_pkey(device.context(), static_cast<uint8_t>(port.number), i, &raw) != 0)
      continue;
    const uint16_t key = be16toh(raw);
    if ((key & 0x7fff) == 0) continue;
    if (config.partition == 0 || (key & 0x7fff) == (config.partition & 0x7fff)) return {i, key};
    keys += (keys.empty() ? "" : ", ") + hex_of(key);
  }
  if (config.partition == 0) return {};
  throw Error(device.name() + " port " + std::to_string(port.number),
              "has no partition key " + hex_of(static_cast<uint16_t>(config.partition)),
              "use one of its table (" + (keys.empty() ? "empty" : keys) +
                  "), or have the subnet manager add it");
}

const char* const kIwarpProblem =
    "is an iWARP adapter (RDMA over TCP): only rdma_cm connects its queue pairs";
const char* const kIwarpRemedy =
    "use --over ofi:verbs --endpoint msg, which connects through rdma_cm (unverified on iWARP)";

std::string inactive_remedy(const Port& port, const std::vector<Port>& siblings) {
  std::string remedy = port.is_infiniband() ? "see the cable, and whether a subnet manager runs"
                                            : "see the cable, and ip link set INTERFACE up";
  for (const auto& sibling : siblings)
    if (sibling.number != port.number && sibling.is_active())
      return "use --port " + std::to_string(sibling.number) + ", which is ACTIVE, or " + remedy;
  return remedy;
}

int first_active(const std::vector<Port>& ports) {
  for (const auto& port : ports)
    if (port.is_active()) return port.number;
  return 1;
}

namespace {

// Why this port does not serve, if it does not.
std::string refusal_of(const Config& config, const Port& port) {
  if (!port.is_active()) return "is " + port.state();
  if (config.address.empty() || port.is_infiniband()) return "";
  if (with_address(port.gids, wanted_gid(config.address))) return "";
  return "has not the address " + config.address;
}

}  // namespace

Choice choose_port(const Config& config) {
  if (!config.device.empty())
    return {config.device,
            config.port > 0 ? config.port : first_active(Device(config.device).ports())};
  const auto names = device_names();
  if (names.empty()) throw Error("verbs", "there is no RDMA device", no_device_remedy());
  std::string why;
  const auto note = [&why](const std::string& text) { why += (why.empty() ? "" : ", ") + text; };
  for (const auto& name : names) {
    const Device device(name);
    if (device.is_iwarp()) note(name + " " + kIwarpProblem);
    if (device.is_iwarp()) continue;
    for (const auto& port : device.ports()) {
      if (config.port > 0 && port.number != config.port) continue;
      const std::string refusal = refusal_of(config, port);
      if (refusal.empty()) return {name, port.number};
      note(name + " port " + std::to_string(port.number) + " " + refusal);
    }
  }
  throw Error("verbs", "no device can be used: " + (why.empty() ? "no such port" : why),
              "see `weft doctor`");
}

}  // namespace weft::transport::verbs
#endif
