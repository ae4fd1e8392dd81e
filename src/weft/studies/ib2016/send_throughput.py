"""InfiniBand benchmarks 2016, Figs. 5 to 10: throughput of Send by size, transport, signal rate.

The figures' bars are not in the text; what the text states of them is compared and judged. Ours
are runs of the packet simulator (system sx6012: the paper's switch, but adapters one generation
newer) and a limit: the link's goodput, or what the hosts' PCIe can carry, which the latency model
finds from Tables 2 to 4. So the limit knows nothing of any published throughput.
Entry points: `FIG5` to `FIG10`. Units: bytes, Gb/s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from weft.model.fit import FloatArray
from weft.model.link import Framing, data_rate_gbps, goodput_gbps
from weft.records import Quantity, Series
from weft.studies.calibrated import Service, latency_fit
from weft.studies.observation import Claim, Observation, Records, Verdict, goodput, judge_unmodelled
from weft.studies.points import Point, model_point, simulation_point
from weft.studies.published import find_statement, find_table
from weft.studies.rperf.rperf_setups import CABLE
from weft.studies.study import IB2016_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, OURS, Lines, draw_published, line_panel, value_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = tuple(2**power for power in (2, 4, 6, 7, 8, 9, 10, 11, 12, 13, 15, 17, 19, 20, 21, 22, 23))
LARGE_B = 2**23
STATED_B = 2**15
SIGNAL_RATES = ("SDR", "DDR", "QDR", "FDR")
SIMULATED = "sx6012"
MODEL = "the link's goodput, or PCIe by the fit of Tables 2 to 4"
MTU_B = int(find_statement("ib2016", "mtu").value)

# perftest's default; the paper does not state it. From 4 outstanding on it does not matter here.
WINDOW = 128
DURATION, WARMUP = "4 ms", "500 us"

# "Close to" and "similar to" are the paper's words; these are our limits for them.
CLOSE, SIMILAR = 0.10, 0.05


@dataclass(frozen=True, slots=True)
class Stream:
    """Send over one transport at one signal rate, one way or both."""

    transport: Service
    speed: str
    both_ways: bool = False

    @property
    def label(self) -> str:
        return f"{self.transport.upper()}, {self.speed}" + (", both ways" * self.both_ways)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(s for s in SIZES if self.transport != "ud" or s <= MTU_B)

    def at(self, size: int) -> str:
        return f"{self.label}, {size} B"


# ---- Ours -------------------------------------------------------------------------------------


def simulation_points(stream: Stream) -> tuple[Point, ...]:
    return tuple(
        simulation_point(
            setting=stream.at(size),
            settings={"stream": stream.label, "payload_B": size},
            scenario=_scenario(stream, size),
            system=SIMULATED,
        )
        for size in stream.sizes
    )


def _scenario(stream: Stream, size: int) -> Mapping[str, object]:
    ways = [("there", "h0", "h1"), ("back", "h1", "h0")][: 2 if stream.both_ways else 1]
    traffic = [
        {
            "name": name,
            "kind": "bandwidth",
            "from": source,
            "to": target,
            "size": f"{size} B",
            "transport": stream.transport,
            "mtu": MTU_B,
            "window": WINDOW,
        }
        for name, source, target in ways
    ]
    fabric = {"topology": "one_switch", "hosts": 2, "rate": f"4x{stream.speed}", "delay": CABLE}
    return {"duration": DURATION, "warmup": WARMUP, "fabric": fabric, "traffic": traffic}


def _limit_gbps(stream: Stream, sizes: FloatArray) -> FloatArray:
    """The link's goodput, or PCIe's rate as the latency fit of the transport gives it."""
    framing = Framing(transport=stream.transport, mtu_bytes=MTU_B)
    link = goodput_gbps(sizes, data_rate_gbps(stream.speed), framing, both_ways=stream.both_ways)
    return np.minimum(link, latency_fit(stream.transport).value("pcie_gbps"))


def limit_point(stream: Stream) -> Point:
    def quantities() -> Mapping[str, Quantity]:
        ours = _limit_gbps(stream, np.array(stream.sizes, dtype=np.float64))
        return {OURS: Series("payload_B", "Gb/s", stream.sizes, tuple(ours))}

    return model_point(_limit_name(stream), {"stream": stream.label}, quantities, MODEL)


def _limit_name(stream: Stream) -> str:
    return f"{stream.label}, limit"


def read_throughput(records: Records, stream: Stream, size: int) -> float:
    return goodput(records[stream.at(size)], "there")


# ---- Published --------------------------------------------------------------------------------


def throughput_rows(stream: Stream, repeated: bool = False) -> tuple[Observation, Observation]:
    """The one throughput that the text has of a transport, by simulation and by model."""
    statement = find_statement("ib2016", f"{stream.transport}-throughput-32Ki")
    row = partial(
        Observation,
        setting=stream.at(STATED_B),
        quantity="throughput",
        unit=statement.unit,
        kind="bandwidth",
        published=statement.value,
        place=statement.place,
        role="repeat" if repeated else "prediction",
    )
    return (
        row(source="simulation", read=lambda records: read_throughput(records, stream, STATED_B)),
        row(
            source="model",
            system=MODEL,
            tolerance=SIMILAR,
            read=lambda records: value_at(records[_limit_name(stream)], STATED_B),
        ),
    )


# ---- Claims -----------------------------------------------------------------------------------


def simulation_claim(key: str, statement: str, judge: Callable[[Records], Verdict]) -> Claim:
    """A claim that is judged on the simulation; `key` is its place among the statements."""
    return Claim(
        statement=statement,
        place=find_statement("ib2016", key).place,
        source="simulation",
        system=SIMULATED,
        judge=judge,
    )


NO_RANK = (
    "One way ACKs travel against the data and take nothing from it, and what limits large messages "
    "is the hosts' PCIe, for RC and UC alike: ours has no cause of the published 0.9 %."
)
NO_CACHE = (
    "The simulator has no cache that large messages could overflow. The FDR study finds one of 4 "
    "MiB in adapters of this generation, and loses 6 % past it."
)


def judge_data_rate(streams: Sequence[Stream], records: Records) -> Verdict:
    limits = {s: read_throughput(records, s, LARGE_B) for s in streams}
    grow = all(
        read_throughput(records, s, after) >= 0.99 * read_throughput(records, s, before)
        for s in streams
        for before, after in pairwise(SIZES)
    )
    close = all(abs(limits[s] / data_rate_gbps(s.speed) - 1) <= CLOSE for s in streams)
    shown = ", ".join(
        f"{s.speed} {limits[s]:.2f} of {data_rate_gbps(s.speed):.2f} Gb/s" for s in streams
    )
    return Verdict(holds=grow and close, evidence=f"{shown}; grows with size: {_yes(grow)}")


def judge_both_ways(streams: Sequence[Stream], records: Records) -> Verdict:
    ratios = {
        both.at(size): read_throughput(records, both, size)
        / read_throughput(records, replace(both, both_ways=False), size)
        for both in streams
        for size in both.sizes
    }
    least = min(ratios, key=lambda at: ratios[at])
    large = [ratios[both.at(size)] for both in streams for size in both.sizes if size >= MTU_B]
    return Verdict(
        holds=ratios[least] >= 1 - SIMILAR,
        evidence=f"each direction has {100 * ratios[least]:.1f} % or more of what it has "
        f"alone (least: {least}); {100 * min(large):.1f} % or more from {MTU_B} B on",
    )


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


def describe_fall(table: str) -> str:
    """The same fall, as the paper's own latency has it."""
    latency = find_table(table)
    sizes = list(latency.column("size_bytes"))
    four, eight = (sizes.index(size) for size in (LARGE_B // 2, LARGE_B))
    rates = {
        speed: [8e-3 * sizes[row] / latency.column(f"{speed}_us")[row] for row in (four, eight)]
        for speed in SIGNAL_RATES
    }
    shown = ", ".join(f"{speed} {a:.2f} and {b:.2f}" for speed, (a, b) in rates.items())
    return (
        f"The fall is in the paper's latencies too, one way: payload by latency ({latency.place}) "
        f"at 4 and 8 MiB is {shown} Gb/s. The FDR study finds it with the same adapter "
        "(47 Gb/s past 8 Mi) and lays it to a cache; see fdr-cache."
    )


# ---- Drawing ----------------------------------------------------------------------------------


def streams_panel(streams: Sequence[Stream]) -> Callable[[Axes, Result], None]:
    def lines(records: Records) -> Lines:
        return {
            s.label: [(size, read_throughput(records, s, size)) for size in s.sizes]
            for s in streams
        }

    lines_panel = line_panel(
        lines,
        "payload (B)",
        "throughput of one direction (Gb/s)",
        title=f"solid: simulated, {SIMULATED}; dashed: link or PCIe",
    )

    def draw(ax: Axes, result: Result) -> None:
        for number, stream in enumerate(streams):
            most = result.records[_limit_name(stream)].quantities[OURS]
            assert isinstance(most, Series)
            ax.plot(most.x, most.y, "--", color=COLOURS[number % len(COLOURS)], linewidth=1)
        stated_values = sorted({row.published for row in result.compared if row.published})
        label = "published" if stated_values else "_"
        draw_published(ax, ((STATED_B, value) for value in stated_values), label)
        lines_panel(ax, result)

    return draw


# ---- Studies ----------------------------------------------------------------------------------

NOTES = (
    f"Simulated: system {SIMULATED}, the paper's switch (SX6012) with ConnectX-4 adapters, whose "
    "DMA carries 53 Gb/s; the paper's are ConnectX-3. MTU "
    f"{MTU_B} B as in the paper; {WINDOW} outstanding, perftest's default, is assumed.",
    "Model: the lesser of what headers leave of the data rate, and the PCIe rate that the latency "
    "model finds in Tables 2 to 4. Hosts may be slower with small messages: their message rate is "
    "not in it.",
)


def _study(
    figure: int,
    title: str,
    streams: Sequence[Stream],
    claims: Sequence[Claim],
    observations: Sequence[Observation] = (),
    beside: Sequence[Stream] = (),
    notes: Sequence[str] = (),
) -> Study:
    every = (*beside, *streams)
    return Study(
        name=f"ib2016-fig{figure}",
        title=f"Throughput of Send {title}",
        paper=IB2016_PAPER,
        place=f"Fig. {figure}, VI.B",
        system=SIMULATED,
        points=(
            *(point for stream in every for point in simulation_points(stream)),
            *map(limit_point, every),
        ),
        observations=tuple(observations),
        claims=tuple(claims),
        panels=(streams_panel(streams),),
        notes=(*NOTES, *notes),
    )


def _one_way(figure: int, transport: Service) -> Study:
    streams = tuple(Stream(transport, speed) for speed in SIGNAL_RATES)
    limit = simulation_claim(
        f"fig{figure}-limit",
        "At each signal rate throughput grows with the payload to a limit close to the data rate.",
        partial(judge_data_rate, streams),
    )
    title = f"over {transport.upper()} one way, SDR to FDR"
    return _study(figure, title, streams, (limit,), throughput_rows(streams[-1], repeated=True))


def _both_ways(
    figure: int, title: str, alone: Sequence[Stream], table: str, similar: str, fall: str
) -> Study:
    streams = tuple(replace(stream, both_ways=True) for stream in alone)
    key = f"fig{figure}-degrades-from"
    claims = (
        simulation_claim(
            "fig6-like-fig5" if figure == 6 else key, similar, partial(judge_both_ways, streams)
        ),
        simulation_claim(key, fall, judge_unmodelled(NO_CACHE)),
    )
    return _study(figure, title, streams, claims, beside=alone, notes=(describe_fall(table),))


_TRANSPORTS = (Stream("rc", "FDR"), Stream("uc", "FDR"), Stream("ud", "FDR"))

FIG5 = _study(
    5,
    "one way at FDR: RC, UC, UD",
    _TRANSPORTS,
    (
        simulation_claim(
            "fig5-best",
            "UC has the best throughput and RC the poorest, for its ACKs.",
            judge_unmodelled(NO_RANK),
        ),
    ),
    (*throughput_rows(_TRANSPORTS[0]), *throughput_rows(_TRANSPORTS[1])),
)
FIG6 = _both_ways(
    6,
    "both ways at FDR: RC, UC, UD",
    _TRANSPORTS,
    "ib2016-table2",
    "Both ways, each direction is very similar to one way.",
    "From 8 MiB on throughput falls.",
)


def _both_ways_by_rate(figure: int, transport: Service, table: str) -> Study:
    return _both_ways(
        figure,
        f"over {transport.upper()} both ways, SDR to FDR",
        tuple(Stream(transport, speed) for speed in SIGNAL_RATES),
        table,
        "Each direction is similar to one way.",
        "At FDR throughput falls from 8 MiB on.",
    )


FIG7, FIG9 = _one_way(7, "rc"), _one_way(9, "uc")
FIG8 = _both_ways_by_rate(8, "rc", "ib2016-table2")
FIG10 = _both_ways_by_rate(10, "uc", "ib2016-table3")
