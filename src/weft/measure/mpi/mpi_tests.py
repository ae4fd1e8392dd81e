"""The tests of `weft.measure` over MPI: their settings as jobs, what two ranks saw as records.

Entry points: `check` before anything runs, `observe` for one point. Both are for rank 0 of a
`weft.measure.mpi.ranks()`; rank 1 is in `respond`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.errors import InputError
from weft.measure.mpi import Ranks, this_rank
from weft.measure.mpi.job import REFUSED, Counts, Job, LatencyResult, PacedResult
from weft.measure.observation import Observation, throughput, total
from weft.measure.rig import Rig
from weft.measure.settings.options import Settings, Windowed, changed, options_of
from weft.measure.tests.bandwidth import BandwidthSettings
from weft.measure.tests.latency import LatencySettings
from weft.measure.tests.latency import seen as seen_ping_pong
from weft.measure.tests.paced import PacedSettings
from weft.measure.tests.paced import seen as seen_paced
from weft.measure.tests.rma import RmaSettings, seen_timed, seen_windowed
from weft.measure.tests.streams import Streamed
from weft.measure.tests.streams import seen as seen_stream
from weft.records import Scalar

# Settings with a meaning here; the others are the MPI library's or mpirun's to choose.
KNOWN = (
    "over",
    "size_bytes",
    "count",
    "duration_ns",
    "warmup",
    "validate",
    "samples",
    "seed",
    "depth",
    "bidirectional",
    "op",
    "rate",
    "arrivals",
    "window",
)


def check(test: str, settings: Settings) -> None:
    """Refuse what a pair of ranks cannot do, and to run without one."""
    if test in REFUSED:
        raise InputError(f"{test} --over mpi", "is not possible", REFUSED[test])
    names = {field: name for name, (field, _) in options_of(type(settings)).items()}
    for field in changed(settings):
        if field not in KNOWN:
            remedy = "leave it out: mpirun and the library's environment choose that"
            raise InputError(f"--{names[field]}", "mpi has no such setting", remedy)
    if isinstance(settings, Windowed) and settings.rate:
        raise InputError("--rate", "mpi streams run as fast as they can", "use weft paced")
    if isinstance(settings, Streamed | PacedSettings | LatencySettings):
        _check_send(settings.op)
    this_rank()


def _check_send(op: str) -> None:
    if op != "send":
        raise InputError("--op", f"mpi has no {op}", "use send, or weft rma for one-sided ones")


def observe(test: str, rig: Rig, settings: Any) -> Observation:
    """One point, run by both ranks."""
    ranks = Ranks.here()
    rig.descriptions.append((ranks.describe(), {}))
    observed = OBSERVERS[test](ranks, settings)
    cost = ranks.python_cost_ns(settings.size_bytes)
    observed.quantities["python_cost"] = Scalar(cost, "ns")
    observed.notes.append(
        f"mpi: the loops are in Python, which takes some {cost:.0f} ns of a half round trip "
        "(one Send, one Recv and the clock with nothing sent)"
    )
    return observed


def _job(test: str, settings: Settings, **more: Any) -> Job:
    count, duration_ns = settings.until()
    return Job(
        test=test,
        size_bytes=settings.size_bytes,
        count=count,
        duration_ns=duration_ns,
        warmup=settings.warmup_messages,
        validate=settings.validate,
        samples=settings.samples,
        seed=settings.seed,
        **more,
    )


def _latency(ranks: Ranks, settings: Settings) -> Observation:
    result = ranks.run(_job("latency", settings)).result
    assert isinstance(result, LatencyResult)
    return seen_ping_pong(settings, result)


def _paced(ranks: Ranks, settings: PacedSettings) -> Observation:
    job = _job(
        "paced",
        settings,
        rate=settings.rate,
        window=settings.window,
        poisson=settings.arrivals == "poisson",
    )
    result = ranks.run(job).result
    assert isinstance(result, PacedResult)
    return seen_paced(settings, result)


def _stream(ranks: Ranks, settings: Streamed) -> Observation:
    if isinstance(settings, BandwidthSettings) and settings.bidirectional:
        return _both_ways(ranks, settings)
    outcome = ranks.run(_job("bandwidth", settings, window=settings.depth))
    assert isinstance(outcome.result, Counts)
    return seen_stream(settings, [outcome.result], [outcome.theirs])


def _both_ways(ranks: Ranks, settings: Streamed) -> Observation:
    outcome = ranks.run(_job("bidirectional", settings, window=settings.depth))
    assert isinstance(outcome.result, tuple)
    sent, received = outcome.result
    observed = seen_stream(settings, [sent], [outcome.theirs])
    back = total([received])
    observed.quantities |= throughput("back.throughput", back)
    observed.quantities |= throughput("both.throughput", total([outcome.theirs]), back)
    return observed


def _rma(ranks: Ranks, settings: RmaSettings) -> Observation:
    if settings.depth > 1:
        job = _job("rma-windowed", settings, window=settings.depth, operation=settings.op)
        done = ranks.run(job).result
        assert isinstance(done, Counts)
        return seen_windowed([done])
    result = ranks.run(_job("rma", settings, operation=settings.op)).result
    assert isinstance(result, LatencyResult)
    return seen_timed(settings, result)


OBSERVERS: dict[str, Callable[[Ranks, Any], Observation]] = {
    "latency": _latency,
    "paced": _paced,
    "bandwidth": _stream,
    "rate": _stream,
    "rma": _rma,
}
