#include "transport/verbs/device.hpp"

#ifdef WEFT_HAVE_VERBS
#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
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

std::vector<Gid> gids_of(ibv_context* context, const std::string& sysfs, int port, int entries) {
  std::vector<Gid> gids;
  const ibv_gid zero{};
  for (int i = 0; i < entries; ++i) {
    Gid gid;
    gid.index = i;
    if (library().query_gid(context, static_cast<uint8_t>(port), i, &gid.raw) != 0) continue;
    if (std::memcmp(&gid.raw, &zero, sizeof zero) == 0) continue;
    gid.text = text_of(gid.raw);
    gid.type = line_of(sysfs + "/gid_attrs/types/" + std::to_string(i));
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
  for (const auto& gid : port.gids)
    netdevs.insert(line_of(sysfs + "/gid_attrs/ndevs/" + std::to_string(gid.index)));
  for (const auto& netdev : netdevs)
    if (!netdev.empty()) port.netdevs += (port.netdevs.empty() ? "" : " ") + netdev;
  return port;
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

std::string choose_device(const Config& config) {
  const auto names = device_names();
  if (names.empty()) throw Error("verbs", "there is no RDMA device", no_device_remedy());
  std::string why;
  for (const auto& name : names) {
    const Device device(name);
    if (config.port > device.limits().phys_port_cnt) continue;
    const Port port = device.port(config.port);
    if (port.attr.state != IBV_PORT_ACTIVE) {
      why += (why.empty() ? "" : ", ") + name + " is " + port.state();
    } else if (config.address.empty() || port.is_infiniband() ||
               with_address(port.gids, wanted_gid(config.address))) {
      return name;
    } else {
      why += (why.empty() ? "" : ", ") + name + " has not the address " + config.address;
    }
  }
  throw Error("verbs", "no device can be used on port " + std::to_string(config.port) + ": " + why,
              "see `weft doctor`");
}

}  // namespace weft::transport::verbs
#endif
