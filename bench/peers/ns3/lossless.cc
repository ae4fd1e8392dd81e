// Scenarios S1 and S2 on ns-3, at its fastest: raw point-to-point devices, no IP.
//
// ns-3 has no link-level credits. Queues are unbounded in effect and each sender keeps a fixed
// window of unacknowledged packets, so nothing is dropped and queues stay short; a drop ends the
// run. Switches store and forward. A packet's flow and kind travel as an ns-3 packet tag.
//
//   lossless s1 [MILLISECONDS=100]   one switch, 5 saturating senders and a closed-loop probe
//   lossless s2 [K=8] [SEED=...]     k-ary fat tree, random derangement, 1 MiB per host
//
// Prints one JSON line. A packet-hop is one packet received over one directed link: it has then
// finished its serialisation there. CPU time is that of the event loop; set-up is not timed.
// Exit status: 0 done, 1 the packet-hop count contradicts the arithmetic or a packet was dropped,
// 2 bad arguments.

#include <ns3/core-module.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-module.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

namespace {

using namespace ns3;

constexpr uint64_t kRateBps = 56'000'000'000;
constexpr uint32_t kDelayNs = 50;
constexpr uint32_t kDataBytes = 4096;
constexpr uint32_t kSmallBytes = 64;  // probe and ACK
constexpr uint32_t kPppBytes = 2;     // the device adds this header to what it is given
constexpr uint16_t kProtocol = 0x0800;
constexpr uint32_t kWindow = 8;  // packets: the 32 KB of one input buffer
constexpr uint64_t kUnlimited = UINT64_MAX;

// The first seed whose derangements cost the packet-hops of the reference runs, for k = 8 (381,952)
// and for k = 16 (3,078,144).
constexpr uint64_t kSeed = 2748;

[[noreturn]] void fail(int status, const std::string& message) {
  std::fprintf(stderr, "lossless: %s\n", message.c_str());
  std::exit(status);
}

class Label : public Tag {
 public:
  Label() = default;
  Label(uint32_t flow, bool ack) : word_(flow << 1 | static_cast<uint32_t>(ack)) {}

  uint32_t flow() const { return word_ >> 1; }
  bool ack() const { return word_ & 1; }

  static TypeId GetTypeId() {
    static const TypeId id =
        TypeId("weft::Label").SetParent<Tag>().AddConstructor<Label>().HideFromDocumentation();
    return id;
  }
  TypeId GetInstanceTypeId() const override { return GetTypeId(); }
  uint32_t GetSerializedSize() const override { return sizeof word_; }
  void Serialize(TagBuffer buffer) const override { buffer.WriteU32(word_); }
  void Deserialize(TagBuffer buffer) override { word_ = buffer.ReadU32(); }
  void Print(std::ostream& out) const override { out << flow() << (ack() ? " ack" : " data"); }

 private:
  uint32_t word_ = 0;
};

struct Flow {
  uint32_t source;
  uint32_t destination;
  uint32_t packet_bytes;
  uint32_t window;
  uint64_t unsent;
  uint64_t acked = 0;
};

class Fabric {
 public:
  using Port = Ptr<PointToPointNetDevice>;

  explicit Fabric(uint32_t hosts) : host_port_(hosts) {}

  uint32_t add_switch() {
    switches_.push_back({CreateObject<Node>(), this, {}, std::vector<uint16_t>(host_port_.size())});
    return static_cast<uint32_t>(switches_.size() - 1);
  }

  // Host links come first on an edge switch, so port numbers are in order of connection.
  void connect_host(uint32_t host, uint32_t at) {
    const auto [near, far] = cable(CreateObject<Node>(), switches_[at].node);
    near->SetReceiveCallback(MakeCallback(&Fabric::receive_at_host, this));
    host_port_[host] = near;
    attach(at, far);
  }

  void connect_switches(uint32_t lower, uint32_t upper) {
    const auto [near, far] = cable(switches_[lower].node, switches_[upper].node);
    attach(lower, near);
    attach(upper, far);
  }

  void set_route(uint32_t at, uint32_t host, uint32_t port) {
    switches_[at].port_to[host] = static_cast<uint16_t>(port);
  }

  void add_flow(const Flow& flow) { flows_.push_back(flow); }

  void start() {
    for (uint32_t flow = 0; flow < flows_.size(); ++flow) {
      for (uint32_t i = 0; i < flows_[flow].window; ++i) send_next(flow);
    }
  }

  uint64_t packet_hops() const { return packet_hops_; }
  const std::vector<Flow>& flows() const { return flows_; }

 private:
  struct Switch {
    Ptr<Node> node;
    Fabric* fabric;
    std::vector<Port> ports;
    std::vector<uint16_t> port_to;  // by destination host

    bool receive(Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t, const Address&) {
      ++fabric->packet_hops_;
      Label label;
      packet->PeekPacketTag(label);
      const Flow& flow = fabric->flows_[label.flow()];
      const uint32_t host = label.ack() ? flow.source : flow.destination;
      // The device made this copy for us and keeps no other, so it can be sent on as it is.
      transmit(ports[port_to[host]], ConstCast<Packet>(packet));
      return true;
    }
  };

  static void transmit(const Port& port, Ptr<Packet> packet) {
    static const Address nobody = Mac48Address::GetBroadcast();
    if (!port->Send(packet, nobody, kProtocol)) fail(1, "a packet was dropped: a queue is full");
  }

  static Port make_port(Ptr<Node> node) {
    auto port = CreateObject<PointToPointNetDevice>();
    port->SetAddress(Mac48Address::Allocate());
    port->SetDataRate(DataRate(kRateBps));
    auto queue = CreateObject<DropTailQueue<Packet>>();
    queue->SetMaxSize(QueueSize("1000000p"));
    port->SetQueue(queue);
    node->AddDevice(port);
    return port;
  }

  static std::pair<Port, Port> cable(Ptr<Node> a, Ptr<Node> b) {
    auto channel = CreateObject<PointToPointChannel>();
    channel->SetAttribute("Delay", TimeValue(NanoSeconds(kDelayNs)));
    std::pair<Port, Port> ends{make_port(a), make_port(b)};
    ends.first->Attach(channel);
    ends.second->Attach(channel);
    return ends;
  }

  void attach(uint32_t at, const Port& port) {
    switches_[at].ports.push_back(port);
    port->SetReceiveCallback(MakeCallback(&Switch::receive, &switches_[at]));
  }

  bool receive_at_host(Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t, const Address&) {
    ++packet_hops_;
    Label label;
    packet->PeekPacketTag(label);
    if (label.ack()) {
      ++flows_[label.flow()].acked;
      send_next(label.flow());
    } else {
      send(flows_[label.flow()].destination, kSmallBytes, Label(label.flow(), true));
    }
    return true;
  }

  void send_next(uint32_t id) {
    Flow& flow = flows_[id];
    if (flow.unsent == 0) return;
    if (flow.unsent != kUnlimited) --flow.unsent;
    send(flow.source, flow.packet_bytes, Label(id, false));
  }

  void send(uint32_t host, uint32_t bytes, const Label& label) {
    auto packet = Create<Packet>(bytes - kPppBytes);
    packet->AddPacketTag(label);
    transmit(host_port_[host], packet);
  }

  std::vector<Port> host_port_;
  std::deque<Switch> switches_;  // a deque: callbacks hold their addresses
  std::vector<Flow> flows_;
  uint64_t packet_hops_ = 0;
};

double user_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * usage.ru_utime.tv_usec;
}

// This program's peak. The kernel's ru_maxrss begins with the peak of whoever started it.
double peak_rss_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) / 1024.0;
  }
  return 0;
}

void run_and_report(const std::string& scenario, const Fabric& fabric) {
  const double before = user_cpu_s();
  Simulator::Run();
  const double cpu_s = user_cpu_s() - before;
  const auto hops = static_cast<double>(fabric.packet_hops());
  std::printf(
      "{\"scenario\": \"%s\", \"packet_hops\": %.0f, \"user_cpu_s\": %.3f, "
      "\"packet_hops_per_cpu_s\": %.0f, \"peak_rss_mib\": %.1f, \"simulated_us\": %.3f}\n",
      scenario.c_str(), hops, cpu_s, hops / cpu_s, peak_rss_mib(),
      static_cast<double>(Simulator::Now().GetPicoSeconds()) * 1e-6);
}

// Every acknowledged packet crossed 2 links and its ACK 2 more; a packet in a window may have
// crossed up to 3 by the end. The receiver's link must have been full but for the first trip.
void check_one_switch(const Fabric& fabric, double simulated_s) {
  uint64_t acked = 0;
  uint64_t window = 0;
  double data_bits = 0;
  for (const Flow& flow : fabric.flows()) {
    acked += flow.acked;
    window += flow.window;
    data_bits += 8.0 * static_cast<double>(flow.acked) * flow.packet_bytes;
  }
  const uint64_t hops = fabric.packet_hops();
  if (hops < 4 * acked || hops > 4 * acked + 3 * window) {
    fail(1, std::to_string(hops) + " packet-hops for " + std::to_string(acked) + " ACKs");
  }
  const double share = data_bits / (kRateBps * simulated_s);
  if (simulated_s >= 1e-3 && share < 0.99) {
    fail(1, "the receiver's link was only " + std::to_string(100 * share) + " % full");
  }
}

void one_switch(uint32_t milliseconds) {
  constexpr uint32_t kSenders = 5;
  constexpr uint32_t kProbe = kSenders;
  constexpr uint32_t kReceiver = kSenders + 1;
  Fabric fabric(kSenders + 2);
  const uint32_t center = fabric.add_switch();
  for (uint32_t host = 0; host <= kReceiver; ++host) {
    fabric.connect_host(host, center);
    fabric.set_route(center, host, host);
  }
  for (uint32_t host = 0; host < kSenders; ++host) {
    fabric.add_flow({host, kReceiver, kDataBytes, kWindow, kUnlimited});
  }
  fabric.add_flow({kProbe, kReceiver, kSmallBytes, 1, kUnlimited});
  fabric.start();
  Simulator::Stop(MilliSeconds(milliseconds));
  run_and_report("S1", fabric);
  check_one_switch(fabric, 1e-3 * milliseconds);
}

uint64_t split_mix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Shuffled until no host sends to itself: each derangement is equally likely.
std::vector<uint32_t> derangement(uint32_t hosts, uint64_t seed) {
  std::vector<uint32_t> to(hosts);
  std::iota(to.begin(), to.end(), 0);
  const auto sends_to_itself = [&](uint32_t host) { return to[host] == host; };
  const auto order = to;
  do {
    for (uint32_t i = hosts - 1; i > 0; --i) std::swap(to[i], to[split_mix(seed) % (i + 1)]);
  } while (std::any_of(order.begin(), order.end(), sends_to_itself));
  return to;
}

// k pods of k/2 edge and k/2 aggregation switches, (k/2)^2 cores, k/2 hosts under each edge switch.
struct FatTree {
  uint32_t k;
  uint32_t half = k / 2;
  uint32_t hosts = k * half * half;

  uint32_t edge_of(uint32_t host) const { return host / half; }
  uint32_t pod_of(uint32_t host) const { return host / (half * half); }
  uint32_t links_between(uint32_t a, uint32_t b) const {
    if (edge_of(a) == edge_of(b)) return 2;
    return pod_of(a) == pod_of(b) ? 4 : 6;
  }

  // Switches are numbered edges, aggregations, cores. Ports 0..half-1 lead down, the rest up.
  uint32_t edge(uint32_t pod, uint32_t i) const { return pod * half + i; }
  uint32_t aggregation(uint32_t pod, uint32_t i) const { return k * half + pod * half + i; }
  uint32_t core(uint32_t group, uint32_t i) const { return 2 * k * half + group * half + i; }
};

void build(const FatTree& tree, Fabric& fabric) {
  const uint32_t half = tree.half;
  for (uint32_t i = 0; i < 2 * tree.k * half + half * half; ++i) fabric.add_switch();
  for (uint32_t host = 0; host < tree.hosts; ++host) fabric.connect_host(host, tree.edge_of(host));
  for (uint32_t pod = 0; pod < tree.k; ++pod) {
    for (uint32_t e = 0; e < half; ++e) {
      for (uint32_t a = 0; a < half; ++a) {
        fabric.connect_switches(tree.edge(pod, e), tree.aggregation(pod, a));
      }
    }
  }
  for (uint32_t pod = 0; pod < tree.k; ++pod) {
    for (uint32_t a = 0; a < half; ++a) {
      for (uint32_t c = 0; c < half; ++c) {
        fabric.connect_switches(tree.aggregation(pod, a), tree.core(a, c));
      }
    }
  }
}

// Destination modulo over the equal upward paths: all packets to one host meet at one core.
void route(const FatTree& tree, Fabric& fabric) {
  const uint32_t half = tree.half;
  for (uint32_t host = 0; host < tree.hosts; ++host) {
    const uint32_t position = host % half;
    const uint32_t edge = tree.edge_of(host) % half;
    const uint32_t home = tree.pod_of(host);
    for (uint32_t pod = 0; pod < tree.k; ++pod) {
      for (uint32_t i = 0; i < half; ++i) {
        const bool under = pod == home && i == edge;
        fabric.set_route(tree.edge(pod, i), host, under ? position : half + position);
        fabric.set_route(tree.aggregation(pod, i), host, pod == home ? edge : half + edge);
      }
    }
    for (uint32_t i = 0; i < half * half; ++i) fabric.set_route(tree.core(0, i), host, home);
  }
}

void fat_tree(uint32_t k, uint64_t seed) {
  constexpr uint64_t kPackets = (1 << 20) / kDataBytes;
  const FatTree tree{k};
  Fabric fabric(tree.hosts);
  build(tree, fabric);
  route(tree, fabric);
  const auto destination = derangement(tree.hosts, seed);
  uint64_t links = 0;
  for (uint32_t host = 0; host < tree.hosts; ++host) {
    fabric.add_flow({host, destination[host], kDataBytes, kWindow, kPackets});
    links += tree.links_between(host, destination[host]);
  }
  fabric.start();
  run_and_report("S2-k" + std::to_string(k), fabric);
  for (const Flow& flow : fabric.flows()) {
    if (flow.acked != kPackets) fail(1, "a flow did not complete");
  }
  const uint64_t expected = 2 * kPackets * links;
  if (fabric.packet_hops() != expected) {
    fail(1, std::to_string(fabric.packet_hops()) + " packet-hops, expected " +
                std::to_string(expected) + " = 2 x 256 packets x " + std::to_string(links) +
                " links");
  }
}

uint64_t number(const char* text, const char* name, uint64_t low, uint64_t high) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (*text == '-' || *text == '\0' || *end != '\0' || value < low || value > high) {
    fail(2, std::string(name) + " " + text + ": must be a whole number from " +
                std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  Time::SetResolution(Time::PS);
  // Of ns-3's event queues the fastest here: 25-30 % ahead of the default map (medians of four
  // alternating runs of S1, S2 k = 8 and k = 16).
  GlobalValue::Bind("SchedulerType", TypeIdValue(PriorityQueueScheduler::GetTypeId()));
  if (scenario == "s1" && argc <= 3) {
    one_switch(argc > 2 ? number(argv[2], "MILLISECONDS", 1, 100'000) : 100);
  } else if (scenario == "s2" && argc <= 4) {
    const uint64_t k = argc > 2 ? number(argv[2], "K", 2, 64) : 8;
    if (k % 2 != 0) fail(2, "K " + std::to_string(k) + ": must be even");
    fat_tree(k, argc > 3 ? number(argv[3], "SEED", 0, UINT64_MAX) : kSeed);
  } else {
    fail(2, "usage: lossless s1 [MILLISECONDS] | lossless s2 [K [SEED]]");
  }
  Simulator::Destroy();
}
