"""How many messages to keep outstanding, and how often to signal.

The FDR study's equations, B messages of `size` bytes outstanding, a send queue of SQ entries:

    B = min(⌈3 Mi / size⌉, 128) up to 128 Ki, max(⌈4 Mi / size⌉, 2) above              (1)
    S = 1 for 16 Ki < size < 128 Ki, else min(SQ / 2, SQ − B)                          (2)

(2) is printed with min(B/2, 1) in its first case, which is 1 for every B of 2 or more. It gives 0
where B = SQ: that S is at least 1 is ours.

Their generalisation has the machine's own values, a `Pipe`: line rate R, cost m of each message,
base latency t (from posting a message to its credit, less its own time on the line), cache C:

    line time = m + size / R          what one message keeps the line, or its sender, busy
    covering  = ⌈t / line time⌉ + 1   the line never idles while the first one's credit is under way
    cached    = ⌊C / size⌋            more than that evict each other
    B         = max(2, min(covering, cached, most))
    S         = min(⌊SQ / 2⌋, SQ − B), and B − covering + 1 where credit comes with completions

Entry points: `equation_1`, `equation_2`, `best_outstanding`, `signaling_period`, `calibrate_pipe`.
Units: bytes, Gb/s, µs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.model.fit import Fit, FloatArray, Form, Input, Unknown, fit

KI, MI = 2**10, 2**20
SOURCE_1 = "FDR study (2014), Equation 1"
SOURCE_2 = "FDR study (2014), Equation 2"
SIZES = (32 * KI, 64 * MI)
"""The study sends messages of 32 Ki or more; 64 Mi is where its figures end."""
SMALL = 128 * KI
LEAST, MOST = 2, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipe:
    """What decides how many messages are needed, and how many are too many.

    Messages of up to `small_bytes` can use only `small_cache_bytes` of the cache.
    """

    line_rate_gbps: float
    base_latency_us: float
    message_us: float = 0.0
    cache_bytes: float = inf
    small_bytes: float = 0
    small_cache_bytes: float = inf
    most: int = MOST

    def __post_init__(self) -> None:
        for name in ("line_rate_gbps", "base_latency_us", "cache_bytes", "small_cache_bytes"):
            value = getattr(self, name)
            if not value > 0 or (name in ("line_rate_gbps", "base_latency_us") and value == inf):
                raise InputError("pipe", f"{name} is {value:g}", "use a finite number above 0")
        if not 0 <= self.message_us < inf:
            raise InputError("pipe", f"message_us is {self.message_us:g}", "use 0 or more")
        if self.most < LEAST:
            raise InputError("pipe", f"at most {self.most} outstanding", f"allow {LEAST} or more")

    def line_us(self, size_bytes: FloatArray) -> FloatArray:
        """What one message keeps the line, or its sender, busy."""
        return _line_us(size_bytes, self.line_rate_gbps, self.message_us)


FDR_STUDY = Pipe(
    line_rate_gbps=50.0,
    base_latency_us=600.0,
    cache_bytes=4 * MI,
    small_bytes=SMALL,
    small_cache_bytes=3 * MI,
)
"""With these the generalisation equals Equation 1 at every power of two from 32 Ki to 64 Mi.

The latency is not a measured one: any that puts more than 3.5 Mi in flight gives the same, as the
cache then decides. The study's own 10 Gb/s of single 32 Ki messages make it about 21 µs.
"""


def equation_1(size_bytes: npt.ArrayLike, *, extrapolate: bool = False) -> FloatArray:
    """The FDR study's best number of outstanding messages."""
    size = _check_sizes(size_bytes, extrapolate)
    small = np.minimum(np.ceil(3 * MI / size), MOST)
    return np.asarray(np.where(size <= SMALL, small, np.maximum(np.ceil(4 * MI / size), LEAST)))


def equation_2(
    size_bytes: npt.ArrayLike,
    outstanding: npt.ArrayLike,
    sq_depth: npt.ArrayLike,
    *,
    extrapolate: bool = False,
) -> FloatArray:
    """The FDR study's signaling period: every S-th message asks for a completion."""
    size = _check_sizes(size_bytes, extrapolate)
    period = _by_queue(*_queue(outstanding, sq_depth))
    every = (size > 16 * KI) & (size < SMALL)
    return np.asarray(np.where(every, 1.0, period))


def count_covering(size_bytes: npt.ArrayLike, pipe: Pipe) -> FloatArray:
    """The fewest outstanding messages with which the line is never idle."""
    return np.asarray(np.ceil(pipe.base_latency_us / pipe.line_us(_sizes(size_bytes))) + 1)


def count_cached(size_bytes: npt.ArrayLike, pipe: Pipe) -> FloatArray:
    """The most messages that the cache holds at once; 0 where one alone does not fit."""
    size = _sizes(size_bytes)
    cache = np.where(
        size <= pipe.small_bytes, min(pipe.small_cache_bytes, pipe.cache_bytes), pipe.cache_bytes
    )
    return np.asarray(np.floor(cache / size))


def best_outstanding(size_bytes: npt.ArrayLike, pipe: Pipe) -> FloatArray:
    """The fewest that cover the bandwidth-delay product, at most what the cache holds."""
    size = _sizes(size_bytes)
    within = np.minimum(np.minimum(count_covering(size, pipe), count_cached(size, pipe)), pipe.most)
    return np.asarray(np.maximum(within, LEAST))


def signaling_period(
    outstanding: npt.ArrayLike, sq_depth: npt.ArrayLike, *, needed: npt.ArrayLike | None = None
) -> FloatArray:
    """The largest period that neither fills the send queue nor holds back credit.

    `needed` is for senders that reuse a buffer when its completion is seen: of B outstanding,
    S − 1 may wait for the next signal while at least `needed` (see `count_covering`) go on.
    """
    messages, depth = _queue(outstanding, sq_depth)
    period = _by_queue(messages, depth)
    if needed is None:
        return period
    spare = messages - np.asarray(needed, dtype=np.float64) + 1
    return np.asarray(np.maximum(np.minimum(period, spare), 1.0))


def throughput_gbps(
    size_bytes: npt.ArrayLike, outstanding: npt.ArrayLike, pipe: Pipe
) -> FloatArray:
    """What B outstanding messages move while they stay within the cache."""
    size, messages = _sizes(size_bytes), np.asarray(outstanding, dtype=np.float64)
    return _throughput(size, messages, pipe.line_us(size), pipe.base_latency_us)


def _throughput(
    size: FloatArray, messages: FloatArray, line_us: FloatArray, base_us: float
) -> FloatArray:
    bits = size * 8e-3
    return np.asarray(np.minimum(bits / line_us, messages * bits / (base_us + line_us)))


def _line_us(size: FloatArray, line_rate_gbps: float, message_us: float) -> FloatArray:
    return message_us + size * 8e-3 / line_rate_gbps


def _by_queue(messages: FloatArray, depth: FloatArray) -> FloatArray:
    """At least two signals in a full queue, and room for all outstanding while one is awaited."""
    period = np.minimum(np.floor(depth / 2), depth - messages)
    return np.asarray(np.maximum(period, 1.0))


def _queue(outstanding: npt.ArrayLike, sq_depth: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    messages = np.asarray(outstanding, dtype=np.float64)
    depth = np.asarray(sq_depth, dtype=np.float64)
    if not np.all(messages >= 1):
        problem = f"{messages.min():g} messages"
        raise InputError("outstanding messages", problem, "keep 1 or more outstanding")
    short = np.broadcast_to(depth < messages, np.broadcast_shapes(depth.shape, messages.shape))
    if np.any(short):
        deep, many = (np.broadcast_to(x, short.shape)[short][0] for x in (depth, messages))
        problem = f"{deep:g} entries cannot hold {many:g} outstanding messages"
        raise InputError("send queue depth", problem, f"use {many:g} or more, or fewer messages")
    return messages, depth


def _sizes(size_bytes: npt.ArrayLike) -> FloatArray:
    size = np.asarray(size_bytes, dtype=np.float64)
    bad = size[~(np.isfinite(size) & (size > 0))]
    if bad.size:
        raise InputError("message size", f"{bad.ravel()[0]:g} B is not a size", "use 1 or more")
    return size


def _check_sizes(size_bytes: npt.ArrayLike, extrapolate: bool) -> FloatArray:
    size = _sizes(size_bytes)
    low, high = SIZES
    outside = size[(size < low) | (size > high)]
    if outside.size and not extrapolate:
        raise InputError(
            "message size",
            f"{outside.ravel()[0]:.10g} B is outside the study's {low} to {high} B",
            "stay within it, or say extrapolate=True (--extrapolate)",
        )
    return size


# ---- Calibration -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedPipe:
    """A pipe found from measured rows; the cache is infinite where no row lost anything to it."""

    pipe: Pipe
    fit: Fit


def calibrate_pipe(
    size_bytes: npt.ArrayLike,
    outstanding: npt.ArrayLike,
    observed_gbps: npt.ArrayLike,
    *,
    data: str,
    where: str = "outstanding messages",
) -> CalibratedPipe:
    """The machine's pipe from rows of (size, outstanding, throughput).

    The cache is a step, which no gradient finds: it is put where the residuals of a fit without
    one part best, and kept if it explains more than its two parameters cost (by BIC).
    """
    size, messages, observed = (
        np.asarray(column, dtype=np.float64) for column in (size_bytes, outstanding, observed_gbps)
    )
    rows = {"size_bytes": size, "outstanding": messages}
    fastest = float(np.max(observed, initial=0.0))
    fitted = fit(pipe_form(inf, fastest), rows, observed, data=data, where=where)
    best, volumes = inf, size * messages
    for _ in range(3):  # each fit with a cache shows better where the step is
        step = _step(volumes, _without_loss(fitted, volumes, best))
        if step is None or step == best:
            break
        stepped = fit(pipe_form(step, fastest), rows, observed, data=data, where=where)
        if _bic(stepped) >= _bic(fitted):
            break
        best, fitted = step, stepped
    return CalibratedPipe(pipe=_pipe_of(fitted, best), fit=fitted)


def pipe_form(cache_bytes: float, line_rate_gbps: float) -> Form:
    """Throughput by size and outstanding messages, for a cache of known size; the rate starts."""
    unknowns = [
        Unknown("line_rate_gbps", "Gb/s", "R: what a full line moves", line_rate_gbps, low=1e-9),
        Unknown(
            "base_latency_us", "us", "t: posting to credit, less its line time", 10.0, low=1e-6
        ),
        Unknown("message_us", "us", "m: line or sender busy with each message", 0.5),
    ]
    formula = "min(size / u, B · size / (t + u)), u = m + size / R"
    if isfinite(cache_bytes):
        meaning = f"share lost past the cache of {cache_bytes:.0f} B"
        unknowns.append(Unknown("loss", "", meaning, 0.05, high=0.95))
        formula += f", times 1 − loss where B · size > {cache_bytes:.0f} B"
    return Form(
        name="outstanding messages",
        formula=formula,
        source="weft; a loss past the cache as in the FDR study (2014), Section 3.4",
        unit="Gb/s",
        unknowns=tuple(unknowns),
        inputs=(
            Input("size_bytes", "B", "message size"),
            Input("outstanding", "", "B: messages outstanding"),
        ),
        evaluate=lambda values, rows: _evaluate(values, rows, cache_bytes),
    )


def _evaluate(
    values: Mapping[str, float], rows: Mapping[str, FloatArray], cache_bytes: float
) -> FloatArray:
    size, messages = rows["size_bytes"], rows["outstanding"]
    line_us = _line_us(size, values["line_rate_gbps"], values["message_us"])
    reached = _throughput(size, messages, line_us, values["base_latency_us"])
    return reached * np.where(size * messages > cache_bytes, 1 - values.get("loss", 0.0), 1.0)


def _without_loss(fitted: Fit, volumes: FloatArray, cache_bytes: float) -> FloatArray:
    """ln(observed / model), the model without its cache."""
    loss = fitted.values.get("loss", 0.0)
    return np.asarray(
        -np.log1p(fitted.residuals) + np.where(volumes > cache_bytes, np.log1p(-loss), 0.0)
    )


def _step(volumes: FloatArray, excess: FloatArray) -> float | None:
    """The volume beyond which the excess is lower by most; two rows or more on either side."""
    gains: dict[float, float] = {}
    for volume in np.unique(volumes):
        past = volumes > volume
        far, near = int(past.sum()), int((~past).sum())
        if far >= 2 and near >= 2:
            drop = float(excess[~past].mean() - excess[past].mean())
            gains[float(volume)] = drop * abs(drop) * far * near / (far + near)
    best = max(gains, key=lambda volume: gains[volume], default=None)
    return best if best is not None and gains[best] > 0 else None


def _bic(fitted: Fit) -> float:
    rows = fitted.residuals.size
    squared = max(float(np.sum(np.log1p(fitted.residuals) ** 2)), 1e-12 * rows)
    unknowns = len(fitted.parameters) + ("loss" in fitted.values)  # the cache's size counts too
    return rows * float(np.log(squared / rows)) + unknowns * float(np.log(rows))


def _pipe_of(fitted: Fit, cache_bytes: float) -> Pipe:
    return Pipe(
        line_rate_gbps=fitted.value("line_rate_gbps"),
        base_latency_us=fitted.value("base_latency_us"),
        message_us=fitted.value("message_us"),
        cache_bytes=cache_bytes,
    )
