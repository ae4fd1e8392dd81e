"""Measure real fabrics: open a peer, run a test, get its record and raw samples.

    from weft.measure import latency, open_peer
    with open_peer("node7") as peer:
        run = latency(peer, over="tcp", size="64 B", count=10_000, samples=10_000)
    run.record, run.samples

The tests take their settings by the names that the command line has, as text or numbers.
"""

from weft.measure.interrupt import Interrupt
from weft.measure.measurement import Measurement
from weft.measure.peer.admission import Limits
from weft.measure.peer.channel_spec import ChannelSpec
from weft.measure.peer.client import Channels, Peer, PeerLost, PeerStopped, open_peer
from weft.measure.tests.bandwidth import bandwidth
from weft.measure.tests.latency import latency
from weft.measure.tests.paced import paced
from weft.measure.tests.rate import rate
from weft.measure.tests.rma import rma
from weft.measure.tests.rperf import rperf
from weft.measure.tests.saturation import saturation
from weft.measure.tests.transfer import transfer

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
