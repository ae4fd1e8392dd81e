#include "transport/verbs/endpoint.hpp"

#ifdef WEFT_HAVE_VERBS
#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "transport/verbs/errors.hpp"

namespace weft::transport::verbs {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kLine = 64;

Kind kind_of(const Config& config) {
  if (config.endpoint.empty()) return Kind::rc;
  for (const Kind kind : {Kind::rc, Kind::uc, Kind::ud, Kind::srd})
    if (config.endpoint == name_of(kind)) return kind;
  throw Error("verbs", "endpoint '" + config.endpoint + "' is unknown", "use rc, uc, ud or srd");
}

size_t stride_of(size_t bytes) {
  return std::max((bytes + kPage - 1) / kPage, size_t{1}) * kPage;
}

uint32_t new_psn(const void* seed) {
  return static_cast<uint32_t>((reinterpret_cast<uintptr_t>(seed) >> 4) ^ ticks()) & 0xffffff;
}

void make_nonblocking(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

}  // namespace

VerbsEndpoint::VerbsEndpoint(const Config& config)
    : config_(config),
      kind_(kind_of(config)),
      device_(config.device.empty() ? choose_device(config) : config.device),
      where_(device_.name() + " port " + std::to_string(config.port)),
      port_(device_.port(config.port)) {
  check_limits(place());
  gid_ = choose_gid(config_, device_, port_);
  node_ = config.node >= 0 ? config.node : device_.node();
  pd_.reset(library().alloc_pd(device_.context()));
  if (!pd_) throw failed_call(where_, "allocate a protection domain", errno);
  lay_out_memory();
  queues_ = create_queues(place(), pd_.get());
  make_nonblocking(device_.context()->async_fd);
  if (queues_.channel) make_nonblocking(queues_.channel->fd);
  prepare_works();
  own_ = {.kind = kind_,
          .qp = queues_.qp->qp_num,
          .psn = new_psn(this),
          .lid = port_.attr.lid,
          .gid = gid_.raw,
          .mtu = path_mtu(place()),
          .receive_bytes = config.receive_bytes,
          .responder = static_cast<uint32_t>(std::clamp(device_.limits().max_qp_rd_atom, 0, 255)),
          .rkey = window_.registration ? window_.registration->rkey : 0,
          .window = reinterpret_cast<uintptr_t>(window_.memory.data()),
          .window_bytes = config.remote_bytes};
}

VerbsEndpoint::~VerbsEndpoint() {
  if (events_ > 0) library().ack_cq_events(queues_.cq.get(), events_);
}

VerbsEndpoint::Region VerbsEndpoint::make_region(size_t bytes, int access) const {
  Region region{Buffer(bytes, config_.pages, node_), nullptr};
  region.registration.reset(library().reg_mr(pd_.get(), region.memory.data(), bytes, access));
  if (!region.registration) throw failed_registration(where_, bytes, errno);
  return region;
}

void VerbsEndpoint::lay_out_memory() {
  send_stride_ = stride_of(config_.offset + std::max(config_.send_bytes, 8u));
  receive_start_ = config_.offset + (kind_ == Kind::ud ? kLine : 0);
  receive_stride_ = stride_of(receive_start_ + config_.receive_bytes);
  sends_ =
      make_region(send_stride_ * (config_.one_buffer ? 1 : config_.depth), IBV_ACCESS_LOCAL_WRITE);
  receives_ = make_region(receive_stride_ * config_.receive_depth, IBV_ACCESS_LOCAL_WRITE);
  if (config_.remote_bytes == 0) return;
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (device_.has_atomics()) access |= IBV_ACCESS_REMOTE_ATOMIC;
  window_ = make_region(config_.remote_bytes, access);
}

void VerbsEndpoint::prepare_works() {
  requests_.resize(config_.depth);
  send_pieces_.resize(config_.depth);
  pending_.resize(config_.depth);
  for (uint32_t i = 0; i < config_.depth; ++i) {
    requests_[i].sg_list = &send_pieces_[i];
    send_pieces_[i].lkey = sends_.registration->lkey;
    free_pending_.push_back(config_.depth - 1 - i);
  }
  const size_t header = kind_ == Kind::ud ? sizeof(ibv_grh) : 0;
  receive_requests_.resize(config_.receive_depth);
  receive_pieces_.resize(config_.receive_depth);
  for (uint32_t i = 0; i < config_.receive_depth; ++i) {
    receive_pieces_[i] = {.addr = reinterpret_cast<uintptr_t>(receive_slot(i)) - header,
                          .length = static_cast<uint32_t>(config_.receive_bytes + header),
                          .lkey = receives_.registration->lkey};
    receive_requests_[i].wr_id = kReceive | i;
    receive_requests_[i].sg_list = &receive_pieces_[i];
    receive_requests_[i].num_sge = receive_pieces_[i].length > 0 ? 1 : 0;
    release(i);
  }
  post_receives();
}

void VerbsEndpoint::connect(const std::string& text, int) {
  peer_ = Address::parse(where_, text);
  if (peer_.kind != kind_)
    throw Error(
        where_,
        std::string("our endpoint is ") + name_of(kind_) + ", the peer's " + name_of(peer_.kind),
        "use the same --endpoint on both sides");
  peer_handle_ = connect_queues(place(), pd_.get(), queues_.qp.get(), own_, peer_);
  most_bytes_.fill(-1);
  for (const Op op : operations(kind_, device_))
    most_bytes_[static_cast<size_t>(op)] = is_atomic(op) ? 8 : config_.send_bytes;
  most_bytes_[static_cast<size_t>(Op::send)] = std::min(config_.send_bytes, peer_.receive_bytes);
  if (peer_handle_)
    for (auto& request : requests_)
      request.wr.ud = {.ah = peer_handle_.get(), .remote_qpn = peer_.qp, .remote_qkey = kQueueKey};
  connected_ = true;
}

std::byte* VerbsEndpoint::send_slot(uint32_t slot) {
  return sends_.memory.data() + config_.offset + (config_.one_buffer ? 0 : slot * send_stride_);
}

const std::byte* VerbsEndpoint::receive_slot(uint64_t slot) {
  return receives_.memory.data() + receive_start_ + slot * receive_stride_;
}

std::span<std::byte> VerbsEndpoint::window() {
  return {window_.memory.data(), static_cast<size_t>(config_.remote_bytes)};
}

std::map<std::string, std::string> VerbsEndpoint::describe() {
  std::map<std::string, std::string> facts = {
      {"transport", "verbs"},
      {"endpoint", name_of(kind_)},
      {"device", device_.name()},
      {"firmware", device_.limits().fw_ver},
      {"port", std::to_string(port_.number)},
      {"port_state", port_.state()},
      {"link_layer", port_.link_layer()},
      {"rate", port_.rate},
      {"mtu_bytes", std::to_string(connected_ ? std::min(own_.mtu, peer_.mtu) : own_.mtu)},
      {"gid_index", std::to_string(gid_.index)},
      {"gid", gid_.text},
      {"gid_type", gid_.type},
      {"lid", std::to_string(port_.attr.lid)},
      {"qp", std::to_string(own_.qp)},
      {"depth", std::to_string(config_.depth)},
      {"receive_depth", std::to_string(config_.receive_depth)},
      {"inline_bytes", std::to_string(queues_.inline_bytes)},
      {"service_level", std::to_string(config_.service_level)},
      {"traffic_class", std::to_string(config_.traffic_class)},
      {"completions", queues_.channel ? "events" : "polling"},
      {"pages", sends_.memory.pages()},
      {"node", std::to_string(node_)},
  };
  if (queues_.timed_cq != nullptr) {
    facts["device_hz"] = std::to_string(device_.clock_hz());
    facts["device_timestamps"] = "unverified: never ran on a device that has them";
  } else if (config_.device_timestamps) {
    facts["device_timestamps"] = "no: the device offers none";
  }
  if (kind_ == Kind::srd) facts["status"] = "unverified: never ran on an Elastic Fabric Adapter";
  return facts;
}

}  // namespace weft::transport::verbs
#endif
