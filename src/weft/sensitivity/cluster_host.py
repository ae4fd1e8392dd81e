"""A host of a cluster while a command is profiled elsewhere: it caps its own interfaces when told.

It is told over its connection to who profiles: when that ends, for whatever reason, the host
restores its links, and its watchdog does if its worker is killed. Entry point: `hold`. Units: bits
per second.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import InputError
from weft.fleet.member import Invitation, Member, Stopped, join
from weft.sensitivity.links import Links, interface_ends, our_links


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What every host holds for us."""

    interfaces: tuple[str, ...]
    link_bps: float
    allow_default_route: bool
    sending_only: bool


def hold(invitation: Invitation, held: Held) -> None:
    """Caps this host's interfaces as it is told, until there is nobody who tells."""
    try:
        ends = interface_ends(held.interfaces, sending_only=held.sending_only)
        allowed = held.allow_default_route
        with (
            join(invitation) as member,
            our_links(ends, held.link_bps, allow_default_route=allowed) as links,
        ):
            member.report("holding")
            _obey(member, links)
    except InputError as error:
        where = f"host {invitation.member}: {error.where}"
        raise InputError(where, error.problem, error.remedy) from error


def _obey(member: Member, links: Links) -> None:
    try:
        while True:
            number, what, share = member.wait_for("do")
            if what == "cap":
                links.cap(share)
            else:
                links.check(share)
            member.report(f"did {number}")
    except Stopped:
        return
