"""What the transport and this host have, as far as a choice of settings depends on it.

Entry point: `here_for`. Units: bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft._core import Availability, availability
from weft.host import read_processors
from weft.measure.settings.options import Settings, options_of
from weft.measure.settings.transport import Over, parse_over

VERBS_INLINE_BYTES = 220  # what common adapters take; one that takes less says so (unverified)
ANY_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """`nodes` are this host's NUMA nodes; `inline_limit` 0: nothing goes inline."""

    transport: str
    cpus: int
    nodes: tuple[int, ...]
    inline_limit: int
    largest_bytes: int
    size_bytes: int


def here_for(over: str, given: Mapping[str, str]) -> Here:
    """Of a transport as `--over` names it; `given` are the other settings, as written."""
    route = parse_over(over)
    offers = [o for o in availability(route.transport) if o.device in ("", route.device)]
    host = read_processors()
    size = options_of(Settings)["size"][1]
    written = given.get("size", "64")
    return Here(
        transport=over,
        cpus=len(host.allowed),
        nodes=tuple(host.nodes),
        inline_limit=_inline_limit(route, offers, given.get("endpoint") or "rdm"),
        largest_bytes=min([ANY_BYTES, *(o.max_bytes for o in offers if o.max_bytes)]),
        size_bytes=size.read(written, "--size")
        if ".." not in written and "," not in written
        else 64,
    )


def _inline_limit(route: Over, offers: list[Availability], endpoint: str) -> int:
    if route.transport == "verbs":
        return VERBS_INLINE_BYTES
    found = [o.facts.get(f"{endpoint}.inject_size", "0") for o in offers]
    return max((int(text) for text in found), default=0)
