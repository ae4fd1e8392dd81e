"""Files of /proc and /sys, under any root: a recorded tree reads like a running machine.

A file that is missing, or that the driver refuses to read (the speed of an interface that is
down), is the empty string. Entry points: `text`, `number`, `names`, `link_name`, `cpu_list`.
"""

from __future__ import annotations

from collections.abc import Iterable
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
    """What is in a directory, sorted; nothing if there is no such directory."""
    try:
        return tuple(sorted(entry.name for entry in directory.iterdir()))
    except OSError:
        return ()


def read_link_name(path: Path) -> str:
    """The last part of where a symbolic link leads, as `driver` links name the driver."""
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
    """The kernel's way of writing a set of numbers: the inverse of `cpu_list`."""
    ranges: list[list[int]] = []
    for value in sorted(numbers):
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
