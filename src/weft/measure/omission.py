"""Coordinated omission: what a closed loop does not see of a wire that stands still.

The delay transport's wire stops for 10 ms in every 100 ms. A closed loop has one message in it each
time and sends none while it waits: a stall is one slow sample among thousands. In an open loop one
message in ten meets a stall, and its latency counts from its intended time. What such a message
takes follows from the injected times alone: `Omission.injected`.
Entry points: `measure_omission`, `draw_omission`. Units: ps, round trips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft.measure.accuracy import Delay, delay_endpoints, loop_spec, use_realtime
from weft.plot import cdf_tail
from weft.records import Distribution

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EVERY_NS, STALL_NS = 100_000_000, 10_000_000
WIRE_US, JITTER_US = 20.0, 5.0  # least, and the mean of what is added; each way
RATE = 10_000.0
WINDOW = 512
PART_NS = 5 * EVERY_NS  # below what a real-time thread may take at a stretch
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
            "wire": f"{WIRE_US} us + exponential({JITTER_US} us)",
            "stall_every_ns": EVERY_NS,
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
    with delay_endpoints({}, delay) as (end,), use_realtime():
        spec = loop_spec(duration_ns=PART_NS, samples=samples)
        return _core.ping_pong(end, spec, _core.StopFlag()).samples


def _run_open_loop(delay: Delay) -> NDArray[np.int64]:
    samples = int(RATE * PART_NS / 1e9) + 1
    with (
        delay_endpoints({"depth": WINDOW, "receive_depth": WINDOW}, delay) as (end,),
        use_realtime(),
    ):
        spec = loop_spec(duration_ns=PART_NS, samples=samples)
        return _core.paced(end, spec, _core.StopFlag(), rate=RATE, window=WINDOW).samples


def _double(half_ps: NDArray[np.int64]) -> _core.Histogram:
    histogram = _core.Histogram()
    histogram.record_many(np.ascontiguousarray(2 * half_ps))
    return histogram


def build_injected(seed: int) -> _core.Histogram:
    """What a message takes that is due at any time, by the definition of the stalls."""
    rng = np.random.default_rng(seed)
    due = np.linspace(0, EVERY_NS * 1e3, SAMPLES, endpoint=False)
    moving = 2e6 * WIRE_US + rng.exponential(1e6 * JITTER_US, (2, SAMPLES)).sum(axis=0)
    histogram = _core.Histogram()
    histogram.record_many(add_stalls(due, moving).astype(np.int64))
    return histogram


def add_stalls(due_ps: NDArray[np.float64], moving_ps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round trips of messages due at these times of a period that move for so long.

    The wire moves at the start of each period and then stands still. A message due during the stall
    waits for its end; one that is on its way when the stall begins waits for all of it.
    """
    stall_start = (EVERY_NS - STALL_NS) * 1e3
    waits = np.where(due_ps >= stall_start, EVERY_NS * 1e3 - due_ps, 0.0)
    is_met = (due_ps < stall_start) & (due_ps + moving_ps >= stall_start)
    return moving_ps + waits + np.where(is_met, STALL_NS * 1e3, 0.0)


def draw_omission(ax: Axes, omission: Omission) -> None:
    """The tails of all three on one set of axes."""
    cdf_tail(
        ax,
        {
            "closed loop: ping-pong": omission.closed,
            "open loop: paced, from the intended time": omission.open,
            "injected": omission.injected,
        },
        "round trip",
    )
