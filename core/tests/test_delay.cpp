#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "probe/payload.hpp"
#include "tests/check.hpp"
#include "transport/delay/adapter.hpp"
#include "transport/delay/endpoint.hpp"

namespace weft::transport {
namespace {

std::vector<int64_t> draws(const std::string& text, int n) {
  const auto distribution = DelayDistribution::parse("test", text);
  Rng rng(7);
  std::vector<int64_t> all;
  for (int i = 0; i < n; ++i) all.push_back(distribution.draw(rng));
  return all;
}

double mean_of(const std::vector<int64_t>& values) {
  double sum = 0;
  for (const int64_t value : values) sum += static_cast<double>(value);
  return sum / static_cast<double>(values.size());
}

int64_t median_of(std::vector<int64_t> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<long>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

std::unique_ptr<Endpoint> connected(const Config& config, bool loopback = false) {
  auto endpoint = open_delay(config);
  endpoint->connect(loopback ? endpoint->address() : "peer", 1000);
  return endpoint;
}

Config quick() {
  Config config;
  config.transport = "delay";
  config.device = "test";
  config.delay.wire = "100 ns";
  return config;
}

// All completions until `n` have come.
std::vector<Completion> collect(Endpoint& endpoint, size_t n) {
  std::vector<Completion> all;
  std::array<Completion, 4> some;
  while (all.size() < n) {
    const uint32_t got = endpoint.wait(some, 2'000'000'000);
    if (got == 0) break;
    all.insert(all.end(), some.begin(), some.begin() + got);
  }
  return all;
}

}  // namespace

TEST(delay_distributions_have_the_moments_of_their_definitions) {
  CHECK(draws("1.5 us", 3) == std::vector<int64_t>(3, 1'500'000));
  CHECK(std::abs(mean_of(draws("uniform(5 us, 15 us)", 100'000)) - 10e6) < 0.05e6);
  CHECK(std::abs(mean_of(draws("exponential(10 us)", 100'000)) - 10e6) < 0.2e6);
  // Median of a lognormal; its mean is median * exp(sigma^2 / 2).
  const auto lognormal = draws("lognormal(10 us, 0.5)", 100'000);
  CHECK(std::abs(static_cast<double>(median_of(lognormal)) - 10e6) < 0.1e6);
  CHECK(std::abs(mean_of(lognormal) - 10e6 * std::exp(0.125)) < 0.1e6);
  const auto mixed = draws("2 us + 0.25 * 8 us", 100'000);
  CHECK(std::abs(mean_of(mixed) - 4e6) < 0.1e6);
  for (const char* text : {"3 us", "uniform(1 us, 2 us)", "2 us + 0.25 * exponential(8 us)",
                           "lognormal(10 us, 0.5)"}) {
    const double expected = DelayDistribution::parse("test", text).mean();
    CHECK(std::abs(mean_of(draws(text, 200'000)) / expected - 1) < 0.02);
  }
}

TEST(delay_distributions_that_cannot_be_read_are_refused) {
  for (const char* text :
       {"", "10", "10 parsecs", "-1 us", "uniform(2 us)", "uniform(2 us, 1 us)", "exponential(1 us",
        "normal(1 us, 1)", "1 us +", "1 us 2 us", "2 * 1 us", "nan us", "inf us"})
    CHECK_THROWS(Error, DelayDistribution::parse("test", text));
}

TEST(delay_wire_moves_only_outside_its_stalls) {
  const DelayWire wire(100, 10);  // stands still in [90, 100), [190, 200), ...
  CHECK_EQ(wire.arrival(0, 50), 50);
  CHECK_EQ(wire.arrival(0, 89), 89);
  CHECK_EQ(wire.arrival(80, 10), 100);
  CHECK_EQ(wire.arrival(80, 15), 105);
  CHECK_EQ(wire.arrival(95, 3), 103);
  CHECK_EQ(wire.arrival(95, 0), 100);
  CHECK_EQ(wire.arrival(0, 200), 220);
  CHECK_EQ(wire.arrival(150, 90), 250);
  CHECK_EQ(DelayWire(0, 0).arrival(7, 5), 12);
}

TEST(delay_posts_share_the_bus_and_the_adapter) {
  DelayConfig config;
  config.host_post = "exponential(1 us)";
  config.adapter_ns = 10;
  config.rate_gbps = 8;  // 1 ns per byte
  DelayAdapter adapter(config);
  const int64_t first = adapter.leaves(0, 100);
  // On its way with the first: the same delay, and then the adapter is busy for both.
  CHECK_EQ(adapter.leaves(0, 100), first + 110'000);
  const int64_t much_later = first + 1'000'000'000;
  const int64_t third = adapter.leaves(much_later, 0);
  CHECK(third - much_later != first - 100'000);
}

TEST(delay_truth_is_the_sum_of_what_was_injected) {
  Config config = quick();
  config.delay.host_post = "1 us";
  config.delay.adapter_ns = 2000;
  config.delay.wire = "3 us";
  config.delay.receive_ns = 400;
  config.delay.remote_host = "5 us";
  config.delay.remote_memory = "6 us";
  config.delay.host_complete = "7 us";
  config.delay.loopback = "100 ns";
  config.delay.samples = 2;
  config.remote_bytes = 64;
  config.depth = 4;
  auto endpoint = connected(config);
  Work work;
  work.bytes = 64;
  CHECK_EQ(endpoint->post({&work, 1}), 1u);
  CHECK_EQ(collect(*endpoint, 2).size(), size_t{2});
  work.op = Op::write;
  CHECK_EQ(endpoint->post({&work, 1}), 1u);
  CHECK_EQ(collect(*endpoint, 1).size(), size_t{1});
  const DelayTruth& truth = *delay_truth(*endpoint);
  CHECK(truth.wire_rtt.samples == std::vector<int64_t>{6'000'000, 6'000'000});
  CHECK(truth.completion.samples == std::vector<int64_t>{16'800'000, 22'800'000});
  CHECK(truth.echo.samples == std::vector<int64_t>{21'800'000});
  CHECK_EQ(truth.messages, 2u);

  auto loopback = connected(config, true);
  work.op = Op::send;
  loopback->post({&work, 1});
  CHECK_EQ(collect(*loopback, 2).size(), size_t{2});
  CHECK(delay_truth(*loopback)->completion.samples == std::vector<int64_t>{10'900'000});
}

TEST(delay_tells_when_the_program_was_away) {
  Config config = quick();
  config.delay.peer = "sink";
  config.delay.samples = 4;
  auto endpoint = connected(config);
  Work work;
  work.bytes = 8;
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  // After a hand-over, whether a poll or a post comes next; before a post.
  for (int message = 0; message < 2; ++message) {
    endpoint->post({&work, 1});
    CHECK_EQ(collect(*endpoint, 1).size(), size_t{1});
    sleep();
    if (message == 0) {
      std::array<Completion, 4> none;
      CHECK_EQ(endpoint->poll(none), 0u);
      sleep();
    }
  }
  endpoint->post({&work, 1});
  CHECK_EQ(collect(*endpoint, 1).size(), size_t{1});
  const DelayTruth& truth = *delay_truth(*endpoint);
  CHECK_EQ(truth.completion_away.samples.size(), size_t{3});
  for (int message = 0; message < 2; ++message) {
    CHECK(truth.completion_away.samples[message] >= 2'000'000'000);
    CHECK(truth.turnaround.samples[message + 1] >= 2'000'000'000);
  }
  CHECK_EQ(truth.turnaround.samples[0], 0);
  CHECK_EQ(truth.completion_away.samples[2], 0);  // no call followed
}

TEST(delay_echoes_carry_the_bytes_sent_in_order) {
  Config config = quick();
  config.depth = config.receive_depth = 8;
  config.delay.wire = "lognormal(1 us, 1)";
  auto endpoint = connected(config);
  constexpr uint32_t kMessages = 1000;
  uint32_t sent = 0, echoed = 0, finished = 0;
  std::array<Completion, 8> some;
  while (echoed < kMessages || finished < kMessages) {
    Work work;
    work.slot = sent % 8;
    work.bytes = 4;
    work.id = sent;
    if (sent < kMessages && sent - finished < 8 && sent - echoed < 8) {
      std::memcpy(endpoint->send_slot(work.slot), &sent, 4);
      sent += endpoint->post({&work, 1});
    }
    const uint32_t n = endpoint->poll(some);
    for (uint32_t i = 0; i < n; ++i) {
      if (some[i].kind == Completion::sent) {
        CHECK_EQ(some[i].id, uint64_t{finished++});
        continue;
      }
      uint32_t number;
      std::memcpy(&number, endpoint->receive_slot(some[i].id), 4);
      CHECK_EQ(number, echoed++);
      endpoint->release(some[i].id);
    }
  }
  CHECK_EQ(delay_truth(*endpoint)->echo.histogram.count(), uint64_t{kMessages});
}

TEST(delay_windows_can_be_written_read_and_changed_atomically) {
  Config config = quick();
  config.remote_bytes = 128;
  auto endpoint = connected(config);
  const auto perform = [&](Work work) {
    endpoint->post({&work, 1});
    CHECK_EQ(collect(*endpoint, 1).size(), size_t{1});
    uint64_t value;
    std::memcpy(&value, endpoint->send_slot(0), 8);
    return value;
  };
  const uint64_t seven = 7;
  std::memcpy(endpoint->send_slot(0), &seven, 8);
  perform({.op = Op::write, .bytes = 8, .remote_offset = 16});
  CHECK_EQ(perform({.op = Op::fetch_add, .bytes = 8, .remote_offset = 16, .operand = 3}), 7u);
  CHECK_EQ(
      perform(
          {.op = Op::compare_swap, .bytes = 8, .remote_offset = 16, .operand = 1, .compare = 9}),
      10u);
  CHECK_EQ(
      perform(
          {.op = Op::compare_swap, .bytes = 8, .remote_offset = 16, .operand = 1, .compare = 10}),
      10u);
  CHECK_EQ(perform({.op = Op::read, .bytes = 8, .remote_offset = 16}), 1u);
  const Work outside{.op = Op::read, .bytes = 8, .remote_offset = 121};
  CHECK_THROWS(Error, endpoint->post({&outside, 1}));
}

TEST(delay_queues_hold_what_they_were_opened_with) {
  Config config = quick();
  config.depth = 4;
  config.receive_depth = 2;
  auto endpoint = connected(config);
  std::array<Work, 6> works;
  for (Work& work : works) work.bytes = 8;
  for (size_t i = 0; i < 3; ++i) works[i].signaled = false;
  CHECK_EQ(endpoint->post(works), 4u);
  CHECK_EQ(endpoint->post({works.data() + 4, 2}), 0u);
  // One completion stands for the three before it; only two receives are posted.
  const auto seen = collect(*endpoint, 3);
  CHECK_EQ(seen.size(), size_t{3});
  std::array<Completion, 4> more;
  CHECK_EQ(endpoint->wait(more, 5'000'000), 0u);
  for (const Completion& completion : seen)
    if (completion.kind == Completion::received) endpoint->release(completion.id);
  CHECK_EQ(collect(*endpoint, 2).size(), size_t{2});
  CHECK_EQ(endpoint->post({works.data() + 4, 2}), 2u);
}

TEST(delay_datagrams_are_lost_with_the_given_probability) {
  Config config = quick();
  config.endpoint = "ud";
  config.delay.wire = "0 ns";
  config.delay.loss = 0.1;
  config.depth = config.receive_depth = 16;
  auto endpoint = connected(config);
  CHECK(!endpoint->is_reliable());
  std::array<Completion, 16> some;
  uint64_t echoed = 0;
  constexpr uint64_t kMessages = 50'000;
  for (uint64_t i = 0; i < kMessages; ++i) {
    Work work;
    work.bytes = 8;
    endpoint->post({&work, 1});
    for (bool finished = false; !finished;) {
      const uint32_t n = endpoint->poll(some);
      for (uint32_t k = 0; k < n; ++k) {
        finished = finished || some[k].kind == Completion::sent;
        if (some[k].kind != Completion::received) continue;
        ++echoed;
        endpoint->release(some[k].id);
      }
    }
  }
  while (true) {
    const uint32_t n = endpoint->wait(some, 5'000'000);
    if (n == 0) break;
    for (uint32_t k = 0; k < n; ++k) endpoint->release(some[k].id);
    echoed += n;
  }
  // There and back: 0.9 * 0.9, within five standard deviations.
  CHECK(std::abs(static_cast<double>(echoed) / kMessages - 0.81) <
        5 * std::sqrt(0.81 * 0.19 / kMessages));
  CHECK_EQ(delay_truth(*endpoint)->lost, kMessages - echoed);
}

TEST(delay_far_side_of_duplex_sends_as_many_as_it_gets) {
  Config config = quick();
  config.depth = 8;
  config.receive_depth = 4;
  config.delay.peer = "duplex";
  auto endpoint = connected(config);
  std::array<Completion, 4> some;
  uint64_t posted = 0, finished = 0, received = 0;
  while (finished < 1000 || received < 1000) {
    Work work;
    work.bytes = 64;
    if (posted < 1000) posted += endpoint->post({&work, 1});
    const uint32_t n = endpoint->wait(some, 100'000'000);
    CHECK(n > 0);
    if (n == 0) break;
    for (const Completion& completion : std::span(some).first(n)) {
      if (completion.kind == Completion::sent) {
        ++finished;
        continue;
      }
      CHECK(probe::is_filled(endpoint->receive_slot(completion.id), 64, received++));
      endpoint->release(completion.id);
    }
  }
  CHECK_EQ(endpoint->wait(some, 5'000'000), 0u);
}

TEST(delay_refuses_what_it_cannot_do) {
  const auto refuses = [](auto change) {
    Config config = quick();
    change(config);
    CHECK_THROWS(Error, open_delay(config));
  };
  refuses([](Config& c) { c.delay.loss = 2; });
  refuses([](Config& c) { c.endpoint = "rc", c.delay.loss = 0.1; });
  refuses([](Config& c) { c.endpoint = "srd"; });
  refuses([](Config& c) { c.delay.stall_ns = 10, c.delay.stall_every_ns = 10; });
  refuses([](Config& c) { c.delay.peer = "mirror"; });
  refuses([](Config& c) { c.delay.wire = "fast"; });
  refuses([](Config& c) { c.delay.host_post = "fast"; });
}

}  // namespace weft::transport
