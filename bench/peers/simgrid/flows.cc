// Flows over given paths on SimGrid: each slot sends its flows one after another.
//
//   flows TRACE WARM MEASURED
//
// TRACE: "HOSTS LINKS BYTES_PER_S SLOTS", then per slot "FLOWS", then per flow
// "SOURCE DESTINATION BYTES N LINK_1 ... LINK_N". Prints one JSON line: CPU ms per completion (with
// the next flow of its slot) over MEASURED completions after WARM, and the end of each flow so far
// as [slot, number, seconds]. Links have no latency; the model is CM02, plain max-min sharing.
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <simgrid/s4u.hpp>
#include <string>
#include <utility>
#include <vector>

namespace sg4 = simgrid::s4u;

namespace {

struct Flow {
  int source, destination;
  uint64_t bytes;
};

double cpu_ms() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

std::vector<sg4::Host*> hosts;
std::vector<std::string> ends;
size_t warm, measured;
double begun;

void report() {
  std::cout << "{\"ms_per_event\": " << (cpu_ms() - begun) / static_cast<double>(measured)
            << ", \"ends\": [";
  for (size_t i = 0; i < ends.size(); ++i) std::cout << (i ? "," : "") << ends[i];
  std::cout << "]}" << std::endl;
  std::_Exit(0);  // the remaining flows are not of interest
}

void send_in_turn(size_t slot, const std::vector<Flow>& flows) {
  for (size_t number = 0; number < flows.size(); ++number) {
    const Flow& flow = flows[number];
    sg4::Comm::sendto(hosts[flow.source], hosts[flow.destination], flow.bytes);
    char end[96];
    std::snprintf(end, sizeof end, "[%zu,%zu,%.12g]", slot, number, sg4::Engine::get_clock());
    ends.emplace_back(end);
    if (ends.size() == warm) begun = cpu_ms();
    if (ends.size() == warm + measured) report();
  }
  std::cerr << "slot " << slot << " has no more flows\n";
  std::_Exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  sg4::Engine engine(&argc, argv);
  if (argc != 4) {
    std::cerr << "usage: flows TRACE WARM MEASURED\n";
    return 2;
  }
  warm = std::stoul(argv[2]);
  measured = std::stoul(argv[3]);
  engine.set_config("network/model:CM02");
  engine.set_config("network/crosstraffic:0");
  engine.set_config("contexts/stack-size:64");
  std::ifstream in(argv[1]);
  size_t host_count, link_count, slot_count;
  double rate;
  in >> host_count >> link_count >> rate >> slot_count;
  auto* zone = sg4::create_full_zone("fabric");
  for (size_t i = 0; i < host_count; ++i) {
    hosts.push_back(zone->create_host("h" + std::to_string(i), "1Gf"));
  }
  std::vector<sg4::Link*> links;
  for (size_t i = 0; i < link_count; ++i) {
    links.push_back(zone->create_link("l" + std::to_string(i), rate)->set_latency(0));
  }
  std::map<std::pair<int, int>, bool> has_route;
  std::vector<std::vector<Flow>> slots(slot_count);
  for (auto& flows : slots) {
    size_t count;
    in >> count;
    for (size_t i = 0; i < count; ++i) {
      Flow flow{};
      size_t hops;
      in >> flow.source >> flow.destination >> flow.bytes >> hops;
      std::vector<sg4::LinkInRoute> route;
      for (size_t hop = 0; hop < hops; ++hop) {
        size_t link;
        in >> link;
        route.emplace_back(links.at(link));
      }
      flows.push_back(flow);
      if (std::exchange(has_route[{flow.source, flow.destination}], true)) continue;
      zone->add_route(hosts[flow.source]->get_netpoint(), hosts[flow.destination]->get_netpoint(),
                      nullptr, nullptr, route, false);
    }
  }
  if (!in) {
    std::cerr << argv[1] << ": ends too early\n";
    return 1;
  }
  zone->seal();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    sg4::Actor::create("slot", hosts[slots[slot][0].source],
                       [slot, &slots] { send_in_turn(slot, slots[slot]); });
  }
  if (warm == 0) begun = cpu_ms();
  engine.run();
  return 1;
}
