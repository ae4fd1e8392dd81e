"""RPerf's set-ups as scenarios (one switch, two hops, one cable), and the rows of its figures.

h6 is the destination; the probe is on h5, senders are h0, h1, … (RPerf, V). The systems'
parameters are in `simulate/systems.toml`; here are only what the paper varies and how its
generators are set, each inferred value with its source. Entry points: `many_to_one_scenario`,
`two_hops_scenario`, `one_to_one_scenario`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from weft.records import Record
from weft.studies.observation import (
    MEDIAN_RTT,
    TAIL_RTT,
    Kind,
    Observation,
    Records,
    Role,
    goodput,
    quantile_in,
)
from weft.studies.points import Point
from weft.studies.published import find_table
from weft.studies.study import RPERF_PAPER, Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Table = dict[str, Any]

PAYLOADS = (64, 128, 256, 512, 1024, 2048, 4096)
SENDERS = range(6)
LINK_GBPS = 56.0

RATE = {"omnet": "56 Gb/s", "sx6012": "4xFDR"}
ESTIMATOR = {"omnet": "completion", "sx6012": "rperf"}

# Long enough for 1,000 probes and more at the slowest setting, as p99.9 needs.
DURATION, WARMUP = "60 ms", "1 ms"

# ---- What the paper does not state, and from where it was inferred ----------------------------

# 2 m of cable: the 20 ns that RPerf finds back-to-back at 64 B (Fig. 4) are two flights.
CABLE = "10 ns"

# What a queue pair keeps unacknowledged, whatever the size of its messages: seven of 4096 B give
# the published step per sender of Fig. 7a (4.8 to 6.1 us). Senders of all figures follow this rule.
IN_FLIGHT_B = 28 * 1024

IN_FLIGHT_NOTE = (
    f"A sender keeps {IN_FLIGHT_B // 1024} KiB outstanding, whatever the size of its messages: "
    "inferred from the step per sender in Fig. 7a, not stated in the paper. The rule is the same "
    "in Figs. 5, 7 to 9, 12 and 13."
)

# The paper's simulator (Figs. 10 and 11): enough that its buffers are the limit.
OMNET_WINDOW = 64

# SL1 rides on VL1, which has high priority for one unit of 4,096 bytes at a time. The limit is the
# one that gives the pretender its published share (Fig. 13); with 0, 2 and 255 it would get 3, 32
# and 41 Gb/s.
OWN_LANE: Table = {"high": [[1, 255]], "low": [[0, 255]], "high_limit": 1}

# ---- Scenarios --------------------------------------------------------------------------------


def probe_traffic(system: str, source: str, sl: int = 0) -> Table:
    """The latency-sensitive generator: 64 B, closed loop."""
    return {
        "name": "probe",
        "kind": "latency",
        "from": source,
        "to": "h6",
        "size": "64 B",
        "sl": sl,
        "estimator": ESTIMATOR[system],
    }


def count_in_flight(size: int) -> int:
    """Messages that a sender of the testbed keeps outstanding."""
    return IN_FLIGHT_B // size


def sender_traffic(count: int, size: int = 4096, window: int | None = None) -> list[Table]:
    """Bandwidth-sensitive generators on h0, h1, …; none for a count of 0."""
    traffic = {
        "name": "senders",
        "kind": "bandwidth",
        "from": f"h0..h{count - 1}",
        "to": "h6",
        "size": f"{size} B",
        "window": window or count_in_flight(size),
    }
    return [traffic] if count else []


def many_to_one_scenario(
    system: str,
    traffic: list[Table],
    lanes: Table | None = None,
    order: str = "",
    duration: str = DURATION,
) -> Table:
    """Many to one over one switch; `lanes` gives a second lane and its arbitration."""
    fabric = {
        "topology": "one_switch",
        "hosts": 7,
        "rate": RATE[system],
        "delay": CABLE,
        "lanes": 2 if lanes else 1,
    }
    return {
        "duration": duration,
        "warmup": WARMUP,
        "fabric": fabric,
        "traffic": traffic,
        **({"lanes": lanes} if lanes else {}),
        **({"switch": {"order": order}} if order else {}),
    }


def two_hops_scenario(order: str) -> Table:
    """Two senders and the probe above, three senders and the destination below."""
    above = {"name": "above", "kind": "bandwidth", "from": "h0..h1", "to": "h6", "size": "4096 B"}
    below = {"name": "below", "kind": "bandwidth", "from": "h3..h5", "to": "h6", "size": "4096 B"}
    fabric = {
        "topology": "two_hops",
        "upstream_hosts": 3,
        "downstream_hosts": 4,
        "rate": RATE["omnet"],
        "delay": CABLE,
    }
    return {
        "duration": DURATION,
        "warmup": WARMUP,
        "fabric": fabric,
        "switch": {"order": order},
        "traffic": [probe_traffic("omnet", "h2"), above, below],
    }


def one_to_one_scenario(path: str, generator: Table, duration: str, warmup: str = "0 ns") -> Table:
    """One host to another: `path` is "back_to_back" or "one_switch"."""
    hosts = {"hosts": 2} if path == "one_switch" else {}
    return {
        "duration": duration,
        "warmup": warmup,
        "fabric": {"topology": path, "rate": RATE["sx6012"], "delay": CABLE, **hosts},
        "traffic": [{**generator, "from": "h0", "to": "h1"}],
    }


TAIL = 0.999  # V: "We consider the 99.9th latency percentile as the tail."
TOTAL = "bandwidth total"
LEAST_SHARE, MOST_SHARE = "bandwidth per sender, least", "bandwidth per sender, most"
STEP = "probe RTT median step, "

Reader = Callable[[Records, str], float]  # of a setting


def shares(record: Record, part: str) -> tuple[float, ...]:
    """Payload of each flow of a part, in Gb/s."""
    flows = [n for n in record.quantities if n.startswith(f"{part}.h") and n.endswith(".goodput")]
    if not flows:  # a part of one flow has no name of its own for it
        return (goodput(record, part),)
    return tuple(goodput(record, name.removesuffix(".goodput")) for name in flows)


def read_rtt(q: float, unit: str) -> Reader:
    return lambda records, setting: quantile_in(records[setting], "probe.rtt", q, unit)


def _reader(quantity: str, unit: str) -> Reader:
    """What most figures read for a quantity, from the record of the row's setting."""
    return {
        MEDIAN_RTT: read_rtt(0.5, unit),
        TAIL_RTT: read_rtt(TAIL, unit),
        TOTAL: lambda records, setting: goodput(records[setting], "senders"),
        LEAST_SHARE: lambda records, setting: min(shares(records[setting], "senders")),
        MOST_SHARE: lambda records, setting: max(shares(records[setting], "senders")),
        "bandwidth of the pretender": lambda records, setting: goodput(
            records[setting], "pretender"
        ),
    }[quantity]


def read_steps(settings: Sequence[str]) -> dict[str, Reader]:
    """The least and the most that a further sender adds to the median RTT."""

    def steps(records: Records) -> list[float]:
        medians = [quantile_in(records[s], "probe.rtt", 0.5, "us") for s in settings]
        return [after - before for before, after in pairwise(medians)]

    return {
        f"{STEP}least": lambda records, _: min(steps(records)),
        f"{STEP}most": lambda records, _: max(steps(records)),
    }


def _kind(quantity: str) -> Kind:
    return "tail" if quantity == TAIL_RTT else "bandwidth" if "bandwidth" in quantity else "median"


def _role(parameter: str) -> Role:
    """By the file's column `sets`: a parameter, "repeats STUDY", or nothing."""
    if parameter.startswith("repeats"):
        return "repeat"
    return "fit" if parameter else "prediction"


def _rows(
    figure: str, readers: Mapping[str, Reader], reasons: Mapping[tuple[str, str], str]
) -> tuple[Observation, ...]:
    """A row of each published value, in the file's order."""

    def row(
        setting: str, quantity: str, unit: str, value: float, place: str, parameter: str
    ) -> Observation:
        read = readers.get(quantity) or _reader(quantity, unit)
        return Observation(
            setting=setting,
            quantity=quantity,
            unit=unit,
            kind=_kind(quantity),
            read=lambda records: read(records, setting),
            published=value,
            place=place,
            reason=reasons.get((setting, quantity), ""),
            role=_role(parameter),
        )

    return tuple(row(*cells) for cells in find_table(figure).rows)  # type: ignore[arg-type]


def figure_study(
    figure: str,
    system: Literal["omnet", "sx6012"],
    points: Sequence[Point],
    panel: Callable[[Axes, Result], None],
    notes: Sequence[str],
    *,
    readers: Mapping[str, Reader] | None = None,
    reasons: Mapping[tuple[str, str], str] | None = None,
    more: Sequence[Observation] = (),
) -> Study:
    """A figure of the paper: simulations of a system beside its published values.

    `readers` are by quantity, `reasons` by setting and quantity; `more` are rows of ours alone.
    """
    table = find_table(f"rperf-fig{figure}")
    return Study(
        name=table.name,
        title=table.title,
        paper=RPERF_PAPER,
        place=table.place,
        system=system,
        points=tuple(points),
        observations=(*_rows(table.name, readers or {}, reasons or {}), *more),
        panels=(panel,),
        notes=tuple(notes),
    )
