"""Message rate: small messages over depth, connections, threads and lists of posts.

The same streams as `bandwidth` has, one way, of small messages; `message_rate` is the receiver's.
Entry point: `rate`. Units: million messages per second.
"""

from __future__ import annotations

from weft.measure.measurement import Measurement, Test, measure
from weft.measure.peer.client import Peer
from weft.measure.rig import Progress
from weft.measure.settings.by_test import Streamed
from weft.measure.tests.streams import check_streams, run_one_way, run_streams_mpi

RATE = Test(
    name="rate",
    settings=Streamed,
    run=run_one_way,
    run_mpi=run_streams_mpi,
    check=check_streams,
    op=lambda settings: settings.op,
)


def rate(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure the message rate: `rate(peer, over="ofi:shm", depth=128, threads=2)`."""
    return measure(RATE, peer, settings, progress)
