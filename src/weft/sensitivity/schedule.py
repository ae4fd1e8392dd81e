"""Which run of a profile comes next: shares in random order, then repeats of rejected runs.

Pure: everything follows from the plan and the finished runs, so that an interrupted profile resumes
as if it had not been interrupted. Each repetition runs every share once, in its own random order.

A run is **contended** if its processes waited for a processor longer than usual for this command,
by more than 5 % of its completion plus a tenth of what is usual. Processes of one command may wait
for each other, more at one share than at another; so usual is the lower quartile of all runs or the
least of the run's share, whichever is greater. A run is **outlying** if its completion is further
from the median of its share than 10 % and than three standard deviations (by the median absolute
deviation); if the share's uncontended runs have a lower median, theirs counts. Such runs are
rejected and repeated, at most as often as planned. Medians are the lower of the two middle values,
because disturbances only make runs slower. Entry points: `next_run`, `judge_runs`, `time_left_s`.
Units: seconds, bytes, bits per second; shares are fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from statistics import median_low

from weft.errors import InputError
from weft.sensitivity.application import Run, check_name

MAX_REPETITIONS = 100
_OUTLYING = 0.10  # of the median completion of the share
_DEVIATIONS = 3 * 1.4826  # standard deviations, of a normal distribution's median deviation
_CONTENDED = 0.05  # of the completion
_SCATTER = 0.1  # of what is usual
_FEW = 3  # runs, before it is known what waiting is usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is profiled, and how. `place` names the network and the capped links."""

    name: str
    command: tuple[str, ...]
    shares: tuple[float, ...]
    repeat: int
    place: str
    link_bps: float
    seed: int
    directory: str = ""

    def __post_init__(self) -> None:
        check_name(self.name)
        if not 1 <= self.repeat <= MAX_REPETITIONS:
            problem = f"{self.repeat} is not in 1 to {MAX_REPETITIONS}"
            raise InputError("--repeat", problem, "use such a number")
        if len(self.shares) < 2 or self.shares[-1] != 1:
            problem = "no 100" if self.shares[-1:] != (1,) else "nothing but 100"
            raise InputError("--percent", problem, "profile at 100 and less: 10,25,50,100")

    @property
    def order(self) -> tuple[float, ...]:
        """The share of every planned run."""
        random = Random(self.seed)
        return tuple(
            share
            for _ in range(self.repeat)
            for share in random.sample(self.shares, len(self.shares))
        )


@dataclass(frozen=True, slots=True)
class DueRun:
    """The next run; `because` is the reason if it was not planned."""

    share: float
    repetition: int
    because: str = ""


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run, and why it is rejected; "" if it counts."""

    run: Run
    reason: str


def next_run(plan: Plan, runs: Sequence[Run]) -> DueRun | None:
    """The run after these; None when the profile is complete."""
    if len(runs) < len(plan.order):
        share = plan.order[len(runs)]
        return DueRun(share, _count_runs(runs, share))
    judged = judge_runs(runs)
    wanting = [share for share in plan.shares if _needs_run(plan, judged, share)]
    if not wanting:
        return None
    share = Random(f"{plan.seed} {len(runs)}").choice(wanting)
    reason = [
        judged_run.reason
        for judged_run in judged
        if judged_run.run.share == share and judged_run.reason
    ][-1]
    return DueRun(share, _count_runs(runs, share), reason)


def _count_runs(runs: Sequence[Run], share: float) -> int:
    return sum(run.share == share for run in runs)


def _needs_run(plan: Plan, judged: Sequence[JudgedRun], share: float) -> bool:
    of_share = [judged_run for judged_run in judged if judged_run.run.share == share]
    good = sum(not judged_run.reason for judged_run in of_share)
    return good < plan.repeat and len(of_share) < 2 * plan.repeat


# ---- Judging ----------------------------------------------------------------------------------


def judge_runs(runs: Sequence[Run]) -> list[JudgedRun]:
    """Every run, in order, with the reason to reject it."""
    usual = _usual_wait_ratio(runs)
    least = {
        run.share: min(_wait_ratio(other) for other in runs if other.share == run.share)
        for run in runs
    }
    contended = [JudgedRun(run, _explain_contention(run, usual, least[run.share])) for run in runs]
    return [
        judged_run
        if judged_run.reason
        else JudgedRun(judged_run.run, _explain_outlier(judged_run.run, contended))
        for judged_run in contended
    ]


def select_good_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs that count; all runs of a share that has no good one."""
    judged = judge_runs(runs)
    good = {judged_run.run.share for judged_run in judged if not judged_run.reason}
    return [
        judged_run.run
        for judged_run in judged
        if not judged_run.reason or judged_run.run.share not in good
    ]


def _explain_outlier(run: Run, contended: Sequence[JudgedRun]) -> str:
    """Why an uncontended run is outlying; `contended` has all runs, judged by contention alone."""
    of_share = [other for other in contended if other.run.share == run.share]
    every = [other.run.completion for other in of_share]
    quiet = [other.run.completion for other in of_share if not other.reason]
    completions = min(every, quiet, key=median_low)
    middle = median_low(completions)
    spread = median_low(abs(completion - middle) for completion in completions)
    off = run.completion - middle
    if abs(off) <= max(_OUTLYING * middle, _DEVIATIONS * spread):
        return ""
    side = "above" if off > 0 else "below"
    took = f"{_format_run(run)} took {run.completion:.3g} s"
    return f"{took}, {abs(off) / middle:.0%} {side} the median of its share"


def _usual_wait_ratio(runs: Sequence[Run]) -> float | None:
    """Usual run delay per second of processor time; None with too few runs."""
    ratios = sorted(ratio for run in runs if (ratio := _wait_ratio(run)) < inf)
    return ratios[(len(ratios) - 1) // 4] if len(ratios) >= _FEW else None


def _wait_ratio(run: Run) -> float:
    """Run delay per second of processor time; infinite if not observed."""
    return run.run_delay_s / run.cpu_s if run.run_delay_s is not None and run.cpu_s else inf


def _explain_contention(run: Run, usual: float | None, least: float) -> str:
    """Why a run is contended; `least` is the least wait ratio of its share."""
    if usual is None or run.run_delay_s is None or run.cpu_s is None:
        return ""
    usual_s = max(usual, least) * run.cpu_s
    excess_s = run.run_delay_s - usual_s
    if excess_s <= _CONTENDED * run.completion + _SCATTER * usual_s:
        return ""
    return f"{_format_run(run)} waited {excess_s:.2g} s longer for a processor than is usual"


def _format_run(run: Run) -> str:
    return f"run {run.repetition + 1} at {100 * run.share:g} %"


# ---- Time -------------------------------------------------------------------------------------


def time_left_s(plan: Plan, runs: Sequence[Run], guess_s: Callable[[float], float]) -> float:
    """Time of the remaining planned runs; `guess_s` estimates shares that have not run yet."""
    return sum(predict_s(share, runs, guess_s) for share in plan.order[len(runs) :])


def predict_s(share: float, runs: Sequence[Run], guess_s: Callable[[float], float]) -> float:
    completions = [run.completion for run in runs if run.share == share]
    return median_low(completions) if completions else guess_s(share)
