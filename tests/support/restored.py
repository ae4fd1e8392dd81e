"""What ends of links have now, and whether that is again what they had."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from weft.host.net import caps, link_ends, namespaces
from weft.host.net.link_ends import LinkEnd, SavedEnd
from weft.host.net.rtnetlink import Rtnetlink

RESTORED_S = 15
CAPPED_S = 30

Root = tuple[str, int, bytes]


def roots(places: Sequence[LinkEnd]) -> list[Root]:
    """Kind, handle and options of each end's root discipline."""
    found = []
    for end in places:
        with Rtnetlink(end.namespace) as link:
            root = link_ends.read_root(link, end, link.find_index(end.interface))
        found.append((root.kind, root.handle, root.options if root.handle else b""))
    return found


def save_loopback() -> SavedEnd:
    """Loopback as saved with the kernel's own discipline."""
    with Rtnetlink() as link:
        index = link.find_index("lo")
    return SavedEnd(
        end=LinkEnd(None, "lo"),
        netns=namespaces.read_identity(None),
        index=index,
        kind="noqueue",
        handle=0,
        options=b"",
    )


def is_held(places: Sequence[LinkEnd]) -> bool:
    """A journal of caps lists one of them; others may be capping other links meanwhile."""
    for path in caps.JOURNALS.glob("weft-*.json"):
        try:
            saved = [link_ends.decode_saved(data) for data in json.loads(path.read_text())]
        except FileNotFoundError:
            continue
        if {one.end for one in saved} & set(places):
            return True
    return False


def wait_capped(places: Sequence[LinkEnd], before: Sequence[Root]) -> None:
    """Until one of them has something else than it had: a share below 100 % has begun."""
    deadline = time.monotonic() + CAPPED_S
    while roots(places) == before:
        assert time.monotonic() < deadline, "nothing was capped"
        time.sleep(0.01)


def wait_restored(places: Sequence[LinkEnd], before: Sequence[Root]) -> None:
    deadline = time.monotonic() + RESTORED_S
    while (roots(places) != before or is_held(places)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert roots(places) == before
    assert not is_held(places)
