"""How a set of records is told apart: by the settings that differ, not by those that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from weft.records.record_text import is_flow_quantity
from weft.records.schema import Plain, Quantity, Record
from weft.units import format_value, split_unit

REPETITION = "repetition"
Kind = TypeVar("Kind", bound=Quantity)


@dataclass(frozen=True, slots=True)
class Points:
    """Records with a short label each."""

    records: tuple[Record, ...]
    labels: tuple[str, ...]
    varying: tuple[str, ...]
    named: bool  # whether the names differ too
    shared: Mapping[str, Plain]

    def quantities(self, kind: type[Kind]) -> dict[str, dict[str, Kind]]:
        """Quantities of one kind: name, then label. Those of most records come first.

        Single flows are left out: their sums say what a reader looks for first.
        """
        found: dict[str, dict[str, Kind]] = {}
        for label, record in zip(self.labels, self.records, strict=True):
            for name, quantity in record.quantities.items():
                if isinstance(quantity, kind) and not is_flow_quantity(name):
                    found.setdefault(name, {})[label] = quantity
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _differing(records: Sequence[Record]) -> tuple[str, ...]:
    keys = dict.fromkeys(key for record in records for key in record.settings)
    return tuple(
        k for k in keys if len({repr(record.settings.get(k, ...)) for record in records}) > 1
    )


def setting_text(key: str, value: Plain) -> str:
    """A setting's value as people write it, with the unit that its name tells."""
    _, unit = split_unit(key)
    if unit and _is_number(value):
        return format_value(float(value or 0), unit)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _setting(key: str, value: Plain) -> str:
    """A text speaks for itself; a number needs its name."""
    name, unit = split_unit(key)
    if isinstance(value, str):
        return value
    return f"{name}{' ' if unit else '='}{setting_text(key, value)}"


def _label(record: Record, varying: Sequence[str], named: bool) -> str:
    settings = [_setting(k, record.settings[k]) for k in varying if k in record.settings]
    return ", ".join(([record.name] if named or not settings else []) + settings)


def points_of(records: Sequence[Record]) -> Points:
    """Label records by what differs among them; equal labels are numbered."""
    varying = _differing(records)
    named = len({record.name for record in records}) > 1
    labels: list[str] = []
    for record in records:
        label = _label(record, varying, named)
        same = sum(1 for other in labels if other == label or other.startswith(f"{label} #"))
        labels.append(f"{label} #{same + 1}" if same else label)
    shared = records[0].settings if records else {}
    return Points(
        tuple(records),
        tuple(labels),
        varying,
        named,
        {k: v for k, v in shared.items() if k not in varying},
    )


def swept_setting(points: Points) -> str | None:
    """The numeric setting with most values, if it has three or more: the x axis of a sweep."""
    varying = [key for key in points.varying if key != REPETITION]
    values = {key: {r.settings.get(key) for r in points.records} for key in varying}
    numeric = {key: seen for key, seen in values.items() if all(map(_is_number, seen))}
    widest = max(numeric, key=lambda key: len(numeric[key]), default=None)
    return widest if widest is not None and len(numeric[widest]) >= 3 else None


def _is_number(value: Plain) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def without(record: Record, setting: str, points: Points) -> str:
    """A record's label apart from one setting: the line of a sweep it belongs to."""
    others = [key for key in points.varying if key != setting]
    return _label(record, others, points.named) if others or points.named else ""
