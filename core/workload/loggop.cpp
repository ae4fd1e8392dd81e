#include "workload/loggop.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <queue>

#include "workload/progress.hpp"

namespace weft::workload {

namespace {

class Run {
 public:
  Run(const Operations& ops, const LogGop& p)
      : ops_(ops), p_(p), progress_(ops), ready_(ops.size(), 0), received_(ops.size(), 0) {
    for (const uint8_t cpu : ops.cpu) cpus_ = std::max<uint32_t>(cpus_, cpu + 1u);
    cpu_free_.assign(size_t{ops.ranks} * cpus_, 0);
    send_free_.assign(ops.ranks, 0);
    receive_free_.assign(ops.ranks, 0);
  }

  LogGopTimes run() {
    for (uint32_t rank = 0; rank < ops_.ranks; ++rank) {
      progress_.begin(rank, [&](uint32_t i) { released_.push_back(i); });
      enqueue_released();
    }
    while (!queue_.empty()) {
      Event event = queue_.top();
      queue_.pop();
      step(event);
      enqueue_released();
    }
    LogGopTimes times{std::vector<Time>(ops_.ranks), progress_.ended()};
    for (uint32_t rank = 0; rank < ops_.ranks; ++rank) {
      const auto first = cpu_free_.begin() + static_cast<std::ptrdiff_t>(size_t{rank} * cpus_);
      times.rank[rank] = *std::max_element(first, first + cpus_);
    }
    return times;
  }

 private:
  struct Event {
    Time time;
    uint64_t sequence;  // kept when an event is put off
    uint32_t operation;
    bool is_message;  // of the send `operation`, at the receiver
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : sequence > other.sequence;
    }
  };

  Time& cpu_free(uint32_t rank, uint8_t cpu) { return cpu_free_[size_t{rank} * cpus_ + cpu]; }
  static Time per_byte(int64_t size, double cost) {
    return static_cast<Time>(
        std::llround(static_cast<double>(std::max<int64_t>(size - 1, 0)) * cost));
  }

  void step(Event event) {
    if (event.is_message) return receive_message(event);
    switch (ops_.kind[event.operation]) {
      case Kind::kSend:
        return send(event);
      case Kind::kReceive:
        return post_receive(event);
      case Kind::kCompute:
        return compute(event);
    }
  }

  void put_off(Event event, Time until) {
    event.time = until;
    queue_.push(event);
  }

  void compute(const Event& event) {
    const uint32_t i = event.operation;
    Time& cpu = cpu_free(ops_.rank[i], ops_.cpu[i]);
    if (cpu > event.time) return put_off(event, cpu);
    cpu = event.time + ops_.amount[i];
    start(i, event.time);
    end(i, cpu);
  }

  void send(const Event& event) {
    const uint32_t i = event.operation, rank = ops_.rank[i];
    const int64_t size = ops_.amount[i];
    Time& cpu = cpu_free(rank, ops_.cpu[i]);
    const Time free = std::max(cpu, send_free_[rank]);
    if (free > event.time) return put_off(event, free);
    cpu = event.time + p_.o + per_byte(size, p_.O);
    send_free_[rank] = event.time + p_.g + per_byte(size, p_.G);
    start(i, event.time);
    queue_.push({event.time + p_.o + p_.L, sequence_++, i, true});
    if (size <= p_.S) end(i, cpu);
  }

  void post_receive(const Event& event) {
    const uint32_t i = event.operation;
    start(i, event.time);
    const uint32_t message = progress_.post_receive(i);
    if (message == kNone) return;
    free_sender(message, event.time);
    end(i, std::max(event.time, received_[message]));
  }

  void receive_message(const Event& event) {
    const uint32_t i = event.operation, rank = ops_.peer[i];
    const int64_t size = ops_.amount[i];
    Time& cpu = cpu_free(rank, ops_.cpu[i]);
    const Time free = std::max(cpu, receive_free_[rank]);
    if (free > event.time) return put_off(event, free);
    cpu = event.time + p_.o + per_byte(size, std::max(p_.G, p_.O));
    receive_free_[rank] = event.time + p_.g + per_byte(size, p_.G);
    received_[i] = cpu;
    const uint32_t receive = progress_.arrive(i);
    if (receive == kNone) return;
    free_sender(i, event.time);
    end(receive, cpu);
  }

  void free_sender(uint32_t send, Time now) {
    if (ops_.amount[send] <= p_.S) return;
    const uint32_t rank = ops_.rank[send];
    Time& cpu = cpu_free(rank, ops_.cpu[send]);
    cpu = std::max(cpu, now);
    send_free_[rank] = std::max(send_free_[rank], now);
    end(send, now);
  }

  void start(uint32_t i, Time now) {
    progress_.for_each_after(i, true, [&](uint32_t next) { delay(next, now); });
    progress_.start(i, [&](uint32_t next) { released_.push_back(next); });
  }

  void end(uint32_t i, Time when) {
    progress_.for_each_after(i, false, [&](uint32_t next) { delay(next, when); });
    progress_.end(i, when, [&](uint32_t next) { released_.push_back(next); });
  }

  void delay(uint32_t i, Time until) { ready_[i] = std::max(ready_[i], until); }

  void enqueue_released() {
    std::sort(released_.begin(), released_.end(), [&](uint32_t a, uint32_t b) {
      if (ops_.rank[a] != ops_.rank[b]) return ops_.rank[a] < ops_.rank[b];
      return ops_.kind[a] != ops_.kind[b] ? ops_.kind[a] < ops_.kind[b] : a < b;
    });
    for (const uint32_t i : released_) {
      Time when = std::max(ready_[i], cpu_free(ops_.rank[i], ops_.cpu[i]));
      if (ops_.kind[i] == Kind::kSend) when = std::max(when, send_free_[ops_.rank[i]]);
      queue_.push({when, sequence_++, i, false});
    }
    released_.clear();
  }

  const Operations& ops_;
  const LogGop p_;
  Progress progress_;
  std::priority_queue<Event> queue_;
  uint64_t sequence_ = 0;
  uint32_t cpus_ = 1;
  std::vector<Time> cpu_free_;  // [rank][cpu]
  std::vector<Time> send_free_, receive_free_;
  std::vector<Time> ready_;     // the latest of an operation's dependencies
  std::vector<Time> received_;  // of a send: when its message has been received
  std::vector<uint32_t> released_;
};

}  // namespace

LogGopTimes run_loggop(const Operations& operations, const LogGop& parameters) {
  return Run(operations, parameters).run();
}

}  // namespace weft::workload
