// The bulk transfer program: the sender keeps B messages outstanding, the receiver acknowledges
// each by a message that carries how many it has received in all. What was acknowledged may be sent
// again: credits are explicit. Every S-th work is signaled.
#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "probe/inbox.hpp"
#include "probe/loops.hpp"
#include "probe/payload.hpp"

namespace weft::probe {

namespace {

using transport::Completion;
using transport::Op;
using transport::Work;

class Sending {
 public:
  Sending(Endpoint& endpoint, const TransferSpec& spec, StopFlag& stop)
      : endpoint_(endpoint),
        spec_(spec),
        stop_(stop),
        outstanding_(std::min(spec.outstanding, endpoint.depth())),
        signal_every_(std::clamp(spec.signal_every, 1u, endpoint.depth())),
        total_(spec.run.warmup + spec.run.count),
        inbox_(endpoint, spec.run.block) {}

  Counts run() {
    watch_.start(ticks());
    try {
      while (acknowledged_ < total_ && !stop_.is_set()) {
        post();
        collect();
      }
    } catch (const Error& error) {
      counts_.error = error.what();
    }
    counts_.stopped = acknowledged_ < total_;
    counts_.received = counts_.sent = acknowledged_ - std::min(acknowledged_, spec_.run.warmup);
    counts_.bytes = counts_.sent * spec_.run.bytes;
    watch_.stop(ticks(), counts_);
    return counts_;
  }

 private:
  void post() {
    while (posted_ < limit() && posted_ - acknowledged_ < outstanding_ &&
           posted_ - completed_ < endpoint_.depth()) {
      Work work;
      work.op = spec_.run.op;
      work.slot = static_cast<uint32_t>(posted_ % outstanding_);
      work.bytes = spec_.run.bytes;
      work.immediate = static_cast<uint32_t>(posted_);
      work.remote_offset = posted_ % spec_.remote_slots * spec_.run.bytes;
      work.id = posted_ + 1;
      // Without a completion in the queue, a full one would never empty.
      work.signaled = (posted_ + 1) % signal_every_ == 0 || posted_ + 1 == limit() ||
                      posted_ - completed_ + 1 == endpoint_.depth();
      if (spec_.run.validate) fill(endpoint_.send_slot(work.slot), work.bytes, posted_);
      if (endpoint_.post({&work, 1}) == 0) return;
      ++posted_;
    }
  }

  // The timed part begins when all of the warm-up is acknowledged.
  uint64_t limit() const { return acknowledged_ < spec_.run.warmup ? spec_.run.warmup : total_; }

  void collect() {
    for (const Completion& completion : inbox_.next()) {
      if (completion.kind == Completion::sent) {
        completed_ = std::max(completed_, completion.id);
        continue;
      }
      uint64_t count = 0;
      std::memcpy(&count, endpoint_.receive_slot(completion.id), sizeof(count));
      endpoint_.release(completion.id);
      const bool was_warming = acknowledged_ < spec_.run.warmup;
      acknowledged_ = std::max(acknowledged_, count);
      if (was_warming && acknowledged_ >= spec_.run.warmup) watch_.start(ticks());
      stop_.report(acknowledged_);
    }
  }

  Endpoint& endpoint_;
  const TransferSpec& spec_;
  StopFlag& stop_;
  uint32_t outstanding_, signal_every_;
  uint64_t total_;
  Inbox<16> inbox_;
  uint64_t posted_ = 0, completed_ = 0, acknowledged_ = 0;
  Stopwatch watch_;
  Counts counts_;
};

class Receiving {
 public:
  Receiving(Endpoint& endpoint, const TransferSpec& spec, StopFlag& stop)
      : endpoint_(endpoint), spec_(spec), stop_(stop), inbox_(endpoint, spec.run.block) {}

  Counts run() {
    watch_.start(ticks());
    uint64_t first = 0, last = 0;
    try {
      while (!stop_.is_set() && (received_ < stop_.expected() || acknowledged_ < received_)) {
        for (const Completion& completion : inbox_.next()) {
          if (completion.kind == Completion::sent) {
            --acknowledging_;
            continue;
          }
          receive(completion);
          last = ticks();
          if (received_ == spec_.run.warmup + 1) watch_.start(first = last);
        }
        if (last > 0) watch_.idle(ticks(), last, counts_);
        acknowledge();
      }
    } catch (const Error& error) {
      counts_.error = error.what();
    }
    watch_.stop(ticks(), last, counts_);
    counts_.received = received_ - std::min(received_, spec_.run.warmup);
    counts_.bytes = counts_.received > 0 ? (counts_.received - 1) * spec_.run.bytes : 0;
    counts_.elapsed_ns = last > first ? Clock::shared().ps(last - first) / 1000 : 0;
    return counts_;
  }

 private:
  void receive(const Completion& completion) {
    if (spec_.run.validate) {
      const bool in_window = spec_.run.op == Op::write_imm;
      const std::byte* message =
          in_window ? endpoint_.window().data() + received_ % spec_.remote_slots * spec_.run.bytes
                    : endpoint_.receive_slot(completion.id);
      counts_.corrupted += !is_filled(message, spec_.run.bytes, received_);
    }
    if (completion.has_immediate && completion.immediate != static_cast<uint32_t>(received_))
      ++counts_.reordered;
    ++received_;
    endpoint_.release(completion.id);
    stop_.report(received_);
  }

  void acknowledge() {
    if (received_ == acknowledged_ || acknowledging_ >= endpoint_.depth()) return;
    const uint32_t slot = static_cast<uint32_t>(acknowledgements_ % endpoint_.depth());
    std::memcpy(endpoint_.send_slot(slot), &received_, sizeof(received_));
    Work work;
    work.slot = slot;
    work.bytes = sizeof(received_);
    if (endpoint_.post({&work, 1}) == 0) return;
    acknowledged_ = received_;
    ++acknowledgements_;
    ++acknowledging_;
  }

  Endpoint& endpoint_;
  const TransferSpec& spec_;
  StopFlag& stop_;
  Inbox<16> inbox_;
  uint64_t received_ = 0, acknowledged_ = 0, acknowledgements_ = 0;
  uint32_t acknowledging_ = 0;
  ReceiverWatch watch_;
  Counts counts_;
};

}  // namespace

Counts transfer_send(Endpoint& endpoint, const TransferSpec& spec, StopFlag& stop) {
  const PinnedThread pinned(spec.run.cpu);
  return Sending(endpoint, spec, stop).run();
}

Counts transfer_receive(Endpoint& endpoint, const TransferSpec& spec, StopFlag& stop) {
  const PinnedThread pinned(spec.run.cpu);
  return Receiving(endpoint, spec, stop).run();
}

}  // namespace weft::probe
