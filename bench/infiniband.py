"""The InfiniBand driver's part: how soon it discovers, programs and reads the papers' fabric.

ibsim has 264 switches and 1,944 hosts, OpenSM has routed them; management packets go through
libibumad, as to an adapter. "Nothing read before" is a driver that has only discovered the fabric.
Medians of drivers that start one after the other; every answer is compared. Entry point:
`infiniband`. Times are wall times.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bench.figure import Figure
from weft.fabric import Fabric, leaf_spine, papers_1944
from weft.records.record_text import format_table
from weft.switches import PortName, Tables

if TYPE_CHECKING:
    from driver_process import RemoteDriver

HALF = "infiniband"
ROUNDS = 3
SINGLE = 300
COLD, UNCHANGED = "all ports programmed, nothing read before", "all ports reconciled, no change"
GOALS = {COLD: 5.0, UNCHANGED: 3.0}
T = TypeVar("T")


def infiniband(quick: bool) -> list[Figure]:
    """Run and print; `quick`: four switches, once."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))
    import ibsim
    from driver_process import RemoteDriver

    if (reason := ibsim.why_not()) is not None:
        print(f"infiniband: {reason}")
        return []
    fabric = leaf_spine(2, 2, 3, rate="4xEDR") if quick else papers_1944(rate="4xFDR")
    with tempfile.TemporaryDirectory() as name, ibsim.subnet(fabric, Path(name)) as made:
        rounds = [_round(RemoteDriver(made), n) for n in range(1 if quick else ROUNDS)]
        one = _single(RemoteDriver(made), SINGLE // 10 if quick else SINGLE)
    figures = [_seconds(name, [times[name] for times in rounds]) for name in rounds[0]]
    figures.append(one)
    rows = [
        (f.name, f"{f.ours:.4g}", f.unit, "-" if f.goal is None else f"{f.goal:g}") for f in figures
    ]
    print(format_table(("infiniband", "ours", "unit", "goal"), rows))
    return figures


def _round(driver: RemoteDriver, n: int) -> dict[str, float]:
    """Seconds of each part, for a driver that has just started."""
    times = {}
    fabric, times["fabric discovered"] = _timed(driver.discover)
    ports = _ports(fabric)
    first, then = ({port: _weighted(n + m + k) for k, port in enumerate(ports)} for m in (0, 3))
    told, times[COLD] = _timed(lambda: driver.write(first))
    assert told == first
    found, times[UNCHANGED] = _timed(lambda: driver.read(ports))
    assert found == first
    told, times["all ports programmed again"] = _timed(lambda: driver.write(then))
    assert told == then
    driver.close()
    return times


def _single(driver: RemoteDriver, count: int) -> Figure:
    """One port at a time: told, read back and compared."""
    ports = _ports(driver.discover())
    times = []
    for n in range(count):
        port, wanted = ports[n * 7919 % len(ports)], _weighted(n)
        told, took = _timed(lambda: driver.write({port: wanted}))  # noqa: B023
        assert told == {port: wanted}
        times.append(1e3 * took)
    driver.close()
    p99 = sorted(times)[int(0.99 * count)]
    return Figure(
        name="one port programmed, p99",
        unit="ms",
        ours=p99,
        peer=None,
        theirs=None,
        goal=None,
        n=count,
        half=HALF,
    )


def _ports(fabric: Fabric) -> list[PortName]:
    return [
        PortName(fabric.nodes[switch].name, port)
        for switch in fabric.switches
        for port in fabric.neighbors(switch)
    ]


def _weighted(n: int) -> Tables:
    """Eight levels as themselves, one of them with the most weight."""
    return Tables(
        queue_of=tuple(range(8)), weights=tuple(200 if q == n % 8 else 1 for q in range(8))
    )


def _timed(action: Callable[[], T]) -> tuple[T, float]:
    began = time.monotonic()
    return action(), time.monotonic() - began


def _seconds(name: str, times: list[float]) -> Figure:
    return Figure(
        name=name,
        unit="s",
        ours=statistics.median(times),
        peer=None,
        theirs=None,
        goal=GOALS.get(name),
        n=len(times),
        half=HALF,
    )
