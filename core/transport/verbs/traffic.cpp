// What an endpoint of the verbs transport does once it is open: post, poll, wait.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "transport/verbs/endpoint.hpp"
#include "transport/verbs/errors.hpp"

#ifdef WEFT_HAVE_VERBS
namespace weft::transport::verbs {

namespace {

constexpr uint64_t kUnsignaled = uint64_t{1} << 62;
constexpr uint32_t kBatch = 32;
// How often the device itself is looked at, and how many polls go without a look at the time:
// seldom enough for no percentile to see it.
constexpr int64_t kLookNs = 100'000'000;
constexpr uint32_t kPollsPerLook = 256;
// For the reason of a failure: a fifth of a second in all.
constexpr int kLooks = 10;
constexpr useconds_t kBetweenLooksUs = 20'000;

ibv_wr_opcode opcode_of(Op op) {
  switch (op) {
    case Op::write:
      return IBV_WR_RDMA_WRITE;
    case Op::write_imm:
      return IBV_WR_RDMA_WRITE_WITH_IMM;
    case Op::read:
      return IBV_WR_RDMA_READ;
    case Op::fetch_add:
      return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case Op::compare_swap:
      return IBV_WR_ATOMIC_CMP_AND_SWP;
    default:
      return IBV_WR_SEND;
  }
}

}  // namespace

void VerbsEndpoint::refuse(const Work& work) const {
  if (!connected_) throw Error(where_, "not connected yet", "call connect first");
  const std::string op = transport::name_of(work.op);
  const int64_t most = most_bytes_[static_cast<size_t>(work.op)];
  if (most < 0)
    throw Error(where_, std::string(name_of(kind_)) + " endpoints have no " + op,
                kind_ == Kind::rc ? "use an operation the device has" : "use --endpoint rc");
  if (work.bytes > most)
    throw Error(where_,
                op + " of " + std::to_string(work.bytes) + " B exceeds the agreed " +
                    std::to_string(most) + " B",
                "open both sides with the larger size");
  if (work.slot >= config_.depth)
    throw Error(where_, "send slot " + std::to_string(work.slot) + " does not exist",
                "slots are 0 to " + std::to_string(config_.depth - 1));
  throw Error(where_,
              op + " of " + std::to_string(work.bytes) + " B at offset " +
                  std::to_string(work.remote_offset) + " leaves the peer's window of " +
                  std::to_string(peer_.window_bytes) + " B",
              "open the peer with a larger window; atomics need 8 B, aligned");
}

bool VerbsEndpoint::is_possible(const Work& work) const {
  if (!connected_ || work.slot >= config_.depth) return false;
  if (static_cast<int64_t>(work.bytes) > most_bytes_[static_cast<size_t>(work.op)]) return false;
  if (work.op == Op::send) return true;
  if (is_atomic(work.op) && (work.bytes != 8 || work.remote_offset % 8 != 0)) return false;
  return work.remote_offset <= peer_.window_bytes &&
         work.bytes <= peer_.window_bytes - work.remote_offset;
}

// The work's id and flags; unsignaled works are retired by the next signaled one.
VerbsEndpoint::Tag VerbsEndpoint::tag(const Work& work, bool is_last_free) {
  const bool fetches = work.op == Op::read || is_atomic(work.op);
  const bool is_inline = !fetches && work.bytes > 0 && work.bytes <= queues_.inline_bytes;
  const unsigned int flags = is_inline ? IBV_SEND_INLINE : 0;
  ++covered_;
  const bool hidden = !work.signaled;
  if (hidden && kind_ != Kind::srd && !(is_last_free && signaled_ == 0))
    return {kUnsignaled, flags};
  const uint32_t entry = free_pending_.back();
  free_pending_.pop_back();
  pending_[entry] = {work.id, covered_, hidden};
  covered_ = 0;
  ++signaled_;
  return {entry, flags | IBV_SEND_SIGNALED};
}

void VerbsEndpoint::fill(ibv_send_wr& request, const Work& work, Tag tag) {
  ibv_sge& piece = *request.sg_list;
  piece.addr = send_address(work.slot);
  piece.length = work.bytes;
  request.num_sge = work.bytes > 0 ? 1 : 0;
  request.opcode = opcode_of(work.op);
  request.wr_id = tag.work;
  request.send_flags = tag.flags;
  if (work.op == Op::send) return;
  const uint64_t remote = peer_.window + work.remote_offset;
  if (is_atomic(work.op)) {
    const bool swap = work.op == Op::compare_swap;
    request.wr.atomic = {.remote_addr = remote,
                         .compare_add = swap ? work.compare : work.operand,
                         .swap = swap ? work.operand : 0,
                         .rkey = peer_.rkey};
  } else {
    request.wr.rdma = {.remote_addr = remote, .rkey = peer_.rkey};
    request.imm_data = htobe32(work.immediate);
  }
}

// The same by ibv_wr_*: the driver builds the entry as it is called, without a list in between.
void VerbsEndpoint::write(const Work& work, Tag tag) {
  ibv_qp_ex* qp = queues_.extended;
  const uint64_t remote = peer_.window + work.remote_offset;
  qp->wr_id = tag.work;
  qp->wr_flags = tag.flags;
  switch (work.op) {
    case Op::write:
      ibv_wr_rdma_write(qp, peer_.rkey, remote);
      break;
    case Op::write_imm:
      ibv_wr_rdma_write_imm(qp, peer_.rkey, remote, htobe32(work.immediate));
      break;
    case Op::read:
      ibv_wr_rdma_read(qp, peer_.rkey, remote);
      break;
    case Op::fetch_add:
      ibv_wr_atomic_fetch_add(qp, peer_.rkey, remote, work.operand);
      break;
    case Op::compare_swap:
      ibv_wr_atomic_cmp_swp(qp, peer_.rkey, remote, work.compare, work.operand);
      break;
    default:
      ibv_wr_send(qp);
  }
  if (peer_handle_) ibv_wr_set_ud_addr(qp, peer_handle_.get(), peer_.qp, kQueueKey);
  if (work.bytes == 0)
    ibv_wr_set_sge_list(qp, 0, nullptr);
  else if ((tag.flags & IBV_SEND_INLINE) != 0)
    ibv_wr_set_inline_data(qp, send_slot(work.slot), work.bytes);
  else
    ibv_wr_set_sge(qp, sends_.lkey(), send_address(work.slot), work.bytes);
}

int VerbsEndpoint::post_list(std::span<const Work> works, uint32_t room) {
  for (uint32_t i = 0; i < works.size(); ++i) {
    fill(requests_[i], works[i], tag(works[i], i + 1 == room));
    requests_[i].next = i + 1 < works.size() ? requests_.data() + i + 1 : nullptr;
  }
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(queues_.qp.get(), requests_.data(), &bad);
}

int VerbsEndpoint::post_written(std::span<const Work> works, uint32_t room) {
  ibv_wr_start(queues_.extended);
  for (uint32_t i = 0; i < works.size(); ++i) write(works[i], tag(works[i], i + 1 == room));
  return ibv_wr_complete(queues_.extended);
}

uint32_t VerbsEndpoint::post(std::span<const Work> works) {
  if (failure_) throw *failure_;
  if (2 * released_ > config_.receive_depth) post_receives();
  const uint32_t room = config_.depth - outstanding_;
  const auto most = static_cast<uint32_t>(std::min<size_t>(works.size(), room));
  uint32_t count = 0;
  while (count < most && is_possible(works[count])) ++count;
  if (count == 0 && most > 0) refuse(works[0]);
  if (count > 0) {
    const auto taken = works.first(count);
    if (gpu_ && config_.contents)
      for (const Work& work : taken)
        gpu_->to_gpu(send_address(work.slot), send_slot(work.slot), work.bytes);
    const int code =
        queues_.extended != nullptr ? post_written(taken, room) : post_list(taken, room);
    if (code != 0) {
      failure_ = failed_call(where_, "post to QP " + std::to_string(own_.qp), code);
      throw *failure_;
    }
    outstanding_ += count;
  }
  post_receives();
  return count;
}

void VerbsEndpoint::release(uint64_t slot) {
  if (slot >= config_.receive_depth)
    throw Error(where_, "receive slot " + std::to_string(slot) + " does not exist",
                "slots are 0 to " + std::to_string(config_.receive_depth - 1));
  ibv_recv_wr* request = &receive_requests_[slot];
  request->next = nullptr;
  (released_last_ != nullptr ? released_last_->next : released_first_) = request;
  released_last_ = request;
  ++released_;
}

void VerbsEndpoint::post_receives() {
  if (released_first_ == nullptr) return;
  ibv_recv_wr* bad = nullptr;
  if (const int code = ibv_post_recv(queues_.qp.get(), released_first_, &bad); code != 0) {
    failure_ = failed_call(where_, "post receives to QP " + std::to_string(own_.qp), code);
    throw *failure_;
  }
  released_first_ = released_last_ = nullptr;
  released_ = 0;
}

bool VerbsEndpoint::take(const Seen& seen, Completion& out) {
  if ((seen.work & kReceive) != 0) {
    out = {.kind = Completion::received,
           .has_immediate = seen.has_immediate,
           .bytes = seen.bytes - (kind_ == Kind::ud ? uint32_t{sizeof(ibv_grh)} : 0),
           .immediate = seen.has_immediate ? be32toh(seen.immediate) : 0,
           .id = seen.work & ~kReceive,
           .device_ticks = seen.ticks};
    if (gpu_ && config_.contents)
      gpu_->to_host(receive_view_.data() + out.id * receive_stride_, receive_address(out.id),
                    out.bytes);
    return true;
  }
  const auto entry = static_cast<uint32_t>(seen.work);
  const Pending done = pending_[entry];
  free_pending_.push_back(entry);
  outstanding_ -= done.covers;
  --signaled_;
  out = {.kind = Completion::sent, .id = done.id, .device_ticks = seen.ticks};
  return !done.hidden;
}

uint32_t VerbsEndpoint::fail(uint32_t delivered, uint64_t work, ibv_wc_status status,
                             uint32_t vendor) {
  failure_ = reason_of(status);
  if (!failure_) failure_ = failed_work(where_, own_.qp, (work & kReceive) != 0, status, vendor);
  if (delivered == 0) throw *failure_;
  return delivered;
}

// A device or port that went away is the reason, a failed work only what it led to. The work may
// fail a moment before the device says why.
std::optional<Error> VerbsEndpoint::reason_of(ibv_wc_status status) const {
  const bool local = status == IBV_WC_LOC_QP_OP_ERR || status == IBV_WC_WR_FLUSH_ERR ||
                     status == IBV_WC_FATAL_ERR || status == IBV_WC_GENERAL_ERR;
  for (int looks = local ? kLooks : 1; looks > 0; --looks) {
    if (auto failure = device_failure()) return failure;
    ibv_port_attr port{};
    if (ibv_query_port(device_.context(), static_cast<uint8_t>(port_.number), &port) == 0 &&
        port.state != IBV_PORT_ACTIVE)
      return failed_device(where_, IBV_EVENT_PORT_ERR);
    if (looks > 1) usleep(kBetweenLooksUs);
  }
  return std::nullopt;
}

uint32_t VerbsEndpoint::poll(std::span<Completion> out) {
  if (failure_) throw *failure_;
  post_receives();
  if (++polls_ % kPollsPerLook == 0) look_at_device();
  std::array<Seen, kBatch> entries;
  const auto most = std::min<size_t>(out.size(), kBatch);
  const uint32_t count = completions_->poll(own_.qp, std::span(entries).first(most));
  uint32_t delivered = 0;
  for (const Seen& seen : std::span(entries).first(count)) {
    if (seen.status != IBV_WC_SUCCESS) return fail(delivered, seen.work, seen.status, seen.vendor);
    delivered += take(seen, out[delivered]);
  }
  return delivered;
}

uint32_t VerbsEndpoint::wait(std::span<Completion> out, int64_t timeout_ns) {
  if (completions_->channel() != nullptr) return wait_for_event(out, timeout_ns);
  const uint32_t before = outstanding_;
  const uint64_t end = ticks() + Clock::shared().ticks_of_ns(timeout_ns);
  for (;;) {
    const uint32_t count = poll(out);
    if (count > 0 || outstanding_ < before || ticks() >= end) return count;
    pause();
  }
}

uint32_t VerbsEndpoint::wait_for_event(std::span<Completion> out, int64_t timeout_ns) {
  const uint32_t before = outstanding_;
  const int64_t end = raw_ns() + timeout_ns;
  for (;;) {
    uint32_t count = poll(out);
    if (count > 0 || outstanding_ < before) return count;
    if (completions_->arm()) {
      // What completed before it was armed raises no event.
      count = poll(out);
      if (count > 0 || outstanding_ < before) return count;
    }
    // The thread's other queue pairs have completions: it has to look at those.
    if (completions_->is_shared() && completions_->has_waiting(own_.qp)) return 0;
    const int64_t left_ns = end - raw_ns();
    if (left_ns <= 0) return 0;
    sleep(left_ns);
  }
}

void VerbsEndpoint::sleep(int64_t timeout_ns) {
  pollfd files[2] = {{completions_->channel()->fd, POLLIN, 0},
                     {device_.context()->async_fd, POLLIN, 0}};
  const timespec time{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
  const int ready = ::ppoll(files, 2, &time, nullptr);
  if (ready > 0 && files[1].revents != 0) next_look_ = 0;
  look_at_device();
  if (ready <= 0) return;
  if (files[0].revents != 0) completions_->take_event();
}

void VerbsEndpoint::look_at_device() {
  const uint64_t now = ticks();
  if (now < next_look_) return;
  next_look_ = now + Clock::shared().ticks_of_ns(kLookNs);
  failure_ = device_failure();
  if (failure_) throw *failure_;
}

std::optional<Error> VerbsEndpoint::device_failure() const {
  const Adapter::Watch watch{port_.number, own_.qp, completions_->get(), port_errors_};
  if (const auto event = adapter_->failure(watch)) return failed_device(where_, *event);
  // Drivers that cannot let go of a device in use give no event: it vanishes from sysfs, and goes
  // when we do.
  const std::string path =
      std::string("/sys/class/infiniband_verbs/") + device_.context()->device->dev_name;
  if (access(path.c_str(), F_OK) != 0) return failed_device(where_, IBV_EVENT_DEVICE_FATAL);
  return std::nullopt;
}

}  // namespace weft::transport::verbs
#endif
