"""Tables of an InfiniBand port: SL-to-VL maps, VL arbitration, limit of high priority.

A level is a service level, a queue a virtual lane (VL). A port arbitrates among its VLs by two
lists of (VL, weight): it serves the high-priority list first, up to a limit, then the low one, each
in weighted turns. A latency lane is alone in the high list; every other queue is in the low one.
Each input port has its own map of levels to VLs.

**Make before break.** Let U be the VLs that old or new maps use. A change writes (1) a low list
that serves all of U, the wanted one if it does, (2) the maps, (3) high list and limit, (4) the
wanted low list. Every state in between serves U: after (1) the low list alone does. If neither the
maps nor the lanes of the high list change, the present low list serves all but the lane, and (1) is
left out. Restoring is the same in reverse.

**Unknown maps.** A map that was not read may use any VL, so it counts as using all. It may stay
unread if all known maps are as wanted and every VL gets weight (`are_maps_sufficient`); otherwise
it must be read first. Entry points: `encode_tables`, `decode_tables`, `plan_steps`. Units: weights
in 64 bytes, limit in 4096 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from weft.switches.infiniband.mad import LEVELS, Entry, PortInfo
from weft.switches.tables import (
    ENTRY_WEIGHT,
    MAX_LIMIT,
    Ability,
    Failed,
    Foreign,
    Lane,
    Tables,
    find_misfit,
    list_entries,
)

CACHE_SIZE = 1 << 14  # results kept of each pure function

Weights = Mapping[int, int]
"""Weight of each VL that a list serves."""

Map = tuple[int, ...] | None
"""The VL of each of the 16 service levels; None: not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTables:
    """What a port holds: maps by input port (none: all packets leave by VL 0), lists, limit."""

    maps: tuple[Map, ...]
    low: tuple[Entry, ...]
    high: tuple[Entry, ...]
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is written at once; None, or no maps: unchanged."""

    maps: Mapping[int, tuple[int, ...]]
    low: tuple[Entry, ...] | None = None
    high: tuple[Entry, ...] | None = None
    limit: int | None = None


def find_ability(info: PortInfo, levels: int) -> Ability | Failed:
    """What a port can hold: VLs that are in use there and have room in its low list."""
    queues = min(info.data_vls, info.low_entries)
    if queues < 1:
        state = f"{info.data_vls} data VLs in use, {info.low_entries} arbitration entries"
        return Failed(f"{state}: nothing can be shared out")
    # A queue's last entry may be nearly empty: with these units every split has enough entries.
    units = ENTRY_WEIGHT * (info.low_entries - queues + 1)
    return Ability(
        scheduler="vlarb", levels=levels, queues=queues, entries=info.low_entries, units=units
    )


def find_refusal(wanted: Tables, info: PortInfo, levels: int) -> str | None:
    """Why a port cannot hold these tables; None if it can."""
    ability = find_ability(info, levels)
    if isinstance(ability, Failed):
        return ability.problem
    lane = wanted.lane
    if lane is not None and lane.limit > MAX_LIMIT:
        return f"limit {lane.limit} of high priority, {MAX_LIMIT} is the most"
    low, high = _split_weights(wanted)
    return (
        find_misfit(wanted, ability)
        or _find_overflow(low, info.low_entries)
        or _find_overflow(high, info.high_entries, "high-priority ")
    )


def _find_overflow(weights: Weights, entries: int, kind: str = "") -> str | None:
    needed = sum(-(-weight // ENTRY_WEIGHT) for weight in weights.values())
    if needed <= entries:
        return None
    return f"{needed} {kind}arbitration entries needed, and it has {entries}"


def is_always_served(wanted: Tables) -> bool:
    """Whether the low list alone serves every VL: then no level can starve."""
    return wanted.lane is None and 0 not in wanted.weights


def are_maps_sufficient(wanted: Tables, current: PortTables) -> bool:
    """Whether unknown maps may stay unread: no level can starve by them."""
    if None not in current.maps:
        return True
    ours = len(wanted.queue_of)
    are_as_wanted = all(vls is None or vls[:ours] == wanted.queue_of for vls in current.maps)
    return are_as_wanted and 0 not in wanted.weights


def find_starved_level(wanted: Tables, current: PortTables) -> str | None:
    """The foreign service level that would have a queue without weight; None if none."""
    for vls in {vls for vls in current.maps if vls is not None}:
        for level in range(len(wanted.queue_of), LEVELS):
            if vls[level] < len(wanted.weights) and not wanted.weights[vls[level]]:
                return f"service level {level}, not ours, is in VL {vls[level]} of weight 0"
    return None


# ---- Between tables and what the port holds ---------------------------------------------------


def encode_tables(wanted: Tables, current: PortTables) -> PortTables:
    """What the port is to hold; foreign levels keep their VL."""
    low, high = _build_lists(wanted, len(current.low), len(current.high))
    ours = len(wanted.queue_of)
    return PortTables(
        maps=tuple(vls and wanted.queue_of + vls[ours:] for vls in current.maps),
        low=low,
        high=high,
        limit=current.limit if wanted.lane is None else wanted.lane.limit,
    )


@lru_cache(maxsize=CACHE_SIZE)
def _build_lists(
    wanted: Tables, low: int, high: int
) -> tuple[tuple[Entry, ...], tuple[Entry, ...]]:
    """The low and the high list, of these sizes."""
    # Many ports of a fabric get the same tables.
    weights = _split_weights(wanted)
    return _build_entries(weights[0], low), _build_entries(weights[1], high)


def _split_weights(wanted: Tables) -> tuple[Weights, Weights]:
    """Weights of the low list, and of the high one."""
    lane = None if wanted.lane is None else wanted.lane.queue
    weights = {vl: weight for vl, weight in enumerate(wanted.weights) if weight}
    high = {vl: weight for vl, weight in weights.items() if vl == lane}
    return {vl: weight for vl, weight in weights.items() if vl != lane}, high


def _build_entries(weights: Weights, size: int) -> tuple[Entry, ...]:
    """A list of `size` entries."""
    entries = list_entries(weights)
    return (*entries, *[(0, 0)] * (size - len(entries)))


def sum_weights(entries: Iterable[Entry], queues: int = LEVELS) -> dict[int, int]:
    """The weight of each VL that a list serves, of the first `queues`."""
    weights: dict[int, int] = {}
    for vl, weight in entries:
        if weight and vl < queues:
            weights[vl] = weights.get(vl, 0) + weight
    return weights


@lru_cache(maxsize=CACHE_SIZE)
def decode_tables(current: PortTables, ability: Ability) -> Tables | Foreign:
    """The tables that a port holds, by its known maps; Foreign if they cannot be expressed."""
    low, high = sum_weights(current.low, ability.queues), sum_weights(current.high, ability.queues)
    vls = {row[: ability.levels] for row in current.maps if row is not None} or {
        (0,) * ability.levels
    }
    if len(vls) > 1:
        return Foreign("levels go to different VLs by input port")
    if len(high) > 1 or high.keys() & low.keys():
        return Foreign(f"VLs {_format_vls(high)} of high priority, VLs {_format_vls(low)} of low")
    (queue_of,) = vls
    weights = low | high
    for level, vl in enumerate(queue_of):
        if vl not in weights:
            return Foreign(f"level {level} goes to VL {vl}, which is not served")
    lanes = [Lane(queue=vl, limit=current.limit) for vl in high]
    return Tables(
        queue_of=queue_of,
        weights=tuple(weights.get(vl, 0) for vl in range(ability.queues)),
        lane=lanes[0] if lanes else None,
    )


def is_equivalent(first: PortTables, second: PortTables) -> bool:
    """Whether a port behaves the same with both; a limit without a lane does not count."""
    if first == second:
        return True
    high = sum_weights(first.high)
    return (first.maps, sum_weights(first.low), high) == (
        second.maps,
        sum_weights(second.low),
        sum_weights(second.high),
    ) and (not high or first.limit == second.limit)


def _format_vls(vls: Iterable[int]) -> str:
    return ",".join(map(str, sorted(vls))) or "none"


# ---- From one to the other ----------------------------------------------------------------------


@lru_cache(maxsize=CACHE_SIZE)
def plan_steps(old: PortTables, new: PortTables, queues: int) -> tuple[Step, ...]:
    """What to write in turn, so that every level is always served."""
    bridge = _build_bridge(old, new, queues)
    low = bridge or old.low
    changed = {n: vls for n, vls in enumerate(new.maps) if vls and vls != old.maps[n]}
    candidates = (
        Step(maps={}, low=bridge),
        Step(maps=changed),
        Step(
            maps={},
            high=None if sum_weights(new.high) == sum_weights(old.high) else new.high,
            limit=None if new.limit == old.limit else new.limit,
        ),
        Step(maps={}, low=None if sum_weights(new.low) == sum_weights(low) else new.low),
    )
    return tuple(step for step in candidates if step != Step(maps={}))


def merge_steps(written: Iterable[Step]) -> Step:
    """What the steps write in total, the last value of each kind."""
    union = Step(maps={})
    for step in written:
        union = Step(
            maps={**union.maps, **step.maps},
            low=union.low if step.low is None else step.low,
            high=union.high if step.high is None else step.high,
            limit=union.limit if step.limit is None else step.limit,
        )
    return union


def _build_bridge(old: PortTables, new: PortTables, queues: int) -> tuple[Entry, ...] | None:
    """A low list that serves all VLs of old and new maps; None if none is needed."""
    if old.maps == new.maps and sum_weights(old.high).keys() == sum_weights(new.high).keys():
        return None
    low, later = sum_weights(old.low, queues), sum_weights(new.low, queues)
    used = _list_used(old.maps, queues) | _list_used(new.maps, queues)
    if used <= low.keys():
        return None
    if used <= later.keys():
        return new.low
    weights = {
        vl: min(ENTRY_WEIGHT, max(1, low.get(vl, 0), later.get(vl, 0)))
        for vl in sorted(used | low.keys())
    }
    return _build_entries(weights, len(old.low))


def _list_used(maps: Sequence[Map], queues: int) -> set[int]:
    if None in maps:
        return set(range(queues))
    return {vl for vls in set(maps) for vl in vls or () if vl < queues}
