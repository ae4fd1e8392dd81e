"""RPerf section VI, one host to one host: Figs. 4, 5 and 6."""

from __future__ import annotations

from collections.abc import Callable

from weft.records import Record
from weft.studies.observation import (
    MEDIAN_RTT,
    TAIL_RTT,
    Observation,
    Records,
    goodput,
    quantile_in,
)
from weft.studies.points import Point, simulation_point
from weft.studies.rperf.rperf_setups import (
    IN_FLIGHT_NOTE,
    PAYLOADS,
    TAIL,
    TOTAL,
    WARMUP,
    FigureLine,
    Reader,
    count_in_flight,
    figure_study,
    lines_panel,
    one_to_one_scenario,
    rtt_lines,
)

PATHS = {"back_to_back": "back-to-back", "one_switch": "one switch"}
FIXED_BY = (
    "The host and switch times of the system sx6012 were set from this figure (systems.toml "
    "gives the source of each), so agreement at 64 B and 4096 B is a check of consistency, not "
    "a prediction."
)


def _setting(path: str, payload: int) -> str:
    return f"{PATHS[path]}, {payload} B"


def _points(generator: Callable[[int], dict[str, object]], duration: str) -> tuple[Point, ...]:
    return tuple(
        simulation_point(
            setting=_setting(path, payload),
            settings={"path": PATHS[path], "payload_B": payload},
            scenario=one_to_one_scenario(
                path, {**generator(payload), "size": f"{payload} B"}, duration, WARMUP
            ),
            system="sx6012",
        )
        for path in PATHS
        for payload in PAYLOADS
    )


FIG4 = figure_study(
    "4",
    "sx6012",
    _points(lambda _: {"name": "probe", "kind": "latency", "estimator": "rperf"}, "40 ms"),
    lines_panel(
        "payload_B",
        (
            *rtt_lines("ns", label="one switch", only={"path": "one switch"}),
            *rtt_lines("ns", label="back-to-back", colour=1, only={"path": "back-to-back"}),
        ),
        "payload (B)",
        "RTT by RPerf (ns)",
    ),
    (
        FIXED_BY,
        "Back-to-back, RPerf's loopback carries the payload too, so the RTT grows with the payload "
        "only by the difference between the wire's rate and the loopback's.",
    ),
)


def _sender(payload: int) -> dict[str, object]:
    return {"name": "senders", "kind": "bandwidth", "window": count_in_flight(payload)}


FIG5 = figure_study(
    "5",
    "sx6012",
    _points(_sender, "6 ms"),
    lines_panel(
        "payload_B",
        tuple(
            FigureLine(
                label=name,
                read=lambda r: goodput(r, "senders"),
                quantities=(TOTAL,),
                colour=i,
                only={"path": name},
            )
            for i, name in enumerate(reversed(PATHS.values()))
        ),
        "payload (B)",
        "bandwidth, payload only (Gb/s)",
    ),
    (
        "The rates were set from this figure: the adapter's 8 M messages/s from 4.1 Gb/s at 64 B, "
        "the DMA read rate from 53 Gb/s at 4096 B. What follows is the shape between them.",
        IN_FLIGHT_NOTE,
        "The loss of up to 0.8 Gb/s through the switch is not modelled: a sender with enough "
        "outstanding is limited by its adapter, on either path.",
    ),
)


# ---- Fig. 6: what other tools find on the same path -------------------------------------------

SLICE, FOUR_SLICES = "30 ms", "120 ms"
TOOLS = {"perftest": "ping_pong", "qperf": "post_poll", "RPerf": "rperf"}
TRUTH = "e.rperf.switch"
TRAVERSALS = "both traversals, median"


def _rtt_name(tool: str) -> str:
    return f"e.{TOOLS[tool]}.rtt"


def _record(records: Records, setting: str) -> Record:
    """All tools share the record of their payload."""
    return records[setting.partition(", ")[2]]


def _read_tool(q: float) -> Reader:
    def read(records: Records, setting: str) -> float:
        tool = setting.partition(", ")[0]
        return quantile_in(_record(records, setting), _rtt_name(tool), q, "us")

    return read


def _bias(tool: str, payload: int) -> Observation:
    def read(records: Records) -> float:
        record = records[f"{payload} B"]
        true = quantile_in(record, TRUTH, 0.5, "us")
        return quantile_in(record, _rtt_name(tool), 0.5, "us") - true

    return Observation(
        setting=f"{tool}, {payload} B",
        quantity="bias: median less the switch's",
        unit="us",
        kind="median",
        read=read,
    )


def _median(
    label: str, name: str, colour: int, rows: str, quantity: str = MEDIAN_RTT
) -> FigureLine:
    def read(record: Record) -> float:
        return quantile_in(record, name, 0.5, "us")

    return FigureLine(
        label=f"{label}, median", read=read, quantities=(quantity,), colour=colour, rows=rows
    )


FIG6 = figure_study(
    "6",
    "sx6012",
    tuple(
        simulation_point(
            setting=f"{payload} B",
            settings={"payload_B": payload},
            scenario=one_to_one_scenario(
                "one_switch",
                {"name": "e", "kind": "estimators", "size": f"{payload} B", "slice": SLICE},
                FOUR_SLICES,
            ),
            system="sx6012",
        )
        for payload in PAYLOADS
    ),
    lines_panel(
        "payload_B",
        (
            *rtt_lines("us", _rtt_name("perftest"), "perftest", 0, rows="perftest, "),
            _median("qperf", _rtt_name("qperf"), 2, "qperf, "),
            *rtt_lines("us", _rtt_name("RPerf"), "RPerf", 1, rows="RPerf, "),
            _median("switch alone", TRUTH, 3, "switch alone, ", TRAVERSALS),
        ),
        "payload (B)",
        "RTT (µs), logarithmic",
        "log",
    ),
    (
        "perftest is a SEND ping-pong in software (messages to 236 B inlined), qperf a WRITE timed "
        "from post to completion (not inlined), RPerf the paper's pair of SENDs. All run one after "
        "the other on the same simulated hosts, whose true switch latency is known.",
        FIXED_BY,
        "qperf reports no tail. perftest's tail at 4096 B is 2 µs less than published: ours comes "
        "from software held up at a post, alike for all payloads; what else holds up a 4096 B "
        "message on the testbed is not stated.",
    ),
    readers={
        MEDIAN_RTT: _read_tool(0.5),
        TAIL_RTT: _read_tool(TAIL),
        TRAVERSALS: lambda records, setting: quantile_in(
            _record(records, setting), TRUTH, 0.5, "us"
        ),
    },
    more=[_bias(tool, payload) for tool in TOOLS for payload in (64, 4096)],
)
