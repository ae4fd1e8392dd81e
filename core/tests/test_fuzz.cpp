// Random small fabrics and traffics: the laws of a lossless fabric hold in every one.
//
// WEFT_FUZZ_CASES=n sets how many, WEFT_FUZZ_SEED=s runs only the fabric of that seed.
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/rng.hpp"
#include "check.hpp"
#include "packet/simulation.hpp"
#include "test_packet_fabric.hpp"

using namespace weft::packet;
using weft::Rng;
using weft::test::SmallFabric;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kCases = 2'500;
#else
constexpr uint64_t kCases = 12'000;
#endif
constexpr Time kGenerous = 100'000'000'000'000;  // 100 s

struct Dice : Rng {
  using Rng::Rng;
  int64_t in(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int n) { return in(1, n) == 1; }
  Time time(Time high) { return one_in(3) ? 0 : in(0, high); }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[in(0, static_cast<int64_t>(values.size()) - 1)];
  }
};

struct Case {
  SmallFabric fabric;
  std::vector<FlowSpec> flows;
  RunSpec run;
};

// ---- Fabrics --------------------------------------------------------------------------------

double rate(Dice& dice) {
  return dice.of({2.5e9, 10e9, 25e9, 54.3e9, 100e9, 400e9});
}

void attach_hosts(Dice& dice, SmallFabric& fabric, int64_t hosts) {
  const std::vector<uint32_t> switches = fabric.switches();
  for (int64_t i = 0; i < hosts; ++i) {
    const uint32_t host = fabric.add_host();
    const auto at = static_cast<size_t>(dice.in(0, static_cast<int64_t>(switches.size()) - 1));
    fabric.cable(host, switches[at], rate(dice), dice.time(100'000));
  }
}

void back_to_back(Dice& dice, SmallFabric& fabric) {
  const uint32_t a = fabric.add_host(), b = fabric.add_host();
  fabric.cable(a, b, rate(dice), dice.time(100'000));
}

// Parallel cables between two switches are one hop, taken with equal right.
void tree(Dice& dice, SmallFabric& fabric) {
  const int64_t switches = dice.in(1, 4);
  for (int64_t i = 0; i < switches; ++i) {
    const uint32_t node = fabric.add_switch();
    if (i == 0) continue;
    const uint32_t parent = fabric.switches()[static_cast<size_t>(dice.in(0, i - 1))];
    const int64_t cables = dice.in(1, 2);
    for (int64_t c = 0; c < cables; ++c) {
      fabric.cable(node, parent, rate(dice), dice.time(100'000));
    }
  }
  // Now and then more input lanes than one machine word has bits.
  attach_hosts(dice, fabric, dice.one_in(20) ? dice.in(20, 70) : dice.in(2, 8));
}

// Two leaves and one or two spines: shortest paths go up, then down.
void leaf_spine(Dice& dice, SmallFabric& fabric) {
  const uint32_t leaves[] = {fabric.add_switch(), fabric.add_switch()};
  attach_hosts(dice, fabric, dice.in(2, 6));
  const int64_t spines = dice.in(1, 2);
  for (int64_t i = 0; i < spines; ++i) {
    const uint32_t spine = fabric.add_switch();
    for (const uint32_t leaf : leaves) fabric.cable(leaf, spine, rate(dice), dice.time(100'000));
  }
}

void ring(Dice& dice, SmallFabric& fabric) {
  const int64_t switches = dice.in(3, 4);
  for (int64_t i = 0; i < switches; ++i) fabric.add_switch();
  const std::vector<uint32_t> nodes = fabric.switches();
  for (size_t i = 0; i < nodes.size(); ++i) {
    fabric.cable(nodes[i], nodes[(i + 1) % nodes.size()], 54.3e9, dice.time(50'000));
    fabric.cable(fabric.add_host(), nodes[i], 54.3e9, dice.time(50'000));
  }
}

ArbTables tables(Dice& dice, int lanes) {
  ArbTables t;
  for (int vl = 0; vl < lanes; ++vl) {
    const auto lane = static_cast<uint8_t>(vl);
    const auto weight = static_cast<uint8_t>(dice.in(1, 255));
    (dice.one_in(3) ? t.high : t.low).push_back({lane, weight});
    if (dice.one_in(4)) t.low.push_back({lane, static_cast<uint8_t>(dice.in(0, 255))});
  }
  t.high_limit = static_cast<int>(dice.of<int64_t>({0, 1, 2, 255, dice.in(0, 255)}));
  return t;
}

SlToVl sl_to_vl(Dice& dice, int lanes) {
  SlToVl map;
  for (uint8_t& vl : map) vl = static_cast<uint8_t>(dice.in(0, lanes - 1));
  return map;
}

void lanes(Dice& dice, NetworkSpec& net) {
  net.lanes = static_cast<int>(dice.one_in(20) ? dice.in(5, 15) : dice.in(1, 4));
  net.sl2vl = sl_to_vl(dice, net.lanes);
  net.arbitration = tables(dice, net.lanes);
  for (const Cable& cable : net.cables) {
    if (dice.one_in(6)) {
      net.arbitration_overrides.push_back({cable.a, cable.a_port, tables(dice, net.lanes)});
    }
    if (dice.one_in(6) && net.is_switch[cable.b]) {
      const auto in = static_cast<uint32_t>(dice.one_in(2) ? 0 : cable.b_port);
      net.sl2vl_overrides.push_back({cable.b, in, 0, sl_to_vl(dice, net.lanes)});
    }
  }
}

void parameters(Dice& dice, NetworkSpec& net) {
  net.switches.latency = dice.time(300'000);
  net.switches.jitter_mean = dice.time(50'000);
  net.switches.order = dice.of({Order::kFcfs, Order::kFcfsAge, Order::kRoundRobin});
  net.switches.virtual_output_queues = dice.one_in(3);
  if (net.switches.virtual_output_queues && dice.one_in(2)) {
    net.switches.crossbar_speedup = static_cast<int>(dice.in(1, 3));
  }
  net.credits.interval = dice.time(2'000'000);
  net.credits.delay = dice.time(1'000'000);
  CongestionControl& control = net.switches.congestion;
  control.enabled = dice.one_in(3);
  control.threshold_bytes = dice.in(1, 20'000);
  control.marking_rate = static_cast<int>(dice.in(0, 4));
  control.increase = static_cast<int>(dice.in(1, 4));
  control.timer = dice.in(1, 20'000'000);
  control.step = 0.5;
  if (dice.one_in(2)) return;  // ideal hosts
  AdapterSpec& host = net.adapter;
  for (Time* t : {&host.post, &host.poll, &host.poll_jitter_mean, &host.hiccup_mean,
                  &host.pcie_read, &host.pcie_write, &host.tx, &host.rx, &host.write_ack}) {
    *t = dice.time(500'000);
  }
  for (Time* t : {&host.doorbell_gap, &host.message_gap, &host.packet_gap}) *t = dice.time(90'000);
  host.hiccup_probability = 0.1;
  host.inline_bytes = static_cast<int>(dice.in(0, 300));
  for (double* bps : {&host.pcie_read_bps, &host.pcie_write_bps, &host.loopback_bps}) {
    if (dice.one_in(2)) *bps = rate(dice);
  }
}

// ---- Traffic --------------------------------------------------------------------------------

int64_t size_near(Dice& dice, int mtu) {
  return std::max<int64_t>(1, dice.in(0, 3) * mtu + dice.of<int64_t>({-1, 0, 1, dice.in(0, mtu)}));
}

FlowSpec flow(Dice& dice, uint32_t hosts) {
  FlowSpec f;
  f.src = static_cast<uint32_t>(dice.in(0, hosts - 1));
  f.dst = (f.src + static_cast<uint32_t>(dice.in(1, hosts - 1))) % hosts;
  f.pattern = dice.of(
      {Pattern::kStream, Pattern::kStream, Pattern::kProbe, Pattern::kPaced, Pattern::kSchedule});
  f.transport = dice.of({Transport::kRc, Transport::kRc, Transport::kUc, Transport::kUd});
  f.op = dice.of({Op::kSend, Op::kWrite, Op::kWriteImm, Op::kRead});
  if (f.transport == Transport::kUd) f.op = Op::kSend;
  if (f.transport == Transport::kUc && f.op == Op::kRead) f.op = Op::kWrite;
  f.mtu = dice.of({256, 512, 1024, 2048, 4096});
  f.size = f.transport == Transport::kUd ? dice.in(1, f.mtu) : size_near(dice, f.mtu);
  f.sl = static_cast<int>(dice.in(0, 15));
  f.messages = dice.in(1, 12);
  f.window = static_cast<int>(dice.in(1, 8));
  f.batch = static_cast<int>(dice.in(1, 4));
  f.ack_every = static_cast<int>(dice.in(0, 4));
  f.rate_bps = dice.one_in(4) ? rate(dice) : 0;
  f.start = dice.time(2'000'000);
  f.think = dice.time(1'000'000);
  f.interval = dice.in(1, 3'000'000);
  f.poisson = dice.one_in(2);
  f.allow_inline = dice.one_in(2);
  if (f.pattern == Pattern::kProbe) {
    f.estimator =
        f.op == Op::kRead ? Estimator::kCompletion
        : f.transport != Transport::kRc
            ? Estimator::kPingPong
            : dice.of({Estimator::kCompletion, Estimator::kPingPong, Estimator::kRPerfWireFirst,
                       Estimator::kRPerfLoopbackFirst, Estimator::kRPerfAlternating});
  }
  if (f.pattern == Pattern::kSchedule) {
    Time at = f.start;
    for (int64_t i = 0; i < f.messages; ++i) {
      at += dice.time(1'000'000);
      f.schedule.push_back({at, f.transport == Transport::kUd ? f.size : size_near(dice, f.mtu)});
    }
  }
  return f;
}

// A ring all-reduce over all hosts, after the flows already there.
void add_allreduce(Dice& dice, uint32_t hosts, std::vector<FlowSpec>& flows) {
  const FlowSpec shared = flow(dice, hosts);
  const auto base = static_cast<int32_t>(flows.size());
  for (uint32_t i = 0; i < hosts; ++i) {
    FlowSpec f = shared;
    f.schedule.clear();
    f.pattern = Pattern::kTriggered;
    f.estimator = Estimator::kCompletion;
    if (f.op == Op::kRead) f.op = Op::kWrite;
    f.src = i;
    f.dst = (i + 1) % hosts;
    f.messages = 2 * (int64_t{hosts} - 1);
    f.initial_triggers = 1;
    f.triggers = base + static_cast<int32_t>((i + 1) % hosts);
    flows.push_back(f);
  }
}

int64_t message_size(const FlowSpec& f, int64_t message) {
  return f.schedule.empty() ? f.size : f.schedule[static_cast<size_t>(message)].size;
}

// Buffers hold one to four of the largest packets; some ports have their own.
void buffers(Dice& dice, Case& c) {
  int largest = 64;
  for (const FlowSpec& f : c.flows) {
    for (int64_t m = 0; m < f.messages; ++m) {
      const auto payload = std::min<int64_t>(f.mtu, message_size(f, m));
      largest = std::max(largest, padded(static_cast<int>(payload)) + 26 + 20);
    }
  }
  CreditSpec& credits = c.fabric.spec.credits;
  credits.switch_buffer_bytes = blocks_of(largest) * kBlock * dice.in(1, 4) + dice.in(0, 63);
  credits.host_buffer_bytes = blocks_of(largest) * kBlock * dice.in(1, 4) + dice.in(0, 63);
  for (const Cable& cable : c.fabric.spec.cables) {
    if (!dice.one_in(6)) continue;
    const int64_t bytes = blocks_of(largest) * kBlock * dice.in(1, 4) + dice.in(0, 63);
    const int vl = static_cast<int>(dice.in(-1, c.fabric.spec.lanes - 1));
    c.fabric.spec.buffer_overrides.push_back({cable.b, cable.b_port, vl, bytes});
  }
}

// Bytes that a lane of a link may have at its switch.
int64_t buffer_bytes(const Case& c, uint32_t node, uint32_t port, int vl) {
  int64_t bytes = c.fabric.spec.credits.switch_buffer_bytes;
  for (const Cable& cable : c.fabric.spec.cables) {
    if (cable.a != node || cable.a_port != port) continue;
    for (const BufferOverride& o : c.fabric.spec.buffer_overrides) {
      const bool here = o.node == cable.b && o.port == cable.b_port;
      if (here && (o.vl < 0 || o.vl == vl)) bytes = o.bytes;
    }
  }
  return bytes;
}

Case random_case(uint64_t seed) {
  Dice dice(seed);
  Case c;
  const int64_t shape = dice.in(0, 9);
  if (shape == 0) {
    back_to_back(dice, c.fabric);
  } else if (shape < 4) {
    leaf_spine(dice, c.fabric);
  } else {
    tree(dice, c.fabric);
  }
  c.fabric.route_shortest();
  lanes(dice, c.fabric.spec);
  parameters(dice, c.fabric.spec);
  const auto hosts = static_cast<uint32_t>(c.fabric.hosts().size());
  const int64_t flows = dice.in(1, hosts > 8 ? 40 : 6);
  for (int64_t i = 0; i < flows; ++i) c.flows.push_back(flow(dice, hosts));
  if (hosts <= 8 && dice.one_in(4)) add_allreduce(dice, hosts, c.flows);
  for (uint32_t i = 0; i < c.flows.size(); ++i) c.flows[i].group = i;
  buffers(dice, c);
  c.run.seed = seed;
  c.run.duration = kGenerous;
  c.run.groups = static_cast<uint32_t>(c.flows.size());
  c.run.stop_when_done = false;  // drain
  c.run.sample_interval = dice.one_in(4) ? dice.in(100'000, 10'000'000) : 0;
  if (dice.one_in(2)) c.run.partitioned_links = 0;
  return c;
}

// The same fabric and traffic, with receivers that grant.
Case granting_case(uint64_t seed) {
  Case c = random_case(seed);
  Dice dice(seed + 1);
  GrantSpec& grants = c.fabric.spec.adapter.grants;
  grants.enabled = true;
  grants.ahead = dice.in(1, 20'000);
  grants.messages = static_cast<int>(dice.in(1, 4));
  grants.priorities = static_cast<int>(dice.in(1, 16));
  grants.by_left = dice.one_in(2);
  for (int64_t size = 0, n = dice.in(1, grants.priorities); n > 1; --n) {
    grants.cutoffs.push_back(size += dice.in(1, 4000));
  }
  c.fabric.spec.arbitration.strict = dice.one_in(2);
  for (FlowSpec& f : c.flows) {
    if (f.transport == Transport::kRc) f.transport = Transport::kUc;
    if (f.op == Op::kRead) f.op = Op::kWrite;
    if (f.pattern == Pattern::kProbe) f.estimator = Estimator::kPingPong;
  }
  return c;
}

// ---- Laws -----------------------------------------------------------------------------------

struct Wire {
  int64_t packets = 0, bytes = 0;
  void add(int64_t n, int64_t size) {
    packets += n;
    bytes += n * size;
  }
};

// What the hosts must have put on the wire for one message, from the specification's headers.
void add_message(const FlowSpec& f, int64_t size, Wire& wire) {
  const int64_t n = (size + f.mtu - 1) / f.mtu;
  wire.packets += n;
  wire.bytes += (size + 3) / 4 * 4;
  if (f.op == Op::kRead) {
    wire.add(1, 8 + 12 + 16 + 4 + 2);
    wire.bytes += n * (8 + 12 + 4 + 2) + (n == 1 ? 4 : 8);
    return;
  }
  wire.bytes += n * (8 + 12 + 4 + 2);
  if (f.transport == Transport::kUd) wire.bytes += n * 8;
  if (f.op == Op::kWrite || f.op == Op::kWriteImm) wire.bytes += 16;
  if (f.op == Op::kWriteImm) wire.bytes += 4;
  // Coalesced over messages, ACKs depend on when messages are posted: see extra_packets.
  if (f.transport != Transport::kRc || f.ack_every > 1) return;
  wire.add(f.ack_every ? n : 1, 8 + 12 + 4 + 4 + 2);
}

Wire expected_wire(const std::vector<FlowSpec>& flows) {
  Wire wire;
  for (const FlowSpec& f : flows) {
    const int64_t times = f.estimator == Estimator::kPingPong ? 2 : 1;
    for (int64_t m = 0; m < times * f.messages; ++m) {
      add_message(f, message_size(f, m % f.messages), wire);
    }
  }
  return wire;
}

// Packets that are not determined by the flows: coalesced ACKs, congestion notifications, grants.
int64_t extra_packets(const Case& c, const Simulation& sim) {
  int64_t most = c.fabric.spec.adapter.grants.enabled ? expected_wire(c.flows).packets : 0;
  for (const FlowSpec& f : c.flows) {
    if (f.transport != Transport::kRc || f.op == Op::kRead || f.ack_every <= 1) continue;
    const int64_t times = f.estimator == Estimator::kPingPong ? 2 : 1;
    for (int64_t m = 0; m < times * f.messages; ++m) {
      const int64_t n = (message_size(f, m % f.messages) + f.mtu - 1) / f.mtu;
      most += n / f.ack_every + 1;
    }
  }
  for (size_t link = 0; link < sim.links(); ++link) {
    for (int vl = 0; vl < sim.lanes(); ++vl) {
      most += static_cast<int64_t>(sim.counters(link, vl).marked);
    }
  }
  return most;
}

struct Finding {
  std::ostringstream text;
  template <class A, class B>
  void equal(const char* what, size_t at, A got, B expected) {
    if (static_cast<int64_t>(got) == static_cast<int64_t>(expected)) return;
    text << what << " " << at << ": " << got << ", expected " << expected << "; ";
  }
};

void check_flows(const Case& c, const Simulation& sim, Finding& finding) {
  for (size_t i = 0; i < c.flows.size(); ++i) {
    const FlowSpec& f = c.flows[i];
    const FlowResult result = sim.flow(i);
    int64_t bytes = 0;
    for (int64_t m = 0; m < f.messages; ++m) bytes += message_size(f, m);
    finding.equal("posted of flow", i, result.posted, f.messages);
    finding.equal("delivered of flow", i, result.delivered, f.messages);
    // A ping-pong ends with its last answer, perhaps before the last ACK.
    if (sim.packets_alive() == 0 || f.estimator != Estimator::kPingPong) {
      finding.equal("completed of flow", i, result.completed, f.messages);
    }
    finding.equal("messages of flow", i, result.messages, f.messages);
    finding.equal("bytes of flow", i, result.bytes, bytes);
    finding.equal("finish of flow", i, result.finished != kNever, 1);
    const auto& group = sim.group(i);
    finding.equal("one-way samples of flow", i, group.one_way.count(), f.messages);
    const bool timed = f.transport == Transport::kRc || f.estimator == Estimator::kPingPong;
    const bool each = f.estimator == Estimator::kPingPong || f.ack_every <= 1 || f.op == Op::kRead;
    const auto samples = static_cast<int64_t>(group.rtt.count());
    if (!timed || each) {
      finding.equal("round-trip samples of flow", i, samples, timed ? f.messages : 0);
    } else if (samples < 1 || samples > f.messages) {
      finding.equal("round-trip samples of flow", i, samples, f.messages);
    }
  }
}

void check_links(const Case& c, const Simulation& sim, Finding& finding) {
  Wire hosts;
  std::vector<int64_t> balance(c.fabric.spec.is_switch.size(), 0);
  for (size_t link = 0; link < sim.links(); ++link) {
    const bool to_switch = c.fabric.spec.is_switch[sim.link_to(link)];
    for (int vl = 0; vl < sim.lanes(); ++vl) {
      const LaneCounters n = sim.counters(link, vl);
      finding.equal("packets received of link", link, n.rcv_packets, n.xmit_packets);
      finding.equal("bytes received of link", link, n.rcv_bytes, n.xmit_bytes);
      balance[sim.link_from(link)] -= static_cast<int64_t>(n.xmit_bytes);
      balance[sim.link_to(link)] += static_cast<int64_t>(n.rcv_bytes);
      const int64_t room = buffer_bytes(c, sim.link_from(link), sim.link_port(link), vl);
      if (to_switch && n.peak_blocks * 64 > room) {
        finding.equal("peak blocks of link", link, n.peak_blocks, -1);
      }
      if (c.fabric.spec.is_switch[sim.link_from(link)]) continue;
      hosts.packets += static_cast<int64_t>(n.xmit_packets);
      hosts.bytes += static_cast<int64_t>(n.xmit_bytes);
    }
  }
  for (const uint32_t node : c.fabric.switches())
    finding.equal("kept by node", node, balance[node], 0);
  const Wire expected = expected_wire(c.flows);
  const int64_t extra = hosts.packets - expected.packets;
  if (extra < 0 || extra > extra_packets(c, sim)) {
    finding.equal("packets sent by hosts", 0, hosts.packets, expected.packets);
  }
  const int64_t extra_bytes = hosts.bytes - expected.bytes;  // ACKs of 30 B, others of 42 B
  if (extra_bytes < 30 * extra || extra_bytes > 42 * extra) {
    finding.equal("bytes sent by hosts", 0, hosts.bytes, expected.bytes);
  }
}

void check_same(const Case& c, const Simulation& a, const Simulation& b, Finding& finding) {
  finding.equal("second run: events", 0, b.events(), a.events());
  finding.equal("second run: hops", 0, b.packet_hops(), a.packet_hops());
  finding.equal("second run: end", 0, b.now(), a.now());
  finding.equal("second run: queue samples", 0, a.samples() == b.samples(), 1);
  for (size_t i = 0; i < c.flows.size(); ++i) {
    const auto x = a.group(i);
    const auto y = b.group(i);
    finding.equal("second run: times of flow", i,
                  x.rtt == y.rtt && x.one_way == y.one_way && x.switch_time == y.switch_time, 1);
  }
}

Status run_in_slices(Simulation& sim, uint64_t slice) {
  Status status;
  while ((status = sim.run(slice)) == Status::kRunning) {
  }
  return status;
}

// Whether a deadlock was seen before the end.
bool deadlocks_on_the_way(Simulation& sim, uint64_t slice) {
  while (sim.run(slice) == Status::kRunning) {
    if (!sim.deadlock_cycle().empty()) return true;
  }
  // The last window of several partitions may bring both the cycle and the end.
  return sim.partitions() > 1 && !sim.deadlock_cycle().empty();
}

// Everything that a record is made of.
void check_equal(const Case& c, const Simulation& a, const Simulation& b, Finding& finding) {
  check_same(c, a, b, finding);
  finding.equal("samples at other times", 0, a.sample_times() == b.sample_times(), 1);
  finding.equal("packets alive", 0, b.packets_alive(), a.packets_alive());
  finding.equal("blocked heads", 0, b.blocked(0).size(), a.blocked(0).size());
  finding.equal("head-of-line blocking", 0, a.head_of_line_share() == b.head_of_line_share(), 1);
  for (size_t i = 0; i < c.flows.size(); ++i) {
    finding.equal("results of flow", i, a.flow(i) == b.flow(i), 1);
  }
  for (size_t link = 0; link < a.links(); ++link) {
    for (int vl = 0; vl < a.lanes(); ++vl) {
      finding.equal("counters of link", link, a.counters(link, vl) == b.counters(link, vl), 1);
    }
  }
}

// Partitions run by one thread and by several: what differs; empty if nothing does.
std::string compare_threads(Case c) try {
  Finding finding;
  c.run.partitioned_links = 0;
  c.run.stop_when_done = c.run.seed % 2;
  c.run.threads = 1;
  Simulation one(c.fabric.spec, c.flows, c.run);
  const Status status = run_in_slices(one, 1 << 30);
  for (const int threads : {2, 3, 7}) {
    c.run.threads = threads;
    Simulation several(c.fabric.spec, c.flows, c.run);
    // Slices end at other windows, and must not matter either.
    const Status ending = run_in_slices(several, threads == 3 ? 1000 : 1 << 30);
    finding.equal("status", 0, static_cast<int>(ending), static_cast<int>(status));
    check_equal(c, one, several, finding);
  }
  return finding.text.str();
} catch (const std::exception& error) {
  return error.what();
}

// A plain fabric has an event loop of its own; a node's map of lanes that equals the fabric's makes
// the general one run it. What differs between the two; empty if nothing does.
std::string compare_loops(uint64_t seed) try {
  Case c = random_case(seed);
  NetworkSpec& spec = c.fabric.spec;
  spec.lanes = 1;
  spec.sl2vl = {};
  spec.sl2vl_overrides.clear();
  spec.switches.jitter_mean = spec.adapter.hiccup_mean = spec.adapter.poll_jitter_mean = 0;
  spec.switches.virtual_output_queues = spec.switches.congestion.enabled = false;
  spec.switches.crossbar_speedup = 0;
  spec.adapter.pcie_read_bps = spec.adapter.pcie_write_bps = 0;
  c.run.partitioned_links = seed % 2 ? 0 : 2048;
  Finding finding;
  Simulation plain(spec, c.flows, c.run);
  const Status status = run_in_slices(plain, 1 << 30);
  spec.sl2vl_overrides.push_back({0, 0, 0, spec.sl2vl});
  Simulation general(spec, c.flows, c.run);
  const Status ending = run_in_slices(general, 1 << 30);
  finding.equal("status", 0, static_cast<int>(ending), static_cast<int>(status));
  check_equal(c, plain, general, finding);
  return finding.text.str();
} catch (const std::exception& error) {
  return error.what();
}

// A fabric without random times, whose flows have many more messages, some without end.
Case long_case(uint64_t seed) {
  Case c = random_case(seed);
  NetworkSpec& spec = c.fabric.spec;
  spec.switches.jitter_mean = spec.adapter.hiccup_mean = spec.adapter.poll_jitter_mean = 0;
  c.run.sample_interval = 0;
  c.run.duration = 2'000'000'000 + static_cast<Time>(seed % 1000) * 1'000'003;
  if (seed % 4 == 0) c.run.warmup = 100'000'000;
  for (FlowSpec& f : c.flows) {
    f.poisson = false;
    if (f.pattern == Pattern::kSchedule || f.triggers >= 0) continue;
    f.messages = seed % 3 == 0 ? -1 : 40 * f.messages;
  }
  return c;
}

// The fabric of a seed with and without what repeats: what differs, and how much was skipped.
std::string compare_skipping(uint64_t seed, Time& skipped) try {
  Case c = long_case(seed);
  Finding finding;
  Simulation full(c.fabric.spec, c.flows, c.run);
  const Status status = run_in_slices(full, 1 << 30);
  c.run.skip_steady = true;
  Simulation skipping(c.fabric.spec, c.flows, c.run);
  const Status ending = run_in_slices(skipping, 1000);
  finding.equal("status", 0, static_cast<int>(ending), static_cast<int>(status));
  check_equal(c, full, skipping, finding);
  skipped = skipping.skipped();
  return finding.text.str();
} catch (const std::exception& error) {
  return error.what();
}

// The same fabric, stopped when its flows are done: nothing that was asked for is missing.
void check_stopped(const Case& c, Finding& finding) {
  RunSpec run = c.run;
  run.stop_when_done = true;
  Simulation sim(c.fabric.spec, c.flows, run);
  finding.equal("stopped when done: status", 0, static_cast<int>(run_in_slices(sim, 1000)),
                static_cast<int>(Status::kFinished));
  check_flows(c, sim, finding);
  Simulation watched(c.fabric.spec, c.flows, run);
  finding.equal("deadlock of what finishes", 0, deadlocks_on_the_way(watched, 300), 0);
}

// The same fabric, cut short: what is not delivered is still somewhere in it.
void check_cut(const Case& c, Time end, Finding& finding) {
  RunSpec run = c.run;
  run.duration = end;
  Simulation sim(c.fabric.spec, c.flows, run);
  run_in_slices(sim, 1000);
  int64_t flying = 0;
  for (size_t link = 0; link < sim.links(); ++link) {
    for (int vl = 0; vl < sim.lanes(); ++vl) {
      const LaneCounters n = sim.counters(link, vl);
      const auto ahead = static_cast<int64_t>(n.xmit_packets - n.rcv_packets);
      finding.equal("cut short: received more than sent on link", link, ahead < 0, 0);
      flying += ahead;
    }
  }
  finding.equal("cut short: more on links than alive", 0,
                flying > static_cast<int64_t>(sim.packets_alive()), 0);
  for (size_t i = 0; i < c.flows.size(); ++i) {
    const FlowResult f = sim.flow(i);
    const bool ordered = f.delivered <= f.posted && f.completed <= f.posted;
    finding.equal("cut short: order of counts of flow", i, ordered, 1);
  }
}

// What is wrong with this fabric; empty if nothing is.
std::string verdict(const Case& c) try {
  Finding finding;
  Simulation sim(c.fabric.spec, c.flows, c.run);
  finding.equal("status", 0, static_cast<int>(run_in_slices(sim, 1 << 30)),
                static_cast<int>(Status::kFinished));
  finding.equal("packets alive", 0, sim.packets_alive(), 0);
  check_flows(c, sim, finding);
  check_links(c, sim, finding);
  Simulation again(c.fabric.spec, c.flows, c.run);
  run_in_slices(again, 97);
  check_same(c, sim, again, finding);
  check_stopped(c, finding);
  check_cut(c, sim.now() / 2, finding);
  return finding.text.str();
} catch (const std::exception& error) {
  return error.what();
}

uint64_t environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

TEST(no_law_is_broken_in_random_fabrics_without_cyclic_routes) {
  const uint64_t only = environment("WEFT_FUZZ_SEED", 0);
  const uint64_t last = only ? only : environment("WEFT_FUZZ_CASES", kCases);
  int shown = 0;
  for (uint64_t seed = only ? only : 1; seed <= last && shown < 10; ++seed) {
    const std::string wrong = verdict(random_case(seed));
    if (wrong.empty()) continue;
    ++shown;
    weft::test::fail(__FILE__, __LINE__, "WEFT_FUZZ_SEED=" + std::to_string(seed) + ": " + wrong);
  }
}

TEST(no_law_is_broken_in_random_fabrics_whose_receivers_grant) {
  const uint64_t last = environment("WEFT_FUZZ_CASES", kCases) / 8;
  int shown = 0;
  for (uint64_t seed = 1; seed <= last && shown < 10; ++seed) {
    std::string wrong = verdict(granting_case(seed));
    if (seed % 8 == 0) wrong += compare_threads(granting_case(seed));
    if (wrong.empty()) continue;
    ++shown;
    weft::test::fail(__FILE__, __LINE__, "seed " + std::to_string(seed) + ": " + wrong);
  }
}

// WEFT_THREAD_CASES sets how many; `make test-threads` has 12,000.
TEST(random_fabrics_give_the_same_results_with_1_2_3_and_7_threads) {
  const uint64_t last = environment("WEFT_THREAD_CASES", kCases / 40);
  int shown = 0, partitioned = 0;
  for (uint64_t seed = 1; seed <= last && shown < 10; ++seed) {
    Case c = random_case(seed);
    c.run.partitioned_links = 0;
    partitioned += Simulation(c.fabric.spec, c.flows, c.run).partitions() > 1;
    const std::string wrong = compare_threads(c);
    if (wrong.empty()) continue;
    ++shown;
    weft::test::fail(__FILE__, __LINE__, "seed " + std::to_string(seed) + ": " + wrong);
  }
  CHECK(partitioned >= static_cast<int>(last / 4));
}

TEST(a_plain_fabric_gives_the_same_results_in_the_general_event_loop) {
  int shown = 0;
  for (uint64_t seed = 1; seed <= kCases / 20 && shown < 10; ++seed) {
    const std::string wrong = compare_loops(seed);
    if (wrong.empty()) continue;
    ++shown;
    weft::test::fail(__FILE__, __LINE__, "seed " + std::to_string(seed) + ": " + wrong);
  }
}

TEST(random_fabrics_give_the_same_results_where_what_repeats_is_skipped) {
  const uint64_t last = environment("WEFT_STEADY_CASES", kCases / 40);
  uint64_t shown = 0, skipping = 0;
  for (uint64_t seed = 1; seed <= last && shown < 10; ++seed) {
    Time skipped = 0;
    const std::string wrong = compare_skipping(seed, skipped);
    skipping += skipped > 0;
    if (wrong.empty()) continue;
    ++shown;
    weft::test::fail(__FILE__, __LINE__, "seed " + std::to_string(seed) + ": " + wrong);
  }
  CHECK(skipping >= last / 20);
}

// Saturating traffic two hops clockwise around a ring fills every buffer with packets that wait
// for the next one: the textbook deadlock. It must be reported, with its cycle.
TEST(a_ring_routed_clockwise_deadlocks_and_the_report_is_a_closed_chain_of_waiting_lanes) {
  int deadlocks = 0;
  const uint64_t cases = std::max<uint64_t>(60, environment("WEFT_FUZZ_CASES", kCases) / 20);
  for (uint64_t seed = 1; seed <= cases; ++seed) {
    Dice dice(seed);
    Case c;
    ring(dice, c.fabric);
    c.fabric.route_clockwise();
    parameters(dice, c.fabric.spec);
    c.fabric.spec.lanes = 1;
    const auto hosts = static_cast<uint32_t>(c.fabric.hosts().size());
    for (uint32_t i = 0; i < hosts; ++i) {
      FlowSpec f;
      f.src = i;
      f.dst = (i + static_cast<uint32_t>(dice.in(1, hosts - 1))) % hosts;
      f.size = 8192;
      f.messages = 40;
      f.window = 16;
      c.flows.push_back(f);
    }
    buffers(dice, c);
    c.run.seed = seed;
    c.run.duration = kGenerous;
    if (seed % 2) c.run.partitioned_links = 0;
    Simulation sim(c.fabric.spec, c.flows, c.run);
    const Status status = run_in_slices(sim, 1 << 30);
    CHECK(status == Status::kFinished || status == Status::kDeadlock);
    const std::vector<BlockedLane> cycle = sim.deadlock_cycle();
    // What is seen on the way is still there at the end, and what is there was seen.
    Simulation watched(c.fabric.spec, c.flows, c.run);
    const bool seen = deadlocks_on_the_way(watched, 1);
    CHECK_EQ(seen, !cycle.empty());
    if (status == Status::kFinished) {
      CHECK(cycle.empty());
      continue;
    }
    ++deadlocks;
    CHECK(!sim.blocked(0).empty());
    if (cycle.size() < 2) {
      weft::test::fail(__FILE__, __LINE__,
                       "seed " + std::to_string(seed) + ": a deadlock without a cycle");
      break;
    }
    for (size_t i = 0; i < cycle.size(); ++i) {
      const BlockedLane& next = cycle[(i + 1) % cycle.size()];
      CHECK_EQ(cycle[i].out_link, next.link);
      CHECK_EQ(cycle[i].out_vl, next.vl);
    }
  }
  CHECK(deadlocks > 0);
}
