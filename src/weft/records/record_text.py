"""Records as text tables for the terminal.

A simulation is shown with its quantiles; a measurement also with their 95 % intervals; a sweep as
one line per point, with the median and range of repetitions. Entry points: `format_simulation`,
`format_measurement`, `format_sweep`, `format_table`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import median

from weft.records.schema import Distribution, Plain, Quantity, Record, Scalar, canonical_json
from weft.records.statistic import PERCENTILES, statistic, statistic_unit
from weft.units import (
    choose_unit,
    format_number,
    format_setting,
    format_settings,
    format_value,
    split_unit,
)


def format_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left_columns: int = 1) -> str:
    """Columns two spaces apart; the first `left_columns` are text, the others numbers."""
    lines = [list(heads), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        _format_line(line, widths, left_columns) for line in (lines[0], rule, *lines[1:])
    )


def _format_line(cells: Sequence[str], widths: Sequence[int], left_columns: int) -> str:
    aligned = [
        cell.ljust(width) if i < left_columns else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(aligned).rstrip()


def format_simulation(record: Record, *, flows: bool = False) -> str:
    """The record's distributions, numbers and notes; also of single flows on request."""
    shown = {k: q for k, q in record.quantities.items() if flows or not is_flow_quantity(k)}
    rows = [
        [name, *_quantile_cells(q, [*_quantiles(q), q.histogram.max])]
        for name, q in _select_distributions(shown).items()
    ]
    return _format_blocks(record, shown, ["distribution", "n", *PERCENTILES, "max"], rows)


def is_flow_quantity(name: str) -> bool:
    """Quantities of a single flow are named part.SRC-DST.quantity."""
    return any("-" in step for step in name.split(".")[1:-1])


def _select_distributions(quantities: Mapping[str, Quantity]) -> dict[str, Distribution]:
    """The distributions that have samples."""
    return {
        name: q
        for name, q in quantities.items()
        if isinstance(q, Distribution) and q.histogram.count
    }


def _quantiles(distribution: Distribution) -> list[int]:
    return [distribution.quantile(level) for level in PERCENTILES.values()]


def _quantile_cells(distribution: Distribution, values: Sequence[int]) -> list[str]:
    count = str(distribution.histogram.count)
    return [count, *(format_value(value, distribution.unit) for value in values)]


def _format_blocks(
    record: Record,
    quantities: Mapping[str, Quantity],
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> str:
    """A record's label, its table of distributions, its numbers and its notes."""
    numbers = [
        [name, format_value(q.value, q.unit)]
        for name, q in quantities.items()
        if isinstance(q, Scalar)
    ]
    blocks = [record.label]
    blocks += [format_table(heads, rows)] if rows else []
    blocks += [format_table(["quantity", "value"], numbers)] if numbers else []
    blocks += ["\n".join(record.notes)] if record.notes else []
    return "\n\n".join(blocks)


REPETITION = "repetition"
_FIGURES = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?")
# Columns of a sweep's table: statistics of the first distribution, then these numbers if present.
SAMPLE_STATISTICS = ("min", "p50", "p99", "p99.9", "max")
NUMBERS = (
    "throughput",
    "sender.throughput",
    "both.throughput",
    "maximum",
    "message_rate",
    "loss",
    "round_trip.loss",
    "negative",
    "cpu.percent",
)
# Columns of a simulated sweep's table, of each traffic.
SIMULATION_STATISTICS = {
    "rtt": ("p50", "p99"),
    "goodput": ("value",),
    "finished": ("value",),
    "completion": ("value",),
    "bus_bandwidth": ("value",),
    "slowdown": ("value",),
}
NUMBERS_BESIDE_SAMPLES = ("achieved", "throughput", "loss", "round_trip.loss", "negative")


def format_measurement(record: Record) -> str:
    """One record in full: settings, distributions with intervals, numbers, notes."""
    rows: list[list[str]] = []
    for name, q in _select_distributions(record.quantities).items():
        values = [q.histogram.min, *_quantiles(q), q.histogram.max]
        rows.append([name, *_quantile_cells(q, values)])
        intervals = [_interval(q, level) for level in PERCENTILES.values()]
        rows.append(["  95 % interval", "", "", *intervals, ""])
    heads = ["distribution", "n", "min", *PERCENTILES, "max"]
    return _format_blocks(record, record.quantities, heads, rows)


def _interval(q: Distribution, level: float) -> str:
    """Both ends in the quantile's unit; … where the samples are too few to bound it."""
    display = choose_unit(q.unit, q.quantile(level))
    low, high = (
        "…" if end is None else format_number(end / display.divisor) for end in q.interval(level)
    )
    return f"{low}–{high}"


def format_sweep(records: Sequence[Record], swept: Sequence[str] = ()) -> str:
    """A line for each point; repetitions of a point share one.

    Columns have the order of the `swept` settings. Stored records have lost that of their keys.
    """
    points: dict[str, list[Record]] = {}
    for record in records:
        points.setdefault(canonical_json(_point(record)), []).append(record)
    groups = list(points.values())
    differing = sorted(differing_settings([g[0] for g in groups]))
    varying = [k for k in dict.fromkeys([*swept, *differing]) if k in differing and k != REPETITION]
    columns = _columns(records)
    repeated = max(len(group) for group in groups) > 1
    names = [split_unit(key)[0] for key in varying]
    heads = [*names, *(["runs"] if repeated else []), *(head for head, _, _ in columns)]
    rows = [
        [
            *(format_setting(key, _point(group[0]).get(key, "–")) for key in varying),
            *([str(len(group))] if repeated else []),
            *(_format_cell(group, quantity, name) for _, quantity, name in columns),
        ]
        for group in groups
    ]
    title = _format_title(records[0], varying)
    spread = "\n\nThe median of the runs, and their range." if repeated else ""
    return f"{title}\n\n{format_table(heads, rows, left_columns=0)}{spread}{_format_notes(records)}"


def _point(record: Record) -> dict[str, Plain]:
    return {key: value for key, value in record.settings.items() if key != REPETITION}


def differing_settings(records: Sequence[Record]) -> list[str]:
    """Settings in which the records differ, in the order in which they occur."""
    keys = dict.fromkeys(key for record in records for key in record.settings)
    return [k for k in keys if len({repr(r.settings.get(k, ...)) for r in records}) > 1]


def _format_title(record: Record, varying: Sequence[str]) -> str:
    shared = {k: v for k, v in _point(record).items() if k not in varying}
    return f"{record.name} ({format_settings(shared)})" if shared else record.name


def _columns(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """(head, quantity, statistic) of each column."""
    if records[0].kind == "simulation":
        return _simulation_columns(records)
    present = {name for record in records for name in record.quantities}
    # What a test is about has a name without a prefix.
    sampled = sorted((n for n in present if _is_sampled(records, n)), key=lambda n: ("." in n, n))
    numbers = NUMBERS_BESIDE_SAMPLES if sampled else NUMBERS
    return [
        *((f"{name} {stat}", name, stat) for name in sampled[:1] for stat in SAMPLE_STATISTICS),
        *((name, name, "value") for name in numbers if name in present),
    ]


def _simulation_columns(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Of each traffic, not of its flows or stages: round trips, payload, times, bus bandwidth."""
    present = dict.fromkeys(name for record in records for name in record.quantities)
    names = (n for n in present if not is_flow_quantity(n))
    every = dict.fromkeys(name.rpartition(".")[0] for name in names)
    parts = [part for part in every if part.rpartition(".")[0] not in every]
    return [
        (f"{name} {stat}".removesuffix(" value"), name, stat)
        for part in parts
        for quantity, stats in SIMULATION_STATISTICS.items()
        if (name := f"{part}.{quantity}") in present
        for stat in stats
    ]


def _is_sampled(records: Sequence[Record], name: str) -> bool:
    return any(isinstance(record.quantities.get(name), Distribution) for record in records)


def _format_cell(group: Sequence[Record], quantity: str, name: str) -> str:
    quantities = [q for record in group if (q := record.quantities.get(quantity)) is not None]
    values = [value for q in quantities if (value := statistic(q, name)) is not None]
    if not values:
        return "–"
    unit = statistic_unit(quantities[0], name)
    middle = median(values)
    if len(values) == 1:
        return format_value(middle, unit)
    divisor = choose_unit(unit, middle).divisor
    low, high = (format_number(end / divisor) for end in (min(values), max(values)))
    return f"{format_value(middle, unit)} ({low}–{high})"


def _format_notes(records: Sequence[Record]) -> str:
    """Notes that differ only in figures once, with the number of records if not all have them."""
    alike: dict[str, list[str]] = {}
    for record in records:
        for kind in dict.fromkeys(map(_note_kind, record.notes)):
            alike.setdefault(_FIGURES.sub("#", kind), []).append(kind)
    lines = []
    for notes in alike.values():
        remarks = [f"{len(notes)} of {len(records)} records"] if len(notes) < len(records) else []
        remarks += ["figures differ"] if len(set(notes)) > 1 else []
        lines.append(f"{notes[0]} ({', '.join(remarks)})" if remarks else notes[0])
    return "\n\n" + "\n".join(lines) if lines else ""


def _note_kind(note: str) -> str:
    return "noisy host" if note.startswith("noisy host") else note
