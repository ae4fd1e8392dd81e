"""Latency over this machine's transports, for the claims that the EFA thesis makes of its own.

By size over sockets, libfabric and shared memory (C.1), against synchronous bandwidth (C.2),
reliable against unreliable datagrams (C.6), libfabric's calls (C.7), around the size at which a
message is split (C.9). Entry points: the lines and claims of each table. Units: us, MiB/s, bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import inf, isnan

from weft.measure import latency, rate
from weft.studies.claim import Claim, Verdict
from weft.studies.observation import Records
from weft.studies.published import stated
from weft.studies.rounds import (
    LEAST_US,
    MEDIAN_US,
    Line,
    Reading,
    Rounds,
    highest,
    mib_per_s,
    together,
    varied,
    within,
)
from weft.studies.site import here

FLAT = 1.10  # a latency that differs by less is called the same
NOTICEABLE = 1.05


def latency_line(label: str, over: str, sizes: tuple[int, ...], **options: object) -> Line:
    """A ping-pong by size."""
    return varied(label, MEDIAN_US, latency, "size", sizes, over=over, **options)


def said(
    key: str, overs: Sequence[str], judge: Callable[[Records], Verdict], here_means: str = ""
) -> Claim:
    """A statement of the thesis, judged on what was measured over these transports."""
    statement = stated("efa", key)
    value = "" if isnan(statement.value) else f": {statement.value:g} {statement.unit}"
    says = f"{statement.says}{value}" + (f"; here: {here_means}" if here_means else "")
    system = here(", ".join(overs))
    return Claim(
        statement=says, place=statement.place, source="measurement", system=system, judge=judge
    )


def said_each(
    key: str, overs: Sequence[str], judge: Callable[[Records, str], Verdict], here_means: str = ""
) -> tuple[Claim, ...]:
    """The same, for each transport apart."""

    def of(over: str) -> Callable[[Records], Verdict]:
        return lambda records: judge(records, over)

    return tuple(said(key, (over,), of(over), here_means) for over in overs)


# ---- C.1 --------------------------------------------------------------------------------------

SIZES = (16, 512, 2048, 8192)
SMALL, SMALL_MOST, LARGE = 16, 512, 8192
TCP, OFI_TCP, OFI_SHM = (latency_line(over, over, SIZES) for over in ("tcp", "ofi:tcp", "ofi:shm"))
C1_LINES = (TCP, OFI_TCP, OFI_SHM)


def without_the_kernel(records: Records) -> Verdict:
    """Shared memory is the one transport here that needs no system call per message."""
    return together(
        *(
            within(
                TCP.at(records, size) / OFI_SHM.at(records, size), f"tcp/ofi:shm at {size} B", low=1
            )
            for size in SIZES
        )
    )


def flat_when_small(records: Records) -> Verdict:
    return together(
        *(
            within(
                line.at(records, SMALL_MOST) / line.at(records, SMALL),
                f"{line.label} {SMALL_MOST} B/{SMALL} B",
                high=FLAT,
            )
            for line in (TCP, OFI_TCP)
        )
    )


def gap_narrows(records: Records) -> Verdict:
    """The quicker interface gains less when copying takes the time."""
    small, large = (TCP.at(records, size) / OFI_SHM.at(records, size) for size in (SMALL, LARGE))
    what = f"tcp/ofi:shm is {small.median:.1f} at {SMALL} B and {large.median:.1f} at {LARGE} B"
    return within(small / large, what, low=FLAT)


C1_CLAIMS = (
    said(
        "tcp-slower-than-both",
        ("tcp", "ofi:shm"),
        without_the_kernel,
        "ofi:shm, without the kernel, below tcp at every size",
    ),
    Claim(
        statement="latency of SRD and of sockets hardly grows up to 512 B (5 % in the table); "
        f"here: at most {FLAT - 1:.0%} from {SMALL} to {SMALL_MOST} B",
        place="C.1",
        source="measurement",
        system=here("tcp, ofi:tcp"),
        judge=flat_when_small,
    ),
    said(
        "latency-gap-8k",
        ("tcp", "ofi:shm"),
        gap_narrows,
        "half of what it is below 512 B; tcp over ofi:shm falls with the size as well",
    ),
)


# ---- C.2 --------------------------------------------------------------------------------------

SYNC_SIZES = (64, 8192)
SYNC_OVERS = ("ofi:tcp", "ofi:shm")
SYNC_LATENCY = {over: latency_line(f"{over}, latency", over, SYNC_SIZES) for over in SYNC_OVERS}
SYNC_RATE = {
    over: varied(
        f"{over}, one outstanding",
        mib_per_s("synchronous bandwidth"),
        rate,
        "size",
        SYNC_SIZES,
        over=over,
        depth=1,
    )
    for over in SYNC_OVERS
}
C2_LINES = (*SYNC_LATENCY.values(), *SYNC_RATE.values())


def bound_by_latency(records: Records) -> Verdict:
    """Where a completion is a delivery, each message takes half a round trip or more."""
    found = together(
        *(
            within(
                SYNC_RATE[over].at(records, size) / as_bandwidth(records, over, size),
                f"{over} {size} B",
                high=FLAT,
            )
            for over in SYNC_OVERS
            for size in SYNC_SIZES
        )
    )
    return replace(found, evidence=f"of size / half RTT: {found.evidence}. {COMPLETION}")


def as_bandwidth(records: Records, over: str, size_bytes: int) -> Rounds:
    """MiB/s of messages that take half a round trip each."""
    latency_us = SYNC_LATENCY[over].at(records, size_bytes)
    return latency_us.each(lambda us: size_bytes / us * 1e6 / 2**20)


COMPLETION = (
    "Here a send is complete once the provider has copied it, on EFA and InfiniBand when the "
    "peer's adapter has it: values above 1 are messages that overlap"
)
C2_CLAIMS = (
    said(
        "sync-latency-bound",
        SYNC_OVERS,
        bound_by_latency,
        "at most the size over half the round trip",
    ),
)


# ---- C.6 --------------------------------------------------------------------------------------

DATAGRAM_SIZES = (64, 512, 1024)
PAIRS: Mapping[str, tuple[Line, Line]] = {
    "tcp and udp": (
        latency_line("tcp", "tcp", DATAGRAM_SIZES),
        latency_line("udp", "udp", DATAGRAM_SIZES),
    ),
    "ofi:udp rdm and dgram": (
        latency_line("ofi:udp rdm", "ofi:udp", DATAGRAM_SIZES, endpoint="rdm"),
        latency_line("ofi:udp dgram", "ofi:udp", DATAGRAM_SIZES, endpoint="dgram"),
    ),
}
C6_LINES = tuple(line for pair in PAIRS.values() for line in pair)


def reliability_costs(
    records: Records, pair: str, reading: Reading = MEDIAN_US, low: float = 0.0, high: float = inf
) -> Verdict:
    """Whether reliable over unreliable latency is between the two at every size."""
    reliable, unreliable = PAIRS[pair]
    return together(
        *(
            within(
                reliable.at(records, size, reading) / unreliable.at(records, size, reading),
                f"{size} B",
                low,
                high,
            )
            for size in DATAGRAM_SIZES
        )
    )


def reliable_is_slower(records: Records, over: str) -> Verdict:
    return reliability_costs(records, over, low=1)


def reliable_is_slower_at_best(records: Records, over: str) -> Verdict:
    return reliability_costs(records, over, LEAST_US, low=1)


MINOR = 1.15  # SRD over UD is at most 1.10 in C.6.1 and 1.12 in C.6.2


def reliability_is_cheap(records: Records, over: str) -> Verdict:
    return reliability_costs(records, over, high=MINOR)


C6_CLAIMS = (
    *said_each(
        "srd-above-ud-average",
        tuple(PAIRS),
        reliable_is_slower,
        "reliable over unreliable latency is above 1",
    ),
    *said_each(
        "srd-above-ud-least",
        tuple(PAIRS),
        reliable_is_slower_at_best,
        "the same of the least latencies",
    ),
    *(
        Claim(
            statement="what reliability adds to the latency is minor (a tenth in the table); "
            f"here: at most {MINOR - 1:.0%}",
            place="4.2.3",
            source="measurement",
            system=here(pair),
            judge=partial(reliability_is_cheap, over=pair),
        )
        for pair in PAIRS
    ),
)


# ---- C.7 --------------------------------------------------------------------------------------

CALL_SIZES = (64, 1024)
INJECTED: Mapping[str, tuple[int, ...]] = {"ofi:tcp": (64,), "ofi:shm": CALL_SIZES}  # its limits
CALLS = {
    (over, op): latency_line(
        f"{over}, {op}", over, INJECTED[over] if op == "inject" else CALL_SIZES, op=op
    )
    for over in INJECTED
    for op in ("send", "tagged", "inject")
}
C7_LINES = tuple(CALLS.values())


def over_send(records: Records, over: str, op: str, low: float = 0.0, high: float = inf) -> Verdict:
    line, send = CALLS[over, op], CALLS[over, "send"]
    return together(
        *(
            within(line.at(records, size) / send.at(records, size), f"{size} B", low, high)
            for size in line.cases
        )
    )


def tags_are_free(records: Records, over: str) -> Verdict:
    return over_send(records, over, "tagged", high=FLAT)


def injecting_gains_nothing(records: Records, over: str) -> Verdict:
    return over_send(records, over, "inject", low=1 / FLAT)


C7_CLAIMS = (
    *said_each(
        "tagged-overhead", tuple(INJECTED), tags_are_free, f"tagged over send is at most {FLAT:.2f}"
    ),
    *said_each(
        "inject-gain",
        tuple(INJECTED),
        injecting_gains_nothing,
        f"inject over send is at least {1 / FLAT:.2f}",
    ),
)


# ---- C.9 --------------------------------------------------------------------------------------

SPLIT_SIZES = (1000, 1200, 1400, 1440, 1460, 1480, 1600, 1800, 2000)
SPLIT = latency_line("ofi:udp rdm", "ofi:udp", SPLIT_SIZES, endpoint="rdm")
C9_LINES = (SPLIT,)


def split_costs_a_step(records: Records) -> Verdict:
    """The growth between the two neighbours where it is greatest, beside all other neighbours."""
    growths = {
        f"from {below} to {above} B": SPLIT.at(records, above) / SPLIT.at(records, below)
        for below, above in pairwise(SPLIT_SIZES)
    }
    where = max(growths, key=lambda step: growths[step].median)
    steepest = growths.pop(where)
    elsewhere = highest(tuple(growths.values()))
    what = f"growth {steepest} {where}, elsewhere at most {elsewhere}"
    return within(steepest / elsewhere, what, low=NOTICEABLE)


def split_is_cheap(records: Records) -> Verdict:
    before, after = SPLIT.at(records, 1400), SPLIT.at(records, 1600)
    added = after.median - before.median
    return within(after / before, f"1600 B over 1400 B, {added:+.1f} us", high=NOTICEABLE)


C9_CLAIMS = (
    said(
        "segmentation-size",
        ("ofi:udp rdm",),
        split_costs_a_step,
        "libfabric's datagrams of 1472 B hold a message with its headers up to about 1450 B",
    ),
    said(
        "segmentation-cost",
        ("ofi:udp rdm",),
        split_is_cheap,
        f"3 % of the latency there; at most {NOTICEABLE - 1:.0%} here",
    ),
)
