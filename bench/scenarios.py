"""The benchmark scenarios, run one per process so that CPU time and memory are its own.

    python -m bench.scenarios S2-k8

prints one JSON object. CPU time is the event loop's alone; building the fabric is not timed.
The answer is checked before its speed counts.
Packet-hop: one packet (data, probe or ACK) finishing serialisation onto one directed link.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from weft._core import Simulation, Status
from weft.simulate import scenario_from
from weft.simulate.run import build_simulation
from weft.simulate.scenario import Scenario

LINK = {"rate": "56 Gb/s", "delay": "50 ns"}


LINE_GBPS = 56.0
PACKETS = 256  # of 4096 B in 1 MiB

# One run of S1 takes some 40 ms of CPU: ten of them, so that the figure is not start-up noise.
S1_MS, S1_RUNS = 100, 10
S1_WINDOW, S1_SENDERS = 64, 5

# The packet-hops of S2 depend on how many flows stay below an edge switch (2 links), in a pod (4)
# or cross the core (6). The reference runs have 381,952 for k = 8 and 3,078,144 for k = 16. These
# are the first scenario seeds from 1 whose derangement gives as many: 512 packet-hops (256 packets
# and their ACKs) for each link of each flow's path. Found by trying; bench/peers/ns3 does the same.
# k = 24 has no reference run, and the first seed.
S2_SEED = {8: 169, 16: 7, 24: 1}
S2_HOPS = {8: 381_952, 16: 3_078_144}


def converged() -> dict[str, Any]:
    """S1: five saturating senders and a closed-loop probe to one receiver, 100 ms."""
    return {
        "name": "S1",
        "duration": f"{S1_MS} ms",
        "fabric": {"topology": "one_switch", "hosts": 7, **LINK},
        "traffic": [
            {
                "name": "senders",
                "kind": "bandwidth",
                "from": f"h0..h{S1_SENDERS - 1}",
                "to": "h6",
                "size": "4096 B",
                "window": S1_WINDOW,
                "ack_size": "64 B",
            },
            {
                "name": "probe",
                "kind": "latency",
                "from": "h5",
                "to": "h6",
                "size": "64 B",
                "ack_size": "64 B",
            },
        ],
    }


def permutation(k: int) -> dict[str, Any]:
    """S2: k-ary fat tree, a random derangement, one flow of 1 MiB per host, to completion."""
    return {
        "name": f"S2-k{k}",
        "duration": "1 s",
        "seed": S2_SEED[k],
        "fabric": {"topology": "fat_tree", "k": k, "routing": "destination_modulo", **LINK},
        "traffic": [{"name": "flows", "kind": "permutation", "size": "1 MiB", "ack_size": "64 B"}],
    }


def whole_fabric() -> dict[str, Any]:
    """The papers' 1,944 servers, each sending ten messages of 1 MB to random peers."""
    return {
        "name": "fabric-1944",
        "duration": "1 s",
        "fabric": {"topology": "papers_1944", "routing": "destination_modulo", **LINK},
        "traffic": [{"name": "flows", "kind": "random", "size": "1 MB", "messages": 10}],
    }


# ---- Whether the answer is right --------------------------------------------------------------


def require(name: str, what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise SystemExit(f"{name}: {what} is {value:,}, expected {least:,} to {most:,}")


def check_converged(scenario: Scenario, simulation: Simulation) -> None:
    """A finished message is four packet-hops, one under way at most four; the link is full."""
    flows = [simulation.flow(number) for number in range(S1_SENDERS + 1)]
    done = sum(flow.completed for flow in flows)
    under_way = S1_SENDERS * S1_WINDOW + 1
    require("S1", "packet-hops", simulation.packet_hops, 4 * done, 4 * (done + under_way))
    goodput = sum(flow.bytes for flow in flows) * 8e3 / scenario.duration_ps
    require("S1", "goodput in Gb/s", goodput, 0.97 * LINE_GBPS, LINE_GBPS)


def links_between(k: int, a: int, b: int) -> int:
    """Links of a shortest path between hosts a and b of a k-ary fat tree."""
    per_edge, per_pod = k // 2, k * k // 4
    if a // per_edge == b // per_edge:
        return 2
    return 4 if a // per_pod == b // per_pod else 6


def check_permutation(k: int, scenario: Scenario, simulation: Simulation) -> None:
    """Each packet and its ACK take every link of their flow's path once."""
    flows = [flow for traffic in scenario.traffic for part in traffic.parts for flow in part.flows]
    links = sum(links_between(k, flow.src, flow.dst) for flow in flows)
    hops = S2_HOPS.get(k, 2 * PACKETS * links)
    require(f"S2-k{k}", "2 · 256 · links of paths", 2 * PACKETS * links, hops, hops)
    require(f"S2-k{k}", "packet-hops", simulation.packet_hops, hops, hops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A scenario, how it must end, the check of its answer, and how many runs are summed up."""

    data: dict[str, Any]
    ends: Status = Status.FINISHED
    check: Callable[[Scenario, Simulation], None] | None = None
    runs: int = 1


BENCHES = {
    "S1": Bench(data=converged(), ends=Status.TIME_UP, check=check_converged, runs=S1_RUNS),
    "S2-k8": Bench(data=permutation(8), check=partial(check_permutation, 8)),
    "S2-k16": Bench(data=permutation(16), check=partial(check_permutation, 16)),
    "S2-k24": Bench(data=permutation(24), check=partial(check_permutation, 24)),
    "fabric-1944": Bench(data=whole_fabric()),
}


# ---- Running ----------------------------------------------------------------------------------


def one_run(bench: Bench, threads: int = 1) -> tuple[Simulation, float, float]:
    """A checked simulation, and the CPU and wall seconds of its event loop."""
    scenario = scenario_from(bench.data)
    simulation, _ = build_simulation(scenario, threads)
    before, started = time.process_time(), time.perf_counter()
    while (status := simulation.run(1 << 22)) == Status.RUNNING:
        pass
    cpu, wall = time.process_time() - before, time.perf_counter() - started
    if status != bench.ends:
        raise SystemExit(f"{scenario.name}: ended {status}, expected {bench.ends}")
    if bench.check:
        bench.check(scenario, simulation)
    return simulation, cpu, wall


def run(name: str) -> dict[str, Any]:
    """Simulate one scenario as often as its benchmark says; figures are sums over the runs."""
    started = time.perf_counter()
    hops = events = 0
    cpu = 0.0
    for _ in range(BENCHES[name].runs):
        simulation, seconds, _ = one_run(BENCHES[name])
        hops, events, cpu = hops + simulation.packet_hops, events + simulation.events, cpu + seconds
    return {
        "name": name,
        "packet_hops": hops,
        "events": events,
        "cpu_s": cpu,
        "packet_hops_per_cpu_s": hops / cpu,
        "wall_s": time.perf_counter() - started,
        "peak_rss_mib": peak_rss_mib(),
    }


def peak_rss_mib() -> float:
    """This program's peak. The kernel's ru_maxrss begins with the peak of whoever started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("/proc/self/status: no VmHWM; run it on Linux")


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
