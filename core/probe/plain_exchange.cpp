#include "probe/plain_exchange.hpp"

#include <sys/socket.h>
#include <time.h>

#include <array>

namespace weft::probe {

namespace {

int64_t now_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

void idle(const PlainExchange& exchange) {
  const int64_t end_ns = now_ns() + exchange.idle_ns;
  if (const int64_t sleep_ns = exchange.idle_ns - exchange.awake_ns;
      !exchange.spins && sleep_ns > 0) {
    const timespec time{sleep_ns / 1'000'000'000, sleep_ns % 1'000'000'000};
    nanosleep(&time, nullptr);
  }
  while (now_ns() < end_ns) continue;
}

}  // namespace

std::vector<int64_t> exchange_plainly(const PlainExchange& exchange) {
  std::array<std::byte, 64> message{exchange.first};
  std::vector<int64_t> times_ns;
  for (uint32_t i = 0; i < exchange.messages; ++i) {
    if (exchange.idle_ns > 0) idle(exchange);
    const int64_t sent_ns = now_ns();
    if (send(exchange.socket, message.data(), message.size(), 0) < 0) return times_ns;
    while (recv(exchange.socket, message.data(), message.size(), 0) < 0) {
      if (now_ns() - sent_ns >= exchange.timeout_ns) return times_ns;
    }
    times_ns.push_back(now_ns() - sent_ns);
  }
  return times_ns;
}

}  // namespace weft::probe
