// Whether two ports can reach each other, seen from the addresses that the two sides exchange.
#pragma once

#include "transport/verbs/device.hpp"

#ifdef WEFT_HAVE_VERBS
namespace weft::transport::verbs {

// What a GID stands for: its encapsulation on the wire.
enum class Link : uint8_t { infiniband, roce_v1, roce_v2, other };
const char* name_of(Link link);
Link link_of(const Port& port, const Gid& gid);

// What a peer must know to reach a queue pair; travels as text.
struct Address {
  Kind kind = Kind::rc;
  uint32_t qp = 0, psn = 0;
  uint16_t lid = 0;
  ibv_gid gid{};
  int gid_index = -1;
  int prefix_bits = 64;  // of the GID's subnet
  Link link = Link::infiniband;
  uint16_t partition = 0xffff;
  uint32_t mtu = 0;            // bytes
  uint32_t receive_bytes = 0;  // largest message its receives hold
  uint32_t responder = 0;      // reads and atomics it answers at once
  uint32_t rkey = 0;
  uint64_t window = 0, window_bytes = 0;

  std::string text() const;
  static Address parse(const std::string& where, const std::string& text);
};

bool is_same_subnet(const Address& local, const Address& peer);
// Throws when no packet could get from one to the other: link layers, GID types, subnets or
// partitions that do not match. Both values are in the error. `netdev` is the interface of the
// local GID.
void check_path(const std::string& where, const Config& config, const std::string& netdev,
                const Address& local, const Address& peer);
// "within 10.9.0.0/24", or both subnets where packets are routed.
std::string describe_path(const Address& local, const Address& peer);

}  // namespace weft::transport::verbs
#endif
