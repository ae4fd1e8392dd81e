"""RDMA devices and network interfaces, as the kernel lists them.

Entry points: `list_rdma_devices`, `list_interfaces`, `find_numa_node`. Rates are the kernel's text;
interface speeds are Mb/s.
"""

from __future__ import annotations

from dataclasses import dataclass
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
