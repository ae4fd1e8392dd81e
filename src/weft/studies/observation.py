"""What a study observes, what the paper gives for it, and how far the two may be apart.

An observation is read off the records of a study; where the paper states a value it has that
value, its place in the paper, and a tolerance: its own, or by system and kind of quantity. Ours
is a simulation, a model or a measurement, of a named system. A published range is two
observations, "least" and "most". Units are written beside each value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from weft.records import Distribution, Record, Scalar
from weft.units import convert

Kind = Literal["median", "tail", "bandwidth", "latency", "rate", "value", "gain"]
Source = Literal["simulation", "model", "measurement"]  # what our column is
Records = Mapping[str, Record]  # by setting

# Ours is of another system than the published value: the ratio is shown and not judged.
ANOTHER_SYSTEM = math.inf

# The share of the published value that ours may be off by.
TOLERANCE: Mapping[str, Mapping[Kind, float]] = {
    "omnet": {"median": 0.15, "tail": 0.30, "bandwidth": 0.20},
    "sx6012": {"median": 0.20, "tail": 0.30, "bandwidth": 0.20},
}
TAIL = 0.999  # RPerf, V: "We consider the 99.9th latency percentile as the tail."

MEDIAN_RTT, TAIL_RTT = "probe RTT median", "probe RTT tail"
TOTAL = "bandwidth total"
LEAST_SHARE, MOST_SHARE = "bandwidth per sender, least", "bandwidth per sender, most"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One number of a study; `published` is None where the paper states none.

    `reason` is the physical cause of a difference that exceeds the tolerance. An empty `system`
    is the study's; a `tolerance` of None is that of the system and kind. `predicted` says of a
    model's row that its published value did not serve to fit the model.
    """

    setting: str
    quantity: str
    unit: str
    kind: Kind
    read: Callable[[Records], float]
    published: float | None = None
    place: str = ""
    reason: str = ""
    source: Source = "simulation"
    system: str = ""
    tolerance: float | None = None
    predicted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """An observation made: ours beside the published value."""

    study: str
    system: str  # of ours
    observation: Observation
    ours: float

    @property
    def published(self) -> float | None:
        return self.observation.published

    @property
    def ratio(self) -> float | None:
        """ours / published; None of a gain, which may be of either sign or none."""
        if self.published is None or self.observation.kind == "gain":
            return None
        return self.ours / self.published

    @property
    def tolerance(self) -> float:
        own = self.observation.tolerance
        return TOLERANCE[self.system][self.observation.kind] if own is None else own

    @property
    def judged(self) -> bool:
        """Whether ours should be the published value: there is a ratio, and of one system."""
        return self.ratio is not None and math.isfinite(self.tolerance)

    @property
    def within(self) -> bool:
        """Whether ours is within the tolerance; true where there is no ratio."""
        return self.ratio is None or abs(self.ratio - 1) <= self.tolerance

    @property
    def unexplained(self) -> bool:
        """Outside the tolerance, and no reason is written."""
        return not self.within and not self.observation.reason


def row_fields(row: Row) -> dict[str, str | float | None]:
    """The row as it is stored and printed for machines."""
    return {
        "study": row.study,
        "setting": row.observation.setting,
        "quantity": row.observation.quantity,
        "unit": row.observation.unit,
        "published": row.published,
        "ours": float(f"{row.ours:.6g}"),
        "ratio": None if row.ratio is None else float(f"{row.ratio:.4g}"),
        "source": row.observation.source,
        "system": row.system,
    }


def row_line(row: Row) -> str:
    """The row as one line of JSON."""
    return json.dumps(row_fields(row), ensure_ascii=False)


# ---- Reading records --------------------------------------------------------------------------


def quantile_in(record: Record, name: str, q: float, unit: str) -> float:
    """A quantile of a record's distribution, in the unit."""
    quantity = record.quantities[name]
    assert isinstance(quantity, Distribution)
    value = convert(quantity.quantile(q), quantity.unit, unit)
    assert value is not None
    return value


def scalar_in(record: Record, name: str, unit: str) -> float:
    """A record's scalar, in the unit."""
    quantity = record.quantities[name]
    assert isinstance(quantity, Scalar)
    value = convert(quantity.value, quantity.unit, unit)
    assert value is not None
    return value


def goodput(record: Record, part: str) -> float:
    """Payload of a part of the traffic, in Gb/s."""
    quantity = record.quantities[f"{part}.goodput"]
    assert isinstance(quantity, Scalar)
    return quantity.value


def shares(record: Record, part: str) -> tuple[float, ...]:
    """Payload of each flow of a part, in Gb/s."""
    flows = [n for n in record.quantities if n.startswith(f"{part}.h") and n.endswith(".goodput")]
    if not flows:  # a part of one flow has no name of its own for it
        return (goodput(record, part),)
    return tuple(goodput(record, name.removesuffix(".goodput")) for name in flows)


# ---- Observations that several studies make ---------------------------------------------------


def rtt(
    setting: str,
    median: float,
    tail: float | None,
    place: str,
    unit: str = "us",
    name: str = "probe.rtt",
    point: str = "",
) -> tuple[Observation, ...]:
    """The median and, where the paper states it, the tail of a probe.

    `point` is the setting that was simulated, where several rows come from one.
    """
    source = point or setting
    both: Sequence[tuple[str, Kind, float, float | None]] = (
        (MEDIAN_RTT, "median", 0.5, median),
        (TAIL_RTT, "tail", TAIL, tail),
    )
    return tuple(
        Observation(
            setting=setting,
            quantity=quantity,
            unit=unit,
            kind=kind,
            published=value,
            place=place,
            read=lambda records, q=q: quantile_in(records[source], name, q, unit),  # type: ignore[misc]
        )
        for quantity, kind, q, value in both
        if value is not None
    )


def bandwidth(
    setting: str, value: float, place: str, part: str = "senders", quantity: str = TOTAL
) -> Observation:
    """Payload of a part of the traffic."""
    return Observation(
        setting=setting,
        quantity=quantity,
        unit="Gb/s",
        kind="bandwidth",
        published=value,
        place=place,
        read=lambda records: goodput(records[setting], part),
    )


def share_range(
    setting: str, least: float, most: float, place: str, least_reason: str = ""
) -> tuple[Observation, ...]:
    """The least and the most that any one sender gets."""
    ends = ((LEAST_SHARE, least, min, least_reason), (MOST_SHARE, most, max, ""))
    return tuple(
        Observation(
            setting=setting,
            quantity=quantity,
            unit="Gb/s",
            kind="bandwidth",
            published=value,
            place=place,
            reason=reason,
            read=lambda records, end=end: end(shares(records[setting], "senders")),  # type: ignore[misc]
        )
        for quantity, value, end, reason in ends
    )


def step_range(
    settings: Sequence[str], least: float, most: float, place: str
) -> tuple[Observation, ...]:
    """The least and the most that a further sender adds to the median RTT."""

    def steps(records: Records) -> list[float]:
        medians = [quantile_in(records[s], "probe.rtt", 0.5, "us") for s in settings]
        return [after - before for before, after in pairwise(medians)]

    ends = (("least", least, min), ("most", most, max))
    return tuple(
        Observation(
            setting="each sender added",
            quantity=f"probe RTT median step, {name}",
            unit="us",
            kind="median",
            published=value,
            place=place,
            read=lambda records, end=end: end(steps(records)),  # type: ignore[misc]
        )
        for name, value, end in ends
    )
