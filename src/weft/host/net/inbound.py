"""What an interface receives, led through a queue of its own, and how that is undone.

Linux queues what is sent. What comes in is redirected (an ingress discipline, a filter that takes
all, mirred) to an intermediate device (ifb) that is made for the time; this one "sends" it on to
whoever it was for, through a token bucket. The same four functions as `weft.host.net.ends` has for
what is sent; the device's name says which interface it belongs to. Units: bits per second, bytes.
"""

from __future__ import annotations

from dataclasses import replace

from weft.errors import InputError
from weft.host.net import ends, namespaces, qdisc
from weft.host.net.ends import End, Saved
from weft.host.net.qdisc import TokenBucket
from weft.host.net.rtnetlink import KernelRefusal, Rtnetlink, delete_link_message, new_link_message


def save(end: End, *, even_default_route: bool = False) -> Saved:
    """Nothing may be there: rules of others for what comes in could not be put back."""
    with Rtnetlink(end.namespace) as link:
        index = ends.index_of(link, end, even_default_route=even_default_route)
        if _has_rules(link, index):
            problem = "has rules for what it receives, which weft could not restore"
            remedy = f"`tc qdisc del dev {end.interface} ingress` (or clsact) if not needed"
            raise InputError(str(end), problem, remedy)
        device = _device(index)
        if device in link.interfaces():
            remedy = f"`ip link del {device}` if nothing needs it"
            raise InputError(str(end), f"{device} is there already", remedy)
    netns = namespaces.identity(end.namespace)
    return Saved(end=end, netns=netns, index=index, kind="", handle=0, options=b"")


def set_bucket(saved: Saved, bucket: TokenBucket) -> None:
    with Rtnetlink(saved.end.namespace) as link:
        try:
            through = _through(link, saved)
            ends.set_bucket(through, bucket)
            if not _has_rules(link, saved.index):
                rules = qdisc.ingress_message, qdisc.redirect_message
                messages = [rules[0](saved.index), rules[1](saved.index, through.index)]
                link.request(messages, str(saved.end))
        except KernelRefusal as error:
            problem = f"cannot be capped: {error.problem}"
            remedy = "it takes ifb, ingress, u32 and mirred; cap what is sent (--sending-only)"
            raise InputError(str(saved.end), problem, error.remedy or remedy) from error


def bucket_of(end: End) -> TokenBucket | None:
    with Rtnetlink(end.namespace) as link:
        device = _device(link.index(end.interface))
        if device not in link.interfaces():
            return None
    return ends.bucket_of(End(end.namespace, device))


def restore(saved: Saved) -> None:
    """Takes device and rules away; the device too where the interface itself is gone."""
    namespace = saved.end.namespace
    if namespace is not None and not (namespaces.DIRECTORY / namespace).exists():
        return
    with Rtnetlink(namespace) as link:
        found = link.interfaces()
        device = _device(saved.index)
        if device not in found:
            return
        messages = [delete_link_message(found[device])]
        if found.get(saved.end.interface) == saved.index and _has_rules(link, saved.index):
            messages.insert(0, qdisc.delete_message(saved.index, qdisc.INGRESS))
        link.request(messages, str(saved.end))


def _device(index: int) -> str:
    return f"weft-in-{index}"


def _through(link: Rtnetlink, saved: Saved) -> Saved:
    """The device's own sending end; makes the device if it is not there."""
    device = _device(saved.index)
    if device not in link.interfaces():
        link.request([new_link_message(device, "ifb")], str(saved.end))
    end = End(saved.end.namespace, device)
    return replace(saved, end=end, index=link.index(device))


def _has_rules(link: Rtnetlink, index: int) -> bool:
    return any(one.parent == qdisc.INGRESS for one in qdisc.qdiscs(link, index))
