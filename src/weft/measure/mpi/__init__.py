"""The tests over MPI, through mpi4py: two ranks of one `mpirun`, rank 0 measures.

    mpirun -n 2 weft latency --over mpi

The loops are in Python, so its cost per message is part of every figure: `Ranks.python_cost_ns`
is what a half round trip costs without any transport, to be put beside the result. Rank 0 measures
inside `ranks`, by `weft.measure.latency(over="mpi")` and the like or by `Ranks.run`; rank 1 calls
`respond`, which returns when rank 0 is done.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.errors import InputError
from weft.measure.mpi import rank_loops
from weft.measure.mpi.rank_job import REFUSED, LatencyResult, PacedResult, RankJob, build_job
from weft.measure.observation import Counts

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = [
    "REFUSED",
    "Counts",
    "LatencyResult",
    "Outcome",
    "PacedResult",
    "RankJob",
    "Ranks",
    "build_job",
    "ranks",
    "respond",
    "this_rank",
]

MEASURES, RESPONDS = 0, 1
COMMAND = "mpirun -n 2 weft latency --over mpi"
PYTHON_COST_MESSAGES = 20_000
IDLE_S = 0.001
CHOICES = ("FI_PROVIDER", "MPIR_CVAR_", "OMPI_MCA_", "UCX_", "PMIX_MCA_")

Result = LatencyResult | PacedResult | Counts | tuple[Counts, Counts]

# What rank 0 does, and what rank 1 does meanwhile.
PAIRS: Mapping[str, tuple[Callable[..., Result], Callable[..., Counts]]] = {
    "latency": (rank_loops.ping_pong, rank_loops.echo),
    "paced": (rank_loops.run_paced, rank_loops.echo),
    "bandwidth": (rank_loops.stream, rank_loops.sink),
    "bidirectional": (rank_loops.duplex, rank_loops.duplex_back),
    "rma": (rank_loops.time_operations, rank_loops.offer_memory),
    "rma-windowed": (rank_loops.run_operations, rank_loops.offer_memory),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What rank 0 measured and what rank 1 counted."""

    result: Result
    peer_counts: Counts


def this_rank() -> int:
    """0 or 1. Anything but two ranks, or no MPI at all, is an error that says what to do."""
    return int(_world().rank)


@contextmanager
def ranks() -> Iterator[Ranks]:
    """Rank 0's side; rank 1 is released at the end."""
    comm = _world()
    try:
        yield Ranks(comm)
    finally:
        comm.send(None, dest=RESPONDS)


def respond() -> None:
    """Rank 1's side: run what rank 0 asks for, until it asks for no more."""
    comm = _world()
    while (job := _next_job(comm)) is not None:
        with _fail_together(comm):
            comm.send(_run_loop(comm, RESPONDS, job), dest=MEASURES)


def _next_job(comm: MPI.Intracomm) -> RankJob | None:
    """Asleep meanwhile: an MPI library that waits takes a whole CPU from other measurements."""
    while not comm.iprobe(source=MEASURES):
        time.sleep(IDLE_S)
    job: RankJob | None = comm.recv(source=MEASURES)
    return job


@contextmanager
def _fail_together(comm: MPI.Intracomm) -> Iterator[None]:
    """A rank that fails during a job ends both: the other would wait for it forever."""
    done = False
    try:
        yield
        done = True
    finally:
        if not done:
            traceback.print_exc()
            comm.Abort(2)


class Ranks:
    """Both ranks, as rank 0 sees them."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm

    @staticmethod
    def current() -> Ranks:
        return Ranks(_world())

    def run(self, job: RankJob) -> Outcome:
        with _fail_together(self._comm):
            self._comm.send(job, dest=RESPONDS)
            result = _run_loop(self._comm, MEASURES, job)
            answer = self._comm.recv(source=RESPONDS)
        peer_counts = answer if isinstance(answer, Counts) else Counts()
        return Outcome(result=result, peer_counts=peer_counts)

    def python_cost_ns(self, size_bytes: int = 64) -> float:
        """Median cost of one Send, one Recv and the clock when nothing is sent.

        Both sides do one Send and one Recv per round trip, hence this much per half of it.
        """
        from mpi4py import MPI

        job = RankJob(test="latency", size_bytes=size_bytes, count=PYTHON_COST_MESSAGES)
        nothing_sent = rank_loops.ping_pong(self._comm, MPI.PROC_NULL, job)
        return 2 * nothing_sent.latency.quantile(0.5) / 1000

    def describe(self) -> dict[str, str]:
        """The library and whatever in the environment chooses its transport."""
        import mpi4py
        from mpi4py import MPI

        library = MPI.Get_library_version().split("\n")[0].split(",")[0]
        return {
            "library": " ".join(library.replace("\0", "").split()),
            "mpi4py": mpi4py.__version__,
            "ranks": "2",
            **_choices(os.environ),
        }


def _choices(environment: Mapping[str, str]) -> dict[str, str]:
    return {key: environment[key] for key in sorted(environment) if key.startswith(CHOICES)}


def _run_loop(comm: MPI.Intracomm, rank: int, job: RankJob) -> Result:
    loop: Callable[..., Result] = PAIRS[job.test][rank]
    peer = 1 - rank
    if job.warmup:
        loop(comm, peer, replace(job, count=job.warmup, duration_ns=0, samples=0))
    return loop(comm, peer, job)


def _world() -> MPI.Intracomm:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise InputError(
            "mpi", f"is not available, because {error}", "pip install 'weft[mpi]'"
        ) from error
    if MPI.COMM_WORLD.size != 2:
        raise InputError("mpi", f"{MPI.COMM_WORLD.size} ranks, 2 are needed", f"run {COMMAND}")
    return MPI.COMM_WORLD
