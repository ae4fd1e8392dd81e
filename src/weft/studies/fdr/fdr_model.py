"""The FDR study's machines as a closed form, set by four of its statements, and how it is drawn.

B messages of a size are outstanding; each takes its time at the rate and a turnaround (wake-up,
acknowledgement, next post) during which nothing of it moves:

    throughput = min(B · size / (size / R + t), R)

R is that of data in the cache as long as B · size fits it, else that of data that is not. Set
from the text: R = 49 Gb/s (1 Mi, 4 outstanding), 46 Gb/s outside the cache (1 Mi, 5 outstanding), a
cache of 4 Mi (Equation 1), t from 10 Gb/s (32 Ki, 1 outstanding). Everything else is predicted.
Entry points: `throughput`, `Stated`, `fdr_study`, `model_panel`.
Units: bytes, Gb/s, µs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from weft.model.fit import FloatArray
from weft.model.outstanding import Pipe, throughput_gbps
from weft.records import Quantity, Scalar, Series
from weft.studies.observation import Bound, Claim, Observation, Records, Role, Verdict, scalar_in
from weft.studies.points import Point, model_point
from weft.studies.published import find_statement
from weft.studies.study import FDR_PAPER, Result, Study
from weft.studies.table_curves import OURS, draw_published, line_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYSTEM = "ConnectX-3 4X FDR, wait-wakeup"
KI, MI = 2**10, 2**20
CACHE_BYTES = 4 * MI
SIZES = tuple(2**n for n in range(15, 27))

CACHED_GBPS = find_statement("fdr", "1Mi-outstanding-4").value
MISSING_GBPS = find_statement("fdr", "1Mi-outstanding-5").value
POLLED_GBPS = find_statement("fdr", "polling-highest").value

# Statements that set a parameter of the model, or say the same as one that did.
SERVED = (
    "32Ki-outstanding-1",
    "32Ki-outstanding-1-elapsed",
    "32Ki-outstanding-1-cpu",
    "1Mi-outstanding-4",
    "1Mi-outstanding-5",
    "1Mi-drop",
    "polling-highest",
)


def _line_time_us(size_bytes: float, rate_gbps: float) -> float:
    return size_bytes * 8 / (rate_gbps * 1e3)


TURNAROUND_US = _line_time_us(
    32 * KI, find_statement("fdr", "32Ki-outstanding-1").value
) - _line_time_us(32 * KI, CACHED_GBPS)

PARAMETERS = (
    f"The model has four parameters from the text: {CACHED_GBPS:g} Gb/s while the outstanding "
    f"messages fit the cache, {MISSING_GBPS:g} Gb/s when they do not, a cache of 4 Mi, and "
    f"{TURNAROUND_US:.1f} us between a message and the next when one is outstanding."
)


def throughput(
    size_bytes: npt.ArrayLike,
    outstanding: npt.ArrayLike,
    *,
    one_buffer: bool = False,
    speed: float = 1.0,
) -> FloatArray:
    """Payload in Gb/s; `speed` is what both rates are multiplied by."""
    size, messages = np.asarray(size_bytes, float), np.asarray(outstanding, float)
    in_use = size if one_buffer else size * messages
    hit, miss = (
        throughput_gbps(
            size, messages, Pipe(line_rate_gbps=rate * speed, base_latency_us=TURNAROUND_US)
        )
        for rate in (CACHED_GBPS, MISSING_GBPS)
    )
    return np.asarray(np.where(in_use <= CACHE_BYTES, hit, miss))


def size_text(size_bytes: float) -> str:
    """32768 as 32 Ki, as the study writes sizes."""
    return f"{size_bytes / MI:g} Mi" if size_bytes >= MI else f"{size_bytes / KI:g} Ki"


def setting_text(size_bytes: int, outstanding: int) -> str:
    return f"{size_text(size_bytes)}, B = {outstanding}"


# ---- Points and rows ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stated:
    """A sentence of the text with its number, and the model's value for it."""

    key: str
    setting: str
    quantity: str
    ours: float
    tolerance: float
    reason: str = ""
    bound: Bound = ""
    role: Role = "prediction"  # of a key that is not in `SERVED`

    @property
    def row(self) -> Observation:
        statement = find_statement("fdr", self.key)
        return Observation(
            setting=self.setting,
            quantity=self.quantity,
            unit=statement.unit,
            kind="value" if statement.unit in ("s", "messages") else "bandwidth",
            published=statement.value,
            place=statement.place,
            reason=self.reason,
            source="model",
            system=SYSTEM,
            tolerance=self.tolerance,
            bound=self.bound,
            role="fit" if self.key in SERVED else self.role,
            read=lambda records: scalar_in(records[self.setting], self.quantity, statement.unit),
        )


def build_stated_points(rows: Sequence[Stated]) -> tuple[Point, ...]:
    """A point for each setting, with the model's value of each quantity."""
    by_setting: dict[str, dict[str, tuple[float, str]]] = {}
    for row in rows:
        unit = find_statement("fdr", row.key).unit
        by_setting.setdefault(row.setting, {})[row.quantity] = (row.ours, unit)
    return tuple(scalar_point(setting, values) for setting, values in by_setting.items())


def scalar_point(setting: str, quantities: Mapping[str, tuple[float, str]]) -> Point:
    """A point of the model: values with units by name."""
    scalars = {name: Scalar(value, unit) for name, (value, unit) in quantities.items()}
    return model_point(setting, {"setting": setting}, lambda: scalars, SYSTEM)


def line_point(
    label: str, x_name: str, xs: Sequence[float], of: Callable[[FloatArray], FloatArray]
) -> Point:
    """A line of the model over one axis, in Gb/s."""

    def quantities() -> Mapping[str, Quantity]:
        ys = of(np.asarray(xs, dtype=np.float64))
        return {OURS: Series(x_name, "Gb/s", tuple(map(float, xs)), tuple(map(float, ys)))}

    return model_point(label, {"line": label}, quantities, SYSTEM)


def fdr_study(
    name: str,
    title: str,
    place: str,
    stated: Sequence[Stated],
    lines: Sequence[Point],
    panel: Callable[[Axes, Result], None],
    notes: Sequence[str],
    claims: Sequence[Claim] = (),
) -> Study:
    """Sentences of the text beside the model, and the model's lines."""
    return Study(
        name=f"fdr-{name}",
        title=title,
        paper=FDR_PAPER,
        place=place,
        system=SYSTEM,
        points=(*build_stated_points(stated), *lines),
        observations=tuple(sentence.row for sentence in stated),
        claims=tuple(claims),
        panels=(panel,),
        notes=tuple(notes),
    )


def model_claim(statement: str, place: str, judge: Callable[[Records], Verdict]) -> Claim:
    return Claim(statement=statement, place=place, source="model", system=SYSTEM, judge=judge)


def model_panel(
    lines: Sequence[Point],
    marks: Sequence[tuple[float, float]],
    x_label: str,
    y_label: str = "throughput (Gb/s)",
    *,
    log_x: bool = True,
) -> Callable[[Axes, Result], None]:
    """The model's lines, and what the text states as open marks."""

    def series_points(records: Records) -> dict[str, list[tuple[float, float]]]:
        points = {}
        for line in lines:
            series = records[line.setting].quantities[OURS]
            assert isinstance(series, Series)
            points[line.setting] = list(zip(series.x, series.y, strict=True))
        return points

    base = line_panel(series_points, x_label, y_label, log_x=log_x, title="model and published")

    def draw(ax: Axes, result: Result) -> None:
        draw_published(ax, marks, "published")
        base(ax, result)

    return draw
