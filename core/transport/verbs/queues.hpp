// A queue pair with its completion queue, and the way from INIT to connected.
#pragma once

#include "transport/verbs/device.hpp"

#ifdef WEFT_HAVE_VERBS
namespace weft::transport::verbs {

constexpr uint32_t kQueueKey = 0x77656674;  // of datagrams

// What a peer must know to reach a queue pair; travels as text.
struct Address {
  Kind kind = Kind::rc;
  uint32_t qp = 0, psn = 0;
  uint16_t lid = 0;
  ibv_gid gid{};
  uint32_t mtu = 0;            // bytes
  uint32_t receive_bytes = 0;  // largest message its receives hold
  uint32_t responder = 0;      // reads and atomics it answers at once
  uint32_t rkey = 0;
  uint64_t window = 0, window_bytes = 0;

  std::string text() const;
  static Address parse(const std::string& where, const std::string& text);
};

struct Queues {
  Channel channel;  // with completion events only
  CompletionQueue cq;
  ibv_cq_ex* timed_cq = nullptr;  // the same queue, when completions carry timestamps
  QueuePair qp;
  uint32_t inline_bytes = 0;  // granted
};

// Where a queue pair sits: its device, port and GID, and what the user asked for.
struct Place {
  const Config& config;
  const Device& device;
  const Port& port;
  const Gid& gid;
  Kind kind;
  std::string where;  // "mlx5_0 port 1"
};

// Throws when the configuration asks for more than device or port can.
void check_limits(const Place& place);
// In state INIT: receives may be posted.
Queues create_queues(const Place& place, ibv_pd* pd);
// To ready-to-send. For datagrams the handle of the peer's address is returned.
AddressHandle connect_queues(const Place& place, ibv_pd* pd, ibv_qp* qp, const Address& local,
                             const Address& peer);
// Both ends' choice: the smaller of the two, no more than Config::path_mtu.
uint32_t path_mtu(const Place& place);

}  // namespace weft::transport::verbs
#endif
