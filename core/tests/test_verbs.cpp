// Paths between ports that no soft RoCE device has: InfiniBand, RoCE v1, partitions, two ports.
#include "transport/verbs/path.hpp"

#ifdef WEFT_HAVE_VERBS
#include <arpa/inet.h>

#include <string>

#include "base/error.hpp"
#include "check.hpp"

namespace {

using namespace weft::transport;
using namespace weft::transport::verbs;

Address address(Link link, const std::string& ip, int bits) {
  Address made;
  made.link = link;
  made.mtu = 1024;
  made.gid_index = 3;
  made.prefix_bits = bits;
  if (inet_pton(AF_INET6, ip.c_str(), made.gid.raw) != 1) {
    made.gid.raw[10] = made.gid.raw[11] = 0xff;
    inet_pton(AF_INET, ip.c_str(), made.gid.raw + 12);
  }
  return made;
}

// The error of connecting the two; "" if there is none.
std::string refusal(const Address& local, const Address& peer, const Config& config = {}) {
  try {
    check_path("mlx5_0 port 1", config, "", local, peer);
  } catch (const weft::Error& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

Port port(int number, ibv_port_state state) {
  Port made;
  made.number = number;
  made.attr.state = state;
  return made;
}

}  // namespace

TEST(verbs_refuses_two_gid_types_and_names_both) {
  const std::string text =
      refusal(address(Link::roce_v1, "fe80::1", 64), address(Link::roce_v2, "10.0.0.1", 24));
  CHECK(has(text, "ours is fe80::1 (index 3, RoCE v1), the peer's 10.0.0.1 (index 3, RoCE v2)"));
  CHECK(has(text, "--peer-gid-index"));
}

TEST(verbs_refuses_infiniband_with_ethernet) {
  const std::string text =
      refusal(address(Link::infiniband, "fe80::1", 64), address(Link::roce_v2, "10.0.0.1", 24));
  CHECK(has(text, "ours is InfiniBand, the peer's RoCE v2"));
}

TEST(verbs_refuses_other_infiniband_subnets_unless_a_gid_is_chosen) {
  const Address local = address(Link::infiniband, "fe80::1", 64);
  const Address peer = address(Link::infiniband, "fec0:0:0:7::1", 64);
  CHECK(has(refusal(local, peer), "ours is fe80::/64, the peer's fec0:0:0:7::/64"));
  Config routed;
  routed.gid_index = 0;
  CHECK_EQ(refusal(local, peer, routed), "");
  CHECK_EQ(refusal(local, address(Link::infiniband, "fe80::2", 64)), "");
}

TEST(verbs_refuses_roce_v1_between_subnets) {
  CHECK(has(refusal(address(Link::roce_v1, "fe80::1", 64), address(Link::roce_v1, "fec0::1", 64)),
            "RoCE v1 is not routed between subnets"));
}

TEST(verbs_takes_the_subnet_from_the_netmask) {
  const Address local = address(Link::roce_v2, "10.0.3.1", 22);
  CHECK_EQ(describe_path(local, address(Link::roce_v2, "10.0.0.9", 22)), "within 10.0.0.0/22");
  CHECK_EQ(describe_path(local, address(Link::roce_v2, "10.0.4.9", 22)),
           "routed from 10.0.0.0/22 to 10.0.4.0/22");
}

TEST(verbs_partitions_must_match_with_one_full_member) {
  Address local = address(Link::infiniband, "fe80::1", 64), peer = local;
  local.partition = 0x8001;
  peer.partition = 0x8002;
  CHECK(has(refusal(local, peer), "ours is 0x8001, the peer's 0x8002"));
  peer.partition = 0x0001;
  CHECK_EQ(refusal(local, peer), "");
  local.partition = 0x0001;
  CHECK(has(refusal(local, peer), "both ports are limited members"));
}

TEST(verbs_addresses_survive_their_text) {
  Address sent = address(Link::roce_v2, "10.0.3.1", 22);
  sent.qp = 0xabcdef;
  sent.partition = 0x7fff;
  sent.window = uint64_t{1} << 47;
  const Address got = Address::parse("here", sent.text());
  CHECK_EQ(got.text(), sent.text());
  CHECK_EQ(got.partition, sent.partition);
  CHECK_THROWS(weft::Error, Address::parse("here", "verbs1 " + sent.text().substr(7)));
}

TEST(device_ticks_wrap_at_the_width_of_their_counter) {
  constexpr uint64_t mask = (uint64_t{1} << 40) - 1;
  CHECK_EQ(tick_difference(15, 5, mask), 10);
  CHECK_EQ(tick_difference(5, 15, mask), -10);
  CHECK_EQ(tick_difference(4, mask - 5, mask), 10);
  CHECK_EQ(tick_difference(mask - 5, 4, mask), -10);
  CHECK_EQ(tick_difference(3, 7, ~uint64_t{0}), -4);
}

TEST(verbs_takes_or_suggests_the_port_that_is_active) {
  const Port down = port(1, IBV_PORT_DOWN), up = port(2, IBV_PORT_ACTIVE);
  CHECK_EQ(first_active({down, up}), 2);
  CHECK_EQ(first_active({down}), 1);
  CHECK(has(inactive_remedy(down, {down, up}), "use --port 2, which is ACTIVE"));
  CHECK(!has(inactive_remedy(down, {down}), "--port"));
}
#endif
