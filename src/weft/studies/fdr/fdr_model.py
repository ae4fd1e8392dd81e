"""The FDR study's machines as a closed form, set by four of its statements, and how it is drawn.

B messages of a size are outstanding; each takes its time at the rate and a turnaround (wake-up,
acknowledgement, next post) during which nothing of it moves:

    throughput = min(B · size / (size / R + t), R)

R is that of data in the cache as long as B · size fits it, else that of data that is not. Set
from the text: R = 49 Gb/s (1 Mi, 4 outstanding), 46 Gb/s outside the cache (1 Mi, 5 outstanding), a
cache of 4 Mi (Equation 1), t from 10 Gb/s (32 Ki, 1 outstanding). Everything else is predicted.
Entry points: `throughput`, `scalar_point`, `statement_row`, `equation_row`, `model_panel`.
Units: bytes, Gb/s, µs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from weft.model.fit import FloatArray
from weft.model.outstanding import Pipe, throughput_gbps
from weft.records import Quantity, Scalar, Series
from weft.studies.observation import Observation, Records, scalar_in
from weft.studies.points import Point, model_point
from weft.studies.published import find_statement
from weft.studies.study import Result
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


def statement_row(
    key: str, setting: str, quantity: str, name: str, tolerance: float, reason: str = ""
) -> Observation:
    """A value that the text states beside the model's; `name` is the quantity in the record."""
    statement = find_statement("fdr", key)
    return Observation(
        setting=setting,
        quantity=quantity,
        unit=statement.unit,
        kind="value" if statement.unit == "s" else "bandwidth",
        published=statement.value,
        place=statement.place,
        reason=reason,
        source="model",
        system=SYSTEM,
        tolerance=tolerance,
        predicted=key not in SERVED,
        read=lambda records: scalar_in(records[setting], name, statement.unit),
    )


def equation_row(setting: str, quantity: str, name: str, by_hand: int, place: str) -> Observation:
    """A value of a printed equation, worked by hand."""
    return Observation(
        setting=setting,
        quantity=quantity,
        unit="messages",
        kind="value",
        published=by_hand,
        place=place,
        source="model",
        system=SYSTEM,
        tolerance=0.0,
        predicted=True,
        read=lambda records: scalar_in(records[setting], name, "messages"),
    )


def model_panel(
    lines: Sequence[Point],
    marks: Sequence[tuple[float, float]],
    x_label: str,
    y_label: str,
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
