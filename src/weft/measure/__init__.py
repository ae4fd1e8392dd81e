"""Measure real fabrics, from Python.

from weft.measure import ChannelSpec, open_peer
with open_peer("node7") as peer:
    peer.facts["host"], peer.limits
"""

from weft.measure.channel import ChannelSpec
from weft.measure.channels import Channels
from weft.measure.interrupt import Interrupt
from weft.measure.limits import Limits
from weft.measure.peer import Peer, PeerLost, open_peer

__all__ = ["ChannelSpec", "Channels", "Interrupt", "Limits", "Peer", "PeerLost", "open_peer"]
