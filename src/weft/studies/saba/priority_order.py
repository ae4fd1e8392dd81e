"""Orders by what is left to send: Sincronia's of coflows, SRPT's of flows.

**Coflows** (Agarwal et al., "Sincronia", SIGCOMM 2018; bottleneck-select-scale-iterate). D(c, p) is
the time that port p needs for all that coflow c sends or receives there, W(c) its weight. From the
last place to the first, among the coflows J without a place:

1. bottleneck: b = the port with the greatest Σ_J D(c, b)
2. select: the last place goes to z = the coflow with the least W(c) / D(c, b), if it uses b
3. scale: W(c) -= W(z) D(c, b) / D(z, b) for the others; by 2. none falls below 0
4. iterate with J without z

Ties: the first port; of coflows the one given last goes last. Who sends nothing goes first.

The steps are a dual solution. Whatever the schedule, at any port b the coflows of J end so that

    Σ_J D(c, b) C(c) >= f(b, J) = ½ ((Σ_J D(c, b))² + Σ_J D(c, b)²)

hence Σ W(c) C(c) >= Σ over the steps of W(z) / D(z, b) f(b, J): `CoflowOrder.bound`. If flows are
served by strict priority in this order, and no flow waits whose two ports are free, then
Σ W(c) C(c) <= 4 bound (the paper's theorem; all coflows are present from the start).
The paper orders at epochs; here the caller orders what is unfinished whenever it likes.

**Flows**: shortest remaining processing time: the flow with the fewest bytes left goes first. On
one port no schedule has a smaller mean completion time.
Entry points: `order_coflows`, `order_flows`, `assign_priorities`. Any unit of time or size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from weft.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class CoflowOrder:
    """Coflows, the first to go first; no schedule has a smaller Σ W C than `bound`."""

    order: tuple[int, ...]
    bound: float


def order_coflows(demand: npt.ArrayLike, weights: Sequence[float] | None = None) -> CoflowOrder:
    """The order for `demand[coflow, port]`, the time each port needs; weights are 1 by default."""
    times = _check_amounts("demand", demand, 2)
    remaining = _check_amounts("weights", np.ones(len(times)) if weights is None else weights, 1)
    if len(remaining) != len(times):
        problem = f"{len(remaining)} weights for {len(times)} coflows"
        raise InputError("weights", problem, "give one for each")
    unplaced, last_first, bound = list(range(len(times))), [], 0.0
    while unplaced:
        load = times[unplaced].sum(axis=0)
        if not load.any():
            last_first += unplaced[::-1]
            break
        column = times[:, int(load.argmax())]
        users = [c for c in unplaced if column[c] > 0]
        last = min(reversed(users), key=lambda c: remaining[c] / column[c])
        price = remaining[last] / column[last]
        bound += price * _least_work(column[users])
        for coflow in users:
            remaining[coflow] = max(0.0, remaining[coflow] - price * column[coflow])
        unplaced.remove(last)
        last_first.append(last)
    return CoflowOrder(order=tuple(reversed(last_first)), bound=float(bound))


def _least_work(times: npt.NDArray[np.float64]) -> float:
    """f(b, J): Σ D C of coflows that one port serves, in whatever order."""
    return 0.5 * float(times.sum() ** 2 + (times**2).sum())


def order_flows(left_bytes: Sequence[float]) -> tuple[int, ...]:
    """Flows by what they have left, the fewest bytes first; of equal ones the one given first."""
    amounts = _check_amounts("bytes left", left_bytes, 1)
    return tuple(np.argsort(amounts, kind="stable").tolist())


def assign_priorities(order: Sequence[int], levels: int) -> dict[int, int]:
    """The strict priority of each, 0 first: the last level is shared by all that find no other."""
    if levels < 1:
        raise InputError("levels", f"{levels} priorities", "use at least 1")
    return {entry: min(place, levels - 1) for place, entry in enumerate(order)}


def _check_amounts(where: str, amounts: npt.ArrayLike, dimensions: int) -> npt.NDArray[np.float64]:
    """A copy as an array of finite numbers, none negative."""
    array = np.array(amounts, dtype=np.float64)
    if array.ndim != dimensions:
        problem = f"{array.ndim} dimensions"
        raise InputError(where, problem, f"give an array of {dimensions}")
    bad = array[~(np.isfinite(array) & (array >= 0))]
    if bad.size:
        raise InputError(where, f"{bad[0]:g} is not an amount", "use finite numbers from 0 up")
    return array
