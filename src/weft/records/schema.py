"""The record schema, and records as single lines of canonical JSON, and back.

One `Record` per run, and the `Run` header of the command that made it. A record holds quantities
(numbers, distributions, series) under dotted names such as `probe.rtt`, the settings of its point,
and the deterministic part of its provenance: same seed, same record. What changes from run to run
(when, where, by which command) is in the header. Units are written beside each value.

Canonical: keys sorted, no spaces, ASCII, no NaN. Equal records give equal bytes.
Entry points: `Record`, `Run`, `describe_run`; `to_line`, `from_line`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from weft import __version__
from weft._core import Histogram
from weft.errors import InputError
from weft.units import format_settings

SCHEMA = 1
KINDS = ("simulation", "measurement", "model", "study")

Plain = bool | int | float | str | None
Row = Mapping[str, Plain]
_PLAIN_TYPES = frozenset((bool, int, str, type(None)))  # every value of these can be stored


def _to_plain(value: object, where: str) -> Plain:
    """The value as a built-in number, text or None; anything else cannot be stored."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float) and not math.isfinite(plain):
        raise InputError(where, f"{plain} cannot be stored", "leave the value out, or use None")
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    raise InputError(
        where, f"a {type(plain).__name__} cannot be stored", "use a number, text, bool or None"
    )


def _to_plain_row(row: Mapping[str, object], where: str) -> dict[str, Plain]:
    # Most values are plain: building their places would take most of the time of reading.
    return {
        str(key): value  # type: ignore[misc]
        if type(value) in _PLAIN_TYPES
        else _to_plain(value, f"{where}: {key}")
        for key, value in row.items()
    }


def _to_number(value: object, where: str) -> int | float:
    plain = _to_plain(value, where)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise InputError(where, f"{plain!r} is not a number", "give an int or a float")
    return plain


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number, such as a mean rate or a count (unit "")."""

    value: int | float
    unit: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _to_number(self.value, "scalar"))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Integer samples of one unit. Quantiles are computed, never stored."""

    unit: str
    histogram: Histogram

    def quantile(self, q: float) -> int:
        """The value at the ceil(q n)-th order statistic, within 0.1 %."""
        return self.histogram.quantile(q)

    def interval(self, q: float, confidence: float = 0.95) -> tuple[int | None, int | None]:
        """Confidence interval of a quantile; None where the samples are too few to bound it."""
        return self.histogram.quantile_interval(q, confidence)


def _to_floats(values: Iterable[float], where: str) -> tuple[float, ...]:
    array = np.asarray(values if isinstance(values, Sequence) else list(values), dtype=np.float64)
    if not np.isfinite(array).all():
        raise InputError(where, "a point is not finite", "leave the point out")
    return tuple(array.tolist())


@dataclass(frozen=True, slots=True)
class Series:
    """Points y over x, such as a queue's length over time."""

    x_unit: str
    y_unit: str
    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", _to_floats(self.x, "series x"))
        object.__setattr__(self, "y", _to_floats(self.y, "series y"))
        if len(self.x) != len(self.y):
            problem = f"{len(self.x)} x values for {len(self.y)} y values"
            raise InputError("series", problem, "give one y for each x")


Quantity = Scalar | Distribution | Series


@dataclass(frozen=True, slots=True)
class Topology:
    """A fabric as it is drawn: nodes (name, kind) and links between their indices."""

    nodes: tuple[tuple[str, str], ...]
    links: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple((str(n), str(k)) for n, k in self.nodes))
        object.__setattr__(self, "links", tuple((int(i), int(j)) for i, j in self.links))
        for i, j in self.links:
            if not (0 <= i < len(self.nodes) and 0 <= j < len(self.nodes)):
                problem = f"link {[i, j]} names a node outside 0..{len(self.nodes) - 1}"
                raise InputError("topology", problem, "links are pairs of indices into nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a record came from; only facts that the same seed reproduces."""

    weft_version: str
    seed: int | None = None
    parameters: str | None = None
    scenario_digest: str | None = None


_ENDED = "ended: "


def note_ending(ending: str) -> str:
    """The note of a record that says how its run ended; `Record.ending` reads it."""
    return f"{_ENDED}{ending}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One observed run: a simulation point, a measurement, an evaluated model or study."""

    schema: int = SCHEMA
    kind: str
    name: str
    settings: Mapping[str, Plain] = field(default_factory=dict)
    quantities: Mapping[str, Quantity] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    topology: Topology | None = None
    notes: Sequence[str] = ()
    provenance: Provenance

    def __post_init__(self) -> None:
        where = f"record {self.name!r}"
        if self.schema != SCHEMA:
            raise InputError(where, f"schema {self.schema} is not {SCHEMA}", "leave schema out")
        if self.kind not in KINDS:
            raise InputError(where, f"kind {self.kind!r} is unknown", f"use one of {KINDS}")
        tables = {
            name: tuple(_to_plain_row(row, f"{where}: table {name}") for row in rows)
            for name, rows in self.tables.items()
        }
        object.__setattr__(self, "settings", _to_plain_row(self.settings, f"{where}: settings"))
        object.__setattr__(self, "quantities", dict(self.quantities))
        object.__setattr__(self, "tables", tables)
        object.__setattr__(self, "notes", tuple(self.notes))

    @property
    def ending(self) -> str:
        """How the run ended, if its notes say so: written by `note_ending`."""
        return next((n.removeprefix(_ENDED) for n in self.notes if n.startswith(_ENDED)), "")

    @property
    def label(self) -> str:
        """The name and settings, which identify the record."""
        settings = format_settings(self.settings)
        return f"{self.name} ({settings})" if settings else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation of weft: the first line of each file it writes."""

    started: str
    host: str
    os: str
    cpu: str
    python: str
    weft_version: str
    argv: tuple[str, ...]
    facts: Mapping[str, Plain] = field(default_factory=dict)


def _cpu_model() -> str:
    """Linux knows the model's name; platform.processor() there is empty."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_run(argv: Sequence[str] | None = None, **facts: Plain) -> Run:
    """The header of the present run; `facts` adds what only the caller knows."""
    return Run(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=f"{_cpu_model()}, {os.cpu_count()} threads",
        python=platform.python_version(),
        weft_version=__version__,
        argv=tuple(sys.argv if argv is None else argv),
        facts=facts,
    )


# ---- Lines of JSON ----------------------------------------------------------------------------

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
