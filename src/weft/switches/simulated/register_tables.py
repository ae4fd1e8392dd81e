"""Tables as the registers of a simulated switch: what fits, and how to change them. Pure.

A port has two registers, as InfiniBand has two attributes: the map of levels to queues, and the
weights with the lane. They are written one after the other, never both at once. Entry points:
`build_initial_tables`, `find_refusal`, `plan_steps`, `RegisterLayout`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from weft.switches.tables import ENTRY_WEIGHT, MAX_LIMIT, Ability, Lane, Tables, find_misfit

_MAX_UINT32 = 2**32 - 1


def build_initial_tables(ability: Ability) -> Tables:
    """An unprogrammed port: one queue for all levels."""
    weights = (ability.units, *[0] * (ability.queues - 1))
    return Tables(queue_of=(0,) * ability.levels, weights=weights)


def find_refusal(wanted: Tables, ability: Ability) -> str | None:
    """Why a port cannot hold these tables; None if it can."""
    return find_misfit(wanted, ability) or (
        _find_vlarb_refusal(wanted, ability)
        if ability.scheduler == "vlarb"
        else _find_htb_refusal(wanted, ability)
    )


def _find_vlarb_refusal(wanted: Tables, ability: Ability) -> str | None:
    lane = None if wanted.lane is None else wanted.lane.queue
    low = [weight for queue, weight in enumerate(wanted.weights) if queue != lane]
    needed = sum(-(-weight // ENTRY_WEIGHT) for weight in low)
    if needed > ability.entries:
        return f"{needed} arbitration entries needed, and it has {ability.entries}"
    if wanted.lane is not None and wanted.lane.limit > MAX_LIMIT:
        return f"limit {wanted.lane.limit} of high priority, {MAX_LIMIT} is the most"
    return None


def _find_htb_refusal(wanted: Tables, ability: Ability) -> str | None:
    if sum(wanted.weights) > ability.units:
        return f"weights sum to {sum(wanted.weights)} kbit/s, and the link has {ability.units}"
    if wanted.lane is not None and wanted.lane.limit > _MAX_UINT32:
        return f"a lane's limit of {wanted.lane.limit} bytes, {_MAX_UINT32} is the most"
    return None


def plan_steps(old: Tables, wanted: Tables, ability: Ability) -> list[Tables]:
    """The port's tables after each write of a register; every level is served in all of them."""
    between = []
    if old.queue_of != wanted.queue_of:
        both = (max(pair) for pair in zip(old.weights, wanted.weights, strict=True))
        # In between one entry per queue: every port has that many.
        most = ENTRY_WEIGHT if ability.scheduler == "vlarb" else _MAX_UINT32
        served = replace(old, weights=tuple(min(weight, most) for weight in both))
        between = [served, replace(served, queue_of=wanted.queue_of)]
    states, last = [], old
    for state in (*between, wanted):
        if state != last:
            states.append(state)
        last = state
    return states


@dataclass(frozen=True, slots=True)
class RegisterLayout:
    """The registers of a port as bytes: a byte per level, then weights, then the lane."""

    levels: int
    queues: int

    @property
    def size(self) -> int:
        return self.levels + self._weights.size

    @property
    def _weights(self) -> struct.Struct:
        return struct.Struct(f">{self.queues}IiI")

    def pack_map(self, tables: Tables) -> bytes:
        return bytes(tables.queue_of).ljust(self.levels, b"\0")

    def pack_weights(self, tables: Tables) -> bytes:
        lane = tables.lane
        none_or_lane = (-1, 0) if lane is None else (lane.queue, lane.limit)
        more = (0,) * (self.queues - len(tables.weights))
        return self._weights.pack(*tables.weights, *more, *none_or_lane)

    def unpack_tables(self, registers: bytes, ability: Ability) -> Tables:
        *weights, queue, limit = self._weights.unpack_from(registers, self.levels)
        return Tables(
            queue_of=tuple(registers[: ability.levels]),
            weights=tuple(weights[: ability.queues]),
            lane=None if queue < 0 else Lane(queue=queue, limit=limit),
        )
