"""The converged run beside the same scenario in the simulator: one table, one figure.

Reads the records of `weft measure converged.toml`, simulates examples/scenarios/
converged-ethernet.toml with the same rate, packets and queue, once with windows that share the
queue as TCP's do, once with credits alone, and draws all three.

    python examples/plans/converged_figure.py converged.jsonl [-o converged.png]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from weft.errors import InputError, WeftError
from weft.plot import to_png
from weft.plot.style import MUTED, OURS, PALETTE, PUBLISHED, SETTINGS
from weft.records import Record, check_output, read_records, replace_file, statistic
from weft.records.record_text import format_table
from weft.simulate import load_scenario, simulate

SCENARIO = Path(__file__).parents[1] / "scenarios" / "converged-ethernet.toml"
SENDERS = "traffic.senders.count"
RATE_BPS = 100e6
PACKET_BYTES, PAYLOAD_BYTES = 1514, 1448  # on the wire, and TCP's payload in it
QUEUE_PACKETS = 64
# With one sender the port is not the bottleneck but the sender's own interface, where TCP small
# queues let it have about 1/1024 s of its pacing rate, which is 1.2 times what it gets.
ONE_SENDER_PACKETS = round(1.2 * RATE_BPS / 8 / 1024 / PACKET_BYTES)
CREDITS_WINDOW = 1000  # more than the buffers hold: credits are the limit
PS_PER_MS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was seen with so many senders; times in ms, rates in Mb/s on the wire."""

    p50_ms: float
    p90_ms: float
    total_mbps: float
    shares_mbps: tuple[float, ...] = ()


Points = Mapping[int, Point]


def measured(records: Sequence[Record]) -> Points:
    """The median repetition of each number of senders."""
    found: dict[int, list[Point]] = {}
    for record in records:
        half = record.quantities["probe.half_rtt"]
        shares = tuple(
            _wire_mbps(row) for row in record.tables["flows"] if row["traffic"] == "senders"
        )
        point = Point(
            p50_ms=2 * (statistic(half, "p50") or 0) / PS_PER_MS,
            p90_ms=2 * (statistic(half, "p90") or 0) / PS_PER_MS,
            total_mbps=sum(shares),
            shares_mbps=shares,
        )
        found.setdefault(int(record.settings[SENDERS]), []).append(point)  # type: ignore[arg-type]
    return {n: sorted(p, key=lambda x: x.p50_ms)[len(p) // 2] for n, p in sorted(found.items())}


def _wire_mbps(flow: Mapping[str, Any]) -> float:
    """A flow's rate with the headers of its packets."""
    bits = 8e9 * flow["messages"] * flow["bytes"] / flow["elapsed_ns"]
    return float(bits * PACKET_BYTES / PAYLOAD_BYTES / 1e6)


def shared_window(senders: int) -> int:
    return ONE_SENDER_PACKETS if senders == 1 else round(QUEUE_PACKETS / senders)


def simulated(numbers: Sequence[int], windows: Mapping[int, int]) -> Points:
    return {n: _simulated(n, windows.get(n, 1)) for n in numbers}


def _simulated(senders: int, window: int) -> Point:
    changes: dict[str, object] = {"traffic.senders.window": window}
    if senders:
        changes["traffic.senders.from"] = f"h0..h{senders - 1}" if senders > 1 else "h0"
    else:
        changes["traffic.senders.start"] = "3 s"  # after the end
    seen = simulate(load_scenario(SCENARIO, changes)).record.quantities
    packets = statistic(seen["senders.message_rate"], "value") or 0 if senders else 0.0
    return Point(
        p50_ms=(statistic(seen["probe.rtt"], "p50") or 0) / PS_PER_MS,
        p90_ms=(statistic(seen["probe.rtt"], "p90") or 0) / PS_PER_MS,
        total_mbps=packets * 1e6 * PACKET_BYTES * 8 / 1e6,
    )


def table(tcp: Points, windows: Points, credits: Points) -> str:
    heads = ["senders", "RTT p50", "p90", "windows", "credits", "Mb/s", "windows", "credits"]
    rows = [
        [
            str(n),
            *(
                f"{x:.3f}"
                for x in (tcp[n].p50_ms, tcp[n].p90_ms, windows[n].p50_ms, credits[n].p50_ms)
            ),
            *(
                f"{x:.1f}"
                for x in (tcp[n].total_mbps, windows[n].total_mbps, credits[n].total_mbps)
            ),
        ]
        for n in tcp
    ]
    return format_table(heads, rows)


def draw_rtt(ax: Axes, tcp: Points, windows: Points, credits: Points) -> None:
    full_ms = 1e3 * QUEUE_PACKETS * PACKET_BYTES * 8 / RATE_BPS
    ax.axhline(full_ms, color=MUTED, linewidth=0.9, linestyle=":")
    label = f"full queue / rate: {full_ms:.2f} ms"
    ax.annotate(label, (5, full_ms - 2.6), color=MUTED, ha="right")
    _line(ax, credits, PALETTE[2], "-.", "^", "simulated: credits, a buffer per input")
    _line(ax, windows, PUBLISHED, "--", "s", "simulated: windows share the queue")
    numbers = list(tcp)
    ax.fill_between(
        numbers,
        [p.p50_ms for p in tcp.values()],
        [p.p90_ms for p in tcp.values()],
        color=OURS,
        alpha=0.15,
        linewidth=0,
    )
    _line(ax, tcp, OURS, "-", "o", "measured: TCP, p50 (to p90: shaded)")
    ax.set(ylim=(-0.5, None), xlabel="bandwidth senders", ylabel="RTT of the 64 B probe (ms)")
    ax.set_title("Probe latency", loc="left", fontsize=10)


def _line(ax: Axes, points: Points, colour: str, dash: str, marker: str, label: str) -> None:
    ax.plot(
        list(points),
        [p.p50_ms for p in points.values()],
        color=colour,
        linestyle=dash,
        marker=marker,
        markersize=4.5,
        label=label,
    )


def draw_rates(ax: Axes, tcp: Points, windows: Points, credits: Points) -> None:
    some = [n for n in tcp if n]
    for place, (points, colour) in enumerate(
        ((tcp, OURS), (windows, PUBLISHED), (credits, PALETTE[2]))
    ):
        x = [n + 0.26 * (place - 1) for n in some]
        ax.bar(x, [points[n].total_mbps for n in some], width=0.24, color=colour)
    for n in some:
        shares = tcp[n].shares_mbps
        ax.plot([n - 0.26] * len(shares), shares, "_", color="white", markersize=9)
    ax.axhline(RATE_BPS / 1e6, color=MUTED, linewidth=0.9, linestyle=":")
    ax.set(xlabel="bandwidth senders", ylabel="all senders, with headers (Mb/s)", xticks=some)
    ax.set_title("Bandwidth at the receiver's port (white: each sender)", loc="left", fontsize=10)


def figure(tcp: Points, windows: Points, credits: Points) -> Figure:
    with matplotlib.rc_context(SETTINGS):
        made = Figure(figsize=(9.0, 3.9), layout="constrained")
        left, right = made.subplots(1, 2)
        draw_rtt(left, tcp, windows, credits)
        draw_rates(right, tcp, windows, credits)
        made.legend(loc="outside lower center", ncols=3)
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", metavar="converged.jsonl")
    parser.add_argument("-o", "--output", default="converged.png", help="the figure")
    args = parser.parse_args()
    check_output(args.output)
    tcp = measured(read_records(args.records).records)
    if not tcp:
        raise InputError(args.records, "holds no records", "run converged_testbed.py first")
    windows = simulated(list(tcp), {n: shared_window(n) for n in tcp if n})
    credits = simulated(list(tcp), dict.fromkeys(tcp, CREDITS_WINDOW))
    print(table(tcp, windows, credits))
    with replace_file(args.output) as file:
        file.write_bytes(to_png(figure(tcp, windows, credits)))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WeftError as error:
        sys.exit(f"{Path(__file__).name}: {error}")
