"""Sensitivity from the trace of one run: what would it take at a smaller share of the link?

A trace has, for each short interval of a run with the whole link, the bytes sent and received and
the processor time used. In an interval of length τ the link is busy for u (the busier direction)
and the processors for a. Of these

    overlapped  o = max(0, u + a − τ), the least that the interval allows
    exposed     e = u − o: the program waits for the network, so it takes e/b at the share b
    the rest    w = τ − e: computing, or idle; it takes as long at any share

Overlapped bytes enter the network when the trace shows them and leave at the share's rate. The
program waits for them at its next **barrier**, an interval in which it mostly waits for the network
(e > τ/2), or at its end. From one barrier to the next this takes the most, over all moments s, of
(time computed before s + overlapped bytes after s / b): lines in 1/b. So the estimate is decreasing
and convex in b and 1 at b = 1; it is a `Hinges`.

The truth lies between `least` (all communication hides behind all else) and `most` (none does),
whatever the program, if it moves the same bytes. What a trace cannot tell: a program that polls
looks busy while it waits; a peer that sends slowly looks like a program that pauses.
Entry points: `estimate`, `find_phases`.
Units: seconds, bytes, bits per second; shares are fractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite
from typing import Literal

import numpy as np

from weft.errors import InputError
from weft.sensitivity.model import FloatArray, Hinges

Kind = Literal["communication", "computation", "overlap", "idle"]
FLOOR = 0.05
_BARRIER = 0.5  # of an interval: so much of it spent waiting for the network
_BUSY = 0.1  # of an interval: a link or processor used less counts as quiet, in naming phases
_LOST = 0.05  # of all bytes: more than the link can carry means a wrong link rate
_NEAR = 0.01  # relative; hinges closer than this are one
_NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """One run with the whole link, interval by interval.

    `cpu_s` is time on a processor, or ready and waiting for one; `cores` is how many processors'
    worth of it the program uses when it computes.
    """

    duration_s: FloatArray
    sent_bytes: FloatArray
    received_bytes: FloatArray
    cpu_s: FloatArray
    link_bps: float
    cores: float = 1.0

    def __post_init__(self) -> None:
        columns = (self.duration_s, self.sent_bytes, self.received_bytes, self.cpu_s)
        if len({column.shape for column in columns}) > 1 or self.duration_s.ndim != 1:
            raise InputError("trace", "columns of different length", "give one row per interval")
        if not self.duration_s.size or not (self.duration_s > 0).all():
            raise InputError("trace", "an interval has no length", "give positive durations")
        if not all(np.isfinite(column).all() and (column >= 0).all() for column in columns):
            raise InputError("trace", "a negative or infinite value", "record it again")
        for name, value in (("link rate", self.link_bps), ("cores", self.cores)):
            if not (isfinite(value) and value > 0):
                raise InputError("trace", f"{name} {value:g}", "give a positive number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Consecutive intervals of one kind; `link` and `processor` are the parts of it in use."""

    kind: Kind
    start_s: float
    duration_s: float
    link: float
    processor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Slowdown estimated from one run, bounds that hold for any program, and where time went."""

    model: Hinges
    least: Hinges
    most: Hinges
    exposed_s: float
    overlapped_s: float
    computing_s: float  # without communication beside it
    idle_s: float


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Of each interval: its length, link and processor in use, overlapped, exposed, the rest."""

    length: FloatArray
    link: FloatArray
    processor: FloatArray
    overlapped: FloatArray
    exposed: FloatArray
    rest: FloatArray


def estimate(trace: Trace, floor: float = FLOOR) -> Estimate:
    """How much slower the run would be at smaller shares of the link, down to the floor."""
    parts = _split_intervals(trace)
    whole = float(parts.length.sum())
    exposed, link = float(parts.exposed.sum()), float(parts.link.sum())
    terms = [(1.0, exposed / whole)]
    for start, end in _between_barriers(parts):
        bends = _find_bends(parts.rest[start:end], parts.overlapped[start:end], 1 / floor)
        terms += [(1 / x, slope * x / whole) for x, slope in bends]
    overlapped, used = float(parts.overlapped.sum()), float(parts.processor.sum())
    return Estimate(
        model=Hinges(terms=_join_terms(terms), floor=floor),
        least=Hinges(terms=_join_terms([(min(1.0, link / whole), 1.0)]), floor=floor),
        most=Hinges(terms=_join_terms([(1.0, link / whole)]), floor=floor),
        exposed_s=exposed,
        overlapped_s=overlapped,
        computing_s=used - overlapped,
        idle_s=max(0.0, whole - used - exposed),
    )


def find_phases(trace: Trace) -> tuple[Phase, ...]:
    """The run as phases of communication, computation and overlap."""
    parts = _split_intervals(trace)
    kinds = [
        _name_phase(u, a)
        for u, a in zip(parts.link / parts.length, parts.processor / parts.length, strict=True)
    ]
    starts = np.concatenate([[0.0], np.cumsum(parts.length)])
    phases, first = [], 0
    for kind, members in groupby(kinds):
        last = first + len(list(members))
        length = float(parts.length[first:last].sum())
        phases.append(
            Phase(
                kind=kind,
                start_s=float(starts[first]),
                duration_s=length,
                link=float(parts.link[first:last].sum()) / length,
                processor=float(parts.processor[first:last].sum()) / length,
            )
        )
        first = last
    return tuple(phases)


def _name_phase(link: float, processor: float) -> Kind:
    if link < _BUSY:
        return "computation" if processor >= _BUSY else "idle"
    return "overlap" if link + processor > 1 + _BUSY else "communication"


# ---- Intervals --------------------------------------------------------------------------------


def _split_intervals(trace: Trace) -> _Intervals:
    length = trace.duration_s
    link = _link_time(trace)
    processor = np.minimum(trace.cpu_s / trace.cores, length)
    overlapped = np.clip(link + processor - length, 0.0, None)
    exposed = link - overlapped
    return _Intervals(length, link, processor, overlapped, exposed, length - exposed)


def _link_time(trace: Trace) -> FloatArray:
    """How long each interval's bytes take; what an interval cannot hold goes into the next ones.

    A token bucket lets a burst pass at once: on a wire it would have taken its time.
    """
    wanted = 8 * np.maximum(trace.sent_bytes, trace.received_bytes) / trace.link_bps
    used, waiting = np.empty_like(wanted), 0.0
    for n, (time, length) in enumerate(zip(wanted, trace.duration_s, strict=True)):
        used[n] = min(waiting + time, length)
        waiting += time - used[n]
    if waiting > _LOST * wanted.sum():
        problem = f"the bytes need {100 * wanted.sum() / trace.duration_s.sum():.0f} % of the link"
        raise InputError("trace", problem, "check the link rate")
    return used


def _between_barriers(parts: _Intervals) -> Iterator[tuple[int, int]]:
    """Ranges of intervals at whose end all bytes in flight must have arrived."""
    waits = np.flatnonzero(parts.exposed > _BARRIER * parts.length)
    start = 0
    for end in (*(int(n) + 1 for n in waits), parts.length.size):
        if end > start:
            yield start, end
        start = end


# ---- Lines in 1/b -----------------------------------------------------------------------------


def _find_bends(
    rest: FloatArray, overlapped: FloatArray, limit: float
) -> Iterator[tuple[float, float]]:
    """Where max over k of (rest before k + x · overlapped from k on) bends, for 1 <= x < limit.

    Each is (x, by how much the slope grows there).
    """
    before = np.concatenate([[0.0], np.cumsum(rest)])
    after = np.concatenate([np.cumsum(overlapped[::-1])[::-1], [0.0]])
    at = before.size - 1
    while True:
        steeper = np.flatnonzero(after[:at] > after[at] + _NEGLIGIBLE * after[0])
        if not steeper.size:
            return
        crossing = (before[at] - before[steeper]) / (after[steeper] - after[at])
        x = float(crossing.min())
        if x >= limit:
            return
        # of several lines through one point the steepest goes on
        to = int(steeper[np.flatnonzero(crossing <= x * (1 + _NEGLIGIBLE))[0]])
        yield max(1.0, x), float(after[to] - after[at])
        at = to


def _join_terms(terms: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Terms in descending order; those close together as one, of the same line below both."""
    joined: list[tuple[float, float]] = []
    for t, c in sorted(terms, reverse=True):
        if c <= _NEGLIGIBLE or t <= 0:
            continue
        if joined and t > joined[-1][0] * (1 - _NEAR):
            t0, c0 = joined.pop()
            t, c = (t0 * c0 + t * c) / (c0 + c), c0 + c
        joined.append((t, c))
    return tuple(joined)
