"""Rows of RPerf's figures: each published value, and how ours is read from the simulations.

A figure's values are in `published/rperf-figN.toml`; the column `sets` names the parameter that a
value served to set, every other row is a prediction. A value that repeats another (Fig. 12 repeats
Figs. 4 and 7a) counts as that one does. In the paper's simulator the tail is the median, so there
it has served where the median has. Entry point: `figure_study`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from weft.records import Record
from weft.studies.observation import (
    MEDIAN_RTT,
    TAIL_RTT,
    Kind,
    Observation,
    Records,
    goodput,
    quantile_in,
)
from weft.studies.points import Point
from weft.studies.published import find_table
from weft.studies.study import RPERF_PAPER, Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
            predicted=not parameter,
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
