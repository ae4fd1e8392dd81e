#include "transport/verbs/queues.hpp"

#ifdef WEFT_HAVE_VERBS
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <sstream>

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

ibv_qp_init_attr initial(const Place& place, ibv_cq* cq) {
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = cq;
  init.cap.max_send_wr = place.config.depth;
  init.cap.max_recv_wr = place.config.receive_depth;
  init.cap.max_send_sge = init.cap.max_recv_sge = 1;
  init.cap.max_inline_data = place.config.inline_bytes;
  init.qp_type = place.kind == Kind::rc   ? IBV_QPT_RC
                 : place.kind == Kind::uc ? IBV_QPT_UC
                                          : IBV_QPT_UD;
  return init;
}

QueuePair create_qp(const Place& place, ibv_pd* pd, ibv_qp_init_attr& init) {
  if (place.kind != Kind::srd) return QueuePair(library().create_qp(pd, &init));
  ibv_qp_init_attr_ex extended{};
  std::memcpy(&extended, &init, sizeof init);
  extended.sq_sig_all = 1;
  extended.comp_mask = IBV_QP_INIT_ATTR_PD;
  extended.pd = pd;
  QueuePair qp(create_srd_qp(place.device.context(), extended));
  init.cap = extended.cap;
  return qp;
}

// Devices do not say how much they send inline: what a small queue pair gets is the limit.
uint32_t largest_inline(const Place& place, ibv_pd* pd, ibv_cq* cq) {
  uint32_t works = 0, fails = place.config.inline_bytes;
  while (fails - works > 1) {
    const uint32_t middle = works + (fails - works) / 2;
    ibv_qp_init_attr init = initial(place, cq);
    init.cap.max_send_wr = init.cap.max_recv_wr = 1;
    init.cap.max_inline_data = middle;
    (create_qp(place, pd, init) ? works : fails) = middle;
  }
  return works;
}

[[noreturn]] void explain_refusal(const Place& place, ibv_pd* pd, ibv_cq* cq, int code) {
  const Config& config = place.config;
  if (config.inline_bytes > 0) {
    const uint32_t limit = largest_inline(place, pd, cq);
    if (limit + 1 == config.inline_bytes || limit < config.inline_bytes / 2)
      throw above_limit(place.where, "inline size", config.inline_bytes, limit, "lower --inline");
  }
  throw failed_call(place.where,
                    "create a queue pair of depth " + std::to_string(config.depth) + " and " +
                        std::to_string(config.receive_depth) + " receives, " +
                        std::to_string(config.inline_bytes) + " B inline",
                    code);
}

void to_init(const Place& place, ibv_qp* qp) {
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = static_cast<uint8_t>(place.port.number);
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

CompletionQueue create_cq(const Place& place, Queues& queues) {
  const auto entries = place.config.depth + place.config.receive_depth;
  if (place.config.events) {
    queues.channel.reset(library().create_comp_channel(place.device.context()));
    if (!queues.channel) throw failed_call(place.where, "create an event channel", errno);
  }
  if (place.config.device_timestamps && place.device.has_timestamps()) {
    ibv_cq_init_attr_ex init{};
    init.cqe = entries;
    init.channel = queues.channel.get();
    init.wc_flags =
        IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    queues.timed_cq = ibv_create_cq_ex(place.device.context(), &init);
    if (queues.timed_cq != nullptr) return CompletionQueue(ibv_cq_ex_to_cq(queues.timed_cq));
  }
  CompletionQueue cq(library().create_cq(place.device.context(), static_cast<int>(entries), nullptr,
                                         queues.channel.get(), 0));
  if (!cq)
    throw failed_call(
        place.where, "create a completion queue of " + std::to_string(entries) + " entries", errno);
  return cq;
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

std::string Address::text() const {
  std::ostringstream out;
  out << "verbs1 " << name_of(kind) << std::hex << ' ' << qp << ' ' << psn << ' ' << lid << ' ';
  for (const uint8_t byte : gid.raw) out << std::setw(2) << std::setfill('0') << int{byte};
  out << ' ' << mtu << ' ' << receive_bytes << ' ' << responder << ' ' << rkey << ' ' << window
      << ' ' << window_bytes;
  return out.str();
}

Address Address::parse(const std::string& where, const std::string& text) {
  std::istringstream in(text);
  std::string version, kind, gid;
  Address address;
  in >> version >> kind >> std::hex >> address.qp >> address.psn >> address.lid >> gid >>
      address.mtu >> address.receive_bytes >> address.responder >> address.rkey >> address.window >>
      address.window_bytes;
  bool is_known_kind = false;
  for (const Kind candidate : {Kind::rc, Kind::uc, Kind::ud, Kind::srd}) {
    if (kind != name_of(candidate)) continue;
    address.kind = candidate;
    is_known_kind = true;
  }
  const bool is_hex = gid.size() == 32 && gid.find_first_not_of("0123456789abcdef") == gid.npos;
  if (in.fail() || version != "verbs1" || !is_known_kind || !is_hex ||
      !std::has_single_bit(address.mtu) || address.mtu < 256 || address.mtu > 4096)
    throw Error(where, "the peer's address is not one of the verbs transport",
                "run the same version of weft with the same --over on both sides");
  for (size_t i = 0; i < 16; ++i)
    address.gid.raw[i] = static_cast<uint8_t>(std::stoi(gid.substr(2 * i, 2), nullptr, 16));
  return address;
}

uint32_t path_mtu(const Place& place) {
  const uint32_t requested = place.config.path_mtu;
  return requested == 0 ? place.port.mtu() : std::min(requested, place.port.mtu());
}

void check_limits(const Place& place) {
  const Config& config = place.config;
  const ibv_device_attr& limits = place.device.limits();
  if (place.port.attr.state != IBV_PORT_ACTIVE)
    throw Error(place.where, "the port is " + place.port.state() + ", not ACTIVE",
                place.port.is_infiniband() ? "see the cable, and whether a subnet manager runs"
                                           : "see the cable, and ip link set INTERFACE up");
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
  if (uint64_t{config.depth} + config.receive_depth > entries)
    throw above_limit(place.where, "completion queue depth",
                      uint64_t{config.depth} + config.receive_depth, entries, "lower --depth");
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
}

Queues create_queues(const Place& place, ibv_pd* pd) {
  Queues queues;
  queues.cq = create_cq(place, queues);
  ibv_qp_init_attr init = initial(place, queues.cq.get());
  errno = 0;
  queues.qp = create_qp(place, pd, init);
  if (!queues.qp) explain_refusal(place, pd, queues.cq.get(), errno);
  queues.inline_bytes = std::min(init.cap.max_inline_data, place.config.inline_bytes);
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
