#include "transport/verbs/completions.hpp"

#ifdef WEFT_HAVE_VERBS
#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <thread>

#include "transport/verbs/errors.hpp"

namespace weft::transport::verbs {

namespace {

constexpr uint32_t kReadAtOnce = 32;
constexpr unsigned int kMostEvents = 1024;

}  // namespace

SharedQueue::SharedQueue(const Place& place)
    : where_(place.where),
      tick_mask_(place.device.tick_mask()),
      members_(std::max(place.config.queue_members, 1u)) {
  const uint32_t entries = (place.config.depth + place.config.receive_depth) * members_;
  if (place.config.events) {
    channel_.reset(library().create_comp_channel(place.device.context()));
    if (!channel_) throw failed_call(where_, "create an event channel", errno);
    fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  }
  if (place.config.device_timestamps && place.device.has_timestamps()) {
    ibv_cq_init_attr_ex init{};
    init.cqe = entries;
    init.channel = channel_.get();
    init.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM |
                    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    timed_ = ibv_create_cq_ex(place.device.context(), &init);
    if (timed_ != nullptr) cq_.reset(ibv_cq_ex_to_cq(timed_));
  }
  if (!cq_)
    cq_.reset(library().create_cq(place.device.context(), static_cast<int>(entries), nullptr,
                                  channel_.get(), 0));
  if (!cq_)
    throw failed_call(
        where_, "create a completion queue of " + std::to_string(entries) + " entries", errno);
}

SharedQueue::~SharedQueue() {
  if (events_ > 0) library().ack_cq_events(cq_.get(), events_);
}

std::shared_ptr<SharedQueue> SharedQueue::join(Adapter& adapter, const Place& place) {
  const Config& config = place.config;
  if (config.queue_members <= 1) return std::make_shared<SharedQueue>(place);
  if (config.separate_contexts)
    throw Error(place.where, "a completion queue belongs to one context",
                "leave out --shared-cq or --separate-contexts");
  std::ostringstream key;
  key << std::this_thread::get_id() << ' ' << config.queue_members << ' ' << config.depth << ' '
      << config.receive_depth << ' ' << config.events << config.device_timestamps;
  const std::lock_guard lock(adapter.mutex());
  auto& place_of_queue = adapter.shared_queues()[key.str()];
  auto queue = place_of_queue.lock();
  if (!queue || queue->joined_ == queue->members_) {
    queue = std::make_shared<SharedQueue>(place);
    place_of_queue = queue;
  }
  ++queue->joined_;
  return queue;
}

uint32_t SharedQueue::read(std::span<Seen> out) {
  std::array<ibv_wc, kReadAtOnce> entries;
  const auto most = static_cast<int>(std::min<size_t>(out.size(), kReadAtOnce));
  const int count = ibv_poll_cq(cq_.get(), most, entries.data());
  if (count < 0) throw failed_call(where_, "poll the completion queue", EIO);
  for (int i = 0; i < count; ++i) {
    const ibv_wc& wc = entries[static_cast<size_t>(i)];
    out[static_cast<size_t>(i)] = {.work = wc.wr_id,
                                   .ticks = 0,
                                   .qp = wc.qp_num,
                                   .bytes = wc.byte_len,
                                   .immediate = wc.imm_data,
                                   .vendor = wc.vendor_err,
                                   .status = wc.status,
                                   .has_immediate = (wc.wc_flags & IBV_WC_WITH_IMM) != 0};
  }
  return static_cast<uint32_t>(count);
}

uint32_t SharedQueue::read_timed(std::span<Seen> out) {
  ibv_poll_cq_attr attr{};
  int code = out.empty() ? ENOENT : ibv_start_poll(timed_, &attr);
  if (code == ENOENT) return 0;
  uint32_t count = 0;
  for (; code == 0; code = count < out.size() ? ibv_next_poll(timed_) : ENOENT) {
    Seen& seen = out[count++];
    seen = Seen{};
    seen.work = timed_->wr_id;
    seen.qp = ibv_wc_read_qp_num(timed_);
    seen.status = timed_->status;
    if (seen.status != IBV_WC_SUCCESS) {
      seen.vendor = ibv_wc_read_vendor_err(timed_);
      continue;
    }
    // The counter is narrower than 64 bits; what is above its width means nothing.
    seen.ticks = ibv_wc_read_completion_ts(timed_) & tick_mask_;
    if ((seen.work & kReceive) == 0) continue;
    seen.bytes = ibv_wc_read_byte_len(timed_);
    seen.has_immediate = (ibv_wc_read_wc_flags(timed_) & IBV_WC_WITH_IMM) != 0;
    if (seen.has_immediate) seen.immediate = ibv_wc_read_imm_data(timed_);
  }
  ibv_end_poll(timed_);
  if (code != ENOENT) throw failed_call(where_, "poll the completion queue", code);
  return count;
}

uint32_t SharedQueue::poll(uint32_t qp, std::span<Seen> out) {
  if (!is_shared()) return timed_ != nullptr ? read_timed(out) : read(out);
  auto& ours = waiting_[qp];
  if (ours.empty()) {
    std::array<Seen, kReadAtOnce> entries;
    const uint32_t count = timed_ != nullptr ? read_timed(entries) : read(entries);
    for (const Seen& seen : std::span(entries).first(count))
      if (const auto member = waiting_.find(seen.qp); member != waiting_.end())
        member->second.push_back(seen);
  }
  const auto count = static_cast<uint32_t>(std::min(out.size(), ours.size()));
  std::copy_n(ours.begin(), count, out.begin());
  ours.erase(ours.begin(), ours.begin() + count);
  return count;
}

bool SharedQueue::has_waiting(uint32_t except) const {
  return std::ranges::any_of(waiting_, [except](const auto& member) {
    return member.first != except && !member.second.empty();
  });
}

bool SharedQueue::arm() {
  if (armed_) return false;
  if (const int code = ibv_req_notify_cq(cq_.get(), 0); code != 0)
    throw failed_call(where_, "ask for completion events", code);
  return armed_ = true;
}

void SharedQueue::take_event() {
  ibv_cq* cq = nullptr;
  void* unused = nullptr;
  if (library().get_cq_event(channel_.get(), &cq, &unused) != 0) return;
  armed_ = false;
  // Acknowledging takes a lock: rarely, and in the destructor.
  if (++events_ < kMostEvents) return;
  library().ack_cq_events(cq, events_);
  events_ = 0;
}

}  // namespace weft::transport::verbs
#endif
