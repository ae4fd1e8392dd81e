"""What a fleet is, and a fleet on this machine: one process per host, reached over loopback.

An executor is Python's own (`concurrent.futures`): `submit(function, *args)` runs the function in
the host's one worker process, one call at a time. Local hosts get addresses of their own in
127.0.0.0/8, so that a plan runs unchanged without a cluster. Entry points: `Fleet`, `local_fleet`.
"""

from __future__ import annotations

import ipaddress
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass

from weft.errors import InputError, WeftError
from weft.host.machine.parent_death import end_only_with_parent

START_S = 60.0
END_S = 5.0
FIRST = ipaddress.ip_address("127.0.0.1")


class HostLost(WeftError):
    """A host that took part is lost: `host: reason`."""

    def __init__(self, host: str, reason: str) -> None:
        self.host = host
        self.reason = reason
        super().__init__(f"{host}: {reason}")

    def __reduce__(self) -> tuple[type[HostLost], tuple[str, str]]:
        return HostLost, (self.host, self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The hosts of a plan.

    `addresses` are those by which hosts reach each other where the plan gives none;
    `coordinator` is the address by which they reach this process. `find_lost` returns the hosts
    whose workers are lost, each with the reason.
    """

    executors: Mapping[str, Executor]
    addresses: Mapping[str, str]
    coordinator: str
    find_lost: Callable[[], Mapping[str, str]] = dict  # none is


@contextmanager
def local_fleet(hosts: Sequence[str], end_s: float = END_S) -> Iterator[Fleet]:
    """A process for each host; all end with the context, after `end_s` by force."""
    pools = {host: _pool() for host in hosts}
    pids: dict[str, int] = {}
    try:
        pids |= _start(pools)
        yield Fleet(
            executors=pools,
            addresses={host: _loopback_address(number) for number, host in enumerate(hosts)},
            coordinator=str(FIRST),
            find_lost=lambda: _find_dead(pids),
        )
    finally:
        _end(pools, set(pids.values()), end_s)


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=end_only_with_parent,
        initargs=(os.getpid(),),
    )


def _start(pools: Mapping[str, ProcessPoolExecutor]) -> dict[str, int]:
    """Process ids by host, once all processes run."""
    with _block_interrupts():
        futures = {host: pool.submit(os.getpid) for host, pool in pools.items()}
    try:
        return {host: future.result(START_S) for host, future in futures.items()}
    except (BrokenProcessPool, TimeoutError) as error:
        raise InputError(
            "local processes", "could not be started", "free some memory, or use --cluster"
        ) from error


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Processes started inside never get Ctrl-C, not even while they load; ours gets it after."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _loopback_address(number: int) -> str:
    """127.0.0.1, 127.0.0.2, ...: all are this machine on Linux; elsewhere only the first is."""
    return str(FIRST + number) if sys.platform == "linux" else str(FIRST)


def _find_dead(pids: Mapping[str, int]) -> dict[str, str]:
    return {host: f"its process {pid} has died" for host, pid in pids.items() if not _is_alive(pid)}


def _is_alive(pid: int) -> bool:
    return any(child.pid == pid for child in multiprocessing.active_children())


def _end(pools: Mapping[str, ProcessPoolExecutor], pids: Set[int], end_s: float) -> None:
    """Processes end by themselves; those that do not within `end_s` are killed."""
    for pool in pools.values():
        pool.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + end_s
    for process in multiprocessing.active_children():
        if process.pid in pids:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
