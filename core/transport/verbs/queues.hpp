// A queue pair, and the way from INIT to connected.
#pragma once

#include "transport/verbs/adapter.hpp"
#include "transport/verbs/path.hpp"

#ifdef WEFT_HAVE_VERBS
namespace weft::transport::verbs {

constexpr uint32_t kQueueKey = 0x77656674;  // of datagrams

constexpr uint64_t kReceive = uint64_t{1} << 63;  // in work ids of receives, beside the slot

struct Queues {
  QueuePair qp;
  ibv_qp_ex* extended = nullptr;  // the same queue pair, where works are posted by ibv_wr_*
  uint32_t inline_bytes = 0;      // granted
};

// Where a queue pair sits: its device, port and GID, and what the user asked for.
struct Place {
  const Config& config;
  const Device& device;
  const Port& port;
  const Gid& gid;
  const Partition& partition;
  Kind kind;
  std::string where;  // "mlx5_0 port 1"
};

// Throws when the configuration asks for more than device or port can.
void check_limits(const Place& place);
// In state INIT: receives may be posted.
Queues create_queues(const Place& place, ibv_pd* pd, ibv_cq* cq);
// To ready-to-send. For datagrams the handle of the peer's address is returned.
AddressHandle connect_queues(const Place& place, ibv_pd* pd, ibv_qp* qp, const Address& local,
                             const Address& peer);
// Both ends' choice: the smaller of the two, no more than Config::path_mtu.
uint32_t path_mtu(const Place& place);

}  // namespace weft::transport::verbs
#endif
