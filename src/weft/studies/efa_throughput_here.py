"""Throughput over this machine's transports, for the claims that the EFA thesis makes of its own.

By outstanding messages (C.3), connections of one thread (C.4), threads (C.5), and one-sided
operations (C.10). Entry points: the lines and claims of each table. Units: M/s, MiB/s, bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from weft.measure import rate, rma
from weft.studies.claim import Claim, Verdict
from weft.studies.efa_latency_here import said, said_each
from weft.studies.efa_rounds import (
    Best,
    MeasuredLine,
    Ratio,
    compared,
    mib_per_s,
    million_per_s,
    verdict,
)
from weft.studies.observation import Records
from weft.studies.site import here

OVERS = ("ofi:tcp", "ofi:shm")
ALIKE = 1.25  # rates that differ by less are called the same: they scatter more than latencies


def rate_line(
    label: str, over: str, varied: str, values: tuple[int, ...], **options: object
) -> MeasuredLine:
    """Messages per second of streams, one option varied."""
    return MeasuredLine(
        label=label, over=over, test=rate, varied=varied, values=values, read=million_per_s,
        quantity="message rate", unit="M/s", kind="rate", options=options,
    )  # fmt: skip


# ---- C.3 --------------------------------------------------------------------------------------

DEPTHS = (1, 8, 64, 256)
DEPTH_SIZES = (16, 512)
BY_DEPTH = {
    (over, size): rate_line(f"{over}, {size} B", over, "depth", DEPTHS, size=size)
    for over in OVERS
    for size in DEPTH_SIZES
}
C3_LINES = tuple(BY_DEPTH.values())


def of_transport(lines: Sequence[MeasuredLine], over: str) -> list[MeasuredLine]:
    return [line for line in lines if line.over == over]


def highest(line: MeasuredLine, records: Records, values: tuple[int, ...]) -> Best:
    """The greatest of several settings."""
    return max((line.best(records, value) for value in values), key=lambda best: best.value)


def depth_helps(records: Records, over: str) -> Verdict:
    gains = [
        compared(line.label, highest(line, records, DEPTHS[1:]), line.best(records, 1))
        for line in of_transport(C3_LINES, over)
    ]
    found = verdict(gains, low=ALIKE)
    return replace(found, evidence=f"highest rate over that of one outstanding: {found.evidence}")


def depth_saturates(records: Records, over: str) -> Verdict:
    ends = [
        compared(line.label, line.best(records, DEPTHS[-1]), line.best(records, DEPTHS[-2]))
        for line in of_transport(C3_LINES, over)
    ]
    found = verdict(ends, high=ALIKE)
    quotient = f"rate with {DEPTHS[-1]} over that with {DEPTHS[-2]}"
    return replace(found, evidence=f"{quotient}: {found.evidence}")


def size_leaves_the_rate(records: Records, over: str) -> Verdict:
    large, small = (highest(BY_DEPTH[over, size], records, DEPTHS) for size in (512, 16))
    return verdict([compared("512 B over 16 B", large, small)], low=1 / ALIKE, high=ALIKE)


C3_CLAIMS = (
    *(
        Claim(
            statement="more outstanding messages give more messages per second; "
            f"here: {ALIKE - 1:.0%} or more than one outstanding",
            place="4.4, Fig. 4.8", source="measurement", system=here(over),
            judge=partial(depth_helps, over=over),
        )
        for over in OVERS
    ),
    *(
        Claim(
            statement="beyond a few hundred outstanding the rate stays as it is; "
            f"here: within {ALIKE - 1:.0%} from {DEPTHS[-2]} to {DEPTHS[-1]}",
            place="4.4, Fig. 4.8", source="measurement", system=here(over),
            judge=partial(depth_saturates, over=over),
        )
        for over in OVERS
    ),
    *said_each("rate-size", OVERS, size_leaves_the_rate, f"within {ALIKE - 1:.0%}"),
)  # fmt: skip


# ---- C.4 --------------------------------------------------------------------------------------

QPS = (1, 2, 4)
C4_LINES = tuple(
    rate_line(f"{over}, {size} B", over, "qps", QPS, size=size, depth=32)
    for over, size in (("ofi:tcp", 16), ("ofi:shm", 16), ("ofi:shm", 4096))
)


def qps_gains(records: Records, over: str) -> list[Ratio]:
    """The best number of connections beside one."""
    return [
        compared(line.label, highest(line, records, QPS[1:]), line.best(records, 1))
        for line in of_transport(C4_LINES, over)
    ]


def more_connections_help(records: Records, over: str) -> Verdict:
    return verdict(qps_gains(records, over), low=ALIKE)


def more_connections_do_not_help(records: Records, over: str) -> Verdict:
    return verdict(qps_gains(records, over), high=ALIKE)


C4_CLAIMS = (
    *said_each("rate-4-qps-srd", OVERS, more_connections_help,
         f"SRD doubles its rate; 2 or 4 connections over one, {ALIKE:.2f} or more"),
    *said_each("qps-rc", OVERS, more_connections_do_not_help,
         f"no adapter with several engines; 2 or 4 connections over one, at most {ALIKE:.2f}"),
)  # fmt: skip


# ---- C.5 --------------------------------------------------------------------------------------

THREADS = (1, 2)
SHALLOW, DEEP = 2, 64
THREAD_OVERS = ("tcp", "ofi:shm")
BY_THREADS = {
    (over, depth): rate_line(
        f"{over}, depth {depth}", over, "threads", THREADS, size=64, depth=depth
    )
    for over in THREAD_OVERS
    for depth in (SHALLOW, DEEP)
}
C5_LINES = tuple(BY_THREADS.values())


def processors() -> int:
    return len(os.sched_getaffinity(0))


def needs_processors(found: Verdict) -> Verdict:
    """Each thread has one on the peer's side, here on the same machine."""
    needed = 2 * max(THREADS)
    if processors() >= needed:
        return found
    limit = f"{needed} threads, ours and the peer's, share {processors()} processors here"
    return Verdict(holds=None, evidence=f"{found.evidence}. {limit}")


def thread_gains(records: Records, depth: int) -> list[Ratio]:
    return [
        compared(line.label, line.best(records, max(THREADS)), line.best(records, 1))
        for (_, outstanding), line in BY_THREADS.items()
        if outstanding == depth
    ]


def threads_scale(records: Records) -> Verdict:
    return needs_processors(verdict(thread_gains(records, SHALLOW), low=max(THREADS) / ALIKE))


def threads_scale_less(records: Records) -> Verdict:
    """The gain of threads with many outstanding over that with few."""
    pairs = zip(
        THREAD_OVERS, thread_gains(records, DEEP), thread_gains(records, SHALLOW), strict=True
    )
    quotients = [
        Ratio(name=over, value=deep.value / shallow.value, doubt=max(deep.doubt, shallow.doubt))
        for over, deep, shallow in pairs
    ]
    return needs_processors(verdict(quotients, high=1))


C5_CLAIMS = (
    said("threads-scale-shallow", THREAD_OVERS, threads_scale,
         f"{max(THREADS)} threads over one, depth {SHALLOW}, {max(THREADS) / ALIKE:.1f} or more"),
    said("threads-scale-deep", THREAD_OVERS, threads_scale_less,
         f"threads gain less at depth {DEEP} than at depth {SHALLOW}"),
)  # fmt: skip


# ---- C.10 -------------------------------------------------------------------------------------

RMA_SIZES = (64, 8192)
RMA_DEPTHS = (10, 100)
RMA_DEPTH_SIZE = 8192
OPERATIONS = ("write", "read")
READ_GAP = 0.9  # READ is 0.81 of WRITE in C.10.1 at 8192 B


def bandwidth_line(label: str, over: str, **options: object) -> MeasuredLine:
    """Payload per second, one at a time or by depth."""
    by_depth = "size" in options
    return MeasuredLine(
        label=label, over=over, test=rate if "op" not in options else rma,
        varied="depth" if by_depth else "size", values=RMA_DEPTHS if by_depth else RMA_SIZES,
        read=mib_per_s, quantity="bandwidth", unit="MiB/s", kind="bandwidth", options=options,
    )  # fmt: skip


SYNCHRONOUS: Mapping[tuple[str, str], MeasuredLine] = {
    (over, op): bandwidth_line(
        f"{over}, {op}", over, depth=1, **({} if op == "send" else {"op": op})
    )
    for over in OVERS
    for op in ("send", *OPERATIONS)
}
WINDOWED: Mapping[tuple[str, str], MeasuredLine] = {
    (over, op): bandwidth_line(
        f"{over}, {op} of {RMA_DEPTH_SIZE} B", over, op=op, size=RMA_DEPTH_SIZE
    )
    for over in OVERS
    for op in OPERATIONS
}
C10_LINES = (*SYNCHRONOUS.values(), *WINDOWED.values())


def synchronous(records: Records, over: str, above: str, below: str) -> list[Ratio]:
    """One operation's bandwidth over another's, one at a time."""
    return [
        compared(f"{size} B", SYNCHRONOUS[over, above].best(records, size),
                 SYNCHRONOUS[over, below].best(records, size))
        for size in RMA_SIZES
    ]  # fmt: skip


def write_is_send(records: Records, over: str) -> Verdict:
    quotients = synchronous(records, over, "write", "send")
    return verdict(quotients, low=1 / ALIKE, high=ALIKE)


def read_is_slower(records: Records, over: str) -> Verdict:
    return verdict(synchronous(records, over, "read", "write"), high=READ_GAP)


def gap_is_wider(records: Records, over: str) -> Verdict:
    """read/write with many outstanding, over the same one at a time."""
    return verdict([_wider(over, records)], high=1)


def _wider(over: str, records: Records) -> Ratio:
    deep = compared("", WINDOWED[over, "read"].best(records, RMA_DEPTHS[-1]),
                    WINDOWED[over, "write"].best(records, RMA_DEPTHS[-1]))  # fmt: skip
    alone = compared("", SYNCHRONOUS[over, "read"].best(records, RMA_DEPTH_SIZE),
                     SYNCHRONOUS[over, "write"].best(records, RMA_DEPTH_SIZE))  # fmt: skip
    name = (
        f"read/write is {deep.value:.2f} with {RMA_DEPTHS[-1]} outstanding and "
        f"{alone.value:.2f} one at a time:"
    )
    return Ratio(name=name, value=deep.value / alone.value, doubt=max(deep.doubt, alone.doubt))


C10_CLAIMS = (
    *said_each(
        "rma-write-like-send", OVERS, write_is_send, f"within {ALIKE - 1:.0%}, one at a time"
    ),
    *said_each("rma-read-slower", OVERS, read_is_slower, f"read over write is at most {READ_GAP}"),
    *said_each("rma-gap-wider", OVERS, gap_is_wider),
)
