"""Why nothing moves: deadlocks and starved lanes in words.

A run that ends with packets in its buffers and nothing left to happen is deadlocked; a lane
whose head has waited very long is starved. Entry point: `stuck_report`.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft._core import BlockedLane, Simulation
from weft.fabric import Fabric

STARVED_SHARE = 0.1  # of the simulated time, and no more than these on the slowest link:
STARVED_BITS = 56_000_000  # 1 ms of 56 Gb/s; buffers drain more slowly where links are slow
SHOWN = 8


def stuck_report(fabric: Fabric, sim: Simulation, ended: str) -> list[str]:
    """Sentences about a deadlock's cycle, or about lanes that wait too long."""
    longest_ps = round(1e12 * STARVED_BITS / min(link.rate_bps for link in fabric.links))
    limit = 0 if ended == "deadlock" else min(longest_ps, round(STARVED_SHARE * sim.now_ps))
    cycle = sim.deadlock_cycle()
    if cycle and all(lane.waited_ps >= limit for lane in cycle):
        return [f"deadlock: {_cycle(fabric, sim, cycle)}"]
    return list(_starved(fabric, sim, sim.blocked(limit)))


def _cycle(fabric: Fabric, sim: Simulation, cycle: list[BlockedLane]) -> str:
    steps = [_input(fabric, sim, lane) for lane in cycle]
    return " waits for ".join([*steps, steps[0]]) + "; change routing or separate lanes"


def _input(fabric: Fabric, sim: Simulation, lane: BlockedLane) -> str:
    node, _, to = sim.link(lane.link)
    if lane.link == lane.out_link:
        return f"{fabric.nodes[node].name} vl{lane.vl}"
    return f"{fabric.nodes[to].name} from {fabric.nodes[node].name} vl{lane.vl}"


def _starved(fabric: Fabric, sim: Simulation, blocked: list[BlockedLane]) -> Iterator[str]:
    for lane in blocked[:SHOWN]:
        _, port, _ = sim.link(lane.out_link)
        why = (
            "no credit"
            if lane.no_credit
            else "never chosen: is its lane in the arbitration tables?"
        )
        yield (
            f"starved: head at {_input(fabric, sim, lane)} has waited "
            f"{lane.waited_ps / 1e6:.4g} us for port {port} vl{lane.out_vl}: {why}"
        )
    if len(blocked) > SHOWN:
        yield f"and {len(blocked) - SHOWN} more lanes like these"
