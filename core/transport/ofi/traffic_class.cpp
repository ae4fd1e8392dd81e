#include "transport/ofi/traffic_class.hpp"

#ifdef WEFT_HAVE_OFI
#include <dirent.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "transport/ofi/info.hpp"
#include "transport/socket/socket.hpp"

namespace weft::transport {

namespace {

constexpr std::array kOverSockets{"tcp", "net", "sockets", "udp"};

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

SocketAddress parse(const std::string& name) {
  SocketAddress address;
  address.length = static_cast<socklen_t>(std::min(name.size(), sizeof address.storage));
  std::memcpy(&address.storage, name.data(), address.length);
  return address;
}

// In a form in which IPv4 and IPv4 in IPv6 are the same; any address is all zero.
std::array<unsigned char, 16> bytes_of(const SocketAddress& address) {
  std::array<unsigned char, 16> bytes{};
  if (address.is_v6()) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
    std::memcpy(bytes.data(), &in6, bytes.size());
    return bytes;
  }
  const auto& in4 = reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr;
  if (in4.s_addr == INADDR_ANY) return bytes;
  bytes[10] = bytes[11] = 0xff;
  std::memcpy(bytes.data() + 12, &in4, 4);
  return bytes;
}

bool is_internet(const SocketAddress& address) {
  return address.storage.ss_family == AF_INET || address.storage.ss_family == AF_INET6;
}

bool is_end(const SocketAddress& address, const SocketAddress& wanted) {
  if (!is_internet(address) || !is_internet(wanted) || address.port() != wanted.port())
    return false;
  const auto bytes = bytes_of(wanted);
  return bytes == std::array<unsigned char, 16>{} || bytes == bytes_of(address);
}

using NameOf = int (*)(int, sockaddr*, socklen_t*);

SocketAddress name_socket(NameOf name_of, int descriptor) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (name_of(descriptor, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
    address.storage.ss_family = AF_UNSPEC;
  return address;
}

}  // namespace

uint32_t wanted_class(const Config& config) {
  return config.traffic_class == 0
             ? uint32_t{FI_TC_UNSPEC}
             : fi_tc_dscp_set(static_cast<uint8_t>(config.traffic_class >> 2));
}

Marks marks_of(const Config& config, const fi_info& info) {
  if (config.traffic_class == 0) return Marks::none;
  const std::string at = where(config);
  if (config.traffic_class < 0 || config.traffic_class > 255 || config.traffic_class % 4 != 0)
    throw Error(at, "traffic class " + std::to_string(config.traffic_class) + " is not possible",
                "use a DSCP x 4, 0 to 252");
  if (info.tx_attr->tclass == wanted_class(config)) return Marks::by_provider;
  const std::string provider = info.fabric_attr->prov_name;
  const std::string core = provider.substr(0, provider.find(';'));
  if (std::ranges::find(kOverSockets, core) != kOverSockets.end()) return Marks::by_sockets;
  if (config.class_is_optional) return Marks::left_out;
  throw Error(at, "the provider does not take a traffic class",
              core == "verbs" ? "use the verbs transport, whose queue pairs do"
                              : "leave it out, or use another provider");
}

std::string class_text(int traffic_class, Marks marks) {
  const std::string wanted = std::to_string(traffic_class);
  if (marks == Marks::left_out) return "0: the provider does not take " + wanted;
  return wanted + (marks == Marks::by_sockets ? ", on the provider's sockets" : "");
}

uint32_t mark_sockets(const std::string& own_name, const std::string& peer, int traffic_class) {
  const SocketAddress local_end = parse(own_name), remote_end = parse(peer);
  const std::unique_ptr<DIR, CloseDirectory> all(opendir("/proc/self/fd"));
  uint32_t marked = 0;
  while (const dirent* entry = all ? readdir(all.get()) : nullptr) {
    int descriptor = -1;
    const char* end = entry->d_name + std::strlen(entry->d_name);
    if (std::from_chars(entry->d_name, end, descriptor).ptr != end) continue;
    const SocketAddress local = name_socket(getsockname, descriptor);
    if (!is_end(local, local_end) && !is_end(name_socket(getpeername, descriptor), remote_end))
      continue;
    if (set_traffic_class(descriptor, traffic_class, local.is_v6())) ++marked;
  }
  return marked;
}

}  // namespace weft::transport
#endif
