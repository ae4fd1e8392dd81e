"""RPerf's set-ups as scenarios (one switch, two hops, one cable); rows and panels of its figures.

h6 is the destination; the probe is on h5, senders are h0, h1, … (RPerf, V). The systems'
parameters are in `simulate/systems.toml`; here are only what the paper varies and how its
generators are set, each inferred value with its source. Panels show ours as lines or bars,
published values as open orange marks. Entry points: `many_to_one_scenario`, `two_hops_scenario`,
`one_to_one_scenario`; `lines_panel`, `rtt_lines`, `rtt_bars_panel`, `comparison_panel`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from weft.plot import PublishedPoint, compare_published, quantile_bars
from weft.plot.style import legend
from weft.records import Distribution, Plain, Record
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
from weft.studies.table_curves import draw_published
from weft.units import convert

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


# Orange is kept for what was published.
COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#4D4D4D")


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureLine:
    """One quantity over the settings: how ours is read, and the name of its published rows."""

    label: str
    read: Callable[[Record], float]
    quantities: tuple[str, ...]
    tail: bool = False
    colour: int = 0
    only: Mapping[str, Plain] | None = None  # the settings of the points on this line
    rows: str = ""  # what stands before a point's setting in its published rows

    def has(self, point: Point) -> bool:
        return all(point.settings.get(key) == value for key, value in (self.only or {}).items())

    @property
    def marker(self) -> str:
        return "^" if self.tail else "o"

    @property
    def kind(self) -> str:
        """Distinguishes its published marks from others in the legend."""
        if self.tail:
            return ": tail (p99.9)"
        return ": median" if "median" in self.quantities[0] else ""


def rtt_lines(
    unit: str,
    name: str = "probe.rtt",
    label: str = "",
    colour: int = 0,
    only: Mapping[str, Plain] | None = None,
    rows: str = "",
) -> tuple[FigureLine, FigureLine]:
    """The median and the tail of a distribution."""

    def at(q: float) -> Callable[[Record], float]:
        return lambda record: quantile_in(record, name, q, unit)

    start = f"{label}, " if label else ""
    return (
        FigureLine(
            label=f"{start}median",
            read=at(0.5),
            quantities=(MEDIAN_RTT,),
            colour=colour,
            only=only,
            rows=rows,
        ),
        FigureLine(
            label=f"{start}tail (p99.9)",
            read=at(TAIL),
            quantities=(TAIL_RTT,),
            tail=True,
            colour=colour,
            only=only,
            rows=rows,
        ),
    )


def lines_panel(
    setting: str, lines: Sequence[FigureLine], x_label: str, y_label: str, scale: str = "linear"
) -> Callable[[Axes, Result], None]:
    """Draws lines over a numeric setting whose values stand at equal distances."""

    def draw(ax: Axes, result: Result) -> None:
        ticks = sorted({_number(p.settings[setting]) for p in result.study.points})
        place = {p.setting: ticks.index(_number(p.settings[setting])) for p in result.study.points}
        for line in lines:
            _draw_ours(ax, line, place, result)
        for line in lines:
            _draw_published(ax, line, place, result)
        ax.set_xticks(range(len(ticks)), [f"{value:g}" for value in ticks])
        ax.set_xlabel(x_label)
        ax.set_ylabel(y_label)
        _value_axis(ax, scale)
        ax.grid(visible=False, axis="x")
        legend(ax)

    return draw


def _number(value: Plain) -> float:
    assert isinstance(value, int | float)
    return value


def _value_axis(ax: Axes, scale: str) -> None:
    from matplotlib.ticker import LogLocator  # see weft.plot.style

    if scale == "linear":
        ax.set_ylim(bottom=0)
        return
    ax.set_yscale(scale)
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.minorticks_off()
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _draw_ours(ax: Axes, line: FigureLine, place: Mapping[str, int], result: Result) -> None:
    points = [p for p in result.study.points if line.has(p)]
    style: dict[str, Any] = {
        "color": COLOURS[line.colour],
        "marker": line.marker,
        "markersize": 4 if line.colour else 5,
        "linestyle": "--" if line.tail else "-",
        # The first line is wider: it shows below another that coincides with it.
        "linewidth": 1.2 if line.tail else 1.5 if line.colour else 2.6,
        "alpha": 0.75 if line.tail else 1,
    }
    values = [line.read(result.records[p.setting]) for p in points]
    ax.plot([place[p.setting] for p in points], values, label=f"ours: {line.label}", **style)


def _draw_published(ax: Axes, line: FigureLine, place: Mapping[str, int], result: Result) -> None:
    x_of = {line.rows + p.setting: place[p.setting] for p in result.study.points if line.has(p)}
    points = [
        (x_of[row.observation.setting], row.published)
        for row in result.compared
        if row.observation.quantity in line.quantities
        and row.observation.setting in x_of
        and row.published is not None
    ]
    label = f"published{line.kind}"
    named = any(mark.get_label() == label for mark in ax.get_lines())
    draw_published(ax, points, "_" if named else label, line.marker, 8.5)


def rtt_bars_panel() -> Callable[[Axes, Result], None]:
    """A bar for each setting: median dark, tail light, diamonds where the paper states them."""

    def draw(ax: Axes, result: Result) -> None:
        rtts: dict[str, Distribution] = {}
        for setting, record in result.records.items():
            quantity = record.quantities["probe.rtt"]
            assert isinstance(quantity, Distribution)
            rtts[setting] = quantity
        published = {setting: _find_published_ps(result, setting) for setting in rtts}
        quantile_bars(ax, rtts, "probe RTT", TAIL, published)

    return draw


def _find_published_ps(result: Result, setting: str) -> list[float]:
    values = [
        convert(row.published, row.observation.unit, "ps")
        for row in result.compared
        if row.observation.setting == setting and row.published is not None
    ]
    return [value for value in values if value is not None]


def comparison_panel(ax: Axes, result: Result) -> None:
    """A row for each published value, ours beside it."""
    points = [
        PublishedPoint(
            label=f"{row.observation.setting}:\n{row.observation.quantity}",
            published=row.published,
            ours=row.ours,
        )
        for row in result.compared
        if row.published is not None
    ]
    compare_published(ax, points, result.rows[0].observation.unit, "bandwidth")
