"""What else this host did during a run: whether its tail latencies can be trusted.

`watch_noise` surrounds a run. It looks for hiccups shortly before and after it (during the run,
looking would itself be noise). Over the run it counts the time stolen by the hypervisor and how
often the kernel took the CPU from this process. Units: ns, histograms in ps.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft._core import Histogram, core_distance, hiccups
from weft.host.machine.cpu import Processors, read_steal_s

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
