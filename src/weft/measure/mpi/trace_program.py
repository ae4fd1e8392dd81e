"""Run an MPI program and write down its calls, by a profiling library (PMPI) loaded before it.

The library is compiled for the MPI whose mpicc is found, so it fits the program's. Ranks write
PREFIX.0, PREFIX.1, …; `trace_calls.c` says what. The program needs no change, but it must be linked
dynamically, call MPI from C (as mpi4py does, and as Fortran mostly does not), and from one thread.
Entry point: `trace_program`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weft.errors import InputError

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
