// The loops over real sockets: what is sent arrives, counts agree, flags and broken peers end them.
#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <set>
#include <span>
#include <vector>

#include "base/clock.hpp"
#include "base/error.hpp"
#include "base/rng.hpp"
#include "check.hpp"
#include "pair.hpp"
#include "probe/loops.hpp"
#include "probe/payload.hpp"
#include "probe/sequence.hpp"

using namespace weft;
using namespace weft::probe;
using test::connected;
using test::Pair;
using transport::Config;

namespace {

Config config_of(const std::string& transport, uint32_t bytes, bool events = false) {
  Config config;
  config.transport = transport;
  config.send_bytes = config.receive_bytes = bytes;
  config.depth = 16;
  config.receive_depth = 64;
  config.events = events;
  return config;
}

RunSpec run_of(uint64_t count, uint32_t bytes, bool block = false) {
  RunSpec run;
  run.count = count;
  run.bytes = bytes;
  run.warmup = 3;
  run.validate = true;
  run.block = block;
  run.samples = 10;
  return run;
}

template <class Loop>
auto beside(Loop loop) {
  return std::async(std::launch::async, loop);
}

void ping_pong_over(const std::string& transport, bool block, uint32_t bytes) {
  Pair pair = connected(config_of(transport, bytes, block));
  StopFlag stop, other_stop;
  const RunSpec run = run_of(500, bytes, block);
  auto other = beside([&] { return echo(*pair.server, run, other_stop); });
  const LatencyResult result = ping_pong(*pair.client, run, stop);
  other_stop.set();
  CHECK_EQ(result.counts.sent, 500u);
  CHECK_EQ(result.counts.received + result.counts.lost, 500u);
  CHECK_EQ(result.latency.count(), result.counts.received);
  CHECK_EQ(result.counts.corrupted, 0u);
  CHECK_EQ(result.samples.size(), 10u);
  CHECK_EQ(result.counts.error, "");
  CHECK(result.counts.received > 490);
  CHECK(other.get().sent >= 500);
}

void stream_over(const std::string& transport, uint32_t bytes, uint32_t window, uint32_t list,
                 uint32_t signal_every) {
  Config config = config_of(transport, bytes);
  config.depth = window;
  config.receive_depth = 256;
  Pair pair = connected(config);
  StopFlag stop, other_stop;
  StreamSpec spec{run_of(2000, bytes), window, list, signal_every, 0};
  std::vector<Endpoint*> ours{pair.client.get()}, theirs{pair.server.get()};
  auto other = beside([&] { return sink(theirs, spec.run, other_stop); });
  const Counts sent = stream(ours, spec, stop);
  other_stop.finish_at(2003);
  const Counts received = other.get();
  CHECK_EQ(sent.sent, 2000u);
  CHECK_EQ(sent.bytes, uint64_t{2000} * bytes);
  CHECK_EQ(received.received + received.lost, 2000u);
  CHECK_EQ(received.corrupted, 0u);
  CHECK_EQ(received.duplicates, 0u);
  if (pair.client->is_reliable()) CHECK_EQ(received.lost, 0u);
}

}  // namespace

TEST(ping_pong_answers_every_message_intact_over_tcp) {
  for (uint32_t bytes : {1u, 64u, 70'000u})
    for (bool block : {false, true}) ping_pong_over("tcp", block, bytes);
}

TEST(ping_pong_over_udp_answers_or_counts_as_lost) {
  for (bool block : {false, true}) ping_pong_over("udp", block, 64);
}

TEST(a_stream_arrives_whole_whatever_the_window_list_and_signaling) {
  for (uint32_t window : {1u, 5u, 64u})
    for (uint32_t list : {1u, 4u, 64u})
      for (uint32_t signal_every : {1u, 3u, 64u})
        stream_over("tcp", 100, window, list, signal_every);
  stream_over("tcp", 100'000, 4, 2, 2);
}

TEST(datagrams_are_received_or_counted_as_lost) {
  stream_over("udp", 64, 16, 1, 1);
  stream_over("udp", 1400, 64, 16, 4);
}

TEST(a_receiver_that_gathers_datagrams_gets_each_and_ends_at_its_time_when_none_come) {
  Pair pair = connected(config_of("udp", 64, true));
  std::array<transport::Completion, 8> completions;
  uint64_t sent = 0, received = 0;
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 4; ++i, ++sent)
      CHECK_EQ(pair.client->post(std::array{transport::Work{.bytes = 64}}), 1u);
    while (pair.client->poll(completions) > 0) continue;
    for (int look = 0; look < 100 && received < sent; ++look) {
      const uint32_t n = pair.server->gather(completions, 1'000'000'000, true);
      for (uint32_t i = 0; i < n; ++i) pair.server->release(completions[i].id);
      received += n;
    }
    CHECK_EQ(received, sent);
  }
  const int64_t start = raw_ns();
  CHECK_EQ(pair.server->gather(completions, 1'300'000, true), 0u);
  CHECK(raw_ns() - start >= 1'300'000);
}

TEST(both_directions_of_a_duplex_deliver_everything) {
  Pair pair = connected(config_of("tcp", 3000));
  StopFlag stop, other_stop;
  const StreamSpec spec{run_of(1000, 3000), 8, 2, 2, 0};
  std::vector<Endpoint*> ours{pair.client.get()}, theirs{pair.server.get()};
  auto other = beside([&] { return duplex(theirs, spec, other_stop); });
  const DuplexResult here = duplex(ours, spec, stop);
  const DuplexResult there = other.get();
  CHECK_EQ(here.sent.sent, 1000u);
  CHECK_EQ(there.sent.sent, 1000u);
  CHECK_EQ(here.received.received, 1000u);
  CHECK_EQ(there.received.received, 1000u);
  CHECK_EQ(here.received.corrupted + there.received.corrupted, 0u);
}

// The least of many: others may hold up this process, never hurry it.
TEST(a_short_wait_on_a_socket_ends_at_its_time_and_not_at_a_tick) {
  constexpr int64_t kWait = 1'300'000;
  for (const char* transport : {"tcp", "udp"}) {
    Pair pair = connected(config_of(transport, 64, true));
    std::array<transport::Completion, 4> completions;
    int64_t least = 1'000'000'000;
    for (int i = 0; i < 20; ++i) {
      const int64_t start = raw_ns();
      CHECK_EQ(pair.client->wait(completions, kWait), 0u);
      least = std::min(least, raw_ns() - start);
    }
    CHECK(least >= kWait);
    CHECK(least < kWait + 500'000);
  }
}

TEST(an_open_loop_that_sleeps_is_not_late_by_its_own_timer) {
  for (const char* transport : {"tcp", "udp"}) {
    Pair pair = connected(config_of(transport, 64, true));
    StopFlag stop, other_stop;
    PacedSpec spec;
    spec.run = run_of(20, 64, true);
    spec.rate = 200;
    auto other = beside([&] { return echo(*pair.server, spec.run, other_stop); });
    int64_t least = 1'000'000'000'000;
    for (int i = 0; i < 5 && least >= 500'000'000; ++i) {
      const PacedResult result = paced(*pair.client, spec, stop);
      CHECK_EQ(result.counts.received, 20u);
      // It slept: of 5 ms between messages it polls for 0.2.
      CHECK(result.counts.cpu.user_ns + result.counts.cpu.system_ns < result.counts.elapsed_ns / 4);
      least = std::min(least, result.lateness.quantile(0.5));
    }
    CHECK(least < 500'000'000);
    other_stop.set();
    other.get();
  }
}

TEST(a_sleeping_ping_pong_gives_a_datagram_up_at_its_timeout) {
  Pair pair = connected(config_of("udp", 64, true));
  StopFlag stop;
  RunSpec run = run_of(5, 64, true);
  run.warmup = 0;
  run.loss_timeout_ns = 3'000'000;
  int64_t least = 1'000'000'000'000;  // of several tries: a busy machine wakes sleepers late
  for (int i = 0; i < 5 && least >= 100'000'000; ++i) {
    const LatencyResult result = ping_pong(*pair.client, run, stop);
    CHECK_EQ(result.counts.lost, 5u);
    CHECK(result.counts.elapsed_ns >= 15'000'000);
    least = std::min<int64_t>(least, result.counts.elapsed_ns);
  }
  CHECK(least < 100'000'000);
}

TEST(a_paced_stream_takes_the_time_its_rate_implies) {
  Pair pair = connected(config_of("tcp", 64));
  StopFlag stop, other_stop;
  StreamSpec spec{run_of(200, 64), 4, 1, 1, 2000};  // 200 messages at 2000/s: 100 ms
  std::vector<Endpoint*> ours{pair.client.get()}, theirs{pair.server.get()};
  auto other = beside([&] { return sink(theirs, spec.run, other_stop); });
  const Counts sent = stream(ours, spec, stop);
  other_stop.finish_at(203);
  other.get();
  CHECK(sent.elapsed_ns >= 99'000'000);
}

TEST(a_transfer_is_acknowledged_to_its_last_message) {
  for (uint32_t outstanding : {1u, 3u, 16u}) {
    Config config = config_of("tcp", 20'000);
    config.receive_bytes = 8;
    Pair pair = connected(config);
    StopFlag stop, other_stop;
    const TransferSpec spec{run_of(300, 20'000), outstanding, 2, 1};
    auto other = beside([&] { return transfer_receive(*pair.server, spec, other_stop); });
    const Counts sent = transfer_send(*pair.client, spec, stop);
    other_stop.set();
    const Counts received = other.get();
    CHECK_EQ(sent.sent, 300u);
    CHECK_EQ(sent.error, "");
    CHECK_EQ(received.received, 300u);
    CHECK_EQ(received.corrupted, 0u);
    // The time runs from the end of the first message.
    CHECK_EQ(received.bytes, 299u * 20'000u);
    CHECK(received.elapsed_ns > 0);
  }
}

TEST(a_loop_whose_peer_is_silent_ends_by_its_flag) {
  Pair pair = connected(config_of("tcp", 64));
  StopFlag stop;
  const RunSpec run = run_of(10, 64);
  auto loop = beside([&] { return ping_pong(*pair.client, run, stop); });
  stop.set();
  const LatencyResult result = loop.get();
  CHECK(result.counts.stopped);
  CHECK_EQ(result.latency.count(), 0u);
}

TEST(a_loop_whose_peer_closed_ends_with_the_reason_and_what_it_has) {
  Pair pair = connected(config_of("tcp", 64));
  StopFlag stop, other_stop;
  RunSpec run = run_of(0, 64);
  run.duration_ns = 20'000'000'000;
  auto loop = beside([&] { return ping_pong(*pair.client, run, stop); });
  {
    auto other = beside([&] { return echo(*pair.server, run, other_stop); });
    while (other_stop.done() < 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    other_stop.set();
  }
  pair.server.reset();
  const LatencyResult result = loop.get();
  CHECK(result.counts.stopped);
  CHECK(result.counts.error.find("did") != std::string::npos);
  CHECK(result.latency.count() >= 90);
}

TEST(a_sequence_tells_late_from_repeated_as_a_set_would) {
  Rng rng(7);
  for (int round = 0; round < 50; ++round) {
    Sequence sequence;
    std::set<uint64_t> seen;
    uint64_t base = 0;
    for (int i = 0; i < 2000; ++i) {
      base += rng.next() % 3;
      const uint64_t back = rng.next() % 40;
      const uint64_t number = base > back ? base - back : base;
      const uint64_t highest = seen.empty() ? 0 : *seen.rbegin() + 1;
      const auto arrival = sequence.take(number);
      const bool is_new = seen.insert(number).second;
      CHECK((arrival == Sequence::Arrival::repeated) == !is_new);
      CHECK((arrival == Sequence::Arrival::in_order) == (number >= highest));
    }
    CHECK_EQ(sequence.unique(), seen.size());
  }
}

// The window holds the last 4096 numbers: the oldest of them can still come late, the one before
// it is forgotten and counts as repeated.
TEST(a_number_at_the_edge_of_the_window_is_late_and_one_before_it_is_repeated) {
  for (const uint64_t jump : {4096u, 4095u, 10'000u}) {
    Sequence sequence;
    CHECK(sequence.take(0) == Sequence::Arrival::in_order);
    CHECK(sequence.take(jump) == Sequence::Arrival::in_order);
    CHECK(sequence.take(jump - 4095) ==
          (jump == 4095 ? Sequence::Arrival::repeated : Sequence::Arrival::late));
    if (jump > 4095) CHECK(sequence.take(jump - 4096) == Sequence::Arrival::repeated);
  }
}

// The clock of a receiver starts when the first message has come, so its bytes are not counted.
TEST(the_bytes_of_the_first_arrival_are_not_counted_and_those_of_the_warm_up_neither) {
  for (const uint64_t count : {1u, 100u}) {
    Pair pair = connected(config_of("tcp", 64));
    StopFlag stop, other_stop;
    StreamSpec spec{run_of(count, 64), 4, 1, 1, 2000};
    std::vector<Endpoint*> ours{pair.client.get()}, theirs{pair.server.get()};
    auto other = beside([&] { return sink(theirs, spec.run, other_stop); });
    stream(ours, spec, stop);
    other_stop.finish_at(count + 3);
    const Counts received = other.get();
    CHECK_EQ(received.received, count);
    CHECK(received.bytes <= 64 * (count - 1));
    CHECK_EQ(received.bytes % 64, 0u);
    if (count > 1) CHECK(received.bytes > 0);
  }
}

TEST(messages_lost_while_warming_up_are_not_counted_and_three_of_them_end_it) {
  Pair pair = connected(config_of("udp", 64));
  StopFlag stop, other_stop;
  RunSpec run = run_of(20, 64);
  run.warmup = 100;
  run.loss_timeout_ns = 20'000'000;
  auto loop = beside([&] { return ping_pong(*pair.client, run, stop); });
  std::array<transport::Completion, 4> completions;
  uint64_t dropped = 0;
  while (dropped < 3) {
    const uint32_t n = pair.server->poll(completions);
    for (const auto& completion : std::span(completions).first(n)) {
      pair.server->release(completion.id);
      ++dropped;
    }
  }
  auto other = beside([&] { return echo(*pair.server, run, other_stop); });
  const LatencyResult result = loop.get();
  other_stop.set();
  CHECK_EQ(result.counts.sent, 20u);
  CHECK_EQ(result.counts.received, result.latency.count());
  CHECK_EQ(result.counts.received + result.counts.lost, 20u);
  CHECK(result.counts.lost < 3);
  CHECK(other.get().sent < 100);  // the warm-up has ended
}

TEST(every_changed_byte_of_a_filled_message_is_noticed) {
  std::vector<std::byte> message(300);
  fill(message.data(), 300, 12345);
  CHECK(is_filled(message.data(), 300, 12345));
  CHECK(!is_filled(message.data(), 300, 12346));
  for (auto& byte : message) {
    byte ^= std::byte{1};
    CHECK(!is_filled(message.data(), 300, 12345));
    byte ^= std::byte{1};
  }
}

TEST(sizes_that_a_transport_cannot_carry_are_refused_when_it_is_opened) {
  CHECK_THROWS(Error, transport::open(config_of("udp", 65'508)));
  CHECK_THROWS(Error, transport::open(config_of("tcp", 0)));
  CHECK_THROWS(Error, transport::open(config_of("carrier-pigeon", 64)));
  Config config = config_of("tcp", 64);
  config.traffic_class = 256;
  config.server = true;
  CHECK_THROWS(Error, transport::open(config));
}
