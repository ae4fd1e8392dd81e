"""Profiles a command: a first run, then what is due until nothing is, each run logged as it ends.

How a command is run at a share of the link comes in as a function, and what people are told goes
out through one. Entry points: `profiled`, `foreseen`. Units: seconds; shares are fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.records import Plain
from weft.sensitivity.application import Application, application_of
from weft.sensitivity.model import Hinges
from weft.sensitivity.profile import Profile, Run
from weft.sensitivity.record_trace import trace_of
from weft.sensitivity.run_command import Ran
from weft.sensitivity.run_log import First, RunLog
from weft.sensitivity.schedule import Judged, Next, Plan, expected_s, judged, kept, left_s, next_run
from weft.sensitivity.trace import Estimate, estimate
from weft.units import format_value

LEAST_S = 0.5
FIRST_LIMIT_S = 600.0
_SLOWER, _SPARE_S = 3, 10.0  # than if all of its time were communication
_FEW_BYTES = 0.01  # of what the link carries in the time

RunAt = Callable[[float, float, str], Ran]  # share, seconds it may take, what to call it in errors
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """How long a profile takes, the first run too: as expected, and bounds for any program."""

    runs: int
    expected_s: float
    least_s: float
    most_s: float


def profiled(
    log: RunLog,
    run_at: RunAt,
    tell: Tell,
    *,
    timeout_s: float | None = None,
    machine: Mapping[str, Plain],
    date: str,
) -> Application:
    """Runs what the log lacks; the application, once its profile is complete."""
    first = log.logged.first or _begin(log, run_at, tell, timeout_s)
    while (due := next_run(log.plan, log.logged.runs)) is not None:
        if due.because:
            tell(f"again at {100 * due.share:g} %: {due.because}")
        limit_s = timeout_s or _limit_s(first, due.share)
        ran = run_at(due.share, limit_s, _called(log.plan, due))
        run = ran.at(due.share, due.repetition)
        log.add(run, due.because)
        tell(_told(log, first, run))
    return application_of(_profile(log, first, machine, date), first.traced)


def _begin(log: RunLog, run_at: RunAt, tell: Tell, timeout_s: float | None) -> First:
    ran = run_at(1.0, timeout_s or FIRST_LIMIT_S, f"{log.plan.command[0]}, first run")
    first, _ = first_of(log.plan, ran, tell)
    log.begin(first)
    tell(f"first run, not counted: {_took(first.run)}")
    ahead_s = left_s(log.plan, (), _guess(first))
    tell(f"{len(log.plan.order)} runs to come: about {duration(ahead_s)}")
    return first


def first_of(plan: Plan, ran: Ran, tell: Tell) -> tuple[First, Estimate | None]:
    """The first run, if it can be measured, and what its trace tells, if it does."""
    if ran.completion_s < LEAST_S:
        problem = f"took {ran.completion_s:.2g} s, too short to measure"
        raise InputError(plan.command[0], problem, f"give it work for {LEAST_S:g} s or more")
    run = ran.at(1.0, 0)
    try:
        found = estimate(trace_of(ran.watched, plan.link_bps), plan.shares[0])
    except InputError as error:
        tell(f"no estimate from the first run: {error}")
        return First(run=run, traced=None), None
    return First(run=run, traced=found.model), found


def foreseen(plan: Plan, first: First, found: Estimate | None) -> Foreseen:
    """The time of a profile of which only the first run has been made."""
    whole_s = first.run.completion
    models = (found.model, found.least, found.most) if found else _any_program(plan.shares[0])
    expected, least, most = (
        whole_s * (1 + sum(float(model.slowdown(share)) for share in plan.order))
        for model in models
    )
    return Foreseen(runs=len(plan.order), expected_s=expected, least_s=least, most_s=most)


def _any_program(floor: float) -> tuple[Hinges, Hinges, Hinges]:
    """All of its time may be communication, or none; the former is what is expected."""
    everything = Hinges(terms=((1.0, 1.0),), floor=floor)
    return everything, Hinges(terms=(), floor=floor), everything


def remaining_s(log: RunLog) -> float | None:
    """What the planned runs still take; None before the first run."""
    first = log.logged.first
    return None if first is None else left_s(log.plan, log.logged.runs, _guess(first))


def _guess(first: First) -> Callable[[float], float]:
    whole_s, traced = first.run.completion, first.traced
    if traced is None:
        return lambda share: whole_s / share
    return lambda share: whole_s * float(traced.slowdown(share))


def _limit_s(first: First, share: float) -> float:
    return _SLOWER * first.run.completion / share + _SPARE_S


# ---- Words ------------------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """As people say it: 40 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _called(plan: Plan, due: Next) -> str:
    return f"{plan.command[0]}, run {due.repetition + 1} at {100 * due.share:g} %"


def _took(run: Run) -> str:
    parts = [f"{run.completion:.3g} s", _moved(run)]
    parts += [f"CPU {run.cpu_s or 0:.2g} s", f"run delay {run.run_delay_s or 0:.2g} s"]
    return ", ".join(parts)


def _moved(run: Run) -> str:
    """As far as it is known: a log from before they were counted apart has the sum alone."""
    sent, received = run.sent_bytes, run.received_bytes
    if sent is None or received is None:
        return format_value(run.bytes or 0, "B")
    return f"{format_value(sent, 'B')} sent, {format_value(received, 'B')} received"


def _told(log: RunLog, first: First, run: Run) -> str:
    done, planned = len(log.logged.runs), len(log.plan.order)
    left = left_s(log.plan, log.logged.runs, _guess(first))
    if left == 0 and (due := next_run(log.plan, log.logged.runs)) is not None:
        left = expected_s(due.share, log.logged.runs, _guess(first))
    count = f"{done} of {max(planned, done)}"
    share = f"{100 * run.share:g} %"
    return f"{count:>9}  {share:>5}: {_took(run)}; {duration(left)} left"


# ---- The profile ------------------------------------------------------------------------------


def _profile(log: RunLog, first: First, machine: Mapping[str, Plain], date: str) -> Profile:
    plan, runs = log.plan, log.logged.runs
    found = judged(runs)
    return Profile(
        name=plan.name,
        runs=tuple(sorted(kept(runs), key=lambda run: run.share)),
        command=plan.command,
        link_bps=plan.link_bps,
        machine={"place": plan.place, **machine},
        date=date,
        notes=(*_set_aside(found), *_short_of(plan, found), *_few_bytes(plan, first)),
    )


def _set_aside(found: Sequence[Judged]) -> list[str]:
    good = {one.run.share for one in found if not one.reason}
    return [f"set aside: {one.reason}" for one in found if one.reason and one.run.share in good]


def _short_of(plan: Plan, found: Sequence[Judged]) -> list[str]:
    notes = []
    for share in plan.shares:
        of_share = [one for one in found if one.run.share == share]
        good = sum(not one.reason for one in of_share)
        if good < plan.repeat:
            kept_all = "" if good else ", all kept"
            notes.append(f"{100 * share:g} %: {good} good runs of {len(of_share)}{kept_all}")
    return notes


def _few_bytes(plan: Plan, first: First) -> list[str]:
    room = plan.link_bps / 8 * first.run.completion
    if (first.run.bytes or 0) >= _FEW_BYTES * room:
        return []
    return [f"moved {format_value(first.run.bytes or 0, 'B')} in a run: is it the right interface?"]
