// The packet simulator against closed forms: what one message costs, puts on the wire, and where.
#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "base/rng.hpp"
#include "check.hpp"
#include "packet/random_streams.hpp"
#include "packet/simulation.hpp"
#include "test_packet_fabric.hpp"

using namespace weft::packet;
using weft::Rng;
using weft::test::SmallFabric;

namespace {

constexpr double kRate = 54.3e9;
constexpr Time kLong = 1'000'000'000'000;

// One host at each end of a chain of switches; cable i has rates[i] and delays[i].
SmallFabric chain(const std::vector<double>& rates, const std::vector<Time>& delays) {
  SmallFabric fabric;
  uint32_t at = fabric.add_host();
  for (size_t i = 0; i < rates.size(); ++i) {
    const uint32_t next = i + 1 < rates.size() ? fabric.add_switch() : fabric.add_host();
    fabric.cable(at, next, rates[i], delays[i]);
    at = next;
  }
  fabric.route_shortest();
  return fabric;
}

SmallFabric star(int hosts, double rate = kRate, Time delay = 10'000) {
  SmallFabric fabric;
  const uint32_t middle = fabric.add_switch();
  for (int i = 0; i < hosts; ++i) fabric.cable(fabric.add_host(), middle, rate, delay);
  fabric.route_shortest();
  return fabric;
}

FlowSpec finite(uint32_t src, uint32_t dst, int64_t size, int64_t messages) {
  FlowSpec f;
  f.src = src;
  f.dst = dst;
  f.size = size;
  f.messages = messages;
  f.window = static_cast<int>(std::min<int64_t>(messages, 64));
  return f;
}

RunSpec long_run(const std::vector<FlowSpec>& flows, bool drain) {
  RunSpec run;
  run.duration = kLong;
  run.stop_when_done = !drain;
  for (const FlowSpec& f : flows) run.groups = std::max(run.groups, f.group + 1);
  return run;
}

struct Finished : Simulation {
  Finished(const SmallFabric& fabric, const std::vector<FlowSpec>& flows, bool drain = true)
      : Simulation(fabric.spec, flows, long_run(flows, drain)) {
    CHECK(run(100'000'000) == Status::kFinished);
  }
};

// The link that leaves a node by its first port.
size_t link_of(const Simulation& sim, uint32_t node, uint32_t port = 1) {
  for (size_t i = 0; i < sim.links(); ++i) {
    if (sim.link_from(i) == node && sim.link_port(i) == port) return i;
  }
  return SIZE_MAX;
}

// Payload fills whole words of four bytes.
int64_t words(int64_t bytes) {
  return (bytes + 3) / 4 * 4;
}

double ser(double rate, int64_t bytes) {
  return static_cast<double>(bytes) * 8e12 / rate;
}

// Virtual cut-through, unloaded: flight and latency of every hop, the last byte when the last
// cable has carried it, and at a faster output the wait for the last byte from the slower input.
double path_time(int64_t bytes, const std::vector<double>& rates, const std::vector<Time>& delays,
                 Time latency) {
  double time = static_cast<double>(latency) * static_cast<double>(rates.size() - 1);
  for (size_t i = 0; i < rates.size(); ++i) {
    time += static_cast<double>(delays[i]);
    if (i > 0) time += std::max(0.0, ser(rates[i - 1], bytes) - ser(rates[i], bytes));
  }
  return time + ser(rates.back(), bytes);
}

template <class T>
std::vector<T> reversed(std::vector<T> values) {
  std::reverse(values.begin(), values.end());
  return values;
}

struct Path {
  std::vector<double> rates;
  std::vector<Time> delays;
  Time latency;

  explicit Path(Rng& rng) : latency(static_cast<Time>(rng.next() % 300'000)) {
    const std::vector<double> known = {2.5e9, 10e9, 25.78e9, 54.3e9, 100e9};
    const size_t cables = 1 + rng.next() % 5;
    for (size_t i = 0; i < cables; ++i) {
      rates.push_back(known[rng.next() % known.size()]);
      delays.push_back(static_cast<Time>(rng.next() % 100'000));
    }
  }

  SmallFabric fabric() const {
    SmallFabric f = chain(rates, delays);
    f.spec.switches.latency = latency;
    return f;
  }
  double there(int64_t bytes) const { return path_time(bytes, rates, delays, latency); }
  double back(int64_t bytes) const {
    return path_time(bytes, reversed(rates), reversed(delays), latency);
  }
};

AdapterSpec random_adapter(Rng& rng) {
  AdapterSpec host;
  for (Time* t : {&host.post, &host.poll, &host.pcie_read, &host.pcie_write, &host.tx, &host.rx,
                  &host.write_ack}) {
    *t = static_cast<Time>(rng.next() % 500'000);
  }
  host.pcie_read_bps = 53e9;
  host.pcie_write_bps = 58e9;
  host.inline_bytes = static_cast<int>(rng.next() % 400);
  return host;
}

void check_rtt(const Simulation& sim, double expected) {
  const auto& rtt = sim.group(0).rtt;
  CHECK_EQ(rtt.min(), rtt.max());
  const double off = static_cast<double>(rtt.min()) - expected;
  if (std::abs(off) > 20) CHECK_EQ(static_cast<double>(rtt.min()), expected);
}

int64_t count(const Simulation& sim, size_t link, uint64_t LaneCounters::*what) {
  int64_t total = 0;
  for (int vl = 0; vl < sim.lanes(); ++vl)
    total += static_cast<int64_t>(sim.counters(link, vl).*what);
  return total;
}

}  // namespace

// ---- Headers --------------------------------------------------------------------------------

// LRH 8 + BTH 12 + ICRC 4 + VCRC 2 = 26; RETH 16, AETH 4, ImmDt 4, DETH 8.
TEST(headers_by_opcode_are_those_of_the_specification) {
  const auto rc = Transport::kRc, uc = Transport::kUc, ud = Transport::kUd;
  CHECK_EQ(request_header(rc, Op::kSend, true, true), 26);
  CHECK_EQ(request_header(uc, Op::kSend, false, true), 26);
  CHECK_EQ(request_header(ud, Op::kSend, true, true), 34);
  CHECK_EQ(request_header(rc, Op::kWrite, true, false), 42);
  CHECK_EQ(request_header(rc, Op::kWrite, false, false), 26);
  CHECK_EQ(request_header(rc, Op::kWrite, false, true), 26);
  CHECK_EQ(request_header(rc, Op::kWriteImm, true, true), 46);
  CHECK_EQ(request_header(rc, Op::kWriteImm, true, false), 42);
  CHECK_EQ(request_header(rc, Op::kWriteImm, false, true), 30);
  CHECK_EQ(request_header(rc, Op::kRead, true, true), 42);
  CHECK_EQ(ack_bytes(), 30);
  CHECK_EQ(response_header(true, true), 30);
  CHECK_EQ(response_header(true, false), 30);
  CHECK_EQ(response_header(false, false), 26);
  CHECK_EQ(response_header(false, true), 30);
  CHECK_EQ(blocks_of(64), 1);
  CHECK_EQ(blocks_of(65), 2);
}

// ---- Zero load ------------------------------------------------------------------------------

TEST(an_unloaded_round_trip_on_ideal_hosts_is_flight_latency_and_serialisation) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    const Path path(rng);
    FlowSpec probe = finite(0, 1, 1 + static_cast<int64_t>(rng.next() % 4096), 3);
    probe.pattern = Pattern::kProbe;
    check_rtt(Finished(path.fabric(), {probe}), path.there(words(probe.size) + 26) + path.back(30));
  }
}

TEST(host_times_add_up_for_send_write_and_read) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    const Path path(rng);
    SmallFabric fabric = path.fabric();
    const AdapterSpec host = fabric.spec.adapter = random_adapter(rng);
    FlowSpec probe = finite(0, 1, 1 + static_cast<int64_t>(rng.next() % 4096), 3);
    probe.pattern = Pattern::kProbe;
    probe.op = std::vector{Op::kSend, Op::kWrite, Op::kRead}[rng.next() % 3];
    probe.allow_inline = rng.next() % 2;
    const double fetch = static_cast<double>(host.pcie_read) + ser(host.pcie_read_bps, probe.size);
    const bool inlined = probe.allow_inline && probe.size <= host.inline_bytes;
    double expected =
        static_cast<double>(host.post + host.tx + 2 * host.rx + host.pcie_write + host.poll);
    if (probe.op == Op::kRead) {  // the responder always reads its memory: nothing was inlined
      expected += path.there(42) + path.back(words(probe.size) + 30);
      expected += fetch + static_cast<double>(host.tx);
    } else {
      expected += (inlined ? 0 : fetch) + path.back(30);
      expected += path.there(words(probe.size) + (probe.op == Op::kWrite ? 42 : 26));
    }
    if (probe.op == Op::kWrite) {
      expected += static_cast<double>(host.write_ack) + ser(host.pcie_write_bps, probe.size);
    }
    check_rtt(Finished(fabric, {probe}), expected);
  }
}

TEST(a_ping_pong_is_two_unloaded_one_way_trips_with_software_at_both_ends) {
  Rng rng(7);
  const Path path(rng);
  SmallFabric fabric = path.fabric();
  const AdapterSpec host = fabric.spec.adapter = random_adapter(rng);
  FlowSpec ping = finite(0, 1, 64, 5);
  ping.pattern = Pattern::kProbe;
  ping.estimator = Estimator::kPingPong;
  ping.transport = Transport::kUc;  // no ACK in the way of the pong
  ping.allow_inline = false;
  const double fetch = static_cast<double>(host.pcie_read) + ser(host.pcie_read_bps, 64);
  const auto software =
      static_cast<double>(host.post + host.tx + host.rx + host.pcie_write + host.poll);
  check_rtt(Finished(fabric, {ping}), path.there(90) + path.back(90) + 2 * (software + fetch));
}

TEST(a_ping_pong_of_n_messages_has_n_samples_when_the_run_stops_at_its_end) {
  for (const Transport transport : {Transport::kRc, Transport::kUc}) {
    FlowSpec ping = finite(0, 1, 64, 10);
    ping.pattern = Pattern::kProbe;
    ping.estimator = Estimator::kPingPong;
    ping.transport = transport;
    const Finished sim(star(2), {ping}, false);
    CHECK_EQ(sim.group(0).rtt.count(), 10u);
  }
}

TEST(the_true_switch_time_of_a_probe_is_the_latency_of_each_switch_there_and_back) {
  SmallFabric fabric = chain({kRate, kRate, kRate, kRate}, {1000, 2000, 3000, 4000});
  fabric.spec.switches.latency = 200'000;
  FlowSpec probe = finite(0, 1, 64, 5);
  probe.pattern = Pattern::kProbe;
  const Finished sim(fabric, {probe});
  const auto& group = sim.group(0);
  CHECK_EQ(group.switch_time.min(), 6 * 200'000);
  CHECK_EQ(group.switch_time.max(), 6 * 200'000);
}

TEST(one_message_at_a_time_completes_once_per_round_trip_and_a_window_of_w_w_times) {
  SmallFabric fabric = star(2, 100e9, 1'000'000);
  const double rtt = 4e6 + ser(100e9, 64 + 26) + ser(100e9, 30);
  for (const int window : {1, 2, 7}) {
    FlowSpec stream = finite(0, 1, 64, 70);
    stream.window = window;
    const Finished sim(fabric, {stream});
    const double rounds = 70.0 / window;
    const auto end = static_cast<double>(sim.flow(0).finished);
    CHECK(end >= rounds * rtt - 100);
    CHECK(end <= rounds * rtt + rounds * window * ser(100e9, 64 + 26));
  }
}

// ---- Packets --------------------------------------------------------------------------------

TEST(a_message_is_cut_into_ceil_size_over_mtu_packets) {
  for (const int mtu : {256, 512, 1024, 2048, 4096}) {
    for (const int64_t size : {1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu - 1, 3 * mtu + 1}) {
      FlowSpec f = finite(0, 1, size, 2);
      f.mtu = mtu;
      f.op = Op::kWriteImm;
      const Finished sim(star(2), {f});
      const int64_t packets = (size + mtu - 1) / mtu;
      const size_t out = link_of(sim, 1);
      CHECK_EQ(count(sim, out, &LaneCounters::xmit_packets), 2 * packets);
      CHECK_EQ(count(sim, out, &LaneCounters::xmit_bytes),
               2 * (words(size) + 26 * packets + 16 + 4));
      CHECK_EQ(sim.flow(0).bytes, 2 * size);
    }
  }
}

TEST(unreliable_transports_send_no_acknowledgement) {
  for (const Transport transport : {Transport::kUc, Transport::kUd}) {
    FlowSpec f = finite(0, 1, 1000, 20);
    f.transport = transport;
    const Finished sim(star(2), {f});
    CHECK_EQ(count(sim, link_of(sim, 2), &LaneCounters::xmit_packets), 0);
    CHECK_EQ(sim.flow(0).delivered, 20);
    CHECK_EQ(sim.flow(0).completed, 20);
  }
}

// Every k-th packet, counted over messages, and the last of all; k = 0: the last of each message.
TEST(acknowledgements_are_coalesced_as_asked) {
  for (int64_t n = 1; n <= 9; ++n) {
    for (int k = 0; k <= 5; ++k) {
      FlowSpec f = finite(0, 1, 256 * n, 3);  // all three posted at once
      f.mtu = 256;
      f.ack_every = k;
      const Finished sim(star(2), {f});
      const int64_t acks = k ? (3 * n + k - 1) / k : 3;
      const int64_t sent = count(sim, link_of(sim, 2), &LaneCounters::xmit_packets);
      // The first message may be all there is when it leaves: one ACK more.
      CHECK(sent == acks || (k > 1 && sent == acks + 1));
      CHECK_EQ(sim.flow(0).completed, 3);
    }
  }
}

// A window smaller than the coalescing: its last message asks for an ACK, or nothing would go on.
TEST(coalescing_never_stops_a_window) {
  FlowSpec f = finite(0, 1, 64, 100);
  f.window = 4;
  f.ack_every = 16;
  const Finished sim(star(2), {f});
  CHECK_EQ(sim.flow(0).completed, 100);
  const int64_t sent = count(sim, link_of(sim, 2), &LaneCounters::xmit_packets);
  CHECK(sent >= 25 && sent <= 50);
}

TEST(a_read_is_one_small_request_and_the_payload_comes_back_without_acknowledgement) {
  FlowSpec f = finite(0, 1, 10'000, 4);
  f.op = Op::kRead;
  const Finished sim(star(2), {f});
  CHECK_EQ(count(sim, link_of(sim, 1), &LaneCounters::xmit_packets), 4);
  CHECK_EQ(count(sim, link_of(sim, 1), &LaneCounters::xmit_bytes), 4 * 42);
  CHECK_EQ(count(sim, link_of(sim, 2), &LaneCounters::xmit_packets), 4 * 3);
  CHECK_EQ(count(sim, link_of(sim, 2), &LaneCounters::xmit_bytes), 4 * (10'000 + 30 + 26 + 30));
  CHECK_EQ(sim.flow(0).bytes, 40'000);
}

TEST(the_acknowledgement_of_a_write_never_overtakes_that_of_an_earlier_one) {
  SmallFabric fabric = star(2);
  fabric.spec.adapter.pcie_write_bps = 2.5e9;  // 13 us for a large payload, 3 ns for one byte
  FlowSpec f = finite(0, 1, 1, 8);
  f.pattern = Pattern::kSchedule;
  f.op = Op::kWrite;
  for (Time i = 0; i < 8; ++i) {
    f.schedule.push_back({1000 * i, i % 2 ? 1 : 4096});
  }
  CHECK_EQ(Finished(fabric, {f}).flow(0).completed, 8);
}

// ---- Patterns -------------------------------------------------------------------------------

TEST(a_ring_all_reduce_sends_2_n_minus_1_messages_per_host_each_after_the_one_before_it) {
  for (uint32_t n = 2; n <= 8; ++n) {
    std::vector<FlowSpec> flows;
    for (uint32_t i = 0; i < n; ++i) {
      FlowSpec f = finite(i, (i + 1) % n, 4096, 2 * (n - 1));
      f.pattern = Pattern::kTriggered;
      f.initial_triggers = 1;
      f.triggers = static_cast<int32_t>((i + 1) % n);
      flows.push_back(f);
    }
    const Finished sim(star(static_cast<int>(n)), flows);
    const double step = 2 * 10'000 + ser(kRate, 4096 + 26);
    for (uint32_t i = 0; i < n; ++i) {
      CHECK_EQ(sim.flow(i).delivered, 2 * (n - 1));
      CHECK(static_cast<double>(sim.flow(i).last_delivery) >= 2 * (n - 1) * step - 1000);
    }
  }
}

TEST(a_rate_cap_spaces_packets_by_payload_over_rate_from_the_first_one_on) {
  for (const Time start : {Time{0}, Time{50'000'000}}) {
    FlowSpec f = finite(0, 1, 1000, 11);
    f.rate_bps = 1e9;  // 8 us each
    f.start = start;
    const Finished sim(star(2), {f});
    const FlowResult result = sim.flow(0);
    CHECK_EQ(result.last_delivery - result.first_delivery, 10 * 8'000'000);
  }
}

TEST(a_schedule_is_kept_to_the_picosecond_on_an_idle_fabric) {
  SmallFabric fabric = chain({kRate}, {5000});
  FlowSpec f = finite(0, 1, 1, 4);
  f.pattern = Pattern::kSchedule;
  f.schedule = {{0, 64}, {1'000'000, 64}, {1'000'000'000, 64}, {70'000'000'000, 64}};
  const Finished sim(fabric, {f});
  const auto& one_way = sim.group(0).one_way;
  CHECK_EQ(one_way.count(), 4u);
  CHECK_EQ(one_way.min(), one_way.max());
  CHECK_EQ(sim.flow(0).last_delivery, 70'000'000'000 + one_way.min());
}

// ---- Lanes ----------------------------------------------------------------------------------

TEST(a_port_with_its_own_sl_to_vl_map_moves_packets_to_its_lane_and_others_do_not) {
  SmallFabric fabric = star(3);
  NetworkSpec& net = fabric.spec;
  net.lanes = 4;
  net.arbitration.low = {{0, 64}, {1, 64}, {2, 64}, {3, 64}};
  net.sl2vl.fill(1);
  SlToVl other;
  other.fill(3);
  net.sl2vl_overrides.push_back({0, 1, 2, other});  // from host 0 to host 1 only
  const Finished sim(fabric, {finite(0, 1, 4096, 10), finite(2, 1, 4096, 20)});
  const size_t to_first = link_of(sim, 0, 2);
  CHECK_EQ(sim.counters(to_first, 3).xmit_packets, 10u);
  CHECK_EQ(sim.counters(to_first, 1).xmit_packets, 20u);
  CHECK_EQ(sim.counters(link_of(sim, 1), 1).xmit_packets, 10u);  // the host itself uses the default
  CHECK_EQ(sim.counters(link_of(sim, 0, 1), 1).xmit_packets, 10u);  // ACKs come back on lane 1
}

TEST(a_lane_in_no_table_stops_no_other_lane_of_its_host) {
  SmallFabric fabric = star(2);
  fabric.spec.lanes = 2;
  for (size_t sl = 0; sl < 16; ++sl) fabric.spec.sl2vl[sl] = static_cast<uint8_t>(sl % 2);
  fabric.spec.arbitration.low = {{0, 64}};
  fabric.spec.adapter.post = 400'000;
  FlowSpec stuck = finite(0, 1, 64, 1), free = finite(0, 1, 64, 50);
  stuck.sl = 1;
  free.window = 1;
  free.pattern = Pattern::kPaced;
  free.interval = 300'000;
  RunSpec run;
  run.duration = kLong;
  Simulation sim(fabric.spec, {stuck, free}, run);
  sim.run(1'000'000);
  CHECK_EQ(sim.flow(1).delivered, 50);
  CHECK_EQ(sim.flow(0).delivered, 0);
}

TEST(a_run_does_not_end_as_finished_while_posted_messages_were_never_sent) {
  SmallFabric fabric = star(2);
  fabric.spec.lanes = 2;
  fabric.spec.sl2vl.fill(1);
  fabric.spec.arbitration.low = {{0, 64}};
  RunSpec run;
  run.duration = kLong;
  Simulation sim(fabric.spec, {finite(0, 1, 64, 3)}, run);
  CHECK(sim.run(1'000'000) != Status::kFinished);
}

TEST(round_robin_and_fcfs_give_backlogged_inputs_equal_shares_of_an_output) {
  for (const Order order : {Order::kFcfs, Order::kFcfsAge, Order::kRoundRobin}) {
    SmallFabric fabric = star(6);
    fabric.spec.switches.order = order;
    fabric.spec.credits.switch_buffer_bytes = 33'280;
    std::vector<FlowSpec> flows;
    for (uint32_t i = 1; i < 6; ++i) flows.push_back(finite(i, 0, 4096, -1));
    for (FlowSpec& f : flows) f.window = 64;
    RunSpec run;
    run.duration = 3'000'000'000;
    run.warmup = 300'000'000;
    Simulation sim(fabric.spec, flows, run);
    CHECK(sim.run(100'000'000) == Status::kTimeUp);
    double total = 0;
    for (size_t i = 0; i < 5; ++i) total += static_cast<double>(sim.flow(i).bytes);
    for (size_t i = 0; i < 5; ++i) {
      CHECK(std::abs(static_cast<double>(sim.flow(i).bytes) / total - 0.2) < 0.002);
    }
    const double bound = kRate * 4096 / (4096 + 26) / 8 * 2.7e-3;
    CHECK(total <= bound + 4096);
    CHECK(total >= 0.99 * bound);
  }
}

// One long packet holds the output while hosts 3, 1, 2 send theirs in this order.
TEST(fcfs_serves_by_arrival_and_round_robin_by_port) {
  const std::vector<std::pair<Order, std::vector<uint32_t>>> expected = {
      {Order::kFcfs, {3, 1, 2}}, {Order::kFcfsAge, {3, 1, 2}}, {Order::kRoundRobin, {1, 2, 3}}};
  for (const auto& [order, turns] : expected) {
    SmallFabric fabric = star(6);
    fabric.spec.switches.order = order;
    std::vector<FlowSpec> flows = {finite(0, 5, 4096, 1)};
    for (uint32_t host = 1; host <= 3; ++host) flows.push_back(finite(host, 5, 256, 1));
    flows[3].start = 50'000;
    flows[1].start = 60'000;
    flows[2].start = 70'000;
    const Finished sim(fabric, flows);
    for (size_t i = 0; i + 1 < turns.size(); ++i) {
      CHECK(sim.flow(turns[i]).last_delivery < sim.flow(turns[i + 1]).last_delivery);
    }
  }
}

// Host 0's packet crosses a long cable to the second switch; host 2's joins there while it is still
// on its way. Held up by a long packet, the two leave by arrival there, or by arrival at the first.
TEST(fcfs_by_age_remembers_when_a_packet_entered_the_fabric) {
  for (const Order order : {Order::kFcfs, Order::kFcfsAge}) {
    SmallFabric fabric;
    const uint32_t near = fabric.add_switch(), far = fabric.add_switch();
    const uint32_t homes[] = {near, far, far, far};
    for (const uint32_t home : homes) fabric.cable(fabric.add_host(), home, kRate, 0);
    fabric.cable(near, far, kRate, 3'000'000);
    fabric.route_shortest();
    fabric.spec.switches.order = order;
    FlowSpec blocker = finite(1, 3, 4096, 1), old = finite(0, 3, 256, 1),
             young = finite(2, 3, 256, 1);
    blocker.start = 2'800'000;  // holds the output until 3.4 us
    young.start = 2'900'000;    // is there before `old`, which arrives after 3 us
    const Finished sim(fabric, {blocker, old, young});
    const bool old_first = sim.flow(1).last_delivery < sim.flow(2).last_delivery;
    CHECK_EQ(old_first, order == Order::kFcfsAge);
  }
}

TEST(every_input_of_a_switch_with_more_lanes_than_a_word_has_bits_is_served_equally) {
  for (const Order order : {Order::kFcfs, Order::kRoundRobin}) {
    SmallFabric fabric = star(41);
    NetworkSpec& net = fabric.spec;
    net.lanes = 4;
    net.arbitration.low = {{0, 65}, {1, 65}, {2, 65}, {3, 65}};
    for (size_t sl = 0; sl < 16; ++sl) net.sl2vl[sl] = static_cast<uint8_t>(sl % 4);
    net.switches.order = order;
    net.credits.switch_buffer_bytes = 2 * 4160;
    std::vector<FlowSpec> flows;
    for (uint32_t i = 1; i <= 40; ++i) {
      flows.push_back(finite(i, 0, 4096, -1));
      flows.back().window = 16;
      flows.back().sl = static_cast<int>(i % 4);
    }
    RunSpec run;
    run.duration = 12'000'000'000;
    run.warmup = 2'000'000'000;
    Simulation sim(net, flows, run);
    CHECK(sim.run(100'000'000) == Status::kTimeUp);
    double total = 0;
    for (size_t i = 0; i < 40; ++i) total += static_cast<double>(sim.flow(i).bytes);
    for (size_t i = 0; i < 40; ++i) {
      CHECK(std::abs(static_cast<double>(sim.flow(i).bytes) * 40 / total - 1) < 0.01);
    }
  }
}

// A saturated sender's link is at any time sending or waiting for credit.
TEST(xmit_wait_and_sending_make_up_the_time_of_a_saturated_sender) {
  SmallFabric fabric = star(3);
  fabric.spec.credits.switch_buffer_bytes = 16'640;
  std::vector<FlowSpec> flows = {finite(1, 0, 4096, -1), finite(2, 0, 4096, -1)};
  for (FlowSpec& f : flows) f.window = 64;
  RunSpec run;
  run.duration = 2'000'000'000;
  Simulation sim(fabric.spec, flows, run);
  sim.run(100'000'000);
  for (uint32_t host = 2; host <= 3; ++host) {
    const LaneCounters n = sim.counters(link_of(sim, host), 0);
    const double sending = ser(kRate, static_cast<int64_t>(n.xmit_bytes));
    CHECK(std::abs(sending + static_cast<double>(n.xmit_wait) - 2e9) < 0.005 * 2e9);
  }
}

// ---- Congestion control ---------------------------------------------------------------------

TEST(congestion_control_marks_only_over_the_threshold_and_shortens_the_queue) {
  int64_t peak[2];
  uint64_t marked[2];
  for (const int enabled : {0, 1}) {
    SmallFabric fabric = star(4);
    CongestionControl& control = fabric.spec.switches.congestion;
    control.enabled = enabled;
    control.threshold_bytes = 20'000;
    control.step = 1;
    control.timer = 20'000'000;
    std::vector<FlowSpec> flows;
    for (uint32_t i = 1; i < 4; ++i) flows.push_back(finite(i, 0, 4096, -1));
    for (FlowSpec& f : flows) f.window = 200;
    RunSpec run;
    run.duration = 2'000'000'000;
    run.sample_interval = 1'000'000;
    Simulation sim(fabric.spec, flows, run);
    sim.run(100'000'000);
    const size_t bottleneck = link_of(sim, 0, 1);
    marked[enabled] = sim.counters(bottleneck, 0).marked;
    peak[enabled] = 0;
    for (size_t i = sim.sample_times().size() / 2; i < sim.sample_times().size(); ++i) {
      peak[enabled] = std::max<int64_t>(peak[enabled], sim.samples()[i * sim.links() + bottleneck]);
    }
  }
  CHECK_EQ(marked[0], 0u);
  CHECK(marked[1] > 0);
  CHECK(peak[1] < peak[0]);
}

// Three senders want one port of the second switch. One of them comes over the first switch, whose
// port has no other traffic: it fills up only while it waits for credits, also when these come
// several packets at a time.
TEST(a_port_that_waits_for_credits_is_a_victim_and_does_not_mark) {
  for (const Time interval : {Time{0}, Time{3'000'000}}) {
    SmallFabric fabric;
    const uint32_t upstream = fabric.add_switch(), downstream = fabric.add_switch();
    for (const uint32_t home : {upstream, downstream, downstream, downstream}) {
      fabric.cable(fabric.add_host(), home, kRate, 10'000);
    }
    fabric.cable(upstream, downstream, kRate, 10'000);
    fabric.route_shortest();
    fabric.spec.credits.switch_buffer_bytes = 64 * 1024;
    fabric.spec.credits.interval = interval;
    fabric.spec.switches.congestion.enabled = true;
    fabric.spec.switches.congestion.threshold_bytes = 20'000;
    std::vector<FlowSpec> flows;
    for (const uint32_t host : {0u, 1u, 2u}) flows.push_back(finite(host, 3, 4096, -1));
    for (FlowSpec& f : flows) f.window = 200;
    RunSpec run;
    run.duration = 2'000'000'000;
    Simulation sim(fabric.spec, flows, run);
    sim.run(100'000'000);
    const LaneCounters victim = sim.counters(link_of(sim, upstream, 2), 0);
    CHECK(victim.peak_backlog > 20'000);
    CHECK_EQ(victim.marked, 0u);
    CHECK(sim.counters(link_of(sim, downstream, 3), 0).marked > 1000);
  }
}

// A host that takes packets too slowly is itself the root: nothing behind it could be marked.
TEST(a_port_that_waits_for_credits_of_a_host_marks) {
  SmallFabric fabric = star(2);
  fabric.spec.adapter.pcie_write_bps = kRate / 4;
  fabric.spec.credits.host_buffer_bytes = 16'640;
  fabric.spec.switches.congestion.enabled = true;
  fabric.spec.switches.congestion.threshold_bytes = 20'000;
  FlowSpec f = finite(0, 1, 4096, -1);
  f.window = 200;
  RunSpec run;
  run.duration = 2'000'000'000;
  Simulation sim(fabric.spec, {f}, run);
  sim.run(100'000'000);
  CHECK(sim.counters(link_of(sim, 0, 2), 0).marked > 100);
}

// An index that rises from 0 stays for a whole period of the timer, whenever that begins: at 0.9 of
// a period a burst slows the stream down to a tenth, and it is still slow at 1.5. The burst has
// been sent when the first BECN comes: it cannot make the stream slow again.
TEST(the_timer_of_an_index_starts_anew_when_it_leaves_zero) {
  const Time period = 1'000'000'000;
  SmallFabric fabric = star(3);
  CongestionControl& control = fabric.spec.switches.congestion;
  control.enabled = true;
  control.threshold_bytes = 20'000;
  control.limit = 1;
  control.timer = period;
  control.step = 9;
  FlowSpec stream = finite(0, 2, 4096, -1), burst = finite(1, 2, 4096, 12);
  stream.window = 64;
  stream.start = burst.start = period * 9 / 10;
  RunSpec run;
  run.duration = period * 3 / 2;
  Simulation sim(fabric.spec, {stream, burst}, run);
  sim.run(100'000'000);
  CHECK(sim.counters(link_of(sim, 0, 3), 0).marked > 0);
  const double at_full_rate = static_cast<double>(run.duration - stream.start) / ser(kRate, 4122);
  const auto delivered = static_cast<double>(sim.flow(0).delivered);
  CHECK(delivered > 0.1 * at_full_rate);
  CHECK(delivered < 0.3 * at_full_rate);
}

// ---- Random numbers ---------------------------------------------------------------------------

TEST(no_partition_and_no_flow_share_a_random_stream_whatever_the_seed) {
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{1} << 62}) {
    std::vector<uint64_t> seeds;
    for (uint32_t i = 0; i < 64; ++i) seeds.push_back(seed_partition(seed, i));
    for (uint64_t i = 0; i < 10'000; ++i) seeds.push_back(seed_flow(seed, i));
    std::sort(seeds.begin(), seeds.end());
    CHECK(std::adjacent_find(seeds.begin(), seeds.end()) == seeds.end());
  }
}

// ---- Samples and ends -----------------------------------------------------------------------

TEST(a_series_of_samples_spans_the_run_through_idle_times) {
  SmallFabric fabric = star(2);
  fabric.spec.adapter.post = 470'000;
  FlowSpec f = finite(0, 1, 4096, 5);
  f.pattern = Pattern::kPaced;
  f.interval = 10'000'000;  // idle for most of the time
  f.start = 3'000'000;
  RunSpec run;
  run.duration = kLong;
  run.sample_interval = 1'000'000;
  Simulation sim(fabric.spec, {f}, run);
  CHECK(sim.run(1'000'000) == Status::kFinished);
  CHECK(sim.now() > 43'000'000);
  CHECK_EQ(sim.sample_times().size(), static_cast<size_t>(sim.now() / 1'000'000 + 1));
}

TEST(a_deadlock_is_noticed_while_sampling) {
  for (const Time interval : {Time{0}, Time{1'000'000}}) {
    SmallFabric fabric;
    for (int i = 0; i < 3; ++i) fabric.add_switch();
    for (uint32_t i = 0; i < 3; ++i) {
      fabric.cable(i, (i + 1) % 3, kRate, 1000);
      fabric.cable(fabric.add_host(), i, kRate, 1000);
    }
    fabric.route_clockwise();
    fabric.spec.credits.switch_buffer_bytes = 4160;
    std::vector<FlowSpec> flows;
    for (uint32_t i = 0; i < 3; ++i) flows.push_back(finite(i, (i + 2) % 3, 65'536, 100));
    RunSpec run;
    run.duration = 1'000'000'000'000;
    run.sample_interval = interval;
    Simulation sim(fabric.spec, flows, run);
    CHECK(sim.run(10'000'000) == Status::kDeadlock);
    CHECK(sim.now() < 1'000'000'000);
  }
}

// With room for p packets a lone sender has p packets per credit loop: from the start of a packet
// to the return of its credit pass the flight there, the switch, the packet itself, the flight
// back and the credit's delay.
TEST(a_lone_sender_is_held_to_its_buffer_per_credit_loop) {
  const Time delay = 200'000, latency = 150'000, credit = 1'500'000;
  const double packet = ser(kRate, 4096 + 26);
  for (int p = 1; p <= 8; ++p) {
    SmallFabric fabric = star(2, kRate, delay);
    fabric.spec.switches.latency = latency;
    fabric.spec.credits.delay = credit;
    fabric.spec.credits.switch_buffer_bytes = p * 4160 + 63;
    const int messages = 40 * p;
    FlowSpec f = finite(0, 1, 4096, messages);
    f.window = messages;
    const Finished sim(fabric, {f});
    const FlowResult result = sim.flow(0);
    const double loop = 2 * delay + latency + packet + credit;
    const double period = std::max(loop, p * packet);
    const auto span = static_cast<double>(result.last_delivery - result.first_delivery);
    const double expected = 39 * period + (p - 1) * packet;
    CHECK(std::abs(span - expected) < 100.0 * messages);
  }
}

// Credits count whole blocks of 64 bytes, and a packet of 4122 bytes takes 65 of them: a buffer one
// byte too small for p packets holds p - 1.
TEST(a_buffer_one_byte_short_of_a_block_has_one_packet_less) {
  for (int p = 2; p <= 4; ++p) {
    Time spans[2];
    for (const int missing : {0, 1}) {
      SmallFabric fabric = star(2, kRate, 2'000'000);
      fabric.spec.credits.switch_buffer_bytes = (p - 1 + missing) * 4160 - missing;
      FlowSpec f = finite(0, 1, 4096, 60);
      f.window = 60;
      const FlowResult result = Finished(fabric, {f}).flow(0);
      spans[missing] = result.last_delivery - result.first_delivery;
    }
    CHECK_EQ(spans[0], spans[1]);
  }
}

// The quota of high priority counts whole blocks too: 4096 bytes are 32 packets of 64 + 26 bytes,
// two blocks each.
TEST(the_limit_of_high_priority_counts_packets_in_whole_blocks) {
  for (const bool at_switch : {false, true}) {
    SmallFabric fabric = star(3);
    NetworkSpec& net = fabric.spec;
    net.lanes = 2;
    net.arbitration = {{{0, 255}}, {{1, 255}}, 1};
    for (size_t sl = 0; sl < 16; ++sl) net.sl2vl[sl] = static_cast<uint8_t>(sl % 2);
    FlowSpec high = finite(0, 2, 64, -1), low = finite(at_switch ? 1 : 0, 2, 64, -1);
    low.sl = 1;
    high.window = low.window = 1000;
    high.transport = low.transport = Transport::kUc;
    RunSpec run;
    run.duration = 1'000'000'000;
    Simulation sim(net, {high, low}, run);
    sim.run(100'000'000);
    const auto ratio = static_cast<double>(sim.flow(0).delivered) / sim.flow(1).delivered;
    CHECK(std::abs(ratio - 32) < 0.5);
  }
}

TEST(xmit_wait_of_a_lone_sender_is_the_part_of_the_credit_loop_in_which_it_does_not_send) {
  SmallFabric fabric = star(2, kRate, 200'000);
  fabric.spec.credits.switch_buffer_bytes = 4160;
  FlowSpec f = finite(0, 1, 4096, 50);
  f.window = 50;
  const Finished sim(fabric, {f});
  const LaneCounters n = sim.counters(link_of(sim, 1), 0);
  // One packet per loop of flight, packet, flight: it waits for both flights, 49 times.
  CHECK(std::abs(static_cast<double>(n.xmit_wait) - 49 * 400'000.0) < 49 * 100);
}

// ---- Crossbar, buffers of ports, ends of flows ----------------------------------------------

// A host five times as fast as three others sends to all of them: of the outputs, a port with
// virtual output queues feeds as many at a time as the crossbar allows, and they take turns.
TEST(a_port_feeds_as_many_outputs_at_a_time_as_the_crossbar_allows) {
  for (const Order order : {Order::kFcfs, Order::kRoundRobin}) {
    for (const int speedup : {0, 1, 2, 3}) {
      SmallFabric fabric;
      const uint32_t middle = fabric.add_switch();
      for (const double rate : {100e9, 20e9, 20e9, 20e9}) {
        fabric.cable(fabric.add_host(), middle, rate, 10'000);
      }
      fabric.route_shortest();
      fabric.spec.switches.order = order;
      fabric.spec.switches.virtual_output_queues = true;
      fabric.spec.switches.crossbar_speedup = speedup;
      std::vector<FlowSpec> flows;
      for (uint32_t to = 1; to <= 3; ++to) flows.push_back(finite(0, to, 4096, -1));
      for (FlowSpec& f : flows) f.window = 32;
      RunSpec run;
      run.duration = 2'000'000'000;
      Simulation sim(fabric.spec, flows, run);
      CHECK(sim.run(100'000'000) == Status::kTimeUp);
      const int fed = speedup ? speedup : 3;
      const double each = fed * 20e9 / 3 * 4096 / 4122 / 8 * 2e-3;
      for (size_t i = 0; i < 3; ++i) {
        CHECK(std::abs(static_cast<double>(sim.flow(i).bytes) / each - 1) < 0.02);
      }
    }
  }
}

// The room for p packets per credit loop, as above, but of one port alone.
TEST(a_port_with_its_own_buffer_leaves_the_others_theirs) {
  const Time delay = 200'000, credit = 1'500'000;
  SmallFabric fabric = star(4, kRate, delay);
  fabric.spec.credits.delay = credit;
  fabric.spec.credits.switch_buffer_bytes = 2 * 4160;
  fabric.spec.buffer_overrides = {{0, 2, -1, 4 * 4160}};
  std::vector<FlowSpec> flows = {finite(0, 2, 4096, 100), finite(1, 3, 4096, 100)};
  for (FlowSpec& f : flows) f.window = 100;
  const Finished sim(fabric, flows);
  const double loop = 2 * delay + ser(kRate, 4122) + credit;
  for (const auto& [flow, packets] : {std::pair{0, 2}, {1, 4}}) {
    const FlowResult result = sim.flow(static_cast<size_t>(flow));
    const auto span = static_cast<double>(result.last_delivery - result.first_delivery);
    const double expected = (100.0 / packets - 1) * loop + (packets - 1) * ser(kRate, 4122);
    CHECK(std::abs(span - expected) < 100.0 * 100);
  }
}

TEST(a_buffer_of_one_lane_leaves_the_other_lanes_of_its_port_theirs) {
  SmallFabric fabric = star(3);
  fabric.spec.lanes = 2;
  fabric.spec.arbitration.low = {{0, 64}, {1, 64}};
  for (size_t sl = 0; sl < 16; ++sl) fabric.spec.sl2vl[sl] = static_cast<uint8_t>(sl % 2);
  fabric.spec.credits.switch_buffer_bytes = 2 * 4160;
  fabric.spec.buffer_overrides = {{0, 1, 1, 6 * 4160}};
  std::vector<FlowSpec> flows;
  for (const uint32_t from : {0u, 1u}) {
    for (const int sl : {0, 1}) {
      flows.push_back(finite(from, 2, 4096, 100));
      flows.back().sl = sl;
      flows.back().window = 100;
    }
  }
  const Finished sim(fabric, flows);
  for (const auto& [host, lane, packets] :
       {std::tuple{1u, 0, 2}, {1u, 1, 6}, {2u, 0, 2}, {2u, 1, 2}}) {
    CHECK_EQ(sim.counters(link_of(sim, host), lane).peak_blocks, packets * 65);
  }
}

// Endless flows of every pattern stop when the finite traffic that they follow has ended, and so
// does the run; traffic that follows nobody goes on.
TEST(a_flow_stops_when_the_traffic_that_it_follows_has_ended) {
  for (const Pattern pattern : {Pattern::kStream, Pattern::kProbe, Pattern::kPaced}) {
    FlowSpec followed = finite(0, 1, 4096, 200), longer = finite(2, 3, 4096, 1000);
    FlowSpec follower = finite(4, 5, 64, -1);
    follower.pattern = pattern;
    follower.interval = 500'000;
    follower.window = 8;
    follower.traffic = 1;
    longer.traffic = 2;
    follower.stops_with = 0;
    RunSpec run;
    run.duration = kLong;
    Simulation alone(star(6).spec, {followed, follower}, run);
    CHECK(alone.run(100'000'000) == Status::kFinished);
    CHECK_EQ(alone.now(), alone.flow(0).finished);
    CHECK(alone.flow(1).delivered > 50);
    Simulation beside(star(6).spec, {followed, follower, longer}, run);
    CHECK(beside.run(100'000'000) == Status::kFinished);
    CHECK_EQ(beside.now(), beside.flow(2).finished);
    CHECK_EQ(beside.flow(1).stop, beside.flow(0).finished);
    CHECK(beside.flow(1).last_delivery < beside.flow(0).finished + 1'000'000);
    CHECK(beside.flow(1).delivered >= alone.flow(1).delivered);
  }
}

// Two packets of one host, the first for a slow output, the second for an idle one: that output
// stands idle while the second waits behind the first, which is all of its wait.
TEST(head_of_line_time_is_that_of_idle_outputs_whose_packets_wait_behind_another) {
  for (const bool queues : {false, true}) {
    SmallFabric fabric;
    const uint32_t middle = fabric.add_switch();
    for (const double rate : {100e9, 1e9, 100e9}) {
      fabric.cable(fabric.add_host(), middle, rate, 0);
    }
    fabric.route_shortest();
    fabric.spec.switches.virtual_output_queues = queues;
    std::vector<FlowSpec> flows = {finite(0, 1, 4096, 1), finite(0, 2, 4096, 1)};
    for (FlowSpec& f : flows) f.transport = Transport::kUc;
    const Finished sim(fabric, flows);
    const double slow = ser(1e9, 4122), fast = ser(100e9, 4122);
    const double lost = queues ? 0 : slow - fast;  // the second is there when the first's last is
    CHECK(std::abs(sim.head_of_line_share() - lost / (lost + slow + fast)) < 1e-6);
  }
}

TEST(a_fabric_without_links_is_one_partition_and_ends_at_once) {
  RunSpec run;
  run.partitioned_links = 0;
  Simulation sim(NetworkSpec{}, {}, run);
  CHECK_EQ(sim.partitions(), size_t{1});
  CHECK(sim.run(1000) == Status::kFinished);
}
