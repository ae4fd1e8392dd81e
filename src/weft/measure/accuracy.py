"""How accurate each estimator is: its samples on the delay transport beside the injected times.

Every message has a known time, drawn from the seed, and its sample is put beside it. When the host
takes the core away just when a message is due, no program can see it in time. The transport reports
how late it delivered such a message and how long the program took to post the next; they are left
out of the undisturbed figures.
Entry point: `judge_estimators`. Units: ps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft.measure.rig import CONNECT_MS, FAR_ADDRESS, open_endpoint

Times = NDArray[np.int64]
Delay = Mapping[str, Any]  # fields of DelayConfig

ORDERS = ("wire-first", "loopback-first", "alternating")
QUANTILES = (0.5, 0.999)
SHARE = 0.01  # of the truth that an estimate may be off by
LOOP_PS = 150_000  # and what a loop of ours itself may take per message: post, poll, clock
DISTURBED_PS = 1_000_000  # handed over or posted this late: the host was elsewhere
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
    late_ps: Times  # how late the host was for each message

    @property
    def undisturbed(self) -> NDArray[np.bool_]:
        return self.late_ps < DISTURBED_PS

    def quantile_pair_ps(self, q: float, *, every: bool = False) -> tuple[float, float]:
        """The quantile of the samples and of the truth, of `every` message or the undisturbed."""
        keep = np.ones_like(self.undisturbed) if every else self.undisturbed
        return quantile(self.samples_ps[keep], q), quantile(self.truth_ps[keep], q)

    def is_accurate(self) -> bool:
        """Median and p99.9 are within 1 % of the truth, the clock's error and a loop's own time."""
        clock = _core.Clock.shared()
        pairs = [self.quantile_pair_ps(q) for q in QUANTILES]
        share, fixed_ps = SHARE + clock.error_ppm * 1e-6, clock.step_ps + LOOP_PS
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
def delay_endpoints(
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


def loop_spec(**fields: Any) -> _core.LoopSpec:
    spec = _core.LoopSpec()
    for name, value in fields.items():
        setattr(spec, name, value)
    return spec


def judge_ping_pong(delay: Delay, messages: int) -> Judgement:
    """Half the round trip."""
    with delay_endpoints({}, {**delay, "samples": messages}) as (end,), use_realtime():
        run = _core.ping_pong(end, loop_spec(count=messages, samples=messages), _core.StopFlag())
        truth = _core.delay_truth(end)
    return Judgement(
        estimator="ping-pong",
        target="half the time to the echo",
        samples_ps=run.samples,
        truth_ps=truth.echo_samples // 2,
        late_ps=np.maximum(truth.arrival_late_samples, truth.turnaround_samples),
    )


def judge_completion(delay: Delay, messages: int, op: str) -> Judgement:
    """Post to completion, one operation at a time."""
    delay = {**delay, "peer": "sink", "samples": messages}
    with delay_endpoints({"remote_bytes": 64}, delay) as (end,), use_realtime():
        spec = loop_spec(count=messages, samples=messages, op=op)
        run = _core.complete(end, spec, _core.StopFlag())
        truth = _core.delay_truth(end)
    return Judgement(
        estimator=f"completion of {op}",
        target="post to completion",
        samples_ps=run.samples,
        truth_ps=truth.completion_samples,
        late_ps=np.maximum(truth.completion_late_samples, truth.turnaround_samples),
    )


def judge_rperf(delay: Delay, messages: int, order: str) -> tuple[Judgement, Judgement]:
    """RPerf, and the plain post-poll estimate of the same messages."""
    delay = {**delay, "peer": "sink", "samples": messages}
    both = delay_endpoints({"receive_depth": 4}, delay, loopback=True)
    with both as (wire, loopback), use_realtime():
        spec = loop_spec(count=messages, samples=messages)
        run = _core.post_poll(wire, loopback, spec, order, 0.0, _core.StopFlag())
        truth, near = _core.delay_truth(wire), _core.delay_truth(loopback)
    late = np.maximum(truth.completion_late_samples, truth.turnaround_samples)
    rperf = Judgement(
        estimator=f"RPerf, {order}",
        target="round trip on the wire",
        samples_ps=run.samples,
        truth_ps=truth.wire_rtt_samples,
        late_ps=np.maximum(late, near.completion_late_samples),
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
    with delay_endpoints({"depth": 256, "receive_depth": 256}, delay) as (end,), use_realtime():
        spec = loop_spec(count=messages, samples=messages)
        run = _core.paced(end, spec, _core.StopFlag(), rate=rate, poisson=True, window=256)
        truth = _core.delay_truth(end)
    return Judgement(
        estimator="paced",
        target="half the time from the intended send to the echo",
        samples_ps=run.samples,
        truth_ps=truth.echo_samples // 2,
        late_ps=np.maximum(truth.arrival_late_samples, run.late_ps),
    )
