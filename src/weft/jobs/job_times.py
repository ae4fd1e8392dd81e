"""When the stages of a job began and ended: the same quantities of a simulation and of a real run.

`JOB.completion` is from the job's start to the end of its last stage on its last instance,
`JOB.STAGE.completion` from the first instance that enters a stage to the last that leaves it, the
mean over the loops. Looping jobs have the distribution of loops too. Times are whole ps after the
run's start; -1 is never. Entry points: `JobTimes`, `build_quantities`, `build_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft._core import Histogram
from weft.jobs.job_file import Job
from weft.records import Distribution, Quantity, Row, Scalar
from weft.units import format_count

NEVER_PS = -1
MAX_ROWS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobTimes:
    """Begin and end of each [loop, stage, instance]; `hosts` of the instances, by name."""

    job: Job
    hosts: tuple[str, ...]
    begin_ps: NDArray[np.int64]
    end_ps: NDArray[np.int64]
    is_complete: bool  # the job's loops, not only those that fit into the run

    @property
    def loops(self) -> int:
        """Loops that every instance has ended."""
        ended = (self.end_ps != NEVER_PS).all(axis=(1, 2))
        return int(np.argmin(ended)) if not ended.all() else len(ended)

    @property
    def loop_ends_ps(self) -> NDArray[np.int64]:
        return np.asarray(self.end_ps[: self.loops].max(axis=(1, 2)))

    @property
    def mean_loop_ps(self) -> float | None:
        """None before the first loop has ended."""
        ends = self.loop_ends_ps
        return float(ends[-1] - self.job.start_ps) / len(ends) if len(ends) else None


def build_quantities(times: JobTimes) -> Iterator[tuple[str, Quantity]]:
    name, ends = times.job.name, times.loop_ends_ps
    yield f"{name}.loops", Scalar(times.loops, "")
    if times.is_complete:
        yield f"{name}.completion", Scalar(float(ends[-1] - times.job.start_ps) / 1e6, "us")
    if len(ends) > 1:
        histogram = Histogram()
        histogram.record_many(np.diff(ends, prepend=times.job.start_ps))
        yield f"{name}.loop", Distribution("ps", histogram)
    for number, stage in enumerate(times.job.stages):
        took = _stage_ps(times, number)
        if len(took):
            mean_us = float(took.mean()) / 1e6
            yield f"{name}.{stage.name}.completion", Scalar(mean_us, "us")


def _stage_ps(times: JobTimes, stage: int) -> NDArray[np.int64]:
    """From the first instance's entry to the last one's leave, in each loop in which all left."""
    begin, end = times.begin_ps[:, stage], times.end_ps[:, stage]
    ended = (end != NEVER_PS).all(axis=1)
    return np.asarray(end[ended].max(axis=1) - begin[ended].min(axis=1))


def build_slowdown(times: JobTimes, alone: JobTimes) -> Iterator[tuple[str, Quantity]]:
    """Mean time of a loop, over the same when the job is alone."""
    beside_ps, alone_ps = times.mean_loop_ps, alone.mean_loop_ps
    if beside_ps and alone_ps:
        yield f"{times.job.name}.alone", Scalar(alone_ps * alone.loops / 1e6, "us")
        yield f"{times.job.name}.slowdown", Scalar(beside_ps / alone_ps, "")


def build_rows(jobs: Sequence[JobTimes]) -> list[Row]:
    """One row per job, loop and stage that all instances have ended, the first MAX_ROWS."""
    rows: list[Row] = []
    for times in jobs:
        for loop in range(len(times.end_ps)):
            for number, stage in enumerate(times.job.stages):
                end = times.end_ps[loop, number]
                if (end == NEVER_PS).any():
                    continue
                if len(rows) == MAX_ROWS:
                    return rows
                rows.append(
                    {
                        "job": times.job.name,
                        "loop": loop,
                        "stage": stage.name,
                        "begin_us": float(times.begin_ps[loop, number].min()) / 1e6,
                        "end_us": float(end.max()) / 1e6,
                    }
                )
    return rows


def describe_jobs(all_times: Sequence[JobTimes], rows: Sequence[Row]) -> Iterator[str]:
    """Where each job ran, and whether the rows are all there were."""
    for times in all_times:
        shown = ", ".join(times.hosts[:8]) + (" …" if len(times.hosts) > 8 else "")
        yield f"{times.job.name}: {format_count(len(times.hosts), 'instance')} on {shown}"
    if len(rows) == MAX_ROWS:
        yield f"the table of stages has the first {MAX_ROWS}"
