"""Applications over time at one port, as records and as a section of a report.

Moments come from a controller and a port's counters, runs from the applications themselves. Each
application has a record named `control-timeline`: promised weight, share of the link that passed
and predicted slowdown over time (`samples`), and its runs beside the prediction for their time
(`runs`). Explanations of the controller have a record of their own. Figures are drawn from the
records alone. Pure. Entry points: `Timeline`, `build_records`; `timeline_sections`, `draw_weights`,
`draw_shares`, `draw_slowdowns`. Units: seconds, bytes, bits per second; weights and shares are
fractions of the link, in figures per cent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from weft import __version__
from weft.plot import Section, figure, to_svg
from weft.plot.html_page import Markup, escape, join, picture, pictures, row_table
from weft.plot.style import legend, line_style
from weft.records import Plain, Provenance, Record, Row, Scalar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAME = "control-timeline"
EXPLAINED = "control-explained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Applications at a time, by name; without a registration no weight and no prediction.

    `passed_bytes` are those that have left the application's queue so far.
    """

    at_s: float
    weights: Mapping[str, float]
    slowdowns: Mapping[str, float]
    passed_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of an application, from its start to its end."""

    application: str
    began_s: float
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The controller's explanation of a port."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Applications at a port over time. `baselines_s`: profiled completions with the whole link."""

    port: str
    link_bps: float
    baselines_s: Mapping[str, float]
    moments: Sequence[Moment]
    runs: Sequence[Run]
    explanations: Sequence[Explanation] = ()


def build_records(timeline: Timeline) -> list[Record]:
    """A record for each application, and one of the explanations."""
    records = [_application_record(timeline, name) for name in timeline.baselines_s]
    return [*records, _explanation_record(timeline)] if timeline.explanations else records


def _application_record(timeline: Timeline, name: str) -> Record:
    samples, runs = list(_samples(timeline, name)), list(_runs(timeline, name))
    return Record(
        kind="measurement",
        name=NAME,
        settings={"application": name, "port": timeline.port},
        quantities=_mean_quantities(timeline.baselines_s[name], samples, runs),
        tables={"samples": samples, "runs": runs},
        provenance=Provenance(weft_version=__version__),
    )


def _samples(timeline: Timeline, name: str) -> Iterator[dict[str, Plain]]:
    """The share is that since the last moment, if bytes were counted then."""
    for last, now in pairwise(timeline.moments):
        passed = now.passed_bytes.get(name, 0)
        passed -= last.passed_bytes.get(name, passed)
        yield {
            "at_s": round(now.at_s, 3),
            "weight": _round(now.weights.get(name)),
            "share": _round(8 * passed / timeline.link_bps / (now.at_s - last.at_s)),
            "slowdown": _round(now.slowdowns.get(name)),
        }


def _round(value: float | None) -> float | None:
    """A hundredth of a per cent: finer than can be drawn, in a third of the bytes."""
    return None if value is None else round(value, 4)


def _runs(timeline: Timeline, name: str) -> Iterator[dict[str, Plain]]:
    for run in timeline.runs:
        if run.application == name:
            yield {
                "began_s": run.began_s,
                "took_s": run.took_s,
                "slowdown": run.took_s / timeline.baselines_s[name],
                "predicted": _predict(timeline, run),
            }


def _predict(timeline: Timeline, run: Run) -> float | None:
    """The mean of the predictions while it ran."""
    until_s = run.began_s + run.took_s
    slowdowns = [
        moment.slowdowns[run.application]
        for moment in timeline.moments
        if run.began_s <= moment.at_s <= until_s and run.application in moment.slowdowns
    ]
    return fmean(slowdowns) if slowdowns else None


def _mean_quantities(
    baseline_s: float, samples: Sequence[Mapping[str, Plain]], runs: Sequence[Mapping[str, Plain]]
) -> dict[str, Scalar]:
    """Means over the time that it was registered, and over its runs."""
    registered = [row for row in samples if row["weight"] is not None]
    means = {"alone": Scalar(baseline_s, "s"), "runs": Scalar(len(runs), "")}
    for name, unit, values in (
        ("weight", "%", [100 * read_number(row["weight"]) for row in registered]),
        ("share", "%", [100 * read_number(row["share"]) for row in registered]),
        ("completion", "s", [read_number(row["took_s"]) for row in runs]),
        ("slowdown", "", [read_number(row["slowdown"]) for row in runs]),
        (
            "slowdown.predicted",
            "",
            [read_number(row["predicted"]) for row in runs if row["predicted"]],
        ),
    ):
        if values:
            means[name] = Scalar(fmean(values), unit)
    return means


def read_number(value: Plain) -> float:
    """The number in a cell that has one."""
    assert isinstance(value, int | float)
    return float(value)


def _explanation_record(timeline: Timeline) -> Record:
    return Record(
        kind="measurement",
        name=EXPLAINED,
        settings={"port": timeline.port},
        tables={
            "explanations": [
                {"at_s": explanation.at_s, "text": explanation.text}
                for explanation in timeline.explanations
            ]
        },
        provenance=Provenance(weft_version=__version__),
    )


_PRE = "overflow-x: auto; font-size: .78rem; line-height: 1.35"
MEAN_S = 2.0
Records = Mapping[str, Record]


def timeline_sections(records: Sequence[Record]) -> list[Section]:
    """One for each port that a timeline was recorded at."""
    ports = dict.fromkeys(r.settings["port"] for r in records if r.name == NAME)
    return [_section(port, records) for port in ports]


def _section(port: Plain, records: Sequence[Record]) -> Section:
    port_records = [record for record in records if record.settings.get("port") == port]
    applications = {str(r.settings["application"]): r for r in port_records if r.name == NAME}
    explanations = [
        row for r in port_records if r.name == EXPLAINED for row in r.tables["explanations"]
    ]
    drawings: dict[str, Callable[[Axes], None]] = {
        "Weights: what the controller promised each": partial(draw_weights, records=applications),
        f"Shares: what passed the port, by its counters, means of {MEAN_S:g} s": partial(
            draw_shares, records=applications
        ),
        "Slowdown: predicted (lines), and of each run that ended (dots)": partial(
            draw_slowdowns, records=applications
        ),
    }
    title = f"Applications over time at {port}"
    drawn = [
        picture(to_svg(figure(draw), salt=f"{title} {caption}", title=caption), caption)
        for caption, draw in drawings.items()
    ]
    rows = row_table([_summary(name, record) for name, record in applications.items()])
    return Section(
        title=title, markup=join([pictures(drawn), rows, *_explanations(port, explanations)])
    )


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
    cells: dict[str, object] = {
        head: "–" if means.get(key) is None else f"{means[key]:.3g}"
        for key, head in columns.items()
    }
    return {"application": name} | cells


def _explanations(port: Plain, rows: Sequence[Row]) -> Iterator[Markup]:
    for row in rows:
        head = f"{port} explained at {read_number(row['at_s']):.0f} s"
        yield Markup(f"<h3>{escape(head)}</h3>")
        yield Markup(f'<pre style="{_PRE}">{escape(row["text"])}</pre>')


def draw_weights(ax: Axes, records: Records) -> None:
    """The weight of each application while it is registered."""
    for place, (name, record) in enumerate(records.items()):
        x, y = _points(record.tables["samples"], "weight", 100.0)
        ax.step(x, y, where="post", label=name, **line_style(place) | {"linewidth": 1.2})
    _finish(ax, "weight (% of the link)")


def draw_shares(ax: Axes, records: Records) -> None:
    """Means of the last seconds: between two samples an application may compute or send."""
    for place, (name, record) in enumerate(records.items()):
        x, y = _points(record.tables["samples"], "share", 100.0)
        ax.plot(x, _smooth(x, y), label=name, **line_style(place) | {"linewidth": 1.2})
    _finish(ax, "share (% of the link)")


def _smooth(x: Sequence[float], y: Sequence[float]) -> list[float]:
    first = [next(n for n, before in enumerate(x) if before > at - MEAN_S) for at in x]
    return [fmean(y[begin : n + 1]) for n, begin in enumerate(first)]


def _finish(ax: Axes, label: str, top: float | None = 102) -> None:
    ax.set_xlabel("time (s)")
    ax.set_ylabel(label)
    ax.set_ylim(0, top)
    ax.margins(x=0)
    legend(ax)


def draw_slowdowns(ax: Axes, records: Records) -> None:
    """Predictions at their time, and what each run took, at its end."""
    for place, (name, record) in enumerate(records.items()):
        style = line_style(place)
        x, y = _points(record.tables["samples"], "slowdown", 1.0)
        ax.step(x, y, where="post", label=name, **style | {"linewidth": 1.2})
        ends = [read_number(r["began_s"]) + read_number(r["took_s"]) for r in record.tables["runs"]]
        took = [read_number(r["slowdown"]) for r in record.tables["runs"]]
        ax.plot(ends, took, "o", color=style["color"], markersize=4)
    _finish(ax, "times its completion alone", None)


def _points(rows: Sequence[Row], column: str, factor: float) -> tuple[list[float], list[float]]:
    """NaN where an application was not registered."""
    x = [read_number(row["at_s"]) for row in rows]
    return x, [
        float("nan") if row[column] is None else factor * read_number(row[column]) for row in rows
    ]
