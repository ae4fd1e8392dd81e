// Round trips by a transport's own calls alone (send and recv, or libfabric's): what a host's
// kernel and the transport's library take, found without the loops that are judged by it. Units:
// ns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace weft::probe {

struct PlainExchange {
  std::byte first{};  // byte of each message of 64 B
  uint32_t messages = 0;
  bool spins = false;   // looks for the answer all the time, where another sleeps
  int64_t idle_ns = 0;  // before each message; a sleep ends `awake_ns` before
  int64_t awake_ns = 0;
  int64_t timeout_ns = 0;  // for an answer
};

// Over a connected socket, which is non-blocking if it spins. One time per message, from the send
// to the receive; fewer if an answer did not come in time.
std::vector<int64_t> exchange_plainly(int socket, const PlainExchange& exchange);

// The same over a reliable datagram endpoint of a libfabric provider.
class PlainFabric {
 public:
  // `address`: of this host. Throws weft::Error where libfabric or the provider cannot do it.
  PlainFabric(const std::string& provider, const std::string& address, bool spins);
  ~PlainFabric();
  PlainFabric(const PlainFabric&) = delete;
  PlainFabric& operator=(const PlainFabric&) = delete;

  // As the provider writes it: where peers send to.
  std::string name() const;
  // With a peer that echoes. The first message is not timed: it opens the connection.
  std::vector<int64_t> exchange(const std::string& peer, const PlainExchange& exchange);
  // Sends back what comes, for as long as the process lives.
  [[noreturn]] void echo();

 private:
  struct Objects;
  std::unique_ptr<Objects> objects_;
};

}  // namespace weft::probe
