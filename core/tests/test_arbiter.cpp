// VL arbitration against its definition (InfiniBand specification volume 1, 7.6.9).
#include <array>
#include <map>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "check.hpp"
#include "packet/arbiter.hpp"

using weft::Rng;
using weft::packet::ArbEntry;
using weft::packet::ArbTables;
using weft::packet::VlArbiter;

namespace {

// Packets served per lane in `turns` choices with these lanes always backlogged.
std::array<int64_t, 16> serve(const ArbTables& tables, const std::array<int, 16>& packet_blocks,
                              uint32_t ready, int turns) {
  VlArbiter arbiter;
  std::array<int64_t, 16> served{};
  for (int i = 0; i < turns; ++i) {
    const int vl = arbiter.choose(tables, ready);
    if (vl < 0) break;
    const int blocks = packet_blocks[static_cast<size_t>(vl)];
    arbiter.sent(blocks * 64, blocks);
    ++served[static_cast<size_t>(vl)];
  }
  return served;
}

// The lanes in order of service: 'H' and 'L' of the first `turns` choices.
std::string pattern(int high_limit, int packet_bytes, int turns) {
  const ArbTables tables{{{0, 255}}, {{1, 255}}, high_limit};
  VlArbiter arbiter;
  std::string text;
  for (int i = 0; i < turns; ++i) {
    text += arbiter.choose(tables, 3) == 0 ? 'H' : 'L';
    arbiter.sent(packet_bytes, (packet_bytes + 63) / 64);
  }
  return text;
}

ArbEntry random_entry(Rng& rng) {
  return {static_cast<uint8_t>(rng.next() % 8), static_cast<uint8_t>(rng.next() % 256)};
}

}  // namespace

// A turn of an entry serves packets until its weight is used up, the last one whole:
// ceil(weight / blocks of a packet) packets per entry and round.
TEST(backlogged_lanes_share_by_ceil_of_weight_over_packet_blocks_for_random_tables) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Rng rng(seed);
    ArbTables tables;
    std::array<int, 16> blocks{};
    for (int& b : blocks) b = 1 + static_cast<int>(rng.next() % 66);
    const size_t entries = 1 + rng.next() % 16;
    for (size_t i = 0; i < entries; ++i) tables.low.push_back(random_entry(rng));
    tables.low[0].weight |= 1;  // something to serve
    const uint32_t ready = 0xFF;
    std::array<int64_t, 16> share{};
    int64_t round = 0;
    for (const ArbEntry& e : tables.low) {
      const int64_t packets = (e.weight + blocks[e.vl] - 1) / blocks[e.vl];
      share[e.vl] += packets;
      round += packets;
    }
    const auto served = serve(tables, blocks, ready, static_cast<int>(20 * round));
    for (size_t vl = 0; vl < 16; ++vl) CHECK_EQ(served[vl], 20 * share[vl]);
  }
}

TEST(an_entry_whose_lane_has_nothing_to_send_is_passed_over_and_the_rest_keep_their_shares) {
  const ArbTables tables{{}, {{0, 10}, {1, 20}, {2, 40}}, 255};
  std::array<int, 16> blocks{};
  blocks.fill(10);
  const auto served = serve(tables, blocks, 0b101, 500);
  CHECK_EQ(served[0], 100);
  CHECK_EQ(served[1], 0);
  CHECK_EQ(served[2], 400);
}

TEST(a_lane_in_no_table_or_with_weight_0_only_is_never_served) {
  const ArbTables tables{{{0, 0}}, {{1, 7}, {2, 0}}, 255};
  std::array<int, 16> blocks{};
  blocks.fill(1);
  VlArbiter arbiter;
  CHECK_EQ(arbiter.choose(tables, 0b1101), -1);
  const auto served = serve(tables, blocks, 0b1111, 100);
  CHECK_EQ(served[1], 100);
}

TEST(a_limit_of_high_priority_of_0_allows_one_high_packet_for_each_low_one) {
  for (const int bytes : {64, 4160, 8192}) CHECK_EQ(pattern(0, bytes, 8), std::string("HLHLHLHL"));
}

TEST(a_limit_of_high_priority_of_255_starves_the_low_table) {
  CHECK_EQ(pattern(255, 4160, 5000), std::string(5000, 'H'));
}

// k x 4096 bytes may leave from the high table, the last packet whole, then one low packet.
TEST(a_limit_of_high_priority_of_k_lets_k_times_4096_bytes_pass_between_two_low_packets) {
  for (const int k : {1, 2, 3, 17, 254}) {
    for (const int bytes : {64, 320, 4096, 4160}) {
      const int run = (k * 4096 + bytes - 1) / bytes;
      std::string expected;
      for (int i = 0; i < 3; ++i) expected += std::string(static_cast<size_t>(run), 'H') + 'L';
      CHECK_EQ(pattern(k, bytes, 3 * (run + 1)), expected);
    }
  }
}

TEST(no_low_lane_starves_unless_the_limit_is_255) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    ArbTables tables{{{0, 255}, {1, 255}}, {}, static_cast<int>(rng.next() % 255)};
    std::array<int, 16> blocks{};
    blocks.fill(1 + static_cast<int>(rng.next() % 66));
    for (uint8_t vl = 2; vl < 6; ++vl) {
      tables.low.push_back({vl, static_cast<uint8_t>(1 + rng.next() % 255)});
    }
    // The longest round: 255 x 4 low packets, each after 254 x 4096 bytes of high ones.
    const int turns = 255 * 4 * (1 + (tables.high_limit + 1) * 64 / blocks[0] + 1);
    const auto served = serve(tables, blocks, 0b111111, turns);
    for (size_t vl = 0; vl < 6; ++vl) CHECK(served[vl] > 0);
  }
}

TEST(high_priority_alone_is_served_without_pause_at_any_limit) {
  for (const int limit : {0, 1, 254, 255}) {
    const ArbTables tables{{{3, 1}}, {{1, 1}}, limit};
    std::array<int, 16> blocks{};
    blocks.fill(65);
    CHECK_EQ(serve(tables, blocks, 0b1000, 1000)[3], 1000);
  }
}

// A quota used up while no low packet waited begins anew: with a quota of two packets, after any
// number of high packets alone, a low packet waits for what is left of the current quota only.
TEST(high_packets_sent_alone_do_not_count_against_the_next_quota) {
  const ArbTables tables{{{0, 255}}, {{1, 255}}, 1};
  for (int alone = 1; alone <= 9; ++alone) {
    VlArbiter arbiter;
    for (int i = 0; i < alone; ++i) {
      CHECK_EQ(arbiter.choose(tables, 0b01), 0);
      arbiter.sent(2048, 32);
    }
    std::string text;
    for (int i = 0; i < 4; ++i) {
      text += arbiter.choose(tables, 0b11) == 0 ? 'H' : 'L';
      arbiter.sent(2048, 32);
    }
    CHECK_EQ(text, std::string(alone % 2 ? "HLHH" : "LHHL"));
  }
}
