"""A network on one machine: namespaces as hosts, on a bridge whose ports have a rate.

Each host has one interface, `eth0`, a veth to the bridge in a namespace of its own. A token
bucket on both ends of the veth gives the link its rate in both directions; the one at the
bridge's port, towards the host, is the port's queue: first in, first out, and what comes on top
of `limit_bytes` is lost, as in an Ethernet switch. Segmentation is left to TCP (packets of the
MTU, none larger), so that a queue of packets is what the same bytes are on a wire.
Entry point: `testbed`. Units: bits per second, bytes.
"""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from weft.errors import InputError
from weft.host import namespaces

ETHERNET_HEADER_BYTES = 14
SWITCH = "switch"
BRIDGE = "br0"
INTERFACE = "eth0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What to build: every host's link is the same.

    `burst_bytes` may pass at once after a pause; `limit_bytes` may wait at a port of the bridge,
    and `nic_limit_bytes` at a host's own interface. `congestion` is TCP's congestion control.
    """

    hosts: tuple[str, ...]
    rate_bps: int
    limit_bytes: int
    burst_bytes: int = 16 * 1024
    nic_limit_bytes: int = 1024 * 1024
    mtu_bytes: int = 1500
    congestion: str = "cubic"
    network: str = "10.77.0.0/24"

    def __post_init__(self) -> None:
        size = ipaddress.ip_network(self.network).num_addresses
        least = self.mtu_bytes + ETHERNET_HEADER_BYTES
        if not 1 <= len(self.hosts) <= size - 3:
            problem = f"{len(self.hosts)} hosts in {self.network}"
            raise InputError("testbed", problem, f"use 1 to {size - 3}")
        if len(set(self.hosts)) < len(self.hosts) or SWITCH in self.hosts:
            problem = f"a host's name is taken twice, or is {SWITCH!r}"
            raise InputError("testbed", problem, "rename it")
        if min(self.burst_bytes, self.limit_bytes, self.nic_limit_bytes) < least:
            problem = f"a burst or limit is below one packet of {least} bytes"
            raise InputError("testbed", problem, "raise it")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCount:
    """What has passed a port of the bridge towards its host, and what was lost there."""

    bytes: int
    packets: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Testbed:
    """The network, while it stands. `switch` is the name of the bridge's own namespace."""

    __test__ = False  # pytest takes classes of this name for its own

    wiring: Wiring
    namespaces: Mapping[str, str]
    addresses: Mapping[str, str]

    def spawn(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command on a host, or on the switch; the testbed's end ends it."""
        return namespaces.spawn(self.namespaces[host], argv, **options)

    def port_count(self, host: str) -> PortCount:
        """The counters of the bridge's port towards a host."""
        text = namespaces.command(
            ["tc", "-n", self.namespaces[SWITCH], "-s", "qdisc", "show", "dev", port_of(self, host)]
        )
        words = text.replace("(", " ").replace(",", " ").split()
        at = words.index("Sent")
        return PortCount(
            bytes=int(words[at + 1]),
            packets=int(words[at + 3]),
            dropped=int(words[words.index("dropped") + 1]),
        )


def port_of(bed: Testbed, host: str) -> str:
    """The bridge's port of a host: port1, port2, ... in the order of the wiring."""
    return f"port{bed.wiring.hosts.index(host) + 1}"


@contextmanager
def testbed(wiring: Wiring) -> Iterator[Testbed]:
    """Builds the network; its end removes everything, processes inside too."""
    reason = namespaces.why_not()
    if reason is not None:
        raise InputError("testbed", f"cannot be built here: {reason}", "run it as root on Linux")
    namespaces.remove_leftovers()
    made: dict[str, str] = {}
    try:
        for name in (SWITCH, *wiring.hosts):
            made[name] = namespaces.create(name)
        bed = Testbed(wiring=wiring, namespaces=made, addresses=_addresses(wiring))
        _wire(bed)
        yield bed
    finally:
        for namespace in reversed(made.values()):
            namespaces.remove(namespace)


testbed.__test__ = False  # type: ignore[attr-defined]


def _addresses(wiring: Wiring) -> dict[str, str]:
    """Hosts count from the network's first address; the switch has the last."""
    network = ipaddress.ip_network(wiring.network)
    numbered = {host: str(network[n]) for n, host in enumerate(wiring.hosts, 1)}
    return numbered | {SWITCH: str(network[-2])}


def _wire(bed: Testbed) -> None:
    switch = bed.namespaces[SWITCH]
    _batch("ip", switch, [f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up"])
    for host in bed.wiring.hosts:
        _plug(bed, host)
    _address(bed, SWITCH, BRIDGE)


def _plug(bed: Testbed, host: str) -> None:
    inside, switch = bed.namespaces[host], bed.namespaces[SWITCH]
    port, mtu = port_of(bed, host), bed.wiring.mtu_bytes
    veth = f"type veth peer name {port} netns {switch}"
    _batch("ip", inside, [f"link add {INTERFACE} mtu {mtu} {veth} mtu {mtu}"])
    _batch(
        "ip", switch,
        [f"link set {port} gso_max_segs 1", f"link set {port} master {BRIDGE}",
         f"link set {port} up"],
    )  # fmt: skip
    _batch("ip", inside, [f"link set {INTERFACE} gso_max_segs 1", f"link set {INTERFACE} up"])
    _address(bed, host, INTERFACE)
    _limit(bed, switch, port, bed.wiring.limit_bytes)
    _limit(bed, inside, INTERFACE, bed.wiring.nic_limit_bytes)


def _address(bed: Testbed, host: str, interface: str) -> None:
    """An address, the network's route with its congestion control, no memory of old flows."""
    network = ipaddress.ip_network(bed.wiring.network)
    namespace, address = bed.namespaces[host], bed.addresses[host]
    route = f"dev {interface} src {address} congctl {bed.wiring.congestion}"
    _batch(
        "ip", namespace,
        [f"addr add {address}/{network.prefixlen} dev {interface} noprefixroute",
         f"route add {network} {route}"],
    )  # fmt: skip
    for setting in ("tcp_no_metrics_save=1",):
        namespaces.command(
            ["ip", "netns", "exec", namespace, "sysctl", "-q", "-w", f"net.ipv4.{setting}"]
        )


def _limit(bed: Testbed, namespace: str, interface: str, limit_bytes: int) -> None:
    wiring = bed.wiring
    bucket = f"rate {wiring.rate_bps}bit burst {wiring.burst_bytes} limit {limit_bytes}"
    _batch("tc", namespace, [f"qdisc add dev {interface} root tbf {bucket}"])


def _batch(program: str, namespace: str, lines: Sequence[str]) -> None:
    namespaces.command([program, "-n", namespace, "-batch", "-"], "\n".join(lines) + "\n")
