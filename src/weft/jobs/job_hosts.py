"""Which host runs which instance of a job.

Hosts are named, or chosen: the first in order (`packed`), in turn from one edge switch after the
other (`spread`), or at random by the seed. Hosts with the fewest instances of earlier jobs come
first, unless a job says otherwise. No host gets two instances of one job.
Entry point: `place_jobs`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from weft.errors import InputError
from weft.jobs.job_file import Job


def place_jobs(
    jobs: Sequence[Job], hosts: Sequence[str], edges: Sequence[int], seed: int
) -> list[tuple[int, ...]]:
    """The hosts of each job's instances, as indices; `edges` is the edge switch of each host."""
    load: Counter[int] = Counter()
    placed = []
    for job in jobs:
        chosen = _name_hosts(job, hosts) if job.hosts else _choose_hosts(job, edges, load, seed)
        load.update(chosen)
        placed.append(chosen)
    return placed


def _choose_hosts(job: Job, edges: Sequence[int], load: Counter[int], seed: int) -> tuple[int, ...]:
    _check_count(job, len(edges), "the fabric")
    order = list(range(len(edges)))
    if job.placement == "random":
        random.Random(f"{seed} placement {job.name}").shuffle(order)
    elif job.placement == "spread":
        order = _deal(order, edges)
    if job.prefer_free:
        order.sort(key=lambda host: load[host])
    return tuple(order[: job.instances])


def _deal(order: Sequence[int], edges: Sequence[int]) -> list[int]:
    """One host of each edge switch, then the next of each."""
    turn: Counter[int] = Counter()
    turns = []
    for host in order:
        turns.append((turn[edges[host]], host))
        turn[edges[host]] += 1
    return [host for _, host in sorted(turns)]


def _name_hosts(job: Job, hosts: Sequence[str]) -> tuple[int, ...]:
    """Named hosts; `h0..h4` is a range in order."""
    index = {name: number for number, name in enumerate(hosts)}
    chosen: list[int] = []
    for name in job.hosts:
        first, _, last = name.partition("..")
        ends = [_find(job, index, end) for end in ((first, last) if last else (first,))]
        chosen += range(ends[0], ends[-1] + 1)
    if repeated := [host for host, count in Counter(chosen).items() if count > 1]:
        problem = f"{hosts[repeated[0]]!r} is named twice"
        raise InputError(f"{job.where}: hosts", problem, "name each host once")
    _check_count(job, len(chosen), "`hosts`")
    return tuple(chosen[: job.instances])


def _find(job: Job, index: dict[str, int], name: str) -> int:
    if name not in index:
        some = list(index)
        examples = ", ".join(some[:3]) + (f" … {some[-1]}" if len(some) > 3 else "")
        problem = f"{name!r} is not a host"
        raise InputError(f"{job.where}: hosts", problem, f"hosts are {examples}")
    return index[name]


def _check_count(job: Job, hosts: int, what: str) -> None:
    if job.instances > hosts:
        problem = f"{job.instances} instances, and {what} has {hosts} hosts"
        raise InputError(f"{job.where}: instances", problem, f"use {hosts} or fewer")
