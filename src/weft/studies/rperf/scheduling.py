"""RPerf section VIII-B, packet scheduling in the paper's simulator: Figs. 10 and 11."""

from __future__ import annotations

from weft.studies.draw import over, rtt_bars, rtt_lines
from weft.studies.observation import MEDIAN_RTT, Observation, quantile_in, rtt, step_range
from weft.studies.rperf.many_to_one import counted
from weft.studies.rperf.rperf_setups import PAPER, SENDERS, converged, probe, senders, two_hops
from weft.studies.site import Point, simulated
from weft.studies.study import Study

POLICIES = {"FCFS": "fcfs-age", "RR": "round-robin"}


def _setting(policy: str, number: int) -> str:
    return f"{policy}, {counted(number)}"


def _point(policy: str, number: int) -> Point:
    traffic = [probe("omnet", "h5"), *senders(number)]
    return simulated(
        setting=_setting(policy, number),
        settings={"policy": policy, "senders": number},
        scenario=converged("omnet", traffic, order=POLICIES[policy]),
        system="omnet",
    )


FIG10 = Study(
    name="rperf-fig10",
    title="Probe RTT by scheduling policy, one switch, in the paper's simulator",
    paper=PAPER,
    place="Fig. 10, VIII-B",
    system="omnet",
    points=tuple(_point(policy, number) for policy in POLICIES for number in SENDERS),
    observations=(
        *rtt(_setting("FCFS", 0), 0.4, 0.4, "VIII-B, Fig. 10"),
        *rtt(_setting("FCFS", 1), 0.6, 0.6, "VIII-B, Fig. 10"),
        *rtt(_setting("FCFS", 2), 4.5, 4.6, "VIII-B, Fig. 10"),
        *rtt(_setting("FCFS", 5), 18.2, 18.3, "VIII-B, Fig. 10"),
        *rtt(_setting("RR", 0), 0.4, 0.4, "VIII-B, Fig. 10"),
        *rtt(_setting("RR", 1), 0.6, 0.6, "VIII-B, Fig. 10"),
        *rtt(_setting("RR", 5), 2.5, 2.6, "VIII-B, Fig. 10"),
        *step_range([_setting("FCFS", n) for n in range(1, 6)], 3.9, 4.6, "VIII-B"),
    ),
    panels=(
        over(
            "senders",
            (
                *rtt_lines("us", label="FCFS", only={"policy": "FCFS"}),
                *rtt_lines("us", label="RR", colour=1, only={"policy": "RR"}),
            ),
            "senders of 4096 B",
            "probe RTT (µs)",
        ),
    ),
    notes=(
        "FCFS: the probe waits for what all inputs hold, N buffers, less what the credit loop "
        "keeps empty: (N-1) B/R here. RR: it waits for one packet of each other input.",
        "Beside a sender the closed loop locks to the packet period: RTT and think time sum up to "
        "whole packets, so 0.1 µs more think time is 0.1 µs less RTT. This matters with one sender "
        "and under RR.",
        "The paper rounds to 0.1 µs: 0.4 µs without senders stands for 0.35 to 0.45 µs.",
    ),
)


LOCAL = "FCFS, local arrival"

FIG11 = Study(
    name="rperf-fig11",
    title="Probe RTT by scheduling policy, two hops, in the paper's simulator",
    paper=PAPER,
    place="Fig. 11, VIII-B",
    system="omnet",
    points=tuple(
        simulated(setting=name, settings={"policy": name}, scenario=two_hops(order), system="omnet")
        for name, order in {**POLICIES, LOCAL: "fcfs"}.items()
    ),
    observations=(
        *rtt("FCFS", 18.4, 18.5, "VIII-B, Fig. 11"),
        *rtt("RR", 14.5, 14.9, "VIII-B, Fig. 11"),
        Observation(
            setting=LOCAL,
            quantity=MEDIAN_RTT,
            unit="us",
            kind="median",
            read=lambda records: quantile_in(records[LOCAL], "probe.rtt", 0.5, "us"),
        ),
    ),
    panels=(rtt_bars(),),
    notes=(
        "Two senders and the probe share the link between the switches: in the second switch the "
        "probe stands behind them in one buffer, which no policy among inputs can mend.",
        "FCFS orders by arrival at the first switch (the system's own order). Ordered by arrival "
        "at each switch (the row without a published value), the link between the switches gets "
        "one share in four of the destination's rate, the upper switch's full buffers drain at "
        "that pace, and the probe takes 42 µs: so the paper's simulator cannot order that way. "
        "With one switch the two orders are the same.",
    ),
)
