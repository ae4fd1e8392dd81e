// Steady state: whole periods that repeat are skipped. Part of partition.cpp.
//
// Only a partition alone can skip: among several, the state lies in their mail as well.
//
// The state of a run is everything that decides what comes next: pending events, links, lanes,
// queues, flows, packets, credits. Where it recurs, all times later by T and all message numbers
// higher, the run repeats itself every T until an outside time (the duration, a stop) or a number
// of messages ends that. So m periods are skipped by shifting times by m T and adding to each
// counter m times what it gained in one.
//
// States are compared when the watched flow completes a message, with one kept state that is
// replaced after 1, 2, 4, 8, ... further ones (Brent), and field by field, never by a digest alone.
// A time that has not changed since the kept state, and lies before it, belongs to something idle:
// it equals itself. Packets have no such times: one that stands still makes the states differ.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "packet/partition.hpp"
#include "packet/simulation.hpp"

namespace weft::packet {

class Partition::Steady {
 public:
  explicit Steady(Partition& partition)
      : part_(partition),
        flows_(partition.simulation_.flows_),
        links_(partition.simulation_.links_) {
    choose_watched();
  }

  // Whether a run can be steady at all: random times, samples and workloads never repeat.
  static bool is_possible(const Partition& part) {
    const AdapterSpec& adapter = part.adapter_;
    if (part.switch_.jitter_mean || adapter.hiccup_mean || adapter.poll_jitter_mean) return false;
    if (adapter.grants.enabled) return false;
    if (!part.alone_ || part.run_.sample_interval || part.workload_) return false;
    const auto& flows = part.simulation_.flows_;
    return std::none_of(flows.begin(), flows.end(),
                        [](const Flow& flow) { return flow.spec.poisson; });
  }

  // Call after each event: skips if the watched flow completed a message and the state recurs.
  void look() {
    if (watched_ == kNone) return;
    const Flow& flow = flows_[watched_];
    if (flow.completed == completed_) return;
    completed_ = flow.completed;
    if (flow.completed == flow.spec.messages) {
      kept_.clear();
      choose_watched();
      return;
    }
    if (part_.now_ < part_.run_.warmup) return;
    if (!kept_.empty() && part_.now_ > kept_now_ && recurs()) {
      skip();
      kept_.clear();
      patience_ = 1;
    }
    if (kept_.empty() || ++looks_ >= patience_) keep();
  }

  Time skipped() const { return skipped_; }

 private:
  // ---- The state, field by field ----------------------------------------------------------------
  //
  // A visitor has: plain(value), the same in equal states; time(t), later by the period, or idle;
  // moving(t), later by the period; intended(t), moving as well; serial(number, base), a message
  // number as its distance to what the flow has posted; counter(c), gains the same in each period;
  // latest(t), the time of the last of something; wants_more(), false once the visit is in vain.

  class Recorder {
   public:
    explicit Recorder(std::vector<int64_t>& values) : values_(values) {}
    template <class T>
    void plain(T value) {
      values_.push_back(static_cast<int64_t>(value));
    }
    void time(Time& t) { values_.push_back(t); }
    void moving(Time& t) { values_.push_back(t); }
    void intended(Time& t) {
      values_.push_back(t);
      first_intended_ = std::min(first_intended_, t);
    }
    Time first_intended() const { return first_intended_; }
    template <class T>
    void serial(T& number, int64_t posted) {
      values_.push_back(static_cast<T>(posted) - number);
    }
    template <class T>
    void counter(T& c) {
      values_.push_back(static_cast<int64_t>(c));
    }
    void latest(Time& t) { values_.push_back(t); }
    bool wants_more() const { return true; }

   private:
    std::vector<int64_t>& values_;
    Time first_intended_ = kNever;
  };

  class Comparer {
   public:
    Comparer(const std::vector<int64_t>& kept, Time then, Time now)
        : kept_(kept), then_(then), period_(now - then) {}
    template <class T>
    void plain(T value) {
      check(value_at() == static_cast<int64_t>(value));
    }
    void time(Time& t) {
      const Time before = value_at();
      check(t - before == period_ || (t == before && (t <= then_ || t == kNever)));
    }
    void moving(Time& t) { check(t - value_at() == period_); }
    void intended(Time& t) { moving(t); }
    template <class T>
    void serial(T& number, int64_t posted) {
      check(value_at() == static_cast<T>(posted) - number);
    }
    template <class T>
    void counter(T&) {
      ++at_;
    }
    void latest(Time&) { ++at_; }
    bool wants_more() const { return equal_; }
    bool equal() const { return equal_ && at_ == kept_.size(); }

   private:
    int64_t value_at() { return at_ < kept_.size() ? kept_[at_++] : (equal_ = false, 0); }
    void check(bool same) { equal_ &= same; }

    const std::vector<int64_t>& kept_;
    Time then_, period_;
    size_t at_ = 0;
    bool equal_ = true;
  };

  // Moves an equal state on by `times` periods.
  class Mover {
   public:
    Mover(const std::vector<int64_t>& kept, Time period, int64_t times)
        : kept_(kept), shift_(period * times), times_(times) {}
    template <class T>
    void plain(T) {
      ++at_;
    }
    void time(Time& t) {
      if (t != kept_[at_++]) t += shift_;
    }
    void moving(Time& t) {
      ++at_;
      t += shift_;
    }
    void intended(Time& t) { moving(t); }
    // Posted has been moved on before: the distance to it is kept.
    template <class T>
    void serial(T& number, int64_t posted) {
      number = static_cast<T>(posted) - static_cast<T>(kept_[at_++]);
    }
    template <class T>
    void counter(T& c) {
      c = static_cast<T>(c + times_ * (static_cast<int64_t>(c) - kept_[at_++]));
    }
    void latest(Time& t) {
      if (t != kept_[at_++]) t += shift_;
    }
    bool wants_more() const { return true; }

   private:
    const std::vector<int64_t>& kept_;
    Time shift_;
    int64_t times_;
    size_t at_ = 0;
  };

  // Flows come first: message numbers of packets count from what their flows have posted.
  template <class V>
  void visit(V& v) {
    v.plain(part_.simulation_.unfinished_);
    v.plain(part_.pool_.live());
    v.counter(part_.events_);
    v.counter(part_.transmissions_);
    v.counter(part_.head_of_line_);
    for (uint32_t id = 0; id < flows_.size() && v.wants_more(); ++id) visit_flow(v, id);
    for (size_t i = 0; i < links_.size() && v.wants_more(); ++i) visit_link(v, i);
    for (Queue& queue : part_.simulation_.virtual_queues_) {
      if (v.wants_more()) visit_queue(v, queue);
    }
    if (v.wants_more()) visit_events(v);
  }

  template <class V>
  void visit_flow(V& v, uint32_t id) {
    Flow& flow = flows_[id];
    Sink& sink = part_.sinks_[id];
    v.counter(flow.posted);
    v.counter(flow.completed);
    v.counter(sink.delivered);
    v.counter(flow.promised);
    // The responder of a READ only posts: its messages complete at the requester.
    const bool responds = flow.spec.op == Op::kRead && flow.owner != kNone;
    if (!responds) {
      v.plain(flow.posted - flow.completed);
      v.plain(flow.posted - sink.delivered);
      if (flow.spec.transport == Transport::kRc) v.plain(flow.posted - flow.promised);
    }
    if (flow.owner != kNone) v.plain(flows_[flow.owner].posted - flow.posted);
    if (flow.spec.estimator == Estimator::kRPerfAlternating) v.plain(flow.posted & 1);
    v.counter(sink.bytes);
    v.counter(sink.messages);
    v.latest(sink.last_delivery);
    v.plain(flow.finished);
    v.plain(sink.finished);
    v.plain(flow.spec.stop);
    v.plain(flow.active);
    v.time(flow.not_before);
    v.plain(flow.offset);
    v.plain(flow.head_wire);
    v.plain(flow.head_payload);
    v.plain(flow.in_batch);
    v.time(flow.message_start);
    v.time(flow.rate_due);
    v.plain(flow.unacked_packets);
    v.plain(flow.ccti);
    if (flow.ccti) v.moving(flow.ccti_at);  // else the next notification sets it
    v.time(flow.due);
    v.plain(flow.next_scheduled);
    v.time(flow.loopback_seen);
    v.plain(sink.marked);
    v.plain(sink.received);
    v.plain(flow.count);
    for (size_t i = 0; i < flow.count && v.wants_more(); ++i) {
      Message& message = flow.ring[(flow.first + i) & (flow.ring.size() - 1)];
      v.intended(message.intended);
      v.moving(message.ready);
      v.plain(message.size);
      v.serial(message.number, flow.posted);
      v.plain(message.switch_time);
    }
  }

  template <class V>
  void visit_link(V& v, size_t id) {
    Link& link = links_[id];
    v.time(link.busy_until);
    v.time(link.kick_at);
    v.plain(link.active_queue);
    v.plain(link.backlogged);
    v.plain(link.offered);
    part_.arbiters_[id].visit(v, *part_.tables_[id]);
    v.plain(part_.feeding_[id]);
    for (size_t i = id * part_.lanes_; i < (id + 1) * part_.lanes_; ++i) {
      visit_out(v, part_.out_[i]);
      for (size_t w = i * part_.words_; w < (i + 1) * part_.words_; ++w) v.plain(part_.waiting_[w]);
      InLane& in = part_.in_[i];
      v.plain(in.used);
      v.counter(in.rcv_bytes);
      v.counter(in.rcv_packets);
      if (!part_.switch_.virtual_output_queues) visit_queue(v, in.queue);
    }
    if (link.host == kNone) return;
    v.time(part_.adapters_[link.host].pace_until);
    v.time(part_.adapters_[link.host].drained);
    for (int vl = 0; vl < part_.lanes_; ++vl) {
      SendLane& lane = part_.send_[link.host * part_.lanes_ + vl];
      visit_fifo(v, lane.responses, false);
      for (uint32_t f = lane.active_first; f != kNone; f = flows_[f].next_active) v.plain(f);
      v.plain(kNone);
    }
  }

  template <class V>
  void visit_out(V& v, OutLane& lane) {
    lane.credits.visit(v);
    v.plain(lane.need);
    v.plain(lane.cursor);
    v.time(lane.blocked_since);
    // Compared with when packets arrived: only a lane that never waited is idle.
    const bool matters = part_.switch_.congestion.enabled && lane.waited_until;
    v.plain(matters);
    if (matters) v.moving(lane.waited_until);
    v.time(lane.last_ready);
    v.plain(lane.backlog);
    v.counter(lane.xmit_bytes);
    v.counter(lane.xmit_packets);
    v.counter(lane.xmit_wait);
    v.plain(lane.unmarked);
    v.counter(part_.marked_[&lane - part_.out_]);
  }

  template <class V>
  void visit_queue(V& v, Queue& queue) {
    v.time(queue.busy_until);
    v.plain(queue.out);
    visit_fifo(v, queue.fifo, true);
    if (queue.fifo.empty()) return;
    v.moving(queue.head_age);
    v.plain(queue.head_blocks);
  }

  template <class V>
  void visit_fifo(V& v, const Fifo& fifo, bool at_switch) {
    for (uint32_t id = fifo.head; id != kNoPacket; id = part_.pool_[id].next) {
      visit_packet(v, id, at_switch);
    }
    v.plain(-1);
  }

  template <class V>
  void visit_packet(V& v, uint32_t id, bool at_switch) {
    Packet& p = part_.pool_[id];
    v.plain(p.flow);
    v.moving(p.arrived);
    if (links_[p.in_link].to_switch) v.moving(p.age);
    v.intended(p.intended);
    v.plain(p.switch_time);
    v.serial(p.message, flows_[p.flow].posted);
    v.plain(p.dst);
    v.plain(p.in_link);
    if (at_switch) v.plain(p.out_link);
    if (at_switch) v.plain(p.out_vl);
    v.plain(p.wire_bytes);
    v.plain(p.payload);
    v.plain(p.vl);
    v.plain(p.sl_kind);
    v.plain(p.flags);
  }

  template <class V>
  void visit_events(V& v) {
    events_ = part_.queue_.pending();
    for (Event& event : events_) {
      const uint32_t what = event.what >> kIdBits, id = event.what & ((1u << kIdBits) - 1);
      if (what == kEnd) continue;
      v.moving(event.time);
      v.plain(what);
      if (what == kArrive || what == kAckReady) {
        visit_packet(v, id, false);
      } else {
        v.plain(id);
      }
    }
  }

  // ---- Looking, keeping, skipping -------------------------------------------------------------

  // Watches the flow with the most messages to come.
  void choose_watched() {
    int64_t most = 0;
    watched_ = kNone;
    for (uint32_t id = 0; id < flows_.size(); ++id) {
      const Flow& flow = flows_[id];
      if (flow.owner != kNone || part_.now_ >= flow.spec.stop) continue;
      const int64_t left = flow.spec.messages < 0 ? INT64_MAX : flow.spec.messages - flow.completed;
      if (left > most) {
        most = left;
        watched_ = id;
        completed_ = flow.completed;
      }
    }
  }

  void keep() {
    kept_.clear();
    looks_ = 0;
    if (has_schedule_to_come()) return;
    Recorder recorder(kept_);
    visit(recorder);
    if (recorder.first_intended() < part_.run_.warmup) return kept_.clear();
    patience_ *= 2;
    kept_now_ = part_.now_;
    kept_groups_ = part_.groups_;
    kept_posted_.clear();
    for (const Flow& flow : flows_) kept_posted_.push_back(flow.posted);
  }

  bool has_schedule_to_come() const {
    return std::any_of(flows_.begin(), flows_.end(), [](const Flow& flow) {
      return flow.spec.pattern == Pattern::kSchedule &&
             flow.completed < static_cast<int64_t>(flow.spec.schedule.size());
    });
  }

  bool recurs() {
    Comparer comparer(kept_, kept_now_, part_.now_);
    visit(comparer);
    return comparer.equal();
  }

  void skip() {
    const Time period = part_.now_ - kept_now_;
    const int64_t times = count_periods(period);
    if (times <= 0) return;
    Mover mover(kept_, period, times);
    visit(mover);
    part_.queue_.replace(std::move(events_));
    for (size_t i = 0; i < part_.groups_.size(); ++i) {
      GroupResult &now = part_.groups_[i], &then = kept_groups_[i];
      now.rtt.repeat_since(then.rtt, static_cast<uint64_t>(times));
      now.one_way.repeat_since(then.one_way, static_cast<uint64_t>(times));
      now.switch_time.repeat_since(then.switch_time, static_cast<uint64_t>(times));
    }
    part_.now_ += times * period;
    skipped_ += times * period;
    completed_ = flows_[watched_].completed;
  }

  // Periods until the duration, a stop, or a flow's last message could make a difference.
  int64_t count_periods(Time period) const {
    int64_t times = (part_.run_.duration - part_.now_) / period;
    const Time ahead = furthest_ahead();
    for (size_t i = 0; i < flows_.size(); ++i) {
      const Flow& flow = flows_[i];
      const int64_t posted = flow.posted, gained = posted - kept_posted_[i];
      if (gained > 0) {
        const int64_t most = flow.spec.messages < 0 ? INT64_MAX : flow.spec.messages;
        times = std::min(times, (most - 1 - posted) / gained);
      }
      if (flow.spec.stop > kept_now_ && flow.spec.stop != kNever) {
        const Time room = flow.spec.stop - ahead - part_.now_;
        times = std::min(times, room < 0 ? 0 : room / period);
      }
    }
    return times;
  }

  // No software posts for a time further ahead than this.
  Time furthest_ahead() const {
    const AdapterSpec& a = part_.adapter_;
    Time think = 0, interval = 0, slowest = 0;
    int64_t size = 0;
    for (const Flow& flow : flows_) {
      think = std::max(think, flow.spec.think);
      interval = std::max(interval, flow.spec.interval);
      size = std::max(size, flow.spec.size);
    }
    for (const Link& link : links_) slowest = std::max(slowest, link.ser(65536));
    const double transfers = part_.loopback_ps_per_byte_ + part_.fetch_ps_per_byte_;
    const auto moved = static_cast<Time>(static_cast<double>(size) * transfers);
    const Time fixed =
        a.post + a.poll + a.pcie_read + a.pcie_write + a.tx + 2 * a.rx + a.packet_gap;
    return 2 * (fixed + moved + think + interval + slowest);
  }

  Partition& part_;
  std::pmr::vector<Flow>& flows_;
  std::pmr::vector<Link>& links_;
  uint32_t watched_ = kNone;
  int64_t completed_ = 0;  // messages of the watched flow
  uint64_t looks_ = 0, patience_ = 1;
  std::vector<int64_t> kept_;
  std::vector<int64_t> kept_posted_;
  std::vector<GroupResult> kept_groups_;
  Time kept_now_ = 0;
  std::vector<Event> events_;  // of the state that was visited last
  Time skipped_ = 0;
};

}  // namespace weft::packet
