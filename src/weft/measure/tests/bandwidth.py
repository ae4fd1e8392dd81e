"""Bandwidth: payload per second, one way or both, synchronous (depth 1) or windowed.

`throughput` is what arrived, over the longer of both ends' times; `sender.throughput` is what the
sender saw completed. Both ways at once, `back.throughput` is what came to us, and
`both.throughput` is the sum. Entry point: `bandwidth`. Units: b/s, s of processor time.
"""

from __future__ import annotations

from weft.measure import mpi
from weft.measure.measurement import Measurement, Test, measure
from weft.measure.observation import Observation, Total, sum_counts, throughput_quantities
from weft.measure.peer.client import Peer
from weft.measure.rig import Progress, Rig
from weft.measure.settings.by_test import BandwidthSettings
from weft.measure.tests.streams import (
    check_streams,
    count_posted,
    duplex_loops,
    observe_streams,
    run_loops,
    run_one_way,
    run_streams_mpi,
)


def run(rig: Rig, settings: BandwidthSettings) -> Observation:
    """Streams on every thread until their count or duration."""
    return run_both_ways(rig, settings) if settings.bidirectional else run_one_way(rig, settings)


def run_both_ways(rig: Rig, settings: BandwidthSettings) -> Observation:
    """As `run_one_way`, and the peer sends as much as it can at the same time."""
    with run_loops(rig, settings, settings.op, "duplex", duplex_loops) as (ends, results):
        sent, received = [s for s, _ in results], [r for _, r in results]
        peer_received = rig.finish(ends, sent, count_posted(settings, sent))
    observed = observe_streams(settings, sent, peer_received)
    return _add_back(observed, sum_counts(peer_received, beside=sent), sum_counts(received))


def _add_back(observed: Observation, forth: Total, back: Total) -> Observation:
    observed.quantities |= throughput_quantities("back.throughput", back)
    observed.quantities |= throughput_quantities("both.throughput", forth, back)
    return observed


def run_mpi(ranks: mpi.Ranks, settings: BandwidthSettings) -> Observation:
    """The same by two ranks."""
    if not settings.bidirectional:
        return run_streams_mpi(ranks, settings)
    outcome = ranks.run(mpi.build_job("bidirectional", settings, window=settings.depth))
    assert isinstance(outcome.result, tuple)
    sent, received = outcome.result
    observed = observe_streams(settings, [sent], [outcome.peer_counts])
    return _add_back(observed, sum_counts([outcome.peer_counts]), sum_counts([received]))


BANDWIDTH = Test(
    name="bandwidth",
    settings=BandwidthSettings,
    run=run,
    run_mpi=run_mpi,
    check=check_streams,
    op=lambda settings: settings.op,
)


def bandwidth(
    peer: Peer | None = None, progress: Progress | None = None, **settings: object
) -> Measurement:
    """Measure throughput: `bandwidth(peer, over="tcp", size="64 KiB", depth=16)`."""
    return measure(BANDWIDTH, peer, settings, progress)
