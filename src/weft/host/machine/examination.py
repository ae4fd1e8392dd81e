"""Everything `weft doctor` reports about this host, in one value. Entry point: `examine`."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from weft._core import huge_pages_of
from weft.host.machine import findings
from weft.host.machine.clock import ClockFacts, read_clock
from weft.host.machine.cpu import Processors, read_processors
from weft.host.machine.devices import Interface, RdmaDevice, list_interfaces, list_rdma_devices
from weft.host.machine.facts import USUAL_BUFFER_BYTES
from weft.host.machine.findings import Finding
from weft.host.machine.memory import Memory, read_memory
from weft.host.machine.noise import Distance, HostNoise, measure_distances, measure_noise


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
            *findings.check_clock(self.clock),
            *findings.check_cpus(self.processors),
            *findings.check_memory(self.memory, self.pages, self.rdma_devices),
            *findings.check_devices(self.rdma_devices),
            *findings.check_interfaces(self.interfaces),
            *findings.check_noise(self.noise),
        ]


def examine(seconds: float = 1.0) -> Examination:
    """Looks at the host; noise is watched for `seconds` on the last CPU we may use."""
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
