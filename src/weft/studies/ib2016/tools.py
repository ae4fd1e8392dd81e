"""What the studies of the InfiniBand benchmarks 2016 share.

`tools_panel` draws one model beside what several tools found of the same thing; `grows` judges
whether a line measured here does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from weft.plot.style import PUBLISHED
from weft.records import Series
from weft.studies.claim import Verdict
from weft.studies.observation import Records
from weft.studies.rounds import Line, together, within
from weft.studies.study import Result
from weft.studies.tabulated import MARKERS, OURS, Curve, Lines, measured_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Tools = Mapping[str, Curve]  # by tool, all of one model


def tools_panel(curves: Mapping[str, Tools], y_label: str) -> Callable[[Axes, Result], None]:
    """A line for each model, and open marks of a shape for each tool."""

    def lines(records: Records) -> Lines:
        found = {}
        for label, tools in curves.items():
            series = records[next(iter(tools.values())).point.setting].quantities[OURS]
            assert isinstance(series, Series)
            found[f"{label}, model"] = list(zip(series.x, series.y, strict=True))
        return found

    models = measured_panel(lines, "payload (B)", y_label, log_y=True, title="")

    def draw(ax: Axes, result: Result) -> None:
        named: set[str] = set()
        for tools in curves.values():
            for number, (tool, one) in enumerate(tools.items()):
                label = f"published, {tool}"
                ax.plot(
                    one.x,
                    one.published,
                    MARKERS[number],
                    markersize=6,
                    markerfacecolor="none",
                    markeredgecolor=PUBLISHED,
                    markeredgewidth=1.2,
                    zorder=3,
                    label="_" if label in named else label,
                )
                named.add(label)
        models(ax, result)

    return draw


def grows(line: Line) -> Callable[[Records], Verdict]:
    """Whether each value of a line is above the one before."""

    def judge(records: Records) -> Verdict:
        return together(
            *(
                within(
                    line.at(records, after) / line.at(records, before),
                    f"{after} B over {before} B",
                    low=1.0,
                )
                for before, after in pairwise(line.cases)
            )
        )

    return judge
