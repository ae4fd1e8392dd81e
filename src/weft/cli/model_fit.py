"""`weft model latency|throughput|saturation|errors`: forms fitted to tables or records.

The rows are a paper's published tables (`--system`) or the user's own records (`--records`).

All commands of `weft model` read and answer alike. Values are written as in the options of the
tests: one, or a list with ranges (64..4K*2). An answer has values, formula, source and range, and
is printed as text or as JSON: `read_value`, `read_list`, `Answer`, `emit`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.cli.options.studying import INPUTS_OF
from weft.errors import InputError
from weft.fabric import link_rate
from weft.measure.settings.values import integer_reader, size_reader
from weft.model import ErrorSummary, Fit, FloatArray, Parameter, Range, fit
from weft.model.latency import doubling_load_MBps, saturation, single_packet_latency
from weft.model.throughput import host_throughput
from weft.records.record_text import format_table
from weft.sweep_grammar import Reader, expand_values
from weft.tune.rules.evidence import Row, group_families, read_evidence
from weft.units import format_number, format_value, parse_rate

if TYPE_CHECKING:
    from weft.studies.calibrated import Calibration


def _read_gigabits(value: object, where: str) -> float:
    return link_rate(str(value), where).data_bps / 1e9


def _read_megabytes(value: object, where: str) -> float:
    return parse_rate(value, where) / 8e6


class _Input(NamedTuple):
    """An input of a form, as an option."""

    option: str
    read: Reader


INPUTS = {
    "size_bytes": _Input("size", size_reader(1)),
    "data_rate_gbps": _Input("rate", _read_gigabits),
    "depth": _Input("depth", integer_reader(1, 2**20)),
    "qps": _Input("qps", integer_reader(1, 4096)),
    "threads": _Input("threads", integer_reader(1, 4096)),
    "load_MBps": _Input("load", _read_megabytes),
}


def run(args: argparse.Namespace) -> int:
    quantity: str = args.quantity
    if args.system and args.records:
        raise InputError("--system", "is given beside --records", "keep one of the two")
    if args.records:
        fitted = RECORD_FITS[quantity](args.records)
    else:
        systems = _select_calibrations(quantity)
        if args.system is None:
            return _print_systems(systems, as_json=args.json)
        if args.system not in systems:
            problem = f"no {quantity} model of {args.system!r}"
            raise InputError("--system", problem, f"use one of {', '.join(systems)}")
        fitted = systems[args.system].fit()
    return emit(_build_answer(fitted, quantity, args), as_json=args.json)


def _select_calibrations(quantity: str) -> Mapping[str, Calibration]:
    # The studies import matplotlib: half a second that no other model needs.
    from weft.studies.calibrated import CALIBRATED

    return {name: system for name, system in CALIBRATED.items() if system.quantity == quantity}


def _print_systems(systems: Mapping[str, Calibration], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([{"system": name, "about": c.system} for name, c in systems.items()]))
    else:
        print(
            format_table(
                ["system", "about"], [[n, c.system] for n, c in systems.items()], left_columns=2
            )
        )
    return 0


def _build_answer(fitted: Fit, quantity: str, args: argparse.Namespace) -> Answer:
    inputs = _combine_inputs(fitted, quantity, args)
    values = fitted.predict(extrapolate=args.extrapolate, **inputs)
    columns = [
        Column(INPUTS[name].option, name, _find_unit(name), column.tolist())
        for name, column in inputs.items()
    ]
    columns += _build_result_columns(fitted, inputs, values)
    return Answer(
        model=quantity,
        columns=columns,
        formula=fitted.form.formula,
        source=fitted.form.source,
        range=_format_ranges(fitted.ranges),
        notes=[
            *([_describe_doubling(fitted)] if quantity == "saturation" else []),
            *warn_of_misfit(fitted),
        ],
        fit=fitted,
    )


def _build_result_columns(
    fitted: Fit, inputs: Mapping[str, FloatArray], values: FloatArray
) -> list[Column]:
    if fitted.form.unit == "us":
        return [Column("latency", "latency_us", "us", values.tolist())]
    moved = values * inputs["size_bytes"] * 8e-3
    return [
        Column("M messages/s", "message_rate_mps", "", values.tolist()),
        Column("throughput", "throughput_gbps", "Gb/s", moved.tolist()),
    ]


def _describe_doubling(fitted: Fit) -> str:
    (loads,) = fitted.ranges
    load = doubling_load_MBps(fitted, loads.high)
    if load is None:
        return f"the latency does not double up to {format_value(loads.high, 'MB/s')}"
    return f"the latency doubles at a load of {format_value(load, 'MB/s')}"


def _combine_inputs(fitted: Fit, quantity: str, args: argparse.Namespace) -> dict[str, FloatArray]:
    """Every combination of the options' values; an input that never varied needs none."""
    ranges = {fitted_range.name: fitted_range for fitted_range in fitted.ranges}
    _check_unused(fitted, quantity, args)
    columns = [_read_input(ranges[column.name], args) for column in fitted.form.inputs]
    rows = np.array(list(product(*columns)), dtype=np.float64)
    return {column.name: rows[:, i] for i, column in enumerate(fitted.form.inputs)}


def _read_input(fitted_range: Range, args: argparse.Namespace) -> list[float]:
    option = INPUTS[fitted_range.name]
    if getattr(args, option.option) is not None:
        return read_list(args, option.option, option.read)
    if fitted_range.low == fitted_range.high:
        return [fitted_range.low]
    raise InputError(
        f"--{option.option}", "is missing", f"fitted from {_format_range(fitted_range)}"
    )


def _check_unused(fitted: Fit, quantity: str, args: argparse.Namespace) -> None:
    used = {INPUTS[column.name].option for column in fitted.form.inputs}
    for option in INPUTS_OF[quantity]:
        if option not in used and getattr(args, option) is not None:
            problem = f"the model of {fitted.data} does not depend on it"
            raise InputError(f"--{option}", problem, "leave it out")


def _format_ranges(ranges: Sequence[Range]) -> str:
    return "; ".join(f"{INPUTS[r.name].option} {_format_range(r)}" for r in ranges)


def _format_range(fitted: Range) -> str:
    low, high = (
        format_value(value, _find_unit(fitted.name)) for value in (fitted.low, fitted.high)
    )
    return low if fitted.low == fitted.high else f"{low} to {high}"


def _find_unit(name: str) -> str:
    return {"size_bytes": "B", "data_rate_gbps": "Gb/s", "load_MBps": "MB/s"}.get(name, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthRows:
    """Size, messages outstanding over all connections, and throughput; `data` names the files."""

    size_bytes: FloatArray
    outstanding: FloatArray
    throughput_gbps: FloatArray
    data: str


def read_bandwidth_rows(files: Sequence[str]) -> BandwidthRows:
    rows = _read_largest_family(files, "throughput_Bps", ("size_bytes", "depth"), "bandwidth")
    return BandwidthRows(
        size_bytes=_read_settings(rows, "size_bytes"),
        outstanding=_read_settings(rows, "depth") * rows[0].setting.qps * rows[0].setting.threads,
        throughput_gbps=_read_medians(rows, "throughput_Bps") * 8e-9,
        data=_join_names(files),
    )


def fit_latency(files: Sequence[str]) -> Fit:
    """Half the round trip by size: a base and a time per byte."""
    rows = _read_largest_family(files, "p50_us", ("size_bytes",), "latency", "rma")
    return fit(
        single_packet_latency(),
        {"size_bytes": _read_settings(rows, "size_bytes")},
        _read_medians(rows, "p50_us"),
        data=_join_names(files),
        where=_join_names(files),
    )


def fit_throughput(files: Sequence[str]) -> Fit:
    """The message rate by size, depth, connections and threads."""
    names = ("size_bytes", "depth", "qps", "threads")
    rows = _read_largest_family(files, "throughput_Bps", names, "bandwidth")
    inputs = {name: _read_settings(rows, name) for name in names}
    rates = _read_medians(rows, "throughput_Bps") / inputs["size_bytes"] / 1e6
    form = host_throughput(inputs, rates)
    return fit(form, inputs, rates, data=_join_names(files), where=_join_names(files))


def fit_saturation(files: Sequence[str]) -> Fit:
    """The probe's median by the load that arrived; the test's maximum is the capacity."""
    steps = _read_largest_family(files, "p50_us", ("load",), "saturation.step")
    loads = _read_medians(steps, "throughput_Bps") / 1e6
    tops = [row for row in read_evidence(files).rows_of("saturation") if row.throughput_Bps]
    capacity = max([*_read_medians(tops, "throughput_Bps") / 1e6, *loads])
    latency_us = _read_medians(steps, "p50_us")
    return fit(
        saturation(capacity, unloaded_us=float(latency_us.min())),
        {"load_MBps": loads},
        latency_us,
        data=_join_names(files),
        where=_join_names(files),
    )


RECORD_FITS: dict[str, Callable[[Sequence[str]], Fit]] = {
    "latency": fit_latency,
    "throughput": fit_throughput,
    "saturation": fit_saturation,
}


def _read_largest_family(
    files: Sequence[str], quantity: str, varied: Sequence[str], *tests: str
) -> tuple[Row, ...]:
    """The largest group of rows that differ in these settings alone."""
    evidence = read_evidence(files)
    having = [row for row in evidence.rows_of(*tests) if getattr(row, quantity) is not None]
    family = max(group_families(having, *varied), key=len, default=())
    if not family:
        sweep = varied[0].removesuffix("_bytes")
        raise InputError(
            _join_names(files),
            f"no two records of {' or '.join(tests)} differ in {', '.join(varied)} alone",
            f"measure a sweep: weft {tests[0]} PEER --sweep {sweep}=64..64K*4 -o FILE",
        )
    return family


def _join_names(files: Sequence[str]) -> str:
    return ", ".join(files)


def _read_settings(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([getattr(row.setting, name) for row in rows], dtype=np.float64)


def _read_medians(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([getattr(row, name).median for row in rows], dtype=np.float64)


HEADS = ["system", "model", "rows", "median", "p90", "worst", "held out: median", "p90", "worst"]


def run_errors(args: argparse.Namespace) -> int:
    # The studies bring matplotlib: half a second that no other model needs.
    from weft.studies.calibrated import CALIBRATED

    for name in args.systems:
        if name not in CALIBRATED:
            names = ", ".join(CALIBRATED)
            raise InputError("system", f"{name!r} is not known", f"use one of {names}")
    systems = [CALIBRATED[name] for name in args.systems or CALIBRATED]
    fits = [(system.name, system.quantity, system.fit()) for system in systems]
    if args.json:
        for name, quantity, fit in fits:
            print(json.dumps({"system": name, "model": quantity, **_build_error_object(fit)}))
    else:
        print(format_table(HEADS, [_format_error_row(*row) for row in fits], left_columns=2))
        print("\n|model / published − 1|; held out: each row predicted by a fit to the others")
    return 0


def _format_error_row(name: str, quantity: str, fit: Fit) -> list[str]:
    return [
        name,
        quantity,
        str(fit.error.n),
        *_format_percent(fit.error),
        *_format_percent(fit.held_out),
    ]


def _format_percent(error: ErrorSummary) -> list[str]:
    return [f"{100 * value:.1f} %" for value in (error.median, error.p90, error.worst)]


def _build_error_object(fit: Fit) -> dict[str, object]:
    return {
        "data": fit.data,
        **{f"error_{k}": getattr(fit.error, k) for k in ("median", "p90", "worst", "n")},
        **{f"held_out_{k}": getattr(fit.held_out, k) for k in ("median", "p90", "worst")},
    }


Cell = float | str


# ---- Answers of every `weft model` ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One input or result; `key` names it in JSON, with its unit."""

    head: str
    key: str
    unit: str
    values: Sequence[Cell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Columns of equal length, and where they come from."""

    model: str
    columns: Sequence[Column]
    formula: str
    source: str
    range: str
    notes: Sequence[str] = ()
    fit: Fit | None = field(default=None)


MISFIT = 0.25


def warn_of_misfit(fitted: Fit) -> list[str]:
    """A warning where the form does not describe the rows."""
    if fitted.error.median <= MISFIT:
        return []
    return [
        f"half of the rows are more than {100 * fitted.error.median:.0f} % off: do not rely on it"
    ]


def emit(answer: Answer, *, as_json: bool) -> int:
    print(
        json.dumps(_build_object(answer), ensure_ascii=False) if as_json else _format_answer(answer)
    )
    return 0


def _format_answer(answer: Answer) -> str:
    heads = [column.head for column in answer.columns]
    cells = [
        [_format_cell(value, column.unit) for value in column.values] for column in answer.columns
    ]
    facts = [("formula", answer.formula), ("source", answer.source), ("range", answer.range)]
    if answer.fit is not None:
        facts += [("data", answer.fit.data), ("error", str(answer.fit.error))]
        facts += [("held out", str(answer.fit.held_out))]
    facts += [("note", note) for note in answer.notes]
    lines = [format_table(heads, list(zip(*cells, strict=True))), ""]
    lines += [f"{name:>8}: {fact}" for name, fact in facts]
    if answer.fit is not None:
        lines += ["", _format_parameters(answer.fit.parameters)]
    return "\n".join(lines)


def _format_cell(value: Cell, unit: str) -> str:
    if isinstance(value, str):
        return value
    if not isfinite(value):
        return "-"
    if unit:
        return format_value(value, unit) if value else f"0 {unit}"
    whole = float(value).is_integer() or abs(value) >= 1e4
    return f"{value:.0f}" if whole else format_number(value)


def _format_parameters(parameters: Sequence[Parameter]) -> str:
    rows = [
        [p.name, p.meaning, format_number(p.value), _format_error(p.standard_error), p.unit]
        for p in parameters
    ]
    return format_table(["parameter", "meaning", "value", "± error", "unit"], rows, left_columns=2)


def _format_error(value: float) -> str:
    return f"{value:.2g}" if isfinite(value) else "unknown"


def _build_object(answer: Answer) -> dict[str, object]:
    rows = [
        dict(zip([c.key for c in answer.columns], map(_to_json_value, row), strict=True))
        for row in zip(*(column.values for column in answer.columns), strict=True)
    ]
    content: dict[str, object] = {"model": answer.model, "rows": rows}
    content |= {"formula": answer.formula, "source": answer.source, "range": answer.range}
    if answer.notes:
        content["notes"] = list(answer.notes)
    if answer.fit is not None:
        content |= _build_fit_object(answer.fit)
    return content


def _build_fit_object(fit: Fit) -> dict[str, object]:
    return {
        "data": fit.data,
        "error": _build_summary(fit.error),
        "held_out": _build_summary(fit.held_out),
        "parameters": [
            {
                "name": p.name,
                "unit": p.unit,
                "value": p.value,
                "standard_error": _to_json_value(p.standard_error),
            }
            for p in fit.parameters
        ],
    }


def _build_summary(error: ErrorSummary) -> dict[str, float]:
    return {"median": error.median, "p90": error.p90, "worst": error.worst, "n": error.n}


def _to_json_value(value: Cell) -> Cell | None:
    """JSON has no infinity; whole numbers are written without a fraction."""
    if isinstance(value, str):
        return value
    if not isfinite(value):
        return None
    return int(value) if float(value).is_integer() else float(value)


def read_list(args: argparse.Namespace, name: str, read: Reader) -> list[Any]:
    """The values of `--NAME`, such as 64,4K or 64..4K*2."""
    return expand_values(read, getattr(args, name.replace("-", "_")), f"--{name}")


def read_value(args: argparse.Namespace, name: str, read: Reader) -> Any:
    """The one value of `--NAME`."""
    return read(getattr(args, name.replace("-", "_")), f"--{name}")
