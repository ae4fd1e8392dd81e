"""Throughput over this machine's transports, for the claims that the EFA thesis makes of its own.

By outstanding messages (C.3), connections of one thread (C.4), threads (C.5), and one-sided
operations (C.10). Entry points: the lines and claims of each table. Units: M/s, MiB/s, bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from math import inf

from weft.measure import rate, rma
from weft.studies.claim import Claim, Verdict
from weft.studies.efa.efa_latency_here import said, said_each
from weft.studies.observation import Records
from weft.studies.rounds import (
    Line,
    Rounds,
    either,
    highest,
    mib_per_s,
    scalar,
    together,
    varied,
    within,
)
from weft.studies.site import here

OVERS = ("ofi:tcp", "ofi:shm")
ALIKE = 1.25  # rates that differ by less are called the same: they scatter more than latencies


MESSAGE_RATE = scalar("message rate", "M/s", "rate", "message_rate")


def rate_line(
    label: str, over: str, option: str, values: tuple[int, ...], **options: object
) -> Line:
    """Messages per second of streams, one option varied."""
    return varied(label, MESSAGE_RATE, rate, option, values, over=over, **options)


# ---- C.3 --------------------------------------------------------------------------------------

DEPTHS = (1, 8, 64, 256)
DEPTH_SIZES = (16, 512)
BY_DEPTH = {
    (over, size): rate_line(f"{over}, {size} B", over, "depth", DEPTHS, size=size)
    for over in OVERS
    for size in DEPTH_SIZES
}
C3_LINES = tuple(BY_DEPTH.values())


def of_transport(lines: Mapping[tuple[str, int], Line], over: str) -> list[Line]:
    return [line for (transport, _), line in lines.items() if transport == over]


def depth_helps(records: Records, over: str) -> Verdict:
    return together(
        *(
            either(
                *(
                    within(
                        line.at(records, depth) / line.at(records, 1),
                        f"{line.label}, depth {depth} over 1",
                        low=ALIKE,
                    )
                    for depth in DEPTHS[1:]
                )
            )
            for line in of_transport(BY_DEPTH, over)
        )
    )


def depth_saturates(records: Records, over: str) -> Verdict:
    return together(
        *(
            within(
                line.at(records, DEPTHS[-1]) / line.at(records, DEPTHS[-2]),
                f"{line.label}, depth {DEPTHS[-1]} over {DEPTHS[-2]}",
                high=ALIKE,
            )
            for line in of_transport(BY_DEPTH, over)
        )
    )


def size_leaves_the_rate(records: Records, over: str) -> Verdict:
    """Of the highest rates, whatever their depth."""
    large, small = (
        highest([BY_DEPTH[over, size].at(records, depth) for depth in DEPTHS]) for size in (512, 16)
    )
    return within(large / small, "512 B over 16 B", 1 / ALIKE, ALIKE)


C3_CLAIMS = (
    *(
        Claim(
            statement="more outstanding messages give more messages per second; "
            f"here: {ALIKE - 1:.0%} or more than one outstanding",
            place="4.4, Fig. 4.8",
            source="measurement",
            system=here(over),
            judge=partial(depth_helps, over=over),
        )
        for over in OVERS
    ),
    *(
        Claim(
            statement="beyond a few hundred outstanding the rate stays as it is; "
            f"here: within {ALIKE - 1:.0%} from {DEPTHS[-2]} to {DEPTHS[-1]}",
            place="4.4, Fig. 4.8",
            source="measurement",
            system=here(over),
            judge=partial(depth_saturates, over=over),
        )
        for over in OVERS
    ),
    *said_each("rate-size", OVERS, size_leaves_the_rate, f"within {ALIKE - 1:.0%}"),
)


# ---- C.4 --------------------------------------------------------------------------------------

QPS = (1, 2, 4)
BY_QPS = {
    (over, size): rate_line(f"{over}, {size} B", over, "qps", QPS, size=size, depth=32)
    for over, size in (("ofi:tcp", 16), ("ofi:shm", 16), ("ofi:shm", 4096))
}
C4_LINES = tuple(BY_QPS.values())


def over_one(
    records: Records, line: Line, low: float = 0.0, high: float = inf
) -> Iterator[Verdict]:
    """Each number of connections beside one."""
    for qps in QPS[1:]:
        gain = line.at(records, qps) / line.at(records, 1)
        yield within(gain, f"{line.label}, {qps} over 1", low, high)


def more_connections_help(records: Records, over: str) -> Verdict:
    lines = of_transport(BY_QPS, over)
    return together(*(either(*over_one(records, line, low=ALIKE)) for line in lines))


def more_connections_do_not_help(records: Records, over: str) -> Verdict:
    lines = of_transport(BY_QPS, over)
    return together(*(v for line in lines for v in over_one(records, line, high=ALIKE)))


C4_CLAIMS = (
    *said_each(
        "rate-4-qps-srd",
        OVERS,
        more_connections_help,
        f"SRD doubles its rate; 2 or 4 connections over one, {ALIKE:.2f} or more",
    ),
    *said_each(
        "qps-rc",
        OVERS,
        more_connections_do_not_help,
        f"no adapter with several engines; 2 or 4 connections over one, at most {ALIKE:.2f}",
    ),
)


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


def thread_gain(records: Records, over: str, depth: int) -> Rounds:
    line = BY_THREADS[over, depth]
    return line.at(records, max(THREADS)) / line.at(records, 1)


def threads_scale(records: Records) -> Verdict:
    return needs_processors(
        together(
            *(
                within(
                    thread_gain(records, over, SHALLOW),
                    f"{over}, depth {SHALLOW}",
                    low=max(THREADS) / ALIKE,
                )
                for over in THREAD_OVERS
            )
        )
    )


def threads_scale_less(records: Records) -> Verdict:
    """The gain of threads with many outstanding over that with few."""
    return needs_processors(
        together(
            *(
                within(
                    thread_gain(records, over, DEEP) / thread_gain(records, over, SHALLOW),
                    over,
                    high=1,
                )
                for over in THREAD_OVERS
            )
        )
    )


C5_CLAIMS = (
    said(
        "threads-scale-shallow",
        THREAD_OVERS,
        threads_scale,
        f"{max(THREADS)} threads over one, depth {SHALLOW}, {max(THREADS) / ALIKE:.1f} or more",
    ),
    said(
        "threads-scale-deep",
        THREAD_OVERS,
        threads_scale_less,
        f"threads gain less at depth {DEEP} than at depth {SHALLOW}",
    ),
)


# ---- C.10 -------------------------------------------------------------------------------------

RMA_SIZES = (64, 8192)
RMA_DEPTHS = (10, 100)
RMA_DEPTH_SIZE = 8192
OPERATIONS = ("write", "read")
BANDWIDTH = mib_per_s("bandwidth")
READ_GAP = 0.9  # READ is 0.81 of WRITE in C.10.1 at 8192 B


def bandwidth_line(label: str, over: str, op: str, **options: object) -> Line:
    """Payload per second of an operation, by size or, of one size, by depth."""
    option, values = ("depth", RMA_DEPTHS) if "size" in options else ("size", RMA_SIZES)
    if op == "send":
        return varied(label, BANDWIDTH, rate, option, values, over=over, **options)
    return varied(label, BANDWIDTH, rma, option, values, over=over, op=op, **options)


SYNCHRONOUS: Mapping[tuple[str, str], Line] = {
    (over, op): bandwidth_line(f"{over}, {op}", over, op, depth=1)
    for over in OVERS
    for op in ("send", *OPERATIONS)
}
WINDOWED: Mapping[tuple[str, str], Line] = {
    (over, op): bandwidth_line(f"{over}, {op} of {RMA_DEPTH_SIZE} B", over, op, size=RMA_DEPTH_SIZE)
    for over in OVERS
    for op in OPERATIONS
}
C10_LINES = (*SYNCHRONOUS.values(), *WINDOWED.values())


def synchronous(
    records: Records, over: str, above: str, below: str, low: float = 0.0, high: float = inf
) -> Verdict:
    """One operation's bandwidth over another's, one at a time."""
    return together(
        *(
            within(
                SYNCHRONOUS[over, above].at(records, size)
                / SYNCHRONOUS[over, below].at(records, size),
                f"{size} B",
                low,
                high,
            )
            for size in RMA_SIZES
        )
    )


def write_is_send(records: Records, over: str) -> Verdict:
    return synchronous(records, over, "write", "send", 1 / ALIKE, ALIKE)


def read_is_slower(records: Records, over: str) -> Verdict:
    return synchronous(records, over, "read", "write", high=READ_GAP)


def gap_is_wider(records: Records, over: str) -> Verdict:
    """read/write with many outstanding, over the same one at a time."""
    (deep_read, deep_write), (read, write) = (
        [lines[over, op].at(records, value) for op in ("read", "write")]
        for lines, value in ((WINDOWED, RMA_DEPTHS[-1]), (SYNCHRONOUS, RMA_DEPTH_SIZE))
    )
    deep, alone = deep_read / deep_write, read / write
    what = (
        f"read/write is {deep.median:.2f} with {RMA_DEPTHS[-1]} outstanding and "
        f"{alone.median:.2f} one at a time"
    )
    return within(deep / alone, what, high=1)


C10_CLAIMS = (
    *said_each(
        "rma-write-like-send", OVERS, write_is_send, f"within {ALIKE - 1:.0%}, one at a time"
    ),
    *said_each("rma-read-slower", OVERS, read_is_slower, f"read over write is at most {READ_GAP}"),
    *said_each("rma-gap-wider", OVERS, gap_is_wider),
)
