"""A subnet in memory that answers management requests as the architecture says: a `Wire`.

Nodes are wired by port; `lids` says who has which LID. Attributes are kept as bytes, laid out by
`iba_layouts`. A node in `silent` does not answer, (node, attribute, modifier) in `lost` is never
answered; (node, attribute) in `untold` is not supported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from iba_layouts import NODE, PORT, SWITCH, laid_out

from weft.switches.infiniband import mad
from weft.switches.infiniband.mad import Address, Smp
from weft.switches.infiniband.mad_transport import Refusal

ADAPTER, SWITCHING, ROUTER = 1, 2, 3
EDR = {"LinkWidthActive": 2, "LinkSpeedActive": 4, "LinkSpeedExtActive": 2}
UP = {"PortState": 4, "PortPhysicalState": 5}
SIZES = {"OperationalVLs": 4, "VLCap": 4, "VLArbitrationHighCap": 8, "VLArbitrationLowCap": 8}
HAS_MAPS = {"CapabilityMask": 1 << 6}
IDENTITY = bytes.fromhex("0123456701234567").ljust(64, b"\0")


@dataclass(slots=True)
class Device:
    """A node: its kind, its description, its ports' cables, fields that are not the usual ones."""

    guid: int
    kind: int
    ports: int
    description: str
    lid: int = 0
    cables: dict[int, tuple[Device, int]] = field(default_factory=dict)
    port_fields: dict[str, int] = field(default_factory=dict)
    switch_fields: dict[str, int] = field(default_factory=dict)
    table: dict[int, bytes] = field(default_factory=dict)
    memory: dict[tuple[int, int], bytes] = field(default_factory=dict)


def cable(a: Device, a_port: int, b: Device, b_port: int) -> None:
    a.cables[a_port] = (b, b_port)
    b.cables[b_port] = (a, a_port)


class SmallSubnet:
    """Requests from the first port of a device."""

    def __init__(self, here: Device, devices: Sequence[Device]) -> None:
        self._here = here
        self.lids = {device.lid: device for device in devices if device.lid}
        self.silent: set[int] = set()
        self.lost: set[tuple[int, int, int]] = set()
        self.untold: set[tuple[int, int]] = set()
        self.asked: list[Smp] = []
        self.changes: list[Smp] = []

    def ask(self, requests: Sequence[Smp], tries: int | None = None) -> list[bytes | Refusal]:
        assert tries is None or tries > 0
        self.asked += requests
        return [self._answer(request) for request in requests]

    def close(self) -> None: ...

    def _answer(self, request: Smp) -> bytes | Refusal:
        device, port = self._reached(request.to)
        if device is None or device.guid in self.silent or self._is_lost(device, request):
            return Refusal(f"{mad.describe_address(request.to)} does not answer", is_silence=True)
        if (device.guid, request.attribute) in self.untold:
            return Refusal(f"{mad.describe_address(request.to)} {mad.describe_status(0x0C)}")
        if request.new is not None:
            self.changes.append(request)
            self._set(device, request)
        return _attribute(device, port, request)

    def _is_lost(self, device: Device, request: Smp) -> bool:
        return (device.guid, request.attribute, request.modifier) in self.lost

    def _reached(self, to: Address) -> tuple[Device | None, int]:
        if isinstance(to, int):
            return self.lids.get(to), 1
        device, port = self._here, 1
        for out in to:
            device, port = device.cables[out]
        return device, port

    def _set(self, device: Device, request: Smp) -> None:
        assert request.new is not None
        if request.attribute == mad.SL_TO_VL and request.modifier & mad.ALL_INPUTS:
            for n in range(device.ports + 1):
                key = (mad.SL_TO_VL, n << 8 | request.modifier & 0xFF)
                device.memory[key] = request.new
        else:
            device.memory[request.attribute, request.modifier] = request.new


def _attribute(device: Device, port: int, request: Smp) -> bytes:
    if request.attribute == mad.NODE_INFO:
        return _node(device, port)
    if request.attribute == mad.NODE_DESCRIPTION:
        return device.description.encode().ljust(64, b"\0")
    if request.attribute == mad.SWITCH_INFO:
        return laid_out(SWITCH, {"LinearFDBTop": 100, **device.switch_fields})
    if request.attribute == mad.PORT_INFO:
        return _port(device, request.modifier)
    if request.attribute == mad.LINEAR_FORWARDING:
        return device.table.get(request.modifier, b"\xff" * 64)
    fresh = IDENTITY if request.attribute == mad.SL_TO_VL else bytes([0, 4]) + bytes(62)
    return device.memory.get((request.attribute, request.modifier), fresh)


def _node(device: Device, port: int) -> bytes:
    values = {
        "NodeType": device.kind,
        "NumPorts": device.ports,
        "NodeGUID": device.guid,
        "PortGUID": device.guid + (0 if device.kind == SWITCHING else port),
        "LocalPortNum": port,
    }
    return laid_out(NODE, values)


def _port(device: Device, port: int) -> bytes:
    state = UP if port in device.cables else {"PortState": 1, "PortPhysicalState": 2}
    values: Mapping[str, int] = {
        "LID": _lid(device, port),
        **EDR,
        **SIZES,
        **HAS_MAPS,
        **state,
        **device.port_fields,
    }
    return laid_out(PORT, values)


def _lid(device: Device, port: int) -> int:
    """A switch has one, at its port 0; an adapter one for each port."""
    if device.kind == SWITCHING:
        return device.lid if port == 0 else 0
    return device.lid + port - 1 if device.lid else 0
