#include "transport/verbs/queues.hpp"

#ifdef WEFT_HAVE_VERBS
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "transport/verbs/errors.hpp"

namespace weft::transport::verbs {

namespace {

// 4.096 us * 2^14 = 67 ms, at most four times that on some devices; six retries: a dead peer is an
// error after 0.5 to 2 s. Seven would do, but soft RoCE takes that for infinity.
constexpr uint8_t kAckTimeout = 14;
constexpr uint8_t kRetries = 6;
// For ever: a peer that is alive but slow to post receives is not an error.
constexpr uint8_t kReceiverNotReadyRetries = 7;
constexpr uint8_t kReceiverNotReadyTimer = 12;  // 0.64 ms

ibv_mtu mtu_code(uint32_t bytes) {
  return static_cast<ibv_mtu>(std::bit_width(bytes) - std::bit_width(256u) + IBV_MTU_256);
}

void modify(const Place& place, ibv_qp* qp, ibv_qp_attr& attr, int mask, const char* what) {
  const int code = library().modify_qp(qp, &attr, mask);
  if (code != 0) throw failed_call(place.where, what, code);
}

bool is_datagram(Kind kind) {
  return kind == Kind::ud || kind == Kind::srd;
}

ibv_qp_init_attr initial(const Place& place, ibv_cq* cq, uint32_t inline_bytes) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap.max_send_wr = place.config.depth;
  init.cap.max_recv_wr = place.config.receive_depth;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  init.cap.max_inline_data = inline_bytes;
  init.qp_type = place.kind == Kind::rc   ? IBV_QPT_RC
                 : place.kind == Kind::uc ? IBV_QPT_UC
                                          : IBV_QPT_UD;
  return init;
}

uint64_t send_operations(const Place& place) {
  if (is_datagram(place.kind)) return IBV_QP_EX_WITH_SEND;
  uint64_t operations =
      IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
  if (place.kind == Kind::uc) return operations;
  operations |= IBV_QP_EX_WITH_RDMA_READ;
  if (place.device.has_atomics())
    operations |= IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP;
  return operations;
}

// With ibv_wr_* where the device has it and nobody asks for lists; `init` gets what was granted.
Queues create_qp(const Place& place, ibv_pd* pd, ibv_qp_init_attr& init) {
  ibv_qp_init_attr_ex extended{};
  std::memcpy(&extended, &init, sizeof init);
  extended.pd = pd;
  Queues queues;
  if (place.kind == Kind::srd) {
    extended.sq_sig_all = 1;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    queues.qp.reset(create_srd_qp(place.device.context(), extended));
    init.cap = extended.cap;
    return queues;
  }
  if (place.config.posting != "list") {
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    extended.send_ops_flags = send_operations(place);
    queues.qp.reset(ibv_create_qp_ex(place.device.context(), &extended));
    if (queues.qp) queues.extended = library().qp_to_qp_ex(queues.qp.get());
    if (queues.extended != nullptr) init.cap = extended.cap;
    if (queues.extended != nullptr || place.config.posting == "wr") return queues;
  }
  queues.qp.reset(library().create_qp(pd, &init));
  return queues;
}

// Devices do not say how much they send inline: what a small queue pair gets is the limit.
uint32_t largest_inline(const Place& place, ibv_pd* pd, ibv_cq* cq, uint32_t wanted) {
  uint32_t works = 0, fails = wanted;
  while (fails - works > 1) {
    const uint32_t middle = works + (fails - works) / 2;
    ibv_qp_init_attr init = initial(place, cq, middle);
    init.cap.max_send_wr = init.cap.max_recv_wr = 1;
    (create_qp(place, pd, init).qp ? works : fails) = middle;
  }
  return works;
}

[[noreturn]] void explain_refusal(const Place& place, ibv_pd* pd, ibv_cq* cq, int code) {
  const Config& config = place.config;
  if (config.posting == "wr") {
    ibv_qp_init_attr init = initial(place, cq, 0);
    if (!create_qp(place, pd, init).qp)
      throw Error(place.where, "the device has no ibv_wr_* posting", "use --posting list or auto");
  }
  const uint32_t wanted = config.inline_bytes;
  if (wanted > 0) {
    const uint32_t limit = largest_inline(place, pd, cq, wanted);
    if (limit + 1 == wanted || limit < wanted / 2)
      throw above_limit(place.where, "inline size", wanted, limit, "lower --inline");
  }
  throw failed_call(place.where,
                    "create a queue pair of depth " + std::to_string(config.depth) + " and " +
                        std::to_string(config.receive_depth) + " receives, " +
                        std::to_string(wanted) + " B inline",
                    code);
}

// Larger messages gain nothing from it, and a device makes its queue's entries larger for it.
constexpr uint32_t kMostInline = 256;

uint32_t wanted_inline(const Config& config) {
  if (!config.inline_by_device) return config.inline_bytes;
  return config.send_bytes <= kMostInline ? config.send_bytes : 0;
}

void to_init(const Place& place, ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = static_cast<uint8_t>(place.port.number);
  attr.pkey_index = static_cast<uint16_t>(place.partition.index);
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
  if (is_datagram(place.kind)) {
    attr.qkey = kQueueKey;
    mask |= IBV_QP_QKEY;
  } else {
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    if (place.kind == Kind::rc) {
      attr.qp_access_flags |= IBV_ACCESS_REMOTE_READ;
      if (place.device.has_atomics()) attr.qp_access_flags |= IBV_ACCESS_REMOTE_ATOMIC;
    }
    mask |= IBV_QP_ACCESS_FLAGS;
  }
  modify(place, qp, attr, mask, "initialise the queue pair");
}

ibv_ah_attr route_to(const Place& place, const Address& peer) {
  ibv_ah_attr route{};
  route.port_num = static_cast<uint8_t>(place.port.number);
  route.sl = static_cast<uint8_t>(place.config.service_level);
  route.dlid = peer.lid;
  const bool other_subnet =
      peer.gid.global.subnet_prefix != place.gid.raw.global.subnet_prefix && peer.lid != 0;
  // InfiniBand needs no global header inside a subnet; Ethernet has nothing else. An application's
  // level is in the service level there: not worth 40 B in every packet.
  const bool needs_class = place.config.traffic_class != 0 && !place.config.class_is_optional;
  if (!place.port.is_infiniband() || place.config.gid_index >= 0 || other_subnet || needs_class) {
    route.is_global = 1;
    route.grh.dgid = peer.gid;
    route.grh.sgid_index = static_cast<uint8_t>(std::max(place.gid.index, 0));
    route.grh.hop_limit = 64;
    route.grh.traffic_class = static_cast<uint8_t>(place.config.traffic_class);
  }
  return route;
}

void check_range(const Place& place, const char* what, int value, int most) {
  if (value < 0 || value > most)
    throw Error(place.where, std::string(what) + " " + std::to_string(value) + " is not possible",
                "use 0 to " + std::to_string(most));
}

void check_size(const Place& place, const char* what, uint32_t bytes) {
  const bool datagram = place.kind == Kind::ud;
  const uint32_t limit = datagram ? std::min(max_bytes(place.kind, place.port), path_mtu(place))
                                  : max_bytes(place.kind, place.port);
  if (bytes <= limit) return;
  throw above_limit(
      place.where, std::string(what) + " size", bytes, limit,
      datagram ? "a UD message is one packet: lower --size, or use --endpoint rc" : "lower --size");
}

}  // namespace

uint32_t path_mtu(const Place& place) {
  const uint32_t requested = place.config.path_mtu;
  return requested == 0 ? place.port.mtu() : std::min(requested, place.port.mtu());
}

void check_limits(const Place& place) {
  const Config& config = place.config;
  const ibv_device_attr& limits = place.device.limits();
  if (place.device.is_iwarp()) throw Error(place.where, kIwarpProblem, kIwarpRemedy);
  if (!place.port.is_active())
    throw Error(place.where, "the port is " + place.port.state() + ", not ACTIVE",
                inactive_remedy(place.port, place.device.ports()));
  const auto kinds = place.device.kinds();
  if (std::find(kinds.begin(), kinds.end(), place.kind) == kinds.end())
    throw Error(place.where, std::string("the device has no ") + name_of(place.kind) + " endpoints",
                place.device.is_efa() ? "use --endpoint srd or ud" : "use --endpoint rc, uc or ud");
  const auto deepest = static_cast<uint32_t>(limits.max_qp_wr);
  const auto entries = static_cast<uint32_t>(limits.max_cqe);
  if (config.depth > deepest)
    throw above_limit(place.where, "send queue depth", config.depth, deepest, "lower --depth");
  if (config.receive_depth > deepest)
    throw above_limit(place.where, "receive queue depth", config.receive_depth, deepest,
                      "lower --depth");
  const uint64_t completions =
      (uint64_t{config.depth} + config.receive_depth) * std::max(config.queue_members, 1u);
  if (completions > entries)
    throw above_limit(place.where, "completion queue depth", completions, entries,
                      config.queue_members > 1 ? "lower --depth or --qps" : "lower --depth");
  if (config.posting != "auto" && config.posting != "wr" && config.posting != "list")
    throw Error(place.where, "posting '" + config.posting + "' is unknown", "use auto, wr or list");
  if (config.path_mtu != 0 &&
      (!std::has_single_bit(config.path_mtu) || config.path_mtu < 256 || config.path_mtu > 4096))
    throw Error(place.where, "path MTU " + std::to_string(config.path_mtu) + " is not possible",
                "use 256, 512, 1024, 2048 or 4096");
  if (config.path_mtu > place.port.mtu())
    throw above_limit(place.where, "path MTU", config.path_mtu, place.port.mtu(),
                      "raise the interface's MTU, or lower --mtu");
  check_size(place, "send", config.send_bytes);
  check_size(place, "receive", config.receive_bytes);
  check_range(place, "service level", config.service_level, 15);
  check_range(place, "traffic class", config.traffic_class, 255);
  check_range(place, "partition key", config.partition, 0xffff);
}

Queues create_queues(const Place& place, ibv_pd* pd, ibv_cq* cq) {
  uint32_t wanted = wanted_inline(place.config);
  ibv_qp_init_attr init = initial(place, cq, wanted);
  errno = 0;
  Queues queues = create_qp(place, pd, init);
  if (!queues.qp && wanted > 0 && place.config.inline_by_device) {
    wanted = largest_inline(place, pd, cq, wanted);
    init = initial(place, cq, wanted);
    queues = create_qp(place, pd, init);
  }
  if (!queues.qp) explain_refusal(place, pd, cq, errno);
  queues.inline_bytes = std::min(init.cap.max_inline_data, wanted);
  to_init(place, queues.qp.get());
  return queues;
}

AddressHandle connect_queues(const Place& place, ibv_pd* pd, ibv_qp* qp, const Address& local,
                             const Address& peer) {
  const bool datagram = is_datagram(place.kind), rc = place.kind == Kind::rc;
  const ibv_device_attr& limits = place.device.limits();
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RTR;
  attr.ah_attr = route_to(place, peer);
  AddressHandle handle;
  if (datagram) {
    handle.reset(library().create_ah(pd, &attr.ah_attr));
    if (!handle) throw failed_call(place.where, "reach the peer's address", errno);
  }
  attr.path_mtu = mtu_code(std::min(local.mtu, peer.mtu));
  attr.dest_qp_num = peer.qp;
  attr.rq_psn = peer.psn;
  attr.max_dest_rd_atomic = static_cast<uint8_t>(local.responder);
  attr.min_rnr_timer = kReceiverNotReadyTimer;
  int mask = IBV_QP_STATE;
  if (!datagram) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (rc) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  modify(place, qp, attr, mask, "make the queue pair ready to receive");

  attr.qp_state = IBV_QPS_RTS;
  attr.sq_psn = local.psn;
  attr.timeout = kAckTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = kReceiverNotReadyRetries;
  attr.max_rd_atomic = static_cast<uint8_t>(std::min(
      {static_cast<uint32_t>(std::max(limits.max_qp_init_rd_atom, 0)), peer.responder, 255u}));
  mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
  if (rc) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
  modify(place, qp, attr, mask, "make the queue pair ready to send");
  return handle;
}

}  // namespace weft::transport::verbs
#endif
