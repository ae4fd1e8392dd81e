"""A tuning run over a fabric, from settings as they are written to its result.

Entry points: `prepare` (what would be measured), `Prepared.run`. Units: s.
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
from weft.measure.settings.feasibility import is_lossy
from weft.measure.settings.options import Settings, options_of, settings_from
from weft.records import Plain, Record
from weft.tune.rules.advice import advise
from weft.tune.rules.read_evidence import evidence_of
from weft.tune.search.design import POINT_S, Schedule, schedule
from weft.tune.search.goal import Goal, goal_named
from weft.tune.search.space import (
    CHOICES,
    MIB,
    MOST_OUTSTANDING_BYTES,
    Choice,
    Observed,
    Space,
    candidates_of,
    here_for,
    observed,
    space_for,
)
from weft.tune.search.tuning import Observe, Progress, Stopped, Tuning, tune

LONGEST_POINT_S = 60.0
DISTURBED = 1.6  # times the median


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """What will be measured, checked as far as it can be without measuring."""

    goal: Goal
    space: Space
    schedule: Schedule
    base: Settings
    budget_s: float
    seed: int

    @property
    def needs_peer(self) -> bool:
        return self.base.route.transport != "delay"

    def measuring(self, peer: Peer | None, keep: Callable[[Record], None]) -> Measuring:
        return Measuring(
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
        """Measure; `keep` gets each record as it comes."""
        return advised(self.run_with(self.measuring(peer, keep), progress))

    def run_with(self, observe: Observe, progress: Progress = lambda *_: None) -> Tuning:
        """The stages, with anything that observes."""
        return tune(
            observe,
            self.space,
            self.goal,
            self.schedule,
            seed=self.seed,
            budget_s=self.budget_s,
            progress=progress,
        )


def advised(tuning: Tuning) -> Tuning:
    """With the design rules that the run's own records support."""
    try:
        evidence = evidence_of(_undisturbed(tuning), where="this run")
    except InputError as error:
        return replace(tuning, no_advice=str(error))
    fitted = tuning.recommendation.surface.fit if tuning.goal.name == "throughput" else None
    return replace(tuning, advice=advise(evidence, throughput=fitted))


def _undisturbed(tuning: Tuning) -> list[Record]:
    """Without repetitions far from the median of theirs: one system made them, on a busy host."""
    values: dict[tuple[Plain, ...], list[float]] = {}
    for row in tuning.rows:
        values.setdefault(tuning.space.key(row.setting), []).append(row.value)
    middle = {key: median(found) for key, found in values.items()}
    return [
        row.record
        for row in tuning.rows
        if row.record is not None
        and 1 / DISTURBED < row.value / middle[tuning.space.key(row.setting)] < DISTURBED
    ]


def prepare(
    given: Mapping[str, object],
    *,
    goal: str = "throughput",
    budget_s: float | None = None,
    point_s: float = POINT_S,
    seed: int = 1,
) -> Prepared:
    """`given` are settings by their outside names; several values of a choice limit it."""
    wanted = goal_named(goal)
    if not 0.001 <= point_s <= LONGEST_POINT_S:
        remedy = f"use 1 ms to {LONGEST_POINT_S:g} s"
        raise InputError("--point", f"{point_s:g} s is out of range", remedy)
    fields = {name: field for name, (field, _) in options_of(wanted.test.settings).items()}
    chosen = {n: str(v) for n, v in given.items() if fields.get(n, n) in CHOICES or n not in fields}
    base = base_settings(wanted, {n: v for n, v in given.items() if n not in chosen})
    if base.route.transport == "mpi":
        problem = "what could be chosen is mpirun's and the MPI library's"
        raise InputError("--over mpi", problem, "tune ofi:PROVIDER, which MPI may use too")
    space = space_for(wanted, here_for(base.over, {**chosen, "endpoint": base.endpoint}), chosen)
    space = replace(space, written={n: str(v) for n, v in given.items() if n not in chosen})
    _check_memory(space)
    plan = schedule(space, base.route.transport, budget_s=budget_s, point_s=point_s)
    prepared = Prepared(
        goal=wanted,
        space=space,
        schedule=plan,
        base=base,
        seed=seed,
        budget_s=float("inf") if budget_s is None else budget_s,
    )
    _check_levels(prepared)
    return prepared


def _check_memory(space: Space) -> None:
    if not candidates_of(space):
        most = f"{MOST_OUTSTANDING_BYTES // MIB} MiB"
        problem = f"every combination holds more than {most} outstanding"
        raise InputError("--size, --depth, --qps, --threads", problem, "lower one")


def _check_levels(prepared: Prepared) -> None:
    """Refuse what no point can have before any is measured."""
    space = prepared.space
    if not space.factors:
        problem = "every choice was given one value: there is nothing to choose"
        raise InputError(
            "weft tune", problem, f"leave some out, or run weft {prepared.goal.test.name}"
        )
    measuring = prepared.measuring(None, lambda _: None)
    for factor in space.factors:
        for level in factor.levels:
            at = space.mended({**space.default, factor.name: level})
            check_point(prepared.goal.test, measuring.settings(at))


LOSS_TIMEOUT_NS = 10**8


@dataclass(slots=True, kw_only=True)
class Measuring:
    """Measures points one after the other; `keep` gets each record as it comes."""

    goal: Goal
    space: Space
    peer: Peer | None
    base: Settings
    point_ns: int
    keep: Callable[[Record], None] = lambda _: None
    seen: Counter[tuple[Plain, ...]] = field(default_factory=Counter)

    def __call__(self, setting: Choice, stage: str) -> Observed:
        settings = self.settings(setting)
        check_point(self.goal.test, settings)
        key = self.space.key(setting)
        self.seen[key] += 1
        try:
            measured = run_test(
                self.goal.test,
                self.peer,
                settings,
                shown=[f.name for f in self.space.factors],
                repetition=self.seen[key],
            )
        except KeyboardInterrupt:
            raise Stopped("interrupted") from None
        except (PeerLost, PeerStopped) as error:
            raise Stopped(str(error)) from error
        if measured.ended:
            raise Stopped(measured.ended)
        self.keep(measured.record)
        row = observed(self.goal, setting, stage, measured.record)
        if row is None:
            problem = f"nothing arrived in {self.point_ns / 1e9:g} s"
            raise InputError(measured.record.label, problem, "give each point longer: --point 1s")
        return row

    def settings(self, setting: Choice) -> Settings:
        """Of the test: the choice, and what is the same at every point."""
        values: dict[str, Any] = {**self.space.fixed, **setting}
        return dataclasses.replace(self.base, duration_ns=self.point_ns, **values)


def base_settings(goal: Goal, given: Mapping[str, object]) -> Settings:
    """What is not a choice: the transport, addresses, injected delays."""
    for name in ("count", "duration"):
        if name in given:
            problem = "the tuner decides how long each point is measured"
            raise InputError(f"--{name}", problem, "use --point TIME and --budget SECONDS")
    found = settings_from(goal.test.settings, given, "--")
    if is_lossy(found) and "loss-timeout" not in given:
        # Each point waits so long for what was lost: not longer than it measures.
        return dataclasses.replace(found, loss_timeout_ns=LOSS_TIMEOUT_NS)
    return found
