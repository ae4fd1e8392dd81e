"""Ranks of a workload on hosts, and the flows between hosts that its messages need.

Entry points: `place_ranks`, `PlacedWorkload`. Units: ps, bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.jobs import Job
from weft.simulate.workload.operations import Operations

NO_FLOW = 2**32 - 1  # both ranks are on one host


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """What a collective moves, for its bus bandwidth."""

    size_bytes: int
    repetitions: int
    bus_factor: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedJob:
    """A job on its hosts, and the operations at which its stages begin and end.

    These are by [loop, stage, instance].
    """

    job: Job
    hosts: tuple[str, ...]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedWorkload:
    """Operations whose ranks are on hosts; `pairs` are the hosts that talk, once for each flow."""

    operations: Operations
    host: NDArray[np.uint32]  # by rank
    begin_ps: int
    pairs: NDArray[np.int64]  # rows of source and destination host
    messages: NDArray[np.int64]  # by pair
    flow: NDArray[np.uint32]  # by operation: the pair of a send, or NO_FLOW
    volume: Volume | None = None
    job: PlacedJob | None = None

    @property
    def largest_message_bytes(self) -> int:
        return int(self.operations.size_bytes.max(initial=0))


def place_ranks(ranks: int, hosts: Sequence[int], ranks_per_host: int, place: str) -> list[int]:
    """The host of each rank: `ranks_per_host` ranks side by side on each host, in order."""
    if ranks > len(hosts) * ranks_per_host:
        raise InputError(
            place,
            f"{ranks} ranks do not fit on {len(hosts)} hosts with {ranks_per_host} ranks each",
            "name more hosts, or raise ranks_per_host",
        )
    return [hosts[rank // ranks_per_host] for rank in range(ranks)]


def place_workload(
    operations: Operations,
    hosts: Sequence[int],
    begin_ps: int,
    volume: Volume | None = None,
    *,
    flows: int = 1,
    job: PlacedJob | None = None,
) -> PlacedWorkload:
    """The workload with rank r on hosts[r]; a message's tag modulo `flows` chooses its flow."""
    host = np.array(hosts, dtype=np.uint32)
    sends = operations.sends
    source, target = host[operations.rank[sends]], host[operations.peer[sends]]
    leaves = source != target
    keys = (source[leaves].astype(np.int64) << 28 | target[leaves]) * flows
    keys += operations.tag[sends[leaves]] % flows
    distinct, number, messages = np.unique(keys, return_inverse=True, return_counts=True)
    flow = np.full(len(operations), NO_FLOW, dtype=np.uint32)
    flow[sends[leaves]] = number
    return PlacedWorkload(
        operations=operations,
        host=host,
        begin_ps=begin_ps,
        pairs=np.stack([distinct // flows >> 28, distinct // flows & 0xFFFFFFF], axis=1),
        messages=messages,
        flow=flow,
        volume=volume,
        job=job,
    )
