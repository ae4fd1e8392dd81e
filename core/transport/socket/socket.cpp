#if defined(__linux__)
#include "transport/socket/socket.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace weft::transport {

SocketAddress SocketAddress::of(const std::string& host, uint16_t port, const std::string& where) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* resolved = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &resolved) != 0)
    throw Error(where, "'" + host + "' is not an IPv4 or IPv6 address", "give it in numbers");
  SocketAddress address;
  address.length = resolved->ai_addrlen;
  std::memcpy(&address.storage, resolved->ai_addr, resolved->ai_addrlen);
  freeaddrinfo(resolved);
  return address;
}

SocketAddress SocketAddress::local_of(int descriptor) {
  SocketAddress address;
  address.length = sizeof(address.storage);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
    throw_errno("socket", "cannot read its address");
  return address;
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "?";
  getnameinfo(get(), length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

uint16_t SocketAddress::port() const {
  return ntohs(is_v6() ? reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port
                       : reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

Descriptor::~Descriptor() {
  if (value_ >= 0) close(value_);
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    if (value_ >= 0) close(value_);
    value_ = other.release();
  }
  return *this;
}

int Descriptor::release() {
  return std::exchange(value_, -1);
}

uint32_t receive_slots(const Config& config) {
  constexpr uint32_t kCachedBytes = 256 << 10;
  const uint32_t most = std::max(2u, kCachedBytes / std::max(1u, config.receive_bytes));
  return std::min(config.receive_depth, most);
}

void throw_errno(const std::string& where, const std::string& action, const std::string& remedy) {
  throw Error(where, action + ": " + std::strerror(errno), remedy);
}

bool set_traffic_class(int descriptor, int value, bool v6) {
  const int level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;
  const int name = v6 ? IPV6_TCLASS : IP_TOS;
  if (setsockopt(descriptor, level, name, &value, sizeof value) != 0) return false;
  // A socket of IPv6 may carry IPv4 as well.
  if (v6) setsockopt(descriptor, IPPROTO_IP, IP_TOS, &value, sizeof value);
  return true;
}

bool set_options(int descriptor, const Config& config, bool v6) {
  const std::string& where = config.transport;
  if (config.traffic_class < 0 || config.traffic_class > 255)
    throw Error(where, "traffic class " + std::to_string(config.traffic_class) + " is out of range",
                "use 0 to 255 (DSCP x 4)");
  const bool is_marked =
      config.traffic_class == 0 || set_traffic_class(descriptor, config.traffic_class, v6);
  if (!is_marked && !config.class_is_optional)
    throw_errno(where, "cannot set traffic class " + std::to_string(config.traffic_class));
  if (config.priority >= 0 &&
      setsockopt(descriptor, SOL_SOCKET, SO_PRIORITY, &config.priority, sizeof(int)) != 0)
    throw_errno(where, "cannot set priority " + std::to_string(config.priority),
                "priorities above 6 need root");
  if (config.busy_poll_us > 0 &&
      setsockopt(descriptor, SOL_SOCKET, SO_BUSY_POLL, &config.busy_poll_us, sizeof(int)) != 0)
    throw_errno(where, "cannot busy-poll for " + std::to_string(config.busy_poll_us) + " us",
                "leave --busy-poll out, or run as root");
  return is_marked;
}

void set_timeout(int descriptor, int option, int64_t timeout_ns, int64_t& current_ns) {
  if (timeout_ns == current_ns) return;
  const timeval time{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000 / 1000};
  setsockopt(descriptor, SOL_SOCKET, option, &time, sizeof(time));
  current_ns = timeout_ns;
}

void sleep_until_ready(int descriptor, short events, int64_t timeout_ns) {
  pollfd entry{descriptor, events, 0};
  const timespec time{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  ::ppoll(&entry, 1, &time, nullptr);
}

void pause_between_looks(int64_t pause_ns) {
  const uint64_t end = ticks() + Clock::shared().ticks_of_ns(pause_ns);
  while (ticks() < end) pause();
}

namespace {

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string interface_of(const SocketAddress& local) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string name;
  for (ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != local.storage.ss_family)
      continue;
    SocketAddress other;
    other.length = local.is_v6() ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    std::memcpy(&other.storage, entry->ifa_addr, other.length);
    if (other.host() == local.host()) name = entry->ifa_name;
  }
  freeifaddrs(all);
  return name;
}

int option(int descriptor, int name) {
  int value = 0;
  socklen_t length = sizeof(value);
  getsockopt(descriptor, SOL_SOCKET, name, &value, &length);
  return value;
}

}  // namespace

std::map<std::string, std::string> describe_socket(int descriptor) {
  const auto local = SocketAddress::local_of(descriptor);
  std::map<std::string, std::string> facts{
      {"local", local.host()},
      {"send_buffer_bytes", std::to_string(option(descriptor, SO_SNDBUF))},
      {"receive_buffer_bytes", std::to_string(option(descriptor, SO_RCVBUF))}};
  const std::string name = interface_of(local);
  if (name.empty()) return facts;
  const std::string path = "/sys/class/net/" + name;
  facts["interface"] = name;
  facts["mtu_bytes"] = line_of(path + "/mtu");
  // ARPHRD_INFINIBAND: IP over InfiniBand, whose mode decides between 2 KiB and 64 KiB MTUs.
  if (line_of(path + "/type") == "32") facts["ipoib_mode"] = line_of(path + "/mode");
  return facts;
}

std::string join_address(const SocketAddress& address, const std::string& rest) {
  return address.host() + " " + std::to_string(address.port()) + (rest.empty() ? "" : " " + rest);
}

Reachable split_address(const std::string& text, const std::string& where) {
  std::istringstream words(text);
  Reachable peer;
  int port = 0;
  if (!(words >> peer.host >> port) || port < 1 || port > 65535)
    throw Error(where, "the peer's address '" + text.substr(0, 80) + "' is malformed",
                "run the same version of weft on both sides");
  peer.port = static_cast<uint16_t>(port);
  words >> peer.rest;
  return peer;
}

}  // namespace weft::transport
#endif
