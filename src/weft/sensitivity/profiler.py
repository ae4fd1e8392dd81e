"""Profiles a command: a first run, then every run that is due, each logged as it ends.

**The schedule** is pure: everything follows from the plan and the finished runs, so that an
interrupted profile resumes as if it had not been interrupted. Each repetition runs every share
once, in its own random order; then rejected runs are repeated.

A run is **contended** if its processes waited for a processor longer than usual for this command,
by more than 5 % of its completion plus a tenth of what is usual. Processes of one command may wait
for each other, more at one share than at another; so usual is the lower quartile of all runs or the
least of the run's share, whichever is greater. A run is **outlying** if its completion is further
from the median of its share than 10 % and than three standard deviations (by the median absolute
deviation); if the share's uncontended runs have a lower median, theirs counts. Such runs are
rejected and repeated, at most as often as planned. Medians are the lower of the two middle values,
because disturbances only make runs slower.

**The profiler.** The caller supplies the function that runs the command at a share of the link and
the one that reports progress. The log has JSON lines: the plan, the first run with the estimate
from its trace, then each run. A line is on disk before the next run begins, so that a later process
can resume; a line cut short by a crash is overwritten. Nothing is written before the first run has
ended.
Entry points: `profile_command`, `forecast_time`, `RunLog`; `next_run`, `judge_runs`, `time_left_s`.
Units: seconds, bytes, bits per second; shares are fractions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from random import Random
from statistics import median_low
from typing import Any

from weft.errors import InputError
from weft.records import Plain, check_directory
from weft.records.schema import canonical_json, parse_object, report_malformed
from weft.records.store import explain_file_errors
from weft.sensitivity.application import Application, Profile, Run, check_name, fit_application
from weft.sensitivity.model import Hinges
from weft.sensitivity.run_command import CommandRun, build_trace
from weft.sensitivity.trace import Estimate, estimate
from weft.units import format_value

# ---- The schedule -----------------------------------------------------------------------------

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
    took = f"{_name_run(run)} took {run.completion:.3g} s"
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
    return f"{_name_run(run)} waited {excess_s:.2g} s longer for a processor than is usual"


def _name_run(run: Run) -> str:
    return f"run {run.repetition + 1} at {100 * run.share:g} %"


# ---- Time -------------------------------------------------------------------------------------


def time_left_s(plan: Plan, runs: Sequence[Run], guess_s: Callable[[float], float]) -> float:
    """Time of the remaining planned runs; `guess_s` estimates shares that have not run yet."""
    return sum(predict_s(share, runs, guess_s) for share in plan.order[len(runs) :])


def predict_s(share: float, runs: Sequence[Run], guess_s: Callable[[float], float]) -> float:
    completions = [run.completion for run in runs if run.share == share]
    return median_low(completions) if completions else guess_s(share)


# ---- The profiler -----------------------------------------------------------------------------

SCHEMA = 1
KIND = "profile"
_REMEDY = "profile with --restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRun:
    """The run before all others, with the whole link: it warms caches up and does not count.

    `traced` is the estimate from its trace, None where it could not be traced.
    """

    run: Run
    traced: Hinges | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContent:
    """The content of a log."""

    plan: Plan
    first: FirstRun | None = None
    runs: tuple[Run, ...] = ()


class RunLog:
    """The log of one plan: new, or resumed from a file of the same plan."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.logged = _read_log(path) or LogContent(plan=plan)
        _check_same(path, self.logged.plan, plan)

    @property
    def plan(self) -> Plan:
        """The plan, with the seed of the process that started the log."""
        return self.logged.plan

    def begin(self, first: FirstRun) -> None:
        check_directory(self.path.parent)
        head = {"weft": KIND, "schema": SCHEMA, "plan": asdict(self.plan)}
        self.logged = replace(self.logged, first=first)
        self._append(canonical_json(head), canonical_json({"first": asdict(first)}))

    def add(self, run: Run, because: str) -> None:
        self.logged = replace(self.logged, runs=(*self.logged.runs, run))
        self._append(canonical_json({"run": asdict(run), "because": because}))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _append(self, *lines: str) -> None:
        with explain_file_errors(self.path):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                os.lseek(handle, _count_complete_bytes(self.path), os.SEEK_SET)
                os.write(handle, "".join(f"{line}\n" for line in lines).encode())
                os.truncate(handle, os.lseek(handle, 0, os.SEEK_CUR))
                os.fsync(handle)
            finally:
                os.close(handle)


def _count_complete_bytes(path: Path) -> int:
    """Length up to the last complete line."""
    return path.read_bytes().rfind(b"\n") + 1


def _read_log(path: Path) -> LogContent | None:
    """None if there is no log, or one cut short before its first run."""
    if not path.exists():
        return None
    with explain_file_errors(path):
        lines = path.read_bytes()[: _count_complete_bytes(path)].splitlines()
    if len(lines) < 2:
        path.unlink()
        return None
    with report_malformed(str(path), "damaged", _REMEDY):
        head, first, *runs = map(parse_object, lines)
        if (head.get("weft"), head.get("schema")) != (KIND, SCHEMA):
            raise InputError(str(path), f"not a log of schema {SCHEMA} of weft profile", _REMEDY)
        return LogContent(
            plan=_read_plan(head["plan"]),
            first=_read_first(first["first"]),
            runs=tuple(Run(**line["run"]) for line in runs),
        )


def _read_plan(data: Mapping[str, Any]) -> Plan:
    lists = {name: tuple(data[name]) for name in ("command", "shares")}
    return Plan(**{**data, **lists})


def _read_first(data: Mapping[str, Any]) -> FirstRun:
    traced = data["traced"]
    return FirstRun(
        run=Run(**data["run"]),
        traced=None
        if traced is None
        else Hinges(terms=tuple((t, c) for t, c in traced["terms"]), floor=traced["floor"]),
    )


def _check_same(path: Path, logged: Plan, wanted: Plan) -> None:
    old, new = asdict(logged), asdict(wanted)
    # A log from before a field was kept has "" there.
    differ = [name for name in old if name != "seed" and old[name] not in ("", new[name])]
    if differ:
        problem = f"an unfinished profile with another {differ[0]}: {_format_field(old[differ[0]])}"
        raise InputError(str(path), problem, "give the same to go on with it, or --restart")


def _format_field(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


LEAST_S = 0.5
FIRST_LIMIT_S = 600.0
_SLOWER, _SPARE_S = 3, 10.0  # than if all of its time were communication
_FEW_BYTES = 0.01  # of what the link carries in the time

RunAt = Callable[
    [float, float, str], CommandRun
]  # share, seconds it may take, what to call it in errors
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeForecast:
    """Duration of a profile, first run included: expected, and bounds for any program."""

    runs: int
    expected_s: float
    least_s: float
    most_s: float


def profile_command(
    log: RunLog,
    run_at: RunAt,
    tell: Tell,
    *,
    timeout_s: float | None = None,
    machine: Mapping[str, Plain],
    date: str,
) -> Application:
    """Runs what the log lacks and fits the application."""
    first = log.logged.first or _run_first(log, run_at, tell, timeout_s)
    while (due := next_run(log.plan, log.logged.runs)) is not None:
        if due.because:
            tell(f"again at {100 * due.share:g} %: {due.because}")
        limit_s = timeout_s or _SLOWER * first.run.completion / due.share + _SPARE_S
        command_run = run_at(due.share, limit_s, _format_title(log.plan, due))
        run = command_run.at(due.share, due.repetition)
        log.add(run, due.because)
        tell(_format_progress(log, first, run))
    return fit_application(_build_profile(log, first, machine, date), first.traced)


def _run_first(log: RunLog, run_at: RunAt, tell: Tell, timeout_s: float | None) -> FirstRun:
    command_run = run_at(1.0, timeout_s or FIRST_LIMIT_S, f"{log.plan.command[0]}, first run")
    first, _ = read_first_run(log.plan, command_run, tell)
    log.begin(first)
    tell(f"first run, not counted: {_format_run(first.run)}")
    ahead_s = time_left_s(log.plan, (), _guess_time(first))
    tell(f"{len(log.plan.order)} runs to come: about {format_duration(ahead_s)}")
    return first


def read_first_run(
    plan: Plan, command_run: CommandRun, tell: Tell
) -> tuple[FirstRun, Estimate | None]:
    """The first run, and the estimate from its trace if there is one; refuses short runs."""
    if command_run.completion_s < LEAST_S:
        problem = f"took {command_run.completion_s:.2g} s, too short to measure"
        raise InputError(plan.command[0], problem, f"give it work for {LEAST_S:g} s or more")
    run = command_run.at(1.0, 0)
    try:
        estimated = estimate(build_trace(command_run.usage, plan.link_bps), plan.shares[0])
    except InputError as error:
        tell(f"no estimate from the first run: {error}")
        return FirstRun(run=run, traced=None), None
    return FirstRun(run=run, traced=estimated.model), estimated


def forecast_time(plan: Plan, first: FirstRun, estimated: Estimate | None) -> TimeForecast:
    """The duration of a profile, given its first run."""
    baseline_s = first.run.completion
    models = (
        (estimated.model, estimated.least, estimated.most)
        if estimated
        else _bound_any_program(plan.shares[0])
    )
    expected, least, most = (
        baseline_s * (1 + sum(float(model.slowdown(share)) for share in plan.order))
        for model in models
    )
    # Bounds that meet the expected time may differ from it by rounding.
    return TimeForecast(
        runs=len(plan.order),
        expected_s=expected,
        least_s=min(least, expected),
        most_s=max(most, expected),
    )


def _bound_any_program(floor: float) -> tuple[Hinges, Hinges, Hinges]:
    """Expected, least and most: all time is communication, none, all."""
    everything = Hinges(terms=((1.0, 1.0),), floor=floor)
    return everything, Hinges(terms=(), floor=floor), everything


def remaining_s(log: RunLog) -> float | None:
    """Time of the remaining planned runs; None before the first run."""
    first = log.logged.first
    return None if first is None else time_left_s(log.plan, log.logged.runs, _guess_time(first))


def _guess_time(first: FirstRun) -> Callable[[float], float]:
    baseline_s, traced = first.run.completion, first.traced
    if traced is None:
        return lambda share: baseline_s / share
    return lambda share: baseline_s * float(traced.slowdown(share))


# ---- Words ------------------------------------------------------------------------------------


def format_duration(seconds: float) -> str:
    """A duration such as 40 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _format_title(plan: Plan, due: DueRun) -> str:
    return f"{plan.command[0]}, run {due.repetition + 1} at {100 * due.share:g} %"


def _format_run(run: Run) -> str:
    parts = [f"{run.completion:.3g} s", _format_bytes(run)]
    parts += [f"CPU {run.cpu_s or 0:.2g} s", f"run delay {run.run_delay_s or 0:.2g} s"]
    return ", ".join(parts)


def _format_bytes(run: Run) -> str:
    """Bytes by direction if known: older logs have only the sum."""
    sent, received = run.sent_bytes, run.received_bytes
    if sent is None or received is None:
        return format_value(run.bytes or 0, "B")
    return f"{format_value(sent, 'B')} sent, {format_value(received, 'B')} received"


def _format_progress(log: RunLog, first: FirstRun, run: Run) -> str:
    done, planned = len(log.logged.runs), len(log.plan.order)
    left_s = time_left_s(log.plan, log.logged.runs, _guess_time(first))
    if left_s == 0 and (due := next_run(log.plan, log.logged.runs)) is not None:
        left_s = predict_s(due.share, log.logged.runs, _guess_time(first))
    count = f"{done} of {max(planned, done)}"
    share = f"{100 * run.share:g} %"
    return f"{count:>9}  {share:>5}: {_format_run(run)}; {format_duration(left_s)} left"


# ---- The profile ------------------------------------------------------------------------------


def _build_profile(
    log: RunLog, first: FirstRun, machine: Mapping[str, Plain], date: str
) -> Profile:
    plan, runs = log.plan, log.logged.runs
    judged = judge_runs(runs)
    return Profile(
        name=plan.name,
        runs=tuple(sorted(select_good_runs(runs), key=lambda run: run.share)),
        command=plan.command,
        link_bps=plan.link_bps,
        machine={"place": plan.place, **machine},
        date=date,
        notes=(
            *_list_rejected(judged),
            *_list_shortages(plan, judged),
            *_warn_few_bytes(plan, first),
        ),
    )


def _list_rejected(judged: Sequence[JudgedRun]) -> list[str]:
    good = {judged_run.run.share for judged_run in judged if not judged_run.reason}
    return [
        f"set aside: {judged_run.reason}"
        for judged_run in judged
        if judged_run.reason and judged_run.run.share in good
    ]


def _list_shortages(plan: Plan, judged: Sequence[JudgedRun]) -> list[str]:
    notes = []
    for share in plan.shares:
        of_share = [judged_run for judged_run in judged if judged_run.run.share == share]
        good = sum(not judged_run.reason for judged_run in of_share)
        if good < plan.repeat:
            kept_all = "" if good else ", all kept"
            notes.append(f"{100 * share:g} %: {good} of {len(of_share)} runs are good{kept_all}")
    return notes


def _warn_few_bytes(plan: Plan, first: FirstRun) -> list[str]:
    room = plan.link_bps / 8 * first.run.completion
    if (first.run.bytes or 0) >= _FEW_BYTES * room:
        return []
    return [f"moved {format_value(first.run.bytes or 0, 'B')} in a run: is it the right interface?"]
