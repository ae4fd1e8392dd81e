"""A host's part in a plan: serve the flows that end here, send those that start here.

Runs in the host's worker as one call for the whole plan. The coordinator orders each step and its
start; when it is lost or orders a stop, loops end at once and the server with them.
Entry point: `run_part`. Units: ns.
"""

from __future__ import annotations

import platform
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.fleet import Invitation, Member, join
from weft.fleet.member import Stopped
from weft.host.machine.counters import compare_counters, read_counters, tabulate_changes
from weft.measure.peer.local_server import LocalServer
from weft.measure.plan.flow import open_flow
from weft.measure.plan.plan import Step

ORDER_S = 3600.0  # for the next order of a coordinator that lives
END_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one host does: `steps` have the flows that start there; `serves`: some end there."""

    host: str
    address: str
    token: str
    serves: bool
    steps: tuple[Step, ...]


def run_part(invitation: Invitation, part: Part) -> None:
    """The whole plan, from this host's side."""
    with join(invitation) as member, ExitStack() as stack:
        port = None
        if part.serves:
            server = LocalServer(part.address, part.token.encode())
            port = stack.enter_context(closing(server)).port
        member.report("serving", {"port": port})
        try:
            servers = member.wait_for("servers", ORDER_S)
            while True:
                _run_step(member, part, member.wait_for("step", ORDER_S), servers)
        except Stopped:
            # Other hosts may still have flows that end here: the server stays until all are done.
            member.ended.wait(END_S)


def _run_step(member: Member, part: Part, number: int, servers: dict[str, str]) -> None:
    step = part.steps[number]
    with ThreadPoolExecutor(max(1, len(step.flows))) as pool, ExitStack() as stack:
        opening = [
            pool.submit(open_flow, flow, servers[flow.target], part.token.encode())
            for flow in step.flows
        ]
        for future in opening:  # all of them, before the first error is raised
            if future.exception() is None:
                stack.enter_context(closing(future.result()))
        flows = [future.result() for future in opening]
        member.on_stop([flow.stop.set for flow in flows])
        member.report(f"ready {number}")
        member.wait_for("go", ORDER_S)
        start_ns = time.monotonic_ns()
        running = [pool.submit(flow.run, step.warmup_ns, step.duration_ns) for flow in flows]
        report = _watch_host(member, step) | {"flows": [future.result() for future in running]}
    member.report(
        f"done {number}",
        report
        | {
            "machine": platform.node(),
            "start_ns": start_ns + member.clock_offset_ns,
            "clock_error_ns": member.clock_error_ns,
        },
    )


def _watch_host(member: Member, step: Step) -> dict[str, Any]:
    """The host's counters over the timed part."""
    member.stopped.wait(step.warmup_ns / 1e9)
    before, busy_before = read_counters(), _read_jiffies()
    member.stopped.wait(step.duration_ns / 1e9)
    after, busy_after = read_counters(), _read_jiffies()
    return {
        "counters": tabulate_changes(compare_counters(before, after)),
        "busy_percent": _busy_percent(busy_before, busy_after),
    }


def _read_jiffies() -> tuple[int, int]:
    """(busy, all) of this machine's processors since boot; zeros where there is no /proc."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0
    ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _busy_percent(before: tuple[int, int], after: tuple[int, int]) -> float:
    return 100 * (after[0] - before[0]) / max(1, after[1] - before[1])
