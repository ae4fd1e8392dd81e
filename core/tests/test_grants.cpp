// Receivers that grant: which bytes go unasked, whose turn it is, and what that costs, by hand.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "check.hpp"
#include "packet/simulation.hpp"
#include "test_packet_fabric.hpp"

using namespace weft::packet;
using weft::test::SmallFabric;

namespace {

constexpr double kRate = 40e9;
constexpr int64_t kPayload = 4096;
constexpr Time kPacket = 200 * (kPayload + 26);  // on the wire, in ps
constexpr Time kLong = 1'000'000'000'000;

// Hosts on one switch without latency; host 0 receives.
SmallFabric star(int hosts, Time delay, int64_t ahead_packets, int messages) {
  SmallFabric fabric;
  const uint32_t middle = fabric.add_switch();
  for (int i = 0; i < hosts; ++i) fabric.cable(fabric.add_host(), middle, kRate, delay);
  fabric.route_shortest();
  GrantSpec& grants = fabric.spec.adapter.grants;
  grants.enabled = true;
  grants.ahead = ahead_packets * kPayload;
  grants.messages = messages;
  return fabric;
}

FlowSpec send(uint32_t src, int64_t packets, Time start = 0) {
  FlowSpec f;
  f.src = src;
  f.dst = 0;
  f.transport = Transport::kUc;
  f.size = packets * kPayload;
  f.messages = 1;
  f.start = start;
  return f;
}

RunSpec run_for(Time duration) {
  RunSpec run;
  run.duration = duration;
  return run;
}

struct Finished : Simulation {
  Finished(const SmallFabric& fabric, const std::vector<FlowSpec>& flows, Time duration = kLong)
      : Simulation(fabric.spec, flows, run_for(duration)) {
    run(100'000'000);
  }
};

// Packets that a host has sent.
int64_t sent_by(const Simulation& sim, const SmallFabric& fabric, uint32_t host) {
  for (size_t link = 0; link < sim.links(); ++link) {
    if (sim.link_from(link) != fabric.hosts()[host]) continue;
    int64_t packets = 0;
    for (int vl = 0; vl < sim.lanes(); ++vl) {
      packets += static_cast<int64_t>(sim.counters(link, vl).xmit_packets);
    }
    return packets;
  }
  return -1;
}

bool is_near(Time time, int64_t packets) {
  return std::abs(time - packets * kPacket) <= 2 * kPacket;
}

}  // namespace

// Before a grant can be back, three of ten packets are sent. Each of the first seven that arrive
// grants one more.
TEST(first_bytes_go_unasked_and_the_others_when_granted) {
  constexpr Time kDelay = 100'000'000;
  const SmallFabric fabric = star(2, kDelay, 3, 1);
  const Finished early(fabric, {send(1, 10)}, 4 * kDelay - 1);
  CHECK_EQ(sent_by(early, fabric, 1), 3);
  const Finished whole(fabric, {send(1, 10)});
  CHECK_EQ(sent_by(whole, fabric, 1), 10);
  CHECK_EQ(sent_by(whole, fabric, 0), 7);
  CHECK_EQ(whole.flow(0).bytes, 10 * kPayload);
}

// 30, 10 and 20 packets, two of each unasked. The shortest has its other 8 after these 6, then the
// next its 18, then the last its 28: the receiver's link is never idle.
TEST(messages_with_fewest_bytes_left_come_first_and_the_link_stays_busy) {
  const SmallFabric fabric = star(4, 0, 2, 1);
  const Finished sim(fabric, {send(1, 30), send(2, 10), send(3, 20)});
  CHECK(is_near(sim.flow(1).finished, 14));
  CHECK(is_near(sim.flow(2).finished, 32));
  CHECK(is_near(sim.flow(0).finished, 60));
}

// One that begins later with fewer bytes left takes its turn before the one that is being served.
TEST(a_shorter_message_preempts_a_longer_one) {
  const SmallFabric fabric = star(3, 0, 2, 1);
  const Finished sim(fabric, {send(1, 40), send(2, 10, 10 * kPacket)});
  CHECK(is_near(sim.flow(1).finished, 10 + 2 + 10));
  CHECK(is_near(sim.flow(0).finished, 50));
}

// Four messages, of which a receiver grants two: the other senders sent no more than went unasked.
TEST(a_receiver_grants_no_more_messages_than_its_overcommitment) {
  for (const int messages : {1, 2, 3}) {
    const SmallFabric fabric = star(5, 0, 4, messages);
    const std::vector<FlowSpec> flows = {send(1, 40), send(2, 41), send(3, 42), send(4, 43)};
    const Finished sim(fabric, flows, 40 * kPacket);
    int granted = 0;
    for (uint32_t host = 1; host <= 4; ++host) granted += sent_by(sim, fabric, host) > 4;
    CHECK_EQ(granted, messages);
  }
}

// Sender 1 has begun, and then serves a shorter message to another host. A receiver that grants one
// message waits for it; one that grants two has its link filled by sender 2.
TEST(overcommitment_fills_the_link_of_a_sender_that_does_not_answer) {
  const auto last = [](int messages) {
    const SmallFabric fabric = star(4, 0, 2, messages);
    FlowSpec elsewhere = send(1, 20, 3 * kPacket);
    elsewhere.dst = 3;
    const Finished sim(fabric, {elsewhere, send(1, 30), send(2, 40)});
    return std::max(sim.flow(1).finished, sim.flow(2).finished);
  };
  CHECK(is_near(last(2), 70));
  CHECK(last(1) > last(2) + 10 * kPacket);
}

// A message of one packet has the first priority by its size, and passes those that wait.
TEST(a_short_message_has_a_priority_by_its_size) {
  const auto latency = [](int priorities) {
    SmallFabric fabric = star(5, 0, 16, 4);
    fabric.spec.lanes = priorities;
    fabric.spec.arbitration.strict = true;
    for (int sl = 0; sl < 16; ++sl) {
      fabric.spec.sl2vl[static_cast<size_t>(sl)] =
          static_cast<uint8_t>(std::min(sl, priorities - 1));
    }
    fabric.spec.switches.virtual_output_queues = true;
    GrantSpec& grants = fabric.spec.adapter.grants;
    grants.priorities = priorities;
    if (priorities > 1) grants.cutoffs = {kPayload};
    const Time start = 8 * kPacket;
    const Finished sim(fabric, {send(1, 40), send(2, 40), send(3, 40), send(4, 1, start)});
    return sim.flow(3).finished - start;
  };
  CHECK(latency(2) <= 3 * kPacket);
  CHECK(latency(1) >= 6 * kPacket);
}

// All bytes unasked, priorities by the bytes left: 30, 10 and 20 packets end in their order.
// Buffers of two packets: what waits in them has the priority of when it was sent.
TEST(priorities_by_bytes_left_are_srpt_without_grants) {
  SmallFabric fabric = star(4, 0, 1000, 1);
  fabric.spec.lanes = 4;
  fabric.spec.arbitration.strict = true;
  for (int sl = 0; sl < 16; ++sl) {
    fabric.spec.sl2vl[static_cast<size_t>(sl)] = static_cast<uint8_t>(std::min(sl, 3));
  }
  fabric.spec.credits.switch_buffer_bytes = 2 * 65 * 64;
  GrantSpec& grants = fabric.spec.adapter.grants;
  grants.priorities = 4;
  grants.by_left = true;
  grants.cutoffs = {5 * kPayload, 10 * kPayload, 20 * kPayload};
  const Finished sim(fabric, {send(1, 30), send(2, 10), send(3, 20)});
  CHECK_EQ(sent_by(sim, fabric, 0), 0);
  CHECK(is_near(sim.flow(1).finished, 10));
  CHECK(is_near(sim.flow(2).finished, 30));
  CHECK(is_near(sim.flow(0).finished, 60));
}

TEST(lanes_in_strict_order_are_served_from_the_first) {
  ArbTables tables;
  tables.strict = true;
  const VlTables strict(tables);
  VlArbiter arbiter;
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(arbiter.choose(strict, 0b1100), 2);
    arbiter.sent(4096, 64);
  }
  CHECK_EQ(arbiter.choose(strict, 0b1101), 0);
}
