"""The figures of a report: records labelled by the settings that differ, then drawn.

Each function takes labelled records and returns pictures. A limit on their number is stated where
it applies. Entry points: `label_records`, the `*_figures` functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from weft.plot.drawings import cdf, cdf_tail, curves, series, sweep, topology
from weft.plot.html_page import Markup, escape, join, paragraph, picture, pictures
from weft.plot.style import HEIGHT_IN, WIDTH_IN, figure, to_svg
from weft.records.record_text import REPETITION, differing_settings, is_flow_quantity
from weft.records.schema import Distribution, Plain, Quantity, Record, Scalar, Series, Topology
from weft.records.statistic import statistic
from weft.units import dimension_of, format_count, format_setting, split_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = TypeVar("Kind", bound=Quantity)


@dataclass(frozen=True, slots=True)
class LabelledRecords:
    """Records with a short label each."""

    records: tuple[Record, ...]
    labels: tuple[str, ...]
    varying: tuple[str, ...]
    named: bool  # whether the names differ too
    shared: Mapping[str, Plain]

    def quantities(self, kind: type[Kind]) -> dict[str, dict[str, Kind]]:
        """Quantities of one kind by name, then by label; the most frequent come first.

        Single flows are omitted: readers look for their sums first.
        """
        groups: dict[str, dict[str, Kind]] = {}
        for label, record in zip(self.labels, self.records, strict=True):
            for name, quantity in record.quantities.items():
                if isinstance(quantity, kind) and not is_flow_quantity(name):
                    groups.setdefault(name, {})[label] = quantity
        return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def _setting_label(key: str, value: Plain) -> str:
    """A text stands alone; a number needs its name."""
    name, unit = split_unit(key)
    if isinstance(value, str):
        return value
    return f"{name}{' ' if unit else '='}{format_setting(key, value)}"


def _record_label(record: Record, varying: Sequence[str], named: bool) -> str:
    settings = [_setting_label(k, record.settings[k]) for k in varying if k in record.settings]
    return ", ".join(([record.name] if named or not settings else []) + settings)


def group_by_name(records: Sequence[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.name, []).append(record)
    return groups


def label_records(records: Sequence[Record]) -> LabelledRecords:
    """Label records by what differs among those of a name; equal labels are numbered."""
    varying = tuple(differing_settings(records))
    groups = group_by_name(records)
    differing = {name: differing_settings(group) for name, group in groups.items()}
    named = len(groups) > 1
    labels: list[str] = []
    for record in records:
        label = _record_label(record, differing[record.name], named)
        same = sum(1 for other in labels if other == label or other.startswith(f"{label} #"))
        labels.append(f"{label} #{same + 1}" if same else label)
    shared = records[0].settings if records else {}
    return LabelledRecords(
        tuple(records),
        tuple(labels),
        varying,
        named,
        {k: v for k, v in shared.items() if k not in varying},
    )


def find_swept_setting(points: LabelledRecords) -> str | None:
    """The numeric setting with most values, if it has three or more: the x axis of a sweep."""
    varying = [key for key in points.varying if key != REPETITION]
    values = {key: {r.settings.get(key) for r in points.records} for key in varying}
    present = {key: distinct - {None} for key, distinct in values.items()}
    numeric = {key: distinct for key, distinct in present.items() if all(map(_is_number, distinct))}
    widest = max(numeric, key=lambda key: len(numeric[key]), default=None)
    return widest if widest is not None and len(numeric[widest]) >= 3 else None


def _is_number(value: Plain) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def label_without(record: Record, setting: str, points: LabelledRecords) -> str:
    """A record's label apart from one setting and repetitions: the line of a sweep."""
    remaining = [key for key in points.varying if key not in (setting, REPETITION)]
    return _record_label(record, remaining, points.named) if remaining or points.named else ""


MOST_LINES = 8
MOST_FIGURES = 6  # of one quantity
MOST_GROUPS = 12
MOST_TOPOLOGIES = 3

Value = TypeVar("Value")


def draw_picture(name: str, draw: Callable[[Axes], None], caption: str) -> Markup:
    """A picture in the page; `name` must be unique there."""
    return picture(to_svg(figure(draw), salt=name, title=name), caption)


def pick_evenly(items: Mapping[str, Value], limit: int) -> dict[str, Value]:
    """At most `limit` items, evenly spread from the first to the last."""
    keys = list(items)
    if len(keys) <= limit:
        return dict(items)
    chosen = [keys[round(i * (len(keys) - 1) / (limit - 1))] for i in range(limit)]
    return {key: items[key] for key in chosen}


def split_lines(lines: Mapping[str, Value]) -> list[dict[str, Value]]:
    """The lines in figures of at most `MOST_LINES` each; evenly chosen where too many."""
    chosen = list(pick_evenly(lines, MOST_LINES * MOST_FIGURES).items())
    return [dict(chosen[i : i + MOST_LINES]) for i in range(0, len(chosen), MOST_LINES)]


def _note_omitted(all_lines: int) -> str:
    """A remark for the caption if lines are missing."""
    most = MOST_LINES * MOST_FIGURES
    return f"{most} of {all_lines} lines drawn." if all_lines > most else ""


def _limit_groups(groups: Mapping[str, Value], noun: str) -> tuple[dict[str, Value], list[Markup]]:
    """The groups that get a figure, and a remark that names the others."""
    shown = dict(list(groups.items())[:MOST_GROUPS])
    rest = [name for name in groups if name not in shown]
    if not rest:
        return shown, []
    named = ", ".join(rest[:30]) + (", …" if len(rest) > 30 else "")
    return shown, [paragraph(f"{len(rest)} more {noun} not drawn: {named}", "muted")]


def _heading(name: str) -> Markup:
    return Markup(f"<h3>{escape(name)}</h3>")


def distribution_figures(points: LabelledRecords) -> Markup:
    """For each distribution its CDF and the CDF's tail."""
    groups, remarks = _limit_groups(points.quantities(Distribution), "distributions")
    parts: list[Markup] = []
    for name, group in groups.items():
        if not any(d.histogram.count for d in group.values()):
            parts += [_heading(name), paragraph("no samples", "muted")]
            continue
        rest = _note_omitted(len(group))
        shown: list[Markup] = []
        for part, lines in enumerate(split_lines(group)):
            full = partial(cdf, distributions=lines, quantity=name)
            tail = partial(cdf_tail, distributions=lines, quantity=name)
            caption = f"The tail: equal height for each further nine. {rest}"
            shown += [
                draw_picture(f"cdf of {name} {part}", full, f"All samples. {rest}"),
                draw_picture(f"tail of {name} {part}", tail, caption),
            ]
        parts += [_heading(name), pictures(shown)]
    return join([*parts, *remarks])


# Numbers that a reader looks for first; the others follow in their own order.
INTEREST = (
    "throughput",
    "both.throughput",
    "back.throughput",
    "sender.throughput",
    "maximum",
    "achieved",
    "message_rate",
    "loss",
    "round_trip.loss",
    "lost",
    "negative",
    "corrupted",
    "cpu.percent",
    "peer.cpu.percent",
)


def sort_by_interest(names: Iterable[str]) -> list[str]:
    """The names, those of `INTEREST` first."""
    order = {name: place for place, name in enumerate(INTEREST)}
    return sorted(names, key=lambda name: order.get(name, len(order)))


def load_figures(points: LabelledRecords) -> Markup:
    """Percentiles over an achieved load, all in one figure for each record."""
    groups: dict[str, dict[str, Series]] = {}
    for name, group in points.quantities(Series).items():
        stem, percentile = _split_percentile(name)
        for label, line in group.items():
            if percentile and line.x and dimension_of(line.x_unit) == "rate":
                groups.setdefault(f"{label}: {stem}", {})[percentile] = line
    shown, remarks = _limit_groups(groups, "curves")
    figures = [
        draw_picture(
            f"{title} against load",
            partial(curves, lines=lines, quantity=title.split(": ")[-1]),
            f"{title}, against the load that was achieved beside it.",
        )
        for title, lines in shown.items()
    ]
    return join([pictures(figures), *remarks]) if figures else Markup("")


def _split_percentile(name: str) -> tuple[str, str]:
    """("probe", "p99.9") of "probe.p99.9"; no percentile otherwise."""
    match = re.fullmatch(r"(.+?)\.(p\d+(?:\.\d+)?)", name)
    return (match[1], match[2]) if match else (name, "")


def series_figures(points: LabelledRecords) -> Markup:
    """Each recorded series, the records as lines."""
    every = points.quantities(Series)
    plain = {name: group for name, group in every.items() if not _split_percentile(name)[1]}
    groups, remarks = _limit_groups(plain, "series")
    shown = []
    for name, group in groups.items():
        for part, lines in enumerate(split_lines(group)):
            draw = partial(series, lines=lines, quantity=name)
            caption = _note_omitted(len(group))
            shown.append(draw_picture(f"series of {name} {part}", draw, caption))
    return join([pictures(shown), *remarks]) if shown else Markup("")


Lines = dict[str, dict[float, list[float]]]  # by label and x; repetitions are several values


def _collect_lines(points: LabelledRecords, setting: str, quantity: str, name: str) -> Lines:
    """One statistic over the setting: a line for each combination of the other settings.

    A line of one point is no sweep, and left out.
    """
    lines: Lines = {}
    for record in points.records:
        observed, x = record.quantities.get(quantity), record.settings.get(setting)
        value = None if observed is None else statistic(observed, name)
        if value is not None and isinstance(x, int | float):
            line = lines.setdefault(label_without(record, setting, points), {})
            line.setdefault(float(x), []).append(value)
    return {label: line for label, line in lines.items() if len(line) > 1}


def _sweep_lines(points: LabelledRecords, setting: str, quantity: str) -> dict[str, Lines]:
    """Figures by title: one of all percentiles, or median and tail apart for several sweeps."""
    several = len({label_without(record, setting, points) for record in points.records}) > 1
    if any(isinstance(record.quantities.get(quantity), Scalar) for record in points.records):
        return {quantity: _collect_lines(points, setting, quantity, "value")}
    if several:
        return {
            f"{quantity} {name}": _collect_lines(points, setting, quantity, name)
            for name in ("p50", "p99.9")
        }
    percentiles = ("p50", "p99", "p99.9")
    by_percentile = {name: _collect_lines(points, setting, quantity, name) for name in percentiles}
    return {
        quantity: {name: line for name, lines in by_percentile.items() for line in lines.values()}
    }


def _find_units(points: LabelledRecords) -> dict[str, str]:
    """The quantities that a sweep can show, and their units."""
    distributions = points.quantities(Distribution)
    scalars = points.quantities(Scalar)
    observed_by_name: list[tuple[str, Sequence[Distribution | Scalar]]] = [
        *((name, list(group.values())) for name, group in distributions.items()),
        *((name, list(scalars[name].values())) for name in sort_by_interest(scalars)),
    ]
    return {name: observed[0].unit for name, observed in observed_by_name if len(observed) >= 3}


def _is_constant(lines: Lines) -> bool:
    return len({v for line in lines.values() for values in line.values() for v in values}) <= 1


def sweep_figures(points: LabelledRecords) -> Markup:
    """The sweeps of each name of records; empty when there is none."""
    groups = group_by_name(points.records)
    parts: list[Markup] = []
    for name, group in groups.items():
        body = _draw_sweep(label_records(group), name)
        parts += [_heading(name), body] if body and len(groups) > 1 else [body] if body else []
    return join(parts)


def _draw_sweep(points: LabelledRecords, name: str) -> Markup:
    """Each quantity over the swept setting; empty when the records are not a sweep."""
    setting = find_swept_setting(points)
    if setting is None:
        return Markup("")
    units = _find_units(points)
    titles = {
        title: (quantity, lines)
        for quantity in units
        for title, lines in _sweep_lines(points, setting, quantity).items()
        if lines
    }
    constant = [title for title, (_, lines) in titles.items() if _is_constant(lines)]
    shown, remarks = _limit_groups(
        {t: s for t, s in titles.items() if t not in constant}, "quantities"
    )
    figures: list[Markup] = []
    for title, (quantity, lines) in shown.items():
        for part, chunk in enumerate(split_lines(lines)):
            medians = {k: {x: median(v) for x, v in line.items()} for k, line in chunk.items()}
            draw = partial(
                sweep,
                lines=medians,
                unit=units[quantity],
                quantity=title,
                setting=setting,
                bands=_find_bands(chunk),
            )
            repeated = "Line: median of the repetitions; band: their range." * bool(
                _find_bands(chunk)
            )
            caption = " ".join(filter(None, (repeated, _note_omitted(len(lines)))))
            figures.append(draw_picture(f"{name} {title} over {setting} {part}", draw, caption))
    if constant:
        remarks.append(
            paragraph(f"The same at each {split_unit(setting)[0]}: {', '.join(constant)}.", "muted")
        )
    return join([pictures(figures), *remarks]) if figures else Markup("")


def _find_bands(lines: Lines) -> dict[str, dict[float, tuple[float, float]]]:
    """Least and greatest of the repetitions; none where there are none."""
    return {
        label: {x: (min(values), max(values)) for x, values in line.items()}
        for label, line in lines.items()
        if any(len(values) > 1 for values in line.values())
    }


def topology_figures(points: LabelledRecords) -> Markup:
    """Each distinct fabric once, coloured by its first record that has utilisation."""
    users: dict[Topology, list[tuple[str, Record]]] = {}
    for label, record in zip(points.labels, points.records, strict=True):
        if record.topology is not None:
            users.setdefault(record.topology, []).append((label, record))
    figures = [_fabric_figure(t, users[t], n) for n, t in enumerate(users)]
    rest = len(figures) - MOST_TOPOLOGIES
    remark = [paragraph(f"{rest} more topologies not drawn", "muted")] if rest > 0 else []
    return join([*figures[:MOST_TOPOLOGIES], *remark])


def _fabric_figure(fabric: Topology, users: Sequence[tuple[str, Record]], number: int) -> Markup:
    switches = sum(kind == "switch" for _, kind in fabric.nodes)
    counts = (
        f"{format_count(len(fabric.nodes) - switches, 'host')}, "
        f"{format_count(switches, 'switch')}, {format_count(len(fabric.links), 'link')}."
    )
    used = f" Used by {users[0][0]}" + (f" and {len(users) - 1} more." if users[1:] else ".")
    label, busy = next(
        ((label, busy) for label, record in users if (busy := find_utilisation(record))),
        (users[0][0], {}),
    )

    def draw(ax: Axes) -> None:
        topology(ax, fabric.nodes, fabric.links, busy)

    picture_of_fabric = figure(draw, width_in=WIDTH_IN * 1.5, height_in=HEIGHT_IN)
    return picture(
        to_svg(picture_of_fabric, salt=f"topology {number}", title="topology"),
        counts + used + _describe_utilisation(fabric, label, busy),
    )


def find_utilisation(record: Record) -> dict[tuple[int, int], float]:
    """How busy the link between two nodes was, in its busier direction (1 is all the time)."""
    if record.topology is None:
        return {}
    index = {name: i for i, (name, _) in enumerate(record.topology.nodes)}
    sums: dict[tuple[str, int], float] = {}
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    for row in record.tables.get("ports", ()):
        node, port, peer, busy = (row.get(k) for k in ("node", "port", "peer", "busy_percent"))
        if isinstance(busy, int | float) and node in index and peer in index:
            key = (str(node), int(str(port)))
            sums[key] = sums.get(key, 0.0) + float(busy) / 100
            ends[key] = (index[str(node)], index[str(peer)])
    links: dict[tuple[int, int], float] = {}
    for key, (a, b) in ends.items():
        pair = (min(a, b), max(a, b))
        links[pair] = max(links.get(pair, 0.0), sums[key])
    return links


def _describe_utilisation(
    fabric: Topology, label: str, busy: Mapping[tuple[int, int], float]
) -> str:
    if not busy:
        return ""
    (a, b), most = max(busy.items(), key=lambda item: item[1])
    where = f"{fabric.nodes[a][0]} to {fabric.nodes[b][0]}"
    return f" Colour: how busy each link was in {label}, at most {most:.0%} ({where})."
