"""Where a command is profiled: a testbed host, named interfaces of this machine, or a Dask cluster.

On a testbed all cables are capped, as the paper caps every server's link, and bytes are counted at
the command's host. Named interfaces are capped in both directions (or only what they send), and
bytes are those of the first. On a cluster every worker caps its own host's interfaces
(`hold_caps`); a worker on this machine takes part too if its links are to be capped.
Entry points: `open_testbed_place`, `build_interface_place`, `build_cluster_place`.
Units: bits per second, seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from weft.errors import InputError
from weft.fleet import Coordinator, HostCalls, HostLost, dask_fleet
from weft.fleet.coordinator import Invitation, Member, Stopped, join
from weft.host.machine.kernel_files import ROOT, read_number
from weft.host.net import namespaces
from weft.host.net.caps import ChangedEnds, change_ends
from weft.host.net.link_ends import LinkEnd
from weft.host.testbed import persistent
from weft.host.testbed.wiring import INTERFACE, MIN_RATE_BPS, Wiring
from weft.sensitivity.run_command import CommandRun, count_bytes, run_command
from weft.units import format_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place while it is ours. `namespace` None is that of this process.

    Shares are those of `link_bps`; `slowest_bps` is the rate of the slowest capped link. Caps may
    be set inside the block of `capping`, which removes all of them at its end.
    """

    description: str
    namespace: str | None
    hostname: str
    interface: str
    link_bps: float
    slowest_bps: float
    capping: Callable[[], AbstractContextManager[Links]]

    def check_share(self, share: float) -> None:
        """Refuses a share below the smallest cap of the slowest link."""
        if share * self.slowest_bps < MIN_RATE_BPS:
            link = format_value(self.slowest_bps, "b/s")
            problem = f"{100 * share:g} % of a link of {link} is below 8 kb/s, the least cap"
            raise InputError("--percent", problem, "leave it out, or use a faster link")

    def run(self, command: Sequence[str], *, limit_s: float, where: str) -> CommandRun:
        spawn = partial(namespaces.spawn, self.namespace, command, hostname=self.hostname)
        with count_bytes(self.namespace, self.interface) as counters:
            return run_command(spawn, counters, limit_s=limit_s, where=where)


@contextmanager
def open_testbed_place(name: str, host: str | None) -> Iterator[Place]:
    with persistent.use_testbed(name, "profile") as bed:
        node = host or bed.wiring.hosts[0]
        if node not in bed.wiring.hosts:
            hosts = ", ".join(bed.wiring.hosts)
            raise InputError(f"--host {node}", f"not in testbed {name}", f"use one of {hosts}")
        yield Place(
            description=describe_testbed(name, node, bed.wiring),
            namespace=bed.namespace(node),
            hostname=node,
            interface=INTERFACE,
            link_bps=bed.wiring.rate_bps,
            slowest_bps=min(cable.rate_bps for cable in bed.layout.cables),
            capping=partial(cap_links, bed.all_ends(), None),
        )


def describe_testbed(name: str, node: str, wiring: Wiring) -> str:
    """The testbed and host of a command, without the rate of the hosts' links."""
    return f"testbed {name}, command on {node}; {describe_network(wiring)}"


def describe_network(wiring: Wiring) -> str:
    """What distinguishes networks, in one line, without the rate of the hosts' links."""
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


def build_interface_place(
    interfaces: Sequence[str],
    link_bps: float | None,
    *,
    allow_default_route: bool,
    sending_only: bool = False,
) -> Place:
    if os.geteuid() != 0:
        raise InputError("profile", "links cannot be capped: not root", "run it as root")
    caps = _build_request(
        interfaces, link_bps, allow_default_route=allow_default_route, sending_only=sending_only
    )
    return _build_place("", caps, caps.open_links)


def find_interfaces(names: Sequence[str]) -> tuple[str, ...]:
    """Each interface once; refuses missing ones."""
    for name in names:
        with count_bytes(None, name):
            pass  # it is there
    return tuple(dict.fromkeys(names))


def read_speed_bps(names: Sequence[str]) -> float:
    """The speed of the interfaces, if they report the same."""
    speeds = {name: read_number(ROOT / "sys/class/net" / name / "speed") for name in names}
    distinct = set(speeds.values())
    if len(distinct) == 1 and (speed := distinct.pop()) is not None and speed > 0:
        return 1e6 * speed
    listed = ", ".join(f"{name} {speed or 'unknown'}" for name, speed in speeds.items())
    raise InputError("link rate", f"the interfaces do not say it ({listed})", "give --rate")


JOIN_S = 60.0
ANSWER_S = 30.0  # a host's kernel, and its way to us through its own capped link


def build_cluster_place(
    scheduler: str,
    interfaces: Sequence[str],
    link_bps: float | None,
    *,
    allow_default_route: bool = False,
    sending_only: bool = False,
) -> Place:
    caps = _build_request(
        interfaces, link_bps, allow_default_route=allow_default_route, sending_only=sending_only
    )
    return _build_place(f"cluster {scheduler}, ", caps, partial(_cluster_links, scheduler, caps))


def _build_place(
    where: str, caps: CapRequest, capping: Callable[[], AbstractContextManager[Links]]
) -> Place:
    """Interfaces of this machine, alone or as those of every host of a cluster."""
    only = ", sending only" if caps.sending_only else ""
    return Place(
        description=f"{where}interfaces {', '.join(caps.interfaces)}{only}",
        namespace=None,
        hostname="",
        interface=caps.interfaces[0],
        link_bps=caps.link_bps,
        slowest_bps=caps.link_bps,
        capping=capping,
    )


@contextmanager
def _cluster_links(scheduler: str, caps: CapRequest) -> Iterator[Links]:
    with (
        dask_fleet(scheduler) as fleet,
        Coordinator(list(fleet.executors), fleet.coordinator) as coordinator,
    ):
        calls = {
            host: executor.submit(hold_caps, coordinator.invitation(host), caps)
            for host, executor in fleet.executors.items()
        }
        links = _ClusterLinks(HostCalls(coordinator, fleet, calls))
        try:
            links.wait("holding", JOIN_S)
            yield links
        finally:
            late = links.calls.close(ANSWER_S)
        if late:
            problem = f"not done within {ANSWER_S:g} s"
            raise InputError(f"restoring {', '.join(late)}", problem, "see `tc qdisc show` there")


@dataclass(slots=True)
class _ClusterLinks:
    calls: HostCalls
    requests: int = 0

    def cap(self, share: float) -> None:
        self._ask("cap", share)

    def check(self, share: float) -> None:
        self._ask("check", share)

    def _ask(self, action: str, share: float) -> None:
        self.requests += 1
        self.calls.coordinator.announce("do", [self.requests, action, share])
        self.wait(f"did {self.requests}", ANSWER_S)

    def wait(self, kind: str, timeout_s: float) -> None:
        try:
            self.calls.gather(kind, timeout_s)
        except HostLost as lost:
            remedy = "its links are restored there; start its worker again"
            raise InputError(f"host {lost.host}", lost.reason, remedy) from lost


class Links(Protocol):
    """Links that may be capped for a while."""

    def cap(self, share: float) -> None:
        """Caps all links at this share."""

    def check(self, share: float) -> None:
        """Raises unless all links are capped at this share."""


@dataclass(frozen=True, slots=True)
class _OurLinks:
    """Shares of `link_bps`; None: of what the token bucket of each end says the whole is."""

    ends: ChangedEnds
    link_bps: float | None

    def cap(self, share: float) -> None:
        self.ends.cap(**self._express(share))

    def check(self, share: float) -> None:
        self.ends.check(**self._express(share))

    def _express(self, share: float) -> dict[str, float]:
        if self.link_bps is None:
            return {"percent": 100 * share}
        return {"rate_bps": share * self.link_bps}


@contextmanager
def cap_links(
    ends: Sequence[LinkEnd], link_bps: float | None, *, allow_default_route: bool = False
) -> Iterator[Links]:
    with change_ends(ends, allow_default_route=allow_default_route) as changed:
        yield _OurLinks(changed, link_bps)


def interface_ends(names: Sequence[str], *, sending_only: bool) -> tuple[LinkEnd, ...]:
    sending = tuple(LinkEnd(None, name) for name in names)
    # What loopback receives is what it has sent.
    receiving = [LinkEnd(None, name, receiving=True) for name in names if name != "lo"]
    return sending if sending_only else (*sending, *receiving)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRequest:
    """A request to cap interfaces, the same for every host."""

    interfaces: tuple[str, ...]
    link_bps: float
    allow_default_route: bool
    sending_only: bool

    def open_links(self) -> AbstractContextManager[Links]:
        """This host's interfaces."""
        ends = interface_ends(self.interfaces, sending_only=self.sending_only)
        return cap_links(ends, self.link_bps, allow_default_route=self.allow_default_route)


def _build_request(
    interfaces: Sequence[str], link_bps: float | None, **options: bool
) -> CapRequest:
    """Refuses missing interfaces, and those whose rate is not known."""
    names = find_interfaces(interfaces)
    return CapRequest(interfaces=names, link_bps=link_bps or read_speed_bps(names), **options)


def hold_caps(invitation: Invitation, caps: CapRequest) -> None:
    """Caps this host's interfaces on request, until the coordinator is gone."""
    try:
        with join(invitation) as member, caps.open_links() as links:
            member.report("holding")
            _follow_requests(member, links)
    except InputError as error:
        where = f"host {invitation.member}: {error.where}"
        raise InputError(where, error.problem, error.remedy) from error


def _follow_requests(member: Member, links: Links) -> None:
    try:
        while True:
            number, action, share = member.wait_for("do")
            if action == "cap":
                links.cap(share)
            else:
                links.check(share)
            member.report(f"did {number}")
    except Stopped:
        return
