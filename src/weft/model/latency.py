"""How long a message takes, from few physical parameters.

A message goes through stages one behind the other: the sender's bus, the link, the receiver's bus.
Its first packet is stored and forwarded by each, so it pays their sum; later packets follow in the
pipeline and pay the slowest alone. With s the size, M the MTU, f = min(s, M) the first packet,
r = s − f the rest in n packets, h the bytes that a packet has beside its payload, R the data rate:

    verbs:     base + (hop + h + f)/R + max((r + n h)/R, r/P) + [s ≤ L: copy s; else fetch + 2 f/P]
    segmented: base + first f + [s > M: split + rest r]
    stepped:   base + byte s + [s > L: step]

L is the inline limit: below it the processor copies the payload into the work request, above it the
adapter fetches it over PCIe, whose rate P is that of payload. Entry points: `verbs_latency`,
`segmented_latency`, `single_packet_latency`, `stepped_latency`.

Beside a load, with u = load / capacity, a probe takes

    L(u) = base + wait·u / (1 − u + 1/window).

wait·u/(1 − u) is the queue of a server that is busy for the share u of the time, where `wait` is
the time to serve what arrives at once: a message, or a burst of each sender. The load's own windows
bound it: when all are full, `window` such bursts stand before the probe, and
L(1) = base + wait·window. A load that folds back (more offered, less achieved, more latency) has
two latencies at one load; a function of the load gives one between them. Entry points:
`saturation`, `doubling_load_MBps`. Units: µs, ns/B, bytes, Gb/s, MB/s (10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import numpy as np

from weft.errors import InputError
from weft.model.fit import Fit, FloatArray, Form, Input, Unknown

SIZE = Input("size_bytes", "B", "payload of one message")
DATA_RATE = Input("data_rate_gbps", "Gb/s", "data rate of the link, line code paid", least=1e-3)
_BITS_PER_US = 1e3  # a rate of 1 Gb/s is 10³ bits each microsecond
_NS = 1e-3


_BASE = Unknown("base_us", "us", "base: software, adapters and the path, for no bytes", 10.0)
_BYTE = Unknown(
    "byte_ns", "ns/B", "byte: all stages and copies that the packet goes through in turn", 1.0
)
_VERBS = (
    Unknown(
        "base_us", "us", "base: posting, adapters, switches, cables and polling, for no bytes", 0.8
    ),
    Unknown(
        "hop_bytes",
        "B",
        "hop: what the ports on the way take in before they pass a packet on",
        64.0,
    ),
    Unknown(
        "packet_bytes", "B", "h: headers, delimiters and clock compensation of each packet", 26.0
    ),
    Unknown("copy_ns_per_byte", "ns/B", "copy: the processor's writing of inline payload", 1.0),
    Unknown("fetch_us", "us", "fetch: the adapter's reading of payload that is not inline", 0.5),
    Unknown("pcie_gbps", "Gb/s", "P: payload rate of each host's PCIe", 50.0, low=1.0),
)

_SEGMENTED = (
    _BASE,
    Unknown(
        "first_ns_per_byte",
        "ns/B",
        "first: all stages and copies that the first packet goes through in turn",
        1.0,
    ),
    Unknown("split_us", "us", "split: splitting a message and putting it together again", 1.0),
    Unknown(
        "rest_ns_per_byte", "ns/B", "rest: the slowest stage, of the packets behind the first", 1.0
    ),
)


def verbs_latency(*, mtu_bytes: int, inline_limit_bytes: int) -> Form:
    """Half a round trip of SEND between two hosts over one path, at any data rate."""

    def evaluate(p: Mapping[str, float], inputs: Mapping[str, FloatArray]) -> FloatArray:
        size, rate = inputs["size_bytes"], inputs["data_rate_gbps"]
        first = np.minimum(size, mtu_bytes)
        rest = size - first
        overhead = p["packet_bytes"]
        on_link = _us(p["hop_bytes"] + overhead + first, rate)
        behind_link = _us(rest + np.ceil(rest / mtu_bytes) * overhead, rate)
        behind_bus = _us(rest, p["pcie_gbps"])
        fetched = p["fetch_us"] + 2 * _us(first, p["pcie_gbps"])
        handed_over = np.where(
            size <= inline_limit_bytes, p["copy_ns_per_byte"] * _NS * size, fetched
        )
        return p["base_us"] + on_link + np.maximum(behind_link, behind_bus) + handed_over

    return Form(
        name="verbs latency",
        formula=(
            "base + (hop + h + f)/R + max((r + n h)/R, r/P) "
            "+ (copy s if s <= L else fetch + 2 f/P), f = min(s, M), r = s - f, n = ceil(r/M), "
            f"M = {mtu_bytes} B, L = {inline_limit_bytes} B"
        ),
        source="store and forward of the first packet, a pipeline for the rest",
        unit="us",
        inputs=(SIZE, DATA_RATE),
        unknowns=_VERBS,
        evaluate=evaluate,
    )


def segmented_latency(*, packet_bytes: int) -> Form:
    """A message that software splits into packets of at most `packet_bytes`."""

    def evaluate(p: Mapping[str, float], inputs: Mapping[str, FloatArray]) -> FloatArray:
        size = inputs["size_bytes"]
        first = np.minimum(size, packet_bytes)
        split = p["split_us"] + p["rest_ns_per_byte"] * _NS * (size - first)
        alone = p["base_us"] + p["first_ns_per_byte"] * _NS * first
        return np.asarray(alone + np.where(size > packet_bytes, split, 0.0))

    return Form(
        name="segmented latency",
        formula=(
            "base + first f + (split + rest (s - f) if s > M else 0), f = min(s, M), "
            f"M = {packet_bytes} B"
        ),
        source="store and forward of the first packet, a pipeline for the rest",
        unit="us",
        inputs=(SIZE,),
        unknowns=_SEGMENTED,
        evaluate=evaluate,
    )


def single_packet_latency() -> Form:
    """A message that fits one packet: every stage on the way stores and forwards it."""

    def evaluate(p: Mapping[str, float], inputs: Mapping[str, FloatArray]) -> FloatArray:
        return p["base_us"] + p["byte_ns"] * _NS * inputs["size_bytes"]

    return Form(
        name="single-packet latency",
        formula="base + byte s",
        source="store and forward of one packet",
        unit="us",
        inputs=(SIZE,),
        unknowns=(_BASE, _BYTE),
        evaluate=evaluate,
    )


def stepped_latency(*, limit_bytes: int) -> Form:
    """A message of one packet that takes a slower way to the adapter above `limit_bytes`."""

    def evaluate(p: Mapping[str, float], inputs: Mapping[str, FloatArray]) -> FloatArray:
        size = inputs["size_bytes"]
        above = p["step_us"] * (size > limit_bytes)
        return p["base_us"] + p["byte_ns"] * _NS * size + above

    step = Unknown(
        "step_us", "us", "step: what handing over a message above the limit costs more", 1.0
    )
    return Form(
        name="stepped latency",
        formula=f"base + byte s + (step if s > L else 0), L = {limit_bytes} B",
        source="store and forward of one packet, handed over in one of two ways",
        unit="us",
        inputs=(SIZE,),
        unknowns=(_BASE, _BYTE, step),
        evaluate=evaluate,
    )


def _us(size_bytes: FloatArray | float, rate_gbps: FloatArray | float) -> FloatArray:
    return np.asarray(size_bytes) * 8.0 / (np.asarray(rate_gbps) * _BITS_PER_US)


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
            Unknown("base_us", "us", "without load", unloaded_us),
            Unknown("wait_us", "us", "to serve what the load brings at once", 0.3 * unloaded_us),
            Unknown(
                "window",
                "",
                "how often that stands in the queue when the load's windows are full",
                3.0,
                low=0.01,
            ),
        ),
        inputs=(Input("load_MBps", "MB/s", "bytes of load that arrive, in 10^6/s"),),
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
