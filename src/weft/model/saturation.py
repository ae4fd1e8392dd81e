"""Latency of a probe beside load, finite at saturation.

With u = load / capacity, the probe takes

    L(u) = base + wait·u / (1 − u + 1/window).

wait·u/(1 − u) is the queue of a server that is busy for the share u of the time, where `wait` is
what arrives at once: a message, or a burst of each sender. The load's own windows cut it off: when
all are full, `window` such bursts stand before the probe, and L(1) = base + wait·window. A load
that folds back (more offered, less achieved, more latency) has two latencies at one load; a
function of the load gives one between them. Entry points: `saturation`, `doubling_load_MBps`.
Units: us; MB/s (10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import numpy as np

from weft.errors import InputError
from weft.model.fit import Fit, FloatArray, Form, Input, Unknown


def saturation(capacity_MBps: float, *, unloaded_us: float = 10.0) -> Form:
    """The latency beside a load of a path that carries `capacity_MBps`; base starts at a guess."""
    if not (isfinite(capacity_MBps) and capacity_MBps > 0):
        raise InputError("saturation", f"capacity {capacity_MBps:g} MB/s", "give one above 0")

    def evaluate(p: Mapping[str, float], x: Mapping[str, FloatArray]) -> FloatArray:
        busy = np.minimum(x["load_MBps"] / capacity_MBps, 1.0)
        queue = busy / (1.0 - busy + 1.0 / p["window"])
        return np.asarray(p["base_us"] + p["wait_us"] * queue)

    return Form(
        name="saturation",
        formula=f"base + wait·u/(1 − u + 1/window), u = load/{capacity_MBps:.6g} MB/s, at most 1",
        source="queue of one server, cut off by the finite windows of the load",
        unit="us",
        unknowns=(
            Unknown(name="base_us", unit="us", meaning="without load", start=unloaded_us),
            Unknown(
                name="wait_us",
                unit="us",
                meaning="to serve what the load brings at once",
                start=0.3 * unloaded_us,
            ),
            Unknown(
                name="window",
                unit="",
                meaning="how often that stands in the queue when the load's windows are full",
                start=3.0,
                low=0.01,
            ),
        ),
        inputs=(
            Input(name="load_MBps", unit="MB/s", meaning="bytes of load that arrive, in 10^6/s"),
        ),
        evaluate=evaluate,
    )


def doubling_load_MBps(fit: Fit, capacity_MBps: float) -> float | None:
    """The load at which the latency is twice the unloaded one; None if not even at capacity."""

    def excess_us(load_MBps: float) -> float:
        return float(fit.predict(extrapolate=True, load_MBps=load_MBps)) - 2.0 * unloaded_us

    from scipy.optimize import brentq  # see weft.model.fit

    unloaded_us = float(fit.predict(extrapolate=True, load_MBps=0.0))
    if excess_us(capacity_MBps) < 0:
        return None
    return float(brentq(excess_us, 0.0, capacity_MBps))
