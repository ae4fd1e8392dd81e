"""InfiniBand benchmarks 2016, Tables 6 and 8: latency of UDP and TCP over IPoIB.

Ours is the latency model, and the same curve over this machine's loopback: another system, on
which only the shape can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from weft.measure import latency
from weft.studies.calibrated.latency import LATENCY, Mode, Protocol, ipoib_latency_fit
from weft.studies.claim import Claim, Verdict
from weft.studies.ib2016.tools import tools_panel
from weft.studies.observation import Records
from weft.studies.paper import IB2016
from weft.studies.published import PublishedTable, published, stated
from weft.studies.rounds import (
    MEDIAN_US,
    RULE,
    cases_of,
    in_rounds,
    medians_of,
    together,
    varied,
    within,
)
from weft.studies.rounds_draw import rounds_panel
from weft.studies.site import here
from weft.studies.study import Result, Study
from weft.studies.tabulated import Curve, curve, error_remark, observations_of, points_of, value_at

TABLES: dict[Mode, str] = {"datagram": "ib2016-table6", "connected": "ib2016-table8"}
PROTOCOLS: tuple[Protocol, ...] = ("udp", "tcp")
TOOLS = ("Hpcbench", "Qperf")
TOLERANCE = 0.12  # of a row; the model's own errors are in the remarks
SMALL_B, ALIKE = 1024, 0.05

HERE_SIZES = (8, 64, 1024, 8192, 32768)
FLAT, GROWN = 1.3, 1.5


def _curve(mode: Mode, protocol: Protocol, tool: str) -> Curve:
    return curve(
        published(TABLES[mode]),
        f"{protocol.upper()}_{tool}_us",
        x="size_bytes",
        predict=lambda size: ipoib_latency_fit(mode, protocol).predict(size_bytes=size),
        label=f"{protocol.upper()} ({tool}), {mode}",
        quantity="latency",
        unit="us",
        system=LATENCY[f"ib2016-ipoib-{protocol}-{mode}"].system,
        tolerance=TOLERANCE,
        x_text=lambda size: f"{size:.0f} B",
    )


_CURVES = {(m, p): tuple(_curve(m, p, t) for t in TOOLS) for m in TABLES for p in PROTOCOLS}


def _of_mode(mode: Mode) -> tuple[Curve, ...]:
    return tuple(c for p in PROTOCOLS for c in _CURVES[mode, p])


def _panel_lines(mode: Mode) -> dict[str, dict[str, Curve]]:
    return {p.upper(): dict(zip(TOOLS, _CURVES[mode, p], strict=True)) for p in PROTOCOLS}


def _ours(records: Records, mode: Mode, protocol: Protocol) -> dict[float, float]:
    one = _CURVES[mode, protocol][0]
    return {size: value_at(records[one.point.setting], size) for size in one.x}


def _errors(mode: Mode) -> Callable[[Result], tuple[str, ...]]:
    def remarks(_: Result) -> tuple[str, ...]:
        fits = [ipoib_latency_fit(mode, protocol) for protocol in PROTOCOLS]
        return (
            *(error_remark(f"{f.form.name} of {f.data}", f.error, f.held_out) for f in fits),
            _tools_apart(published(TABLES[mode])),
        )

    return remarks


def _tools_apart(table: PublishedTable) -> str:
    """How well the two tools agree: no model can be nearer to both."""
    apart = np.concatenate(
        [
            np.abs(np.divide(*(table.column(f"{p.upper()}_{tool}_us") for tool in TOOLS)) - 1)
            for p in PROTOCOLS
        ]
    )
    return (
        f"The two tools of the paper are {100 * np.median(apart):.1f} % apart at the median, "
        f"{100 * apart.max():.1f} % at most."
    )


# ---- What this machine can show of it ---------------------------------------------------------


_HERE = {
    protocol: varied(protocol.upper(), MEDIAN_US, latency, "size", HERE_SIZES, over=protocol)
    for protocol in PROTOCOLS
}


def _here_claim(statement: str, judge: Callable[[Records], Verdict]) -> Claim:
    return Claim(
        statement=statement,
        place="Table 6",
        source="measurement",
        system=here("udp and tcp"),
        judge=judge,
    )


def _step(low: int, high: int, least: float, most: float) -> Callable[[Records], Verdict]:
    """Whether the latency at one size is so many times that at another, over UDP and TCP."""

    def judge(records: Records) -> Verdict:
        return together(
            *(
                within(
                    line.at(records, high) / line.at(records, low),
                    f"{line.label}, {high} B over {low} B",
                    least,
                    most,
                )
                for line in _HERE.values()
            )
        )

    return judge


def _udp_below_tcp(records: Records) -> Verdict:
    udp, tcp = (_HERE[protocol] for protocol in PROTOCOLS)
    return together(
        *(
            within(
                udp.at(records, size) / tcp.at(records, size), f"UDP over TCP, {size} B", high=1.0
            )
            for size in HERE_SIZES
            if size <= SMALL_B
        )
    )


# ---- Claims that the models are judged on -----------------------------------------------------


def _model_claim(key: str, statement: str, judge: Callable[[Records], Verdict]) -> Claim:
    return Claim(
        statement=statement,
        place=stated("ib2016", key).place,
        source="model",
        system=LATENCY["ib2016-ipoib-udp-datagram"].system,
        judge=judge,
    )


def _ratios(records: Records, protocol: Protocol) -> dict[float, float]:
    """Connected over datagram mode, by size."""
    datagram, connected = (_ours(records, mode, protocol) for mode in TABLES)
    return {size: connected[size] / datagram[size] for size in datagram}


def _alike_when_small(records: Records) -> Verdict:
    off = {
        p: max(abs(r - 1) for size, r in _ratios(records, p).items() if size <= SMALL_B)
        for p in PROTOCOLS
    }
    shown = ", ".join(f"{p.upper()} {100 * value:.1f} %" for p, value in off.items())
    return Verdict(
        holds=max(off.values()) <= ALIKE, evidence=f"to 1 KiB the modes are apart by {shown}"
    )


def _datagram_sooner(records: Records) -> Verdict:
    last = {p: _ratios(records, p)[32768.0] for p in PROTOCOLS}
    least = min(r for p in PROTOCOLS for r in _ratios(records, p).values())
    shown = ", ".join(f"{p.upper()} x {value:.2f}" for p, value in last.items())
    return Verdict(
        holds=least >= 1 - ALIKE and min(last.values()) > 1,
        evidence=f"connected over datagram at 32 KiB: {shown}; least at any size x {least:.2f}, "
        "within the models' error",
    )


# ---- Studies ----------------------------------------------------------------------------------

TABLE6 = Study(
    name="ib2016-table6",
    title="Latency of UDP and TCP over IPoIB, datagram mode",
    paper=IB2016,
    place="Table 6, VI.C",
    system=LATENCY["ib2016-ipoib-udp-datagram"].system,
    points=(*points_of(_of_mode("datagram")), *in_rounds(cases_of(tuple(_HERE.values())))),
    observations=(*observations_of(_of_mode("datagram")), *medians_of(tuple(_HERE.values()))),
    claims=(
        _here_claim(
            "Latency hardly grows to 1 KiB (published: UDP x 1.06, TCP x 1.22).",
            _step(HERE_SIZES[0], SMALL_B, 0.0, FLAT),
        ),
        _here_claim(
            "From there it grows (published, to 32 KiB: UDP x 4.4, TCP x 3.3).",
            _step(SMALL_B, HERE_SIZES[-1], GROWN, inf),
        ),
        _here_claim("Small messages take less time over UDP than over TCP.", _udp_below_tcp),
    ),
    panels=(
        tools_panel(_panel_lines("datagram"), "latency (µs)"),
        rounds_panel(tuple(_HERE.values()), "payload (B)", "half RTT, median (µs)"),
    ),
    notes=(
        *published("ib2016-table6").notes,
        "Measured: spinning, over this machine's loopback. UDP has no 4 B: a datagram of weft "
        f"carries a sequence number of 8 B. {RULE}",
    ),
    remarks=_errors("datagram"),
)

TABLE8 = Study(
    name="ib2016-table8",
    title="Latency of UDP and TCP over IPoIB, connected mode",
    paper=IB2016,
    place="Table 8, VI.D",
    system=LATENCY["ib2016-ipoib-udp-connected"].system,
    points=points_of((*_of_mode("connected"), *_of_mode("datagram"))),
    observations=observations_of(_of_mode("connected")),
    claims=(
        _model_claim(
            "modes-alike-when-small",
            "The two modes are alike with small payloads.",
            _alike_when_small,
        ),
        _model_claim(
            "datagram-better",
            "Datagram mode has less latency than connected mode.",
            _datagram_sooner,
        ),
    ),
    panels=(tools_panel(_panel_lines("connected"), "latency (µs)"),),
    notes=(
        *published("ib2016-table8").notes,
        "What this machine can measure of it is in ib2016-table6: its loopback has no modes.",
    ),
    remarks=_errors("connected"),
)
