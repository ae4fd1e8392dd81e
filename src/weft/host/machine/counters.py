"""Hardware and interface counters before and after a run, and what changed.

RDMA ports: /sys/class/infiniband/DEVICE/ports/N/{counters,hw_counters}, and hw_counters of the
device itself; interfaces: /sys/class/net/NAME/statistics. Missing and unreadable files are left
out. Entry points: `read_counters`, `compare_counters`, `tabulate_changes`.

Counters have no common width. 64-bit counters do not wrap in our time. A counter that falls by more
than half of 2^32 wrapped at 2^32; one that falls by less was reset. The counters of the InfiniBand
architecture do not wrap: they stop at their maximum (volume 1, 16.1.3.5), and the change is then a
lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.host.machine.kernel_files import ROOT, list_names, read_number

Key = tuple[str, str]
Snapshot = Mapping[Key, int]

# Widths in bits of the PortCounters attribute where the device has no wider ones.
SATURATING = {
    "symbol_error": 16,
    "link_error_recovery": 8,
    "link_downed": 8,
    "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16,
    "port_rcv_switch_relay_errors": 16,
    "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8,
    "port_rcv_constraint_errors": 8,
    "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4,
    "VL15_dropped": 16,
    "port_xmit_data": 32,
    "port_rcv_data": 32,
    "port_xmit_packets": 32,
    "port_rcv_packets": 32,
    "port_xmit_wait": 32,
}
# Counted in words of four octets.
_WORDS = ("port_xmit_data", "port_rcv_data")


@dataclass(frozen=True, slots=True)
class Change:
    """How far a counter of `where` (mlx5_0/1, eth0) moved; `note` says if that is not exact."""

    where: str
    counter: str
    change: int
    unit: str = ""
    note: str = ""


def read_counters(root: Path = ROOT) -> dict[Key, int]:
    """Every readable counter: (where, name) -> value."""
    values = {}
    for where, directory in _list_directories(root):
        for name in list_names(directory):
            value = read_number(directory / name)
            if value is not None and name != "lifespan":
                values[where, name] = value
    return values


def compare_counters(before: Snapshot, after: Snapshot) -> list[Change]:
    """Every counter that moved, sorted by place and name."""
    both = sorted(before.keys() & after.keys())
    all_changes = [_build_change(key, before[key], after[key]) for key in both]
    return [change for change in all_changes if change.change or change.note]


def tabulate_changes(changes: list[Change]) -> list[dict[str, str | int]]:
    """Changes as the rows of a record's table."""
    return [asdict(change) for change in changes]


def _list_directories(root: Path) -> Iterator[tuple[str, Path]]:
    for device in list_names(root / "sys/class/infiniband"):
        path = root / "sys/class/infiniband" / device
        yield device, path / "hw_counters"
        for port in list_names(path / "ports"):
            yield f"{device}/{port}", path / "ports" / port / "counters"
            yield f"{device}/{port}", path / "ports" / port / "hw_counters"
    for interface in list_names(root / "sys/class/net"):
        yield interface, root / "sys/class/net" / interface / "statistics"


def _build_change(key: Key, before: int, after: int) -> Change:
    where, name = key
    moved, note = subtract_counter(before, after, SATURATING.get(name))
    scale, unit = (4, "B") if name in _WORDS else (1, "")
    return Change(where, name, scale * moved, unit, note)


def subtract_counter(before: int, after: int, saturates_bits: int | None = None) -> tuple[int, str]:
    """How far a counter moved, and "wrapped", "reset" or "saturated" where it is not exact."""
    if saturates_bits is not None and after == 2**saturates_bits - 1:
        return max(0, after - before), "saturated"
    if after >= before:
        return after - before, ""
    if before < 2**32 and before - after > 2**31:
        return after - before + 2**32, "wrapped"
    return after, "reset"
