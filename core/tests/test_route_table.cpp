#include <algorithm>
#include <vector>

#include "check.hpp"
#include "fabric/route_table.hpp"

using namespace weft::fabric;

namespace {

// Two switches of two ports, 70 targets: more than one word of bits.
constexpr size_t kTargets = 70, kWords = 2;

std::vector<uint64_t> all_targets(size_t rows) {
  std::vector<uint64_t> bits(rows * kWords, ~uint64_t{0});
  for (size_t row = 0; row < rows; ++row) bits[row * kWords + 1] = (1 << (kTargets - 64)) - 1;
  return bits;
}

// A ring of three switches, each with one host on port 3; port 1 leads on, port 2 back.
struct Ring {
  std::vector<uint16_t> next_hop = {2, 0, 0, 0, 2, 0, 0, 0, 2};
  std::vector<uint32_t> start = {0, 1, 2, 3, 5}, ports = {1, 2, 3, 1, 2};
  std::vector<int32_t> peer = {-1, 1, 2, -2, -1, 2, 0, -3, -1, 0, 1, -4};

  int64_t lost(std::vector<int32_t> from, std::vector<int32_t> to) const {
    std::vector<int64_t> order;
    for (size_t i = 0; i < from.size(); ++i) order.push_back(static_cast<int64_t>(i));
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return to[a] < to[b]; });
    return find_lost_pair({3, 3, 4, next_hop, start, ports, peer}, from, to, order);
  }
};

}  // namespace

TEST(targets_with_equal_ports_share_a_group_and_none_has_minus_one) {
  std::vector<uint64_t> bits = all_targets(4);
  bits[0] &= ~uint64_t{1};        // switch 0, port 1, target 0
  bits[4 + 1] = bits[6 + 1] = 0;  // switch 1 reaches nothing from target 64 on
  std::vector<int32_t> group(2 * kTargets);
  const std::vector<Ports> groups = group_ports({2, 2, kTargets, bits}, group);
  CHECK_EQ(groups.size(), size_t{2});
  CHECK(groups[group[0]] == Ports{2});
  CHECK((groups[group[1]] == Ports{1, 2}));
  CHECK_EQ(group[1], group[kTargets + 63]);
  CHECK_EQ(group[kTargets + 64], -1);
}

TEST(hosts_take_the_ports_of_a_group_in_turn_and_divided_on_the_way_up) {
  const std::vector<int32_t> group = {0, 1, 0, -1}, target_of = {0, 0, 0, 0, 1, 1};
  const std::vector<uint8_t> up = {1, 0, 0, 0};  // port 1 of switch 0 leads up
  const std::vector<int64_t> divisor = {2, 2};
  std::vector<int16_t> ports(2 * target_of.size());
  spread_destinations({2, group, up, divisor, target_of, 2}, {{1, 2}, {2}}, ports);
  CHECK((ports == std::vector<int16_t>{1, 1, 2, 2, 2, 2, 1, 2, 1, 2, 0, 0}));
}

TEST(ports_are_numbered_among_those_in_use) {
  std::vector<int16_t> ports = {7, 0, 254, 7, 3};
  CHECK((number_ports(ports) == Ports{3, 7, 254}));
  CHECK((ports == std::vector<int16_t>{1, -1, 2, 1, 0}));
}

TEST(a_ring_sends_everything_home) {
  CHECK_EQ(Ring().lost({0, 0, 1, 1, 2, 2}, {1, 2, 0, 2, 0, 1}), -1);
}

TEST(the_lowest_pair_with_a_lost_path_is_named) {
  Ring ring;
  ring.next_hop[3 + 0] = 3;  // switch 1 sends host 0's packets on, or back: both arrive
  CHECK_EQ(ring.lost({1, 2}, {0, 0}), -1);
  ring.next_hop[6 + 0] = 1;  // switch 2 sends them back to switch 1
  CHECK_EQ(ring.lost({0, 1, 2}, {1, 0, 0}), 1);
  ring.next_hop[6 + 0] = kNoGroup;
  CHECK_EQ(ring.lost({2, 1, 0}, {0, 0, 0}), 0);
  ring.next_hop[6 + 0] = 2;  // to the wrong host
  CHECK_EQ(ring.lost({0, 2, 1}, {2, 0, 0}), 1);
}
