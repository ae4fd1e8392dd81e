"""Where a command is profiled: on a host of a testbed, or here on interfaces that are named.

On a testbed all cables are capped, as the paper caps every server's; bytes are those of the host
on which the command runs. Of named interfaces all are capped, what they send and what they receive
(or only what they send), and bytes are those of the first.
Entry points: `on_testbed`, `on_interfaces`. Units: bits per second.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from weft.errors import InputError
from weft.host import namespaces, standing
from weft.host.caps import Ends, changing
from weft.host.ends import End
from weft.host.tree import ROOT, number
from weft.host.wiring import INTERFACE
from weft.sensitivity.run_command import Ran, host_bytes, run_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place while it is ours. `namespace` None is that of this process.

    Ends whose token bucket says what the whole link is are capped at a share of that, the others
    (`bare`) at a share of `link_bps`.
    """

    what: str
    namespace: str | None
    hostname: str
    interface: str
    ends: tuple[End, ...]
    link_bps: float
    bare: bool
    even_default_route: bool = False

    def run(self, command: Sequence[str], *, limit_s: float, where: str) -> Ran:
        spawn = partial(namespaces.spawn, self.namespace, command, hostname=self.hostname)
        with host_bytes(self.namespace, self.interface) as counters:
            return run_command(spawn, counters, limit_s=limit_s, where=where)

    @contextmanager
    def capping(self) -> Iterator[Ends]:
        """Caps may be set inside the block; all comes off after it, whatever ends it."""
        with changing(self.ends, even_default_route=self.even_default_route) as ends:
            yield ends

    def cap(self, ends: Ends, share: float) -> None:
        if self.bare:
            ends.cap(rate_bps=share * self.link_bps)
        else:
            ends.cap(percent=100 * share)


@contextmanager
def on_testbed(name: str, host: str | None) -> Iterator[Place]:
    with standing.used(name, "profile") as bed:
        node = host or bed.wiring.hosts[0]
        if node not in bed.wiring.hosts:
            there = ", ".join(bed.wiring.hosts)
            raise InputError(f"--host {node}", f"is not of testbed {name}", f"there are {there}")
        yield Place(
            what=f"testbed {name}, command on {node}",
            namespace=bed.namespace(node),
            hostname=node,
            interface=INTERFACE,
            ends=tuple(bed.all_ends()),
            link_bps=bed.wiring.rate_bps,
            bare=False,
        )


def on_interfaces(
    interfaces: Sequence[str], link_bps: float | None, *, even_default_route: bool,
    sending_only: bool = False,
) -> Place:  # fmt: skip
    if os.geteuid() != 0:
        raise InputError("profile", "links cannot be capped: not root", "run it as root")
    names = tuple(dict.fromkeys(interfaces))
    for name in names:
        with host_bytes(None, name):
            pass  # it is there
    return Place(
        what=f"interfaces {', '.join(names)}{', sending only' if sending_only else ''}",
        namespace=None,
        hostname="",
        interface=names[0],
        ends=interface_ends(names, sending_only=sending_only),
        link_bps=_speed_bps(names) if link_bps is None else link_bps,
        bare=True,
        even_default_route=even_default_route,
    )


def interface_ends(names: Sequence[str], *, sending_only: bool) -> tuple[End, ...]:
    sending = tuple(End(None, name) for name in names)
    # What loopback receives is what it has sent.
    receiving = [End(None, name, receiving=True) for name in names if name != "lo"]
    return sending if sending_only else (*sending, *receiving)


def _speed_bps(names: Sequence[str]) -> float:
    """What the interfaces say, where they say the same."""
    speeds = {name: number(ROOT / "sys/class/net" / name / "speed") for name in names}
    found = set(speeds.values())
    if len(found) == 1 and (speed := found.pop()) is not None and speed > 0:
        return 1e6 * speed
    told = ", ".join(f"{name} {speed or 'unknown'}" for name, speed in speeds.items())
    raise InputError("link rate", f"the interfaces do not say it ({told})", "give --rate")
