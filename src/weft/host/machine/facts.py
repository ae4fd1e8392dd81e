"""Facts about this host that go with every measurement. Entry point: `provenance_facts`."""

from __future__ import annotations

import platform
from pathlib import Path

from weft._core import huge_pages_of
from weft.host.machine.clock import read_clock
from weft.host.machine.cpu import read_processors
from weft.host.machine.kernel_files import ROOT, format_cpu_list
from weft.host.machine.memory import read_memory

USUAL_BUFFER_BYTES = 2**20


def read_provenance_facts(root: Path = ROOT) -> dict[str, str | int | float | bool | None]:
    """Name -> value for the run header: the clock and its error, pages, CPUs, kernel."""
    ticks, cpus, ram = read_clock(), read_processors(root), read_memory(root)
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
