"""Measure real fabrics: open a peer, run a test, get its record and raw samples.

    from weft.measure import latency, open_peer
    with open_peer("node7") as peer:
        run = latency(peer, over="tcp", size="64 B", count=10_000, samples=10_000)
    run.record, run.samples

The tests take their settings by the names that the command line has, as text or numbers.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.measure.interrupt import Interrupt
    from weft.measure.measurement import Measurement
    from weft.measure.peer.channel_spec import ChannelSpec
    from weft.measure.peer.client import Channels, Peer, PeerLost, PeerStopped, open_peer
    from weft.measure.peer.negotiation import Limits
    from weft.measure.tests.bandwidth import bandwidth, rate, rma
    from weft.measure.tests.latency import latency, paced, rperf
    from weft.measure.tests.saturation import saturation
    from weft.measure.tests.transfer import transfer

_MODULES = {
    "interrupt": ("Interrupt",),
    "measurement": ("Measurement",),
    "peer.negotiation": ("Limits",),
    "peer.channel_spec": ("ChannelSpec",),
    "peer.client": ("Channels", "Peer", "PeerLost", "PeerStopped", "open_peer"),
    "tests.bandwidth": ("bandwidth", "rate", "rma"),
    "tests.latency": ("latency", "paced", "rperf"),
    "tests.saturation": ("saturation",),
    "tests.transfer": ("transfer",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Names are imported when they are asked for: settings alone need no numpy."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


__all__ = [
    "ChannelSpec",
    "Channels",
    "Interrupt",
    "Limits",
    "Measurement",
    "Peer",
    "PeerLost",
    "PeerStopped",
    "bandwidth",
    "latency",
    "open_peer",
    "paced",
    "rate",
    "rma",
    "rperf",
    "saturation",
    "transfer",
]
