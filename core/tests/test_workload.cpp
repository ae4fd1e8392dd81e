// Workloads: order of operations, matching, the LogGOP network beside published times, and ranks on
// hosts in several threads.
#include <algorithm>
#include <memory>
#include <queue>
#include <vector>

#include "base/rng.hpp"
#include "check.hpp"
#include "packet/simulation.hpp"
#include "test_packet_fabric.hpp"
#include "workload/loggop.hpp"
#include "workload/replay.hpp"

using weft::Rng;
using namespace weft::workload;

namespace {

// Adds operations rank by rank.
class Builder {
 public:
  explicit Builder(uint32_t ranks) {
    ops.ranks = ranks;
    ops.dependency_start.push_back(0);
  }
  uint32_t add(Kind kind, uint32_t rank, uint32_t peer, int64_t amount,
               const std::vector<uint32_t>& after = {}, uint8_t on_start = 0, uint32_t tag = 0) {
    ops.kind.push_back(kind);
    ops.rank.push_back(rank);
    ops.peer.push_back(peer);
    ops.tag.push_back(tag);
    ops.amount.push_back(amount);
    ops.cpu.push_back(0);
    for (const uint32_t before : after) {
      ops.dependency.push_back(before);
      ops.on_start.push_back(on_start);
    }
    ops.dependency_start.push_back(static_cast<uint32_t>(ops.dependency.size()));
    return ops.size() - 1;
  }
  Operations& done() {
    ops.rank_start.assign(ops.ranks + 1, 0);
    for (const uint32_t rank : ops.rank) ++ops.rank_start[rank + 1];
    for (uint32_t r = 0; r < ops.ranks; ++r) ops.rank_start[r + 1] += ops.rank_start[r];
    return ops;
  }
  Operations ops;
};

// A network in which each message takes `latency`, and is sent at once.
class Wire : public Network {
 public:
  explicit Wire(Time latency) : latency_(latency) {}
  void post(uint32_t send, Time now) override {
    replay->sent(send, now);
    replay->arrived(send, now + latency_);
  }
  void wake(uint32_t rank, Time when) override { events_.push({when, number_++, rank}); }
  void run() {
    replay->start();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      CHECK(event.time >= now_);
      now_ = event.time;
      replay->advance(event.rank, now_);
    }
  }
  Replay* replay = nullptr;

 private:
  struct Event {
    Time time;
    uint64_t number;
    uint32_t rank;
    bool operator<(const Event& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };
  Time latency_, now_ = 0;
  uint64_t number_ = 0;
  std::priority_queue<Event> events_;
};

std::vector<Time> replay_over(Time latency, const Operations& ops, Time begin = 0) {
  Wire wire(latency);
  Replay replay(ops, std::vector<Time>(ops.ranks, begin), wire);
  wire.replay = &replay;
  wire.run();
  std::vector<Time> times;
  for (uint32_t rank = 0; rank < ops.ranks; ++rank) times.push_back(replay.finished(rank));
  return times;
}

}  // namespace

// Compute 10, send, 5 of flight, compute 20, send back: 10 + 5 + 20 + 5.
TEST(a_ping_pong_with_computations_takes_their_sum_and_two_flights) {
  Builder b(2);
  const uint32_t work = b.add(Kind::kCompute, 0, 0, 10);
  b.add(Kind::kSend, 0, 1, 1, {work});
  b.add(Kind::kReceive, 0, 1, 1);
  const uint32_t got = b.add(Kind::kReceive, 1, 0, 1);
  const uint32_t answer = b.add(Kind::kCompute, 1, 0, 20, {got});
  b.add(Kind::kSend, 1, 0, 1, {answer});
  const std::vector<Time> times = replay_over(5, b.done(), 100);
  CHECK_EQ(times[0], 140);
  CHECK_EQ(times[1], 135);
}

// Two computations of one processor follow each other; one that waits for the second's start only
// begins with it.
TEST(a_dependency_on_the_start_waits_for_the_processor_but_not_for_the_end) {
  Builder b(1);
  b.add(Kind::kCompute, 0, 0, 10);
  const uint32_t second = b.add(Kind::kCompute, 0, 0, 10);
  b.add(Kind::kCompute, 0, 0, 1, {second}, 1);
  b.done().cpu[2] = 1;
  CHECK_EQ(replay_over(1, b.ops)[0], 20);
  b.ops.on_start[0] = 0;
  CHECK_EQ(replay_over(1, b.ops)[0], 21);
}

TEST(messages_of_a_channel_match_receives_in_order_and_other_tags_do_not) {
  Builder b(2);
  const uint32_t first = b.add(Kind::kSend, 0, 1, 1, {}, 0, 7);
  const uint32_t wait = b.add(Kind::kCompute, 0, 0, 50, {first});
  b.add(Kind::kSend, 0, 1, 1, {wait}, 0, 8);
  const uint32_t late = b.add(Kind::kReceive, 1, 0, 1, {}, 0, 8);
  const uint32_t early = b.add(Kind::kReceive, 1, 0, 1, {}, 0, 7);
  Wire wire(5);
  Replay replay(b.done(), {0, 0}, wire);
  wire.replay = &replay;
  wire.run();
  CHECK_EQ(replay.progress().ended(early), 5);
  CHECK_EQ(replay.progress().ended(late), 55);
}

TEST(a_rank_without_operations_is_done_when_it_begins) {
  Builder b(2);
  b.add(Kind::kCompute, 0, 0, 3);
  CHECK_EQ(replay_over(1, b.done(), 4)[1], 4);
}

TEST(a_cycle_is_named_by_an_operation_on_it) {
  Builder b(1);
  const uint32_t root = b.add(Kind::kCompute, 0, 0, 1);
  const uint32_t one = b.add(Kind::kCompute, 0, 0, 1, {root, 2});
  const uint32_t two = b.add(Kind::kCompute, 0, 0, 1, {one});
  b.add(Kind::kCompute, 0, 0, 1, {two});
  const uint32_t on_cycle = find_cycle(b.done());
  CHECK(on_cycle == one || on_cycle == two);
  b.ops.dependency[1] = root;
  CHECK_EQ(find_cycle(b.ops), kNone);
}

TEST(a_send_without_receive_is_found) {
  Builder b(2);
  b.add(Kind::kSend, 0, 1, 1, {}, 0, 3);
  b.add(Kind::kSend, 0, 1, 1, {}, 0, 3);
  b.add(Kind::kReceive, 1, 0, 1, {}, 0, 3);
  const Unmatched unmatched = find_unmatched(b.done());
  CHECK_EQ(unmatched.sends, 2u);
  CHECK_EQ(unmatched.receives, 1u);
  CHECK_EQ(unmatched.tag, 3u);
  CHECK_EQ(unmatched.destination, 1u);
}

// Random graphs with random messages between ranks: every operation ends after all it waits for,
// a receive not before its message can be there, and all end, as receives come in rank order of
// steps.
TEST(every_operation_of_a_random_workload_ends_after_what_it_waits_for) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    const uint32_t ranks = 2 + static_cast<uint32_t>(rng.next() % 5);
    const uint32_t steps = 1 + static_cast<uint32_t>(rng.next() % 20);
    Builder b(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      std::vector<uint32_t> all;
      for (uint32_t step = 0; step < steps; ++step) {
        std::vector<uint32_t> after;
        for (const uint32_t before : all) {
          if (rng.next() % 4 == 0) after.push_back(before);
        }
        const auto on_start = static_cast<uint8_t>(rng.next() % 2);
        const uint32_t next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
        const auto time = static_cast<int64_t>(rng.next() % 100);
        all.push_back(b.add(Kind::kCompute, rank, 0, time, after, on_start));
        all.push_back(b.add(Kind::kSend, rank, next, 1, {all.back()}, 0, step));
        if (step > 0) all.push_back(b.add(Kind::kReceive, rank, last, 1, {}, 0, step - 1));
      }
      b.add(Kind::kReceive, rank, (rank + ranks - 1) % ranks, 1, {}, 0, steps - 1);
    }
    Wire wire(7);
    Replay replay(b.done(), std::vector<Time>(ranks, 0), wire);
    wire.replay = &replay;
    wire.run();
    CHECK_EQ(find_cycle(b.ops), kNone);
    CHECK_EQ(find_unmatched(b.ops).sends, 0u);
    for (uint32_t rank = 0; rank < ranks; ++rank) CHECK(replay.is_done(rank));
    for (uint32_t i = 0; i < b.ops.size(); ++i) {
      const Time duration = b.ops.kind[i] == Kind::kCompute ? b.ops.amount[i] : 0;
      for (uint32_t d = b.ops.dependency_start[i]; d < b.ops.dependency_start[i + 1]; ++d) {
        if (b.ops.on_start[d]) continue;
        CHECK(replay.progress().ended(i) >=
              replay.progress().ended(b.ops.dependency[d]) + duration);
      }
    }
  }
}

namespace {

const LogGop kReadme{2500, 1500, 1000, 6, 0, 65535};

}  // namespace

// LogGOPSim's README: a binomial reduce of 1,024 B over 8 ranks. Rank r receives from r + 2^k for
// each 2^k above its highest bit, the largest first, and then sends to its parent.
TEST(a_binomial_reduce_takes_the_times_that_loggopsim_prints) {
  Builder b(8);
  for (uint32_t rank = 0; rank < 8; ++rank) {
    std::vector<uint32_t> received;
    uint32_t above = 1;
    while (above <= rank) above *= 2;
    for (uint32_t step = 4; step >= above; step /= 2) {
      if (rank + step < 8) received.push_back(b.add(Kind::kReceive, rank, rank + step, 1024));
    }
    if (rank > 0) b.add(Kind::kSend, rank, rank - above / 2, 1024, received);
  }
  const std::vector<Time> times = run_loggop(b.done(), kReadme).rank;
  const std::vector<Time> published{34914, 24776, 13138, 13138, 1500, 1500, 1500, 1500};
  for (size_t rank = 0; rank < 8; ++rank) CHECK_EQ(times[rank], published[rank]);
}

// n messages of s bytes from one rank leave every max(g + (s-1)G, o + (s-1)O); the last arrives
// o + L after it left and takes o + (s-1)·max(G, O).
TEST(a_burst_between_two_ranks_is_paced_by_the_slower_of_adapter_and_processor) {
  for (const LogGop p : {kReadme, LogGop{100, 10, 500, 1, 0}, LogGop{100, 900, 5, 1, 3}}) {
    Builder b(2);
    for (int i = 0; i < 10; ++i) b.add(Kind::kSend, 0, 1, 101);
    for (int i = 0; i < 10; ++i) b.add(Kind::kReceive, 1, 0, 101);
    const Time adapter = p.g + static_cast<Time>(100 * p.G);
    const Time sender = p.o + static_cast<Time>(100 * p.O);
    const Time receiver = p.o + static_cast<Time>(100 * std::max(p.G, p.O));
    const Time gap = std::max(adapter, sender), taken = std::max(adapter, receiver);
    const std::vector<Time> times = run_loggop(b.done(), p).rank;
    CHECK_EQ(times[0], 9 * gap + sender);
    CHECK_EQ(times[1], p.o + p.L + 9 * std::max(gap, taken) + receiver);
  }
}

// Above S a send ends when its receive is there: 5,000 later than its message.
TEST(a_rendezvous_send_ends_when_the_receive_takes_its_message) {
  Builder b(2);
  const uint32_t send = b.add(Kind::kSend, 0, 1, 101);
  const uint32_t busy = b.add(Kind::kCompute, 1, 0, 20'000);
  b.add(Kind::kReceive, 1, 0, 101, {busy});
  LogGop p = kReadme;
  CHECK_EQ(run_loggop(b.done(), p).ended[send], p.o);
  p.S = 100;
  const LogGopTimes times = run_loggop(b.ops, p);
  CHECK_EQ(times.rank[0], times.ended[send]);
  CHECK(times.ended[send] >= 20'000);
}

namespace {

using weft::packet::FlowSpec;
using weft::packet::Pattern;
using weft::packet::RunSpec;
using weft::packet::Simulation;
using weft::packet::Status;
using weft::packet::WorkloadSpec;

// Ranks of `spec` on hosts, and a flow for each pair of hosts that talk.
std::vector<FlowSpec> make_flows(WorkloadSpec& spec, const std::vector<uint32_t>& rank_host) {
  std::vector<FlowSpec> flows;
  const Operations& ops = spec.operations;
  spec.host = rank_host;
  spec.traffic.assign(ops.ranks, 0);
  spec.flow.assign(ops.size(), kNone);
  for (uint32_t i = 0; i < ops.size(); ++i) {
    const uint32_t src = rank_host[ops.rank[i]], dst = rank_host[ops.peer[i]];
    if (ops.kind[i] != Kind::kSend || src == dst) continue;
    auto flow = std::find_if(flows.begin(), flows.end(),
                             [&](const FlowSpec& f) { return f.src == src && f.dst == dst; });
    if (flow == flows.end()) {
      flows.emplace_back();
      flow = flows.end() - 1;
      flow->src = src;
      flow->dst = dst;
      flow->pattern = Pattern::kWorkload;
      flow->messages = 0;
    }
    ++flow->messages;
    flow->size = std::max(flow->size, ops.amount[i]);
    spec.flow[i] = static_cast<uint32_t>(flow - flows.begin());
  }
  return flows;
}

// Steps in which every rank computes, sends to a rank after it and receives from one before it.
void add_random_steps(Builder& b, Rng& rng) {
  const uint32_t ranks = b.ops.ranks, steps = 1 + static_cast<uint32_t>(rng.next() % 6);
  std::vector<uint32_t> distance(steps);
  for (uint32_t& d : distance) d = 1 + static_cast<uint32_t>(rng.next() % (ranks - 1));
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<uint32_t> before;
    for (uint32_t step = 0; step < steps; ++step) {
      const uint32_t d = distance[step];
      const auto size = static_cast<int64_t>(rng.next() % 10'000);
      const auto time = static_cast<Time>(rng.next() % 2'000'000);
      const uint32_t work = b.add(Kind::kCompute, rank, 0, time, before);
      b.add(Kind::kSend, rank, (rank + d) % ranks, size, {work}, 0, step);
      before = {b.add(Kind::kReceive, rank, (rank + ranks - d) % ranks, size, before, 0, step)};
    }
  }
}

}  // namespace

// A row of switches, each with two hosts: every switch is a partition of its own.
TEST(a_workload_on_hosts_ends_at_the_same_times_on_any_number_of_threads) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Rng rng(seed);
    weft::test::SmallFabric fabric;
    std::vector<uint32_t> nodes;
    for (int i = 0; i < 8; ++i) nodes.push_back(fabric.add_host());
    for (int i = 0; i < 4; ++i) {
      nodes.push_back(fabric.add_switch());
      if (i > 0) fabric.cable(nodes[8 + i - 1], nodes[8 + i], 100e9, 50'000);
      for (int h = 0; h < 2; ++h) fabric.cable(nodes[2 * i + h], nodes[8 + i], 100e9, 50'000);
    }
    fabric.route_shortest();
    Builder b(2 + static_cast<uint32_t>(rng.next() % 9));
    add_random_steps(b, rng);
    auto spec = std::make_shared<WorkloadSpec>();
    spec->operations = b.done();
    spec->begin.assign(b.ops.ranks, static_cast<Time>(rng.next() % 1000));
    std::vector<uint32_t> rank_host(b.ops.ranks);
    for (uint32_t& host : rank_host) host = static_cast<uint32_t>(rng.next() % 8);
    const std::vector<FlowSpec> flows = make_flows(*spec, rank_host);
    RunSpec run;
    run.seed = seed;
    run.duration = weft::packet::Time{1} << 50;
    run.partitioned_links = 0;
    std::vector<Time> first;
    for (const int threads : {1, 2, 3, 7}) {
      run.threads = threads;
      Simulation simulation(fabric.spec, flows, run, spec);
      CHECK(simulation.partitions() > 1);
      Status status = Status::kRunning;
      while (status == Status::kRunning) status = simulation.run(1000);
      CHECK(status == Status::kFinished);
      if (first.empty()) first = simulation.operations_ended();
      CHECK(first == simulation.operations_ended());
      CHECK(std::find(first.begin(), first.end(), kNever) == first.end());
    }
  }
}
