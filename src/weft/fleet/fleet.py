"""Where work runs: a worker for each host of a fleet, or independent calls that run anywhere.

**A fleet** is processes on this machine, or workers of a Dask cluster. An executor is Python's own
(`concurrent.futures`): `submit(function, *args)` runs the function in the host's one worker
process, one call at a time. Local hosts get addresses of their own in 127.0.0.0/8, so that a plan
runs unchanged without a cluster. Slurm, ssh and Kubernetes start Dask workers, one per host; we
choose among them by name and send each its calls. A worker is a plan's host when it has its name,
runs on a machine of that name, or has the host's address, in this order.

**Independent calls** run in this process, in several of this machine, or on a Dask cluster's
workers. Results come as calls end, each with its call's number. A lost Dask worker costs only time:
the scheduler gives its calls to the others. When the caller leaves early, calls that run on a
cluster are told to stop (`check_stopped`).
Entry points: `Fleet`, `local_fleet`, `dask_fleet`; `Call`, `run_calls`. Units: seconds.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import ipaddress
import logging
import multiprocessing
import os
import queue
import signal
import socket
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

from weft import __version__
from weft.errors import InputError, WeftError, locate_errors
from weft.host.machine.processes import end_only_with_parent

# ---- Fleets -----------------------------------------------------------------------------------

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


# ---- Fleets of Dask workers -------------------------------------------------------------------

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


# ---- Independent calls ------------------------------------------------------------------------

LOOK_S = 1.0  # between looks at a cluster's workers
NO_WORKERS_S = 30.0  # how long a cluster may lack workers; a nanny restarts its worker sooner
STOP_S = 2.0
AGAIN = "repeat the command: what -o has stored is not run again"

T = TypeVar("T")
Look = Callable[[], bool]  # whether calls can still end


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of one call, and its name in errors."""

    name: str
    arguments: tuple[Any, ...]


class CallStopped(WeftError):
    """The caller has left: nobody waits for this call's result."""


def run_calls(
    function: Callable[..., T],
    calls: Sequence[Call],
    *,
    where: str,
    jobs: int = 1,
    cluster: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Iterator[tuple[int, T]]:
    """(number of the call, its result) as calls end; to close the iterator ends them all.

    `where` is what the calls are of, in errors. `cluster` is the address of a Dask scheduler.
    """
    if not calls:
        return
    jobs = min(jobs, len(calls))
    if jobs == 1 and cluster is None:
        yield from _run_here(function, calls, progress)
        return
    with _open_processes(jobs) if cluster is None else _open_cluster(cluster) as (executor, look):
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        futures: list[Future[T]] = []
        for number, call in enumerate(calls):
            futures.append(executor.submit(function, *call.arguments))
            futures[-1].add_done_callback(partial(_report_end, ended, number))
        for done in range(len(calls)):
            last = _await_next(ended, look)
            if last is None or futures[last].cancelled():
                problem = f"the scheduler was lost with {done} of {len(calls)} points done"
                raise InputError(f"--cluster {cluster}", problem, f"start it, and {AGAIN}")
            if (error := futures[last].exception()) is not None:
                raise _explain_failure(error, where, calls[last].name) from error
            yield last, futures[last].result()
            if progress:
                progress((done + 1) / len(calls))


def _run_here(
    function: Callable[..., T], calls: Sequence[Call], progress: Callable[[float], None] | None
) -> Iterator[tuple[int, T]]:
    for number, call in enumerate(calls):
        yield number, function(*call.arguments)
        if progress:
            progress((number + 1) / len(calls))


def _report_end(ended: queue.SimpleQueue[int], number: int, _: Future[Any]) -> None:
    ended.put(number)


def _await_next(ended: queue.SimpleQueue[int], look: Look) -> int | None:
    """The number of a call that has ended; None if no further one can."""
    while True:
        can_end = look()
        with suppress(queue.Empty):
            return ended.get(timeout=LOOK_S)
        if not can_end:
            return None


def _explain_failure(error: BaseException, where: str, name: str) -> BaseException:
    """What the user can act on, with the call's name; a bug as it is."""
    if isinstance(error, BrokenProcessPool):
        problem = "a process was killed, perhaps for lack of memory"
        return InputError(where, problem, f"lower --jobs, and {AGAIN}")
    if isinstance(error, InputError):
        return InputError(f"{name}: {error.where}", error.problem, error.remedy)
    if isinstance(error, WeftError | OSError | MemoryError | ImportError):
        text = str(error) if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"
        return WeftError(f"{where}: {name}: {text}")
    if type(error).__name__ == "KilledWorker":  # not imported where there is no Dask
        last = error.last_worker.address  # type: ignore[attr-defined]
        problem = f"several Dask workers died while they ran it, the last at {last}"
        return InputError(f"{where}: {name}", problem, "read its log; its memory may be too small")
    error.add_note(f"{where}: {name}")
    return error


# ---- Calls in processes of this machine -------------------------------------------------------


def check_jobs(jobs: int) -> None:
    if jobs < 1:
        raise InputError("--jobs", f"{jobs} is too few", "use 1 or more")


@contextmanager
def _open_processes(jobs: int) -> Iterator[tuple[Executor, Look]]:
    before = multiprocessing.active_children()
    with ProcessPoolExecutor(
        max_workers=jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=end_only_with_parent,
        initargs=(os.getpid(),),
    ) as pool:
        try:
            yield pool, lambda: True
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                if process not in before:
                    process.kill()
            raise


# ---- Calls on a Dask cluster ------------------------------------------------------------------


def check_cluster(scheduler: str) -> None:
    """Refuses a cluster on which no call can run: unreachable, without workers, another weft."""
    with _open_cluster(scheduler):
        pass


@contextmanager
def _open_cluster(scheduler: str) -> Iterator[tuple[Executor, Look]]:
    client = connect_client(scheduler)
    run = uuid.uuid4().hex
    try:
        watch = _WorkerWatch(client, f"--cluster {scheduler}")
        executor = _ClusterExecutor(client.get_executor(pure=False, retries=0), run)
        try:
            yield executor, watch.look
        except BaseException:
            _stop_calls(client, run)
            raise
    finally:
        client.close(timeout=STOP_S)


class _ClusterExecutor(Executor):
    """Runs every call in a worker of this weft, as a part of one run."""

    def __init__(self, executor: Executor, run: str) -> None:
        self._executor = executor
        self._run = run

    def submit(self, function: Callable[..., T], /, *args: Any, **options: Any) -> Future[T]:
        return self._executor.submit(
            _call_in_worker, __version__, self._run, function, *args, **options
        )


class _WorkerWatch:
    """Names workers that leave the cluster; raises when none is left for a while."""

    def __init__(self, client: Any, where: str) -> None:
        self._client = client
        self._where = where
        self._names = {worker.address: worker.name for worker in list_workers(client)}
        self._looked_s = self._last_worker_s = time.monotonic()
        if not self._names:
            remedy = f"start some: dask worker {client.scheduler.address} --nthreads 1"
            raise InputError(where, "no workers", remedy)

    def look(self) -> bool:
        """Whether the client still has the scheduler and its futures."""
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return True
        try:
            present = {a: str(info["name"]) for a, info in read_workers(self._client).items()}
        except OSError:
            return False
        if not self._client.futures:  # cleared when it connects again
            return False
        for address in self._names.keys() - present.keys():
            warnings.warn(
                f"Dask worker {self._names[address]} ({address}) has left; its points run again",
                stacklevel=2,
            )
        self._names, self._looked_s = present, now
        if present:
            self._last_worker_s = now
        elif now - self._last_worker_s > NO_WORKERS_S:
            raise InputError(self._where, "no worker is left", f"start some, and {AGAIN}")
        return True


def _stop_calls(client: Any, run: str) -> None:
    """Tells every worker; those that do not answer at once are not waited for."""

    def tell() -> None:
        with suppress(OSError):
            client.run(_stop_run, run, on_error="ignore")

    if client.status == "running":
        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        thread.join(STOP_S)


# In a worker: the runs whose callers have left, and the run of this thread's call.
_stopped_runs: set[str] = set()
_current = threading.local()


def _call_in_worker(version: str, run: str, function: Callable[..., T], *args: Any) -> T:
    """Workers may join while calls run, so each call checks its worker's version."""
    from distributed import get_worker

    name = str(get_worker().name)
    if version != __version__:
        refuse_version(name, __version__, expected=version)
    _current.run = run
    check_stopped()
    with locate_errors(f"Dask worker {name}"):
        return function(*args)


def _stop_run(run: str) -> None:
    _stopped_runs.add(run)


def check_stopped() -> None:
    """In a call that takes long: raises `CallStopped` once its caller has left."""
    if getattr(_current, "run", None) in _stopped_runs:
        raise CallStopped("the caller has left")
