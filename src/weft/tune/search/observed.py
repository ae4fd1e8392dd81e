"""One measured point as the tuner sees it: its setting, the goal's value there, and the record.

Entry point: `observed`. Units: the goal's, %.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.records import Record
from weft.tune.search.goal import MOST_LOSS_PERCENT, Goal, loss_percent
from weft.tune.search.space import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """`stage` says why it was measured; `record` is None where a test invents the value."""

    setting: Choice
    value: float
    stage: str
    record: Record | None = None
    lost_percent: float = 0.0
    turn: int | None = None  # when it was measured, counted in points; None: not known

    @property
    def is_acceptable(self) -> bool:
        """Whether so few messages were lost that the setting may be recommended."""
        return self.lost_percent <= MOST_LOSS_PERCENT


def observed(goal: Goal, setting: Choice, stage: str, record: Record) -> Observed | None:
    """A record's value for the goal; None where it has none."""
    value = goal.value(record)
    if value is None:
        return None
    return Observed(
        setting=setting, value=value, stage=stage, record=record, lost_percent=loss_percent(record)
    )
