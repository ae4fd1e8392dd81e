"""Records and run headers as single lines of canonical JSON, and back.

Canonical: keys sorted, no spaces, ASCII, no NaN. Equal records give equal bytes.
Entry points: `to_line`, `from_line`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np

from weft._core import Histogram
from weft.errors import InputError
from weft.records.schema import (
    SCHEMA,
    Distribution,
    Provenance,
    Quantity,
    Record,
    Run,
    Scalar,
    Series,
    Topology,
)

Json = dict[str, Any]

# Errors that decoding a damaged or foreign line can raise.
MALFORMED = (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError)


def canonical_json(value: object) -> str:
    """The one JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def parse_object(text: str | bytes) -> Json:
    """The JSON object in a line."""
    value = json.loads(text, parse_constant=_refuse_constant)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__} where an object is expected")
    return value


def _histogram_to_json(histogram: Histogram) -> Json:
    keys, counts, low, high, total = histogram.to_sparse()
    return {"keys": keys.tolist(), "counts": counts.tolist(), "min": low, "max": high, "sum": total}


def _histogram_from_json(data: Json) -> Histogram:
    keys = np.array(data["keys"], dtype=np.int32)
    counts = np.array(data["counts"], dtype=np.uint64)
    return Histogram.from_sparse(keys, counts, data["min"], data["max"], data["sum"])


def _quantity_to_json(quantity: Quantity) -> Json:
    match quantity:
        case Scalar():
            return {"type": "scalar", "unit": quantity.unit, "value": quantity.value}
        case Distribution():
            samples = _histogram_to_json(quantity.histogram)
            return {"type": "distribution", "unit": quantity.unit, "samples": samples}
        case Series():
            return {"type": "series"} | asdict(quantity)


def _quantity_from_json(data: Json) -> Quantity:
    match data["type"]:
        case "scalar":
            return Scalar(data["value"], data["unit"])
        case "distribution":
            return Distribution(data["unit"], _histogram_from_json(data["samples"]))
        case "series":
            return Series(data["x_unit"], data["y_unit"], data["x"], data["y"])
        case other:
            raise ValueError(f"quantity type {other!r} is unknown")


def record_to_json(record: Record) -> Json:
    """A record as `record_from_json` reads it."""
    return {
        "weft": "record",
        "schema": record.schema,
        "kind": record.kind,
        "name": record.name,
        "settings": record.settings,
        "quantities": {name: _quantity_to_json(q) for name, q in record.quantities.items()},
        "tables": record.tables,
        "topology": None if record.topology is None else asdict(record.topology),
        "notes": record.notes,
        "provenance": asdict(record.provenance),
    }


def to_line(record: Record) -> str:
    """A record as one line, without the newline."""
    return canonical_json(record_to_json(record))


def require_schema(data: Mapping[str, Any], where: str) -> None:
    """Refuse a line of another schema before anything in it is misread."""
    version = data.get("schema")
    if version != SCHEMA:
        raise InputError(
            where,
            f"schema {version!r} is not known to this weft, which reads schema {SCHEMA}",
            "read it with the weft that wrote it",
        )


def record_from_json(data: Json) -> Record:
    """The record in a parsed line."""
    topology = data["topology"]
    return Record(
        kind=data["kind"],
        name=data["name"],
        settings=data["settings"],
        quantities={name: _quantity_from_json(q) for name, q in data["quantities"].items()},
        tables=data["tables"],
        topology=None if topology is None else Topology(topology["nodes"], topology["links"]),
        notes=data["notes"],
        provenance=Provenance(**data["provenance"]),
    )


def run_to_line(run: Run) -> str:
    """A run header as one line of canonical JSON, without the newline."""
    return canonical_json({"weft": "run", "schema": SCHEMA} | asdict(run))


def run_from_json(data: Mapping[str, Any]) -> Run:
    """The run header in a parsed line."""
    fields = {key: value for key, value in data.items() if key not in ("weft", "schema")}
    return Run(**(fields | {"argv": tuple(data["argv"])}))


@contextmanager
def report_malformed(
    where: str, kind: str = "not a weft record", remedy: str = "correct or delete the line"
) -> Iterator[None]:
    """Name the line or file in any error that its content raises; `kind` is the problem."""
    try:
        yield
    except InputError as error:
        if error.where == where:
            raise
        raise InputError(f"{where}: {error.where}", error.problem, error.remedy) from error
    except MALFORMED as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(where, f"{kind}: {reason}", remedy) from error


def from_line(line: str | bytes, where: str = "record") -> Record:
    """The record in one line; `where` names the line in errors."""
    with report_malformed(where):
        data = parse_object(line)
        require_schema(data, where)
        return record_from_json(data)
