"""Where a command is profiled: on a host of a testbed, or here on interfaces that are named.

On a testbed all cables are capped, as the paper caps every server's; bytes are those of the host
on which the command runs. Of named interfaces all are capped, what they send and what they receive
(or only what they send), and bytes are those of the first.
The interfaces of a whole cluster are in `cluster_place`. Entry points: `on_testbed`,
`on_interfaces`. Units: bits per second.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

from weft.errors import InputError
from weft.host.machine.kernel_files import ROOT, read_number
from weft.host.net import namespaces
from weft.host.testbed import persistent
from weft.host.testbed.wiring import INTERFACE, MIN_RATE_BPS, Wiring
from weft.sensitivity.links import Links, interface_ends, our_links
from weft.sensitivity.run_command import Ran, host_bytes, run_command
from weft.units import format_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place while it is ours. `namespace` None is that of this process.

    `link_bps` is the rate of the link whose shares are told, `slowest_bps` that of the slowest one
    that is capped at them.
    Caps may be set inside the block of `capping`; all comes off after it, whatever ends it.
    """

    what: str
    namespace: str | None
    hostname: str
    interface: str
    link_bps: float
    slowest_bps: float
    capping: Callable[[], AbstractContextManager[Links]]

    def check_share(self, share: float) -> None:
        """Refuses a share at which a link would have less than can be set."""
        if share * self.slowest_bps < MIN_RATE_BPS:
            link = format_value(self.slowest_bps, "b/s")
            problem = f"{100 * share:g} % of a link of {link} is below 8 kb/s, the least cap"
            raise InputError("--percent", problem, "leave it out, or use a faster link")

    def run(self, command: Sequence[str], *, limit_s: float, where: str) -> Ran:
        spawn = partial(namespaces.spawn, self.namespace, command, hostname=self.hostname)
        with host_bytes(self.namespace, self.interface) as counters:
            return run_command(spawn, counters, limit_s=limit_s, where=where)


@contextmanager
def on_testbed(name: str, host: str | None) -> Iterator[Place]:
    with persistent.use_testbed(name, "profile") as bed:
        node = host or bed.wiring.hosts[0]
        if node not in bed.wiring.hosts:
            there = ", ".join(bed.wiring.hosts)
            raise InputError(f"--host {node}", f"is not of testbed {name}", f"there are {there}")
        yield Place(
            what=testbed_text(name, node, bed.wiring),
            namespace=bed.namespace(node),
            hostname=node,
            interface=INTERFACE,
            link_bps=bed.wiring.rate_bps,
            slowest_bps=min(cable.rate_bps for cable in bed.layout.cables),
            capping=partial(our_links, bed.all_ends(), None),
        )


def testbed_text(name: str, node: str, wiring: Wiring) -> str:
    """Where commands run, but for the rate of the hosts' links."""
    return f"testbed {name}, command on {node}; {network_text(wiring)}"


def network_text(wiring: Wiring) -> str:
    """What tells one network from another on a line, but for the rate of its hosts' links."""
    shapes = {
        "one": "one switch",
        "two-hops": "two switches",
        "leaf-spine": f"{wiring.leaves} leaves and {wiring.spines} spines",
    }
    uplinks = f", uplinks of {wiring.uplink_rate_bps / 1e6:.12g} Mb/s"
    at_hosts = f" ({wiring.nic_limit_bytes} B at hosts)"
    return (
        f"{len(wiring.hosts)} hosts on {shapes[wiring.switches]}"
        f"{'' if wiring.switches == 'one' else uplinks}"
        f", burst {wiring.burst_for(wiring.rate_bps)} B, limit {wiring.limit_bytes} B"
        f"{'' if wiring.nic_limit_bytes == wiring.limit_bytes else at_hosts}"
        f", MTU {wiring.mtu_bytes} B, offloads {'on' if wiring.offloads else 'off'}"
        f", {wiring.congestion}"
    )


def on_interfaces(
    interfaces: Sequence[str],
    link_bps: float | None,
    *,
    allow_default_route: bool,
    sending_only: bool = False,
) -> Place:
    if os.geteuid() != 0:
        raise InputError("profile", "links cannot be capped: not root", "run it as root")
    names = known_interfaces(interfaces)
    whole_bps = link_bps or speed_bps(names)
    ends = interface_ends(names, sending_only=sending_only)
    return Place(
        what=f"interfaces {', '.join(names)}{', sending only' if sending_only else ''}",
        namespace=None,
        hostname="",
        interface=names[0],
        link_bps=whole_bps,
        slowest_bps=whole_bps,
        capping=partial(our_links, ends, whole_bps, allow_default_route=allow_default_route),
    )


def known_interfaces(names: Sequence[str]) -> tuple[str, ...]:
    """Each once; refuses those that this machine does not have."""
    for name in names:
        with host_bytes(None, name):
            pass  # it is there
    return tuple(dict.fromkeys(names))


def speed_bps(names: Sequence[str]) -> float:
    """What the interfaces say, where they say the same."""
    speeds = {name: read_number(ROOT / "sys/class/net" / name / "speed") for name in names}
    found = set(speeds.values())
    if len(found) == 1 and (speed := found.pop()) is not None and speed > 0:
        return 1e6 * speed
    told = ", ".join(f"{name} {speed or 'unknown'}" for name, speed in speeds.items())
    raise InputError("link rate", f"the interfaces do not say it ({told})", "give --rate")
