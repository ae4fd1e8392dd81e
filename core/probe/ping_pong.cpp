// Ping-pong and its echo.
//
// One counter read per message: a sample is the time from one answer to the next, so what the loop
// itself does between them (a few ns) is in it, as it is in an application. Half of it is recorded.
#include <algorithm>
#include <vector>

#include "base/error.hpp"
#include "probe/inbox.hpp"
#include "probe/loops.hpp"
#include "probe/payload.hpp"
#include "probe/recorder.hpp"

namespace weft::probe {

namespace {

using transport::Completion;
using transport::Work;

constexpr uint64_t kWarmupLosses = 3;  // each costs a whole timeout: these end the warm-up

class PingPong {
 public:
  PingPong(Endpoint& endpoint, const RunSpec& run, StopFlag& stop)
      : endpoint_(endpoint),
        run_(run),
        stop_(stop),
        inbox_(endpoint, run.block),
        loss_ticks_(endpoint.is_reliable() ? 0 : Clock::shared().ticks_of_ns(run.loss_timeout_ns)) {
  }

  LatencyResult run() {
    const Clock& clock = Clock::shared();
    // Written to, so that no page of it is new to the timed part.
    std::vector<int64_t> samples(run_.samples, -1);
    uint64_t kept = 0;
    try {
      for (uint64_t i = 0; i < run_.warmup && !stop_.is_set(); ++i) {
        round_trip(ticks());
        if (result_.counts.lost == kWarmupLosses) break;
      }
      result_.counts = {};
      uint64_t last = ticks();
      watch_.start(last);
      const Until until(run_, last);
      Recorder latency(result_.latency);
      while (!until.reached(result_.counts.sent, last) && !ended()) {
        if (run_.validate) last = prepare();
        if (round_trip(last)) {
          const int64_t half = clock.ps(answered_at_ - last) / 2;
          latency.add(half);
          if (kept < samples.size()) samples[kept++] = half;
        }
        last = free_at_;
        stop_.report(result_.counts.sent);
      }
      watch_.stop(last, result_.counts);
    } catch (const Error& error) {
      watch_.stop(ticks(), result_.counts);
      result_.counts.error = error.what();
      result_.counts.stopped = true;
    }
    samples.resize(kept);
    result_.samples = std::move(samples);
    return std::move(result_);
  }

 private:
  bool ended() {
    if (stop_.is_set()) result_.counts.stopped = true;
    return result_.counts.stopped;
  }

  uint64_t prepare() {
    fill(endpoint_.send_slot(0), run_.bytes, sequence_);
    return ticks();
  }

  // Sends one message and waits for its answer; false when it was lost or the loop was stopped.
  bool round_trip(uint64_t sent_at) {
    const uint64_t sequence = sequence_++;
    put_sequence(endpoint_.send_slot(0), run_.bytes, sequence);
    Work work;
    work.op = run_.op;
    work.bytes = run_.bytes;
    bool posted = endpoint_.post({&work, 1}) == 1;
    bool answered = false;
    bool completed = false;
    bool waited = false;  // for the completion of the send, after the answer
    while (!answered || !posted || !completed) {
      const auto completions = inbox_.next(longest_wait_ns(sent_at));
      if (!posted) posted = endpoint_.post({&work, 1}) == 1;
      for (const Completion& completion : completions) {
        if (completion.kind == Completion::sent) {
          completed = true;
          continue;
        }
        answered_at_ = ticks();
        answered |= accept(completion, sequence);
      }
      waited = waited || (answered && !completed);
      // On datagrams a late completion of the send is no reason to wait.
      if (answered && loss_ticks_ > 0) break;
      if (!completions.empty()) continue;
      if (stop_.is_set()) {
        result_.counts.stopped = true;
        free_at_ = ticks();
        return false;
      }
      if (loss_ticks_ > 0 && ticks() - sent_at > loss_ticks_) break;
    }
    free_at_ = answered && !waited ? answered_at_ : ticks();
    ++result_.counts.sent;
    result_.counts.lost += !answered;
    return answered;
  }

  // What is left until the message counts as lost.
  int64_t longest_wait_ns(uint64_t sent_at) const {
    if (!run_.block || loss_ticks_ == 0) return kWaitNs;
    const int64_t gone_ns = Clock::shared().ps(ticks() - sent_at) / 1000;
    return std::clamp<int64_t>(run_.loss_timeout_ns - gone_ns, 1, kWaitNs);
  }

  // Whether this is the answer to `sequence`; others came too late.
  bool accept(const Completion& completion, uint64_t sequence) {
    const std::byte* message = endpoint_.receive_slot(completion.id);
    const uint64_t number = sequence_of(message, completion.bytes, sequence);
    const bool ours = number == sequence || loss_ticks_ == 0;
    if (ours) {
      ++result_.counts.received;
      result_.counts.bytes += completion.bytes;
      if (run_.validate &&
          (completion.bytes != run_.bytes || !is_filled(message, completion.bytes, sequence)))
        ++result_.counts.corrupted;
    } else {
      ++result_.counts.reordered;
    }
    endpoint_.release(completion.id);
    return ours;
  }

  Endpoint& endpoint_;
  const RunSpec& run_;
  StopFlag& stop_;
  Inbox<4> inbox_;
  uint64_t loss_ticks_;
  uint64_t sequence_ = 0;
  uint64_t answered_at_ = 0, free_at_ = 0;  // the last answer; when the next message may leave
  Stopwatch watch_;
  LatencyResult result_;
};

// Answers in the order received; what the queue does not take waits in its receive slot.
class Echo {
 public:
  Echo(Endpoint& endpoint, const RunSpec& run, StopFlag& stop)
      : endpoint_(endpoint), run_(run), stop_(stop), inbox_(endpoint, run.block) {}

  Counts run() {
    watch_.start(ticks());
    try {
      while (!stop_.is_set()) {
        for (const Completion& completion : inbox_.next()) {
          if (completion.kind == Completion::sent)
            --outstanding_;
          else
            waiting_.push_back(completion);
        }
        answer();
      }
    } catch (const Error& error) {
      counts_.error = error.what();
    }
    watch_.stop(ticks(), counts_);
    return counts_;
  }

 private:
  void answer() {
    const uint32_t depth = endpoint_.depth();
    size_t done = 0;
    for (; done < waiting_.size() && outstanding_ < depth; ++done) {
      const Completion& request = waiting_[done];
      const uint32_t slot = static_cast<uint32_t>(counts_.sent % depth);
      const uint32_t copied =
          run_.validate ? request.bytes : std::min(request.bytes, kSequenceBytes);
      std::memcpy(endpoint_.send_slot(slot), endpoint_.receive_slot(request.id), copied);
      Work work;
      work.op = run_.op;
      work.slot = slot;
      work.bytes = request.bytes;
      if (endpoint_.post({&work, 1}) == 0) break;
      ++outstanding_;
      ++counts_.sent;
      ++counts_.received;
      counts_.bytes += request.bytes;
      endpoint_.release(request.id);
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(done));
    if (done > 0) stop_.report(counts_.sent);
  }

  Endpoint& endpoint_;
  const RunSpec& run_;
  StopFlag& stop_;
  Inbox<16> inbox_;
  std::vector<Completion> waiting_;
  uint32_t outstanding_ = 0;
  Stopwatch watch_;
  Counts counts_;
};

}  // namespace

LatencyResult ping_pong(Endpoint& endpoint, const RunSpec& run, StopFlag& stop) {
  const PinnedThread pinned(run.cpu);
  return PingPong(endpoint, run, stop).run();
}

Counts echo(Endpoint& endpoint, const RunSpec& run, StopFlag& stop) {
  const PinnedThread pinned(run.cpu);
  return Echo(endpoint, run, stop).run();
}

}  // namespace weft::probe
