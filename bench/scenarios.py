"""The benchmark scenarios, run one per process so that CPU time and memory are its own.

    python -m bench.scenarios S2-k8

prints one JSON object. CPU time is the event loop's alone; building the fabric is not timed.
Packet-hop: one packet (data, probe or ACK) finishing serialisation onto one directed link.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

from weft._core import Status
from weft.simulate import scenario_from
from weft.simulate.run import build

LINK = {"rate": "56 Gb/s", "delay": "50 ns"}


def converged(simulated_ms: int) -> dict[str, Any]:
    """S1: five saturating senders and a closed-loop probe to one receiver."""
    return {
        "name": "S1",
        "duration": f"{simulated_ms} ms",
        "fabric": {"topology": "one_switch", "hosts": 7, **LINK},
        "traffic": [
            {"name": "senders", "kind": "bandwidth", "from": "h0..h4", "to": "h6",
             "size": "4096 B", "window": 64, "ack_size": "64 B"},
            {"name": "probe", "kind": "latency", "from": "h5", "to": "h6", "size": "64 B",
             "ack_size": "64 B"},
        ],
    }  # fmt: skip


def permutation(k: int) -> dict[str, Any]:
    """S2: k-ary fat tree, a random derangement, one flow of 1 MiB per host, to completion."""
    return {
        "name": f"S2-k{k}",
        "duration": "1 s",
        "fabric": {"topology": "fat_tree", "k": k, "routing": "ecmp", **LINK},
        "traffic": [{"name": "flows", "kind": "permutation", "size": "1 MiB", "ack_size": "64 B"}],
    }


def whole_fabric() -> dict[str, Any]:
    """The papers' 1,944 servers, each sending ten messages of 1 MB to random peers."""
    return {
        "name": "fabric-1944",
        "duration": "1 s",
        "fabric": {"topology": "papers_1944", "routing": "ecmp", **LINK},
        "traffic": [{"name": "flows", "kind": "random", "size": "1 MB", "messages": 10}],
    }


SCENARIOS = {
    "S1": lambda: converged(1000),
    "S2-k8": lambda: permutation(8),
    "S2-k16": lambda: permutation(16),
    "fabric-1944": whole_fabric,
}


def run(name: str) -> dict[str, Any]:
    """Simulate one scenario; the answer is checked before its speed counts."""
    started = time.perf_counter()
    scenario = scenario_from(SCENARIOS[name]())
    simulation, _ = build(scenario)
    built = time.perf_counter()
    before = time.process_time()
    while (status := simulation.run(1 << 20)) == Status.RUNNING:
        pass
    cpu = time.process_time() - before
    expected = Status.TIME_UP if name == "S1" else Status.FINISHED
    if status != expected:
        raise SystemExit(f"{name}: ended {status}, expected {expected}")
    hops = simulation.packet_hops
    return {
        "name": name,
        "packet_hops": hops,
        "events": simulation.events,
        "cpu_s": cpu,
        "packet_hops_per_cpu_s": hops / cpu,
        "build_s": built - started,
        "wall_s": time.perf_counter() - started,
        "simulated_us": simulation.now_ps / 1e6,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
