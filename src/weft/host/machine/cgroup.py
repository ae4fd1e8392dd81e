"""Limits that a container or service puts on this process, cgroup v1 and v2.

The tightest limit on the way from our group up to the root holds. Entry points:
`memory_limit_bytes`, `cpu_limit`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from weft.host.machine.kernel_files import ROOT, read_number, read_text

# What v1 writes for "no limit": the largest multiple of a page below 2^63.
_NO_LIMIT_BYTES = 2**62


def read_memory_limit_bytes(root: Path = ROOT) -> int | None:
    """None: no limit."""
    limits = [read_number(group / "memory.max") for group in _list_groups(root, "")]
    limits += [
        read_number(group / "memory.limit_in_bytes") for group in _list_groups(root, "memory")
    ]
    return min((n for n in limits if n is not None and n < _NO_LIMIT_BYTES), default=None)


def read_cpu_limit(root: Path = ROOT) -> float | None:
    """How many CPUs' worth of time this process may use; None: no limit."""
    shares = [
        _parse_quota(*read_text(group / "cpu.max").split()[:2]) for group in _list_groups(root, "")
    ]
    for group in _list_groups(root, "cpu"):
        quota, period = (read_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        shares.append(_parse_quota(quota, period))
    return min((share for share in shares if share is not None), default=None)


def _parse_quota(quota: str = "", period: str = "") -> float | None:
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else None


def _list_groups(root: Path, controller: str) -> Iterator[Path]:
    """Our group of this controller ("": v2) and its parents, as far as they can be seen."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller not in controllers.split(","):
            continue
        for mount in _list_mounts(root, controller):
            group = mount / path.lstrip("/")
            yield from (place for place in (group, *group.parents) if place.is_relative_to(mount))


def _list_mounts(root: Path, controller: str) -> tuple[Path, ...]:
    base = root / "sys/fs/cgroup"
    return (base / controller,) if controller else (base, base / "unified")
