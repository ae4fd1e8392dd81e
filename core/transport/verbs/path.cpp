#include "transport/verbs/path.hpp"

#ifdef WEFT_HAVE_VERBS
#include <arpa/inet.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <iomanip>
#include <sstream>

namespace weft::transport::verbs {

namespace {

constexpr uint16_t kFullMember = 0x8000, kKeyBits = 0x7fff;
constexpr const char* kChooseGids =
    "choose GIDs that match with --gid-index and --peer-gid-index (weft doctor lists them)";

bool is_ipv4(const Address& address) {
  return IN6_IS_ADDR_V4MAPPED(address.gid.raw);
}

std::string text_of(const Address& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_ipv4(address))
    inet_ntop(AF_INET, address.gid.raw + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, address.gid.raw, text, sizeof text);
  return text;
}

// The subnet of a GID, its host bits zero: "10.9.0.0/24".
std::string subnet_of(Address address) {
  const int bits = address.prefix_bits + (is_ipv4(address) ? 96 : 0);
  for (int bit = bits; bit < 128; ++bit)
    address.gid.raw[bit / 8] &= static_cast<uint8_t>(~(0x80u >> (bit % 8)));
  return text_of(address) + "/" + std::to_string(address.prefix_bits);
}

std::string both(const std::string& ours, const std::string& theirs) {
  return "ours is " + ours + ", the peer's " + theirs;
}

std::string gid_text(const Address& address) {
  return text_of(address) + " (index " + std::to_string(address.gid_index) + ", " +
         name_of(address.link) + ")";
}

struct RouteRequest {
  nlmsghdr header{};
  rtmsg route{};
  std::array<char, 64> attributes{};

  void add(uint16_t type, const void* value, size_t bytes) {
    auto* attribute = reinterpret_cast<rtattr*>(reinterpret_cast<char*>(this) + header.nlmsg_len);
    attribute->rta_type = type;
    attribute->rta_len = static_cast<uint16_t>(RTA_LENGTH(bytes));
    std::memcpy(RTA_DATA(attribute), value, bytes);
    header.nlmsg_len += static_cast<uint32_t>(RTA_SPACE(bytes));
  }
};

// Whether the kernel has a route to the peer through this interface: the adapter's packets take
// the kernel's routes. Asked without a match in its tables, the kernel takes every address for a
// neighbour; RTM_F_FIB_MATCH has it look at the tables alone.
bool has_route(const std::string& netdev, const Address& peer) {
  const uint32_t interface = if_nametoindex(netdev.c_str());
  const int descriptor = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (descriptor < 0) return true;
  RouteRequest request;
  request.header.nlmsg_type = RTM_GETROUTE;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.header.nlmsg_len = NLMSG_LENGTH(sizeof(rtmsg));
  request.route.rtm_family = is_ipv4(peer) ? AF_INET : AF_INET6;
  request.route.rtm_dst_len = is_ipv4(peer) ? 32 : 128;
  request.route.rtm_flags = RTM_F_FIB_MATCH;
  request.add(RTA_DST, peer.gid.raw + (is_ipv4(peer) ? 12 : 0), is_ipv4(peer) ? 4 : 16);
  request.add(RTA_OIF, &interface, sizeof interface);
  alignas(nlmsghdr) std::array<char, 4096> answer{};
  const bool is_answered =
      send(descriptor, &request, request.header.nlmsg_len, 0) > 0 &&
      recv(descriptor, answer.data(), answer.size(), 0) >= ssize_t{NLMSG_LENGTH(sizeof(nlmsgerr))};
  close(descriptor);
  const auto* header = reinterpret_cast<const nlmsghdr*>(answer.data());
  if (!is_answered || header->nlmsg_type != NLMSG_ERROR) return true;
  const int code = static_cast<const nlmsgerr*>(NLMSG_DATA(header))->error;
  return code != -ENETUNREACH && code != -EHOSTUNREACH;
}

void check_links(const std::string& where, const Address& local, const Address& peer) {
  if (local.link == peer.link) return;
  const bool has_infiniband = local.link == Link::infiniband || peer.link == Link::infiniband;
  if (has_infiniband)
    throw Error(
        where,
        "the ports are of two kinds of fabric: " + both(name_of(local.link), name_of(peer.link)),
        "choose devices of one fabric with --over verbs:DEVICE and --peer-device");
  throw Error(where,
              "the GIDs are of two types, which cannot hear each other: " +
                  both(gid_text(local), gid_text(peer)),
              kChooseGids);
}

void check_subnets(const std::string& where, const Config& config, const std::string& netdev,
                   const Address& local, const Address& peer) {
  if (local.link == Link::roce_v2 && is_ipv4(local) != is_ipv4(peer))
    throw Error(where, "a GID of IPv4 and one of IPv6: " + both(gid_text(local), gid_text(peer)),
                kChooseGids);
  if (is_same_subnet(local, peer)) return;
  const std::string subnets = both(subnet_of(local), subnet_of(peer));
  if (local.link == Link::infiniband && config.gid_index < 0)
    throw Error(where, "the ports are in two InfiniBand subnets: " + subnets,
                "connect ports of one subnet (--port, --peer-port); if a router joins them, give "
                "--gid-index (unverified)");
  if (local.link == Link::roce_v1)
    throw Error(where, "RoCE v1 is not routed between subnets: " + subnets, kChooseGids);
  if (local.link == Link::roce_v2 && !has_route(netdev, peer))
    throw Error(where,
                "no route from " + text_of(local) + " (" + netdev + ") to " + text_of(peer) + ": " +
                    subnets,
                "add a route, or choose GIDs of one subnet with --gid-index and "
                "--peer-gid-index");
}

// Two limited members of a partition do not hear each other either.
void check_partitions(const std::string& where, const Address& local, const Address& peer) {
  const bool is_same = (local.partition & kKeyBits) == (peer.partition & kKeyBits);
  if (is_same && ((local.partition | peer.partition) & kFullMember)) return;
  throw Error(where,
              std::string(is_same ? "both ports are limited members of the partition: "
                                  : "the ports use different partitions: ") +
                  both(hex_of(local.partition), hex_of(peer.partition)),
              "choose a key that both have, one of them as full member, with --pkey (weft doctor)");
}

}  // namespace

const char* name_of(Link link) {
  constexpr const char* names[] = {"InfiniBand", "RoCE v1", "RoCE v2", "another fabric"};
  return names[static_cast<size_t>(link)];
}

Link link_of(const Port& port, const Gid& gid) {
  if (port.is_infiniband()) return Link::infiniband;
  if (port.attr.link_layer != IBV_LINK_LAYER_ETHERNET) return Link::other;
  return gid.type == "RoCE v2" ? Link::roce_v2 : Link::roce_v1;
}

std::string Address::text() const {
  std::ostringstream out;
  out << "verbs2 " << name_of(kind) << std::hex << ' ' << qp << ' ' << psn << ' ' << lid << ' ';
  for (const uint8_t byte : gid.raw) out << std::setw(2) << std::setfill('0') << int{byte};
  out << std::dec << ' ' << gid_index << ' ' << prefix_bits << ' ' << static_cast<int>(link)
      << std::hex << ' ' << partition << ' ' << mtu << ' ' << receive_bytes << ' ' << responder
      << ' ' << rkey << ' ' << window << ' ' << window_bytes;
  return out.str();
}

Address Address::parse(const std::string& where, const std::string& text) {
  std::istringstream in(text);
  std::string version, kind, gid;
  Address address;
  int link = -1;
  in >> version >> kind >> std::hex >> address.qp >> address.psn >> address.lid >> gid >>
      std::dec >> address.gid_index >> address.prefix_bits >> link >> std::hex >>
      address.partition >> address.mtu >> address.receive_bytes >> address.responder >>
      address.rkey >> address.window >> address.window_bytes;
  bool is_known_kind = false;
  for (const Kind candidate : {Kind::rc, Kind::uc, Kind::ud, Kind::srd}) {
    if (kind != name_of(candidate)) continue;
    address.kind = candidate;
    is_known_kind = true;
  }
  const bool is_hex = gid.size() == 32 && gid.find_first_not_of("0123456789abcdef") == gid.npos;
  const bool is_path = address.prefix_bits >= 0 && address.prefix_bits <= 128 && link >= 0 &&
                       link <= static_cast<int>(Link::other);
  if (in.fail() || version != "verbs2" || !is_known_kind || !is_hex || !is_path ||
      !std::has_single_bit(address.mtu) || address.mtu < 256 || address.mtu > 4096)
    throw Error(where, "the peer's address is not one of the verbs transport",
                "run the same version of weft with the same --over on both sides");
  address.link = static_cast<Link>(link);
  for (size_t i = 0; i < 16; ++i)
    address.gid.raw[i] = static_cast<uint8_t>(std::stoi(gid.substr(2 * i, 2), nullptr, 16));
  return address;
}

bool is_same_subnet(const Address& local, const Address& peer) {
  Address there = peer;
  there.prefix_bits = local.prefix_bits;
  return subnet_of(local) == subnet_of(there);
}

void check_path(const std::string& where, const Config& config, const std::string& netdev,
                const Address& local, const Address& peer) {
  check_links(where, local, peer);
  check_subnets(where, config, netdev, local, peer);
  check_partitions(where, local, peer);
}

std::string describe_path(const Address& local, const Address& peer) {
  if (is_same_subnet(local, peer)) return "within " + subnet_of(local);
  return "routed from " + subnet_of(local) + " to " + subnet_of(peer);
}

}  // namespace weft::transport::verbs
#endif
