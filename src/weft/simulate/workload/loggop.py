"""Run a workload over the LogGOP network: latency, overheads and gaps, no fabric.

Entry point: `run_loggop`. Units: ps, bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft import _core
from weft.simulate.workload.operations import Operations

NEVER_PS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGop:
    """LogGOPSim's parameters, here with units."""

    latency_ps: int  # L
    overhead_ps: int  # o: processor, per message
    gap_ps: int  # g: adapter, per message
    gap_ps_per_byte: float  # G
    overhead_ps_per_byte: float = 0.0  # O
    rendezvous_above_bytes: int = NEVER_PS  # S


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogGopRun:
    """When each rank's processors are free for good, and when each operation ended."""

    rank_ps: NDArray[np.int64]
    ended_ps: NDArray[np.int64]  # NEVER_PS: it waits for ever

    @property
    def waiting(self) -> NDArray[np.intp]:
        """Operations that never ended: ranks wait for each other."""
        return np.flatnonzero(self.ended_ps == NEVER_PS)


def run_loggop(operations: Operations, parameters: LogGop) -> LogGopRun:
    core = _core.LogGop()
    core.L_ps, core.o_ps, core.g_ps = (
        parameters.latency_ps,
        parameters.overhead_ps,
        parameters.gap_ps,
    )
    core.G_ps_per_byte = parameters.gap_ps_per_byte
    core.O_ps_per_byte = parameters.overhead_ps_per_byte
    core.S_bytes = parameters.rendezvous_above_bytes
    rank_ps, ended_ps = _core.run_loggop(operations.to_core(), core)
    return LogGopRun(rank_ps=rank_ps, ended_ps=ended_ps)
