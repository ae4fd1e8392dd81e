"""Links of this machine that are capped at shares of the whole for a while.

Imports little: every host of a cluster does too. Entry points: `our_links`, `interface_ends`.
Units: bits per second; shares are fractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

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
def our_links(
    ends: Sequence[LinkEnd], link_bps: float | None, *, allow_default_route: bool = False
) -> Iterator[Links]:
    with change_ends(ends, allow_default_route=allow_default_route) as held:
        yield _OurLinks(held, link_bps)


def interface_ends(names: Sequence[str], *, sending_only: bool) -> tuple[LinkEnd, ...]:
    sending = tuple(LinkEnd(None, name) for name in names)
    # What loopback receives is what it has sent.
    receiving = [LinkEnd(None, name, receiving=True) for name in names if name != "lo"]
    return sending if sending_only else (*sending, *receiving)
