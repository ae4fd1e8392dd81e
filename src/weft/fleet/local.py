"""A fleet on this machine: one process for each host, reached over loopback.

Every host gets an address of its own in 127.0.0.0/8, so that a plan runs unchanged without a
cluster. Entry point: `local_fleet`.
"""

from __future__ import annotations

import ctypes
import ipaddress
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

from weft.errors import InputError
from weft.fleet.fleet import Fleet

PR_SET_PDEATHSIG = 1
START_S = 60.0
END_S = 5.0
FIRST = ipaddress.ip_address("127.0.0.1")


@contextmanager
def local_fleet(hosts: Sequence[str]) -> Iterator[Fleet]:
    """A process for each host; all end with the context."""
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
        _end(pools, set(pids.values()))


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_end_with_parent,
        initargs=(os.getpid(),),
    )


def _end_with_parent(parent: int) -> None:
    """A host's process does not outlive its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


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


def _end(pools: Mapping[str, ProcessPoolExecutor], pids: Set[int]) -> None:
    """Processes end by themselves; those that do not within END_S are killed."""
    for pool in pools.values():
        pool.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + END_S
    for process in multiprocessing.active_children():
        if process.pid in pids:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
