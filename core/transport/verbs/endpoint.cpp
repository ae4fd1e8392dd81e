#include "transport/verbs/endpoint.hpp"

#ifdef WEFT_HAVE_VERBS
#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "transport/verbs/errors.hpp"

namespace weft::transport::verbs {

namespace {

constexpr size_t kPage = 4096, kLine = 64;

Kind kind_of(const Config& config) {
  if (config.endpoint.empty()) return Kind::rc;
  for (const Kind kind : {Kind::rc, Kind::uc, Kind::ud, Kind::srd})
    if (config.endpoint == name_of(kind)) return kind;
  throw Error("verbs", "endpoint '" + config.endpoint + "' is unknown", "use rc, uc, ud or srd");
}

// Small messages lie on neighbouring cache lines, others on pages of their own.
size_t stride_of(size_t offset, size_t bytes) {
  const size_t used = std::max(offset + bytes, size_t{1});
  const size_t unit = offset == 0 && used < kPage ? kLine : kPage;
  return (used + unit - 1) / unit * unit;
}

uint32_t new_psn(const void* seed) {
  return static_cast<uint32_t>((reinterpret_cast<uintptr_t>(seed) >> 4) ^ ticks()) & 0xffffff;
}

}  // namespace

VerbsEndpoint::VerbsEndpoint(const Config& config, const Choice& choice)
    : config_(config),
      kind_(kind_of(config)),
      adapter_(Adapter::open(choice.device, config.separate_contexts)),
      device_(adapter_->device()),
      where_(choice.device + " port " + std::to_string(choice.port)),
      port_(device_.port(choice.port)) {
  check_limits(place());
  gid_ = choose_gid(config_, device_, port_);
  partition_ = choose_partition(config_, device_, port_);
  node_ = config.node >= 0 ? config.node : device_.node();
  port_errors_ = adapter_->port_errors(port_.number);
  if (config_.memory != "host") use_gpu();
  lay_out_memory();
  completions_ = SharedQueue::join(*adapter_, place());
  queues_ = create_queues(place(), adapter_->pd(), completions_->get());
  completions_->add(queues_.qp->qp_num);
  prepare_works();
  own_ = {.kind = kind_,
          .qp = queues_.qp->qp_num,
          .psn = new_psn(this),
          .lid = port_.attr.lid,
          .gid = gid_.raw,
          .gid_index = gid_.index,
          .prefix_bits = gid_.prefix_bits,
          .link = link_of(port_, gid_),
          .partition = partition_.key,
          .mtu = path_mtu(place()),
          .receive_bytes = config.receive_bytes,
          .responder = static_cast<uint32_t>(std::clamp(device_.limits().max_qp_rd_atom, 0, 255)),
          .rkey = window_.rkey(),
          .window = window_.address(),
          .window_bytes = config.remote_bytes};
}

VerbsEndpoint::~VerbsEndpoint() {
  completions_->remove(own_.qp);
}

Block VerbsEndpoint::allocate(size_t bytes, int access) const {
  const MemoryUse use{access, config_.strict_ordering, config_.pages, node_};
  return gpu_ ? adapter_->allocate_on(gpu_, bytes, use, where_)
              : adapter_->allocate(bytes, use, where_);
}

// Messages lie where the adapter fetches and puts them; the processor copies what it has to see.
void VerbsEndpoint::use_gpu() {
  if (!is_reliable())
    throw Error(where_, "datagrams carry numbers that the processor writes and reads");
  gpu_ = std::make_shared<cuda::Device>(cuda::device_number(config_.memory));
  config_.inline_bytes = 0;
  config_.inline_by_device = false;
}

void VerbsEndpoint::lay_out_memory() {
  send_stride_ = stride_of(config_.offset, std::max(config_.send_bytes, 8u));
  receive_start_ = config_.offset + (kind_ == Kind::ud ? kLine : 0);
  receive_stride_ =
      stride_of(config_.offset, receive_start_ - config_.offset + config_.receive_bytes);
  sends_ =
      allocate(send_stride_ * (config_.one_buffer ? 1 : config_.depth), IBV_ACCESS_LOCAL_WRITE);
  receives_ = allocate(receive_stride_ * config_.receive_depth, IBV_ACCESS_LOCAL_WRITE);
  if (gpu_) send_view_.resize(send_stride_ * config_.depth);
  if (gpu_) receive_view_.resize(receive_stride_ * config_.receive_depth);
  if (config_.remote_bytes == 0) return;
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  if (device_.has_atomics()) access |= IBV_ACCESS_REMOTE_ATOMIC;
  window_ = allocate(config_.remote_bytes, access);
}

void VerbsEndpoint::prepare_works() {
  requests_.resize(config_.depth);
  send_pieces_.resize(config_.depth);
  pending_.resize(config_.depth);
  for (uint32_t i = 0; i < config_.depth; ++i) {
    requests_[i].sg_list = &send_pieces_[i];
    send_pieces_[i].lkey = sends_.lkey();
    free_pending_.push_back(config_.depth - 1 - i);
  }
  const size_t header = kind_ == Kind::ud ? sizeof(ibv_grh) : 0;
  receive_requests_.resize(config_.receive_depth);
  receive_pieces_.resize(config_.receive_depth);
  for (uint32_t i = 0; i < config_.receive_depth; ++i) {
    receive_pieces_[i] = {.addr = receive_address(i) - header,
                          .length = static_cast<uint32_t>(config_.receive_bytes + header),
                          .lkey = receives_.lkey()};
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
  check_path(where_, config_, gid_.netdev, own_, peer_);
  peer_handle_ = connect_queues(place(), adapter_->pd(), queues_.qp.get(), own_, peer_);
  most_bytes_.fill(-1);
  for (const Op op : operations(kind_, device_))
    most_bytes_[static_cast<size_t>(op)] = is_atomic(op) ? 8 : config_.send_bytes;
  most_bytes_[static_cast<size_t>(Op::send)] = std::min(config_.send_bytes, peer_.receive_bytes);
  if (peer_handle_)
    for (auto& request : requests_)
      request.wr.ud = {.ah = peer_handle_.get(), .remote_qpn = peer_.qp, .remote_qkey = kQueueKey};
  connected_ = true;
}

uint64_t VerbsEndpoint::send_address(uint32_t slot) const {
  return sends_.address() + config_.offset + (config_.one_buffer ? 0 : slot * send_stride_);
}

uint64_t VerbsEndpoint::receive_address(uint64_t slot) const {
  return receives_.address() + receive_start_ + slot * receive_stride_;
}

std::byte* VerbsEndpoint::send_slot(uint32_t slot) {
  if (gpu_) return send_view_.data() + (config_.one_buffer ? 0 : slot * send_stride_);
  return reinterpret_cast<std::byte*>(send_address(slot));
}

const std::byte* VerbsEndpoint::receive_slot(uint64_t slot) {
  if (gpu_) return receive_view_.data() + slot * receive_stride_;
  return reinterpret_cast<const std::byte*>(receive_address(slot));
}

std::span<std::byte> VerbsEndpoint::window() {
  if (gpu_) return {};
  return {window_.data(), static_cast<size_t>(config_.remote_bytes)};
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
      {"partition", hex_of(partition_.key)},
      {"qp", std::to_string(own_.qp)},
      {"depth", std::to_string(config_.depth)},
      {"receive_depth", std::to_string(config_.receive_depth)},
      {"inline_bytes", std::to_string(queues_.inline_bytes)},
      {"posting", queues_.extended != nullptr ? "ibv_wr" : "ibv_post_send"},
      {"context", config_.separate_contexts ? "separate" : "shared"},
      {"registrations", std::to_string(adapter_->registrations())},
      {"completion_queue", completions_->is_shared() ? "shared" : "separate"},
      {"ordering", sends_.is_relaxed() ? "relaxed, asked for; its effect is unverified" : "strict"},
      {"service_level", std::to_string(config_.service_level)},
      {"traffic_class", std::to_string(config_.traffic_class)},
      {"completions", completions_->channel() ? "events" : "polling"},
      {"pages", gpu_ ? "of the GPU" : sends_.pages()},
      {"node", std::to_string(node_)},
  };
  if (gpu_)
    facts["memory"] = "cuda:" + std::to_string(gpu_->number()) + " (" + gpu_->name() +
                      "), registered by dmabuf; unverified: never ran on such an adapter";
  if (connected_) facts["path"] = describe_path(own_, peer_);
  if (completions_->is_timed()) {
    facts["device_hz"] = std::to_string(device_.clock_hz());
    facts["device_tick_mask"] = std::to_string(device_.tick_mask());
    facts["device_timestamps"] = "unverified: never ran on a device that has them";
  } else if (config_.device_timestamps) {
    facts["device_timestamps"] = "no: the device offers none";
  }
  if (kind_ == Kind::srd) facts["status"] = "unverified: never ran on an Elastic Fabric Adapter";
  return facts;
}

}  // namespace weft::transport::verbs
#endif
