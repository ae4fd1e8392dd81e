"""Ours with default options beside the peers with theirs, by size, transport and way of waiting.

`python -m bench peers` runs every part, `--only PART` one of them. Each side waits alike where the
peer has a choice; throughput of the peers always blocks. A peer that cannot do a size is left out:
sockperf sends 14 to 65,507 B, and no datagram is larger. Datagrams of ours carry a number of 8 B.
Entry point: `peers`. Units: us, GB/s (10^9).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.figure import Figure
from bench.measure import GIGA, HEADS, Case, Peer, run_cases
from bench.ours import Round
from bench.peers import fi_pingpong, iperf3, qperf, sockperf
from weft.records.record_text import format_table

SIZES = (1, 200, 1_500, 9_000, 100_000)
LEAST_SOCKPERF, MOST_SOCKPERF = 14, 65_507
LEAST_DATAGRAM, MOST_DATAGRAM = 8, 65_507
ROUNDS = 9
SECONDS = 0.5
MESSAGES = {"shm": 100_000, "tcp": 10_000}
PARTS = ("tcp latency", "udp latency", "ofi latency", "tcp throughput", "udp throughput")
LEGEND = """\
Default options; loopback, client and server on a CPU each, processes anew in each round. Latency is
half the round trip: sockperf's median beside our median, the means of qperf and fi_pingpong beside
our mean. Throughput counts what arrived. Ratio: median over the n rounds of ours/theirs in the same
round; a ratio past the goal is marked *."""


def peers(quick: bool, only: str = "") -> list[Figure]:
    """Run and print the parts; `quick`: ours once each, without the peers."""
    figures: list[Figure] = []
    for part in PARTS:
        if only not in ("", part):
            continue
        rows, part_figures = run_cases(list(_cases(part)), quick, f"peers: {part}")
        figures += part_figures
        print(format_table(HEADS, [_mark(row) for row in rows]), end="\n\n", flush=True)
    print(LEGEND)
    return figures


def _mark(row: list[str]) -> list[str]:
    *_, ratio, _, _, goal = row
    if not ratio:
        return row
    sign, bound = goal.split()
    is_missed = float(ratio) > float(bound) if sign == "≤" else float(ratio) < float(bound)
    return [*row[:-1], f"{goal} *"] if is_missed else row


def _cases(part: str) -> Iterator[Case]:
    transport, _, test = part.partition(" ")
    for size in SIZES:
        if transport == "ofi":
            yield _fabric_latency("shm", size)
            yield _fabric_latency("tcp", size)
            continue
        for block in (False, True):
            build = _latency if test == "latency" else _throughput
            yield from build(transport, size, block)


def _round(transport: str, size: int, block: bool, test: str, device: str = "") -> Round:
    return Round(
        transport=transport,
        device=device,
        test=test,
        size_bytes=size,
        block=block,
        seconds=SECONDS,
        defaults=True,
    )


def _name(transport: str, test: str, size: int, block: bool) -> str:
    return f"{transport} {test}, {size} B, {'block' if block else 'spin'}"


def _latency(protocol: str, size: int, block: bool) -> Iterator[Case]:
    """Spinning, sockperf alone can; blocking, qperf does the sizes that sockperf cannot."""
    if protocol == "udp" and size > MOST_DATAGRAM:
        return
    if protocol == "udp" or not block:
        size = max(size, LEAST_SOCKPERF)
    beside: list[Peer] = []
    if LEAST_SOCKPERF <= size <= MOST_SOCKPERF:
        median = partial(sockperf.median_us, protocol, size, spin=not block)
        beside.append(Peer(tool=sockperf, note="p50", against="p50_us", run=median))
    if block:
        mean = partial(qperf.mean_us, protocol, size)
        beside.append(Peer(tool=qperf, note="mean", against="mean_us", run=mean))
    if beside:
        yield Case(
            name=_name(protocol, "latency", size, block),
            unit="us",
            scale=1.0,
            what=_round(protocol, size, block, "latency"),
            peers=tuple(beside),
            rounds=ROUNDS,
        )


def _fabric_latency(provider: str, size: int) -> Case:
    """fi_pingpong spins only."""
    mean = partial(fi_pingpong.mean_us, provider, "rdm", size, MESSAGES[provider])
    return Case(
        name=_name(f"ofi:{provider}", "latency", size, False),
        unit="us",
        scale=1.0,
        what=_round("ofi", size, False, "latency", provider),
        peers=(Peer(tool=fi_pingpong, note="mean", against="mean_us", run=mean),),
        rounds=ROUNDS,
    )


def _throughput(protocol: str, size: int, block: bool) -> Iterator[Case]:
    if protocol == "udp":
        if size > MOST_DATAGRAM:
            return
        size = max(size, LEAST_DATAGRAM)
    tools = (qperf, iperf3) if protocol == "tcp" or size >= 16 else (qperf,)
    yield Case(
        name=_name(protocol, "throughput", size, block),
        unit="GB/s",
        scale=GIGA,
        what=_round(protocol, size, block, "stream"),
        peers=tuple(
            Peer(
                tool=tool,
                note="received",
                against="bytes_per_s",
                run=partial(tool.bytes_per_s, protocol, size),
            )
            for tool in tools
        ),
        rounds=ROUNDS,
    )
