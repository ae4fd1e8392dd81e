// Ping-pong by RDMA writes: each side writes into the other's memory and waits for the last byte of
// its own to change, without a receive and without a completion on the way.
//
// This holds where a write's last byte lands last: adapters with strict ordering do so, and the
// endpoints are opened that way. Values of the last byte go round from 1 to 255: 0 is "nothing
// yet".
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "probe/inbox.hpp"
#include "probe/loops.hpp"
#include "probe/payload.hpp"

namespace weft::probe {

namespace {

using transport::Completion;
using transport::Op;
using transport::Work;

// Looks at memory between two polls of the endpoint, which may need them for its progress.
constexpr uint32_t kLooksPerPoll = 16;

constexpr std::byte mark_of(uint64_t sequence) {
  return static_cast<std::byte>(sequence % 255 + 1);
}

// One side: writes its message, watches the last byte of its window.
class Writer {
 public:
  Writer(Endpoint& endpoint, const RunSpec& run, StopFlag& stop)
      : endpoint_(endpoint), run_(run), stop_(stop), watched_(last_of(endpoint, run)) {}

  // False: stopped, or too late (`until` in ticks, 0: never).
  bool await(std::byte unlike, std::byte& mark, uint64_t until) {
    for (uint32_t looks = 1;; ++looks) {
      mark = *static_cast<const volatile std::byte*>(watched_);
      if (mark != unlike) break;
      if (looks % kLooksPerPoll != 0) continue;
      poll();
      idle_.step();
      if (stop_.is_set() || (until != 0 && ticks() > until)) return false;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    idle_.reset();
    return true;
  }

  // The message in slot 0, its last byte `mark`; false: stopped.
  bool write(std::byte mark) {
    while (outstanding_ > 0) {
      if (poll() == 0 && stop_.is_set()) return false;
    }
    endpoint_.send_slot(0)[run_.bytes - 1] = mark;
    Work work;
    work.op = Op::write;
    work.bytes = run_.bytes;
    while (endpoint_.post({&work, 1}) == 0) {
      poll();
      if (stop_.is_set()) return false;
    }
    ++outstanding_;
    return true;
  }

  const std::byte* message() const { return watched_ + 1 - run_.bytes; }

 private:
  static const std::byte* last_of(Endpoint& endpoint, const RunSpec& run) {
    const auto window = endpoint.window();
    if (run.bytes == 0 || window.size() < run.bytes)
      throw Error("write ping-pong", "the window is smaller than a message",
                  "open both sides with remote_bytes of a message, at least 1 B");
    return window.data() + run.bytes - 1;
  }

  uint32_t poll() {
    const uint32_t count = endpoint_.poll(completions_);
    for (const Completion& completion : std::span(completions_).first(count))
      outstanding_ -= completion.kind == Completion::sent;
    return count;
  }

  Endpoint& endpoint_;
  const RunSpec& run_;
  StopFlag& stop_;
  const std::byte* watched_;
  Idle idle_;
  uint32_t outstanding_ = 0;
  std::array<Completion, 4> completions_{};
};

// The pattern up to the last byte, which is the mark.
bool has_pattern(const std::byte* message, uint32_t bytes, uint64_t sequence) {
  std::vector<std::byte> expected(bytes);
  fill(expected.data(), bytes, sequence);
  return std::equal(expected.begin(), expected.end() - 1, message);
}

class WritePingPong {
 public:
  WritePingPong(Endpoint& endpoint, const RunSpec& run, StopFlag& stop)
      : endpoint_(endpoint),
        run_(run),
        stop_(stop),
        writer_(endpoint, run, stop),
        loss_ticks_(endpoint.is_reliable() ? 0 : Clock::shared().ticks_of_ns(run.loss_timeout_ns)) {
  }

  LatencyResult run() {
    result_.samples.reserve(run_.samples);
    try {
      while (sequence_ < run_.warmup && round_trip()) continue;
      result_.counts = {};
      last_ = ticks();
      watch_.start(last_);
      const Until until(run_, last_);
      while (!until.reached(result_.counts.sent, last_) && round_trip())
        stop_.report(result_.counts.sent);
      result_.counts.stopped = stop_.is_set();
    } catch (const Error& error) {
      result_.counts.error = error.what();
      result_.counts.stopped = true;
    }
    watch_.stop(ticks(), result_.counts);
    return std::move(result_);
  }

 private:
  // False: stopped.
  bool round_trip() {
    if (run_.validate) {
      fill(endpoint_.send_slot(0), run_.bytes, sequence_);
      last_ = ticks();
    }
    if (!writer_.write(mark_of(sequence_))) return false;
    bool answered = false;
    const uint64_t end = loss_ticks_ == 0 ? 0 : last_ + loss_ticks_;
    // An answer to an earlier write may come late: only the mark of this one counts.
    while (!answered && writer_.await(mark_, mark_, end)) answered = mark_ == mark_of(sequence_);
    if (!answered && stop_.is_set()) return false;
    const uint64_t now = ticks();
    record(answered, now);
    ++sequence_;
    last_ = now;
    return true;
  }

  void record(bool answered, uint64_t now) {
    Counts& counts = result_.counts;
    ++counts.sent;
    counts.lost += !answered;
    if (!answered) return;
    ++counts.received;
    counts.bytes += run_.bytes;
    if (run_.validate) counts.corrupted += !has_pattern(writer_.message(), run_.bytes, sequence_);
    if (sequence_ < run_.warmup) return;
    const int64_t half = Clock::shared().ps(now - last_) / 2;
    result_.latency.record(half);
    if (result_.samples.size() < run_.samples) result_.samples.push_back(half);
  }

  Endpoint& endpoint_;
  const RunSpec& run_;
  StopFlag& stop_;
  Writer writer_;
  const uint64_t loss_ticks_;
  std::byte mark_{0};
  uint64_t sequence_ = 0, last_ = ticks();
  Stopwatch watch_;
  LatencyResult result_;
};

}  // namespace

LatencyResult write_ping_pong(Endpoint& endpoint, const RunSpec& run, StopFlag& stop) {
  const PinnedThread pinned(run.cpu);
  return WritePingPong(endpoint, run, stop).run();
}

Counts write_echo(Endpoint& endpoint, const RunSpec& run, StopFlag& stop) {
  const PinnedThread pinned(run.cpu);
  Counts counts;
  Stopwatch watch;
  watch.start(ticks());
  try {
    Writer writer(endpoint, run, stop);
    std::byte mark{0};
    while (writer.await(mark, mark, 0)) {
      if (run.validate) std::memcpy(endpoint.send_slot(0), writer.message(), run.bytes);
      if (!writer.write(mark)) break;
      ++counts.sent;
      ++counts.received;
      counts.bytes += run.bytes;
      stop.report(counts.sent);
    }
  } catch (const Error& error) {
    counts.error = error.what();
  }
  watch.stop(ticks(), counts);
  return counts;
}

}  // namespace weft::probe
