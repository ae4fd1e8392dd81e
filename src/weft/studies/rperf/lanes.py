"""RPerf section VIII-C, InfiniBand QoS on the real switch, and how it is gamed: Figs. 12 and 13."""

from __future__ import annotations

from weft.studies.draw import comparison_rows, rtt_bars
from weft.studies.observation import bandwidth, rtt, share_range
from weft.studies.rperf.many_to_one import WINDOW_NOTE, counted
from weft.studies.rperf.rperf_setups import (
    OWN_LANE,
    PAPER,
    SENDERS,
    WINDOW_UNBATCHED,
    converged,
    probe,
    senders,
)
from weft.studies.site import Point, simulated
from weft.studies.study import Study

IDLE, SHARED = "no sender", "5 senders, shared lane"
GAMED = "4 senders + pretender"


def _own(number: int) -> str:
    return f"{counted(number)}, own lane"


def _shared_lane(number: int, setting: str) -> Point:
    traffic = [probe("sx6012", "h5"), *senders(number, window=WINDOW_UNBATCHED)]
    return simulated(
        setting=setting,
        settings={"senders": number, "lane": "shared"},
        scenario=converged("sx6012", traffic),
        system="sx6012",
    )


def _own_lane(number: int) -> Point:
    traffic = [probe("sx6012", "h5", sl=1), *senders(number, window=WINDOW_UNBATCHED)]
    return simulated(
        setting=_own(number),
        settings={"senders": number, "lane": "own"},
        scenario=converged("sx6012", traffic, OWN_LANE),
        system="sx6012",
    )


def _gamed() -> Point:
    pretender = {"name": "pretender", "kind": "pretend", "from": "h4", "to": "h6", "sl": 1}
    four = senders(4, window=WINDOW_UNBATCHED)
    return simulated(
        setting=GAMED,
        settings={"senders": 4, "lane": "own, gamed"},
        scenario=converged("sx6012", [probe("sx6012", "h5", sl=1), pretender, *four], OWN_LANE),
        system="sx6012",
    )


LANE_NOTE = (
    "The paper does not state its lane tables. Ours: SL1 on VL1 in the high-priority table, SL0 on "
    "VL0 in the low one, limit of high priority 1, which is 4096 bytes of high priority between "
    "two packets of low: it reproduces the published share of the pretender (0 gives it 3 Gb/s, "
    "2 gives 32, unlimited 41)."
)

FIG12 = Study(
    name="rperf-fig12",
    title="Probe RTT on a lane of its own, and with a pretender on that lane",
    paper=PAPER,
    place="Fig. 12, VIII-C",
    system="sx6012",
    points=(
        _shared_lane(0, IDLE),
        _shared_lane(5, SHARED),
        *(_own_lane(number) for number in SENDERS if number),
        _gamed(),
    ),
    observations=(
        *rtt(IDLE, 0.4, 0.6, "VIII-C, Fig. 12"),
        *rtt(SHARED, 20.2, 22.1, "VIII-C, Fig. 12"),
        *rtt(_own(5), 0.7, 1.1, "VIII-C, Fig. 12"),
        *rtt(GAMED, 8.5, 9.1, "VIII-C, Fig. 12"),
    ),
    panels=(rtt_bars(),),
    notes=(
        WINDOW_NOTE,
        LANE_NOTE,
        "On its own lane the probe waits for at most the packet that is being sent, however many "
        "senders there are. A pretender (256 B, batched) fills that lane's buffer before it.",
    ),
)


FIG13 = Study(
    name="rperf-fig13",
    title="Bandwidth by lane, and what a pretender takes",
    paper=PAPER,
    place="Fig. 13, VIII-C",
    system="sx6012",
    points=(_shared_lane(5, SHARED), _own_lane(5), _gamed()),
    observations=(
        bandwidth(SHARED, 48.4, "VIII-C, Fig. 13: as in section VII"),
        bandwidth(_own(5), 48.4, "VIII-C: the same as without a dedicated SL"),
        bandwidth(GAMED, 21.5, "VIII-C, Fig. 13", "pretender", "bandwidth of the pretender"),
        *share_range(GAMED, 6.7, 7.0, "VIII-C, Fig. 13"),
    ),
    panels=(comparison_rows,),
    notes=(
        WINDOW_NOTE,
        LANE_NOTE,
        "The published totals include the loss with five senders (Fig. 7b), which is not modelled.",
    ),
)
