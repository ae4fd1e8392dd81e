"""Records the trace of a running command: interface counters and processor time, side by side.

Counters are those of /proc/PID/net/dev, so that the interface may be one of another network
namespace, that of `network_pid`. Entry point: `record_trace`. Units: seconds, bytes.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np

from weft.errors import InputError
from weft.host.process_times import TreeTimes
from weft.host.tree import ROOT, text
from weft.sensitivity.model import FloatArray
from weft.sensitivity.trace import Trace

INTERVAL_S = 0.02
_COMPUTING_QUANTILE = 0.95


def record_trace(
    process: subprocess.Popen[bytes],
    *,
    interface: str,
    link_bps: float,
    network_pid: int | None = None,
    interval_s: float = INTERVAL_S,
) -> Trace:
    """Watches a command from now to its end; its descendants count too."""
    pid = process.pid if network_pid is None else network_pid
    times = TreeTimes(process.pid)
    received, sent = interface_bytes(interface, pid)
    rows = [(time.monotonic(), sent, received, _busy_s(times))]
    while process.poll() is None:
        try:
            process.wait(max(0.0, rows[-1][0] + interval_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            received, sent = interface_bytes(interface, pid, (received, sent))
            rows.append((time.monotonic(), sent, received, _busy_s(times)))
    # The command is gone: what it did since the last row is at most one interval's.
    received, sent = interface_bytes(interface, pid, (received, sent))
    rows.append((time.monotonic(), sent, received, rows[-1][3]))
    moved = np.diff(np.array(rows, dtype=np.float64), axis=0)
    if not moved.size or not (moved[:, 0] > 0).all():
        raise InputError("trace", "the command ended at once", "trace one that takes longer")
    return Trace(
        duration_s=moved[:, 0],
        sent_bytes=np.maximum(moved[:, 1], 0),
        received_bytes=np.maximum(moved[:, 2], 0),
        cpu_s=moved[:, 3],
        link_bps=link_bps,
        cores=computing_cores(moved[:, 0], moved[:, 3]),
    )


def _busy_s(times: TreeTimes) -> float:
    """On a processor, or ready for one: a contended host must not look like a slow network."""
    spent = times.read()
    return spent.cpu_s + spent.run_delay_s


def computing_cores(duration_s: FloatArray, cpu_s: FloatArray) -> float:
    """How many processors the program uses when it computes: nearly the most, and at least one.

    What sending itself costs is less than one processor and must not look like computing.
    """
    return max(1.0, float(np.quantile(cpu_s / duration_s, _COMPUTING_QUANTILE)))


def interface_bytes(
    interface: str, pid: int, gone: tuple[int, int] | None = None, root: Path = ROOT
) -> tuple[int, int]:
    """Bytes received and sent by an interface, as the process sees it; `gone` once it has ended."""
    lines = text(root / "proc" / str(pid) / "net" / "dev").splitlines()[2:]
    counters = {name.strip(): words.split() for name, _, words in (x.partition(":") for x in lines)}
    if interface in counters:
        return int(counters[interface][0]), int(counters[interface][8])
    if gone is not None and not counters:
        return gone
    known = ", ".join(counters) or "none"
    raise InputError(f"interface {interface}", f"process {pid} has {known}", "name one of these")
