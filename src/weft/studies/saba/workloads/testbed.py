"""The ten workloads of the thesis's testbed: what it states of them, and a job fitted to each.

`testbed.toml` has the stated slowdowns and our suppositions, `jobs/NAME.toml` the job that
`fit_job` found, as a job file with both slowdowns side by side; tests/unit/test_saba_workloads.py
compares these files with the fit and can write them. Entry points: `read_testbed`, `fit_job`.
Shares are fractions of the link, times seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weft.jobs import Job, load_job
from weft.studies.saba.workloads.port_bound import Interval, bound_slowdown, select_reachable
from weft.studies.saba.workloads.stage_fit import Mix, complete_s, fit_mix
from weft.toml_table import Table, load_toml

HERE = Path(__file__).parent
QUARTER = 0.25
_ROUNDING = 0.05 * (1 + 1e-9)  # of a slowdown printed with one decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A slowdown that the text states, alone with a share of the link."""

    share: float
    slowdown: float
    place: str

    @property
    def interval(self) -> Interval:
        """The values that are printed so."""
        return self.slowdown - _ROUNDING, self.slowdown + _ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload of the thesis. `supposed`: slowdown at 25 %, None where one is stated."""

    name: str
    title: str
    loops: int
    alone_s: float
    overlapped: bool
    stated: tuple[Stated, ...]
    supposed: float | None
    instances: int
    rate_bps: float
    overlapped_volume: float  # of the bound

    @property
    def intervals(self) -> dict[float, Interval]:
        return {entry.share: entry.interval for entry in self.stated}

    @property
    def fitted_shares(self) -> tuple[float, ...]:
        """Those whose stated slowdowns one job can have."""
        return select_reachable(self.intervals)

    @property
    def targets(self) -> dict[float, float]:
        """What the job is fitted to."""
        if self.supposed is not None:
            return {QUARTER: self.supposed}
        return {s.share: s.slowdown for s in self.stated if s.share in self.fitted_shares}

    @property
    def job(self) -> Job:
        """The job in its file."""
        return load_job(HERE / "jobs" / f"{self.name.lower()}.toml")

    def slowdown(self, share: float) -> float:
        """Of the job alone with a share of the link, in closed form."""
        job = self.job
        return complete_s(job, self.rate_bps, share) / complete_s(job, self.rate_bps)

    def bound(self, share: float) -> Interval:
        """What the slowdown at a share can be, given the other fitted ones that are stated."""
        intervals = {b: self.intervals[b] for b in self.fitted_shares if b != share}
        bound = bound_slowdown(intervals, share)
        assert bound is not None  # they were selected as reachable
        return bound


@cache
def read_testbed() -> Mapping[str, Workload]:
    """The workloads by name, in the order of Table 3.1."""
    path = HERE / "testbed.toml"
    top = Table(load_toml(path), str(path))
    rate_bps = top.rate_bps("rate")
    instances = top.integer("instances", 2, 1000)
    overlapped_volume = top.number("overlapped_volume", 0.0, 1.0)
    workloads = [
        _read_workload(entry, instances, rate_bps, overlapped_volume)
        for entry in top.tables("workload")
    ]
    top.done()
    return {workload.name: workload for workload in workloads}


def _read_workload(
    entry: Table, instances: int, rate_bps: float, overlapped_volume: float
) -> Workload:
    workload = Workload(
        name=entry.text("name"),
        title=entry.text("title"),
        loops=entry.integer("loops", 1, 1000),
        alone_s=entry.number("alone_s", 0.0, 1e6),
        overlapped=entry.flag("overlapped"),
        stated=tuple(
            Stated(
                share=row.number("share", 0.0, 1.0),
                slowdown=row.number("slowdown", 1.0, 1e3),
                place=row.text("place"),
            )
            for row in entry.tables("stated", [])
        ),
        supposed=entry.number("supposed", 1.0, 4.0) if entry.has("supposed") else None,
        instances=instances,
        rate_bps=rate_bps,
        overlapped_volume=overlapped_volume,
    )
    entry.done()
    return workload


def fit_job(workload: Workload) -> Mix:
    """How the workload's job mixes computing and sending."""
    targets = workload.targets
    volume = workload.overlapped_volume * min(share * d for share, d in targets.items())
    return fit_mix(targets, volume if workload.overlapped else None)
