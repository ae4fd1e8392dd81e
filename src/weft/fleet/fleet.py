"""What a fleet is, and two kinds: processes on this machine, and workers of a Dask cluster.

An executor is Python's own (`concurrent.futures`): `submit(function, *args)` runs the function in
the host's one worker process, one call at a time. Local hosts get addresses of their own in
127.0.0.0/8, so that a plan runs unchanged without a cluster.

Slurm, ssh and Kubernetes start Dask workers, one per host; we choose among them by name and send
each its calls. A worker is a plan's host when it has its name, runs on a machine of that name, or
has the host's address, in this order. Entry points: `Fleet`, `local_fleet`, `dask_fleet`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import ipaddress
import logging
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

from weft import __version__
from weft.errors import InputError, WeftError
from weft.host.machine.processes import end_only_with_parent

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


# ---- A Dask cluster -----------------------------------------------------------------------------

CONNECT_S = 5
SCHEMES = ("tcp", "tls", "ucx", "ws", "wss")
# Workers tell the scheduler that they live at least once a second.
SILENT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One Dask worker: its address for Dask, the name it was given, and its machine's."""

    address: str
    name: str
    machine: str

    @property
    def ip(self) -> str:
        return urlsplit(self.address).hostname or ""


@contextmanager
def dask_fleet(scheduler: str, wanted: Mapping[str, str | None] | None = None) -> Iterator[Fleet]:
    """The workers of the hosts in `wanted`, which gives each host's address if it has one.

    Without `wanted`: all workers, each a host of its name.
    """
    client = connect_client(scheduler)
    try:
        chosen = _match_workers(list_workers(client), wanted, f"--cluster {scheduler}")
        yield Fleet(
            executors={
                host: client.get_executor(workers=[w.address], pure=False, retries=0)
                for host, w in chosen.items()
            },
            addresses={host: worker.ip for host, worker in chosen.items()},
            coordinator=_our_address(client),
            find_lost=lambda: _find_lost(client, chosen),
        )
    finally:
        client.close(timeout=2)


def _check_address(scheduler: str) -> None:
    """Dask takes what it cannot use for a while before it complains."""
    try:
        parts = urlsplit(scheduler)
        is_valid = parts.scheme in SCHEMES and parts.hostname and parts.port
    except ValueError:  # a port that is none
        is_valid = False
    if not is_valid:
        raise InputError(
            f"--cluster {scheduler}", "not the address of a scheduler", "write tcp://HOST:PORT"
        )


def connect_client(scheduler: str) -> Any:
    _check_address(scheduler)
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            f"--cluster {scheduler}", f"needs Dask ({error})", "pip install 'weft[cluster]'"
        ) from error
    # What its client logs of a lost scheduler, we report in a line of our own.
    for name in ("distributed.client", "tornado.application"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with ThreadPoolExecutor(1) as thread:  # the caller's may have an event loop of its own
            thread.submit(asyncio.run, _greet(distributed, scheduler)).result()
        return distributed.Client(scheduler, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, MemoryError) as error:  # TimeoutError is an OSError
        raise InputError(
            f"--cluster {scheduler}",
            "no Dask scheduler answers there",
            "start one with `dask scheduler`, and give its address as tcp://HOST:PORT",
        ) from error


async def _greet(distributed: Any, scheduler: str) -> None:
    """Dask's handshake; a stranger's answer may be any error, also a frame too large for memory.

    A client that fails here would wait for itself for a long time.
    """
    arguments = distributed.Security().get_connection_args("client")
    async with asyncio.timeout(CONNECT_S):
        connection = await distributed.comm.connect(scheduler, **arguments)
    await connection.close()


def list_workers(client: Any) -> list[Worker]:
    """The cluster's workers; all must have this weft."""
    names = {a: str(info["name"]) for a, info in read_workers(client).items()}
    machines = client.run(socket.gethostname)
    workers = [
        Worker(address=address, name=name, machine=machines[address])
        for address, name in names.items()
        if address in machines
    ]
    versions = client.run(importlib.metadata.version, "weft", on_error="return")
    for worker in workers:
        version = versions.get(worker.address)
        if version != __version__:
            refuse_version(worker.name, version, expected=__version__)
    return workers


def refuse_version(worker: str, version: object, *, expected: str) -> NoReturn:
    has = f"weft {version}" if isinstance(version, str) else "no weft"
    raise InputError(
        f"Dask worker {worker}",
        f"has {has}, and here is {expected}",
        "install the same version on every host",
    )


def _match_workers(
    workers: list[Worker], wanted: Mapping[str, str | None] | None, where: str
) -> dict[str, Worker]:
    if wanted is not None:
        return choose(workers, wanted, where)
    if not workers:
        raise InputError(where, "no workers", "start one on each host: `dask worker --name HOST`")
    return {worker.name: worker for worker in workers}


def choose(
    workers: list[Worker], wanted: Mapping[str, str | None], where: str
) -> dict[str, Worker]:
    """The one worker of each host; refuses hosts without one and workers taken twice."""
    chosen: dict[str, Worker] = {}
    for host, address in wanted.items():
        worker = _find_worker(host, address, workers, where)
        for other, matched in chosen.items():
            if matched == worker:
                raise InputError(
                    where,
                    f"{other} and {host} are both on worker {worker.name}",
                    "start one worker per host",
                )
        chosen[host] = worker
    return chosen


def _find_worker(host: str, address: str | None, workers: list[Worker], where: str) -> Worker:
    for match in (
        [w for w in workers if w.name == host],
        [w for w in workers if w.machine == host],
        [w for w in workers if address is not None and w.ip == address],
    ):
        if len(match) > 1:
            names = ", ".join(w.name for w in match)
            raise InputError(
                where,
                f"host {host} has {len(match)} workers ({names})",
                "start one worker per host, or name one of them by the host",
            )
        if match:
            return match[0]
    present = ", ".join(sorted(f"{w.name} (on {w.machine}, {w.ip})" for w in workers)) or "none"
    raise InputError(
        where,
        f"no worker for host {host}",
        f"start one with `dask worker --name {host}`; workers there: {present}",
    )


def read_workers(client: Any) -> Mapping[str, Mapping[str, Any]]:
    """The scheduler's workers by address; OSError if it does not answer.

    Not `client.scheduler_info`: a timer of the client's replaces its answer by one without workers.
    """
    if client.status != "running":
        raise OSError("the client has lost its scheduler")
    identity = client.scheduler.identity
    answer = client.sync(identity, n_workers=-1, callback_timeout=CONNECT_S)
    workers: Mapping[str, Mapping[str, Any]] = answer["workers"]
    return workers


def _our_address(client: Any) -> str:
    """Our address on the way to the scheduler: the one that workers connect to."""
    scheduler = urlsplit(client.scheduler.address)
    family = socket.AF_INET6 if ":" in (scheduler.hostname or "") else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((scheduler.hostname, scheduler.port or 1))
        return str(probe.getsockname()[0])


def _find_lost(client: Any, chosen: Mapping[str, Worker]) -> dict[str, str]:
    """Hosts whose workers have left the cluster, or have been silent for too long."""
    try:
        present = read_workers(client)
    except OSError as error:
        return dict.fromkeys(chosen, f"the Dask scheduler does not answer ({error})")
    # The scheduler's clock is not ours: the newest sign of life tells its time.
    now = max((info["last_seen"] for info in present.values()), default=0.0)
    lost: dict[str, str] = {}
    for host, worker in chosen.items():
        info = present.get(worker.address)
        if info is None:
            lost[host] = f"its Dask worker {worker.address} has left the cluster"
        elif now - info["last_seen"] > SILENT_S:
            lost[host] = f"its Dask worker {worker.address} is silent"
    return lost
