"""Links capped at a share of their rate for a while, here or on a worker of a cluster.

Every host of a cluster imports this module, so it imports little. A worker caps its own interfaces
as the profiling host asks over their connection. When that connection ends, the worker restores its
links; if the worker is killed, its watchdog does.
Entry points: `cap_links`, `hold_caps`, `interface_ends`.
Units: bits per second; shares are fractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from weft.errors import InputError
from weft.fleet.member import Invitation, Member, Stopped, join
from weft.host.net.caps import ChangedEnds, change_ends
from weft.host.net.link_ends import LinkEnd


class Links(Protocol):
    """Links that may be capped for a while."""

    def cap(self, share: float) -> None:
        """All of them have this share of the whole."""

    def check(self, share: float) -> None:
        """Raises unless all of them have it now."""


@dataclass(frozen=True, slots=True)
class _OurLinks:
    """Shares of `link_bps`; None: of what the token bucket of each end says the whole is."""

    ends: ChangedEnds
    link_bps: float | None

    def cap(self, share: float) -> None:
        if self.link_bps is None:
            self.ends.cap(percent=100 * share)
        else:
            self.ends.cap(rate_bps=share * self.link_bps)

    def check(self, share: float) -> None:
        if self.link_bps is None:
            self.ends.check(percent=100 * share)
        else:
            self.ends.check(rate_bps=share * self.link_bps)


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
    """What every host holds for us."""

    interfaces: tuple[str, ...]
    link_bps: float
    allow_default_route: bool
    sending_only: bool


def hold_caps(invitation: Invitation, caps: CapRequest) -> None:
    """Caps this host's interfaces as it is told, until there is nobody who tells."""
    try:
        ends = interface_ends(caps.interfaces, sending_only=caps.sending_only)
        allowed = caps.allow_default_route
        with (
            join(invitation) as member,
            cap_links(ends, caps.link_bps, allow_default_route=allowed) as links,
        ):
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
