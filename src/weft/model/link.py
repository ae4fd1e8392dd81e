"""What a link can carry at most: data rate, goodput and message rate.

    goodput ≤ R · size / max(D, A)           one way:  D bytes of data, A of answers per message
    goodput ≤ R · size / (D + A)             both ways: each direction has both
    message rate ≤ min(goodput / size, engines · rate of one)

R is the data rate after line coding, as `weft.fabric` knows it; D and A come from
`weft.model.headers`. Bounds, not predictions: hosts, buffers and arbitration are left out.
Entry points: `data_rate_gbps`, `goodput_gbps`, `message_rate_mps`. Units: Gb/s, bytes, M/s.
"""

from __future__ import annotations

from math import inf

import numpy as np
import numpy.typing as npt

from weft.errors import InputError
from weft.fabric import LinkRate
from weft.model.fit import FloatArray
from weft.model.headers import Framing, on_wire

SOURCE = (
    "InfiniBand Architecture Specification, volumes 1 and 2; IEEE 802.3; RFC 768, 791, 9293, 4391"
)


def data_rate_gbps(speed: str, width: int = 4) -> float:
    """What `width` lanes of a speed such as "FDR" carry once the line code is paid."""
    return LinkRate(speed.upper(), width).data_bps / 1e9


def goodput_gbps(
    size_bytes: npt.ArrayLike,
    rate_gbps: npt.ArrayLike,
    framing: Framing,
    *,
    both_ways: bool = False,
) -> FloatArray:
    """The most payload per direction that messages of `size_bytes` can move."""
    size = np.asarray(size_bytes, dtype=np.float64)
    busiest = on_wire(size, framing).busiest_bytes(both_ways=both_ways)
    share = np.divide(size, busiest, out=np.zeros_like(busiest), where=busiest > 0)
    return np.asarray(_rates(rate_gbps) * share)


def message_rate_mps(
    size_bytes: npt.ArrayLike,
    rate_gbps: npt.ArrayLike,
    framing: Framing,
    *,
    both_ways: bool = False,
    engine_mps: float = inf,
    engines: int = 1,
) -> FloatArray:
    """The most messages per direction, by the link or by `engines` that each do `engine_mps`."""
    if not engine_mps > 0 or engines < 1:
        problem = f"{engines} engines of {engine_mps:g} M/s"
        raise InputError("message rate", problem, "use one engine or more, faster than 0")
    busiest = on_wire(size_bytes, framing).busiest_bytes(both_ways=both_ways)
    with np.errstate(divide="ignore"):
        by_link = _rates(rate_gbps) * 1e3 / (8.0 * busiest)
    return np.asarray(np.minimum(by_link, engines * engine_mps))


def _rates(rate_gbps: npt.ArrayLike) -> FloatArray:
    rate = np.asarray(rate_gbps, dtype=np.float64)
    bad = rate[~(np.isfinite(rate) & (rate > 0))]
    if bad.size:
        raise InputError("data rate", f"{bad.ravel()[0]:g} Gb/s is not a rate", "use more than 0")
    return rate
