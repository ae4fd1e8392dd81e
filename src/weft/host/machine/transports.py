"""Which transports this host can measure over, or why not. Entry point: `list_transports`."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft._core import Availability, availability

# Loading an MPI library may end the process, so a child process tries.
_MPI = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
_MPI_VERSION = _MPI + "print(MPI.Get_library_version().splitlines()[0].strip('\\0 '))"
_MPI_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """`over` is the value of `--over`; `reason` and `remedy` are set for those not available."""

    over: str
    available: bool
    reason: str = ""
    remedy: str = ""
    endpoints: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    max_bytes: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)


# The operations of core/transport/endpoint.hpp.
OPERATIONS = frozenset(
    {"send", "tagged", "inject", "write", "write-imm", "read", "fetch-add", "compare-swap"}
)
# The usual order of interest.
_ORDER = ("verbs", "ofi", "tcp", "udp", "delay", "mpi")


def list_transports() -> list[Transport]:
    """Every transport, device and provider: those of the core, and MPI."""
    transports = [*map(_build_transport, availability()), _find_mpi()]
    return sorted(transports, key=lambda transport: _ORDER.index(transport.over.partition(":")[0]))


def is_remote(transport: Transport) -> bool:
    """Whether messages leave this process: the delay transport is for tests only."""
    return transport.over != "delay"


def _build_transport(entry: Availability) -> Transport:
    return Transport(
        over=f"{entry.transport}:{entry.device}" if entry.device else entry.transport,
        available=entry.available,
        reason=entry.reason,
        remedy=entry.remedy,
        endpoints=tuple(entry.endpoints),
        operations=tuple(entry.operations),
        max_bytes=entry.max_bytes,
        facts=entry.facts,
    )


def _find_mpi() -> Transport:
    if importlib.util.find_spec("mpi4py") is None:
        return _build_missing_mpi("mpi4py is not installed", "pip install 'weft[mpi]'")
    launcher = shutil.which("mpirun") or shutil.which("mpiexec")
    if launcher is None:
        return _build_missing_mpi(
            "there is no mpirun", "install an MPI, or add its bin directory to PATH"
        )
    library, problem = _read_mpi_version()
    if problem:
        return _build_missing_mpi(problem, "install the MPI library that mpi4py was built for")
    return Transport(over="mpi", available=True, facts={"library": library, "launcher": launcher})


def _build_missing_mpi(reason: str, remedy: str) -> Transport:
    return Transport(over="mpi", available=False, reason=reason, remedy=remedy)


def _read_mpi_version() -> tuple[str, str]:
    """The library's name and version, or why it cannot be loaded."""
    command = [sys.executable, "-c", _MPI_VERSION]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_MPI_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"loading the MPI library took more than {_MPI_SECONDS} s"
    if done.returncode == 0:
        return done.stdout.strip().partition(",")[0], ""
    last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    return "", f"the MPI library cannot be loaded: {last}"
