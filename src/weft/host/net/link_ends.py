"""An end of a link: an interface in a namespace, its queueing discipline, and how to restore it.

`save` reads the root discipline of an end; `restore` restores it byte for byte. `save` refuses a
discipline that could not be restored. This module is about what an interface sends;
`weft.host.net.ingress` is about what it receives. Entry points: `save`, `set_bucket`, `restore`,
`LinkEnd`, `SavedEnd`. Units: bits per second, bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.errors import InputError
from weft.host.net import namespaces, qdisc
from weft.host.net.qdisc import ADD, CHANGE, Qdisc, TokenBucket
from weft.host.net.rtnetlink import Message, Rtnetlink

_HEADER_ROOM_BYTES = 64  # link header with tags


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """The sending or receiving side of an interface; `namespace` None is that of this process."""

    namespace: str | None
    interface: str
    receiving: bool = False

    def __str__(self) -> str:
        name = f"{self.interface}, receiving" if self.receiving else self.interface
        return name if self.namespace is None else f"{self.namespace} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEnd:
    """The saved discipline of an end: the kernel's default, or a token bucket.

    `netns` is the namespace's identity, by which other processes find it again.
    """

    end: LinkEnd
    netns: int
    index: int
    kind: str
    handle: int
    options: bytes

    @property
    def bucket(self) -> TokenBucket | None:
        return qdisc.unpack_bucket(self.options) if self.kind == "tbf" else None

    def as_json(self) -> dict[str, Any]:
        return {
            "namespace": self.end.namespace,
            "interface": self.end.interface,
            "receiving": self.end.receiving,
            "netns": self.netns,
            "index": self.index,
            "kind": self.kind,
            "handle": self.handle,
            "options": self.options.hex(),
        }


def decode_saved(data: Mapping[str, Any]) -> SavedEnd:
    return SavedEnd(
        end=LinkEnd(data["namespace"], data["interface"], data.get("receiving", False)),
        netns=data.get("netns", 0),
        index=data["index"],
        kind=data["kind"],
        handle=data["handle"],
        options=bytes.fromhex(data["options"]),
    )


def save(end: LinkEnd, *, allow_default_route: bool = False) -> SavedEnd:
    """Reads the discipline; refuses what may not be changed or could not be restored."""
    with Rtnetlink(end.namespace) as link:
        index = find_index(link, end, allow_default_route=allow_default_route)
        root, rest = _split_root(qdisc.read_qdiscs(link, index), end)
    under = [
        discipline
        for discipline in rest
        if discipline.parent >> 16 == root.handle >> 16 and discipline.handle
    ]
    plain = root.is_default or root.kind == "tbf"
    if not plain or under:
        kinds = ", ".join(
            f"{discipline.kind} {qdisc.format_handle(discipline.handle)}"
            for discipline in (root, *under)
        )
        remedy = f"`tc qdisc del dev {end.interface} root` if it is not needed"
        raise InputError(str(end), f"has {kinds}, which weft could not restore", remedy)
    return SavedEnd(
        end=end,
        netns=namespaces.read_identity(end.namespace),
        index=index,
        kind=root.kind,
        handle=root.handle,
        options=b"" if root.is_default else root.options,
    )


def find_index(link: Rtnetlink, end: LinkEnd, *, allow_default_route: bool) -> int:
    """The interface's index; refuses that of the default route unless it is allowed."""
    index = link.find_index(end.interface)
    if not allow_default_route and index in link.read_default_routes():
        problem = "carries the default route: a cap would slow everything this machine does"
        raise InputError(str(end), problem, "name another interface, or allow it explicitly")
    return index


def read_root(link: Rtnetlink, end: LinkEnd, index: int) -> Qdisc:
    return _split_root(qdisc.read_qdiscs(link, index), end)[0]


def read_bucket(end: LinkEnd) -> TokenBucket | None:
    """The token bucket of an end, if it has one."""
    with Rtnetlink(end.namespace) as link:
        root = read_root(link, end, link.find_index(end.interface))
    return qdisc.unpack_bucket(root.options) if root.kind == "tbf" else None


def read_max_packet_bytes(saved: SavedEnd) -> int:
    """A smaller bucket would never let it pass: 64 KiB on loopback and IPoIB."""
    with Rtnetlink(saved.end.namespace) as link:
        return link.read_mtu_bytes(saved.index) + _HEADER_ROOM_BYTES


def _split_root(disciplines: Sequence[Qdisc], end: LinkEnd) -> tuple[Qdisc, list[Qdisc]]:
    roots = [discipline for discipline in disciplines if discipline.parent == qdisc.ROOT]
    if not roots:
        raise InputError(str(end), "has no queueing discipline", "set it up first")
    rest = [
        discipline
        for discipline in disciplines
        if discipline not in roots and discipline.parent != qdisc.INGRESS
    ]
    return roots[0], rest


def set_bucket(saved: SavedEnd, bucket: TokenBucket) -> None:
    """Makes this token bucket the end's root."""
    set_root(saved, "tbf", qdisc.pack_bucket(bucket), saved.handle)


def set_root(saved: SavedEnd, kind: str, options: bytes, handle: int, *more: Message) -> None:
    """Changes the root, or replaces it if it cannot be changed; sends `more` after it."""
    with Rtnetlink(saved.end.namespace) as link:
        root = read_root(link, saved.end, saved.index)
        same = root.kind == kind and handle in (0, root.handle) and not more
        change = same and not root.is_default and _is_burst_kept(root, options)
        messages: list[Message] = []
        if not change and not root.is_default:
            messages.append(qdisc.pack_qdisc_deletion(saved.index))
        flags = CHANGE if change else ADD
        messages.append(qdisc.pack_qdisc(saved.index, kind, options, handle=handle, flags=flags))
        link.request([*messages, *more], str(saved.end))


def _is_burst_kept(root: Qdisc, options: bytes) -> bool:
    """Whether the burst does not shrink. The kernel splits packets larger than the burst on
    arrival; one already waiting would never get enough tokens and block the link for good.
    """
    if root.kind != "tbf":
        return True
    return qdisc.unpack_bucket(options).burst_bytes >= qdisc.unpack_bucket(root.options).burst_bytes


def restore(saved: SavedEnd) -> None:
    """Restores the saved discipline; does nothing if the end is gone."""
    if not exists(saved):
        return
    if saved.handle:
        set_root(saved, saved.kind, saved.options, saved.handle)
    else:
        _restore_default(saved)
    with Rtnetlink(saved.end.namespace) as link:
        now = read_root(link, saved.end, saved.index)
    had = saved.kind, saved.handle, saved.options
    if had != (now.kind, now.handle, b"" if now.is_default else now.options):
        problem = f"had {saved.kind} and has {now.kind} now"
        raise InputError(str(saved.end), problem, "see `tc qdisc show`")


def _restore_default(saved: SavedEnd) -> None:
    with Rtnetlink(saved.end.namespace) as link:
        if not read_root(link, saved.end, saved.index).is_default:
            link.request([qdisc.pack_qdisc_deletion(saved.index)], str(saved.end))


def exists(saved: SavedEnd) -> bool:
    """Whether the same interface still exists, not a later one of its name."""
    try:
        with Rtnetlink(saved.end.namespace) as link:
            return link.read_interfaces().get(saved.end.interface) == saved.index
    except namespaces.NamespaceGone:
        return False


def find_reachable(saved: SavedEnd) -> SavedEnd | None:
    """The end as this process can reach it; None if its namespace is gone.

    An end saved in "our" namespace may be restored from another one.
    """
    if saved.end.namespace is not None or saved.netns in (0, namespaces.read_identity(None)):
        return saved
    place = namespaces.find_by_identity(saved.netns)
    return None if place is None else replace(saved, end=replace(saved.end, namespace=place))
