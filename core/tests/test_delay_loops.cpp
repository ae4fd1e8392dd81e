// post_poll and paced on the delay transport: what they count, match and never leave out.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "base/error.hpp"
#include "probe/loops.hpp"
#include "probe/recorder.hpp"
#include "tests/check.hpp"
#include "transport/delay/endpoint.hpp"

namespace weft::probe {
namespace {

using transport::Config;

std::unique_ptr<Endpoint> connected(const Config& config, bool loopback = false) {
  auto endpoint = transport::open(config);
  endpoint->connect(loopback ? endpoint->address() : "peer", 1000);
  return endpoint;
}

Config quick() {
  Config config;
  config.transport = "delay";
  config.device = "test";
  config.delay.wire = "1 us";
  config.depth = config.receive_depth = 8;
  return config;
}

PostPollResult pairs(const Config& config, const RunSpec& run, PairOrder order,
                     double device_hz = 0) {
  auto wire = connected(config);
  auto loopback = connected(config, true);
  StopFlag stop;
  return post_poll(*wire, *loopback, run, order, device_hz, stop);
}

PacedResult paced_on(const Config& config, const PacedSpec& spec) {
  auto endpoint = connected(config);
  StopFlag stop;
  return paced(*endpoint, spec, stop);
}

}  // namespace

TEST(recorder_puts_every_value_into_its_histogram) {
  stats::Histogram histogram;
  {
    Recorder recorder(histogram);
    for (int64_t i = 0; i < 100; ++i) recorder.add(i);
  }
  CHECK_EQ(histogram.count(), 100u);
  CHECK_EQ(histogram.max(), 99);
  { Recorder nothing(histogram); }
  CHECK_EQ(histogram.count(), 100u);
}

TEST(post_poll_counts_negative_differences_and_keeps_them) {
  Config config = quick();
  config.delay.loopback = "50 us";  // slower than the wire
  RunSpec run;
  run.count = 100;
  run.samples = 30;
  const auto result = pairs(config, run, PairOrder::wire_first);
  CHECK_EQ(result.negative, 100u);
  CHECK_EQ(result.rtt.count(), 100u);
  CHECK(result.rtt.max() < 0);
  CHECK_EQ(result.samples.size(), size_t{30});
  CHECK(result.samples.front() < 0);
}

TEST(post_poll_subtracts_pair_by_pair) {
  Config config = quick();
  config.delay.host_post = "exponential(20 us)";  // common to both of a pair
  RunSpec run;
  run.count = run.samples = 200;
  run.warmup = 10;
  const auto result = pairs(config, run, PairOrder::alternating);
  CHECK_EQ(result.counts.sent, 200u);
  CHECK_EQ(result.post_poll.count(), 200u);
  CHECK_EQ(result.loopback.count(), 200u);
  // T_W - T_P = (T_W - T_L) + (T_L - T_P), for the sums too.
  CHECK(result.post_poll.sum() == result.rtt.sum() + result.loopback.sum());
}

TEST(post_poll_reads_the_devices_clock_where_there_is_one) {
  Config config = quick();
  config.device_timestamps = true;
  config.delay.wire = "10 us";
  config.delay.adapter_ns = 1000;
  config.delay.host_complete = "exponential(30 us)";  // not seen by the device
  RunSpec run;
  run.count = 100;
  const auto result = pairs(config, run, PairOrder::wire_first, 1e9);
  CHECK_EQ(result.device_rtt.count(), 100u);
  // 20 us less the adapter's time for the wire's message, less what is between the two posts.
  CHECK(result.device_rtt.max() <= 19'002'000);
  CHECK(pairs(config, run, PairOrder::wire_first).device_rtt.empty());
}

TEST(post_poll_refuses_datagrams_and_sleep) {
  Config config = quick();
  RunSpec run;
  run.count = 1;
  run.block = true;
  CHECK_THROWS(Error, pairs(config, run, PairOrder::wire_first));
  run.block = false;
  config.endpoint = "ud";
  CHECK_THROWS(Error, pairs(config, run, PairOrder::wire_first));
}

TEST(paced_messages_keep_their_fixed_schedule) {
  PacedSpec spec;
  spec.run.count = spec.run.samples = 500;
  spec.run.validate = true;
  spec.rate = 50'000;
  const auto result = paced_on(quick(), spec);
  CHECK_EQ(result.counts.sent, 500u);
  CHECK_EQ(result.counts.received, 500u);
  CHECK_EQ(result.counts.corrupted, 0u);
  for (size_t i = 0; i < 500; ++i) {
    const int64_t expected = 20'000 * static_cast<int64_t>(i + 1);
    CHECK(std::abs(result.intended_ns[i] - expected) <= 2);
  }
}

TEST(paced_poisson_times_follow_from_the_seed_alone) {
  PacedSpec spec;
  spec.run.count = spec.run.samples = 2000;
  spec.rate = 100'000;
  spec.poisson = true;
  Config fast = quick(), slow = quick();
  fast.depth = fast.receive_depth = slow.depth = slow.receive_depth = 64;
  slow.delay.wire = "30 us";
  const auto one = paced_on(fast, spec), other = paced_on(slow, spec);
  CHECK(one.intended_ns == other.intended_ns);
  // Mean interval 10 us, within five standard deviations of the mean of 2000.
  const double mean = static_cast<double>(one.intended_ns.back()) / 2000;
  CHECK(std::abs(mean - 10'000) < 5 * 10'000 / std::sqrt(2000.0));
  spec.run.seed = 2;
  CHECK(paced_on(fast, spec).intended_ns != one.intended_ns);
}

TEST(paced_messages_that_cannot_leave_are_late_and_never_skipped) {
  Config config = quick();
  config.delay.wire = "50 us";  // one at a time takes 100 us, one is due every 20 us
  PacedSpec spec;
  spec.run.count = 200;
  spec.run.samples = 200;
  spec.rate = 50'000;
  spec.window = 1;
  const auto result = paced_on(config, spec);
  CHECK_EQ(result.counts.received, 200u);
  // The last was due at 4 ms and could leave after 199 round trips: 15.9 ms late, at least.
  CHECK(result.lateness.max() >= 15'900'000'000);
  CHECK(result.latency.max() >= 15'950'000'000);
  CHECK(result.service.min() >= 50'000'000);
  // All of the lateness and half of the round trip, whose wire takes 50 us each way.
  for (size_t i = 0; i < 200; ++i) CHECK(result.samples[i] >= result.late_ps[i] + 50'000'000);
}

TEST(paced_datagrams_are_matched_by_number_and_lost_ones_given_up) {
  Config config = quick();
  config.endpoint = "ud";
  config.depth = config.receive_depth = 64;
  config.delay.wire = "uniform(1 us, 100 us)";
  config.delay.loss = 0.02;
  PacedSpec spec;
  spec.run.count = 5000;
  spec.run.loss_timeout_ns = 5'000'000;
  spec.rate = 100'000;
  spec.run.validate = true;
  auto endpoint = connected(config);
  StopFlag stop;
  const auto result = paced(*endpoint, spec, stop);
  CHECK_EQ(result.counts.sent, 5000u);
  CHECK_EQ(result.counts.received + result.counts.lost, 5000u);
  CHECK(result.counts.lost > 0);
  CHECK(result.counts.reordered > 0);
  CHECK_EQ(result.counts.duplicates, 0u);
  CHECK_EQ(result.counts.corrupted, 0u);
  CHECK_EQ(result.latency.count(), result.counts.received);
}

TEST(paced_datagrams_lost_in_the_warm_up_are_not_counted) {
  Config config = quick();
  config.endpoint = "ud";
  config.depth = config.receive_depth = 64;
  config.delay.loss = 1;
  PacedSpec spec;
  spec.run.warmup = 40;
  spec.run.count = 10;
  spec.run.loss_timeout_ns = 1'000'000;
  spec.rate = 50'000;
  const auto result = paced_on(config, spec);
  CHECK_EQ(result.counts.sent, 10u);
  CHECK_EQ(result.counts.lost, 10u);
  CHECK_EQ(result.counts.received, 0u);
}

TEST(paced_runs_end_at_their_duration_and_at_the_flag) {
  PacedSpec spec;
  spec.run.duration_ns = 10'000'000;
  spec.run.warmup = 5;
  spec.rate = 10'000;
  const auto result = paced_on(quick(), spec);
  CHECK_EQ(result.counts.sent, 100u);  // one every 0.1 ms
  CHECK(!result.counts.stopped);
  spec.run.duration_ns = 60'000'000'000;
  auto endpoint = connected(quick());
  StopFlag stop;
  std::thread setter([&stop] { stop.set(); });
  CHECK(paced(*endpoint, spec, stop).counts.stopped);
  setter.join();
}

TEST(paced_may_sleep_between_messages) {
  Config config = quick();
  config.events = true;
  PacedSpec spec;
  spec.run.count = 10;
  spec.run.block = true;
  spec.rate = 200;
  const auto result = paced_on(config, spec);
  CHECK_EQ(result.counts.received, 10u);
}

}  // namespace weft::probe
