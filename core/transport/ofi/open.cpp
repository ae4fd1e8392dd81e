#include <algorithm>
#include <bit>
#include <random>

#include "base/error.hpp"
#include "transport/endpoint.hpp"
#include "transport/ofi/endpoint.hpp"

#ifdef WEFT_HAVE_OFI
#include <rdma/fi_rma.h>

namespace weft::transport {

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kLine = 64;
// Receives for tagged messages are posted beside the others; large ones need not be as many, since
// endpoints that have tags also hold messages back that nobody waits for.
constexpr uint64_t kTaggedBytes = 16u << 20;

constexpr uint64_t round_up(uint64_t value, uint64_t step) {
  return (value + step - 1) / step * step;
}

// Small messages lie on neighbouring cache lines, others on pages of their own.
uint64_t stride_of(uint64_t bytes, uint64_t offset) {
  return offset == 0 && bytes <= kPage / 2 ? round_up(std::max<uint64_t>(bytes, 1), kLine)
                                           : round_up(offset + bytes, kPage);
}

}  // namespace

OfiEndpoint::OfiEndpoint(const Config& config)
    : config_(config),
      where_(where(config)),
      info_(choose(config)),
      marks_(marks_of(config, *info_)) {
  config_.endpoint = endpoint_name(info_->ep_attr->type);
  is_marked_ = marks_ != Marks::left_out;
  std::random_device random;
  for (uint64_t& word : nonce_) word = uint64_t{random()} << 32 | random();
  if (config_.memory != "host") use_gpu();
  if (config_.inline_by_device) config_.inline_bytes = choose_inline_bytes();
  check_sizes();
  selective_ = (info_->tx_attr->comp_order & FI_ORDER_STRICT) == FI_ORDER_STRICT;
  message_flags_ = config_.delivery ? FI_DELIVERY_COMPLETE : 0;
  inline_end_ = config_.inline_bytes > 0 ? config_.inline_bytes + uint64_t{1} : 0;
  lay_out_memory();
  open_objects();
}

// Messages lie where the provider fetches and puts them; the processor copies what it has to see.
// Unverified: no libfabric with CUDA has run here.
void OfiEndpoint::use_gpu() {
  if (!is_reliable())
    throw Error(where_, "datagrams carry numbers that the processor writes and reads");
  if (config_.remote_bytes > 0)
    throw Error(where_, "weft has no one-sided operations on a GPU's memory over libfabric");
  gpu_ = std::make_shared<cuda::Device>(cuda::device_number(config_.memory));
  config_.inline_bytes = 0;
  config_.inline_by_device = false;
}

// An injected message is copied and has no completion. One at a time, that is faster; in a stream
// the copies cost as much as the completions, or more.
uint32_t OfiEndpoint::choose_inline_bytes() const {
  const bool fits = config_.send_bytes <= info_->tx_attr->inject_size;
  return fits && config_.depth == 1 && !config_.delivery ? config_.send_bytes : 0;
}

void OfiEndpoint::check_sizes() {
  const uint64_t limit = info_->ep_attr->max_msg_size;
  const uint64_t largest = std::max(config_.send_bytes, config_.receive_bytes);
  if (largest > limit)
    throw Error(where_,
                "a message of " + std::to_string(largest) + " B exceeds the limit of the " +
                    config_.endpoint + " endpoint, " + std::to_string(limit) + " B",
                "send less, or use an rdm endpoint, which cuts messages into packets");
  if (config_.inline_bytes > info_->tx_attr->inject_size)
    throw Error(where_,
                "inline messages of " + std::to_string(config_.inline_bytes) +
                    " B exceed the provider's inject limit of " +
                    std::to_string(info_->tx_attr->inject_size) + " B",
                "lower the inline size");
  if (config_.delivery && config_.inline_bytes > 0)
    throw Error(where_, "an injected message has no completion, so none that means delivery",
                "leave the inline size at 0");
  if (config_.remote_bytes > 0 && !(info_->caps & FI_RMA))
    throw Error(where_, "the " + config_.endpoint + " endpoint has no one-sided operations",
                "use another endpoint or provider (weft doctor lists them)");
  if (config_.depth == 0 || config_.receive_depth == 0)
    throw Error(where_, "a queue of depth 0", "use at least 1");
  if (config_.depth > info_->tx_attr->size)
    throw Error(where_,
                "queue depth " + std::to_string(config_.depth) + " exceeds the provider's " +
                    std::to_string(info_->tx_attr->size),
                "lower the depth");
}

void OfiEndpoint::lay_out_memory() {
  // Receives ahead are a wish: the provider keeps what comes on top.
  config_.receive_depth =
      static_cast<uint32_t>(std::min<uint64_t>(config_.receive_depth, info_->rx_attr->size));
  const uint64_t send_bytes = std::max(config_.send_bytes, kHello);
  receive_bytes_ = std::max(config_.receive_bytes, kHello);
  send_stride_ = stride_of(send_bytes, config_.offset);
  receive_stride_ = stride_of(receive_bytes_, config_.offset);
  const uint64_t send_slots = config_.one_buffer ? 1 : config_.depth;
  const uint64_t sends = round_up(send_slots * send_stride_, kPage);
  if (config_.one_buffer) send_stride_ = 0;
  if (info_->caps & FI_TAGGED) {
    const uint64_t most = std::max<uint64_t>(1, kTaggedBytes / receive_stride_);
    tagged_depth_ = static_cast<uint32_t>(std::min<uint64_t>(config_.receive_depth, most));
  }
  // One receive slot more than is posted: remote writes are reported as if they came there.
  const uint64_t receives = round_up((slots() + 1) * receive_stride_, kPage);
  const uint64_t entries = std::bit_ceil(uint64_t{config_.depth});
  memory_ = Buffer(sends + receives + entries * sizeof(Operands), config_.pages, config_.node);
  sends_at_ = memory_.data() + config_.offset;
  receives_at_ = memory_.data() + sends + config_.offset;
  operands_ = reinterpret_cast<Operands*>(memory_.data() + sends + receives);
  if (gpu_) {
    gpu_memory_ = cuda::Memory(gpu_, sends + receives);
    gpu_shift_ = gpu_memory_.at() - reinterpret_cast<uintptr_t>(memory_.data());
  }
  if (config_.remote_bytes > 0) window_ = Buffer(config_.remote_bytes, config_.pages, config_.node);
  sends_ = std::vector<Entry>(entries);
  mask_ = entries - 1;
  returned_.resize(std::bit_ceil(slots()));
  receives_ = std::vector<Entry>(slots());
  for (uint64_t slot = 0; slot < slots(); ++slot) {
    receives_[slot].id = slot;
    receives_[slot].receive = true;
  }
}

void OfiEndpoint::open_objects() {
  const bool is_msg = info_->ep_attr->type == FI_EP_MSG;
  check("opening the fabric", open_fabric(*info_, fabric_));
  check("opening the domain", open_domain(*info_, fabric_, domain_));
  find_operations();
  open_queue();
  if (gpu_ || info_->domain_attr->mr_mode & FI_MR_LOCAL) {
    memory_region_ =
        register_memory(placed(memory_.data()), gpu_ ? gpu_memory_.size() : memory_.size(),
                        FI_SEND | FI_RECV | FI_READ | FI_WRITE, 2);
    memory_key_ = fi_mr_desc(memory_region_.get());
  }
  if (config_.remote_bytes > 0)
    window_region_ =
        register_memory(window_.data(), window_.size(), FI_REMOTE_READ | FI_REMOTE_WRITE, 1);
  if (!is_msg) {
    fi_av_attr attr{};
    attr.type =
        info_->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info_->domain_attr->av_type;
    attr.count = 1;
    check("opening the address vector", open_into(peers_, [&](fid_av** object) {
            return fi_av_open(domain_.get(), &attr, object, nullptr);
          }));
    create_endpoint(*info_);
    return;
  }
  fi_eq_attr attr{};
  attr.wait_obj = FI_WAIT_UNSPEC;
  check("opening the event queue", open_into(events_, [&](fid_eq** object) {
          return fi_eq_open(fabric_.get(), &attr, object, nullptr);
        }));
  if (!config_.server) return;
  check("opening a listening endpoint", open_into(listener_, [&](fid_pep** object) {
          return fi_passive_ep(fabric_.get(), info_.get(), object, nullptr);
        }));
  check("listening", fi_pep_bind(listener_.get(), &events_->fid, 0));
  check("listening", fi_listen(listener_.get()));
}

void OfiEndpoint::open_queue() {
  fi_cq_attr attr{};
  attr.format = FI_CQ_FORMAT_DATA;
  attr.size = config_.depth + slots() + 64;
  attr.wait_obj = config_.events ? FI_WAIT_FD : FI_WAIT_NONE;
  const long rc = open_into(
      queue_, [&](fid_cq** object) { return fi_cq_open(domain_.get(), &attr, object, nullptr); });
  if (rc != 0 && config_.events)
    throw Error(where_,
                std::string("the provider cannot sleep until a completion comes (") +
                    OfiLibrary::get().strerror(static_cast<int>(-rc)) + ")",
                "poll instead, or use another provider");
  check("opening the completion queue", rc);
}

Fid<fid_mr> OfiEndpoint::register_memory(const void* at, size_t bytes, uint64_t access,
                                         uint64_t key) {
  Fid<fid_mr> region;
  const iovec place{const_cast<void*>(at), bytes};
  fi_mr_attr attr{};
  attr.mr_iov = &place;
  attr.iov_count = 1;
  attr.access = access;
  attr.requested_key = key;
  if (gpu_) attr.iface = FI_HMEM_CUDA;
  if (gpu_) attr.device.cuda = gpu_->number();
  const long rc = open_into(region, [&](fid_mr** object) {
    return gpu_ ? fi_mr_regattr(domain_.get(), &attr, 0, object)
                : fi_mr_reg(domain_.get(), at, bytes, access, 0, key, 0, object, nullptr);
  });
  if (rc != 0 && gpu_) fail("registering the GPU's memory (FI_HMEM)", rc);
  if (rc != 0) fail("registering memory", rc, "raise the locked-memory limit (ulimit -l)");
  return region;
}

// For datagram endpoints once; for connections when the peer is known.
void OfiEndpoint::create_endpoint(fi_info& info) {
  const auto open = [&](fid_ep** object) {
    info.tx_attr->op_flags = message_flags_ | (selective_ ? FI_COMPLETION : 0);
    info.tx_attr->tclass = marks_ == Marks::by_provider ? wanted_class(config_) : 0;
    return fi_endpoint(domain_.get(), &info, object, nullptr);
  };
  // Not every provider that completes in order takes FI_COMPLETION as a default.
  if (selective_ && open_into(endpoint_, open) != 0) selective_ = false;
  if (!endpoint_) check("opening the endpoint", open_into(endpoint_, open));
  check("binding the completion queue",
        fi_ep_bind(endpoint_.get(), &queue_->fid,
                   selective_ ? FI_TRANSMIT | FI_SELECTIVE_COMPLETION : FI_TRANSMIT));
  check("binding the completion queue", fi_ep_bind(endpoint_.get(), &queue_->fid, FI_RECV));
  if (peers_) check("binding the address vector", fi_ep_bind(endpoint_.get(), &peers_->fid, 0));
  if (events_) check("binding the event queue", fi_ep_bind(endpoint_.get(), &events_->fid, 0));
  check("enabling the endpoint", fi_enable(endpoint_.get()));
  if (info_->domain_attr->mr_mode & FI_MR_ENDPOINT) {
    bind_memory(memory_region_.get());
    bind_memory(window_region_.get());
  }
  for (uint64_t slot = 0; slot < slots(); ++slot) release(slot);
  repost();
}

void OfiEndpoint::bind_memory(fid_mr* memory) {
  if (!memory) return;
  check("binding memory to the endpoint", fi_mr_bind(memory, &endpoint_->fid, 0));
  check("enabling memory", fi_mr_enable(memory));
}

void OfiEndpoint::find_operations() {
  for (Op op : operations_of(*info_, domain_.get())) operations_ |= bit(op);
  if (gpu_) operations_ &= bit(Op::send) | bit(Op::tagged);
  if (!config_.delivery) return;
  // Injected messages have no completion. Without a layer above, tcp (net in 1.17) accepts
  // FI_DELIVERY_COMPLETE for writes and completes them when they have left.
  operations_ &= ~bit(Op::inject);
  const std::string provider = info_->fabric_attr->prov_name;
  if (provider == "tcp" || provider == "net") operations_ &= ~(bit(Op::write) | bit(Op::write_imm));
  // shm 1.17 never completes an empty message that is to be delivered.
  least_bytes_ = provider == "shm" ? 1 : 0;
}

void OfiEndpoint::fail(const std::string& what, long rc, const std::string& remedy) const {
  const bool is_address = rc == -FI_EADDRNOTAVAIL || rc == -FI_EADDRINUSE;
  const std::string at = is_address && !config_.address.empty() ? " " + config_.address : "";
  throw Error(where_, what + at + ": " + OfiLibrary::get().strerror(static_cast<int>(-rc)),
              remedy.empty() && is_address ? "use an address of this host's own" : remedy);
}

std::map<std::string, std::string> OfiEndpoint::describe() {
  const OfiLibrary& library = OfiLibrary::get();
  std::string names;
  for (Op op : operations_of(*info_, domain_.get()))
    names.append(names.empty() ? "" : ", ").append(name_of(op));
  std::map<std::string, std::string> facts{
      {"provider", info_->fabric_attr->prov_name},
      {"provider version", version_text(info_->fabric_attr->prov_version)},
      {"verified", verified(info_->fabric_attr->prov_name)},
      {"libfabric", version_text(library.version()) + " " + library.path},
      {"fabric", info_->fabric_attr->name},
      {"domain", info_->domain_attr->name},
      {"endpoint", config_.endpoint},
      {"protocol", library.text(&info_->ep_attr->protocol, FI_TYPE_PROTOCOL)},
      {"largest message", std::to_string(info_->ep_attr->max_msg_size)},
      {"inject limit", std::to_string(info_->tx_attr->inject_size)},
      {"inline_bytes", std::to_string(config_.inline_bytes)},
      {"operations", names},
      {"mr_mode", library.text(&info_->domain_attr->mr_mode, FI_TYPE_MR_MODE)},
      {"progress", library.text(&info_->domain_attr->data_progress, FI_TYPE_PROGRESS)},
      {"traffic class", class_text(config_.traffic_class, marks_)},
      {"completion", config_.delivery ? "when the peer has it" : "the provider's default"},
      {"unsignaled", selective_ ? "no completion" : "completion not reported"},
      {"wait", config_.events ? "file descriptor" : "none: polled"},
      {"depth", std::to_string(config_.depth)},
      {"receive depth", std::to_string(config_.receive_depth)},
      {"pages", gpu_ ? "of the GPU" : memory_.pages()}};
  if (gpu_)
    facts["memory"] = "cuda:" + std::to_string(gpu_->number()) + " (" + gpu_->name() +
                      "), registered with the provider (FI_HMEM; unverified)";
  return facts;
}

std::unique_ptr<Endpoint> open_ofi(const Config& config) {
  OfiLibrary::get();
  const KeepSignals keep(false);
  return std::make_unique<OfiEndpoint>(config);
}

}  // namespace weft::transport

#else

namespace weft::transport {

std::unique_ptr<Endpoint> open_ofi(const Config&) {
  throw Error("ofi", "this weft was built without libfabric's headers",
              "install libfabric-dev and build weft again");
}

}  // namespace weft::transport
#endif
