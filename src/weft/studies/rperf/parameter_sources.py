"""Which published values served to set which parameter; every other row is a prediction.

Parameters are those of `simulate/systems.toml` and of `studies/testbed.py`. A published value that
repeats another (Fig. 12 repeats Figs. 4 and 7a) counts as that one does. In the paper's simulator
the tail is the median, so there it has served where the median has. Entry point: `parameter_of`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.studies.observation import LEAST_SHARE, MEDIAN_RTT, MOST_SHARE, TAIL_RTT, TOTAL, Row

Key = tuple[str, str, str]  # study, setting, quantity


def _rows(figure: str, settings: Sequence[str], *quantities: str) -> tuple[Key, ...]:
    return tuple((f"rperf-fig{figure}", s, quantity) for s in settings for quantity in quantities)


_BOTH = (MEDIAN_RTT, TAIL_RTT)
_STEPS = tuple(f"probe RTT median step, {end}" for end in ("least", "most"))
_TRAVERSALS = "both traversals, median"

FITTED: Mapping[str, tuple[Key, ...]] = {
    "sx6012 cable": _rows("4", ["back-to-back, 64 B"], MEDIAN_RTT),
    "sx6012 host.poll_jitter": _rows("4", ["back-to-back, 64 B"], TAIL_RTT),
    "sx6012 host.loopback_rate": _rows("4", ["back-to-back, 4096 B"], MEDIAN_RTT),
    "sx6012 switch.latency": (
        *_rows("4", ["one switch, 64 B"], MEDIAN_RTT),
        *_rows("6", ["RPerf, 64 B"], MEDIAN_RTT),
        *_rows("6", ["switch alone, 64 B", "switch alone, 4096 B"], _TRAVERSALS),
        *_rows("12", ["no sender"], MEDIAN_RTT),
    ),
    "sx6012 switch.jitter": (
        *_rows("4", ["one switch, 64 B", "one switch, 4096 B"], TAIL_RTT),
        *_rows("6", ["RPerf, 64 B", "RPerf, 4096 B"], TAIL_RTT),
        *_rows("12", ["no sender"], TAIL_RTT),
    ),
    "sx6012 host.message_gap, doorbell_gap": _rows("5", ["back-to-back, 64 B"], TOTAL),
    "sx6012 host.pcie_read_rate": _rows("5", ["back-to-back, 4096 B"], TOTAL),
    "sx6012 host.post, poll, pcie_read, pcie_write, tx, rx": _rows(
        "6", ["perftest, 64 B", "perftest, 4096 B"], MEDIAN_RTT
    ),
    "sx6012 host.write_ack": _rows("6", ["qperf, 64 B", "qperf, 4096 B"], MEDIAN_RTT),
    "sx6012 host.hiccup, hiccup_probability": _rows("6", ["perftest, 64 B"], TAIL_RTT),
    "testbed.WINDOW_UNBATCHED": (
        *_rows("7a", ["2 senders", "3 senders", "5 senders"], MEDIAN_RTT),
        *_rows("7a", ["each sender added"], *_STEPS),
        *_rows("12", ["5 senders, shared lane"], MEDIAN_RTT),
    ),
    "sx6012 switch.buffer": _rows("8", ["5 senders of 4096 B"], MEDIAN_RTT),
    "testbed.BATCH_SMALL": _rows("9", ["5 senders of 64 B", "5 senders of 128 B"], TOTAL),
    "omnet credits.delay": (
        *_rows("10", ["FCFS, 2 senders", "FCFS, 5 senders"], *_BOTH),
        *_rows("10", ["each sender added"], *_STEPS),
    ),
    "omnet host.think": _rows("10", ["FCFS, 1 sender", "RR, 1 sender", "RR, 5 senders"], *_BOTH),
    "omnet switch.order": _rows("11", ["FCFS"], *_BOTH),
    "testbed.OWN_LANE": (
        *_rows("13", ["4 senders + pretender"], "bandwidth of the pretender"),
        *_rows("13", ["4 senders + pretender"], LEAST_SHARE, MOST_SHARE),
    ),
}

_PARAMETER = {key: parameter for parameter, keys in FITTED.items() for key in keys}


def parameter_of(row: Row) -> str | None:
    """The parameter that a row's published value served to set; None: the row is a prediction."""
    return _PARAMETER.get((row.study, row.observation.setting, row.observation.quantity))


def predictions(rows: Sequence[Row]) -> list[Row]:
    """The rows whose published value served to set nothing; a model's have, unless they say so."""
    return [
        r
        for r in rows
        if (r.observation.source != "model" or r.observation.predicted) and parameter_of(r) is None
    ]
