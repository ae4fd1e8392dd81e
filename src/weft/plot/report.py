"""Render records as one self-contained HTML file, for a screen, a phone or paper.

Summary first (quantiles with 95 % intervals), then figures, the fabric, counters (folded), notes
and provenance. A study puts its own sections before them. Entry point: `render_report`.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from weft.plot.html_page import (
    Markup,
    bullets,
    escape,
    fold,
    html_table,
    join,
    page,
    paragraph,
    row_table,
)
from weft.plot.report_figures import (
    LabelledRecords,
    distribution_figures,
    label_records,
    load_figures,
    series_figures,
    sort_by_interest,
    sweep_figures,
    topology_figures,
)
from weft.records.compare import format_interval
from weft.records.record_text import is_flow_quantity
from weft.records.schema import Distribution, Record, Run, Scalar
from weft.units import format_count, format_settings, format_value

SHOWN = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
MOST_SUMMARY_ROWS = 60
MOST_SCALAR_COLUMNS = 7
MOST_TABLES = 40
MOST_TABLE_ROWS = 300
# Of a table with more rows than a page can show, those with the highest values are shown.
_RANKING = {"ports": "busy_percent", "ranks": "completion_us"}
_NAMES = ("workload", "job", "node", "port", "peer", "vl", "rank", "host", "loop", "stage")
_LINK_ENDS = {"node", "peer", "vl", "busy_percent"}
_PORT_PEAKS = ("busy_percent", "XmitWait_ns", "peak_backlog_B", "peak_buffer_B")
_FIGURES = re.compile(r"\d[\d.,]*")

Rows = Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A section of a report written by its author: figures, a table, text.

    `markup` (HTML or the output of `to_svg`) is put in the page as it is; everything else
    is escaped.
    """

    title: str
    text: str = ""
    markup: str = ""
    rows: Rows = ()


def _build_section(section: Section) -> Markup:
    parts = [paragraph(section.text)] if section.text else []
    if section.markup:
        figure = section.markup.lstrip().startswith("<svg")
        parts.append(Markup(f"<figure>{section.markup}</figure>" if figure else section.markup))
    return join([*parts, *([row_table(section.rows)] if section.rows else [])])


def _quantile_cell(distribution: Distribution, q: float) -> Markup:
    value = format_value(distribution.quantile(q), distribution.unit)
    ends = format_interval(distribution.interval(q), distribution.unit)
    return Markup(f'{escape(value)}<span class="interval">{escape(ends)}</span>')


def _distribution_row(label: str, name: str, d: Distribution) -> list[object]:
    count = f"{d.histogram.count:,}"
    if d.histogram.count == 0:
        return [label, name, count, *[""] * (len(SHOWN) + 1)]
    cells = [_quantile_cell(d, q) for q in SHOWN.values()]
    return [label, name, count, *cells, format_value(d.histogram.max, d.unit)]


def _distribution_summary(points: LabelledRecords) -> Iterator[Markup]:
    distributions = [
        (label, name, d)
        for name, group in points.quantities(Distribution).items()
        for label, d in group.items()
    ]
    if distributions:
        heads = ["record", "quantity", "samples", *SHOWN, "max"]
        yield html_table(
            heads,
            [_distribution_row(*row) for row in distributions[:MOST_SUMMARY_ROWS]],
            left_columns=2,
        )
        remark = (
            "In grey: 95 % confidence interval of each quantile, from the order statistics; "
            "“…” where the samples are too few to bound it."
        )
        yield paragraph(remark, "muted")
    yield from _note_hidden(len(distributions) - MOST_SUMMARY_ROWS, "rows")


def _note_hidden(count: int, noun: str) -> list[Markup]:
    return [paragraph(f"{count} more {noun} not shown", "muted")] if count > 0 else []


def _scalar_summary(points: LabelledRecords) -> Iterator[Markup]:
    groups = points.quantities(Scalar)
    names = sort_by_interest(groups)[:MOST_SCALAR_COLUMNS]
    labels = [label for label in points.labels if any(label in groups[name] for name in names)]
    rows = [
        [label, *(_format_scalar(groups[name].get(label)) for name in names)]
        for label in labels[:MOST_SUMMARY_ROWS]
    ]
    if rows:
        yield html_table(["record", *names], rows)
    yield from _note_hidden(len(labels) - MOST_SUMMARY_ROWS, "rows")
    if len(groups) > len(names):
        yield fold(f"{len(groups) - len(names)} more quantities", _scalar_list(points, names))


def _format_scalar(scalar: Scalar | None) -> str:
    if scalar is None:
        return ""
    is_count = scalar.unit == "" and float(scalar.value).is_integer()
    return f"{int(scalar.value):,}" if is_count else format_value(scalar.value, scalar.unit)


def _scalar_list(points: LabelledRecords, shown: Sequence[str]) -> Markup:
    rows = [
        [label, name, _format_scalar(scalar)]
        for name, group in points.quantities(Scalar).items()
        for label, scalar in group.items()
        if name not in shown
    ]
    table = html_table(["record", "quantity", "value"], rows[:MOST_TABLE_ROWS], left_columns=2)
    return join([table, *_note_hidden(len(rows) - MOST_TABLE_ROWS, "rows")])


def _build_summary(points: LabelledRecords) -> Markup:
    shared = format_settings(points.shared)
    remark = [paragraph(f"All records: {shared}.", "muted")] if shared else []
    flows = sum(is_flow_quantity(name) for record in points.records for name in record.quantities)
    left_out = _note_hidden(flows, "quantities of single flows") if flows else []
    return join([*remark, *_distribution_summary(points), *_scalar_summary(points), *left_out])


def _build_tables(points: LabelledRecords) -> Markup:
    tables_of_records = [
        (label, {name: rows for name, rows in record.tables.items() if rows})
        for label, record in zip(points.labels, points.records, strict=True)
        if any(record.tables.values())
    ]
    folded = [_fold_tables(label, tables) for label, tables in tables_of_records[:MOST_TABLES]]
    return join([*folded, *_note_hidden(len(tables_of_records) - MOST_TABLES, "records' tables")])


def _fold_tables(label: str, tables: Mapping[str, Rows]) -> Markup:
    """A record's tables, folded."""
    counts = ", ".join(f"{n} ({format_count(len(rows), 'row')})" for n, rows in tables.items())
    if len(tables) == 1:
        return fold(f"{label}: {counts}", join(_limit_rows(*table) for table in tables.items()))
    parts = [
        join([Markup(f"<h3>{escape(name)}</h3>"), _limit_rows(name, rows)])
        for name, rows in tables.items()
    ]
    return fold(f"{label}: {counts}", join(parts))


def _limit_rows(name: str, rows: Rows) -> Markup:
    """A table; of a long one a summary, and the rows with the highest values."""
    hidden = len(rows) - MOST_TABLE_ROWS
    if hidden <= 0:
        return row_table(_order_columns(rows))
    remark = f"{hidden} more rows not shown"
    parts = []
    if name == "ports" and all(row.keys() >= _LINK_ENDS for row in rows):
        parts.append(row_table(_summarize_ports(rows)))
    key = _RANKING.get(name, "")
    if all(key in row for row in rows):
        rows = sorted(rows, key=lambda row: _read_rank(row[key]), reverse=True)
        remark = f"the {MOST_TABLE_ROWS} rows with the highest {key}; {remark}"
    table = row_table(_order_columns(rows[:MOST_TABLE_ROWS]))
    return join([*parts, paragraph(remark, "muted"), table])


def _read_rank(value: object) -> float:
    """Of what has no value, as it did not end, before all others."""
    return float(value) if isinstance(value, int | float) else math.inf


def _order_columns(rows: Rows) -> list[dict[str, object]]:
    """Columns that name a row first; in a file keys stand by the alphabet."""
    names = {name: number for number, name in enumerate(_NAMES)}
    return [
        dict(sorted(row.items(), key=lambda item: names.get(item[0], len(names)))) for row in rows
    ]


def _summarize_ports(rows: Rows) -> list[dict[str, object]]:
    """Ports by the kinds of nodes at both ends of their links, and by lane."""
    groups: dict[tuple[str, str, object], list[Mapping[str, object]]] = {}
    for row in rows:
        ends = (str(row["node"]).rstrip("0123456789"), str(row["peer"]).rstrip("0123456789"))
        groups.setdefault((*ends, row["vl"]), []).append(row)
    return [
        {
            "links": f"{node} to {peer}",
            "vl": vl,
            "ports": len(group),
            "mean busy_percent": round(statistics.fmean(_read(group, "busy_percent")), 3),
            **{f"max {key}": max(_read(group, key), default=None) for key in _PORT_PEAKS},
        }
        for (node, peer, vl), group in groups.items()
    ]


def _read(rows: Rows, key: str) -> list[float]:
    return [value for row in rows if isinstance(value := row.get(key), int | float)]


def _build_notes(points: LabelledRecords) -> Markup:
    """Each note once, whatever its figures, with the records that have it unless all do."""
    notes: dict[str, list[tuple[str, str]]] = {}
    for label, record in zip(points.labels, points.records, strict=True):
        for note in record.notes:
            notes.setdefault(_FIGURES.sub("#", note), []).append((label, note))
    items = []
    for same in notes.values():
        labels, texts = ([*dict.fromkeys(column)] for column in zip(*same, strict=True))
        where = "" if len(labels) == len(points.records) else f"{_name_records(labels)}: "
        repeats = f" (and with other figures {len(texts) - 1} times)" if texts[1:] else ""
        items.append(f"{where}{texts[0]}{repeats}")
    return bullets(items) if items else Markup("")


def _name_records(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
    return f"{'; '.join(labels[:4])}{more}"


def _build_provenance(points: LabelledRecords, runs: Sequence[Run]) -> Markup:
    labels_of: dict[tuple[object, ...], list[str]] = {}
    for label, record in zip(points.labels, points.records, strict=True):
        origin = (record.kind, *asdict(record.provenance).values())
        labels_of.setdefault(origin, []).append(label)
    heads = ["record", "kind", "weft", "seed", "parameters", "scenario digest"]
    rows = [
        [_name_records(labels), *(v if v is not None else "–" for v in origin)]
        for origin, labels in labels_of.items()
    ]
    parts = [html_table(heads, rows, left_columns=len(heads))] if rows else []
    parts += [_run_details(run) for run in runs]
    return join(parts)


def _run_details(run: Run) -> Markup:
    rows = [
        ["command", " ".join(run.argv)],
        ["host", run.host],
        ["os", run.os],
        ["cpu", run.cpu],
        ["python", run.python],
        ["weft", run.weft_version],
        *run.facts.items(),
    ]
    return fold(f"run of {run.started}", html_table(["", ""], rows, left_columns=2))


def _build_subtitle(points: LabelledRecords) -> str:
    kinds = Counter(record.kind for record in points.records)
    seeds = {r.provenance.seed for r in points.records if r.provenance.seed is not None}
    versions = sorted({r.provenance.weft_version for r in points.records})
    parts = [format_count(count, f"{kind} record") for kind, count in kinds.items()]
    parts += [f"weft {', '.join(versions)}"] if versions else []
    parts += [f"seed {seed}" for seed in seeds] if len(seeds) == 1 else []
    return " · ".join(parts)


def render_report(
    records: Sequence[Record],
    title: str,
    sections: Sequence[Section] = (),
    runs: Sequence[Run] = (),
) -> str:
    """The HTML file that shows these records, the given sections first."""
    points = label_records(records)
    given_sections = [(section.title, _build_section(section)) for section in sections]
    sections_of_records = [
        ("Summary", _build_summary(points)),
        ("Over the sweep", sweep_figures(points)),
        ("Distributions", distribution_figures(points)),
        ("Against load", load_figures(points)),
        ("Over time", series_figures(points)),
        ("Fabric", topology_figures(points)),
        ("Counters and conditions", _build_tables(points)),
        ("Notes", _build_notes(points)),
        ("Provenance", _build_provenance(points, runs)),
    ]
    shown = [*given_sections, *((name, body) for name, body in sections_of_records if body)]
    footer = (
        "Made by weft. Quantiles are within 0.1 % of the samples; counts and extremes are exact."
    )
    return page(title, _build_subtitle(points), shown, footer)
