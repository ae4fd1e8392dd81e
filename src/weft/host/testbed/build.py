"""A network on one machine: namespaces as hosts, on bridges whose ports have a rate.

Each host has one interface, `eth0`, a veth to a bridge in a namespace of its own. A token bucket at
both ends of every cable sets its rate in both directions. The bucket at a bridge port is the port's
queue: first in, first out, with tail drop, as in an Ethernet switch. Everything lives inside the
namespaces and disappears with them. Entry points: `testbed` (for the length of a block;
`weft.host.testbed.persistent` keeps testbeds), `build_steps`. Units: bits per second, bytes.
"""

from __future__ import annotations

import ipaddress
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.host.net import namespaces, qdisc
from weft.host.net.link_ends import LinkEnd, read_root
from weft.host.net.qdisc import ADD, Counters, TokenBucket
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed.wiring import (
    INTERFACE,
    MAX_OFFLOAD_BYTES,
    SWITCH,
    Cable,
    Layout,
    Plug,
    Wiring,
    plan_layout,
)

BRIDGE = "br0"
_NO_FLOOD = "type bridge_slave flood off mcast_flood off bcast_flood off learning off"
_SETTINGS = Path("/proc/sys/net")
_READY_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Testbed:
    """A built network: the namespace of each host and switch."""

    __test__ = False  # pytest would collect classes of this name

    wiring: Wiring
    namespaces: Mapping[str, str]

    @cached_property
    def layout(self) -> Layout:
        return plan_layout(self.wiring)

    @property
    def addresses(self) -> Mapping[str, str]:
        return self.layout.addresses

    def spawn(self, host: str, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """Starts a command on a host or switch; the end of the testbed ends it."""
        return namespaces.spawn(self.namespace(host), argv, hostname=host, **options)

    def namespace(self, node: str) -> str:
        if node not in self.namespaces:
            nodes = ", ".join(self.namespaces)
            raise InputError("testbed", f"no host or switch {node!r}", f"there are {nodes}")
        return self.namespaces[node]

    def end(self, plug: Plug) -> LinkEnd:
        return LinkEnd(self.namespace(plug.node), plug.interface)

    def ends(self, host: str) -> tuple[LinkEnd, LinkEnd]:
        """Both ends of a host's cable: its interface, and its switch port."""
        near, far = self.layout.access(host).ends
        return self.end(near), self.end(far)

    def all_ends(self) -> list[LinkEnd]:
        """The ends of all cables, also between switches."""
        return [self.end(plug) for cable in self.layout.cables for plug in cable.ends]

    def read_port_counters(self, host: str) -> Counters:
        """The counters of the switch port towards a host."""
        end = self.ends(host)[1]
        with Rtnetlink(end.namespace) as link:
            return read_root(link, end, link.find_index(end.interface)).count


def plan_testbed(wiring: Wiring, build_name: Callable[[str], str]) -> Testbed:
    """A testbed before it is built, with the names of its namespaces."""
    nodes = (*plan_layout(wiring).switches, *wiring.hosts)
    return Testbed(wiring=wiring, namespaces={node: build_name(node) for node in nodes})


@contextmanager
def testbed(wiring: Wiring) -> Iterator[Testbed]:
    """Builds the network; the end of the block removes everything, processes inside too."""
    check_possible(wiring)
    namespaces.remove_leftovers()
    bed = plan_testbed(wiring, namespaces.build_name)
    try:
        for step in build_steps(bed):
            step.run()
        yield bed
    finally:
        for namespace in reversed([*bed.namespaces.values()]):
            namespaces.remove(namespace)


testbed.__test__ = False  # type: ignore[attr-defined]


def check_possible(wiring: Wiring) -> None:
    reason = namespaces.find_obstacle()
    if reason is not None:
        raise InputError("testbed", f"cannot be built here: {reason}", "run it as root on Linux")
    offered = (_SETTINGS / "ipv4/tcp_available_congestion_control").read_text().split()
    if wiring.congestion not in offered:
        problem = f"this kernel has no congestion control {wiring.congestion!r} loaded"
        raise InputError("testbed", problem, f"use one of {', '.join(offered)}")


# ---- Building ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One step of building; `node` is set if it creates a namespace."""

    description: str
    run: Callable[[], None]
    node: str | None = None


def build_steps(bed: Testbed) -> list[Step]:
    """All steps that build the network, in order."""
    layout = bed.layout
    text = _format_hosts_file(bed)
    steps = [
        Step(f"namespace {namespace}", partial(namespaces.create, namespace, text), node)
        for node, namespace in bed.namespaces.items()
    ]
    steps += [
        Step(f"bridge of {switch}", partial(_build_bridge, bed, switch))
        for switch in layout.switches
    ]
    steps += [Step(f"cable {cable}", partial(_build_cable, bed, cable)) for cable in layout.cables]
    steps += [
        Step(f"address of {node}", partial(_set_address, bed, node)) for node in layout.addresses
    ]
    steps += [
        Step(f"routes of {name}", partial(_set_routes, bed, name)) for name in layout.switches
    ]
    return [*steps, Step("wait until all links pass packets", partial(_wait_until_ready, bed))]


def _format_hosts_file(bed: Testbed) -> str:
    lines = ["127.0.0.1 localhost", *(f"{ip} {name}" for name, ip in bed.addresses.items())]
    return "\n".join(lines) + "\n"


def _build_bridge(bed: Testbed, switch: str) -> None:
    _disable_ipv6(bed.namespace(switch))
    lines = [f"link add {BRIDGE} type bridge mcast_snooping 0", f"link set {BRIDGE} up"]
    _run_batch("ip", bed.namespace(switch), lines)


def _build_cable(bed: Testbed, cable: Cable) -> None:
    near, far = (bed.namespace(plug.node) for plug in cable.ends)
    first, second = cable.ends
    mtu, address = f"mtu {bed.wiring.mtu_bytes}", ""
    if not cable.between_switches:
        address = f"address {find_mac(bed, first.node)}"
        _disable_ipv6(near)
    veth = f"link add {first.interface} {address} {mtu}"
    peer = f"type veth peer name {second.interface} netns {far} {mtu}"
    _run_batch("ip", near, [f"{veth} {peer}"])
    for plug in cable.ends:
        _bring_up(bed, plug, flooded=not cable.between_switches)
        _set_rate(bed.end(plug), cable, plug.limit_bytes)


def _bring_up(bed: Testbed, plug: Plug, *, flooded: bool) -> None:
    name = plug.interface
    offload = f"gso_max_size {MAX_OFFLOAD_BYTES}" if bed.wiring.offloads else "gso_max_segs 1"
    lines = [f"link set {name} {offload}"]
    if plug.node in bed.layout.switches:
        lines.append(f"link set {name} master {BRIDGE}")
        lines += [] if flooded else [f"link set {name} {_NO_FLOOD}"]
    _run_batch("ip", bed.namespace(plug.node), [*lines, f"link set {name} up"])


def _set_rate(end: LinkEnd, cable: Cable, limit_bytes: int) -> None:
    bucket = TokenBucket(
        rate_bps=cable.rate_bps, burst_bytes=cable.burst_bytes, limit_bytes=limit_bytes
    )
    options = qdisc.pack_bucket(bucket)
    with Rtnetlink(end.namespace) as link:
        index = link.find_index(end.interface)
        add = qdisc.pack_qdisc(index, "tbf", options, handle=0, flags=ADD)
        link.request([add], str(end))


def _set_address(bed: Testbed, node: str) -> None:
    """Sets the address, the route with its congestion control, and static neighbours."""
    network = ipaddress.ip_network(bed.wiring.network)
    namespace, address = bed.namespace(node), bed.addresses[node]
    _write_setting(namespace, "ipv4/tcp_no_metrics_save", "1")
    interface = BRIDGE if node == SWITCH else INTERFACE
    route = f"dev {interface} src {address} congctl {bed.wiring.congestion}"
    neighbours = [
        f"neigh add {bed.addresses[host]} lladdr {find_mac(bed, host)} "
        f"dev {interface} nud permanent"
        for host in bed.wiring.hosts
        if host != node
    ]
    _run_batch(
        "ip",
        namespace,
        [
            f"addr add {address}/{network.prefixlen} dev {interface} noprefixroute",
            f"route add {network} {route}",
            *neighbours,
        ],
    )


def _set_routes(bed: Testbed, switch: str) -> None:
    routes = bed.layout.routes[switch]
    lines = [
        f"fdb replace {find_mac(bed, host)} dev {routes[host]} master static" for host in routes
    ]
    _run_batch("bridge", bed.namespace(switch), lines)


def _wait_until_ready(bed: Testbed) -> None:
    """The kernel brings links up asynchronously, up to seconds later."""
    deadline = time.monotonic() + _READY_S
    wanted: dict[str, set[str]] = {}
    for end in bed.all_ends():
        wanted.setdefault(str(end.namespace), set()).add(end.interface)
    for namespace, interfaces in wanted.items():
        with Rtnetlink(namespace) as link:
            while missing := interfaces - link.read_ready_interfaces():
                if time.monotonic() > deadline:
                    problem = f"{', '.join(sorted(missing))} did not come up in {_READY_S:g} s"
                    raise InputError(namespace, problem, "try again")
                time.sleep(0.01)


def find_mac(bed: Testbed, host: str) -> str:
    """A host's MAC address."""
    number = bed.wiring.hosts.index(host) + 1
    return f"02:77:65:66:{number >> 8:02x}:{number & 0xFF:02x}"


def _write_setting(namespace: str, name: str, value: str) -> None:
    """Writes a kernel setting of this namespace only."""
    namespaces.run_inside(namespace, lambda: (_SETTINGS / name).write_text(value))


def _disable_ipv6(namespace: str) -> None:
    """Avoids router and neighbour solicitations: no unrequested packets."""
    for which in ("all", "default"):
        setting = f"ipv6/conf/{which}/disable_ipv6"
        if (_SETTINGS / setting).exists():
            _write_setting(namespace, setting, "1")


def _run_batch(program: str, namespace: str, lines: Sequence[str]) -> None:
    namespaces.run_command([program, "-n", namespace, "-batch", "-"], "\n".join(lines) + "\n")
