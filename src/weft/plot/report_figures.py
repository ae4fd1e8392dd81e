"""Which figures a report shows, and what it leaves out.

Each function takes labelled records and gives pictures; limits on their number are stated
where they bite, never silently applied.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from weft.plot.distribution import cdf, cdf_tail
from weft.plot.page import Markup, escape, join, paragraph, picture, pictures
from weft.plot.points import Points, swept_setting, without
from weft.plot.series import curves, series, sweep
from weft.plot.style import HEIGHT_IN, WIDTH_IN, figure, to_svg
from weft.plot.topology import topology
from weft.records.schema import Distribution, Scalar, Series, Topology
from weft.records.statistic import statistic
from weft.units import dimension_of, split_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_LINES = 8
MOST_GROUPS = 12
MOST_TOPOLOGIES = 3

Value = TypeVar("Value")


def drawn(name: str, draw: Callable[[Axes], None], caption: str) -> Markup:
    """A picture in the page; `name` must be unique there."""
    return picture(to_svg(figure(draw), salt=name, title=name), caption)


def spaced(items: Mapping[str, Value], most: int) -> dict[str, Value]:
    """At most `most` items, evenly spread from the first to the last."""
    keys = list(items)
    if len(keys) <= most:
        return dict(items)
    chosen = [keys[round(i * (len(keys) - 1) / (most - 1))] for i in range(most)]
    return {key: items[key] for key in chosen}


def _omitted_lines(all_lines: int) -> str:
    """What a caption must admit."""
    return f"{MOST_LINES} of {all_lines} lines drawn." if all_lines > MOST_LINES else ""


def _capped(groups: Mapping[str, Value], what: str) -> tuple[dict[str, Value], list[Markup]]:
    """The groups that get a figure, and a remark that names the others."""
    shown = dict(list(groups.items())[:MOST_GROUPS])
    rest = [name for name in groups if name not in shown]
    if not rest:
        return shown, []
    named = ", ".join(rest[:30]) + (", …" if len(rest) > 30 else "")
    return shown, [paragraph(f"{len(rest)} more {what} not drawn: {named}", "muted")]


def _heading(name: str) -> Markup:
    return Markup(f"<h3>{escape(name)}</h3>")


def distribution_figures(points: Points) -> Markup:
    """For each distribution its CDF and the CDF's tail."""
    groups, remarks = _capped(points.quantities(Distribution), "distributions")
    parts: list[Markup] = []
    for name, group in groups.items():
        if not any(d.histogram.count for d in group.values()):
            parts += [_heading(name), paragraph("no samples", "muted")]
            continue
        lines, rest = spaced(group, MOST_LINES), _omitted_lines(len(group))
        whole = partial(cdf, distributions=lines, quantity=name)
        tail = partial(cdf_tail, distributions=lines, quantity=name)
        shown = [
            drawn(f"cdf of {name}", whole, f"All samples. {rest}"),
            drawn(f"tail of {name}", tail, f"The tail: equal height for each further nine. {rest}"),
        ]
        parts += [_heading(name), pictures(shown)]
    return join([*parts, *remarks])


# Numbers that a reader looks for first; the others follow as they come.
INTEREST = (
    "throughput",
    "both.throughput",
    "back.throughput",
    "sender.throughput",
    "maximum",
    "achieved",
    "message_rate",
    "loss",
    "lost",
    "negative",
    "corrupted",
    "cpu.percent",
    "peer.cpu.percent",
)


def by_interest(names: Iterable[str]) -> list[str]:
    """The names, those that a reader looks for first in front."""
    order = {name: place for place, name in enumerate(INTEREST)}
    return sorted(names, key=lambda name: order.get(name, len(order)))


def load_figures(points: Points) -> Markup:
    """Percentiles over an achieved load, all in one figure for each record."""
    found: dict[str, dict[str, Series]] = {}
    for name, group in points.quantities(Series).items():
        stem, percentile = _percentile(name)
        for label, line in group.items():
            if percentile and line.x and dimension_of(line.x_unit) == "rate":
                found.setdefault(f"{label}: {stem}", {})[percentile] = line
    shown, remarks = _capped(found, "curves")
    figures = [
        drawn(
            f"{title} against load",
            partial(curves, lines=lines, quantity=title.split(": ")[-1]),
            f"{title}, against the load that was achieved beside it.",
        )
        for title, lines in shown.items()
    ]
    return join([pictures(figures), *remarks]) if figures else Markup("")


def _percentile(name: str) -> tuple[str, str]:
    """("probe", "p99.9") of "probe.p99.9"; no percentile otherwise."""
    match = re.fullmatch(r"(.+?)\.(p\d+(?:\.\d+)?)", name)
    return (match[1], match[2]) if match else (name, "")


def series_figures(points: Points) -> Markup:
    """Each recorded series, the records as lines."""
    every = points.quantities(Series)
    plain = {name: group for name, group in every.items() if not _percentile(name)[1]}
    groups, remarks = _capped(plain, "series")
    shown = []
    for name, group in groups.items():
        draw = partial(series, lines=spaced(group, MOST_LINES), quantity=name)
        shown.append(drawn(f"series of {name}", draw, _omitted_lines(len(group))))
    return join([pictures(shown), *remarks]) if shown else Markup("")


Lines = dict[str, dict[float, float]]


def _swept(points: Points, setting: str, quantity: str, name: str) -> Lines:
    """One statistic over the setting: a line for each combination of the other settings."""
    lines: Lines = {}
    for record in points.records:
        observed, x = record.quantities.get(quantity), record.settings.get(setting)
        value = None if observed is None else statistic(observed, name)
        if value is not None and isinstance(x, int | float):
            lines.setdefault(without(record, setting, points), {})[float(x)] = value
    return lines


def _sweep_lines(points: Points, setting: str, quantity: str) -> dict[str, Lines]:
    """Figures by title: percentiles of a single sweep in one, median and tail of several apart."""
    several = len({without(record, setting, points) for record in points.records}) > 1
    if any(isinstance(record.quantities.get(quantity), Scalar) for record in points.records):
        return {quantity: _swept(points, setting, quantity, "value")}
    if several:
        return {
            f"{quantity} {name}": _swept(points, setting, quantity, name)
            for name in ("p50", "p99.9")
        }
    percentiles = ("p50", "p99", "p99.9")
    found = {name: _swept(points, setting, quantity, name) for name in percentiles}
    return {quantity: {name: line for name, lines in found.items() for line in lines.values()}}


def _units(points: Points) -> dict[str, str]:
    """The quantities that a sweep can show, and their units."""
    distributions = points.quantities(Distribution)
    scalars = points.quantities(Scalar)
    found: list[tuple[str, Sequence[Distribution | Scalar]]] = [
        *((name, list(group.values())) for name, group in distributions.items()),
        *((name, list(scalars[name].values())) for name in by_interest(scalars)),
    ]
    return {name: observed[0].unit for name, observed in found if len(observed) >= 3}


def _is_constant(lines: Lines) -> bool:
    return len({value for line in lines.values() for value in line.values()}) <= 1


def sweep_figures(points: Points) -> Markup:
    """Each quantity over the swept setting; empty when the records are not a sweep."""
    setting = swept_setting(points)
    if setting is None:
        return Markup("")
    units = _units(points)
    titles = {
        title: (quantity, lines)
        for quantity in units
        for title, lines in _sweep_lines(points, setting, quantity).items()
    }
    constant = [title for title, (_, lines) in titles.items() if _is_constant(lines)]
    shown, remarks = _capped({t: s for t, s in titles.items() if t not in constant}, "quantities")
    figures: list[Markup] = []
    for title, (quantity, lines) in shown.items():
        draw = partial(
            sweep,
            lines=spaced(lines, MOST_LINES),
            unit=units[quantity],
            quantity=title,
            setting=setting,
        )
        figures.append(drawn(f"{title} over {setting}", draw, _omitted_lines(len(lines))))
    if constant:
        remarks.append(
            paragraph(f"The same at each {split_unit(setting)[0]}: {', '.join(constant)}.", "muted")
        )
    return join([pictures(figures), *remarks]) if figures else Markup("")


def topology_figures(points: Points) -> Markup:
    """Each distinct fabric once."""
    seen: dict[Topology, list[str]] = {}
    for label, record in zip(points.labels, points.records, strict=True):
        if record.topology is not None:
            seen.setdefault(record.topology, []).append(label)
    figures = [_fabric_figure(t, labels, n) for n, (t, labels) in enumerate(seen.items())]
    rest = len(figures) - MOST_TOPOLOGIES
    remark = [paragraph(f"{rest} more topologies not drawn", "muted")] if rest > 0 else []
    return join([*figures[:MOST_TOPOLOGIES], *remark])


def _fabric_figure(fabric: Topology, labels: Sequence[str], number: int) -> Markup:
    switches = sum(kind == "switch" for _, kind in fabric.nodes)
    counts = (
        f"{len(fabric.nodes) - switches} hosts, {switches} switches, {len(fabric.links)} links."
    )
    used = f" Used by {labels[0]}" + (f" and {len(labels) - 1} more." if labels[1:] else ".")

    def draw(ax: Axes) -> None:
        topology(ax, fabric.nodes, fabric.links)

    made = figure(draw, width_in=WIDTH_IN * 1.5, height_in=HEIGHT_IN)
    return picture(to_svg(made, salt=f"topology {number}", title="topology"), counts + used)
