"""Tables as an HTB tree: a class for each queue, filters for each level. Pure.

A queue's weight is the rate of its class in kbit/s; its ceil is the link: a full port is shared by
the weights, and queues may use what others leave. Level n is DSCP n; level 0 takes every packet of
no other level. A queue of weight 0, which no level may use, has a class below 1 kbit/s. The latency
lane is the only class of priority 0; its ceil is its rate and its burst the limit. The kernel keeps
a burst in ticks, so the exact limit is also in the quantum (plus one, as 0 lets the kernel choose),
which has no effect in a class alone in its priority. Entry points: `build_tree`, `decode_tree`,
`find_refusal`. Units: kbit/s, bits per second, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import InputError
from weft.host.net import htb
from weft.host.net.htb import HtbTree, KernelTree
from weft.host.net.qdisc import TICK_NS, HtbClass
from weft.switches.tables import (
    HTB_LANE_PRIORITY,
    HTB_PRIORITY,
    HTB_UNIT_BPS,
    Ability,
    Foreign,
    HtbQueue,
    Lane,
    Tables,
    find_misfit,
)

LEVELS = 16
QUEUES = 16
_UNUSED_BPS = 992  # reads as 0 kbit/s; the time of a burst still fits 32 bits of ticks
_MAX_TICKS = 2**32 - 1
_MAX_BYTES = 2**31 - 2


def build_ability(link_bps: int) -> Ability:
    units = link_bps // HTB_UNIT_BPS
    return Ability(scheduler="htb", levels=LEVELS, queues=QUEUES, entries=QUEUES, units=units)


def choose_dscp(level: int) -> int:
    """The DSCP of a level's packets."""
    return level


def build_single_queue(link_bps: int) -> Tables:
    """The tables of an unprogrammed port: one queue for all levels."""
    weights = (link_bps // HTB_UNIT_BPS, *[0] * (QUEUES - 1))
    return Tables(queue_of=(0,) * LEVELS, weights=weights)


# ---- To HTB -----------------------------------------------------------------------------------


def build_tree(tables: Tables, link_bps: int) -> HtbTree:
    return HtbTree(
        link_bps=link_bps,
        queues=tuple(_build_class(tables, queue, link_bps) for queue in range(QUEUES)),
        queue_of={choose_dscp(level): queue for level, queue in enumerate(tables.queue_of)},
    )


def _build_class(tables: Tables, queue: int, link_bps: int) -> HtbClass:
    rate_bps = tables.weights[queue] * HTB_UNIT_BPS or _UNUSED_BPS
    lane = tables.lane
    if lane is not None and lane.queue == queue:
        return htb.build_queue_class(
            queue,
            rate_bps=rate_bps,
            ceil_bps=rate_bps,
            quantum_bytes=lane.limit + 1,
            burst_bytes=max(lane.limit, 1),
            priority=HTB_LANE_PRIORITY,
        )
    quantum = htb.choose_quantum_bytes(tables.weights[queue] * HTB_UNIT_BPS / link_bps)
    return htb.build_queue_class(
        queue, rate_bps=rate_bps, ceil_bps=link_bps, quantum_bytes=quantum, priority=HTB_PRIORITY
    )


def find_refusal(wanted: Tables, ability: Ability) -> str | None:
    """Why a port cannot hold these tables; None if it can."""
    if sum(wanted.weights) > ability.units:
        return f"weights sum to {sum(wanted.weights)} kbit/s, and the link has {ability.units}"
    return find_misfit(wanted, ability) or _find_lane_refusal(wanted.lane, wanted.weights)


def _find_lane_refusal(lane: Lane | None, weights: tuple[int, ...]) -> str | None:
    if lane is None:
        return None
    # The kernel takes a burst as a time, in ticks of 32 bits.
    most = min(_MAX_TICKS * TICK_NS * weights[lane.queue] // (8 * 10**6), _MAX_BYTES)
    if lane.limit <= most:
        return None
    return f"a lane of {weights[lane.queue]} kbit/s has a limit of {lane.limit} bytes, not {most}"


# ---- From HTB ---------------------------------------------------------------------------------


def decode_tree(current: KernelTree, link_bps: int) -> Tables | Foreign:
    """The kernel's tree as tables; Foreign if it is not exactly such a tree."""
    missing = [n for n in range(QUEUES) if htb.build_classid(n) not in current.classes]
    if missing:
        return Foreign(f"queue {missing[0]} has no class")
    classes = [current.classes[htb.build_classid(queue)] for queue in range(QUEUES)]
    queues = tuple(HtbQueue(htb_class.rate_bps, htb_class.priority) for htb_class in classes)
    try:
        tables = Tables(
            queue_of=tuple(_find_queue(current, level) for level in range(LEVELS)),
            weights=tuple(queue.rate_bps // HTB_UNIT_BPS for queue in queues),
            lane=_find_lane(classes),
        )
    except InputError as error:
        return Foreign(f"{error.where}: {error.problem}", queues)
    difference = htb.describe_difference(current, build_tree(tables, link_bps))
    return tables if difference is None else Foreign(difference, queues)


def _find_queue(current: KernelTree, level: int) -> int:
    return current.class_of(choose_dscp(level)) - htb.build_classid(0)


def _find_lane(classes: Sequence[HtbClass]) -> Lane | None:
    """The first of several lanes: the others then count as a difference."""
    lanes = (n for n, htb_class in enumerate(classes) if htb_class.priority == HTB_LANE_PRIORITY)
    queue = next(lanes, None)
    return None if queue is None else Lane(queue=queue, limit=classes[queue].quantum_bytes - 1)
