"""What a testbed consists of: hosts, switches, the cables between them, and the routes.

Three shapes. `one`: all hosts on one switch. `two-hops`: half of the hosts on each of two switches
with one cable between them. `leaf-spine`: hosts on leaves, every leaf cabled to every spine; the
route to a host goes over spine (number of the host) mod (number of spines), as in a forwarding
table by destination. Routes are fixed: no packet is flooded on a cable between switches, and rings
do no harm. Entry points: `Wiring`, `plan_layout`. Units: bits per second, bytes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from weft.errors import InputError

Shape = Literal["one", "two-hops", "leaf-spine"]
SHAPES: tuple[Shape, ...] = get_args(Shape)
ETHERNET_HEADER_BYTES = 14
SWITCH = "switch"
INTERFACE = "eth0"
LIMIT_BYTES = 400_000
MIN_RATE_BPS = 8_000
MAX_RATE_BPS = 10**13
MAX_SWITCHES = 32
MIN_BURST_BYTES = 32 * 1024
# The largest packet with offloads. Every bucket passes it whole, at every share of a link:
# splitting it on the way would cost processor time.
MAX_OFFLOAD_BYTES = 32_000


def choose_burst_bytes(rate_bps: float) -> int:
    """4 ms of a rate, at least 32 KiB: timers fire late, and lost tokens are lost rate."""
    return max(round(rate_bps * 0.004 / 8), MIN_BURST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """What to build: all host links are alike, and so are all cables between switches.

    `burst_bytes` may pass at once after a pause (None: 4 ms of the rate, at least 32 KiB);
    `limit_bytes` may wait at a switch port, `nic_limit_bytes` at a host's interface. `congestion`
    is TCP's congestion control. With `offloads`, packets of up to 32 kB cross the network whole,
    which saves processor time; without, none is larger than the MTU, and queues hold packets as on
    a real wire.
    """

    hosts: tuple[str, ...]
    rate_bps: int
    switches: Shape = "one"
    leaves: int = 2
    spines: int = 2
    uplink_bps: int | None = None
    limit_bytes: int = LIMIT_BYTES
    burst_bytes: int | None = None
    nic_limit_bytes: int = LIMIT_BYTES
    mtu_bytes: int = 1500
    offloads: bool = True
    congestion: str = "cubic"
    network: str = "10.77.0.0/24"

    def __post_init__(self) -> None:
        size = ipaddress.ip_network(self.network).num_addresses
        if not 1 <= len(self.hosts) <= size - 3:
            problem = f"{len(self.hosts)} hosts in {self.network}"
            raise InputError("testbed", problem, f"use 1 to {size - 3}")
        if len(set(self.hosts)) < len(self.hosts) or SWITCH in self.hosts:
            problem = f"a host's name is taken twice, or is {SWITCH!r}"
            raise InputError("testbed", problem, "rename it")
        self._check_switches()
        self._check_rates()

    def _check_switches(self) -> None:
        if self.switches not in SHAPES:
            problem = f"no shape {self.switches!r}"
            raise InputError("testbed", problem, f"use one of {', '.join(SHAPES)}")
        for name, count in (("leaves", self.leaves), ("spines", self.spines)):
            if not 1 <= count <= MAX_SWITCHES:
                raise InputError("testbed", f"{count} {name}", f"use 1 to {MAX_SWITCHES}")
        edges = {"one": 1, "two-hops": 2, "leaf-spine": self.leaves}[self.switches]
        if len(self.hosts) < edges:
            problem = f"{len(self.hosts)} hosts for {edges} switches that take hosts"
            raise InputError("testbed", problem, f"use {edges} or more hosts")

    def _check_rates(self) -> None:
        least = self.mtu_bytes + ETHERNET_HEADER_BYTES
        for rate in (self.rate_bps, self.uplink_rate_bps):
            if not MIN_RATE_BPS <= rate <= MAX_RATE_BPS:
                problem = f"a rate of {rate:g} b/s"
                raise InputError("testbed", problem, "use 8 kb/s to 10 Tb/s")
        bursts = [self.burst_for(rate) for rate in (self.rate_bps, self.uplink_rate_bps)]
        if min(*bursts, self.limit_bytes, self.nic_limit_bytes) < least:
            problem = f"a burst or limit is below one packet of {least} bytes"
            raise InputError("testbed", problem, "raise it")
        if max(*bursts, self.limit_bytes, self.nic_limit_bytes) >= 2**32:
            raise InputError("testbed", "a burst or limit is 4 GiB or more", "lower it")

    @property
    def uplink_rate_bps(self) -> int:
        return self.rate_bps if self.uplink_bps is None else self.uplink_bps

    def burst_for(self, rate_bps: int) -> int:
        return choose_burst_bytes(rate_bps) if self.burst_bytes is None else self.burst_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plug:
    """One end of a cable: an interface of a node, and how much may wait there."""

    node: str
    interface: str
    limit_bytes: int

    def __str__(self) -> str:
        return f"{self.node} {self.interface}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    ends: tuple[Plug, Plug]
    rate_bps: int
    burst_bytes: int
    between_switches: bool

    def __str__(self) -> str:
        return " - ".join(map(str, self.ends))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Everything to build. `routes[switch][host]` is the port towards the host."""

    switches: tuple[str, ...]
    cables: tuple[Cable, ...]
    routes: Mapping[str, Mapping[str, str]]
    addresses: Mapping[str, str]

    def access(self, host: str) -> Cable:
        """The cable of a host; the host's end comes first."""
        return next(c for c in self.cables if c.ends[0].node == host and not c.between_switches)


def plan_layout(wiring: Wiring) -> Layout:
    edges, spines = _name_switches(wiring)
    switch_of = {
        host: edges[n * len(edges) // len(wiring.hosts)] for n, host in enumerate(wiring.hosts)
    }
    ports = dict.fromkeys((*edges, *spines), 0)
    cables = [_build_access_cable(wiring, host, switch_of[host], ports) for host in wiring.hosts]
    pairs = (
        [(edges[0], edges[1])]
        if wiring.switches == "two-hops"
        else [(leaf, spine) for leaf in edges for spine in spines]
    )
    cables += [_build_uplink(wiring, pair, ports) for pair in pairs]
    network = ipaddress.ip_network(wiring.network)
    addresses = {host: str(network[n]) for n, host in enumerate(wiring.hosts, 1)}
    if wiring.switches == "one":
        addresses[SWITCH] = str(network[-2])
    ways = {switch: _choose_routes(wiring, switch, switch_of, spines, cables) for switch in ports}
    return Layout(
        switches=(*edges, *spines), cables=tuple(cables), routes=ways, addresses=addresses
    )


def _name_switches(wiring: Wiring) -> tuple[list[str], list[str]]:
    """Switches with hosts, and switches without."""
    if wiring.switches == "one":
        return [SWITCH], []
    if wiring.switches == "two-hops":
        return ["switch1", "switch2"], []
    leaves = [f"leaf{n}" for n in range(1, wiring.leaves + 1)]
    return leaves, [f"spine{n}" for n in range(1, wiring.spines + 1)]


def _take_port(ports: dict[str, int], switch: str) -> str:
    """port1, port2, ... in the order of the cables."""
    ports[switch] += 1
    return f"port{ports[switch]}"


def _build_access_cable(wiring: Wiring, host: str, switch: str, ports: dict[str, int]) -> Cable:
    return Cable(
        ends=(
            Plug(node=host, interface=INTERFACE, limit_bytes=wiring.nic_limit_bytes),
            Plug(node=switch, interface=_take_port(ports, switch), limit_bytes=wiring.limit_bytes),
        ),
        rate_bps=wiring.rate_bps,
        burst_bytes=wiring.burst_for(wiring.rate_bps),
        between_switches=False,
    )


def _build_uplink(wiring: Wiring, pair: tuple[str, str], ports: dict[str, int]) -> Cable:
    first, second = (
        Plug(node=switch, interface=_take_port(ports, switch), limit_bytes=wiring.limit_bytes)
        for switch in pair
    )
    rate = wiring.uplink_rate_bps
    return Cable(
        ends=(first, second),
        rate_bps=rate,
        burst_bytes=wiring.burst_for(rate),
        between_switches=True,
    )


def _choose_routes(
    wiring: Wiring,
    switch: str,
    switch_of: Mapping[str, str],
    spines: list[str],
    cables: list[Cable],
) -> dict[str, str]:
    return {
        host: _find_port(
            switch, _choose_next_node(switch, n, switch_of[host], host, spines), cables
        )
        for n, host in enumerate(wiring.hosts)
    }


def _choose_next_node(switch: str, number: int, edge: str, host: str, spines: list[str]) -> str:
    if switch == edge:
        return host
    if switch in spines or not spines:
        return edge
    return spines[number % len(spines)]


def _find_port(switch: str, neighbour: str, cables: list[Cable]) -> str:
    for cable in cables:
        for near, far in (cable.ends, cable.ends[::-1]):
            if (near.node, far.node) == (switch, neighbour):
                return near.interface
    raise AssertionError(f"no cable from {switch} to {neighbour}")
