"""What this host is, and what on it spoils measurements: `weft doctor`, and facts for records.

`examine` looks at everything, and `Examination.findings` judges it: each check is a function of
facts alone, and thresholds are where an effect exceeds what people measure (microseconds, and
percents of bandwidth). `read_provenance_facts` reads what every measurement records, `read_clock`
the clock of every measurement and its error, `read_memory` huge pages, locked memory and limits,
`list_transports` what this host can measure over.

`watch_noise` surrounds a run and tells whether its tail latencies can be trusted. It looks for
hiccups shortly before and after it (during the run, looking would itself be noise). Over the run it
counts the time stolen by the hypervisor and how often the kernel took the CPU from this process.
Units: ns, bytes; histograms in ps.
"""

from __future__ import annotations

import importlib.util
import math
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from weft._core import (
    Availability,
    Clock,
    Histogram,
    availability,
    core_distance,
    hiccups,
    huge_pages_of,
)
from weft.host.machine.cpu import Processors, read_processors, read_steal_s
from weft.host.machine.devices import Interface, RdmaDevice, list_interfaces, list_rdma_devices
from weft.host.machine.kernel_files import (
    ROOT,
    format_cpu_list,
    read_memory_limit_bytes,
    read_number,
    read_text,
)

# ---- Noise ------------------------------------------------------------------------------------

THRESHOLD_NS = 1000
_PIECE_SECONDS = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNoise:
    """`gaps` are the hiccups on `cpu` in `watched_ns`, before and after the run; steal and
    involuntary switches are those of the run itself.
    """

    cpu: int
    watched_ns: int
    gaps: Histogram
    elapsed_ns: int = 0
    steal_ns: int = 0
    involuntary_switches: int = 0

    @property
    def lost_share(self) -> float:
        """The share of the watched time in which a spinning thread did not run."""
        return sum_gaps_ns(self.gaps) / self.watched_ns if self.watched_ns else 0.0

    @property
    def steal_share(self) -> float:
        """CPUs' worth of time that the hypervisor stole during the run."""
        return self.steal_ns / self.elapsed_ns if self.elapsed_ns else 0.0


@dataclass(slots=True)
class NoiseWatch:
    """The result of `watch_noise`, set when its block has ended."""

    noise: HostNoise | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Distance:
    """Half a round trip of a cache line between two CPUs; None if the time was too short."""

    cpu_a: int
    cpu_b: int
    relation: str
    p50_ps: int | None


def sum_gaps_ns(gaps: Histogram) -> int:
    return round(gaps.mean * gaps.count / 1000) if gaps.count else 0


def _watch_hiccups(seconds: float, cpu: int) -> tuple[Histogram, int]:
    """Gaps and watched ns, in pieces: Ctrl-C waits for one piece at most."""
    pieces = math.ceil(seconds / _PIECE_SECONDS)
    gaps, watched_ns = Histogram(), 0
    for _ in range(pieces):
        piece = hiccups(seconds / pieces, cpu, THRESHOLD_NS)
        gaps.merge(piece.gaps)
        watched_ns += piece.elapsed_ns
    return gaps, watched_ns


def measure_noise(seconds: float, cpu: int = -1) -> HostNoise:
    """Hiccups and steal of a CPU in this time (-1: any CPU)."""
    steal, start = _read_steal_ns(cpu), time.monotonic_ns()
    gaps, watched_ns = _watch_hiccups(seconds, cpu)
    return HostNoise(
        cpu=cpu,
        watched_ns=watched_ns,
        gaps=gaps,
        elapsed_ns=time.monotonic_ns() - start,
        steal_ns=_read_steal_ns(cpu) - steal,
    )


@contextmanager
def watch_noise(cpu: int = -1, seconds: float = 0.05) -> Iterator[NoiseWatch]:
    """Looks for half of `seconds` on each side of the block; `.noise` is set after it."""
    watch = NoiseWatch()
    gaps, before_ns = _watch_hiccups(seconds / 2, cpu)
    steal, switches, start = _read_steal_ns(), _read_involuntary_switches(), time.monotonic_ns()
    yield watch
    elapsed = time.monotonic_ns() - start
    steal, switches = _read_steal_ns() - steal, _read_involuntary_switches() - switches
    more_gaps, after_ns = _watch_hiccups(seconds / 2, cpu)
    gaps.merge(more_gaps)
    watch.noise = HostNoise(
        cpu=cpu,
        watched_ns=before_ns + after_ns,
        gaps=gaps,
        elapsed_ns=elapsed,
        steal_ns=steal,
        involuntary_switches=switches,
    )


def measure_distances(host: Processors, most: int = 6, seconds: float = 0.1) -> list[Distance]:
    """From our first CPU to one of each kind first (sibling, same node, each other node)."""
    pairs = choose_cpu_pairs(host)[:most]
    return [_measure_distance(host, a, b, seconds) for a, b in pairs]


def choose_cpu_pairs(host: Processors) -> list[tuple[int, int]]:
    """Pairs with our first CPU; pairs with a new relation come first."""
    if not host.allowed:
        return []
    first, *other_cpus = host.allowed
    kinds = [describe_relation(host, first, other) for other in other_cpus]
    again = [kind in kinds[:i] for i, kind in enumerate(kinds)]
    ordered = sorted(zip(again, other_cpus, strict=True))
    return [(first, other) for _, other in ordered]


def describe_relation(host: Processors, a: int, b: int) -> str:
    if host.core_of[a] == host.core_of[b]:
        return "one core"
    nodes = host.node_of(a), host.node_of(b)
    return f"node {nodes[0]}" if nodes[0] == nodes[1] else f"nodes {nodes[0]} and {nodes[1]}"


def _measure_distance(host: Processors, a: int, b: int, seconds: float) -> Distance:
    halves = core_distance(a, b, seconds=seconds)
    p50 = halves.quantile(0.5) if halves.count else None
    return Distance(a, b, describe_relation(host, a, b), p50)


def _read_steal_ns(cpu: int = -1) -> int:
    """Of one CPU or (-1) of all, in steps of 10 ms; containers may see fewer CPUs."""
    return round(1e9 * sum(s for n, s in read_steal_s().items() if cpu in (-1, n)))


def _read_involuntary_switches() -> int:
    """Of all threads of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


# ---- Examination ------------------------------------------------------------------------------

_CAP_IPC_LOCK = 14  # <linux/capability.h>
_HUGE = "sys/kernel/mm/hugepages/hugepages-2048kB"
# A ring of 8 MiB messages and the queues of one connection: what `weft bandwidth` may register.
_MEMLOCK_BYTES = 64 * 2**20
_LOST_SHARE = 0.01
_LONG_GAP_PS = 10**9
USUAL_BUFFER_BYTES = 2**20
# Loading an MPI library may end the process, so a child process tries.
_MPI = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
_MPI_VERSION = _MPI + "print(MPI.Get_library_version().splitlines()[0].strip('\\0 '))"
_MPI_SECONDS = 10
# The operations of core/transport/endpoint.hpp.
OPERATIONS = frozenset(
    {"send", "tagged", "inject", "write", "write-imm", "read", "fetch-add", "compare-swap"}
)
# The usual order of interest.
_ORDER = ("verbs", "ofi", "tcp", "udp", "delay", "mpi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Limits are None if there is none. `transparent` is always, madvise, never, or "" if unknown.

    A process with CAP_IPC_LOCK (root) may lock more than `memlock_bytes`.
    """

    total_bytes: int
    available_bytes: int
    huge_total: int
    huge_free: int
    transparent: str
    memlock_bytes: int | None
    may_exceed_memlock: bool
    cgroup_limit_bytes: int | None


def read_memory(root: Path = ROOT) -> Memory:
    return Memory(
        total_bytes=_read_meminfo(root, "MemTotal"),
        available_bytes=_read_meminfo(root, "MemAvailable"),
        huge_total=read_number(root / _HUGE / "nr_hugepages") or 0,
        huge_free=read_number(root / _HUGE / "free_hugepages") or 0,
        transparent=parse_transparent_mode(
            read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
        ),
        memlock_bytes=_read_memlock(root),
        may_exceed_memlock=_has_ipc_lock(root),
        cgroup_limit_bytes=read_memory_limit_bytes(root),
    )


def parse_transparent_mode(line: str) -> str:
    """The word in brackets of "always [madvise] never"."""
    match = re.search(r"\[(\w+)\]", line)
    return match[1] if match else ""


def _read_meminfo(root: Path, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB$", read_text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _read_memlock(root: Path) -> int | None:
    limits = read_text(root / "proc/self/limits")
    match = re.search(r"^Max locked memory\s+(\d+|unlimited)", limits, re.MULTILINE)
    return int(match[1]) if match and match[1] != "unlimited" else None


def _has_ipc_lock(root: Path) -> bool:
    match = re.search(
        r"^CapEff:\s+([0-9a-f]+)$", read_text(root / "proc/self/status"), re.MULTILINE
    )
    return bool(match and int(match[1], 16) >> _CAP_IPC_LOCK & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockFacts:
    """`step_ns` is the usual step between two readings: single times below it mean nothing."""

    source: str
    hz: float
    error_ppm: float
    step_ns: float
    read_ns: float
    invariant: bool
    reason: str


def read_clock() -> ClockFacts:
    """The process-wide clock; its calibration takes 0.1 s the first time."""
    shared = Clock.shared()
    invariant, reason = Clock.invariant()
    return ClockFacts(
        source=Clock.source(),
        hz=shared.hz,
        error_ppm=shared.error_ppm,
        step_ns=shared.step_ps / 1000,
        read_ns=shared.read_ps / 1000,
        invariant=invariant,
        reason=reason,
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, what it does to measurements, and how to fix it."""

    what: str
    effect: str
    remedy: str


def check_clock(clock: ClockFacts) -> Iterator[Finding]:
    if not clock.invariant:
        yield Finding(
            f"the counter {clock.source} is not reliable: {clock.reason}",
            "times may be wrong by as much as the processor's frequency changes",
            "boot with `tsc=reliable` if the hardware has one, or measure on another host",
        )


def check_cpus(cpus: Processors) -> Iterator[Finding]:
    slow = {name: on for name, on in cpus.governors.items() if name != "performance"}
    for name, on in sorted(slow.items()):
        yield Finding(
            f"governor {name} on CPUs {format_cpu_list(on)}",
            "the frequency follows the load: the first messages after a pause are slow",
            "as root: `cpupower frequency-set -g performance`",
        )
    if len({cpus.core_of[cpu] for cpu in cpus.allowed}) < 2:
        yield Finding(
            f"one core only (CPUs {format_cpu_list(cpus.allowed)})",
            "two spinning ends on this host take turns of milliseconds",
            "use `--block`, or the peer on another host",
        )
    if cpus.cpu_limit is not None and cpus.cpu_limit < len(cpus.allowed):
        yield Finding(
            f"a cgroup limits this process to {cpus.cpu_limit:g} CPUs' worth of time",
            "spinning threads are stopped when the quota is used up",
            "raise the limit of the container or service (`cpu.max`)",
        )


def check_memory(memory: Memory, pages: str, devices: Sequence[RdmaDevice]) -> Iterator[Finding]:
    if pages == "4K":
        yield Finding(
            "message buffers get 4 KiB pages",
            "large transfers miss the TLB more often",
            "as root: `sysctl vm.nr_hugepages=512`, "
            "or `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`",
        )
    limit = None if memory.may_exceed_memlock else memory.memlock_bytes
    if devices and limit is not None and limit < _MEMLOCK_BYTES:
        yield Finding(
            f"only {limit // 1024} KiB may be locked in memory",
            "RDMA cannot register larger buffers",
            "set `memlock unlimited` in /etc/security/limits.conf (LimitMEMLOCK= of a service)",
        )


def check_noise(noise: HostNoise) -> Iterator[Finding]:
    if noise.lost_share > _LOST_SHARE or (noise.gaps.count and noise.gaps.max > _LONG_GAP_PS):
        longest_us = noise.gaps.max / 1e6
        yield Finding(
            f"this host is noisy: a spinning thread lost {noise.lost_share:.1%} of its time, "
            f"at most {longest_us:,.0f} µs at once",
            "high percentiles show the host rather than the network",
            "stop other work, pin to isolated cores (`isolcpus=`), or compare medians only",
        )


def check_devices(devices: Sequence[RdmaDevice]) -> Iterator[Finding]:
    for device in devices:
        for port in device.ports:
            if not port.is_active:
                yield Finding(
                    f"{device.name} port {port.number} is {port.state} ({port.physical_state})",
                    "it cannot be measured",
                    "check the cable; on InfiniBand, that a subnet manager runs (`sminfo`)",
                )
        if device.pcie and device.pcie_most and device.pcie != device.pcie_most:
            yield Finding(
                f"{device.name} runs at PCIe {device.pcie}, but can do {device.pcie_most}",
                "the bus may limit bandwidth before the network does",
                "move it to a wider or faster slot",
            )


def check_interfaces(interfaces: Sequence[Interface]) -> Iterator[Finding]:
    for interface in interfaces:
        if interface.ipoib_mode == "datagram" and interface.mtu_bytes <= 2044:
            yield Finding(
                f"{interface.name} is IPoIB in datagram mode, MTU {interface.mtu_bytes}",
                "TCP over it is limited by packets, far below the link's rate",
                f"as root: `echo connected > /sys/class/net/{interface.name}/mode; "
                f"ip link set {interface.name} mtu 65520`",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    host: str
    kernel: str
    clock: ClockFacts
    processors: Processors
    memory: Memory
    pages: str
    rdma_devices: tuple[RdmaDevice, ...]
    interfaces: tuple[Interface, ...]
    noise: HostNoise
    distances: tuple[Distance, ...]

    def findings(self) -> list[Finding]:
        return [
            *check_clock(self.clock),
            *check_cpus(self.processors),
            *check_memory(self.memory, self.pages, self.rdma_devices),
            *check_devices(self.rdma_devices),
            *check_interfaces(self.interfaces),
            *check_noise(self.noise),
        ]


def examine(seconds: float = 1.0) -> Examination:
    """Looks at the host; watches noise for `seconds` on the last allowed CPU."""
    cpus = read_processors()
    return Examination(
        host=platform.node(),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        clock=read_clock(),
        processors=cpus,
        memory=read_memory(),
        pages=huge_pages_of(USUAL_BUFFER_BYTES),
        rdma_devices=list_rdma_devices(),
        interfaces=list_interfaces(),
        noise=measure_noise(seconds, max(cpus.allowed, default=-1)),
        distances=tuple(measure_distances(cpus)),
    )


def read_provenance_facts() -> dict[str, str | int | float | bool | None]:
    """Name -> value for the run header: the clock and its error, pages, CPUs, kernel."""
    ticks, cpus, ram = read_clock(), read_processors(), read_memory()
    return {
        "clock_source": ticks.source,
        "clock_hz": round(ticks.hz),
        "clock_error_ppm": round(ticks.error_ppm, 3),
        "clock_step_ns": ticks.step_ns,
        "clock_invariant": ticks.invariant,
        "pages": huge_pages_of(USUAL_BUFFER_BYTES),
        "transparent_huge_pages": ram.transparent,
        "cpu_model": cpus.model,
        "cpus_allowed": format_cpu_list(cpus.allowed),
        "cores": len(cpus.cores),
        "numa_nodes": len(cpus.nodes),
        "governor": ", ".join(sorted(cpus.governors)) or "not set by the kernel",
        "virtual_machine": cpus.virtual,
        "kernel": platform.release(),
    }


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
