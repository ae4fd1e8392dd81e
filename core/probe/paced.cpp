// Open loop: each message has an intended time, drawn from the seed alone, and its latency counts
// from there: what it left late, and half of its round trip. A message that cannot leave in time
// (the loop was held up, the window or the queue is full) leaves late; none is skipped, so a run
// may last longer than its schedule.
//
// Answers are matched by sequence number in a ring of bounded size. On datagrams a message is given
// up after the loss timeout; an answer that comes later still changes nothing.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/rng.hpp"
#include "probe/inbox.hpp"
#include "probe/loops.hpp"
#include "probe/payload.hpp"

namespace weft::probe {

namespace {

using transport::Completion;
using transport::Work;

constexpr uint64_t kRingPerWindow = 16;  // a lost message may hold up this many windows
// A sleeper wakes this long before its message is due and polls: what a timer and the scheduler may
// be late by must not count as the path's latency.
constexpr int64_t kPollBeforeNs = 200'000;

// The intended times, in ticks since the start of the run.
class Schedule {
 public:
  explicit Schedule(const PacedSpec& spec)
      : interval_(Clock::shared().hz() / spec.rate), poisson_(spec.poisson), rng_(spec.run.seed) {
    advance();
  }

  uint64_t due() const { return static_cast<uint64_t>(due_); }

  void advance() {
    // From the number, not from the last: a fixed interval does not drift by rounding.
    ++number_;
    due_ = poisson_ ? due_ - interval_ * std::log(rng_.uniform())
                    : interval_ * static_cast<double>(number_);
  }

 private:
  double interval_;
  bool poisson_;
  Rng rng_;
  uint64_t number_ = 0;
  double due_ = 0;
};

// What is known of the messages that may still be answered.
class Unanswered {
 public:
  enum class State : uint8_t { free, waiting, answered, given_up };
  struct Entry {
    uint64_t sequence = 0, intended = 0, sent = 0;  // ticks
    State state = State::free;
  };

  explicit Unanswered(uint32_t window)
      : window_(window), ring_(std::bit_ceil(std::max<uint64_t>(window, 4) * kRingPerWindow)) {}

  bool has_room() const { return waiting_ < window_ && next_ - oldest_ < ring_.size(); }
  bool is_empty() const { return waiting_ == 0; }
  uint64_t next() const { return next_; }
  uint64_t oldest() const { return oldest_; }

  void add(uint64_t intended, uint64_t sent) {
    at(next_) = {next_, intended, sent, State::waiting};
    ++next_;
    ++waiting_;
  }

  // Null when no such message is known (any more).
  Entry* find(uint64_t sequence) {
    Entry& entry = at(sequence);
    return entry.state != State::free && entry.sequence == sequence ? &entry : nullptr;
  }

  void settle(Entry& entry, State state) {
    entry.state = state;
    --waiting_;
    while (oldest_ < next_ && at(oldest_).state != State::waiting) ++oldest_;
  }

 private:
  Entry& at(uint64_t sequence) { return ring_[sequence & (ring_.size() - 1)]; }

  uint32_t window_;
  std::vector<Entry> ring_;
  uint64_t next_ = 0, oldest_ = 0;  // every message before `oldest_` is settled
  uint32_t waiting_ = 0;
};

class Paced {
 public:
  Paced(Endpoint& endpoint, const PacedSpec& spec, StopFlag& stop)
      : endpoint_(endpoint),
        run_(spec.run),
        stop_(stop),
        clock_(Clock::shared()),
        schedule_(spec),
        unanswered_(spec.window),
        loss_ticks_(endpoint.is_reliable() ? 0 : clock_.ticks_of_ns(run_.loss_timeout_ns)) {
    for (uint32_t slot = endpoint.depth(); slot > 0; --slot) free_slots_.push_back(slot - 1);
    result_.samples.reserve(run_.samples);
    result_.intended_ns.reserve(run_.samples);
    result_.late_ps.reserve(run_.samples);
  }

  PacedResult run() {
    start_ = last_ = ticks();
    watch_.start(start_);
    try {
      for (;;) {
        const uint64_t now = ticks();
        const bool more = has_more();
        if (more && now - start_ >= schedule_.due()) send(now);
        if (!more && unanswered_.is_empty()) break;
        collect(now, more);
        if (loss_ticks_ > 0) give_up(now);
        if (stop_.is_set()) {
          result_.counts.stopped = true;
          break;
        }
      }
    } catch (const Error& error) {
      result_.counts.error = error.what();
      result_.counts.stopped = true;
    }
    watch_.stop(last_, result_.counts);
    return std::move(result_);
  }

 private:
  bool is_timed(uint64_t sequence) const { return sequence >= run_.warmup; }

  bool has_more() {
    const uint64_t sequence = unanswered_.next();
    if (!is_timed(sequence)) return true;
    if (sequence == run_.warmup && end_ == 0)
      end_ = run_.duration_ns > 0 ? schedule_.due() + clock_.ticks_of_ns(run_.duration_ns)
                                  : ~uint64_t{0};
    return (run_.count == 0 || sequence < run_.warmup + run_.count) && schedule_.due() < end_;
  }

  void send(uint64_t now) {
    if (!unanswered_.has_room() || free_slots_.empty()) return;
    const uint64_t sequence = unanswered_.next();
    Work work;
    work.op = run_.op;
    work.bytes = run_.bytes;
    work.slot = free_slots_.back();
    work.id = work.slot;
    work.immediate = static_cast<uint32_t>(sequence);
    if (run_.validate)
      fill(endpoint_.send_slot(work.slot), run_.bytes, sequence);
    else
      put_sequence(endpoint_.send_slot(work.slot), run_.bytes, sequence);
    if (endpoint_.post({&work, 1}) == 0) return;
    idle_.reset();
    free_slots_.pop_back();
    const uint64_t intended = start_ + schedule_.due();
    if (is_timed(sequence)) {
      if (result_.counts.sent++ == 0) watch_.start(last_ = now);
      result_.lateness.record(clock_.ps(now - intended));
    }
    unanswered_.add(intended, now);
    schedule_.advance();
  }

  // Sleeps, if it may, until shortly before the next message is due.
  void collect(uint64_t now, bool more) {
    const int64_t sleep_ns = run_.block ? idle_ns(now, more) : 0;
    const uint32_t n =
        sleep_ns > 0 ? endpoint_.wait(completions_, sleep_ns) : endpoint_.poll(completions_);
    if (n == 0) return idle_.step();
    idle_.reset();
    const uint64_t seen = ticks();
    for (const Completion& completion : std::span(completions_).first(n)) {
      if (completion.kind == Completion::sent)
        free_slots_.push_back(static_cast<uint32_t>(completion.id));
      else
        take(completion, seen);
    }
  }

  int64_t idle_ns(uint64_t now, bool more) {
    const uint64_t since = now - start_;
    const int64_t longest = std::min(kWaitNs, until_loss_ns(now));
    if (!more || !unanswered_.has_room()) return longest;
    if (since >= schedule_.due()) return free_slots_.empty() ? longest : 0;
    const int64_t left_ns = clock_.ps(schedule_.due() - since) / 1000;
    return std::min(left_ns - kPollBeforeNs, longest);
  }

  // Until the oldest message that waits for an answer counts as lost.
  int64_t until_loss_ns(uint64_t now) {
    const Unanswered::Entry* entry =
        loss_ticks_ > 0 ? unanswered_.find(unanswered_.oldest()) : nullptr;
    if (entry == nullptr || now < entry->sent) return kWaitNs;
    const uint64_t gone = now - entry->sent;
    return gone >= loss_ticks_ ? 0 : clock_.ps(loss_ticks_ - gone) / 1000 + 1;
  }

  void take(const Completion& completion, uint64_t seen) {
    const std::byte* message = endpoint_.receive_slot(completion.id);
    const uint64_t sequence = sequence_of(message, completion.bytes, unanswered_.oldest());
    if (Unanswered::Entry* entry = unanswered_.find(sequence); entry != nullptr) {
      if (entry->state == Unanswered::State::waiting) {
        if (is_timed(sequence)) record(*entry, completion, message, seen);
        unanswered_.settle(*entry, Unanswered::State::answered);
      } else if (entry->state == Unanswered::State::answered && is_timed(sequence)) {
        ++result_.counts.duplicates;
      }
    }
    endpoint_.release(completion.id);
  }

  void record(const Unanswered::Entry& entry, const Completion& completion,
              const std::byte* message, uint64_t seen) {
    Counts& counts = result_.counts;
    const int64_t late = clock_.ps(entry.sent - entry.intended);
    const int64_t service = clock_.ps(seen - entry.sent) / 2;
    const int64_t latency = late + service;
    result_.latency.record(latency);
    result_.service.record(service);
    if (result_.samples.size() < run_.samples) {
      result_.samples.push_back(latency);
      result_.intended_ns.push_back(clock_.ps(entry.intended - start_) / 1000);
      result_.late_ps.push_back(late);
    }
    ++counts.received;
    counts.bytes += completion.bytes;
    counts.reordered += entry.sequence < highest_;
    highest_ = std::max(highest_, entry.sequence);
    if (run_.validate &&
        (completion.bytes != run_.bytes || !is_filled(message, completion.bytes, entry.sequence)))
      ++counts.corrupted;
    last_ = seen;
    stop_.report(counts.received);
  }

  void give_up(uint64_t now) {
    while (!unanswered_.is_empty()) {
      Unanswered::Entry* entry = unanswered_.find(unanswered_.oldest());
      if (entry == nullptr || now < entry->sent || now - entry->sent < loss_ticks_) return;
      result_.counts.lost += is_timed(entry->sequence);
      unanswered_.settle(*entry, Unanswered::State::given_up);
    }
  }

  Endpoint& endpoint_;
  const RunSpec& run_;
  StopFlag& stop_;
  const Clock& clock_;
  Schedule schedule_;
  Unanswered unanswered_;
  const uint64_t loss_ticks_;
  std::vector<uint32_t> free_slots_;
  std::array<Completion, 32> completions_{};
  Idle idle_;
  uint64_t start_ = 0, end_ = 0, last_ = 0, highest_ = 0;
  Stopwatch watch_;
  PacedResult result_;
};

}  // namespace

PacedResult paced(Endpoint& endpoint, const PacedSpec& spec, StopFlag& stop) {
  if (!(spec.rate > 0) || spec.window == 0)
    throw Error("paced", "rate and window must be above 0", "give messages per second");
  if (!endpoint.is_reliable() && spec.run.bytes < kSequenceBytes)
    throw Error(
        "paced",
        "datagrams of " + std::to_string(spec.run.bytes) + " B have no room for their number",
        "use 8 B or more");
  const PinnedThread pinned(spec.run.cpu);
  return Paced(endpoint, spec, stop).run();
}

}  // namespace weft::probe
