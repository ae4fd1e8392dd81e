"""Memory for messages: huge pages, locked memory, limits. Entry point: `read_memory`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from weft.host.machine.kernel_files import ROOT, read_memory_limit_bytes, read_number, read_text

_CAP_IPC_LOCK = 14  # <linux/capability.h>
_HUGE = "sys/kernel/mm/hugepages/hugepages-2048kB"


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
