"""A controller's timeline in a report: weights, shares, slowdowns over time, and explanations.

Drawn from the records' tables alone, so that a file is enough. Entry points: `timeline_sections`,
`weights`, `shares`, `slowdowns`. Units: seconds on the x axis; per cent of the link, or times the
completion with the whole link, on the y axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from weft.control.operators.timeline import EXPLAINED, NAME, number
from weft.plot import Section, figure, to_svg
from weft.plot.html_page import Markup, escape, join, picture, pictures, row_table
from weft.plot.style import legend, line_style
from weft.records import Plain, Record, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PRE = "overflow-x: auto; font-size: .78rem; line-height: 1.35"
MEAN_S = 2.0
Records = Mapping[str, Record]


def timeline_sections(records: Sequence[Record]) -> list[Section]:
    """One for each port that a timeline was recorded at."""
    ports = dict.fromkeys(r.settings["port"] for r in records if r.name == NAME)
    return [_section(port, records) for port in ports]


def _section(port: Plain, records: Sequence[Record]) -> Section:
    here = [record for record in records if record.settings.get("port") == port]
    own = {str(r.settings["application"]): r for r in here if r.name == NAME}
    told = [row for r in here if r.name == EXPLAINED for row in r.tables["explanations"]]
    drawings: dict[str, Callable[[Axes], None]] = {
        "Weights: what the controller promised each": partial(weights, records=own),
        f"Shares: what passed the port, by its counters, means of {MEAN_S:g} s": partial(
            shares, records=own
        ),
        "Slowdown: predicted (lines), and of each run that ended (dots)": partial(
            slowdowns, records=own
        ),
    }
    title = f"Applications over time at {port}"
    drawn = [
        picture(to_svg(figure(draw), salt=f"{title} {caption}", title=caption), caption)
        for caption, draw in drawings.items()
    ]
    rows = row_table([_summary(name, record) for name, record in own.items()])
    return Section(title=title, markup=join([pictures(drawn), rows, *_explanations(port, told)]))


def _summary(name: str, record: Record) -> dict[str, object]:
    means = {key: getattr(value, "value", None) for key, value in record.quantities.items()}
    columns = {
        "runs": "runs",
        "alone": "alone, s",
        "completion": "mean completion, s",
        "slowdown": "slowdown",
        "slowdown.predicted": "predicted",
        "weight": "mean weight, %",
        "share": "mean share, %",
    }
    told: dict[str, object] = {
        head: "–" if means.get(key) is None else f"{means[key]:.3g}"
        for key, head in columns.items()
    }
    return {"application": name} | told


def _explanations(port: Plain, rows: Sequence[Row]) -> Iterator[Markup]:
    for row in rows:
        head = f"{port} explained at {number(row['at_s']):.0f} s"
        yield Markup(f"<h3>{escape(head)}</h3>")
        yield Markup(f'<pre style="{_PRE}">{escape(row["text"])}</pre>')


def weights(ax: Axes, records: Records) -> None:
    """Who is not registered has none."""
    for place, (name, record) in enumerate(records.items()):
        x, y = _points(record.tables["samples"], "weight", 100.0)
        ax.step(x, y, where="post", label=name, **line_style(place) | {"linewidth": 1.2})
    _finish(ax, "weight (% of the link)")


def shares(ax: Axes, records: Records) -> None:
    """Means of the last seconds: between two samples an application may compute or send."""
    for place, (name, record) in enumerate(records.items()):
        x, y = _points(record.tables["samples"], "share", 100.0)
        ax.plot(x, _means(x, y), label=name, **line_style(place) | {"linewidth": 1.2})
    _finish(ax, "share (% of the link)")


def _means(x: Sequence[float], y: Sequence[float]) -> list[float]:
    first = [next(n for n, before in enumerate(x) if before > at - MEAN_S) for at in x]
    return [fmean(y[begin : n + 1]) for n, begin in enumerate(first)]


def _finish(ax: Axes, label: str) -> None:
    ax.set_xlabel("time (s)")
    ax.set_ylabel(label)
    ax.set_ylim(0, 102)
    ax.margins(x=0)
    legend(ax)


def slowdowns(ax: Axes, records: Records) -> None:
    """Predictions at their time, and what each run took, at its end."""
    for place, (name, record) in enumerate(records.items()):
        style = line_style(place)
        x, y = _points(record.tables["samples"], "slowdown", 1.0)
        ax.step(x, y, where="post", label=name, **style | {"linewidth": 1.2})
        ends = [number(r["began_s"]) + number(r["took_s"]) for r in record.tables["runs"]]
        took = [number(r["slowdown"]) for r in record.tables["runs"]]
        ax.plot(ends, took, "o", color=style["color"], markersize=4)
    ax.set_xlabel("time (s)")
    ax.set_ylabel("times its completion alone")
    ax.set_ylim(bottom=0)
    ax.margins(x=0)
    legend(ax)


def _points(rows: Sequence[Row], column: str, factor: float) -> tuple[list[float], list[float]]:
    """Gaps where there is no value: who is not registered has none."""
    x = [number(row["at_s"]) for row in rows]
    return x, [
        float("nan") if row[column] is None else factor * number(row[column]) for row in rows
    ]
