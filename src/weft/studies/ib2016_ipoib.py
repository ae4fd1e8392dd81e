"""InfiniBand benchmarks 2016, Tables 6 and 8: latency of UDP and TCP over IPoIB.

Ours is the latency model, and the same curve over this machine's loopback: another system, on
which only the shape can be compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.measure import latency
from weft.records import Record
from weft.studies.calibrated.latency import LATENCY, Mode, Protocol, ipoib_latency_fit
from weft.studies.claim import Claim, Verdict
from weft.studies.ib2016_tools import tools_panel
from weft.studies.observation import Records, quantile_in
from weft.studies.paper import IB2016
from weft.studies.published import PublishedTable, published, stated
from weft.studies.repeated import RUNS, best, has, repeated
from weft.studies.site import here
from weft.studies.study import Result, Study
from weft.studies.tabulated import (
    Curve,
    Lines,
    curve,
    error_remark,
    measured_panel,
    observations_of,
    points_of,
    value_at,
)

TABLES: dict[Mode, str] = {"datagram": "ib2016-table6", "connected": "ib2016-table8"}
PROTOCOLS: tuple[Protocol, ...] = ("udp", "tcp")
TOOLS = ("Hpcbench", "Qperf")
TOLERANCE = 0.12  # of a row; the model's own errors are in the remarks
SMALL_B, ALIKE = 1024, 0.05

HERE_SIZES = (8, 64, 256, 1024, 4096, 32768)
LOW = 0.1  # the quantile of a run: what the host's other work does not reach
FLAT, GROWN = 1.3, 1.5


def _curve(mode: Mode, protocol: Protocol, tool: str) -> Curve:
    return curve(
        published(TABLES[mode]), f"{protocol.upper()}_{tool}_us", x="size_bytes",
        predict=lambda size: ipoib_latency_fit(mode, protocol).predict(size_bytes=size),
        label=f"{protocol.upper()} ({tool}), {mode}", quantity="latency", unit="us",
        system=LATENCY[f"ib2016-ipoib-{protocol}-{mode}"].system, tolerance=TOLERANCE,
        x_text=lambda size: f"{size:.0f} B",
    )  # fmt: skip


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
    apart = np.concatenate([
        np.abs(np.divide(*(table.column(f"{p.upper()}_{tool}_us") for tool in TOOLS)) - 1)
        for p in PROTOCOLS
    ])  # fmt: skip
    return (
        f"The two tools of the paper are {100 * np.median(apart):.1f} % apart at the median, "
        f"{100 * apart.max():.1f} % at most."
    )


# ---- What this machine can show of it ---------------------------------------------------------


def _here(protocol: str, size: int) -> str:
    return f"{protocol} here, {size} B"


def _low_us(record: Record) -> float:
    return quantile_in(record, "half_rtt", LOW, "us")


def _here_us(records: Records, protocol: str, size: int) -> float:
    return best(records, _here(protocol, size), _low_us, min)


_HERE_POINTS = tuple(
    point
    for protocol in PROTOCOLS
    for size in HERE_SIZES
    for point in repeated(_here(protocol, size), {"payload_B": size}, latency, over=protocol,
                          size=f"{size} B", duration="80 ms")
)  # fmt: skip


def _here_lines(records: Records) -> Lines:
    return {
        protocol.upper(): [
            (size, _here_us(records, protocol, size))
            for size in HERE_SIZES
            if has(records, _here(protocol, size))
        ]
        for protocol in PROTOCOLS
    }


def _here_claim(statement: str, judge: Callable[[Records], Verdict]) -> Claim:
    return Claim(statement=statement, place="Table 6", source="measurement",
                 system=here("udp and tcp"), judge=judge)  # fmt: skip


def _flat_then_grows(records: Records) -> Verdict:
    steps = {
        p: (_here_us(records, p, SMALL_B) / _here_us(records, p, HERE_SIZES[0]),
            _here_us(records, p, HERE_SIZES[-1]) / _here_us(records, p, SMALL_B))
        for p in PROTOCOLS
    }  # fmt: skip
    shown = "; ".join(
        f"{p.upper()} x {flat:.2f} from {HERE_SIZES[0]} B to 1 KiB, x {grown:.2f} to 32 KiB"
        for p, (flat, grown) in steps.items()
    )
    return Verdict(
        holds=all(flat <= FLAT and grown >= GROWN for flat, grown in steps.values()),
        evidence=f"{shown} (published: UDP 1.06 and 4.4, TCP 1.22 and 3.3; asked for: at most "
        f"{FLAT}, at least {GROWN})",
    )


def _udp_below_tcp(records: Records) -> Verdict:
    ours = {p: [_here_us(records, p, s) for s in HERE_SIZES if s <= SMALL_B] for p in PROTOCOLS}
    shown = "; ".join(f"{p.upper()} {min(v):.1f} to {max(v):.1f} µs" for p, v in ours.items())
    return Verdict(
        holds=all(u < t for u, t in zip(ours["udp"], ours["tcp"], strict=True)),
        evidence=f"to 1 KiB: {shown}",
    )


# ---- Claims that the models are judged on -----------------------------------------------------


def _model_claim(key: str, statement: str, judge: Callable[[Records], Verdict]) -> Claim:
    return Claim(statement=statement, place=stated("ib2016", key).place, source="model",
                 system=LATENCY["ib2016-ipoib-udp-datagram"].system, judge=judge)  # fmt: skip


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
    points=(*points_of(_of_mode("datagram")), *_HERE_POINTS),
    observations=observations_of(_of_mode("datagram")),
    claims=(
        _here_claim("Latency hardly grows to 1 KiB, and does from there on.", _flat_then_grows),
        _here_claim("Small messages take less time over UDP than over TCP.", _udp_below_tcp),
    ),
    panels=(
        tools_panel(_panel_lines("datagram"), "latency (µs)"),
        measured_panel(_here_lines, "payload (B)", f"half RTT, p{100 * LOW:.0f} (µs)"),
    ),
    notes=(
        *published("ib2016-table6").notes,
        f"Measured: spinning, over this machine's loopback; p{100 * LOW:.0f} of the best of "
        f"{RUNS} runs, as others use the machine too. UDP has no 4 B: a datagram of weft carries a "
        "sequence number of 8 B.",
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
        _model_claim("modes-alike-when-small", "The two modes are alike with small payloads.",
                     _alike_when_small),
        _model_claim("datagram-better", "Datagram mode has less latency than connected mode.",
                     _datagram_sooner),
    ),
    panels=(tools_panel(_panel_lines("connected"), "latency (µs)"),),
    notes=(
        *published("ib2016-table8").notes,
        "What this machine can measure of it is in ib2016-table6: its loopback has no modes.",
    ),
    remarks=_errors("connected"),
)  # fmt: skip
