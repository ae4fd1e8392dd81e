"""Everything `weft doctor` reports about this host, in one value. Entry point: `examine`."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from weft._core import huge_pages_of
from weft.host.machine import findings
from weft.host.machine.clock import ClockFacts, clock
from weft.host.machine.cpu import Processors, processors
from weft.host.machine.devices import Interface, RdmaDevice, interfaces, rdma_devices
from weft.host.machine.facts import USUAL_BUFFER_BYTES
from weft.host.machine.findings import Finding
from weft.host.machine.memory import Memory, memory
from weft.host.machine.noise import Distance, HostNoise, distances, look


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
            *findings.clock_findings(self.clock),
            *findings.cpu_findings(self.processors),
            *findings.memory_findings(self.memory, self.pages, self.rdma_devices),
            *findings.device_findings(self.rdma_devices),
            *findings.interface_findings(self.interfaces),
            *findings.noise_findings(self.noise),
        ]


def examine(seconds: float = 1.0) -> Examination:
    """Looks at the host; noise is watched for `seconds` on the last CPU we may use."""
    cpus = processors()
    return Examination(
        host=platform.node(),
        kernel=f"{platform.system()} {platform.release()} {platform.machine()}",
        clock=clock(),
        processors=cpus,
        memory=memory(),
        pages=huge_pages_of(USUAL_BUFFER_BYTES),
        rdma_devices=rdma_devices(),
        interfaces=interfaces(),
        noise=look(seconds, max(cpus.allowed, default=-1)),
        distances=tuple(distances(cpus)),
    )
