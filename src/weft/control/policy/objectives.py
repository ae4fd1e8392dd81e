"""What the weights of a port follow: sizes of its jobs, equality, or the least total slowdown.

`slowdown` is the thesis's Eq. 4.2 (`weft.control.policy.allocate`). Ports lend what a queue leaves,
and there weights in inverse proportion to the time for which a job's bytes alone would fill a link
make jobs faster (docs/saba-policy.md): small jobs are done soon, and delay large ones little. A job
states its size, or has that of its profile; one of unknown size counts as the geometric mean of the
others. Entry points: `OBJECTIVES`, `bound_size`, `weigh_by_size`, `split_in_proportion`. Sizes in
bytes over a job's busiest link (any unit, if it is the same for all); weights in a scheduler's
units.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import exp, log

SIZE, EQUAL, SLOWDOWN = OBJECTIVES = ("size", "equal", "slowdown")
# Where a size comes from. Bounded: a stated one beyond `STATED_FACTOR`.
STATED, BOUNDED, PROFILED, UNKNOWN = "stated", "stated, bounded", "profile", "unknown"
STATED_FACTOR = 64  # more data or fewer nodes than in the profiled run, or the opposite
LEAST_PART = 1 / 16  # of the largest weight: a size may be wrong, and nobody should starve


def bound_size(stated: float, profiled: float | None) -> float:
    """A stated size within `STATED_FACTOR` of the profile's, where that has one."""
    if profiled is None:
        return stated
    return min(max(stated, profiled / STATED_FACTOR), profiled * STATED_FACTOR)


def weigh_by_size(sizes: Sequence[float | None]) -> list[float]:
    """The largest weight is 1; all are 1 where no size is known."""
    weighed = [size for size in sizes if size]
    if len(weighed) < len(sizes):
        logs = [log(size) for size in weighed]
        typical = exp(sum(logs) / len(logs)) if logs else 1.0
        weighed = [size or typical for size in sizes]
    least = min(weighed)
    return [max(least / size, LEAST_PART) for size in weighed]


def split_in_proportion(weights: Sequence[float], units: int) -> tuple[int, ...]:
    """Whole units that sum to `units`; at least one each, where there are as many."""
    least = 1 if units >= len(weights) else 0
    unit = (units - least * len(weights)) / sum(weights)
    ends = [round(end * unit) for end in accumulate(weights)]
    return tuple([end - start + least for start, end in pairwise([0, *ends])])
