"""Which closed form of `weft.model` describes which goal over which transport.

Streams are windows of outstanding messages (`weft.model.throughput`): where the host does the work,
threads, copies and a cache limit it; where an adapter does, its engines and the line. Processor
time has two unknowns, latency at one size has one. Entry point: `base_forms`. Units: the goals'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from weft.model.fit import FloatArray, Form, Input, Unknown
from weft.model.throughput import INPUTS, host_throughput, throughput

_SIZE = INPUTS[0]
_ROWS_FOR_CACHE = 16  # two unknowns more, and both sides of the cache to be seen
WITH_ADAPTER = (
    "verbs",
    "delay",
    "ofi:verbs",
    "ofi:efa",
    "ofi:psm",
    "ofi:psm2",
    "ofi:opx",
    "ofi:cxi",
)


def inputs_of(goal: str) -> tuple[Input, ...]:
    """What the goal's form is a function of."""
    return INPUTS if goal in ("throughput", "message-rate") else (_SIZE,)


def base_forms(
    goal: str, over: str, x: Mapping[str, FloatArray], values: FloatArray
) -> Iterator[Form]:
    """The goal's forms, the fullest first; their search starts from `values`, seen at `x`."""
    match goal:
        case "throughput":
            yield from map(_in_bytes, _windows(over, x, values / x["size_bytes"] / 1e6))
        case "message-rate":
            yield from _windows(over, x, values)
        case "cpu":
            yield _cpu(float(np.median(values)))
        case _:
            yield _latency(float(np.median(values)))


def _windows(over: str, x: Mapping[str, FloatArray], rates_Mps: FloatArray) -> Iterator[Form]:
    if not over.startswith(WITH_ADAPTER):
        if len(rates_Mps) >= _ROWS_FOR_CACHE:
            yield host_throughput(x, rates_Mps, cache=True)
        yield host_throughput(x, rates_Mps)
        return
    starts = {
        "base_us": float(np.min(x["depth"] * x["qps"] * x["threads"] / rates_Mps)),
        "message_us": 0.5 / float(np.max(rates_Mps)),
        "engine_us": 0.5 / float(np.max(rates_Mps)),
        "line_GBps": float(np.max(rates_Mps * x["size_bytes"])) / 1e3,
    }
    yield throughput(list(starts), known={"engines": 1.0}, starts=starts)


def _in_bytes(form: Form) -> Form:
    """Bytes per second of a form that gives million messages per second."""
    return replace(
        form,
        formula=f"size·10⁶·{form.formula}",
        unit="B/s",
        evaluate=lambda p, x: 1e6 * x["size_bytes"] * form.evaluate(p, x),
    )


def _cpu(typical: float) -> Form:
    return Form(
        name="processor time per byte",
        formula="message/size + byte",
        source="a fixed cost of each message is spread over its bytes",
        unit="ns/B",
        unknowns=(
            Unknown(
                name="message_ns",
                unit="ns",
                meaning="of processors for each message",
                start=1000.0,
                low=1e-3,
                high=1e9,
            ),
            Unknown(
                name="byte_ns",
                unit="ns/B",
                meaning="of processors for each byte",
                start=typical,
                low=1e-6,
                high=1e4,
            ),
        ),
        inputs=(_SIZE,),
        evaluate=lambda p, x: p["message_ns"] / x["size_bytes"] + p["byte_ns"],
    )


def _latency(typical: float) -> Form:
    return Form(
        name="latency of one size",
        formula="base",
        source="at one size there is one figure; choices change it by factors",
        unit="us",
        unknowns=(
            Unknown(
                name="base_us",
                unit="us",
                meaning="half round trip at the first levels",
                start=typical,
                low=1e-4,
                high=1e8,
            ),
        ),
        inputs=(_SIZE,),
        evaluate=lambda p, x: p["base_us"] * np.ones_like(x["size_bytes"]),
    )
