"""The measurement half: latency, bandwidth and message rate over loopback, ours and the peers'.

All sides wait alike: both spin, or both block (as qperf always does, and sockperf's throughput).

In each round ours and every peer of the case take one turn, in rotating order, each in fresh
processes pinned alike. The ratio is the median over the rounds of ours to theirs in that round, so
that drift of the machine hits both. A peer that reports means is compared with our mean, one that
reports medians with our median. Entry point: `measure`. Units: us, GB/s (10^9), million messages/s.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType

from bench import ours
from bench.figure import Figure
from bench.ours import Round
from bench.peers import fi_pingpong, qperf, sockperf
from weft._core import availability, timing_cost
from weft.records.record_text import format_table

ROUNDS = 7
TRIES = 3
# Shared memory has two speeds on a virtual machine, as its CPUs lie; rounds are short.
ROUNDS_SHM = 21
SLOWEST_LATENCY, LOWEST_RATE = 1.05, 0.95
SMALL, LARGE, DATAGRAM = 64, 65_536, 32_768
# sockperf sends at most this much at once.
LARGE_SOCKPERF = 65_507
GIGA, MEGA = 1e9, 1e6
TIMING, TIMED_MESSAGES, MOST_ADDED_NS = "timing and histogram", 1_000_000, 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A peer's figure, and the key of ours that means the same."""

    tool: ModuleType
    note: str
    against: str
    run: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One quantity. `scale`: from what the tools report to the table's unit."""

    name: str
    unit: str
    scale: float
    what: Round
    peers: tuple[Peer, ...]
    rounds: int = ROUNDS

    @property
    def is_latency(self) -> bool:
        return self.what.test == "latency"


def _sockets_latency(protocol: str, spin: bool) -> Case:
    median = Peer(
        tool=sockperf,
        note="p50",
        against="p50_us",
        run=partial(sockperf.median_us, protocol, SMALL, spin=spin),
    )
    mean = Peer(
        tool=qperf, note="mean", against="mean_us", run=partial(qperf.mean_us, protocol, SMALL)
    )
    return Case(
        name=f"{protocol} latency, {'spin' if spin else 'block'}",
        unit="us",
        scale=1.0,
        what=Round(transport=protocol, block=not spin, messages=20_000),
        peers=(median,) if spin else (median, mean),
    )


def _fabric_latency(provider: str, endpoint: str, messages: int, size_bytes: int) -> Case:
    mean = Peer(
        tool=fi_pingpong,
        note="mean",
        against="mean_us",
        run=partial(fi_pingpong.mean_us, provider, endpoint, size_bytes, messages),
    )
    size = "" if size_bytes == SMALL else f", {size_bytes >> 10} KiB"
    return Case(
        name=f"ofi:{provider} {endpoint} latency{size}",
        unit="us",
        scale=1.0,
        what=Round(
            transport="ofi",
            device=provider,
            endpoint=endpoint,
            size_bytes=size_bytes,
            messages=messages,
            warmup=messages // 10,
            # fi_pingpong injects what is small enough.
            inline_bytes=SMALL if size_bytes == SMALL else 0,
        ),
        peers=(mean,),
        rounds=ROUNDS_SHM if provider == "shm" and size_bytes == SMALL else ROUNDS,
    )


def _rate(protocol: str, *, listed: bool) -> Case:
    """Lists of messages in one call, or each in a call of its own as the peers do."""
    return Case(
        name=f"{protocol} message rate, {'lists' if listed else 'one by one'}",
        unit="M/s",
        scale=MEGA,
        what=Round(
            transport=protocol,
            test="stream",
            block=True,
            seconds=0.5,
            window=64,
            post_list=16 if listed else 1,
            signal_every=16 if listed else 1,
            nagle=not listed,
        ),
        peers=tuple(
            Peer(
                tool=tool,
                note=note,
                against=against,
                run=partial(tool.messages_per_s, protocol, SMALL),
            )
            for tool, note, against in (
                (sockperf, "sent", "sent_per_s"),
                (qperf, "received", "messages_per_s"),
            )
        ),
    )


def _bandwidth(protocol: str, size_bytes: int, *, with_sockperf: bool) -> Case:
    received = Peer(
        tool=qperf,
        note="received",
        against="bytes_per_s",
        run=partial(qperf.bytes_per_s, protocol, size_bytes),
    )
    sent = Peer(tool=sockperf, note="sent", against="bytes_sent_per_s", run=_sockperf_bytes_per_s)
    return Case(
        name=f"{protocol} bandwidth, {size_bytes >> 10} KiB",
        unit="GB/s",
        scale=GIGA,
        what=Round(
            transport=protocol,
            test="stream",
            block=True,
            seconds=0.5,
            size_bytes=size_bytes,
            window=1,
            warmup=100,
        ),
        peers=(received, sent) if with_sockperf else (received,),
    )


def _sockperf_bytes_per_s() -> float:
    return sockperf.messages_per_s("tcp", LARGE_SOCKPERF) * LARGE_SOCKPERF


CASES = (
    _sockets_latency("tcp", True),
    _sockets_latency("tcp", False),
    _sockets_latency("udp", True),
    _sockets_latency("udp", False),
    _fabric_latency("shm", "rdm", 100_000, SMALL),
    _fabric_latency("tcp", "rdm", 20_000, SMALL),
    _fabric_latency("tcp", "msg", 20_000, SMALL),
    _fabric_latency("shm", "rdm", 2_000, 1 << 20),
    _fabric_latency("tcp", "rdm", 500, 1 << 20),
    _rate("tcp", listed=True),
    _rate("tcp", listed=False),
    _rate("udp", listed=True),
    _rate("udp", listed=False),
    _bandwidth("tcp", LARGE, with_sockperf=True),
    _bandwidth("udp", DATAGRAM, with_sockperf=False),
)

HEADS = (
    "what",
    "ours",
    "spread",
    "unit",
    "peer",
    "theirs",
    "spread",
    "ratio",
    "range",
    "n",
    "goal",
)
LEGEND = f"""\
{SMALL} B unless said, loopback, client and server on a CPU each, processes anew in each round.
Latency is half the round trip: sockperf's median beside our median, the means of qperf and
fi_pingpong beside our mean. Ratio: median over the n rounds of ours/theirs in the same round.
Bandwidth and message rate count what was received; beside sockperf, what was sent."""


def measure(quick: bool) -> list[Figure]:
    """Run and print all cases; `quick`: ours once each, without the peers."""
    rows, figures = run_cases(CASES, quick)
    cost = _timing_cost(1 if quick else ROUNDS)
    print(f"{format_table(HEADS, [*rows, _cost_row(cost)])}\n\n{LEGEND}")
    return [*figures, _cost_figure(cost)]


def run_cases(
    cases: Sequence[Case], quick: bool, half: str = "measure"
) -> tuple[list[list[str]], list[Figure]]:
    """The table's rows and the figures; `quick`: ours once each, without the peers."""
    rows: list[list[str]] = []
    figures: list[Figure] = []
    for case in _present(cases):
        peers = () if quick else case.peers
        results = _rounds(replace(case, peers=peers), 1 if quick else case.rounds)
        rows += _rows(case, peers, results)
        figures += [replace(figure, half=half) for figure in _figures(case, peers, results)]
        print(f"bench   {case.name}", file=sys.stderr, flush=True)
    return rows, figures


def _timing_cost(rounds: int) -> list[float]:
    """ns that reading the clock and filling the histogram add to a message of a null loop."""
    cost = []
    for _ in range(rounds):
        timed, untimed = timing_cost(TIMED_MESSAGES)
        cost.append(timed - untimed)
    return cost


def _cost_row(cost: Sequence[float]) -> list[str]:
    own = [TIMING, *_with_spread(cost), "ns"]
    return [*own, "null loop", "", "", "", "", str(len(cost)), f"≤ {MOST_ADDED_NS:g} ns"]


def _cost_figure(cost: Sequence[float]) -> Figure:
    return Figure(
        name=TIMING,
        unit="ns",
        ours=statistics.median(cost),
        peer=None,
        theirs=None,
        goal=MOST_ADDED_NS,
        n=len(cost),
        half="measure",
    )


def _present(cases: Sequence[Case]) -> list[Case]:
    """The cases without the peers that are not installed, each named once."""
    tools = {peer.tool for case in cases for peer in case.peers}
    missing = {tool for tool in tools if not tool.is_installed()}
    for tool in sorted(missing, key=lambda tool: str(tool.NAME)):
        line = f"{tool.NAME}: not available, because {tool.PACKAGE} is missing"
        print(f"{line}; apt-get install {tool.PACKAGE}", file=sys.stderr)
    return [
        replace(case, peers=tuple(peer for peer in case.peers if peer.tool not in missing))
        for case in cases
        if _is_available(case.what)
    ]


def _is_available(what: Round) -> bool:
    """Whether this machine has the transport; says why not."""
    for one in availability():
        if one.transport == what.transport and one.device == what.device:
            if not one.available:
                print(
                    f"{what.transport} {what.device}: not available, because {one.reason}",
                    file=sys.stderr,
                )
            return one.available
    print(f"{what.transport} {what.device}: not available here", file=sys.stderr)
    return False


@dataclass(frozen=True, slots=True)
class Results:
    """Each round's figures: ours by key, theirs by peer."""

    ours: list[Mapping[str, float]]
    theirs: list[list[float]]


def _rounds(case: Case, number: int) -> Results:
    """Everybody once per round; who starts moves on by one each time."""
    results = Results([], [])
    for turn in range(number):
        got: dict[int, float] = {}
        for step in range(len(case.peers) + 1):
            who = (turn + step) % (len(case.peers) + 1)
            if who == len(case.peers):
                results.ours.append(ours.run(case.what))
            else:
                got[who] = _run_peer(case.peers[who])
        results.theirs.append([got[who] for who in range(len(case.peers))])
    return results


def _run_peer(peer: Peer) -> float:
    """A busy machine can keep a peer from its first message: it has another try."""
    for _ in range(TRIES - 1):
        try:
            return peer.run()
        except SystemExit as error:
            print(f"bench   {peer.tool.NAME} again: {str(error).splitlines()[0]}", file=sys.stderr)
    return peer.run()


def _ratios(results: Results, number: int, peer: Peer) -> list[float]:
    return [
        mine[peer.against] / theirs[number]
        for mine, theirs in zip(results.ours, results.theirs, strict=True)
    ]


def _own_key(case: Case) -> str:
    if case.is_latency:
        return "p50_us"
    return "messages_per_s" if case.unit == "M/s" else "bytes_per_s"


def _rows(case: Case, peers: Sequence[Peer], results: Results) -> list[list[str]]:
    if not peers:
        mine = [one[_own_key(case)] / case.scale for one in results.ours]
        return [[case.name, *_with_spread(mine), case.unit, "", "", "", "", "", str(len(mine)), ""]]
    rows = []
    for number, peer in enumerate(peers):
        mine = [one[peer.against] / case.scale for one in results.ours]
        theirs = [one[number] / case.scale for one in results.theirs]
        rows.append(
            [
                case.name,
                *_with_spread(mine),
                case.unit,
                f"{peer.tool.NAME} {peer.note}",
                *_with_spread(theirs),
                *_with_spread(_ratios(results, number, peer)),
                str(len(mine)),
                _goal(case),
            ]
        )
    return rows


def _with_spread(values: Sequence[float]) -> tuple[str, str]:
    return f"{statistics.median(values):.3g}", f"{min(values):.3g}–{max(values):.3g}"


def _goal(case: Case) -> str:
    return f"≤ {SLOWEST_LATENCY}" if case.is_latency else f"≥ {LOWEST_RATE}"


def _figures(case: Case, peers: Sequence[Peer], results: Results) -> list[Figure]:
    return [
        Figure(
            name=case.name,
            unit=case.unit,
            ours=statistics.median(one[peer.against] / case.scale for one in results.ours),
            peer=f"{peer.tool.NAME} {peer.note}",
            theirs=statistics.median(one[number] / case.scale for one in results.theirs),
            goal=SLOWEST_LATENCY if case.is_latency else LOWEST_RATE,
            ratio=statistics.median(_ratios(results, number, peer)),
            n=len(results.ours),
            half="measure",
        )
        for number, peer in enumerate(peers)
    ]
