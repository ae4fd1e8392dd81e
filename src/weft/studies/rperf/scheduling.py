"""RPerf section VIII-B and C, the order of packets: Figs. 10 to 13.

Scheduling policies in the paper's simulator, and InfiniBand QoS on the real switch and how it is
gamed. Entry points: `FIG10` to `FIG13`.
"""

from __future__ import annotations

from weft.studies.observation import MEDIAN_RTT, Observation, quantile_in
from weft.studies.points import Point, simulation_point
from weft.studies.rperf.many_to_one import count_senders, senders_point
from weft.studies.rperf.rperf_draw import comparison_panel, lines_panel, rtt_bars_panel, rtt_lines
from weft.studies.rperf.rperf_setups import (
    IN_FLIGHT_NOTE,
    OMNET_WINDOW,
    OWN_LANE,
    SENDERS,
    count_in_flight,
    figure_study,
    many_to_one_scenario,
    probe_traffic,
    read_steps,
    sender_traffic,
    two_hops_scenario,
)

POLICIES = {"FCFS": "fcfs-age", "RR": "round-robin"}


def _setting(policy: str, number: int) -> str:
    return f"{policy}, {count_senders(number)}"


def _point(policy: str, number: int) -> Point:
    traffic = [probe_traffic("omnet", "h5"), *sender_traffic(number, window=OMNET_WINDOW)]
    return simulation_point(
        setting=_setting(policy, number),
        settings={"policy": policy, "senders": number},
        scenario=many_to_one_scenario("omnet", traffic, order=POLICIES[policy]),
        system="omnet",
    )


FIG10 = figure_study(
    "10",
    "omnet",
    tuple(_point(policy, number) for policy in POLICIES for number in SENDERS),
    lines_panel(
        "senders",
        (
            *rtt_lines("us", label="FCFS", only={"policy": "FCFS"}),
            *rtt_lines("us", label="RR", colour=1, only={"policy": "RR"}),
        ),
        "senders of 4096 B",
        "probe RTT (µs)",
    ),
    (
        "FCFS: the probe waits for what all inputs hold, N buffers, less what the credit loop "
        "keeps empty: (N-1) B/R here. RR: it waits for one packet of each other input.",
        "Beside a sender the closed loop locks to the packet period: RTT and think time sum up to "
        "whole packets, so 0.1 µs more think time is 0.1 µs less RTT. This matters with one sender "
        "and under RR.",
        "The paper rounds to 0.1 µs: 0.4 µs without senders stands for 0.35 to 0.45 µs.",
    ),
    readers=read_steps([_setting("FCFS", n) for n in range(1, 6)]),
)


LOCAL = "FCFS, local arrival"

FIG11 = figure_study(
    "11",
    "omnet",
    tuple(
        simulation_point(
            setting=name,
            settings={"policy": name},
            scenario=two_hops_scenario(order),
            system="omnet",
        )
        for name, order in {**POLICIES, LOCAL: "fcfs"}.items()
    ),
    rtt_bars_panel(),
    (
        "Two senders and the probe share the link between the switches: in the second switch the "
        "probe stands behind them in one buffer, which no policy among inputs can mend.",
        "FCFS orders by arrival at the first switch (the system's own order). Ordered by arrival "
        "at each switch (the row without a published value), the link between the switches gets "
        "one share in four of the destination's rate, the upper switch's full buffers drain at "
        "that pace, and the probe takes 42 µs: so the paper's simulator cannot order that way. "
        "With one switch the two orders are the same.",
    ),
    more=[
        Observation(
            setting=LOCAL,
            quantity=MEDIAN_RTT,
            unit="us",
            kind="median",
            read=lambda records: quantile_in(records[LOCAL], "probe.rtt", 0.5, "us"),
        )
    ],
)


# ---- Figs. 12 and 13: lanes --------------------------------------------------------------------

PRETENDER_B = 256  # VIII-C
IDLE, SHARED = "no sender", "5 senders, shared lane"
GAMED = "4 senders + pretender"


def _own_lane_setting(number: int) -> str:
    return f"{count_senders(number)}, own lane"


def _pretender_point() -> Point:
    pretender = {
        "name": "pretender",
        "kind": "pretend",
        "from": "h4",
        "to": "h6",
        "size": f"{PRETENDER_B} B",
        "window": count_in_flight(PRETENDER_B),
        "sl": 1,
    }
    four = sender_traffic(4)
    return simulation_point(
        setting=GAMED,
        settings={"senders": 4, "lane": "own, gamed"},
        scenario=many_to_one_scenario(
            "sx6012", [probe_traffic("sx6012", "h5", sl=1), pretender, *four], OWN_LANE
        ),
        system="sx6012",
    )


LANE_NOTE = (
    "The paper does not state its lane tables. Ours: SL1 on VL1 in the high-priority table, SL0 on "
    "VL0 in the low one, limit of high priority 1, which is 4096 bytes of high priority between "
    "two packets of low: it reproduces the published share of the pretender (0 gives it 3 Gb/s, "
    "2 gives 32, unlimited 41)."
)

FIG12 = figure_study(
    "12",
    "sx6012",
    (
        senders_point(0, IDLE),
        senders_point(5, SHARED),
        *(senders_point(n, _own_lane_setting(n), "own") for n in SENDERS if n),
        _pretender_point(),
    ),
    rtt_bars_panel(),
    (
        IN_FLIGHT_NOTE,
        LANE_NOTE,
        "On its own lane the probe waits for at most the packet that is being sent, however many "
        "senders there are. A pretender (256 B, batched) fills that lane's buffer before it.",
    ),
)


FIG13 = figure_study(
    "13",
    "sx6012",
    (senders_point(5, SHARED), senders_point(5, _own_lane_setting(5), "own"), _pretender_point()),
    comparison_panel,
    (
        IN_FLIGHT_NOTE,
        LANE_NOTE,
        "The published totals include the loss with five senders (Fig. 7b), which is not modelled.",
    ),
)
