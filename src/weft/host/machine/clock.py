"""The clock of every measurement and how far it can be trusted. Entry point: `clock`."""

from __future__ import annotations

from dataclasses import dataclass

from weft._core import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """`step_ns` is the usual step between two readings: single times below it mean nothing."""

    source: str
    hz: float
    error_ppm: float
    step_ns: float
    read_ns: float
    invariant: bool
    reason: str


def read_clock() -> ClockFacts:
    """Of the process-wide clock; its calibration takes 0.1 s the first time."""
    shared = Clock.shared()
    invariant, reason = Clock.invariant()
    return ClockFacts(
        source=Clock.source(),
        hz=shared.hz,
        error_ppm=shared.error_ppm,
        step_ns=shared.step_ps / 1000,
        read_ns=shared.read_ps / 1000,
        invariant=invariant,
        reason=reason,
    )
