"""Measure real fabrics: open a peer, run a test, get its record and raw samples.

    from weft.measure import latency, open_peer
    with open_peer("node7") as peer:
        run = latency(peer, over="tcp", size="64 B", count=10_000, samples=10_000)
    run.record, run.samples

The tests take their settings by the names that the command line has, as text or numbers.
"""

from weft.measure.bandwidth import bandwidth
from weft.measure.channel import ChannelSpec
from weft.measure.channels import Channels
from weft.measure.interrupt import Interrupt
from weft.measure.latency import latency
from weft.measure.limits import Limits
from weft.measure.loss import PeerLost, PeerStopped
from weft.measure.paced import paced
from weft.measure.peer import Peer, open_peer
from weft.measure.rate import rate
from weft.measure.rma import rma
from weft.measure.rperf import rperf
from weft.measure.saturation import saturation
from weft.measure.test import Measurement
from weft.measure.transfer import transfer

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
