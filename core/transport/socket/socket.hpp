// What tcp and udp share: addresses, options, and the interface behind an address.
#pragma once

#include <sys/socket.h>

#include <map>
#include <string>

#include "transport/endpoint.hpp"

namespace weft::transport {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // A numeric IPv4 or IPv6 address, with %scope if any; throws weft::Error otherwise.
  static SocketAddress of(const std::string& host, uint16_t port, const std::string& where);
  static SocketAddress local_of(int descriptor);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string host() const;
  uint16_t port() const;
  bool is_v6() const { return storage.ss_family == AF_INET6; }
};

// Closes its descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : value_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return value_; }
  int release();

 private:
  int value_ = -1;
};

// Receive slots of a socket: the kernel keeps what comes on top, and what we copy into should stay
// in the cache.
uint32_t receive_slots(const Config& config);
[[noreturn]] void throw_errno(const std::string& where, const std::string& action,
                              const std::string& remedy = "");
// Of IPv4's type of service and IPv6's traffic class what the socket has; false: errno says why.
bool set_traffic_class(int descriptor, int value, bool v6);
// DSCP, priority, busy polling: each is refused with its limit, never ignored; but false where an
// optional DSCP could not be set.
bool set_options(int descriptor, const Config& config, bool v6);
// A socket's timeout ends at a tick of the kernel, up to 10 ms late. That is right for a long wait,
// whose end is only a look at a flag, and saves a call; shorter ones sleep in sleep_until_ready.
constexpr int64_t kLongWaitNs = 100'000'000;
// Sets SO_RCVTIMEO or SO_SNDTIMEO only when it differs from `current_ns`.
void set_timeout(int descriptor, int option, int64_t timeout_ns, int64_t& current_ns);
// Until one of poll's events, or the time to the nanosecond.
void sleep_until_ready(int descriptor, short events, int64_t timeout_ns);
// Between looks of a stream's receiver at its socket: each look takes the lock that the sender's
// next message needs.
constexpr int64_t kShortPauseNs = 1'000;
void pause_between_looks(int64_t pause_ns);
// Local and peer address, interface, its MTU, IPoIB mode, what TCP or UDP was granted.
std::map<std::string, std::string> describe_socket(int descriptor);
// "ip port rest" <-> parts.
std::string join_address(const SocketAddress& address, const std::string& rest);
struct Reachable {
  std::string host;
  uint16_t port = 0;
  std::string rest;
};
Reachable split_address(const std::string& text, const std::string& where);

}  // namespace weft::transport
