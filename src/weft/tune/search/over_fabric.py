"""A tuning run over a fabric: from options to the result, one short test run for each point.

Entry points: `prepare_tuning` (checks and plans), `PreparedTuning.run`, `PointMeasurer`. Units: s,
ns.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from weft.errors import InputError
from weft.measure.measurement import check_point, run_test
from weft.measure.peer.client import Peer, PeerLost, PeerStopped
from weft.measure.settings.by_test import is_lossy
from weft.measure.settings.options import Settings, options_of, settings_from
from weft.records import Plain, Record
from weft.tune.rules.advice import advise
from weft.tune.rules.evidence import gather_evidence
from weft.tune.search.design import POINT_S, Schedule, schedule
from weft.tune.search.space import (
    CHOICES,
    MIB,
    MOST_OUTSTANDING_BYTES,
    Candidate,
    Goal,
    MeasuredPoint,
    Space,
    build_point,
    build_space,
    find_goal,
    find_host_limits,
    list_candidates,
)
from weft.tune.search.tuning import Observe, Progress, Stopped, Tuning, tune

LONGEST_POINT_S = 60.0
DISTURBANCE_RATIO = 1.6  # times the median


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PreparedTuning:
    """A run that was checked as far as possible without measuring."""

    goal: Goal
    space: Space
    schedule: Schedule
    base: Settings
    budget_s: float
    seed: int

    @property
    def needs_peer(self) -> bool:
        return self.base.route.transport != "delay"

    def build_measurer(self, peer: Peer | None, keep: Callable[[Record], None]) -> PointMeasurer:
        return PointMeasurer(
            goal=self.goal,
            space=self.space,
            peer=peer,
            base=self.base,
            point_ns=round(self.schedule.point_s * 1e9),
            keep=keep,
        )

    def run(
        self,
        peer: Peer | None,
        keep: Callable[[Record], None] = lambda _: None,
        progress: Progress = lambda *_: None,
    ) -> Tuning:
        """Measure, recommend and confirm; `keep` gets each record."""
        return add_advice(self.run_with(self.build_measurer(peer, keep), progress))

    def run_with(self, observe: Observe, progress: Progress = lambda *_: None) -> Tuning:
        """The same with any source of points."""
        return tune(
            observe,
            self.space,
            self.goal,
            self.schedule,
            seed=self.seed,
            budget_s=self.budget_s,
            progress=progress,
        )


def add_advice(tuning: Tuning) -> Tuning:
    """The tuning with the design rules that its records support."""
    try:
        evidence = gather_evidence(_drop_disturbed(tuning), where="this run")
    except InputError as error:
        return replace(tuning, no_advice=str(error))
    fitted = tuning.recommendation.surface.fit if tuning.goal.name == "throughput" else None
    return replace(tuning, advice=advise(evidence, throughput=fitted))


def _drop_disturbed(tuning: Tuning) -> list[Record]:
    """The records without outliers: repetitions far from their median come from a busy host."""
    space = tuning.space
    groups = space.group(tuning.rows)
    middle = {key: median(row.value for row in group) for key, group in groups.items()}
    return [
        row.record
        for row in tuning.rows
        if row.record is not None
        and 1 / DISTURBANCE_RATIO < row.value / middle[space.key(row.setting)] < DISTURBANCE_RATIO
    ]


def prepare_tuning(
    options: Mapping[str, object],
    *,
    goal: str = "throughput",
    budget_s: float | None = None,
    point_s: float = POINT_S,
    seed: int = 1,
) -> PreparedTuning:
    """Plan a run. `options` are settings by option name; several values of a choice limit it."""
    target = find_goal(goal)
    if not 0.001 <= point_s <= LONGEST_POINT_S:
        remedy = f"use 1 ms to {LONGEST_POINT_S:g} s"
        raise InputError("--point", f"{point_s:g} s is out of range", remedy)
    fields = {name: field for name, (field, _) in options_of(target.test.settings).items()}
    chosen = {
        n: str(v) for n, v in options.items() if fields.get(n, n) in CHOICES or n not in fields
    }
    base = base_settings(target, {n: v for n, v in options.items() if n not in chosen})
    if base.route.transport == "mpi":
        problem = "what could be chosen is mpirun's and the MPI library's"
        raise InputError("--over mpi", problem, "tune ofi:PROVIDER, which MPI may use too")
    space = build_space(
        target, find_host_limits(base.over, {**chosen, "endpoint": base.endpoint}), chosen
    )
    space = replace(space, options={n: str(v) for n, v in options.items() if n not in chosen})
    _check_memory(space)
    plan = schedule(space, base.route.transport, budget_s=budget_s, point_s=point_s)
    prepared = PreparedTuning(
        goal=target,
        space=space,
        schedule=plan,
        base=base,
        seed=seed,
        budget_s=float("inf") if budget_s is None else budget_s,
    )
    _check_levels(prepared)
    return prepared


def _check_memory(space: Space) -> None:
    if not list_candidates(space):
        most = f"{MOST_OUTSTANDING_BYTES // MIB} MiB"
        problem = f"every combination holds more than {most} outstanding"
        raise InputError("--size, --depth, --qps, --threads", problem, "lower one")


def _check_levels(prepared: PreparedTuning) -> None:
    """Refuse levels that no point can have, before measuring."""
    space = prepared.space
    if not space.factors:
        problem = "every choice was given one value: there is nothing to choose"
        raise InputError(
            "weft tune", problem, f"leave some out, or run weft {prepared.goal.test.name}"
        )
    measurer = prepared.build_measurer(None, lambda _: None)
    for factor in space.factors:
        for level in factor.levels:
            setting = space.repair({**space.default, factor.name: level})
            check_point(prepared.goal.test, measurer.settings(setting))


LOSS_TIMEOUT_NS = 10**8


@dataclass(slots=True, kw_only=True)
class PointMeasurer:
    """Measures points one by one; `keep` gets each record."""

    goal: Goal
    space: Space
    peer: Peer | None
    base: Settings
    point_ns: int
    keep: Callable[[Record], None] = lambda _: None
    repetitions: Counter[tuple[Plain, ...]] = field(default_factory=Counter)

    def __call__(self, setting: Candidate, stage: str) -> MeasuredPoint:
        settings = self.settings(setting)
        check_point(self.goal.test, settings)
        key = self.space.key(setting)
        self.repetitions[key] += 1
        try:
            measured = run_test(
                self.goal.test,
                self.peer,
                settings,
                shown=[f.name for f in self.space.factors],
                repetition=self.repetitions[key],
            )
        except KeyboardInterrupt:
            raise Stopped("interrupted") from None
        except (PeerLost, PeerStopped) as error:
            raise Stopped(str(error)) from error
        if measured.ended:
            raise Stopped(measured.ended)
        self.keep(measured.record)
        row = build_point(self.goal, setting, stage, measured.record)
        if row is None:
            problem = f"nothing arrived in {self.point_ns / 1e9:g} s"
            raise InputError(measured.record.label, problem, "give each point longer: --point 1s")
        return row

    def settings(self, setting: Candidate) -> Settings:
        """The test's settings at a candidate."""
        values: dict[str, Any] = {**self.space.fixed, **setting}
        return dataclasses.replace(self.base, duration_ns=self.point_ns, **values)


def base_settings(goal: Goal, options: Mapping[str, object]) -> Settings:
    """The settings that are no choices: the transport, addresses, injected delays."""
    for name in ("count", "duration"):
        if name in options:
            problem = "the tuner decides how long each point is measured"
            raise InputError(f"--{name}", problem, "use --point TIME and --budget SECONDS")
    settings = settings_from(goal.test.settings, options, "--")
    if is_lossy(settings) and "loss-timeout" not in options:
        # Each point waits this long for lost messages: no longer than it measures.
        return dataclasses.replace(settings, loss_timeout_ns=LOSS_TIMEOUT_NS)
    return settings
