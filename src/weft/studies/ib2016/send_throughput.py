"""InfiniBand benchmarks 2016, Figs. 5 to 10: throughput of Send by size, transport, signal rate.

The figures' bars are not in the text; what the text states of them is compared and judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.measure import bandwidth
from weft.studies.calibrated.latency import Service
from weft.studies.claim import Claim, Verdict
from weft.studies.ib2016.send_streams import (
    MTU_B,
    SIGNAL_RATES,
    SIMILAR,
    SIMULATED,
    WINDOW,
    Stream,
    cache_claim,
    claim,
    degrades,
    fall_in_latency,
    like_one_way,
    limit,
    ranked,
    reaches_data_rate,
    simulations,
    stated_throughput,
    streams_panel,
)
from weft.studies.ib2016.tools import grows
from weft.studies.observation import Records
from weft.studies.paper import IB2016
from weft.studies.published import stated
from weft.studies.rounds import (
    RULE,
    Line,
    cases_of,
    in_rounds,
    medians_of,
    scalar,
    together,
    varied,
    within,
)
from weft.studies.rounds_draw import rounds_panel
from weft.studies.site import Point, here
from weft.studies.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTES = (
    f"Simulated: system {SIMULATED}, the paper's switch (SX6012) with ConnectX-4 adapters, whose "
    "DMA carries 53 Gb/s; the paper's are ConnectX-3. MTU "
    f"{MTU_B} B as in the paper; {WINDOW} outstanding, perftest's default, is assumed.",
    "Model: the lesser of what headers leave of the data rate, and the PCIe rate that the latency "
    "model finds in Tables 2 to 4. Hosts may be slower with small messages: their message rate is "
    "not in it.",
)
HERE = "tcp"
HERE_NOTE = (
    f"Measured: {HERE} over this machine's loopback, whose two directions share its processors. "
    f"{RULE}"
)
HERE_SIZES = (64, 1024, 32768, 2**20)


def _both(streams: Sequence[Stream]) -> tuple[Stream, ...]:
    return tuple(replace(stream, both_ways=True) for stream in streams)


def _points(streams: Sequence[Stream]) -> tuple[Point, ...]:
    simulated = tuple(point for stream in streams for point in simulations(stream))
    return (*simulated, *(limit(stream) for stream in streams))


# ---- What this machine can show of it ---------------------------------------------------------


_GBPS = scalar("throughput of one direction", "Gb/s", "bandwidth", "throughput")


def _here(both_ways: bool) -> Line:
    label = f"{HERE}, {'both ways' if both_ways else 'one way'}"
    return varied(label, _GBPS, bandwidth, "size", HERE_SIZES, over=HERE, bidirectional=both_ways)


_ONE_WAY, _TWO_WAYS = _here(False), _here(True)


def _here_panel(*lines: Line) -> Callable[[Axes, Result], None]:
    return rounds_panel(lines, "payload (B)", "throughput of one direction (Gb/s)", log_y=True)


def _here_claim(key: str, statement: str, judge: Callable[[Records], Verdict]) -> Claim:
    return Claim(
        statement=statement,
        place=stated("ib2016", key).place,
        source="measurement",
        system=here(HERE),
        judge=judge,
    )


def _similar_here(records: Records) -> Verdict:
    return together(
        *(
            within(
                _TWO_WAYS.at(records, size) / _ONE_WAY.at(records, size),
                f"{size} B",
                low=1 - SIMILAR,
            )
            for size in HERE_SIZES
        )
    )


# ---- Figs. 5 and 6: transports at FDR ---------------------------------------------------------

_RC, _UC, _UD = Stream("rc", "FDR"), Stream("uc", "FDR"), Stream("ud", "FDR")
_TRANSPORTS = (_RC, _UC, _UD)

FIG5 = Study(
    name="ib2016-fig5",
    title="Throughput of Send one way at FDR: RC, UC, UD",
    paper=IB2016,
    place="Fig. 5, VI.B",
    system=SIMULATED,
    points=(*_points(_TRANSPORTS), *in_rounds(cases_of((_ONE_WAY,)))),
    observations=(*stated_throughput(_RC), *stated_throughput(_UC), *medians_of((_ONE_WAY,))),
    claims=(
        claim(
            "fig5-best",
            "UC has the best throughput and RC the poorest, for its ACKs.",
            ranked(_UC, _RC),
        ),
        _here_claim("fig7-limit", "Throughput grows with the payload.", grows(_ONE_WAY)),
    ),
    panels=(streams_panel(_TRANSPORTS), _here_panel(_ONE_WAY)),
    notes=(*NOTES, HERE_NOTE),
)

FIG6 = Study(
    name="ib2016-fig6",
    title="Throughput of Send both ways at FDR: RC, UC, UD",
    paper=IB2016,
    place="Fig. 6, VI.B",
    system=SIMULATED,
    points=(
        *_points((*_TRANSPORTS, *_both(_TRANSPORTS))),
        *in_rounds(cases_of((_ONE_WAY, _TWO_WAYS))),
    ),
    observations=medians_of((_ONE_WAY, _TWO_WAYS)),
    claims=(
        claim(
            "fig6-like-fig5",
            "Both ways, each direction is very similar to one way.",
            like_one_way(_both(_TRANSPORTS)),
        ),
        claim(
            "fig6-degrades-from",
            "From 8 MiB on throughput falls.",
            degrades(replace(_RC, both_ways=True)),
        ),
        cache_claim("fig6-degrades-from", "From 8 MiB on throughput falls."),
        _here_claim(
            "fig6-like-fig5", "Both ways, each direction is very similar to one way.", _similar_here
        ),
    ),
    panels=(streams_panel(_both(_TRANSPORTS)), _here_panel(_ONE_WAY, _TWO_WAYS)),
    notes=(*NOTES, fall_in_latency("ib2016-table2"), HERE_NOTE),
)


# ---- Figs. 7 to 10: signal rates --------------------------------------------------------------


def _one_way(figure: int, transport: Service) -> Study:
    streams = tuple(Stream(transport, speed) for speed in SIGNAL_RATES)
    return Study(
        name=f"ib2016-fig{figure}",
        title=f"Throughput of Send over {transport.upper()} one way, SDR to FDR",
        paper=IB2016,
        place=f"Fig. {figure}, VI.B",
        system=SIMULATED,
        points=_points(streams),
        observations=stated_throughput(streams[-1]),
        claims=(
            claim(
                f"fig{figure}-limit",
                "At each signal rate throughput grows with the payload to a limit close to the "
                "data rate.",
                reaches_data_rate(streams),
            ),
        ),
        panels=(streams_panel(streams),),
        notes=NOTES,
    )


def _both_ways(figure: int, transport: Service, table: str) -> Study:
    alone = tuple(Stream(transport, speed) for speed in SIGNAL_RATES)
    streams = _both(alone)
    return Study(
        name=f"ib2016-fig{figure}",
        title=f"Throughput of Send over {transport.upper()} both ways, SDR to FDR",
        paper=IB2016,
        place=f"Fig. {figure}, VI.B",
        system=SIMULATED,
        points=_points((*alone, *streams)),
        observations=(),
        claims=(
            claim(
                f"fig{figure}-degrades-from",
                "Each direction is similar to one way.",
                like_one_way(streams),
            ),
            claim(
                f"fig{figure}-degrades-from",
                "At FDR throughput falls from 8 MiB on.",
                degrades(streams[-1]),
            ),
            cache_claim(f"fig{figure}-degrades-from", "At FDR throughput falls from 8 MiB on."),
        ),
        panels=(streams_panel(streams),),
        notes=(*NOTES, fall_in_latency(table)),
    )


FIG7 = _one_way(7, "rc")
FIG8 = _both_ways(8, "rc", "ib2016-table2")
FIG9 = _one_way(9, "uc")
FIG10 = _both_ways(10, "uc", "ib2016-table3")
