"""Caps on what an interface receives: redirect it through a queue, and undo that.

Linux only queues what is sent. Incoming packets are redirected (ingress qdisc, a match-all filter,
mirred) to a temporary intermediate device (ifb), which delivers them through a token bucket. The
device's name says which interface it serves. The functions parallel those of
`weft.host.net.link_ends`, which caps what is sent. Units: bits per second, bytes.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from weft.errors import InputError
from weft.host.net import link_ends, namespaces, qdisc
from weft.host.net.link_ends import LinkEnd, SavedEnd
from weft.host.net.qdisc import TokenBucket
from weft.host.net.rtnetlink import KernelRefusal, Rtnetlink, pack_link_deletion, pack_new_link


def save(end: LinkEnd, *, allow_default_route: bool = False) -> SavedEnd:
    """Refuses interfaces with ingress rules: weft could not restore them."""
    with Rtnetlink(end.namespace) as link:
        index = link_ends.find_index(link, end, allow_default_route=allow_default_route)
        if _has_rules(link, index):
            problem = "has rules for what it receives, which weft could not restore"
            remedy = f"`tc qdisc del dev {end.interface} ingress` (or clsact) if not needed"
            raise InputError(str(end), problem, remedy)
        device = _name_device(index)
        if device in link.read_interfaces():
            remedy = f"`ip link del {device}` if nothing needs it"
            raise InputError(str(end), f"{device} is there already", remedy)
    netns = namespaces.read_identity(end.namespace)
    return SavedEnd(end=end, netns=netns, index=index, kind="", handle=0, options=b"")


def set_bucket(saved: SavedEnd, bucket: TokenBucket) -> None:
    with Rtnetlink(saved.end.namespace) as link:
        try:
            through = _open_device(link, saved)
            link_ends.set_bucket(through, bucket)
            if not _has_rules(link, saved.index):
                rules = qdisc.pack_ingress, qdisc.pack_redirect
                messages = [rules[0](saved.index), rules[1](saved.index, through.index)]
                link.request(messages, str(saved.end))
        except KernelRefusal as error:
            problem = f"cannot be capped: {error.problem}"
            remedy = "it takes ifb, ingress, u32 and mirred; cap what is sent (--sending-only)"
            raise InputError(str(saved.end), problem, error.remedy or remedy) from error


def read_bucket(end: LinkEnd) -> TokenBucket | None:
    with Rtnetlink(end.namespace) as link:
        device = _name_device(link.find_index(end.interface))
        if device not in link.read_interfaces():
            return None
    return link_ends.read_bucket(LinkEnd(end.namespace, device))


def restore(saved: SavedEnd) -> None:
    """Removes device and rules; the device also if the interface itself is gone."""
    with suppress(namespaces.NamespaceGone), Rtnetlink(saved.end.namespace) as link:
        interfaces = link.read_interfaces()
        device = _name_device(saved.index)
        if device not in interfaces:
            return
        messages = [pack_link_deletion(interfaces[device])]
        if interfaces.get(saved.end.interface) == saved.index and _has_rules(link, saved.index):
            messages.insert(0, qdisc.pack_qdisc_deletion(saved.index, qdisc.INGRESS))
        link.request(messages, str(saved.end))


def _name_device(index: int) -> str:
    return f"weft-in-{index}"


def _open_device(link: Rtnetlink, saved: SavedEnd) -> SavedEnd:
    """The sending end of the intermediate device; creates the device if missing."""
    device = _name_device(saved.index)
    if device not in link.read_interfaces():
        link.request([pack_new_link(device, "ifb")], str(saved.end))
    end = LinkEnd(saved.end.namespace, device)
    return replace(saved, end=end, index=link.find_index(device))


def _has_rules(link: Rtnetlink, index: int) -> bool:
    return any(discipline.parent == qdisc.INGRESS for discipline in qdisc.read_qdiscs(link, index))
