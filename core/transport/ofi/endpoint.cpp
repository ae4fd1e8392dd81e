#include "transport/ofi/endpoint.hpp"

#ifdef WEFT_HAVE_OFI
#include <rdma/fi_atomic.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/error.hpp"

namespace weft::transport {

namespace {

constexpr uint64_t kTag = 0x77656674;

constexpr uint32_t kRemote = bit(Op::write) | bit(Op::write_imm) | bit(Op::read) |
                             bit(Op::fetch_add) | bit(Op::compare_swap);

}  // namespace

uint32_t OfiEndpoint::post(std::span<const Work> works) {
  uint32_t accepted = 0;
  for (const Work& work : works) {
    if (posted_ - retired_ >= config_.depth) break;
    require(work);
    Entry& entry = sends_[posted_ & mask_];
    entry.id = work.id;
    entry.signaled = work.signaled;
    entry.silent = false;
    entry.done = false;
    if (gpu_ && config_.contents) copy_to_gpu(work.slot, work.bytes);
    const long rc = issue(work, entry, accepted + 1 < works.size());
    if (rc != 0) {
      refused_ = true;
      if (rc == -FI_EAGAIN) break;
      fail(name_of(work.op), rc);
    }
    ++posted_;
    ++accepted;
  }
  return accepted;
}

void OfiEndpoint::require(const Work& work) const {
  const uint32_t op = bit(work.op);
  const bool fits = work.bytes <= config_.send_bytes && work.bytes >= least_bytes_ &&
                    work.slot < config_.depth &&
                    (!(op & kRemote) || work.remote_offset + work.bytes <= remote_bytes_) &&
                    (work.op != Op::inject || work.bytes <= info_->tx_attr->inject_size);
  if (!(operations_ & op) || !fits) [[unlikely]]
    refuse(work);
}

long OfiEndpoint::issue(const Work& work, Entry& entry, bool more) {
  std::byte* data = placed(send_slot(work.slot));
  const uint64_t remote = remote_base_ + work.remote_offset;
  const bool plain = !more && (work.signaled || !selective_);
  switch (work.op) {
    case Op::send:
      if (work.bytes < inline_end_) break;
      if (!plain) return send_message(work, entry, more);
      return fi_send(endpoint_.get(), data, work.bytes, memory_key_, peer_, &entry.provider);
    case Op::tagged:
      if (!plain) return send_message(work, entry, more);
      return fi_tsend(endpoint_.get(), data, work.bytes, memory_key_, peer_, kTag, &entry.provider);
    case Op::inject:
      break;
    case Op::write:
      if (!plain) return write_message(work, entry, more);
      return fi_write(endpoint_.get(), data, work.bytes, memory_key_, peer_, remote, remote_key_,
                      &entry.provider);
    case Op::write_imm:
      if (!plain) return write_message(work, entry, more);
      return fi_writedata(endpoint_.get(), data, work.bytes, memory_key_, work.immediate, peer_,
                          remote, remote_key_, &entry.provider);
    case Op::read:
      return fi_read(endpoint_.get(), data, work.bytes, memory_key_, peer_, remote, remote_key_,
                     &entry.provider);
    case Op::fetch_add:
    case Op::compare_swap:
      return atomic(work, entry);
  }
  // Injected: the message was copied, and there is no completion.
  const long rc = fi_inject(endpoint_.get(), data, work.bytes, peer_);
  entry.done = rc == 0;
  return rc;
}

// Sends with flags of their own: unsignaled ones, and those with more to come in the list.
long OfiEndpoint::send_message(const Work& work, Entry& entry, bool more) {
  entry.silent = selective_ && !work.signaled;
  const uint64_t flags = message_flags_ | (entry.silent ? 0 : FI_COMPLETION) | (more ? FI_MORE : 0);
  iovec data{placed(send_slot(work.slot)), work.bytes};
  if (work.op == Op::tagged) {
    const fi_msg_tagged message{&data, &memory_key_, 1, peer_, kTag, 0, &entry.provider, 0};
    return fi_tsendmsg(endpoint_.get(), &message, flags);
  }
  const fi_msg message{&data, &memory_key_, 1, peer_, &entry.provider, 0};
  return fi_sendmsg(endpoint_.get(), &message, flags);
}

long OfiEndpoint::write_message(const Work& work, Entry& entry, bool more) {
  entry.silent = selective_ && !work.signaled;
  const uint64_t flags = message_flags_ | (entry.silent ? 0 : FI_COMPLETION) |
                         (more ? FI_MORE : 0) | (work.op == Op::write_imm ? FI_REMOTE_CQ_DATA : 0);
  iovec data{send_slot(work.slot), work.bytes};
  fi_rma_iov remote{remote_base_ + work.remote_offset, work.bytes, remote_key_};
  const fi_msg_rma message{&data,           &memory_key_,  1, peer_, &remote, 1,
                           &entry.provider, work.immediate};
  return fi_writemsg(endpoint_.get(), &message, flags);
}

long OfiEndpoint::atomic(const Work& work, Entry& entry) {
  Operands& operands = operands_[posted_ & mask_];
  operands = {work.operand, work.compare};
  const uint64_t remote = remote_base_ + work.remote_offset;
  std::byte* result = send_slot(work.slot);
  if (work.op == Op::fetch_add)
    return fi_fetch_atomic(endpoint_.get(), &operands.operand, 1, memory_key_, result, memory_key_,
                           peer_, remote, remote_key_, FI_UINT64, FI_SUM, &entry.provider);
  return fi_compare_atomic(endpoint_.get(), &operands.operand, 1, memory_key_, &operands.compare,
                           memory_key_, result, memory_key_, peer_, remote, remote_key_, FI_UINT64,
                           FI_CSWAP, &entry.provider);
}

uint32_t OfiEndpoint::poll(std::span<Completion> out) {
  uint32_t n = 0;
  if (returned_head_ != returned_tail_) repost();
  if (!early_.empty()) [[unlikely]]
    n = give_early(out);
  n += retire(out.subspan(n));
  std::array<fi_cq_data_entry, kBatch> raw;
  // Asked for none, the provider still makes progress.
  const size_t room = std::min<size_t>(out.size() - n, kBatch);
  const ssize_t count = fi_cq_read(queue_.get(), raw.data(), room);
  if (count > 0) {
    n += take(raw.data(), static_cast<uint32_t>(count), out.data() + n);
    n += retire(out.subspan(n));
  } else if (count != 0 && count != -FI_EAGAIN) [[unlikely]] {
    if (count == -FI_EAVAIL) fail_completion();
    fail("completion queue", count);
  }
  if (n == 0 && events_ && ++empty_polls_ == kLookAtEvents) [[unlikely]]
    look_at_events();
  return n;
}

uint32_t OfiEndpoint::wait(std::span<Completion> out, int64_t timeout_ns) {
  if (const uint32_t n = poll(out); n > 0) return n;
  if (!config_.events) {
    const int64_t end = raw_ns() + timeout_ns;
    uint32_t n = 0;
    while (n == 0 && raw_ns() < end) n = poll(out);
    return n;
  }
  // Providers sleep for whole milliseconds; the rest is the caller's to poll.
  int timeout_ms = static_cast<int>(std::min<int64_t>(timeout_ns / 1'000'000, kLongestMs));
  if (timeout_ms == 0) return 0;
  // The room that a refused post waits for need not show as a completion.
  if (refused_ || returned_head_ != returned_tail_) timeout_ms = std::min(timeout_ms, 1);
  refused_ = false;
  std::array<fi_cq_data_entry, kBatch> raw;
  const size_t room = std::min<size_t>(out.size(), kBatch);
  const ssize_t count = fi_cq_sread(queue_.get(), raw.data(), room, nullptr, timeout_ms);
  if (count == -FI_EAVAIL) fail_completion();
  if (count <= 0) {
    if (count != 0 && count != -FI_EAGAIN && count != -FI_EINTR && count != -FI_ETIMEDOUT &&
        count != -FI_ECANCELED)
      fail("waiting for completions", count);
    if (events_) look_at_events();
    return 0;
  }
  const uint32_t n = take(raw.data(), static_cast<uint32_t>(count), out.data());
  return n + retire(out.subspan(n));
}

// Receives go out at once; sends are marked, and reported by retire().
uint32_t OfiEndpoint::take(const fi_cq_data_entry* raw, uint32_t count, Completion* out) {
  uint32_t n = 0;
  empty_polls_ = 0;
  for (uint32_t i = 0; i < count; ++i) {
    Entry* entry = static_cast<Entry*>(raw[i].op_context);
    const bool is_remote_write = raw[i].flags & FI_REMOTE_WRITE;
    if (!is_remote_write && !entry->receive) {
      entry->done = true;
      continue;
    }
    Completion& completion = out[n++];
    completion.kind = Completion::received;
    completion.has_immediate = raw[i].flags & FI_REMOTE_CQ_DATA;
    completion.bytes = static_cast<uint32_t>(raw[i].len);
    completion.immediate = static_cast<uint32_t>(raw[i].data);
    completion.device_ticks = 0;
    // A remote write uses up a receive with FI_RX_CQ_DATA only; else it has a slot of its own.
    const bool has_slot = !is_remote_write || (info_->rx_attr->mode & FI_RX_CQ_DATA);
    completion.id = has_slot ? entry->id : slots();
    if (gpu_ && config_.contents) copy_from_gpu(completion.id, completion.bytes);
  }
  return n;
}

uint32_t OfiEndpoint::retire(std::span<Completion> out) {
  uint32_t n = 0;
  while (n < out.size() && retired_ != posted_) {
    uint64_t next = retired_;
    while (next != posted_ && sends_[next & mask_].silent) ++next;
    if (next == posted_ || !sends_[next & mask_].done) break;
    const Entry& entry = sends_[next & mask_];
    retired_ = next + 1;
    if (!entry.signaled) continue;
    out[n++] = Completion{.id = entry.id};
  }
  return n;
}

uint32_t OfiEndpoint::give_early(std::span<Completion> out) {
  const size_t n = std::min(early_.size(), out.size());
  std::copy_n(early_.begin(), n, out.begin());
  early_.erase(early_.begin(), early_.begin() + static_cast<ptrdiff_t>(n));
  return static_cast<uint32_t>(n);
}

// Posted with the next poll: an answer that is sent first need not wait for it.
void OfiEndpoint::release(uint64_t receive_slot) {
  if (receive_slot >= slots()) return;
  returned_[returned_tail_++ & (returned_.size() - 1)] = static_cast<uint32_t>(receive_slot);
}

void OfiEndpoint::repost() {
  while (returned_head_ != returned_tail_) {
    if (!post_receive(returned_[returned_head_ & (returned_.size() - 1)])) return;
    ++returned_head_;
  }
}

// Untagged and tagged messages are received in different slots. False: the provider has no room.
bool OfiEndpoint::post_receive(uint32_t slot) {
  Entry& entry = receives_[slot];
  std::byte* data = placed(receives_at_ + slot * receive_stride_);
  const long rc = slot < config_.receive_depth
                      ? fi_recv(endpoint_.get(), data, receive_bytes_, memory_key_, FI_ADDR_UNSPEC,
                                &entry.provider)
                      : fi_trecv(endpoint_.get(), data, receive_bytes_, memory_key_, FI_ADDR_UNSPEC,
                                 kTag, 0, &entry.provider);
  if (rc != 0 && rc != -FI_EAGAIN) fail("posting a receive", rc);
  return rc == 0;
}

void OfiEndpoint::copy_to_gpu(uint32_t slot, uint32_t bytes) {
  gpu_->to_gpu(reinterpret_cast<cuda::Pointer>(placed(send_slot(slot))), send_slot(slot), bytes);
}

void OfiEndpoint::copy_from_gpu(uint64_t slot, uint32_t bytes) const {
  std::byte* at = receives_at_ + slot * receive_stride_;
  gpu_->to_host(at, reinterpret_cast<cuda::Pointer>(placed(at)), bytes);
}

void OfiEndpoint::refuse(const Work& work) const {
  const std::string op = name_of(work.op);
  if (!connected_) throw Error(where_, op + " before connect");
  if (config_.delivery && (!(operations_ & bit(work.op)) || work.bytes < least_bytes_))
    throw Error(where_,
                "the provider has no completion of " + op + " of " + std::to_string(work.bytes) +
                    " B that means delivery",
                "use send with at least 1 B, or do not ask for delivery");
  if (!(operations_ & bit(work.op)))
    throw Error(where_, "the provider's " + config_.endpoint + " endpoint has no " + op,
                "use another operation, endpoint or provider (weft doctor lists them)");
  if (work.op == Op::inject && work.bytes > info_->tx_attr->inject_size)
    throw Error(where_,
                "inject of " + std::to_string(work.bytes) + " B exceeds the provider's limit of " +
                    std::to_string(info_->tx_attr->inject_size) + " B",
                "use smaller messages, or send");
  if (work.bytes > config_.send_bytes || work.slot >= config_.depth)
    throw Error(where_, op + " of " + std::to_string(work.bytes) + " B from slot " +
                            std::to_string(work.slot) + " exceeds the endpoint's " +
                            std::to_string(config_.send_bytes) + " B, " +
                            std::to_string(config_.depth) + " slots");
  throw Error(where_,
              op + " of " + std::to_string(work.bytes) + " B at " +
                  std::to_string(work.remote_offset) + " is outside the peer's window of " +
                  std::to_string(remote_bytes_) + " B",
              "open the peer's endpoint with a larger window (remote_bytes)");
}

void OfiEndpoint::fail_completion() const {
  fi_cq_err_entry error{};
  if (fi_cq_readerr(queue_.get(), &error, 0) < 0)
    throw Error(where_, "an operation failed and the provider does not say why");
  std::array<char, 256> text{};
  const char* detail =
      fi_cq_strerror(queue_.get(), error.prov_errno, error.err_data, text.data(), text.size());
  std::string problem =
      std::string("an operation failed: ") + OfiLibrary::get().strerror(error.err);
  if (detail && *detail) problem += std::string(" (provider: ") + detail + ")";
  const bool is_truncated = error.err == FI_ETRUNC;
  throw Error(where_, problem,
              is_truncated ? "the peer sends larger messages than receive_bytes; make them equal"
                           : "see whether the peer still runs and can be reached");
}

}  // namespace weft::transport
#endif
