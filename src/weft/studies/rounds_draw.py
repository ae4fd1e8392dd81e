"""Drawings of measured rounds: the median, and a bar or line from the least to the most.

Entry points: `rounds_panel`, `spread_panel`, `rounds_bars`. Units: those of each reading.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from weft.plot.style import INK
from weft.studies.claim import NotHere
from weft.studies.observation import Records
from weft.studies.rounds import Line, Reading, Rounds, rounds_of
from weft.studies.study import Result
from weft.studies.tabulated import COLOURS, measured_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED = "measured here (median and range of the rounds)"
ROOM, ROOM_LOG, MARGIN = 2.0, 10.0, 1.06  # factors of the value axis: beyond medians, beyond all
Spreads = Mapping[str, Sequence[tuple[float, Callable[[Records], Rounds]]]]  # label: (x, y)
Panel = Callable[["Axes", Result], None]


def rounds_panel(
    lines: Sequence[Line], x_label: str, y_label: str, *, log_x: bool = True, log_y: bool = False
) -> Panel:
    """Lines over what is varied."""

    def reader(line: Line, value: int) -> Callable[[Records], Rounds]:
        return lambda records: line.at(records, value)

    spreads = {
        line.label: [(float(value), reader(line, value)) for value in line.cases] for line in lines
    }
    return spread_panel(spreads, x_label, y_label, log_x=log_x, log_y=log_y)


def spread_panel(
    spreads: Spreads, x_label: str, y_label: str, *, log_x: bool = True, log_y: bool = False
) -> Panel:
    """Medians of the rounds over one axis, with a bar from the least to the most."""

    def seen(records: Records) -> dict[str, list[tuple[float, Rounds]]]:
        found = {
            label: [(x, y) for x, read in several if (y := _had(records, read)) is not None]
            for label, several in spreads.items()
        }
        return {label: points for label, points in found.items() if points}

    base = measured_panel(
        lambda records: {k: [(x, y.median) for x, y in v] for k, v in seen(records).items()},
        x_label,
        y_label,
        log_x=log_x,
        log_y=log_y,
        title=MEASURED,
    )

    def draw(ax: Axes, result: Result) -> None:
        for number, points in enumerate(seen(result.records).values()):
            ax.vlines(
                [x for x, _ in points],
                [y.least for _, y in points],
                [y.most for _, y in points],
                color=COLOURS[number % len(COLOURS)],
                linewidth=5,
                alpha=0.25,
            )
        base(ax, result)
        _value_axis(ax, [y for points in seen(result.records).values() for _, y in points], log_y)

    return draw


def _value_axis(ax: Axes, found: Sequence[Rounds], log: bool) -> None:
    """Room for the medians: a round that others spoiled may leave the axis."""
    if not found:
        return
    medians = [one.median for one in found]
    most = max(one.most for one in found)
    if log:
        least = min(one.least for one in found)
        ax.set_ylim(
            max(least / MARGIN, min(medians) / ROOM_LOG),
            min(most * MARGIN, max(medians) * ROOM_LOG),
        )
    else:
        ax.set_ylim(0, min(most * MARGIN, max(medians) * ROOM))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A case as a bar; those of one `kind` have one colour."""

    label: str
    case: str
    kind: str


def rounds_bars(bars: Sequence[Bar], reading: Reading, x_label: str) -> Panel:
    """A bar for each case that there is: the median, and a line from the least to the most."""
    kinds = list(dict.fromkeys(bar.kind for bar in bars))

    def draw(ax: Axes, result: Result) -> None:
        labels: list[str] = []
        for bar in bars:
            found = _had(result.records, partial(rounds_of, case=bar.case, reading=reading))
            if found is None:
                continue
            colour = COLOURS[kinds.index(bar.kind) % len(COLOURS)]
            ax.barh(len(labels), found.median, color=colour, height=0.6)
            ax.plot([found.least, found.most], [len(labels)] * 2, color=INK, linewidth=1)
            labels.append(bar.label)
        ax.set_yticks(range(len(labels)), labels)
        ax.invert_yaxis()
        ax.set_xlabel(f"{x_label}; {MEASURED}")
        ax.grid(visible=False, axis="y")
        if not labels:
            ax.text(0.5, 0.5, "not measured here", transform=ax.transAxes, ha="center")

    return draw


def _had(records: Records, read: Callable[[Records], Rounds]) -> Rounds | None:
    try:
        return read(records)
    except NotHere:
        return None
