// RPerf (Katebzadeh, Costa, Grot, ISPASS 2020): a reliable send over the wire and one over the
// adapter's own loopback are posted together; what the loopback takes is the host's and adapter's
// part, T_W - T_L the round trip of the wire.
//
// One counter read before the pair is posted and one for each of its completions. Both queues are
// polled in turn, so a completion of either is seen at most one poll of the other late. Nothing is
// posted to a queue, and no receive given back, between the post of a pair and its end.
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "probe/inbox.hpp"
#include "probe/loops.hpp"
#include "probe/payload.hpp"

namespace weft::probe {

namespace {

using transport::Completion;
using transport::Work;

// One endpoint's half of the current pair.
class Half {
 public:
  explicit Half(Endpoint& endpoint) : endpoint_(endpoint) {}

  void prepare(const RunSpec& run, uint64_t sequence) {
    std::byte* message = endpoint_.send_slot(0);
    if (run.validate)
      fill(message, run.bytes, sequence);
    else
      put_sequence(message, run.bytes, sequence);
    work_.op = run.op;
    work_.bytes = run.bytes;
    work_.id = sequence;
    posted_ = completed_ = false;
  }

  void post() { posted_ = posted_ || endpoint_.post({&work_, 1}) == 1; }

  // Whether something came.
  bool poll() {
    const uint32_t n = endpoint_.poll(completions_);
    if (n == 0) return false;
    const uint64_t now = ticks();
    for (const Completion& completion : std::span(completions_).first(n)) {
      if (completion.kind == Completion::received) {
        received_.push_back(completion);
      } else if (completion.id == work_.id) {
        completed_ = true;
        at_ = now;
        device_ticks_ = completion.device_ticks;
      }
    }
    return true;
  }

  // Hands what was received to `look` and gives the slots back.
  template <class Look>
  void release(Look look) {
    for (const Completion& completion : received_) {
      look(completion, endpoint_.receive_slot(completion.id));
      endpoint_.release(completion.id);
    }
    received_.clear();
  }

  bool is_posted() const { return posted_; }
  bool is_completed() const { return completed_; }
  uint64_t at() const { return at_; }
  uint64_t device_ticks() const { return device_ticks_; }

 private:
  Endpoint& endpoint_;
  Work work_;
  std::array<Completion, 4> completions_{};
  std::vector<Completion> received_;
  bool posted_ = false, completed_ = false;
  uint64_t at_ = 0, device_ticks_ = 0;
};

class PostPoll {
 public:
  PostPoll(Endpoint& wire, Endpoint& loopback, const RunSpec& run, PairOrder order,
           double device_hz, StopFlag& stop)
      : wire_(wire),
        loopback_(loopback),
        run_(run),
        order_(order),
        stop_(stop),
        tick_mask_(wire.device_tick_mask()) {
    if (device_hz > 0) device_ps_ = 1e12 / device_hz;
  }

  PostPollResult run() {
    result_.samples.reserve(run_.samples);
    result_.loopback_samples.reserve(run_.samples);
    try {
      while (sequence_ < run_.warmup && pair()) continue;
      start_timing();
      for (uint64_t now = posted_at_; !until_->reached(result_.counts.sent, now);
           now = wire_.at()) {
        if (!pair()) break;
        record();
        if (stop_.is_set() && (result_.counts.stopped = true)) break;
        stop_.report(result_.counts.sent);
      }
    } catch (const Error& error) {
      result_.counts.error = error.what();
      result_.counts.stopped = true;
    }
    watch_.stop(ticks(), result_.counts);
    return std::move(result_);
  }

 private:
  void start_timing() {
    posted_at_ = ticks();
    result_.counts = {};
    watch_.start(posted_at_);
    until_.emplace(run_, posted_at_);
  }

  bool wire_is_first() const {
    return order_ == PairOrder::wire_first ||
           (order_ == PairOrder::alternating && sequence_ % 2 == 0);
  }

  // Posts the next pair and polls until both are complete; false: stopped.
  bool pair() {
    wire_.prepare(run_, sequence_);
    loopback_.prepare(run_, sequence_);
    Half& first = wire_is_first() ? wire_ : loopback_;
    Half& second = wire_is_first() ? loopback_ : wire_;
    posted_at_ = ticks();
    first.post();
    second.post();
    while (!wire_.is_completed() || !loopback_.is_completed()) {
      const bool came = static_cast<int>(wire_.poll()) | static_cast<int>(loopback_.poll());
      if (came) {
        idle_.reset();
        continue;
      }
      if (!first.is_posted() || !second.is_posted()) {
        first.post();
        if (first.is_posted()) second.post();
      }
      if (stop_.is_set()) return !(result_.counts.stopped = true);
      idle_.step();
    }
    ++sequence_;
    wire_.release([](const Completion&, const std::byte*) {});
    loopback_.release([this](const Completion& completion, const std::byte* message) {
      verify(completion, message);
    });
    return true;
  }

  // The loopback's messages come to us: one at a time, so in order, perhaps one pair late.
  void verify(const Completion& completion, const std::byte* message) {
    if (!run_.validate) return;
    const uint64_t sequence = verified_++;
    if (completion.bytes != run_.bytes || !is_filled(message, completion.bytes, sequence))
      ++result_.counts.corrupted;
  }

  void record() {
    const Clock& clock = Clock::shared();
    const int64_t wire = clock.ps(wire_.at() - posted_at_);
    const int64_t loopback = clock.ps(loopback_.at() - posted_at_);
    const int64_t rtt = wire - loopback;
    result_.rtt.record(rtt);
    result_.post_poll.record(wire);
    result_.loopback.record(loopback);
    result_.negative += rtt < 0;
    if (result_.samples.size() < run_.samples) {
      result_.samples.push_back(rtt);
      result_.loopback_samples.push_back(loopback);
    }
    if (device_ps_ > 0 && wire_.device_ticks() != 0 && loopback_.device_ticks() != 0) {
      const int64_t difference =
          transport::tick_difference(wire_.device_ticks(), loopback_.device_ticks(), tick_mask_);
      result_.device_rtt.record(static_cast<int64_t>(static_cast<double>(difference) * device_ps_));
    }
    ++result_.counts.sent;
    ++result_.counts.received;
    result_.counts.bytes += run_.bytes;
  }

  Half wire_, loopback_;
  const RunSpec& run_;
  const PairOrder order_;
  StopFlag& stop_;
  const uint64_t tick_mask_;
  double device_ps_ = 0;  // of one of the device's ticks
  uint64_t sequence_ = 0, verified_ = 0, posted_at_ = 0;
  Idle idle_;
  std::optional<Until> until_;
  Stopwatch watch_;
  PostPollResult result_;
};

}  // namespace

PostPollResult post_poll(Endpoint& wire, Endpoint& loopback, const RunSpec& run, PairOrder order,
                         double device_hz, StopFlag& stop) {
  if (!wire.is_reliable() || !loopback.is_reliable())
    throw Error("rperf", "a datagram completes when it has left, not when it has arrived",
                "use a reliable endpoint (verbs: rc)");
  if (run.block)
    throw Error("rperf", "completions have to be polled, a sleep would be measured",
                "leave out the blocking mode");
  const PinnedThread pinned(run.cpu);
  return PostPoll(wire, loopback, run, order, device_hz, stop).run();
}

}  // namespace weft::probe
