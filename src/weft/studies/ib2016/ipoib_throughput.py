"""InfiniBand benchmarks 2016, Tables 5 and 7: throughput of UDP over IPoIB.

Ours is the throughput model, and the same curve over this machine's loopback: another system, on
which only the shape can be compared.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.measure import bandwidth
from weft.model.fit import FloatArray
from weft.studies.calibrated.throughput import THROUGHPUT, Mode, udp_throughput_fit
from weft.studies.claim import Claim, Verdict
from weft.studies.ib2016.tools import grows, tools_panel
from weft.studies.observation import Records
from weft.studies.paper import IB2016
from weft.studies.published import published, stated
from weft.studies.rounds import (
    RULE,
    Rounds,
    cases_of,
    in_rounds,
    medians_of,
    scalar,
    together,
    varied,
    within,
)
from weft.studies.rounds_draw import rounds_panel
from weft.studies.site import here
from weft.studies.study import Result, Study
from weft.studies.tabulated import Curve, curve, error_remark, observations_of, points_of, value_at

TABLES: dict[Mode, str] = {"datagram": "ib2016-table5", "connected": "ib2016-table7"}
TOOLS = ("Netperf", "Hpcbench", "Qperf")
TOLERANCE = 0.20  # of a row; the model's own errors are in the remarks
REASONS: dict[Mode, str] = {
    "datagram": "The published time per datagram grows by 1.6 ns a byte around 2 KiB and by 0.6 at "
    "32 KiB, where the tools are 12 % apart: costs that add up cannot grow ever more slowly.",
    "connected": "Published datagrams of 4096 B take 21.8 µs and those of 16384 B 17.3 µs: larger "
    "ones cost less, which no sum of costs gives. The paper does not say why.",
}

OVER = "udp"
HERE_SIZES = (8, 64, 256, 1024, 4096, 32768)
PROPORTIONAL_TO_B, PROPORTIONAL = 256, 0.75


def _mbps(mode: Mode, size: FloatArray) -> FloatArray:
    """Messages per microsecond are millions of them per second."""
    return udp_throughput_fit(mode).predict(size_bytes=size) * size * 8


def _curve(mode: Mode, tool: str) -> Curve:
    return curve(
        published(TABLES[mode]),
        f"{tool}_mbps",
        x="size_bytes",
        predict=lambda size: _mbps(mode, size),
        label=f"{tool}, {mode}",
        quantity="throughput",
        unit="Mb/s",
        system=_system(mode),
        tolerance=TOLERANCE,
        kind="bandwidth",
        x_text=lambda size: f"{size:.0f} B",
        reason=REASONS[mode],
    )


def _system(mode: Mode) -> str:
    return THROUGHPUT[f"ib2016-udp-{mode}"].system


_CURVES = {mode: {tool: _curve(mode, tool) for tool in TOOLS} for mode in TABLES}


def _ours(records: Records, mode: Mode) -> dict[float, float]:
    one = _CURVES[mode]["Netperf"]
    return {size: value_at(records[one.point.setting], size) for size in one.x}


def _errors(mode: Mode) -> Callable[[Result], tuple[str, ...]]:
    def remarks(_: Result) -> tuple[str, ...]:
        fitted = udp_throughput_fit(mode)
        what = f"{fitted.form.name} of {fitted.data}"
        return (error_remark(what, fitted.error, fitted.held_out),)

    return remarks


# ---- What this machine can show of it ---------------------------------------------------------


_HERE = varied(
    "UDP",
    scalar("throughput", "Mb/s", "bandwidth", "throughput"),
    bandwidth,
    "size",
    HERE_SIZES,
    over=OVER,
)


def _here_claim(statement: str, judge: Callable[[Records], Verdict]) -> Claim:
    return Claim(
        statement=statement, place="Table 5", source="measurement", system=here(OVER), judge=judge
    )


def _in_proportion(records: Records) -> Verdict:
    first, *others = (size for size in HERE_SIZES if size <= PROPORTIONAL_TO_B)
    return together(
        *(
            within(
                _messages(records, size) / _messages(records, first),
                f"messages/s, {size} B over {first} B",
                PROPORTIONAL,
                1 / PROPORTIONAL,
            )
            for size in others
        )
    )


def _messages(records: Records, size: int) -> Rounds:
    """Millions of them per second."""
    return _HERE.at(records, size).each(lambda mbps: mbps / 8 / size)


# ---- Claims that the models are judged on -----------------------------------------------------


def _datagram_ahead(records: Records) -> Verdict:
    datagram, connected = (_ours(records, mode) for mode in TABLES)
    shares = {size: datagram[size] / connected[size] for size in datagram}
    least = min(shares, key=lambda size: shares[size])
    return Verdict(
        holds=shares[least] > 1,
        evidence=f"datagram over connected: x {shares[least]:.2f} ({least:.0f} B) to "
        f"x {max(shares.values()):.2f}; at 32 KiB x {shares[32768.0]:.2f}",
    )


# ---- Studies ----------------------------------------------------------------------------------

TABLE5 = Study(
    name="ib2016-table5",
    title="Throughput of UDP over IPoIB, datagram mode",
    paper=IB2016,
    place="Table 5, VI.C",
    system=_system("datagram"),
    points=(*points_of(tuple(_CURVES["datagram"].values())), *in_rounds(cases_of((_HERE,)))),
    observations=(*observations_of(tuple(_CURVES["datagram"].values())), *medians_of((_HERE,))),
    claims=(
        _here_claim("Throughput grows with the payload.", grows(_HERE)),
        _here_claim(
            "With small payloads it does so in proportion, as each message costs the same "
            "(published: 0.53 M/s from 4 to 512 B).",
            _in_proportion,
        ),
    ),
    panels=(
        tools_panel({"UDP, datagram": _CURVES["datagram"]}, "throughput (Mb/s)"),
        rounds_panel((_HERE,), "payload (B)", "throughput (Mb/s)", log_y=True),
    ),
    notes=(
        *published("ib2016-table5").notes,
        f"Measured: over this machine's loopback, what arrived. {RULE}",
    ),
    remarks=_errors("datagram"),
)

TABLE7 = Study(
    name="ib2016-table7",
    title="Throughput of UDP over IPoIB, connected mode",
    paper=IB2016,
    place="Table 7, VI.D",
    system=_system("connected"),
    points=points_of((*_CURVES["connected"].values(), *_CURVES["datagram"].values())),
    observations=observations_of(tuple(_CURVES["connected"].values())),
    claims=(
        Claim(
            statement="Datagram mode has more throughput than connected mode.",
            place=stated("ib2016", "datagram-better").place,
            source="model",
            system=_system("connected"),
            judge=_datagram_ahead,
        ),
    ),
    panels=(tools_panel({"UDP, connected": _CURVES["connected"]}, "throughput (Mb/s)"),),
    notes=(
        *published("ib2016-table7").notes,
        "What this machine can measure of it is in ib2016-table5: its loopback has no modes.",
    ),
    remarks=_errors("connected"),
)
