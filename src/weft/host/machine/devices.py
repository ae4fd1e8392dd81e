"""RDMA devices and network interfaces, as the kernel lists them, and their counters around a run.

Counters of RDMA ports: /sys/class/infiniband/DEVICE/ports/N/{counters,hw_counters}, and hw_counters
of the device itself; of interfaces: /sys/class/net/NAME/statistics. Missing and unreadable files
are left out. Counters have no common width. 64-bit counters do not wrap in our time. A counter that
falls by more than half of 2^32 wrapped at 2^32; one that falls by less was reset. The counters of
the InfiniBand architecture do not wrap: they stop at their maximum (volume 1, 16.1.3.5), and the
change is then a lower bound.
Entry points: `list_rdma_devices`, `list_interfaces`, `find_numa_node`; `read_counters`,
`compare_counters`, `tabulate_changes`. Rates are the kernel's text; interface speeds are Mb/s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.errors import InputError
from weft.host.machine.kernel_files import ROOT, list_names, read_link_name, read_number, read_text

_RDMA = "sys/class/infiniband"
_NET = "sys/class/net"
# <linux/if_arp.h>
_KINDS = {1: "ethernet", 32: "ipoib", 772: "loopback", 768: "tunnel", 65534: "tunnel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPort:
    number: int
    state: str
    physical_state: str
    rate: str
    link_layer: str
    lid: int

    @property
    def is_active(self) -> bool:
        return self.state == "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    """`numa_node` is None if the platform does not say. `pcie` is "" for devices off the bus."""

    name: str
    driver: str
    firmware: str
    node_guid: str
    numa_node: int | None
    pcie: str
    pcie_most: str
    ports: tuple[RdmaPort, ...]
    interfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """`kind` is ethernet, ipoib, loopback, tunnel, virtual or other; `ipoib_mode` is datagram or
    connected, "" for other kinds; `speed_mbps` is None if the driver does not say.
    """

    name: str
    kind: str
    state: str
    mtu_bytes: int
    speed_mbps: int | None
    numa_node: int | None
    driver: str
    ipoib_mode: str


def list_rdma_devices(root: Path = ROOT) -> tuple[RdmaDevice, ...]:
    return tuple(_read_rdma_device(root / _RDMA / name) for name in list_names(root / _RDMA))


def list_interfaces(root: Path = ROOT) -> tuple[Interface, ...]:
    paths = (root / _NET / name for name in list_names(root / _NET))
    return tuple(_read_interface(path) for path in paths if path.is_dir())


def find_numa_node(device: str, root: Path = ROOT) -> int | None:
    """The NUMA node of an RDMA device or interface; None if the platform does not say."""
    for folder in (_RDMA, _NET):
        if (root / folder / device).is_dir():
            return _read_numa_node(root / folder / device / "device")
    devices = ", ".join((*list_names(root / _RDMA), *list_names(root / _NET)))
    raise InputError("device", f"{device!r} is not on this host", f"use one of {devices}")


def _read_rdma_device(path: Path) -> RdmaDevice:
    device = path / "device"
    return RdmaDevice(
        name=path.name,
        driver=read_link_name(device / "driver"),
        firmware=read_text(path / "fw_ver"),
        node_guid=read_text(path / "node_guid"),
        numa_node=_read_numa_node(device),
        pcie=_read_pcie(device, "current"),
        pcie_most=_read_pcie(device, "max"),
        ports=tuple(
            _read_port(path / "ports" / n) for n in list_names(path / "ports") if n.isdigit()
        ),
        interfaces=list_names(device / "net"),
    )


def _read_port(path: Path) -> RdmaPort:
    return RdmaPort(
        number=int(path.name),
        state=_read_word(path / "state"),
        physical_state=_read_word(path / "phys_state"),
        rate=read_text(path / "rate"),
        link_layer=read_text(path / "link_layer"),
        lid=read_number(path / "lid") or 0,
    )


def _read_word(path: Path) -> str:
    """ "ACTIVE" of "4: ACTIVE"."""
    return read_text(path).partition(":")[2].strip()


def _read_numa_node(device: Path) -> int | None:
    """The parent device may know the node, as for virtio interfaces."""
    for place in (device, device / ".."):
        node = read_number(place / "numa_node")
        if node is not None:
            return node if node >= 0 else None
    return None


def _read_pcie(device: Path, which: str) -> str:
    """ "16.0 GT/s PCIe x16"."""
    speed, width = (
        read_text(device / f"{which}_link_speed"),
        read_text(device / f"{which}_link_width"),
    )
    return f"{speed.removesuffix(' PCIe')} x{width}" if speed and width else ""


def _read_interface(path: Path) -> Interface:
    speed = read_number(path / "speed")
    return Interface(
        name=path.name,
        kind=_read_kind(path),
        state=read_text(path / "operstate"),
        mtu_bytes=read_number(path / "mtu") or 0,
        speed_mbps=speed if speed is not None and speed > 0 else None,
        numa_node=_read_numa_node(path / "device"),
        driver=read_link_name(path / "device" / "driver"),
        ipoib_mode=read_text(path / "mode") if read_number(path / "type") == 32 else "",
    )


def _read_kind(path: Path) -> str:
    kind = _KINDS.get(read_number(path / "type") or 0, "other")
    return "virtual" if kind == "ethernet" and not (path / "device").exists() else kind


# ---- Counters ---------------------------------------------------------------------------------

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
