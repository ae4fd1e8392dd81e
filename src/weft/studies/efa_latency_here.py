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
from math import isnan

from weft.measure import latency, rate
from weft.records import Record
from weft.studies.claim import Claim, Verdict
from weft.studies.efa_rounds import (
    Best,
    MeasuredLine,
    Ratio,
    compared,
    least_us,
    median_us,
    mib_per_s,
    verdict,
)
from weft.studies.observation import Records
from weft.studies.published import stated
from weft.studies.site import here

FLAT = 1.10  # a latency that differs by less is called the same
NOTICEABLE = 1.05


def latency_line(
    label: str,
    over: str,
    sizes: tuple[int, ...],
    read: Callable[[Record], float] = median_us,
    **options: object,
) -> MeasuredLine:
    """A ping-pong by size."""
    return MeasuredLine(
        label=label, over=over, test=latency, varied="size", values=sizes, least=True, read=read,
        quantity="half RTT, median", unit="us", kind="latency", options=options,
    )  # fmt: skip


def said(
    key: str, overs: Sequence[str], judge: Callable[[Records], Verdict], here_means: str = ""
) -> Claim:
    """A statement of the thesis, judged on what was measured over these transports."""
    statement = stated("efa", key)
    value = "" if isnan(statement.value) else f": {statement.value:g} {statement.unit}"
    says = f"{statement.says}{value}" + (f"; here: {here_means}" if here_means else "")
    system = here(", ".join(overs))
    return Claim(statement=says, place=statement.place, source="measurement", system=system,
                 judge=judge)  # fmt: skip


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
    gains = [
        compared(f"tcp/ofi:shm at {size} B", TCP.best(records, size), OFI_SHM.best(records, size))
        for size in SIZES
    ]
    return verdict(gains, low=1)


def flat_when_small(records: Records) -> Verdict:
    growths = [
        compared(f"{line.label} {SMALL_MOST} B/{SMALL} B", line.best(records, SMALL_MOST),
                 line.best(records, SMALL))
        for line in (TCP, OFI_TCP)
    ]  # fmt: skip
    return verdict(growths, high=FLAT)


def gap_narrows(records: Records) -> Verdict:
    """The quicker interface gains less when copying takes the time."""
    small, large = (
        compared(f"{size} B", TCP.best(records, size), OFI_SHM.best(records, size))
        for size in (SMALL, LARGE)
    )
    change = Ratio(
        name=f"tcp/ofi:shm is {small.value:.1f} at {SMALL} B and {large.value:.1f} at {LARGE} B:",
        value=small.value / large.value,
        doubt=max(small.doubt, large.doubt),
    )
    return verdict([change], low=FLAT)


C1_CLAIMS = (
    said("tcp-slower-than-both", ("tcp", "ofi:shm"), without_the_kernel,
         "ofi:shm, without the kernel, below tcp at every size"),
    Claim(
        statement="latency of SRD and of sockets hardly grows up to 512 B (5 % in the table); "
        f"here: at most {FLAT - 1:.0%} from {SMALL} to {SMALL_MOST} B",
        place="C.1", source="measurement", system=here("tcp, ofi:tcp"), judge=flat_when_small,
    ),
    said("latency-gap-8k", ("tcp", "ofi:shm"), gap_narrows,
         "half of what it is below 512 B; tcp over ofi:shm falls with the size as well"),
)  # fmt: skip


# ---- C.2 --------------------------------------------------------------------------------------

SYNC_SIZES = (64, 8192)
SYNC_OVERS = ("ofi:tcp", "ofi:shm")
SYNC_LATENCY = {over: latency_line(f"{over}, latency", over, SYNC_SIZES) for over in SYNC_OVERS}
SYNC_RATE = {
    over: MeasuredLine(
        label=f"{over}, one outstanding", over=over, test=rate, varied="size", values=SYNC_SIZES,
        quantity="synchronous bandwidth", unit="MiB/s", read=mib_per_s, kind="bandwidth",
        options={"depth": 1},
    )
    for over in SYNC_OVERS
}  # fmt: skip
C2_LINES = (*SYNC_LATENCY.values(), *SYNC_RATE.values())


def bound_by_latency(records: Records) -> Verdict:
    """Where a completion is a delivery, each message takes half a round trip or more."""
    shares = [
        compared(
            f"{over} {size} B",
            SYNC_RATE[over].best(records, size),
            as_bandwidth(SYNC_LATENCY[over].best(records, size), size),
        )
        for over in SYNC_OVERS
        for size in SYNC_SIZES
    ]
    found = verdict(shares, high=FLAT)
    return replace(found, evidence=f"of size / half RTT: {found.evidence}. {COMPLETION}")


def as_bandwidth(latency_us: Best, size_bytes: int) -> Best:
    """MiB/s of messages that take so long each."""
    return Best(value=size_bytes / latency_us.value * 1e6 / 2**20, doubt=latency_us.doubt)


COMPLETION = (
    "Here a send is complete once the provider has copied it, on EFA and InfiniBand when the "
    "peer's adapter has it: values above 1 are messages that overlap"
)
C2_CLAIMS = (
    said("sync-latency-bound", SYNC_OVERS, bound_by_latency,
         "at most the size over half the round trip"),
)  # fmt: skip


# ---- C.6 --------------------------------------------------------------------------------------

DATAGRAM_SIZES = (64, 512, 1024)
PAIRS: Mapping[str, tuple[MeasuredLine, MeasuredLine]] = {
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


def reliability_costs(records: Records, pair: str, read: Callable[[Record], float]) -> list[Ratio]:
    reliable, unreliable = (replace(line, read=read) for line in PAIRS[pair])
    return [
        compared(f"{size} B", reliable.best(records, size), unreliable.best(records, size))
        for size in DATAGRAM_SIZES
    ]


def reliable_is_slower(records: Records, over: str) -> Verdict:
    return verdict(reliability_costs(records, over, median_us), low=1)


def reliable_is_slower_at_best(records: Records, over: str) -> Verdict:
    return verdict(reliability_costs(records, over, least_us), low=1)


MINOR = 1.15  # SRD over UD is at most 1.10 in C.6.1 and 1.12 in C.6.2


def reliability_is_cheap(records: Records, over: str) -> Verdict:
    return verdict(reliability_costs(records, over, median_us), high=MINOR)


C6_CLAIMS = (
    *said_each("srd-above-ud-average", tuple(PAIRS), reliable_is_slower,
               "reliable over unreliable latency is above 1"),
    *said_each("srd-above-ud-least", tuple(PAIRS), reliable_is_slower_at_best,
               "the same of the least latencies"),
    *(
        Claim(
            statement="what reliability adds to the latency is minor (a tenth in the table); "
            f"here: at most {MINOR - 1:.0%}",
            place="4.2.3", source="measurement", system=here(pair),
            judge=partial(reliability_is_cheap, over=pair),
        )
        for pair in PAIRS
    ),
)  # fmt: skip


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


def call_ratios(records: Records, over: str, op: str) -> list[Ratio]:
    line, send = CALLS[over, op], CALLS[over, "send"]
    return [
        compared(f"{size} B", line.best(records, size), send.best(records, size))
        for size in line.values
    ]


def tags_are_free(records: Records, over: str) -> Verdict:
    return verdict(call_ratios(records, over, "tagged"), high=FLAT)


def injecting_gains_nothing(records: Records, over: str) -> Verdict:
    return verdict(call_ratios(records, over, "inject"), low=1 / FLAT)


C7_CLAIMS = (
    *said_each("tagged-overhead", tuple(INJECTED), tags_are_free,
         f"tagged over send is at most {FLAT:.2f}"),
    *said_each("inject-gain", tuple(INJECTED), injecting_gains_nothing,
         f"inject over send is at least {1 / FLAT:.2f}"),
)  # fmt: skip


# ---- C.9 --------------------------------------------------------------------------------------

SPLIT_SIZES = (1000, 1200, 1400, 1440, 1460, 1480, 1600, 1800, 2000)
SPLIT = latency_line("ofi:udp rdm", "ofi:udp", SPLIT_SIZES, endpoint="rdm")
C9_LINES = (SPLIT,)


def split_costs_a_step(records: Records) -> Verdict:
    """The growth between the two neighbours where it is greatest, beside all other neighbours."""
    growths = [
        compared(f"from {below} to {above} B", SPLIT.best(records, above),
                 SPLIT.best(records, below))
        for below, above in pairwise(SPLIT_SIZES)
    ]  # fmt: skip
    steepest, *others = sorted(growths, key=lambda growth: -growth.value)
    found = verdict([steepest], low=NOTICEABLE * max(other.value for other in others))
    return replace(found, evidence=f"{found.evidence}; elsewhere at most {others[0].value:.2f}")


def split_is_cheap(records: Records) -> Verdict:
    before, after = SPLIT.best(records, 1400), SPLIT.best(records, 1600)
    added = after.value - before.value
    found = verdict([compared("1600 B over 1400 B", after, before)], high=NOTICEABLE)
    return replace(found, evidence=f"{found.evidence}, {added:+.1f} us")


C9_CLAIMS = (
    said("segmentation-size", ("ofi:udp rdm",), split_costs_a_step,
         "libfabric's datagrams of 1472 B hold a message with its headers up to about 1450 B"),
    said("segmentation-cost", ("ofi:udp rdm",), split_is_cheap,
         f"3 % of the latency there; at most {NOTICEABLE - 1:.0%} here"),
)  # fmt: skip
