// Streams: as many messages as a window allows, one way or both, over one or several endpoints.
//
// A Sender keeps its endpoint's window full; a Receiver counts what comes. stream, sink and duplex
// are one loop over endpoints that have the one, the other or both.
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "probe/inbox.hpp"
#include "probe/loops.hpp"
#include "probe/payload.hpp"
#include "probe/sequence.hpp"

namespace weft::probe {

namespace {

using transport::Completion;
using transport::Op;
using transport::Work;

constexpr int64_t kDrainNs = 300'000'000;    // silence after which nothing more is expected
constexpr int64_t kFlushNs = 2'000'000'000;  // for completions of what was posted
constexpr uint32_t kMostListed = 256;
constexpr auto kPaceSleep = std::chrono::microseconds(50);  // a paced sender that may not spin

// Messages that may have left by now, for a given rate.
class Pace {
 public:
  Pace(double rate, uint64_t start) : per_tick_(rate / Clock::shared().hz()), start_(start) {}
  bool is_free() const { return per_tick_ <= 0; }
  uint64_t allowed(uint64_t now) const {
    return static_cast<uint64_t>(static_cast<double>(now - start_) * per_tick_) + 1;
  }

 private:
  double per_tick_;
  uint64_t start_;
};

class Sender {
 public:
  Sender(Endpoint& endpoint, const StreamSpec& spec)
      : endpoint_(endpoint),
        spec_(spec),
        window_(std::min(spec.window, endpoint.depth())),
        list_(std::clamp(spec.post_list, 1u, std::min(window_, kMostListed))),
        signal_every_(std::clamp(spec.signal_every, 1u, window_)),
        works_(list_) {}

  // Posts at most `most` messages, list by list; returns how many were taken.
  uint64_t post(uint64_t most) {
    uint64_t taken = 0;
    while (taken < most) {
      const uint64_t room = std::min<uint64_t>(window_ - (posted_ - completed_), most - taken);
      // Whole lists, unless fewer are left to send at all, or nothing would make room for more.
      const uint64_t n = std::min<uint64_t>(list_, room);
      if (n == 0 || (n < list_ && n < most - taken && !is_idle())) break;
      for (uint64_t i = 0; i < n; ++i) prepare(works_[i], posted_ + i);
      if (room < n + list_) works_[n - 1].signaled = true;
      const uint32_t accepted = endpoint_.post({works_.data(), n});
      posted_ += accepted;
      taken += accepted;
      for (uint64_t i = 0; i < accepted; ++i)
        if (works_[i].signaled) signaled_ = works_[i].id;
      if (accepted < n) break;
    }
    return taken;
  }

  // With selective signaling a completion stands for all works up to its own, whose number is its
  // id; else each counts for itself, in whatever order a transport completes them.
  void completed(const Completion& completion) {
    completed_ = signal_every_ == 1 ? completed_ + 1 : std::max(completed_, completion.id);
  }
  // Unsignaled works at the end of a run by time have no completion to wait for.
  bool is_idle() const { return completed_ >= signaled_; }
  uint64_t posted() const { return posted_; }
  uint64_t completed() const { return completed_; }

 private:
  void prepare(Work& work, uint64_t sequence) {
    work.op = spec_.run.op;
    work.slot = static_cast<uint32_t>(sequence % window_);
    work.bytes = is_atomic(work.op) ? 8 : spec_.run.bytes;
    work.immediate = static_cast<uint32_t>(sequence);
    work.id = sequence + 1;
    work.operand = 1;
    work.signaled = (sequence + 1) % signal_every_ == 0 || ends_with(sequence);
    if (work.op == Op::read || is_atomic(work.op)) return;
    if (spec_.run.validate)
      fill(endpoint_.send_slot(work.slot), work.bytes, sequence);
    else
      put_sequence(endpoint_.send_slot(work.slot), work.bytes, sequence);
  }

  bool ends_with(uint64_t sequence) const {
    const RunSpec& run = spec_.run;
    return sequence + 1 == run.warmup || (run.count > 0 && sequence + 1 == run.warmup + run.count);
  }

  Endpoint& endpoint_;
  const StreamSpec& spec_;
  uint32_t window_, list_, signal_every_;
  std::vector<Work> works_;
  uint64_t posted_ = 0, completed_ = 0, signaled_ = 0;  // completed and signaled: ids
};

class Receiver {
 public:
  Receiver(Endpoint& endpoint, const RunSpec& run) : endpoint_(endpoint), run_(run) {}

  void received(const Completion& completion, uint64_t now, Counts& counts) {
    const std::byte* message = endpoint_.receive_slot(completion.id);
    const uint64_t sequence = sequence_of(message, completion.bytes, total_);
    const auto arrival =
        endpoint_.is_reliable() ? Sequence::Arrival::in_order : seen_.take(sequence);
    ++total_;
    last_ = now;
    counts.reordered += arrival == Sequence::Arrival::late;
    counts.duplicates += arrival == Sequence::Arrival::repeated;
    if (run_.validate) {
      const uint64_t expected = endpoint_.is_reliable() ? total_ - 1 : sequence;
      counts.corrupted += !is_filled(message, completion.bytes, expected);
    }
    const bool timed = (endpoint_.is_reliable() ? total_ > run_.warmup : sequence >= run_.warmup) &&
                       arrival != Sequence::Arrival::repeated;
    if (timed) {
      ++counts.received;
      // The first arrival starts the clock: its own bytes came before that.
      if (first_ == 0) first_ = now;
      if (now != first_) counts.bytes += completion.bytes;
    }
    endpoint_.release(completion.id);
  }

  uint64_t total() const { return endpoint_.is_reliable() ? total_ : seen_.unique(); }
  uint64_t first() const { return first_; }
  uint64_t last() const { return last_; }
  // Datagrams that never came, of those numbered below the highest seen.
  uint64_t missing() const { return endpoint_.is_reliable() ? 0 : seen_.next() - seen_.unique(); }

 private:
  Endpoint& endpoint_;
  const RunSpec& run_;
  Sequence seen_;
  uint64_t total_ = 0, first_ = 0, last_ = 0;
};

class Streams {
 public:
  Streams(std::span<Endpoint* const> endpoints, const StreamSpec& spec, bool sends, bool receives,
          StopFlag& stop)
      : spec_(spec), stop_(stop), endpoints_(endpoints.begin(), endpoints.end()) {
    for (Endpoint* endpoint : endpoints_) {
      if (sends) senders_.push_back(std::make_unique<Sender>(*endpoint, spec_));
      if (receives) receivers_.push_back(std::make_unique<Receiver>(*endpoint, spec_.run));
    }
  }

  DuplexResult run() {
    last_arrival_ = ticks();
    watch_.start(last_arrival_);
    try {
      if (!senders_.empty()) warm_up();
      if (!senders_.empty()) send();
      if (!receivers_.empty()) receive();
    } catch (const Error& error) {
      result_.sent.error = result_.received.error = error.what();
      result_.sent.stopped = result_.received.stopped = true;
    }
    settle();
    return result_;
  }

 private:
  // Every sender's warm-up messages, to their completion.
  void warm_up() {
    const uint64_t warmup = spec_.run.warmup;
    for (;;) {
      bool done = true;
      for (auto& sender : senders_) {
        sender->post(warmup - std::min(warmup, sender->posted()));
        done = done && sender->posted() >= warmup && sender->is_idle();
      }
      if (done || stop_.is_set()) return;
      collect();
    }
  }

  void send() {
    const uint64_t start = ticks();
    watch_.start(start);
    const Until until(spec_.run, start);
    const Pace pace(spec_.rate, start);
    const uint64_t base = posted();
    const uint64_t total = spec_.run.count > 0 ? spec_.run.count * senders_.size() : ~uint64_t{0};
    uint64_t now = start;
    while (!until.reached(posted() - base >= total ? ~uint64_t{0} : 0, now)) {
      if (stop_.is_set()) {
        result_.sent.stopped = true;
        break;
      }
      if (post_all(base, total, pace, now) == 0 && spec_.run.block && all_idle())
        std::this_thread::sleep_for(kPaceSleep);
      collect();
      now = ticks();
      receiving_.idle(now, last_arrival_, result_.received);
      stop_.report(completed() - std::min(completed(), base));
    }
    const uint64_t flush_end = ticks() + Clock::shared().ticks_of_ns(kFlushNs);
    while (!all_idle() && !stop_.is_set() && ticks() < flush_end) collect();
    result_.sent.sent = posted() - base;
    const uint64_t finished = completed() - std::min(completed(), base);
    result_.sent.bytes = finished * (is_atomic(spec_.run.op) ? 8 : spec_.run.bytes);
    watch_.stop(ticks(), result_.sent);
  }

  uint64_t post_all(uint64_t base, uint64_t total, const Pace& pace, uint64_t now) {
    uint64_t taken = 0;
    for (auto& sender : senders_) {
      uint64_t most = std::min<uint64_t>(total - (posted() - base), kMostListed);
      if (spec_.run.count > 0)
        most = std::min(most, spec_.run.count + spec_.run.warmup - sender->posted());
      if (!pace.is_free()) {
        const uint64_t allowed = pace.allowed(now);
        const uint64_t gone = posted() - base;
        most = std::min(most, allowed > gone ? allowed - gone : 0);
      }
      if (most > 0) taken += sender->post(most);
    }
    return taken;
  }

  // Until all that was announced has come, or nothing has for a while after our own end.
  void receive() {
    const uint64_t silence = Clock::shared().ticks_of_ns(kDrainNs);
    while (!stop_.is_set()) {
      const uint64_t expected = stop_.expected();
      if (received() >= expected) return;
      const bool may_end = expected != StopFlag::kNotYet || !senders_.empty();
      const uint64_t now = ticks();
      if (may_end && now > last_arrival_ && now - last_arrival_ > silence &&
          ended_since(now, silence))
        return;
      receiving_.idle(now, last_arrival_, result_.received);
      collect();
    }
    result_.received.stopped = true;
  }

  // The silence counts from when it could be one: not from before finish_at or our own last send.
  bool ended_since(uint64_t now, uint64_t silence) {
    if (quiet_from_ == 0) quiet_from_ = now;
    return now - quiet_from_ > silence;
  }

  void collect() {
    bool any = false;
    for (size_t i = 0; i < endpoints_.size(); ++i) {
      const bool sleep = spec_.run.block && endpoints_.size() == 1 &&
                         (senders_.empty() || !senders_[0]->is_idle());
      uint32_t n = 0;
      if (senders_.empty() && endpoints_.size() == 1)
        n = endpoints_[i]->gather(completions_, kWaitNs, sleep);
      else
        n = sleep ? endpoints_[i]->wait(completions_, kWaitNs) : endpoints_[i]->poll(completions_);
      any = any || n > 0;
      // Sends may be handed over first: who receives too asks on, or arrivals would starve.
      while (n > 0 && !take(i, n) && !receivers_.empty()) n = endpoints_[i]->poll(completions_);
    }
    idle_.polled(any);
    if (senders_.empty()) stop_.report(result_.received.received);
  }

  // The first n completions of an endpoint; false when all were of its sends.
  bool take(size_t i, uint32_t n) {
    const uint64_t now = receivers_.empty() ? 0 : ticks();
    bool arrived = false;
    for (const Completion& completion : std::span(completions_).first(n)) {
      if (completion.kind == Completion::sent) {
        if (!senders_.empty()) senders_[i]->completed(completion);
      } else if (receivers_.empty()) {
        endpoints_[i]->release(completion.id);
      } else {
        arrived = true;
        last_arrival_ = now;
        receivers_[i]->received(completion, now, result_.received);
      }
    }
    if (result_.received.received > 0 && !receiving_.is_started()) receiving_.start(now);
    return arrived;
  }

  void settle() {
    if (receivers_.empty()) return;
    uint64_t first = ~uint64_t{0}, last = 0;
    for (auto& receiver : receivers_) {
      if (receiver->first() > 0) first = std::min(first, receiver->first());
      last = std::max(last, receiver->last());
      result_.received.lost += receiver->missing();
    }
    Counts& counts = result_.received;
    if (stop_.expected() != StopFlag::kNotYet)
      counts.lost = stop_.expected() - std::min(stop_.expected(), received());
    receiving_.stop(ticks(), last_arrival_, counts);
    counts.elapsed_ns = last > first ? Clock::shared().ps(last - first) / 1000 : 0;
  }

  uint64_t posted() const {
    return sum(senders_, [](const Sender& s) { return s.posted(); });
  }
  uint64_t completed() const {
    return sum(senders_, [](const Sender& s) { return s.completed(); });
  }
  uint64_t received() const {
    return sum(receivers_, [](const Receiver& r) { return r.total(); });
  }
  bool all_idle() const {
    return std::all_of(senders_.begin(), senders_.end(), [](auto& s) { return s->is_idle(); });
  }

  template <class Parts, class Value>
  static uint64_t sum(const Parts& parts, Value value) {
    uint64_t all = 0;
    for (const auto& part : parts) all += value(*part);
    return all;
  }

  StreamSpec spec_;
  StopFlag& stop_;
  std::vector<Endpoint*> endpoints_;
  std::vector<std::unique_ptr<Sender>> senders_;
  std::vector<std::unique_ptr<Receiver>> receivers_;
  std::array<Completion, 64> completions_{};
  Idle idle_;
  uint64_t last_arrival_ = 0, quiet_from_ = 0;
  Stopwatch watch_;
  ReceiverWatch receiving_;
  DuplexResult result_;
};

}  // namespace

Counts stream(std::span<Endpoint* const> endpoints, const StreamSpec& spec, StopFlag& stop) {
  const PinnedThread pinned(spec.run.cpu);
  return Streams(endpoints, spec, true, false, stop).run().sent;
}

Counts sink(std::span<Endpoint* const> endpoints, const RunSpec& run, StopFlag& stop) {
  const PinnedThread pinned(run.cpu);
  StreamSpec spec;
  spec.run = run;
  return Streams(endpoints, spec, false, true, stop).run().received;
}

DuplexResult duplex(std::span<Endpoint* const> endpoints, const StreamSpec& spec, StopFlag& stop) {
  const PinnedThread pinned(spec.run.cpu);
  return Streams(endpoints, spec, true, true, stop).run();
}

Counts serve_window(std::span<Endpoint* const> endpoints, const RunSpec& run, StopFlag& stop) {
  const PinnedThread pinned(run.cpu);
  Counts counts;
  Stopwatch watch;
  std::array<Completion, 16> completions;
  Idle idle;
  watch.start(ticks());
  try {
    for (Endpoint* endpoint : endpoints)
      if (run.op == Op::read && run.validate && endpoint->window().size() >= run.bytes)
        fill(endpoint->window().data(), run.bytes, 0);
    while (!stop.is_set()) {
      bool any = false;
      for (Endpoint* endpoint : endpoints) {
        const bool sleep = run.block && endpoints.size() == 1;
        const uint32_t n =
            sleep ? endpoint->wait(completions, kWaitNs) : endpoint->poll(completions);
        any = any || n > 0;
        for (const Completion& completion : std::span(completions).first(n)) {
          if (completion.kind != Completion::received) continue;
          ++counts.received;
          endpoint->release(completion.id);
        }
      }
      idle.polled(any);
    }
  } catch (const Error& error) {
    counts.error = error.what();
  }
  watch.stop(ticks(), counts);
  return counts;
}

}  // namespace weft::probe
