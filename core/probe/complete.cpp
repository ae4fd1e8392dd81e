// One operation at a time, from its post to its completion: the latency of one-sided operations,
// and of sends as the sender sees them.
#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "probe/inbox.hpp"
#include "probe/loops.hpp"
#include "probe/payload.hpp"
#include "probe/recorder.hpp"

namespace weft::probe {

namespace {

using transport::Completion;
using transport::Op;
using transport::Work;

class Complete {
 public:
  Complete(Endpoint& endpoint, const RunSpec& run, StopFlag& stop)
      : endpoint_(endpoint), run_(run), stop_(stop), inbox_(endpoint, run.block) {}

  LatencyResult run() {
    const Clock& clock = Clock::shared();
    std::vector<int64_t> samples(run_.samples, -1);
    uint64_t kept = 0;
    try {
      if (run_.validate && run_.op == Op::read) await_pattern();
      for (uint64_t i = 0; i < run_.warmup && !stop_.is_set(); ++i) next();
      result_.counts = {};
      uint64_t last = ticks();
      watch_.start(last);
      const Until until(run_, last);
      Recorder latency(result_.latency);
      while (!until.reached(result_.counts.sent, last)) {
        // Also where every completion is there at the first poll.
        if (stop_.is_set()) {
          result_.counts.stopped = true;
          break;
        }
        if (run_.validate) last = ticks();
        if (!next()) break;
        const uint64_t now = ticks();
        const int64_t time = clock.ps(now - last);
        latency.add(time);
        if (kept < samples.size()) samples[kept++] = time;
        last = now;
        if (run_.validate) verify();
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
  bool next() {
    Work work;
    work.op = run_.op;
    work.bytes = is_atomic(run_.op) ? 8 : run_.bytes;
    work.compare = sequence_;
    work.operand = run_.op == Op::fetch_add ? 1 : sequence_ + 1;
    if (run_.op != Op::read && !is_atomic(run_.op)) {
      if (run_.validate)
        fill(endpoint_.send_slot(0), run_.bytes, sequence_);
      else
        put_sequence(endpoint_.send_slot(0), run_.bytes, sequence_);
    }
    if (!perform(work)) return false;
    ++sequence_;
    ++result_.counts.sent;
    result_.counts.bytes += work.bytes;
    return true;
  }

  // Posts one work and waits for its completion; false: stopped.
  bool perform(const Work& work) {
    bool posted = endpoint_.post({&work, 1}) == 1;
    for (bool done = false; !done;) {
      const auto completions = inbox_.next();
      if (!posted) posted = endpoint_.post({&work, 1}) == 1;
      for (const Completion& completion : completions) {
        if (completion.kind == Completion::sent)
          done = true;
        else
          endpoint_.release(completion.id);
      }
      if (completions.empty() && stop_.is_set()) {
        result_.counts.stopped = true;
        return false;
      }
    }
    return true;
  }

  // The peer may still be filling its window when we begin.
  void await_pattern() {
    Work read;
    read.op = Op::read;
    read.bytes = run_.bytes;
    const uint64_t end = ticks() + Clock::shared().ticks_of_ns(2'000'000'000);
    while (perform(read) && !is_filled(endpoint_.send_slot(0), run_.bytes, 0) && ticks() < end) {
    }
  }

  // Atomics return the value before: the number of those before them. A write is read back. A read
  // finds what the peer's serve_window has put there.
  void verify() {
    const uint64_t sequence = sequence_ - 1;
    std::byte* slot = endpoint_.send_slot(0);
    bool right = true;
    if (is_atomic(run_.op)) {
      uint64_t before;
      std::memcpy(&before, slot, sizeof(before));
      right = before == sequence;
    } else if (run_.op == Op::read) {
      right = is_filled(slot, run_.bytes, 0);
    } else if (run_.op == Op::write) {
      std::memset(slot, 0, run_.bytes);
      Work back;
      back.op = Op::read;
      back.bytes = run_.bytes;
      right = perform(back) && is_filled(slot, run_.bytes, sequence);
    }
    result_.counts.corrupted += !right;
  }

  Endpoint& endpoint_;
  const RunSpec& run_;
  StopFlag& stop_;
  Inbox<4> inbox_;
  uint64_t sequence_ = 0;
  Stopwatch watch_;
  LatencyResult result_;
};

}  // namespace

LatencyResult complete(Endpoint& endpoint, const RunSpec& run, StopFlag& stop) {
  const PinnedThread pinned(run.cpu);
  return Complete(endpoint, run, stop).run();
}

}  // namespace weft::probe
