#include "transport/verbs/adapter.hpp"

#ifdef WEFT_HAVE_VERBS
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/verbs/errors.hpp"

namespace weft::transport::verbs {

namespace {

constexpr size_t kPageBytes = 4096, kLineBytes = 64;
constexpr size_t kGpuPageBytes = size_t{2} << 20;
constexpr size_t kMostAhead = size_t{64} << 20;  // registered for endpoints that may come

constexpr size_t to_whole(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

Adapter::Adapter(const std::string& name)
    : device_(name), pd_(library().alloc_pd(device_.context())) {
  if (!pd_) throw failed_call(name, "allocate a protection domain", errno);
  const int events = device_.context()->async_fd;
  fcntl(events, F_SETFL, fcntl(events, F_GETFL) | O_NONBLOCK);
}

std::shared_ptr<Adapter> Adapter::open(const std::string& name, bool separate) {
  if (separate) return std::make_shared<Adapter>(name);
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Adapter>> adapters;
  const std::lock_guard lock(mutex);
  if (auto open_already = adapters[name].lock()) return open_already;
  auto adapter = std::make_shared<Adapter>(name);
  adapters[name] = adapter;
  return adapter;
}

MemoryRegion Adapter::try_region(const Buffer& memory, int access) const {
  // Optional flags need this call: it drops those that the device does not have.
  return MemoryRegion(library().reg_mr_iova2(pd_.get(), memory.data(), memory.size(),
                                             reinterpret_cast<uintptr_t>(memory.data()),
                                             static_cast<unsigned>(access)));
}

std::shared_ptr<Registered> Adapter::register_piece(size_t bytes, const MemoryUse& use,
                                                    const std::string& where) {
  auto piece = std::make_shared<Registered>();
  piece->memory = Buffer(bytes, use.pages, use.node);
  if (!use.is_strict)
    piece->region = try_region(piece->memory, use.access | IBV_ACCESS_RELAXED_ORDERING);
  piece->is_relaxed = piece->region != nullptr;
  if (!piece->region) piece->region = try_region(piece->memory, use.access);
  if (!piece->region) throw failed_registration(where, bytes, errno);
  ++registrations_;
  return piece;
}

Block Adapter::allocate(size_t bytes, const MemoryUse& use, const std::string& where) {
  const std::lock_guard lock(mutex_);
  Growing& growing = memory_[use];
  const size_t unit = bytes >= kPageBytes ? kPageBytes : kLineBytes;
  auto piece = growing.last.lock();
  if (!piece) growing.total = 0;
  size_t start = piece ? to_whole(piece->used, unit) : 0;
  if (!piece || start + bytes > piece->memory.size()) {
    const size_t needed = to_whole(std::max<size_t>(bytes, 1), kPageBytes);
    const size_t ahead = std::max(needed, std::min(growing.total, kMostAhead));
    try {
      piece = register_piece(ahead, use, where);
    } catch (const Error&) {
      if (ahead == needed) throw;
      piece = register_piece(needed, use, where);
    }
    growing.last = piece;
    growing.total += piece->memory.size();
    start = 0;
  }
  piece->used = start + bytes;
  return {piece, start};
}

Block Adapter::allocate_on(const std::shared_ptr<const cuda::Device>& gpu, size_t bytes,
                           const MemoryUse& use, const std::string& where) {
  auto piece = std::make_shared<Registered>();
  piece->gpu = cuda::Memory(gpu, to_whole(std::max<size_t>(bytes, 1), kGpuPageBytes));
  const int descriptor = gpu->export_dmabuf(piece->gpu.at(), piece->gpu.size());
  const auto register_with = library().reg_dmabuf_mr;
  if (descriptor < 0 || register_with == nullptr) {
    if (descriptor >= 0) close(descriptor);
    throw Error(where, descriptor < 0 ? "the GPU's driver exports no dmabuf"
                                      : "libibverbs has no ibv_reg_dmabuf_mr");
  }
  const int access = use.access | (use.is_strict ? 0 : int{IBV_ACCESS_RELAXED_ORDERING});
  piece->region.reset(
      register_with(pd_.get(), 0, piece->gpu.size(), piece->gpu.at(), descriptor, access));
  const int code = errno;
  close(descriptor);
  if (!piece->region)
    throw Error(where, std::string("the adapter does not register the GPU's memory (") +
                           std::strerror(code) + ")");
  piece->is_relaxed = !use.is_strict;
  const std::lock_guard lock(mutex_);
  ++registrations_;
  return {piece, 0};
}

void Adapter::read_events() {
  ibv_async_event event{};
  while (library().get_async_event(device_.context(), &event) == 0) {
    const ibv_event_type type = event.event_type;
    if (type == IBV_EVENT_DEVICE_FATAL) fatal_ = type;
    if (type == IBV_EVENT_CQ_ERR) cq_errors_[event.element.cq] = type;
    if (type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_ACCESS_ERR)
      qp_errors_[event.element.qp->qp_num] = type;
    if (type == IBV_EVENT_PORT_ERR) ++port_errors_[event.element.port_num];
    library().ack_async_event(&event);
  }
}

uint64_t Adapter::port_errors(int port) {
  const std::lock_guard lock(mutex_);
  read_events();
  return port_errors_[port];
}

std::optional<ibv_event_type> Adapter::failure(const Watch& watch) {
  const std::lock_guard lock(mutex_);
  read_events();
  if (fatal_) return fatal_;
  if (port_errors_[watch.port] > watch.since) return IBV_EVENT_PORT_ERR;
  if (const auto at = qp_errors_.find(watch.qp); at != qp_errors_.end()) return at->second;
  if (const auto at = cq_errors_.find(watch.cq); at != cq_errors_.end()) return at->second;
  return std::nullopt;
}

}  // namespace weft::transport::verbs
#endif
