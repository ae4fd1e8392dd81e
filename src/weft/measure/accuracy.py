"""How accurate each estimator is: its samples on the delay transport beside the injected times.

Every message has a known time, drawn from the seed, and its sample is put beside it. When the host
takes the core away just when a message is due, no program can see it in time. The transport reports
how late it delivered such a message, and how long the program was away before it posted it and
after it was given it; where that is more than the tolerance, the message is left out of the
undisturbed figures. `measure_omission` shows what a closed loop misses of a wire that stalls. Entry
points: `judge_estimators`, `measure_omission`. Units: ps.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft.measure.peer.channel_spec import build_loop_spec
from weft.measure.rig import CONNECT_MS, FAR_ADDRESS, open_endpoint
from weft.records import Distribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Times = NDArray[np.int64]
Delay = Mapping[str, Any]  # fields of DelayConfig

ORDERS = ("wire-first", "loopback-first", "alternating")
QUANTILES = (0.5, 0.999)
TOLERANCE = 0.01  # of the truth that an estimate may be off by
LOOP_PS = 150_000  # and what a loop of ours itself may take per message: post, poll, clock
# Medians of 40 µs with a tail twice as long: large against a poll, and 15000 of them within 0.8 s.
WIRE = "lognormal(20 us, 0.3)"
# About what a host and its PCIe add, with the tail of an interrupt now and then.
HOST = {"host_post": "5 us + exponential(1 us)", "host_complete": "2 us + exponential(200 ns)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An estimator's samples, and the true times of the same messages in the same order."""

    estimator: str
    target: str  # what it is meant to find
    samples_ps: Times
    truth_ps: Times
    late_ps: Times  # by which the host's absence made each sample longer

    @property
    def undisturbed(self) -> NDArray[np.bool_]:
        """Messages for which the host was less late than the tolerance of p99.9."""
        return self.late_ps < TOLERANCE * quantile(self.truth_ps, QUANTILES[-1])

    def quantile_pair_ps(self, q: float, *, every: bool = False) -> tuple[float, float]:
        """The quantile of the samples and of the truth, of `every` message or the undisturbed."""
        keep = np.ones_like(self.undisturbed) if every else self.undisturbed
        return quantile(self.samples_ps[keep], q), quantile(self.truth_ps[keep], q)

    def is_accurate(self) -> bool:
        """Median and p99.9 are within 1 % of the truth, the clock's error and a loop's own time."""
        clock = _core.Clock.shared()
        pairs = [self.quantile_pair_ps(q) for q in QUANTILES]
        share, fixed_ps = TOLERANCE + clock.error_ppm * 1e-6, clock.step_ps + LOOP_PS
        return all(abs(estimate - truth) <= share * truth + fixed_ps for estimate, truth in pairs)


def quantile(values: Times, q: float) -> float:
    """The ceil(q n)-th smallest, as the histograms have it."""
    rank = max(0, int(np.ceil(q * len(values))) - 1)
    return float(np.partition(values, rank)[rank])


def judge_estimators(messages: int = 15_000, seed: int = 1) -> Iterator[Judgement]:
    """Every latency estimator in turn on the delay transport."""
    delay = {"wire": WIRE, **HOST, "seed": seed}
    echo_delay = {**delay, "remote_host": "exponential(1 us)"}
    yield judge_ping_pong(echo_delay, messages)
    for op in ("write", "read", "fetch-add"):
        yield judge_completion({**delay, "remote_memory": "1 us"}, messages, op)
    for order in ORDERS:
        rperf, post_poll = judge_rperf(delay, messages, order)
        yield rperf
        if order == ORDERS[0]:
            yield post_poll
    yield judge_paced(echo_delay, messages, rate=20_000.0)


@contextmanager
def use_realtime() -> Iterator[None]:
    """Real-time priority where we may have it. Linux gives others their share after 0.95 s."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)
        time.sleep(0.1)


@contextmanager
def open_delay_endpoints(
    fields: Mapping[str, Any], delay: Mapping[str, Any], *, loopback: bool = False
) -> Iterator[list[_core.Endpoint]]:
    """A connected endpoint of the delay transport and, if wanted, its loopback."""
    with ExitStack() as stack:
        ends = []
        for to_itself in (False, True)[: 1 + loopback]:
            end = open_endpoint({**fields, "transport": "delay", "delay": delay})
            stack.callback(end.close)
            end.connect(end.address() if to_itself else FAR_ADDRESS, CONNECT_MS)
            ends.append(end)
        yield ends


def judge_ping_pong(delay: Delay, messages: int) -> Judgement:
    """Half the round trip."""
    with open_delay_endpoints({}, {**delay, "samples": messages}) as (end,), use_realtime():
        run = _core.ping_pong(
            end, build_loop_spec(count=messages, samples=messages), _core.StopFlag()
        )
        truth = _core.delay_truth(end)
    return Judgement(
        estimator="ping-pong",
        target="half the time to the echo",
        samples_ps=run.samples,
        truth_ps=truth.echo_samples // 2,
        late_ps=_arrival_lateness(truth) // 2,
    )


def judge_completion(delay: Delay, messages: int, op: str) -> Judgement:
    """Post to completion, one operation at a time."""
    delay = {**delay, "peer": "sink", "samples": messages}
    with open_delay_endpoints({"remote_bytes": 64}, delay) as (end,), use_realtime():
        spec = build_loop_spec(count=messages, samples=messages, op=op)
        run = _core.complete(end, spec, _core.StopFlag())
        truth = _core.delay_truth(end)
    return Judgement(
        estimator=f"completion of {op}",
        target="post to completion",
        samples_ps=run.samples,
        truth_ps=truth.completion_samples,
        late_ps=_completion_lateness(truth),
    )


def judge_rperf(delay: Delay, messages: int, order: str) -> tuple[Judgement, Judgement]:
    """RPerf, and the plain post-poll estimate of the same messages."""
    delay = {**delay, "peer": "sink", "samples": messages}
    both = open_delay_endpoints({"receive_depth": 4}, delay, loopback=True)
    with both as (wire, loopback), use_realtime():
        spec = build_loop_spec(count=messages, samples=messages)
        run = _core.post_poll(wire, loopback, spec, order, 0.0, _core.StopFlag())
        truth, near = _core.delay_truth(wire), _core.delay_truth(loopback)
    late = _completion_lateness(truth)
    rperf = Judgement(
        estimator=f"RPerf, {order}",
        target="round trip on the wire",
        samples_ps=run.samples,
        truth_ps=truth.wire_rtt_samples,
        late_ps=take_longest(late, near.completion_late_samples, near.completion_away_samples),
    )
    post_poll = Judgement(
        estimator="post-poll",
        target="post to completion",
        samples_ps=run.samples + run.loopback_samples,
        truth_ps=truth.completion_samples,
        late_ps=late,
    )
    return rperf, post_poll


def judge_paced(delay: Delay, messages: int, rate: float) -> Judgement:
    """Open loop, Poisson, from the intended time."""
    delay = {**delay, "samples": messages}
    with (
        open_delay_endpoints({"depth": 256, "receive_depth": 256}, delay) as (end,),
        use_realtime(),
    ):
        spec = build_loop_spec(count=messages, samples=messages)
        run = _core.paced(end, spec, _core.StopFlag(), rate=rate, poisson=True, window=256)
        truth = _core.delay_truth(end)
    return Judgement(
        estimator="paced",
        target="half the time from the intended send to the echo",
        samples_ps=run.samples,
        truth_ps=truth.echo_samples // 2,
        late_ps=take_longest(run.late_ps, _arrival_lateness(truth) // 2),
    )


def take_longest(*times_ps: Times) -> Times:
    return functools.reduce(np.maximum, times_ps)


def _completion_lateness(truth: _core.DelayTruth) -> Times:
    return take_longest(
        truth.turnaround_samples, truth.completion_late_samples, truth.completion_away_samples
    )


def _arrival_lateness(truth: _core.DelayTruth) -> Times:
    return take_longest(
        truth.turnaround_samples, truth.arrival_late_samples, truth.arrival_away_samples
    )


STALL_EVERY_NS, STALL_NS = 100_000_000, 10_000_000
LEAST_WIRE_US, JITTER_US = 20.0, 5.0  # least, and the mean of what is added; each way
PACED_RATE = 10_000.0
WINDOW = 512
PART_NS = 5 * STALL_EVERY_NS  # below what a real-time thread may take at a stretch
SAMPLES = 2_000_000  # of what was injected: 1e-5 is 20 samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Omission:
    """Round trips of the same wire, seen in three ways."""

    closed: Distribution
    open: Distribution
    injected: Distribution


def measure_omission(parts: int = 8, seed: int = 1) -> Omission:
    """Ping-pong and an open loop for 0.5 s each, in turn, `parts` times."""
    closed_loop, open_loop = _core.Histogram(), _core.Histogram()
    for part in range(parts):
        delay = {
            "wire": f"{LEAST_WIRE_US} us + exponential({JITTER_US} us)",
            "stall_every_ns": STALL_EVERY_NS,
            "stall_ns": STALL_NS,
            "seed": seed + part,
        }
        closed_loop.merge(_double(_run_closed_loop(delay)))
        open_loop.merge(_double(_run_open_loop(delay)))
    return Omission(
        closed=Distribution("ps", closed_loop),
        open=Distribution("ps", open_loop),
        injected=Distribution("ps", build_injected(seed)),
    )


def _run_closed_loop(delay: Delay) -> NDArray[np.int64]:
    samples = PART_NS // 40_000
    with open_delay_endpoints({}, delay) as (end,), use_realtime():
        spec = build_loop_spec(duration_ns=PART_NS, samples=samples)
        return _core.ping_pong(end, spec, _core.StopFlag()).samples


def _run_open_loop(delay: Delay) -> NDArray[np.int64]:
    samples = int(PACED_RATE * PART_NS / 1e9) + 1
    with (
        open_delay_endpoints({"depth": WINDOW, "receive_depth": WINDOW}, delay) as (end,),
        use_realtime(),
    ):
        spec = build_loop_spec(duration_ns=PART_NS, samples=samples)
        return _core.paced(end, spec, _core.StopFlag(), rate=PACED_RATE, window=WINDOW).samples


def _double(half_ps: NDArray[np.int64]) -> _core.Histogram:
    histogram = _core.Histogram()
    histogram.record_many(np.ascontiguousarray(2 * half_ps))
    return histogram


def build_injected(seed: int) -> _core.Histogram:
    """Round trips of messages due at all times of a period, computed from the stalls."""
    rng = np.random.default_rng(seed)
    due = np.linspace(0, STALL_EVERY_NS * 1e3, SAMPLES, endpoint=False)
    moving = 2e6 * LEAST_WIRE_US + rng.exponential(1e6 * JITTER_US, (2, SAMPLES)).sum(axis=0)
    histogram = _core.Histogram()
    histogram.record_many(add_stalls(due, moving).astype(np.int64))
    return histogram


def add_stalls(due_ps: NDArray[np.float64], moving_ps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round trips of messages due at these times of a period, from their times without stalls.

    The wire moves at the start of each period and then stands still. A message due during the stall
    waits for its end; one that is on its way when the stall begins waits for all of it.
    """
    stall_start = (STALL_EVERY_NS - STALL_NS) * 1e3
    waits = np.where(due_ps >= stall_start, STALL_EVERY_NS * 1e3 - due_ps, 0.0)
    is_met = (due_ps < stall_start) & (due_ps + moving_ps >= stall_start)
    return moving_ps + waits + np.where(is_met, STALL_NS * 1e3, 0.0)


def draw_omission(ax: Axes, omission: Omission) -> None:
    """The tails of all three on one set of axes."""
    from weft.plot import cdf_tail  # matplotlib, only where something is drawn

    cdf_tail(
        ax,
        {
            "closed loop: ping-pong": omission.closed,
            "open loop: paced, from the intended time": omission.open,
            "injected": omission.injected,
        },
        "round trip",
    )
