"""Independent calls: in this process, in several of this machine, or on a Dask cluster's workers.

Results come as calls end, each with its call's number. A lost Dask worker costs only time: the
scheduler gives its calls to the others. When the caller leaves early, calls that run on a cluster
are told to stop (`check_stopped`). Entry points: `Call`, `run_calls`. Units: seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from weft import __version__
from weft.errors import InputError, WeftError, locate_errors
from weft.fleet.fleet import connect_client, list_workers, read_workers, refuse_version
from weft.host.machine.processes import end_only_with_parent

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


# ---- Processes of this machine ----------------------------------------------------------------


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


# ---- A Dask cluster ---------------------------------------------------------------------------


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
