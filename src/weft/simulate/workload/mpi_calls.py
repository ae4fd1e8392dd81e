"""MPI calls of a real program as a workload: trace it, then read what it called.

**Tracing.** A profiling library (PMPI) is loaded before the program and writes down its calls. The
library is compiled for the MPI whose mpicc is found, so it fits the program's. Ranks write
PREFIX.0, PREFIX.1, …; `trace_calls.c` says what. The program needs no change, but it must be linked
dynamically, call MPI from C (as mpi4py does, and as Fortran mostly does not), and from one thread.

**Reading.** The file of a rank has a line for each call, with the time since the call before, which
becomes a computation. A send of at most `eager_bytes` lets its rank go on at once, a larger one
when it is sent. Collectives become the operations of the first algorithm of each.
Entry points: `trace_program`, `read_mpi_calls`. Units: ps, bytes; the files have ns.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from weft.errors import InputError
from weft.simulate.workload.collectives import ALGORITHMS, CollectiveCalls
from weft.simulate.workload.operations import (
    ENDS,
    MAX_RANKS,
    STARTS,
    Builder,
    Operations,
    check_operations,
)

# ---- Tracing ----------------------------------------------------------------------------------

SOURCE = Path(__file__).with_name("trace_calls.c")


def trace_program(command: Sequence[str], prefix: Path) -> int:
    """The command's exit status; its ranks' files are PREFIX.RANK."""
    program = shutil.which(command[0])
    if program is None:
        raise InputError(command[0], "is not a command", "check its name and PATH")
    with tempfile.TemporaryDirectory(prefix="weft-trace-") as folder:
        library = _compile(Path(folder))
        loaded = " ".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
        environment = os.environ | {"LD_PRELOAD": loaded, "WEFT_TRACE": str(prefix.absolute())}
        done = subprocess.run([program, *command[1:]], env=environment, check=False)
    if not Path(f"{prefix}.0").exists():
        raise InputError(
            " ".join(command),
            f"ended with status {done.returncode} and no trace",
            "it must call MPI_Init of the MPI that mpicc belongs to, here or on a shared disk",
        )
    return done.returncode


def _compile(folder: Path) -> Path:
    compiler = _find_compiler()
    library = folder / "libweft_trace.so"
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        problem = next(iter(done.stderr.splitlines()), "failed")
        raise InputError(compiler, problem, "check that it compiles MPI programs")
    return library


def _find_compiler() -> str:
    """$MPICC, or mpicc of the PATH, or of this Python's folder, where mpich from PyPI puts it."""
    wanted = os.environ.get("MPICC", "mpicc")
    path = f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
    compiler = shutil.which(wanted, path=path)
    if compiler is None:
        raise InputError(wanted, "is not installed", "install MPI's compiler, or set MPICC to it")
    return compiler


# ---- Reading ----------------------------------------------------------------------------------

PROGRAM_CPU, MARK_CPU = 0, 1
PS_PER_NS = 1000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MpiCalls:
    """The workload of a program, and how long each rank really took from MPI_Init on."""

    operations: Operations
    real_ps: tuple[int, ...]  # by rank


def read_mpi_calls(prefix: Path, eager_bytes: int = 65536) -> MpiCalls:
    """The calls in the files of all ranks."""
    lines = [_read_lines(prefix, 0)]
    ranks = int(lines[0][0].words[-1])
    if not 1 <= ranks <= MAX_RANKS:
        raise InputError(f"{prefix}.0 line 1", f"{ranks} ranks", f"1 to {MAX_RANKS} are possible")
    lines += [_read_lines(prefix, rank) for rank in range(1, ranks)]
    builder = Builder(ranks)
    calls = CollectiveCalls(builder, MARK_CPU)
    real_ps = tuple(
        _Program(rank, builder, calls, eager_bytes).add(of_rank)
        for rank, of_rank in enumerate(lines)
    )
    calls.add_operations()
    operations = builder.build()
    check_operations(operations, str(prefix))
    return MpiCalls(operations=operations, real_ps=real_ps)


@dataclass(frozen=True, slots=True)
class _Line:
    place: str
    words: list[str]


def _read_lines(prefix: Path, rank: int) -> list[_Line]:
    path = Path(f"{prefix}.{rank}")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            str(path), error.strerror or str(error), "trace the program again"
        ) from error
    except UnicodeDecodeError:
        raise InputError(str(path), "is not a trace of MPI calls", "trace it again") from None
    lines = [_Line(f"{path} line {n}", line.split()) for n, line in enumerate(text.split("\n"), 1)]
    lines = [line for line in lines if line.words]
    if not lines or lines[0].words[:3] != ["weft-mpi-trace", "1", str(rank)]:
        raise InputError(str(path), "is not a trace of MPI calls", "trace the program again")
    if lines[-1].words[2:3] != ["end"]:
        raise InputError(str(path), "has no end: MPI_Finalize was not called", "let it finish")
    return lines


@dataclass(slots=True)
class _Program:
    """One rank: what its next operation waits for, and its requests."""

    rank: int
    builder: Builder
    calls: CollectiveCalls
    eager_bytes: int
    before: list[tuple[int, int]] = field(default_factory=list)  # operation, ENDS or STARTS
    requests: dict[int, int] = field(default_factory=dict)

    def add(self, lines: Sequence[_Line]) -> int:
        """Add the rank's operations; how long it really took, in ps."""
        received = dict(_find_received(lines))
        for line in lines[1:]:
            try:
                gap_ns, name, words = int(line.words[0]), line.words[2], line.words[3:]
                if gap_ns > 0:
                    compute = self.builder.compute(self.rank, gap_ns * PS_PER_NS, cpu=PROGRAM_CPU)
                    self._follow(compute, ENDS)
                self._add_call(line.place, name, words, received)
            except (ValueError, IndexError, KeyError):
                raise InputError(
                    line.place, f"{' '.join(line.words)[:60]!r} is not a call", "trace it again"
                ) from None
        return int(lines[-1].words[3]) * PS_PER_NS

    def _add_call(
        self, place: str, name: str, words: list[str], received: dict[int, tuple[int, int, int]]
    ) -> None:
        if name in ("end", "probe"):
            return
        if name == "unsupported":
            raise InputError(place, f"{words[0]} has no place in a workload", "avoid the call")
        if name in ALGORITHMS:
            self._add_collective(place, name, words)
        elif name == "irecv":
            number = int(words[1])
            if number in received:  # else it never completed
                self.requests[number] = self._post(self._receive(*received[number]))
                self.before = [(self.requests[number], STARTS)]
        elif name == "isend":
            number, operation = self._send(words)
            self.requests[number] = self._post(operation)
            self.before = [(operation, STARTS)]
        elif name in ("send", "ssend", "recv", "sendrecv"):
            self.before = list(self._exchange(name, words))
        elif name == "wait":
            self.before += [(self.requests[n], ENDS) for n in _list_completed(words)]
        else:
            raise KeyError(name)

    def _exchange(self, name: str, words: list[str]) -> Iterator[tuple[int, int]]:
        """Post the sends and receives of a blocking call; what the rank then waits for."""
        posted = []
        if "to" in words:
            operation = self._send(words)[1]
            is_eager = name != "ssend" and int(words[3]) <= self.eager_bytes
            posted.append((operation, STARTS if is_eager else ENDS))
            words = words[5:]
        if words:
            _, peer, size, tag = (int(word) for word in words[1:5])
            posted.append((self._receive(peer, size, tag), ENDS))
        for operation, _ in posted:
            self._post(operation)
        yield from posted

    def _add_collective(self, place: str, name: str, words: list[str]) -> None:
        size, root, members = int(words[0]), int(words[1]), " ".join(words[2:])
        ends = self.calls.enter(self.rank, members, name, size, place, root)
        self._post(ends.first)
        self.before = [(ends.last, ENDS)]

    def _send(self, words: list[str]) -> tuple[int, int]:
        number, peer, size, tag = (int(word) for word in words[1:5])
        return number, self.builder.send(self.rank, peer, size, tag=tag)

    def _receive(self, peer: int, size: int, tag: int) -> int:
        return self.builder.receive(self.rank, peer, size, tag=tag)

    def _post(self, operation: int) -> int:
        for before, kind in self.before:
            self.builder.require(operation, before, kind)
        return operation

    def _follow(self, operation: int, kind: int) -> None:
        self._post(operation)
        self.before = [(operation, kind)]


def _find_received(lines: Sequence[_Line]) -> Iterator[tuple[int, tuple[int, int, int]]]:
    """Request -> source, size and tag, from the calls that completed it."""
    for line in lines[1:]:
        words = line.words[3:]
        for at in (i for i, word in enumerate(words) if word == "received"):
            number, peer, size, tag = (int(word) for word in words[at + 1 : at + 5])
            yield number, (peer, size, tag)


def _list_completed(words: list[str]) -> Iterator[int]:
    for at, word in enumerate(words):
        if word in ("received", "sent"):
            yield int(words[at + 1])
