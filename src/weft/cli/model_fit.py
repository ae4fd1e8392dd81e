"""`weft model latency|throughput|saturation`: forms fitted to published tables or own records."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from weft.cli.answer import Answer, Column, emit, misfit
from weft.cli.model_records import latency_of_records, saturation_of_records, throughput_of_records
from weft.cli.model_values import listed
from weft.errors import InputError
from weft.fabric import link_rate
from weft.measure.settings.values import Reader, size, whole
from weft.model import Fit, FloatArray, Range
from weft.model.latency import doubling_load_MBps
from weft.records.record_text import format_table
from weft.units import format_value, parse_rate

if TYPE_CHECKING:
    from weft.studies.calibrated import Calibration

FITTED = {
    "latency": "latency of a message by its size, fitted to measured rows",
    "throughput": "message rate by size, depth, connections and threads, fitted to measured rows",
    "saturation": "latency of a probe beside load, fitted to measured rows",
}
OF_RECORDS: dict[str, Callable[[Sequence[str]], Fit]] = {
    "latency": latency_of_records,
    "throughput": throughput_of_records,
    "saturation": saturation_of_records,
}


def _gigabits(value: object, where: str) -> float:
    return link_rate(str(value), where).data_bps / 1e9


def _megabytes(value: object, where: str) -> float:
    return parse_rate(value, where) / 8e6


@dataclass(frozen=True, slots=True)
class _Input:
    """An input of a form, as an option."""

    option: str
    read: Reader
    metavar: str
    help: str


INPUTS = {
    "size_bytes": _Input("size", size(1), "SIZES", "message sizes, such as 64,4K or 64..4K*2"),
    "data_rate_gbps": _Input("rate", _gigabits, "RATES", "links, such as 4xFDR"),
    "depth": _Input("depth", whole(1, 2**20), "NUMBERS", "messages outstanding per connection"),
    "qps": _Input("qps", whole(1, 4096), "NUMBERS", "connections of each thread"),
    "threads": _Input("threads", whole(1, 4096), "NUMBERS", "threads that post"),
    "load_MBps": _Input("load", _megabytes, "RATES", "load, such as 8GB/s"),
}
OF_QUANTITY = {
    "latency": ("size_bytes", "data_rate_gbps"),
    "throughput": ("size_bytes", "depth", "qps", "threads"),
    "saturation": ("load_MBps",),
}


def add_fitted(command: argparse.ArgumentParser, quantity: str) -> None:
    command.add_argument("--system", metavar="NAME", help="one of those listed without it")
    command.add_argument("--records", nargs="+", metavar="FILE", help="fit to own records instead")
    for name in OF_QUANTITY[quantity]:
        one = INPUTS[name]
        command.add_argument(f"--{one.option}", metavar=one.metavar, help=one.help)
    command.add_argument("--extrapolate", action="store_true", help="past the fitted range too")
    command.set_defaults(run=lambda args: _run(args, quantity))


def _run(args: argparse.Namespace, quantity: str) -> int:
    if args.system and args.records:
        raise InputError("--system", "is given beside --records", "keep one of the two")
    if args.records:
        found = OF_RECORDS[quantity](args.records)
    else:
        known = _calibrated(quantity)
        if args.system is None:
            return _list(known, as_json=args.json)
        if args.system not in known:
            problem = f"no {quantity} model of {args.system!r}"
            raise InputError("--system", problem, f"use one of {', '.join(known)}")
        found = known[args.system].fit()
    return emit(_answer(found, quantity, args), as_json=args.json)


def _calibrated(quantity: str) -> Mapping[str, Calibration]:
    # The studies bring matplotlib: half a second that no other model needs.
    from weft.studies.calibrated import CALIBRATED

    return {name: one for name, one in CALIBRATED.items() if one.quantity == quantity}


def _list(known: Mapping[str, Calibration], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps([{"system": name, "about": one.system} for name, one in known.items()]))
    else:
        print(format_table(["system", "about"], [[n, c.system] for n, c in known.items()], left=2))
    return 0


def _answer(found: Fit, quantity: str, args: argparse.Namespace) -> Answer:
    inputs = _inputs(found, quantity, args)
    values = found.predict(extrapolate=args.extrapolate, **inputs)
    columns = [
        Column(INPUTS[name].option, name, _unit(name), column.tolist())
        for name, column in inputs.items()
    ]
    columns += _results(found, inputs, values)
    return Answer(
        model=quantity,
        columns=columns,
        formula=found.form.formula,
        source=found.form.source,
        range=_ranges(found.ranges),
        notes=[*([_doubling(found)] if quantity == "saturation" else []), *misfit(found)],
        fit=found,
    )


def _results(found: Fit, inputs: Mapping[str, FloatArray], values: FloatArray) -> list[Column]:
    if found.form.unit == "us":
        return [Column("latency", "latency_us", "us", values.tolist())]
    moved = values * inputs["size_bytes"] * 8e-3
    return [
        Column("M messages/s", "message_rate_mps", "", values.tolist()),
        Column("throughput", "throughput_gbps", "Gb/s", moved.tolist()),
    ]


def _doubling(found: Fit) -> str:
    (within,) = found.ranges
    load = doubling_load_MBps(found, within.high)
    if load is None:
        return f"the latency does not double up to {format_value(within.high, 'MB/s')}"
    return f"the latency doubles at a load of {format_value(load, 'MB/s')}"


def _inputs(found: Fit, quantity: str, args: argparse.Namespace) -> dict[str, FloatArray]:
    """Every combination of the values given; an input that never varied needs none."""
    ranges = {one.name: one for one in found.ranges}
    _check_known(found, quantity, args)
    columns = [_given(ranges[one.name], args) for one in found.form.inputs]
    rows = np.array(list(product(*columns)), dtype=np.float64)
    return {one.name: rows[:, i] for i, one in enumerate(found.form.inputs)}


def _given(within: Range, args: argparse.Namespace) -> list[float]:
    one = INPUTS[within.name]
    if getattr(args, one.option) is not None:
        return listed(args, one.option, one.read)
    if within.low == within.high:
        return [within.low]
    raise InputError(f"--{one.option}", "is missing", f"fitted from {_span(within)}")


def _check_known(found: Fit, quantity: str, args: argparse.Namespace) -> None:
    used = {one.name for one in found.form.inputs}
    for name in OF_QUANTITY[quantity]:
        option = INPUTS[name].option
        if name not in used and getattr(args, option) is not None:
            problem = f"the model of {found.data} does not depend on it"
            raise InputError(f"--{option}", problem, "leave it out")


def _ranges(ranges: Sequence[Range]) -> str:
    return "; ".join(f"{INPUTS[one.name].option} {_span(one)}" for one in ranges)


def _span(one: Range) -> str:
    low, high = (format_value(value, _unit(one.name)) for value in (one.low, one.high))
    return low if one.low == one.high else f"{low} to {high}"


def _unit(name: str) -> str:
    return {"size_bytes": "B", "data_rate_gbps": "Gb/s", "load_MBps": "MB/s"}.get(name, "")
