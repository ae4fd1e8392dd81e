#include <cmath>
#include <memory>
#include <vector>

#include "check.hpp"
#include "flow/max_min.hpp"
#include "flow/simulation.hpp"
#include "flow/transfers.hpp"

using namespace weft::flow;
using weft::packet::FlowSpec;
using weft::packet::NetworkSpec;
using weft::packet::RunSpec;
using weft::packet::Status;

namespace {

bool close(double a, double b) {
  return std::abs(a - b) <= 1e-12 * std::abs(b);
}

// Hosts 0 .. n - 1 on one switch, links of 8 Gb/s (a byte per ns) and 100 ns.
NetworkSpec one_switch(uint32_t hosts, int lanes = 1) {
  NetworkSpec network;
  network.is_switch.assign(hosts + 1, 0);
  network.is_switch[hosts] = 1;
  for (uint32_t i = 0; i < hosts; ++i) {
    network.cables.push_back({i, 1, hosts, i + 1, 8e9, 100'000});
    network.next_hop.push_back(static_cast<uint16_t>(i));
    network.group_start.push_back(i);
    network.group_ports.push_back(i + 1);
  }
  network.group_start.push_back(hosts);
  network.lanes = lanes;
  for (int sl = 0; sl < 16; ++sl) network.sl2vl[sl] = static_cast<uint8_t>(sl % lanes);
  network.switches.latency = 200'000;
  return network;
}

FlowSpec stream(uint32_t src, uint32_t dst, int64_t size, int64_t messages = 1) {
  FlowSpec flow;
  flow.src = src;
  flow.dst = dst;
  flow.size = size;
  flow.messages = messages;
  flow.window = 64;
  return flow;
}

RunSpec run_for(Time duration) {
  RunSpec run;
  run.duration = duration;
  return run;
}

}  // namespace

// C1 = 6 with flows a, b; C2 = 10 with b, c: b = a = 3, c = 10 - 3.
TEST(a_flow_takes_what_others_cannot_use) {
  MaxMin rates;
  const QueueSpec one[1];
  rates.add_port(6, one);
  rates.add_port(10, one);
  const Hop first[] = {{0, 0}}, both[] = {{0, 0}, {1, 0}}, second[] = {{1, 0}};
  const uint32_t a = rates.add_flow(first), b = rates.add_flow(both), c = rates.add_flow(second);
  rates.solve();
  CHECK_EQ(rates.rate(a), 3.0);
  CHECK_EQ(rates.rate(b), 3.0);
  CHECK_EQ(rates.rate(c), 7.0);
  rates.remove_flow(a);
  rates.solve();
  CHECK_EQ(rates.rate(b), 5.0);
  CHECK_EQ(rates.rate(c), 5.0);
}

// Queues 3:1 of a port of 8; the second queue's flow is capped at 1: the first gets 7, each of its
// flows half. A queue of a later priority gets nothing.
TEST(queues_lend_what_they_leave) {
  MaxMin rates;
  const QueueSpec queues[] = {{3, 0}, {1, 0}, {9, 1}};
  rates.add_port(8, queues);
  const Hop x[] = {{0, 0}}, y[] = {{0, 1}}, z[] = {{0, 2}};
  const uint32_t a = rates.add_flow(x), b = rates.add_flow(x);
  const uint32_t c = rates.add_flow(y, 1, 1.0), d = rates.add_flow(z);
  rates.solve();
  CHECK(close(rates.rate(a), 3.5));
  CHECK(close(rates.rate(b), 3.5));
  CHECK_EQ(rates.rate(c), 1.0);
  CHECK_EQ(rates.rate(d), 0.0);
  rates.remove_flow(a);
  rates.remove_flow(b);
  rates.solve();
  CHECK_EQ(rates.rate(d), 7.0);
}

TEST(a_message_takes_its_wire_bytes_over_the_rate_and_its_path) {
  // 2 packets of 4096 + 26 bytes at a byte per ns; two cables and a switch there, then back with
  // an ACK of 30 bytes.
  Simulation simulation(one_switch(2), {stream(0, 1, 8192)}, run_for(1'000'000'000));
  CHECK(simulation.run(1000) == Status::kFinished);
  CHECK_EQ(simulation.flow(0).last_delivery, 2 * 4122'000 + 400'000);
  CHECK_EQ(simulation.flow(0).finished, 2 * 4122'000 + 400'000 + 400'000 + 30'000);
  CHECK_EQ(simulation.flow(0).bytes, 8192);
}

// Steps of s: solved at s and then never again, as 2 s is beyond the last time, 2^63 - 2 ps.
TEST(a_step_beyond_the_last_time_ends_there) {
  constexpr Time kStep = Time{3} << 61;
  Transfers transfers;
  transfers.set_step(kStep);
  const QueueSpec queue[] = {{}};
  const Hop path[] = {{transfers.add_port(1, queue), 0}};
  transfers.start(path, kUnlimited);
  CHECK_EQ(transfers.next_end(), kNever);
  transfers.advance(Time{1} << 62);
  transfers.start(path, kUnlimited);
  CHECK_EQ(transfers.next_end(), kStep);
  transfers.advance(kStep);
  CHECK_EQ(transfers.next_end(), kNever);
  transfers.advance(kStep + 1);
  transfers.start(path, kUnlimited);
  CHECK_EQ(transfers.next_end(), kNever - 1);
}

TEST(an_incast_shares_the_receivers_link) {
  Simulation simulation(one_switch(5),
                        {stream(0, 4, 1 << 20), stream(1, 4, 1 << 20), stream(2, 4, 1 << 21)},
                        run_for(1'000'000'000'000));
  CHECK(simulation.run(1000) == Status::kFinished);
  CHECK_EQ(simulation.flow(0).finished, simulation.flow(1).finished);
  const double wire = 4 * (1 << 20) / 4096.0 * 4122 * 1000;  // ps of all bytes on one link
  CHECK(std::abs(static_cast<double>(simulation.flow(2).finished) - wire - 830'000) < 10);
  CHECK(close(simulation.carried()[2 * 4 + 1], wire / 1000));  // switch to host 4
}

TEST(lanes_share_by_the_low_table_and_wait_for_the_high_one) {
  NetworkSpec network = one_switch(5, 3);
  network.arbitration.low = {{0, 30}, {1, 10}};
  network.arbitration.high = {{2, 1}};
  std::vector<FlowSpec> flows = {stream(0, 4, 4096, -1), stream(1, 4, 4096, -1),
                                 stream(2, 4, 4096, -1)};
  flows[1].sl = 1;
  flows[2].sl = 2;
  flows[2].stop = 1'000'000'000;
  Simulation simulation(network, flows, run_for(2'000'000'000));
  CHECK(simulation.run(1000) == Status::kTimeUp);
  const double slow = static_cast<double>(simulation.flow(1).bytes);
  CHECK(std::abs(static_cast<double>(simulation.flow(0).bytes) / slow - 3) < 1e-3);
  // The high lane had the first half to itself, the others the second.
  CHECK(std::abs(static_cast<double>(simulation.flow(2).bytes) / (4 * slow) - 1) < 1e-3);
}

// Ranks 0 and 1 send two messages each to ranks 2 and 3, all posted at once: of both flows the
// first messages end at the same time.
TEST(messages_of_a_workload_leave_in_order_on_their_own_flows) {
  auto workload = std::make_shared<weft::packet::WorkloadSpec>();
  weft::workload::Operations& operations = workload->operations;
  operations.ranks = 4;
  operations.rank_start = {0, 2, 4, 6, 8};
  for (uint32_t i = 0; i < 8; ++i) {
    const bool sends = i < 4;
    operations.kind.push_back(sends ? weft::workload::Kind::kSend : weft::workload::Kind::kReceive);
    operations.rank.push_back(i / 2);
    operations.peer.push_back(sends ? i / 2 + 2 : i / 2 - 2);
    workload->flow.push_back(sends ? i / 2 : weft::workload::kNone);
  }
  operations.tag.assign(8, 0);
  operations.amount.assign(8, 8192);
  operations.cpu.assign(8, 0);
  operations.dependency_start.assign(9, 0);
  workload->host = {0, 1, 2, 3};
  workload->traffic.assign(4, 0);
  workload->begin.assign(4, 0);
  std::vector<FlowSpec> flows = {stream(0, 2, 8192, 2), stream(1, 3, 8192, 2)};
  for (FlowSpec& flow : flows) flow.pattern = weft::packet::Pattern::kWorkload;
  Simulation simulation(one_switch(4), flows, run_for(1'000'000'000), workload);
  CHECK(simulation.run(1000) == Status::kFinished);
  for (const size_t i : {0, 1}) {
    CHECK_EQ(simulation.flow(i).delivered, 2);
    CHECK_EQ(simulation.flow(i).bytes, 2 * 8192);
    CHECK_EQ(simulation.flow(i).last_delivery, 4 * 4122'000 + 400'000);
  }
  CHECK_EQ(simulation.rank_finished(2), simulation.rank_finished(3));
}
