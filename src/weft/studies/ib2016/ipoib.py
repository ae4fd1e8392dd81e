"""InfiniBand benchmarks 2016, Tables 5 to 8: throughput of UDP, latency of UDP and TCP over IPoIB.

Ours are the throughput and latency models, fitted to each mode's table. The experiments of
Tables 5 and 6 can be run on your own fabric. Entry points: `TABLE5` to `TABLE8`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.model.fit import FloatArray
from weft.records import Series
from weft.studies.calibrated import (
    LATENCY,
    THROUGHPUT,
    Mode,
    Protocol,
    ipoib_latency_fit,
    udp_throughput_fit,
)
from weft.studies.observation import Claim, Records, Verdict, build_claims
from weft.studies.published import PublishedTable, find_statement, find_table
from weft.studies.study import IB2016_PAPER, Result, Study
from weft.studies.table_curves import (
    MARKERS,
    OURS,
    Curve,
    Lines,
    build_table_curve,
    draw_published,
    error_remark,
    line_panel,
    observations_of,
    points_of,
    value_at,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Tools = Mapping[str, Curve]  # by tool, all of one model


def tools_panel(curves: Mapping[str, Tools], y_label: str) -> Callable[[Axes, Result], None]:
    """A line for each model, and open marks of a shape for each tool."""

    def lines(records: Records) -> Lines:
        lines_of_models = {}
        for label, tools in curves.items():
            series = records[next(iter(tools.values())).point.setting].quantities[OURS]
            assert isinstance(series, Series)
            lines_of_models[f"{label}, model"] = list(zip(series.x, series.y, strict=True))
        return lines_of_models

    models = line_panel(lines, "payload (B)", y_label, log_y=True, title="")

    def draw(ax: Axes, result: Result) -> None:
        named: set[str] = set()
        for tools in curves.values():
            for number, (tool, curve_) in enumerate(tools.items()):
                label = f"published, {tool}"
                points = zip(curve_.x, curve_.published, strict=True)
                draw_published(ax, points, "_" if label in named else label, MARKERS[number], 6)
                named.add(label)
        models(ax, result)

    return draw


# ---- Tables 5 and 7: throughput ----------------------------------------------------------------

THROUGHPUT_TABLES: dict[Mode, str] = {"datagram": "ib2016-table5", "connected": "ib2016-table7"}
THROUGHPUT_TOOLS = ("Netperf", "Hpcbench", "Qperf")
THROUGHPUT_TOLERANCE = 0.20  # of a row; the model's own errors are in the remarks
REASONS: dict[Mode, str] = {
    "datagram": "The published time per datagram grows by 1.6 ns a byte around 2 KiB and by 0.6 at "
    "32 KiB, where the tools are 12 % apart: costs that add up cannot grow ever more slowly.",
    "connected": "Published datagrams of 4096 B take 21.8 µs and those of 16384 B 17.3 µs: larger "
    "ones cost less, which no sum of costs gives. The paper does not say why.",
}


def _mbps(mode: Mode, size: FloatArray) -> FloatArray:
    """Messages per microsecond are millions of them per second."""
    return udp_throughput_fit(mode).predict(size_bytes=size) * size * 8


def _throughput_curve(mode: Mode, tool: str) -> Curve:
    return build_table_curve(
        find_table(THROUGHPUT_TABLES[mode]),
        f"{tool}_mbps",
        x="size_bytes",
        predict=lambda size: _mbps(mode, size),
        label=f"{tool}, {mode}",
        quantity="throughput",
        unit="Mb/s",
        system=_system(mode),
        tolerance=THROUGHPUT_TOLERANCE,
        kind="bandwidth",
        x_text=lambda size: f"{size:.0f} B",
        reason=REASONS[mode],
    )


def _system(mode: Mode) -> str:
    return THROUGHPUT[f"ib2016-udp-{mode}"].system


_THROUGHPUT_CURVES = {
    mode: {tool: _throughput_curve(mode, tool) for tool in THROUGHPUT_TOOLS}
    for mode in THROUGHPUT_TABLES
}


def _read_throughput(records: Records, mode: Mode) -> dict[float, float]:
    modelled = _THROUGHPUT_CURVES[mode]["Netperf"]
    return {size: value_at(records[modelled.point.setting], size) for size in modelled.x}


def _describe_throughput(mode: Mode, _: Result) -> tuple[str, ...]:
    fitted = udp_throughput_fit(mode)
    model = f"{fitted.form.name} of {fitted.data}"
    return (error_remark(model, fitted.error, fitted.held_out),)


def _judge_throughput(records: Records) -> Verdict:
    datagram, connected = (_read_throughput(records, mode) for mode in THROUGHPUT_TABLES)
    shares = {size: datagram[size] / connected[size] for size in datagram}
    least = min(shares, key=lambda size: shares[size])
    return Verdict(
        holds=shares[least] > 1,
        evidence=f"datagram over connected: x {shares[least]:.2f} ({least:.0f} B) to "
        f"x {max(shares.values()):.2f}; at 32 KiB x {shares[32768.0]:.2f}",
    )


def _throughput_study(
    mode: Mode, place: str, more_curves: Sequence[Curve] = (), claims: Sequence[Claim] = ()
) -> Study:
    tools = _THROUGHPUT_CURVES[mode]
    curves = tuple(tools.values())
    table = find_table(THROUGHPUT_TABLES[mode])
    return Study(
        name=table.name,
        title=f"Throughput of UDP over IPoIB, {mode} mode",
        paper=IB2016_PAPER,
        place=place,
        system=_system(mode),
        points=points_of((*curves, *more_curves)),
        observations=observations_of(curves),
        claims=tuple(claims),
        panels=(tools_panel({f"UDP, {mode}": tools}, "throughput (Mb/s)"),),
        notes=table.notes,
        remarks=partial(_describe_throughput, mode),
    )


TABLE5 = _throughput_study("datagram", "Table 5, VI.C")
TABLE7 = _throughput_study(
    "connected",
    "Table 7, VI.D",
    tuple(_THROUGHPUT_CURVES["datagram"].values()),
    build_claims(
        find_statement("ib2016", "datagram-better").place,
        "model",
        _system("connected"),
        {"Datagram mode has more throughput than connected mode.": _judge_throughput},
    ),
)


# ---- Tables 6 and 8: latency -------------------------------------------------------------------

LATENCY_TABLES: dict[Mode, str] = {"datagram": "ib2016-table6", "connected": "ib2016-table8"}
PROTOCOLS: tuple[Protocol, ...] = ("udp", "tcp")
LATENCY_TOOLS = ("Hpcbench", "Qperf")
LATENCY_TOLERANCE = 0.12  # of a row; the model's own errors are in the remarks
SMALL_B, ALIKE = 1024, 0.05


def _latency_curve(mode: Mode, protocol: Protocol, tool: str) -> Curve:
    return build_table_curve(
        find_table(LATENCY_TABLES[mode]),
        f"{protocol.upper()}_{tool}_us",
        x="size_bytes",
        predict=lambda size: ipoib_latency_fit(mode, protocol).predict(size_bytes=size),
        label=f"{protocol.upper()} ({tool}), {mode}",
        quantity="latency",
        unit="us",
        system=LATENCY[f"ib2016-ipoib-{protocol}-{mode}"].system,
        tolerance=LATENCY_TOLERANCE,
        x_text=lambda size: f"{size:.0f} B",
    )


_LATENCY_CURVES = {
    (m, p): tuple(_latency_curve(m, p, t) for t in LATENCY_TOOLS)
    for m in LATENCY_TABLES
    for p in PROTOCOLS
}


def _curves_of_mode(mode: Mode) -> tuple[Curve, ...]:
    return tuple(c for p in PROTOCOLS for c in _LATENCY_CURVES[mode, p])


def _panel_lines(mode: Mode) -> dict[str, dict[str, Curve]]:
    return {
        p.upper(): dict(zip(LATENCY_TOOLS, _LATENCY_CURVES[mode, p], strict=True))
        for p in PROTOCOLS
    }


def _read_latency(records: Records, mode: Mode, protocol: Protocol) -> dict[float, float]:
    modelled = _LATENCY_CURVES[mode, protocol][0]
    return {size: value_at(records[modelled.point.setting], size) for size in modelled.x}


def _describe_latency(mode: Mode, _: Result) -> tuple[str, ...]:
    fits = [ipoib_latency_fit(mode, protocol) for protocol in PROTOCOLS]
    return (
        *(error_remark(f"{f.form.name} of {f.data}", f.error, f.held_out) for f in fits),
        _compare_tools(find_table(LATENCY_TABLES[mode])),
    )


def _compare_tools(table: PublishedTable) -> str:
    """How well the two tools agree: no model can be nearer to both."""
    apart = np.concatenate(
        [
            np.abs(
                np.divide(*(table.column(f"{p.upper()}_{tool}_us") for tool in LATENCY_TOOLS)) - 1
            )
            for p in PROTOCOLS
        ]
    )
    return (
        f"The two tools of the paper are {100 * np.median(apart):.1f} % apart at the median, "
        f"{100 * apart.max():.1f} % at most."
    )


def _model_claim(key: str, statement: str, judge: Callable[[Records], Verdict]) -> Claim:
    return Claim(
        statement=statement,
        place=find_statement("ib2016", key).place,
        source="model",
        system=LATENCY["ib2016-ipoib-udp-datagram"].system,
        judge=judge,
    )


def _ratios(records: Records, protocol: Protocol) -> dict[float, float]:
    """Connected over datagram mode, by size."""
    datagram, connected = (_read_latency(records, mode, protocol) for mode in LATENCY_TABLES)
    return {size: connected[size] / datagram[size] for size in datagram}


def _judge_small(records: Records) -> Verdict:
    off = {
        p: max(abs(r - 1) for size, r in _ratios(records, p).items() if size <= SMALL_B)
        for p in PROTOCOLS
    }
    shown = ", ".join(f"{p.upper()} {100 * value:.1f} %" for p, value in off.items())
    return Verdict(
        holds=max(off.values()) <= ALIKE, evidence=f"to 1 KiB the modes are apart by {shown}"
    )


def _judge_latency(records: Records) -> Verdict:
    last = {p: _ratios(records, p)[32768.0] for p in PROTOCOLS}
    least = min(r for p in PROTOCOLS for r in _ratios(records, p).values())
    shown = ", ".join(f"{p.upper()} x {value:.2f}" for p, value in last.items())
    return Verdict(
        holds=least >= 1 - ALIKE and min(last.values()) > 1,
        evidence=f"connected over datagram at 32 KiB: {shown}; least at any size x {least:.2f}, "
        "within the models' error",
    )


def _latency_study(
    mode: Mode, place: str, more_curves: Sequence[Curve] = (), claims: Sequence[Claim] = ()
) -> Study:
    table = find_table(LATENCY_TABLES[mode])
    return Study(
        name=table.name,
        title=f"Latency of UDP and TCP over IPoIB, {mode} mode",
        paper=IB2016_PAPER,
        place=place,
        system=LATENCY[f"ib2016-ipoib-udp-{mode}"].system,
        points=points_of((*_curves_of_mode(mode), *more_curves)),
        observations=observations_of(_curves_of_mode(mode)),
        claims=tuple(claims),
        panels=(tools_panel(_panel_lines(mode), "latency (µs)"),),
        notes=table.notes,
        remarks=partial(_describe_latency, mode),
    )


TABLE6 = _latency_study("datagram", "Table 6, VI.C")
TABLE8 = _latency_study(
    "connected",
    "Table 8, VI.D",
    _curves_of_mode("datagram"),
    (
        _model_claim(
            "modes-alike-when-small", "The two modes are alike with small payloads.", _judge_small
        ),
        _model_claim(
            "datagram-better", "Datagram mode has less latency than connected mode.", _judge_latency
        ),
    ),
)

TABLES_5_TO_8 = (TABLE5, TABLE6, TABLE7, TABLE8)
