"""Files of /proc, /sys and cgroups, under any root: a recorded tree reads like a running machine.

A file that is missing, or that the driver refuses to read (the speed of an interface that is down),
is the empty string. Entry points: `read_text`, `read_number`, `list_names`, `read_link_name`,
`parse_cpu_list`; `read_memory_limit_bytes` and `read_cpu_limit` are the tightest limits that a
container or service puts on this process (cgroup v1 and v2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path("/")


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def read_number(path: Path) -> int | None:
    try:
        return int(read_text(path), 0)
    except ValueError:
        return None


def list_names(directory: Path) -> tuple[str, ...]:
    """The sorted entries of a directory; empty if it does not exist."""
    try:
        return tuple(sorted(entry.name for entry in directory.iterdir()))
    except OSError:
        return ()


def read_link_name(path: Path) -> str:
    """The last part of a symbolic link's target, as `driver` links name the driver."""
    try:
        return path.readlink().name
    except OSError:
        return ""


def parse_cpu_list(listed: str) -> tuple[int, ...]:
    """The numbers of a kernel list such as "0-3,8"."""
    numbers: list[int] = []
    for part in filter(None, listed.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)


def format_cpu_list(numbers: Iterable[int]) -> str:
    """A set of numbers as the kernel writes it: the inverse of `parse_cpu_list`."""
    ranges: list[list[int]] = []
    for value in sorted(numbers):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


# What v1 writes for "no limit": the largest multiple of a page below 2^63.
_NO_LIMIT_BYTES = 2**62


def read_memory_limit_bytes(root: Path = ROOT) -> int | None:
    """The memory limit of this process; None: no limit."""
    limits = [read_number(group / "memory.max") for group in _list_groups(root, "")]
    limits += [
        read_number(group / "memory.limit_in_bytes") for group in _list_groups(root, "memory")
    ]
    return min((n for n in limits if n is not None and n < _NO_LIMIT_BYTES), default=None)


def read_cpu_limit(root: Path = ROOT) -> float | None:
    """CPUs' worth of time that this process may use; None: no limit."""
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
    """Our group of this controller ("": v2) and its visible parents."""
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
