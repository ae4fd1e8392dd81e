// An RDMA device and one of its ports: opened, with what the device and sysfs say about it.
#pragma once

#include "transport/verbs/library.hpp"

#ifdef WEFT_HAVE_VERBS
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "transport/endpoint.hpp"

namespace weft::transport::verbs {

enum class Kind : uint8_t { rc, uc, ud, srd };
const char* name_of(Kind kind);
std::string hex_of(uint16_t value);  // "0xffff"

struct Gid {
  int index = -1;
  ibv_gid raw{};
  std::string text;      // as an IPv6 address; IPv4-mapped ones as IPv4
  std::string type;      // as in sysfs: "IB/RoCE v1" or "RoCE v2"
  std::string netdev;    // its network interface; "" on InfiniBand
  int prefix_bits = 64;  // of its subnet: the netmask of its interface, where that has it
};

struct Partition {
  int index = 0;
  uint16_t key = 0xffff;
};

struct Port {
  int number = 1;
  ibv_port_attr attr{};
  std::vector<Gid> gids;
  std::string rate;     // as in sysfs: "100 Gb/sec (4X EDR)"
  std::string netdevs;  // network interfaces of its GIDs

  bool is_active() const { return attr.state == IBV_PORT_ACTIVE; }
  bool is_infiniband() const { return attr.link_layer == IBV_LINK_LAYER_INFINIBAND; }
  std::string link_layer() const;
  std::string state() const;
  uint32_t mtu() const { return 128u << attr.active_mtu; }
};

class Device {
 public:
  explicit Device(const std::string& name);

  const std::string& name() const { return name_; }
  ibv_context* context() const { return context_.get(); }
  const ibv_device_attr& limits() const { return attr_.orig_attr; }
  const ibv_device_attr_ex& attr() const { return attr_; }
  Port port(int number) const;
  std::vector<Port> ports() const;
  // RDMA over TCP: its queue pairs are connected by rdma_cm alone.
  bool is_iwarp() const { return context_->device->transport_type == IBV_TRANSPORT_IWARP; }
  bool is_efa() const { return attr_.orig_attr.vendor_id == 0x1d0f; }
  std::vector<Kind> kinds() const;
  bool has_atomics() const { return attr_.orig_attr.atomic_cap != IBV_ATOMIC_NONE; }
  bool has_timestamps() const { return attr_.completion_timestamp_mask != 0; }
  uint64_t tick_mask() const { return attr_.completion_timestamp_mask; }
  // hca_core_clock, in Hz; 0 when the device does not say.
  uint64_t clock_hz() const { return attr_.hca_core_clock * 1000; }
  int node() const;  // NUMA; -1 when unknown

 private:
  std::string name_;
  Context context_;
  ibv_device_attr_ex attr_{};
};

// Names of all devices. Empty without any; Error with the reason when the kernel has no RDMA.
std::vector<std::string> device_names();
// What to do on a machine without devices.
std::string no_device_remedy();

// Largest message of this kind of endpoint through this port.
uint32_t max_bytes(Kind kind, const Port& port);
std::vector<Op> operations(Kind kind, const Device& device);

// The GID to use: the configured one, the one of Config::address, or the best type there is
// (RoCE v2 over IPv4, over global IPv6, link-local, then v1). InfiniBand ports are reached by LID:
// there the address does not matter.
Gid choose_gid(const Config& config, const Device& device, const Port& port);
// The entry of the port's partition table with this key, whatever its membership; 0: the first.
Partition choose_partition(const Config& config, const Device& device, const Port& port);

// How to connect where queue pairs cannot be connected by exchanged addresses.
extern const char* const kIwarpProblem;
extern const char* const kIwarpRemedy;
// What to do about a port that is down: the cable, or the port beside it that is active.
std::string inactive_remedy(const Port& port, const std::vector<Port>& siblings);

struct Choice {
  std::string device;
  int port = 1;
};
// What Config leaves open: the first device with an active port (and the GID of Config::address),
// the first active port of a named device.
Choice choose_port(const Config& config);
// 1 where none is active.
int first_active(const std::vector<Port>& ports);

}  // namespace weft::transport::verbs
#endif
