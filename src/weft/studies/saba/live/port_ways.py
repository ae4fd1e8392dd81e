"""Ways to share real ports, as queues of HTB: each job has a queue of its own, or all have one.

Weights come from `weft.control.policy`, with the models of the profiles. SRPT serves strictly by
the bytes that a job has left, which `order_by_bytes_left` turns into priorities.
Entry points: `LIVE_WAYS`, `weigh`, `build_live_queues`. Weights are fractions of the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from weft.control.policy.allocate import allocate
from weft.control.policy.lending import MAX_APPLICATIONS, choose_weights
from weft.control.policy.objectives import weigh_by_size
from weft.corun.rounds import MANAGED, application_dscp
from weft.host.net.weighted_queues import PRIORITIES, Queue
from weft.sensitivity.model import Hinges

ONE, CAPS, EQUAL, SABA, LENDING, SRPT, PLACEBO = LIVE_WAYS = (
    "one queue",
    "fixed caps",
    "equal queues",
    "Saba",
    "Saba, lending",
    "SRPT",
    "placebo",
)
# Not of the thesis's question (docs/saba-policy.md): by the bytes of the job, and of its profile.
SIZE, PROFILE_SIZE = "size", "size of the profile"
WAYS = (*LIVE_WAYS, SIZE, PROFILE_SIZE)
_KBPS = 1000


def list_ways(count: int) -> tuple[str, ...]:
    """The ways that so many jobs can share by: lending evaluates every subset of them."""
    return tuple(way for way in LIVE_WAYS if way != LENDING or count <= MAX_APPLICATIONS)


def weigh(
    way: str, models: Sequence[Hinges], workloads: Sequence[str], *, rate_bps: float, seed: int
) -> tuple[float, ...]:
    """The weight of each job; empty where there is one queue."""
    units = round(rate_bps / _KBPS)
    if way == ONE:
        return ()
    if way in (EQUAL, SRPT):
        return (MANAGED / len(models),) * len(models)
    if way == LENDING:
        return tuple(choose_weights(models, MANAGED, units=units).tolist())
    used = permute_models(models, workloads, seed) if way == PLACEBO else models
    answer = allocate(used, [range(len(used))], units=units, capacity=MANAGED).at(0)
    return tuple(answer[n] / units for n in range(len(used)))


def share_by_size(sizes: Sequence[float]) -> tuple[float, ...]:
    """By the controller's rule: in inverse proportion to the bytes that each job will send."""
    weights = weigh_by_size(sizes)
    return tuple(MANAGED * weight / sum(weights) for weight in weights)


def permute_models(
    models: Sequence[Hinges], workloads: Sequence[str], seed: int
) -> Sequence[Hinges]:
    """Every workload with another one's model: a random cycle of those that are there."""
    model_of = dict(zip(workloads, models, strict=True))
    names = sorted(model_of)
    Random(f"placebo {seed}").shuffle(names)
    other = {name: model_of[names[n - 1]] for n, name in enumerate(names)}
    return [other[name] for name in workloads]


def order_by_bytes_left(bytes_left: Sequence[float]) -> tuple[int, ...]:
    """A strict priority for each job, the fewest bytes first; as many jobs as fit share one."""
    order = sorted(range(len(bytes_left)), key=lambda n: bytes_left[n])
    each = -(-len(bytes_left) // PRIORITIES)
    priority = {job: rank // each for rank, job in enumerate(order)}
    return tuple(priority[job] for job in range(len(bytes_left)))


def build_live_queues(
    way: str, weights: Sequence[float], priorities: Sequence[int] = ()
) -> list[Queue]:
    """The queue of unmarked packets, and one for each job."""
    if way == ONE:
        return [Queue(weight=1.0, dscps=(0,))]
    jobs = [
        Queue(
            weight=weight,
            dscps=(application_dscp(n),),
            is_capped=way == CAPS,
            priority=priorities[n] if way == SRPT else None,
        )
        for n, weight in enumerate(weights)
    ]
    return [Queue(weight=1 - MANAGED, dscps=(0,)), *jobs]
