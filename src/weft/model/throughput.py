"""Throughput of a window of outstanding messages, capped by adapter, thread and line.

A thread keeps `depth` messages outstanding on each of its `qps` connections. r completed messages
are noticed, and replaced, at a time (`refill`): r = 1 slides, r = depth posts a window and waits
for all of it. A batch of r is replaced when its last message is back,

    T = base + byte·n + extra·[d > 1] + ((m + 1)·r − d − 1)·gap + share·d·(threads − 1),
    m = ⌊d / r⌋ batches in flight, gap = gap + gap_byte·n,

so a connection needs T/(m·r) per message: T/d with r = 1 (outstanding over latency), and
(base + … + (d − 1)·gap)/d with r = d, but never less than gap. The rate is the inverse of the
slowest stage, with the knee rounded (`KNEE`):

    1/rate = max(connection/(qps·threads), engine/min(qps·threads, engines), busy/threads,
                 (n + header)/line),
    busy   = (message + copy·n + miss·n·uncached)·(1 + contention·(threads − 1)) + turn·(1 − 1/qps)

with uncached = 1/(1 + (cache/(n·d·qps·threads))^4): buffers used in turn are all found in a cache
that holds them all, and none of them in a smaller one. What is not asked for is left out (a cost of
zero, a limit of infinity). Entry points: `throughput`, a Form of any of these unknowns;
`host_throughput`, the one for transports whose work the host does.

Datagrams of the host's network stack have forms of their own: each datagram costs a fixed time,
each further fragment more, each byte a little; above the size up to which received packets are
copied into small buffers, each datagram costs pages to be mapped. Entry points: `fragmented_rate`,
`mapped_rate`.
Units: M/s (messages per us), us, ns/B, GB/s (10^9 bytes), B.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.model.fit import FloatArray, Form, Input, Unknown
from weft.model.link import count_fragments


@dataclass(frozen=True, slots=True, kw_only=True)
class Refill:
    """How many completed messages are replaced at a time: from the depth, and written out."""

    formula: str
    batch: Callable[[FloatArray], FloatArray] = field(repr=False, compare=False)


FORMULA = (
    "1/max(max(T/(m·r), gap)/(qps·threads), engine/min(qps·threads, engines), busy/threads, "
    "(n + header)/line), T = base + byte·n + extra·[d > 1] + ((m + 1)·r − d − 1)·gap "
    "+ share·d·(threads − 1), m = ⌊d/r⌋, busy = (message + (copy + miss·uncached)·n)"
    "·(1 + contention·(threads − 1)) + turn·(1 − 1/qps)"
)

KNEE = 10.0
"""Stages of equal speed hold each other up, as their times vary: two of them by 2^(1/KNEE), 7 %."""

CACHE_EDGE = 4.0
"""How sharply buffers stop fitting into a cache: at half or twice its size 6 % still do, or not."""

INPUTS = (
    Input("size_bytes", "B", "payload of a message", least=1.0),
    Input("depth", "", "outstanding on each connection", least=1.0),
    Input("qps", "", "connections of each thread", least=1.0),
    Input("threads", "", "threads that post", least=1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    unknown: Unknown
    absent: float


def _quantity(name: str, unit: str, meaning: str, start: float, absent: float = 0.0) -> _Quantity:
    return _Quantity(unknown=Unknown(name, unit, meaning, start), absent=absent)


_QUANTITIES = {
    quantity.unknown.name: quantity
    for quantity in (
        _quantity("base_us", "us", "from posting a small message alone to its completion", 10.0),
        _quantity("byte_ns", "ns/B", "added to that time by each byte", 0.5),
        _quantity("extra_us", "us", "added once when more than one is outstanding", 0.3),
        _quantity("gap_us", "us", "by which a message of a batch follows the one before", 0.3),
        _quantity("gap_ns", "ns/B", "added to that gap by each byte", 0.08),
        _quantity("share_us", "us", "waited for each message other threads have outstanding", 0.05),
        _quantity("message_us", "us", "a thread is busy with each message", 0.3),
        _quantity("copy_ns", "ns/B", "a thread is busy with each byte", 0.1),
        _quantity("turn_us", "us", "to turn from one connection to another", 0.005),
        _quantity("contention", "", "of a thread's work, lost to each other thread", 0.1),
        _quantity("cache_bytes", "B", "outstanding bytes that a cache holds", 1e6, inf),
        _quantity("miss_ns", "ns/B", "added to the work by each byte not in the cache", 0.1),
        _quantity("engine_us", "us", "an engine of the adapter is busy with each message", 0.1),
        _quantity("engines", "", "of the adapter, one for each connection", 4.0, inf),
        _quantity("line_GBps", "GB/s", "data rate of the line", 12.5, inf),
        _quantity("header_bytes", "B", "on the line beside each message", 100.0),
    )
}

QUANTITIES: tuple[str, ...] = tuple(_QUANTITIES)
"""Names of what a throughput can be made of."""


ONE_BY_ONE = Refill(formula="1", batch=np.ones_like)
"""Every completion lets one message follow: a sliding window."""


def by_count(messages: int) -> Refill:
    """One completion is signaled for that many messages, or for the window if it is smaller."""
    return Refill(
        formula=f"min(d, {messages})", batch=lambda depth: np.minimum(depth, float(messages))
    )


def by_share(share: float) -> Refill:
    """That share of the window is waited for, rounded down, at least one message."""
    return Refill(
        formula=f"max(1, ⌊{share:g}·d⌋)",
        batch=lambda depth: np.maximum(1.0, np.floor(share * depth + 1e-9)),
    )


def throughput(
    unknowns: Sequence[str],
    *,
    fixed: Mapping[str, float] | None = None,
    starts: Mapping[str, float] | None = None,
    refill: Refill = ONE_BY_ONE,
    source: str = "outstanding × size / latency, capped by engine, thread, line and cache",
) -> Form:
    """The message rate in M/s, with some of `QUANTITIES` to be found and others known.

    `starts` are guesses of the right magnitude for unknowns: the stages are limits, and one that
    never binds at the start is never found.
    """
    fixed, starts = dict(fixed or {}), dict(starts or {})
    _check_names([*unknowns, *fixed, *starts])
    constants = {name: quantity.absent for name, quantity in _QUANTITIES.items()} | fixed
    values = [f"{name} = {value:.4g}" for name, value in fixed.items()]
    return Form(
        name="throughput",
        formula=", ".join([FORMULA, f"r = {refill.formula}", *values]),
        source=source,
        unit="M/s",
        unknowns=tuple(_with_start(name, starts) for name in unknowns),
        inputs=INPUTS,
        evaluate=lambda values, x: _rate_Mps({**constants, **values}, x, refill),
    )


def host_throughput(
    inputs: Mapping[str, npt.ArrayLike], rates_Mps: npt.ArrayLike, *, cache: bool = False
) -> Form:
    """For transports whose work the host does (tcp, ofi:tcp, shm), started from the rows at hand.

    Unknowns: base_us, byte_ns, message_us, copy_ns, contention; with `cache` also cache_bytes and
    miss_ns, for rows on both sides of the cache's size. The window slides.
    """
    x, rates = _rows(inputs, rates_Mps)
    message_us = x["threads"] / rates
    byte_ns = 1e3 * float(np.min(message_us / x["size_bytes"]))
    starts = {
        "base_us": float(np.min(x["depth"] * x["qps"] * message_us)),
        "byte_ns": 0.5 * byte_ns,
        "message_us": float(np.min(message_us)),
        "copy_ns": byte_ns,
        "contention": 0.5,
    }
    if not cache:
        return throughput(tuple(starts), starts=starts)
    held_bytes = _footprint_bytes(x)
    starts |= {"cache_bytes": float(np.median(held_bytes)), "miss_ns": 0.5 * byte_ns}
    form = throughput(tuple(starts), starts=starts)
    return replace(form, unknowns=tuple(_bound_cache(held_bytes, u) for u in form.unknowns))


def _bound_cache(held_bytes: FloatArray, unknown: Unknown) -> Unknown:
    """A cache whose size the rows do not straddle cannot be found."""
    if unknown.name != "cache_bytes":
        return unknown
    return replace(unknown, low=float(held_bytes.min()), high=float(held_bytes.max()))


def _rows(
    inputs: Mapping[str, npt.ArrayLike], rates_Mps: npt.ArrayLike
) -> tuple[dict[str, FloatArray], FloatArray]:
    rates = np.asarray(rates_Mps, dtype=np.float64)
    missing = [named.name for named in INPUTS if named.name not in inputs]
    if missing:
        raise InputError("throughput", f"input {missing[0]!r} is missing", "give all four")
    if not (rates.size and np.all(np.isfinite(rates)) and np.all(rates > 0)):
        raise InputError(
            "throughput", "no rates, or one that is not above 0", "leave such rows out"
        )
    x = {
        named.name: np.broadcast_to(np.asarray(inputs[named.name], dtype=np.float64), rates.shape)
        for named in INPUTS
    }
    return x, rates


def _rate_Mps(p: Mapping[str, float], x: Mapping[str, FloatArray], refill: Refill) -> FloatArray:
    n, threads = x["size_bytes"], x["threads"]
    connections = x["qps"] * threads
    return 1.0 / _slowest_us(
        _connection_us(p, x, refill) / connections,
        p["engine_us"] / np.minimum(connections, p["engines"]),
        _busy_us(p, x) / threads,
        (n + p["header_bytes"]) / (1e3 * p["line_GBps"]),
    )


def _slowest_us(*stages_us: FloatArray) -> FloatArray:
    stages = np.array(stages_us)
    slowest = stages.max(axis=0)
    return np.asarray(slowest * ((stages / slowest) ** KNEE).sum(axis=0) ** (1.0 / KNEE))


def _connection_us(
    p: Mapping[str, float], x: Mapping[str, FloatArray], refill: Refill
) -> FloatArray:
    """Per message of a connection that waits for its own window and its bytes alone."""
    n, depth, batch = x["size_bytes"], x["depth"], refill.batch(x["depth"])
    batches = np.floor(depth / batch)
    behind = np.maximum(0.0, (batches + 1) * batch - depth - 1)
    gap_us = p["gap_us"] + p["gap_ns"] * n / 1e3
    alone_us = p["base_us"] + p["byte_ns"] * n / 1e3 + p["extra_us"] * (depth > 1)
    others_us = p["share_us"] * depth * (x["threads"] - 1)
    window_us = (alone_us + others_us + behind * gap_us) / (batches * batch)
    return np.asarray(np.maximum(window_us, gap_us))


def _busy_us(p: Mapping[str, float], x: Mapping[str, FloatArray]) -> FloatArray:
    """Per message of a thread that never waits."""
    uncached = 1.0 / (1.0 + (p["cache_bytes"] / _footprint_bytes(x)) ** CACHE_EDGE)
    bytes_us = (p["copy_ns"] + p["miss_ns"] * uncached) * x["size_bytes"] / 1e3
    crowded = 1.0 + p["contention"] * (x["threads"] - 1)
    return np.asarray(
        (p["message_us"] + bytes_us) * crowded + p["turn_us"] * (1.0 - 1.0 / x["qps"])
    )


def _footprint_bytes(x: Mapping[str, FloatArray]) -> FloatArray:
    return np.asarray(x["size_bytes"] * x["depth"] * x["qps"] * x["threads"])


def _with_start(name: str, starts: Mapping[str, float]) -> Unknown:
    unknown = _QUANTITIES[name].unknown
    return replace(unknown, start=starts.get(name, unknown.start))


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        if name not in _QUANTITIES:
            raise InputError("throughput", f"no quantity {name!r}", f"use {', '.join(QUANTITIES)}")


_DATAGRAM_INPUTS = (Input("size_bytes", "B", "payload of a datagram", least=1.0),)
_DATAGRAM = Unknown("datagram_us", "us", "for each datagram", 2.0)
_BYTE = Unknown("byte_ns", "ns/B", "for each byte", 0.5)


def fragmented_rate(mtu_bytes: int) -> Form:
    """Datagrams that are cut into packets of the MTU."""

    def evaluate(p: Mapping[str, float], x: Mapping[str, FloatArray]) -> FloatArray:
        further = count_fragments(x["size_bytes"], mtu_bytes) - 1.0
        per_byte_us = p["byte_ns"] * x["size_bytes"] / 1e3
        return np.asarray(1.0 / (p["datagram_us"] + p["fragment_us"] * further + per_byte_us))

    return Form(
        name="datagram rate",
        formula=f"1/(datagram + fragment·(f − 1) + byte·n), f fragments of {mtu_bytes} B",
        source="cost of a network stack, by datagram, fragment and byte",
        unit="M/s",
        unknowns=(_DATAGRAM, Unknown("fragment_us", "us", "for each fragment but one", 1.0), _BYTE),
        inputs=_DATAGRAM_INPUTS,
        evaluate=evaluate,
    )


def mapped_rate(copied_below_bytes: int) -> Form:
    """Datagrams in one packet each, received into mapped pages unless they are small."""

    def evaluate(p: Mapping[str, float], x: Mapping[str, FloatArray]) -> FloatArray:
        mapped = x["size_bytes"] >= copied_below_bytes
        per_byte_us = p["byte_ns"] * x["size_bytes"] / 1e3
        return np.asarray(1.0 / (p["datagram_us"] + p["map_us"] * mapped + per_byte_us))

    return Form(
        name="datagram rate",
        formula=f"1/(datagram + map·[n ≥ {copied_below_bytes} B] + byte·n)",
        source="cost of a network stack, by datagram and byte, and of pages mapped to receive",
        unit="M/s",
        unknowns=(_DATAGRAM, Unknown("map_us", "us", "to map pages, not for copies", 2.0), _BYTE),
        inputs=_DATAGRAM_INPUTS,
        evaluate=evaluate,
    )
