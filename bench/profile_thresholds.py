"""When is a run of `weft profile` too short, contended or outlying?

    python -m bench.profile_thresholds [--rounds 12] [--hogs 2]

As root; two minutes on a calm machine. A transfer and a computation of four lengths run again and
again on a testbed, with and without processes beside them that compute all the time. Printed: how
much slower runs were than the quickest of their kind and length, by length, and by how much longer
than usual (as a share of their completion) they waited for a processor. The figures in
docs/profile.md come from it. Units: seconds; shares are fractions.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

from weft.host.net import namespaces
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import INTERFACE, Wiring
from weft.sensitivity.run_command import count_bytes, run_command

RATE_BPS = 200_000_000
LENGTHS_S = (0.25, 0.5, 1.0, 2.0)
LIMIT_S = 60
CONTENDED = 0.05
WAITED = ((-1.0, 0.02), (0.02, 0.05), (0.05, 0.1), (0.1, 0.2), (0.2, 1.0))

SINK = """
import socket
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    while True:
        with server.accept()[0] as connection:
            left = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
            while left and (size := len(connection.recv(1 << 18))):
                left -= size
            connection.sendall(b"1")
"""
WORK = """
import socket, sys
send, compute = int(sys.argv[1]), int(sys.argv[2])
for _ in range(compute):
    sum(range(1000))
if send:
    with socket.create_connection(("h2", 5000)) as connection:
        connection.sendall(send.to_bytes(8, "big") + bytes(send))
        assert connection.recv(1) == b"1"
"""
HOG = "print(1, flush=True)\nwhile 1: pass"
# Of a second: how much of it sends, how much computes.
KINDS = {"transfer": (1.0, 0.0), "computation": (0.0, 1.0)}


@dataclass(frozen=True, slots=True)
class Seen:
    """One run."""

    kind: str
    length_s: float
    completion_s: float
    cpu_s: float
    run_delay_s: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--hogs", type=int, default=2)
    args = parser.parse_args()
    with ExitStack() as stack:
        bed = stack.enter_context(testbed(Wiring(hosts=("h1", "h2"), rate_bps=RATE_BPS)))
        stack.enter_context(_running(partial(bed.spawn, "h2"), SINK))
        loops = _loops_per_s(bed)
        alone = _all_runs(bed, loops, args.rounds)
        _tell("as it is", alone, alone)
        if args.hogs:
            for _ in range(args.hogs):
                stack.enter_context(_running(subprocess.Popen, HOG))
            _tell(f"{args.hogs} hogs", _all_runs(bed, loops, args.rounds), alone)
    return 0


@contextmanager
def _running(spawn: Callable[..., subprocess.Popen[bytes]], code: str) -> Iterator[None]:
    process = spawn([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def _loops_per_s(bed: Testbed) -> float:
    """By the quickest of five."""
    count = 20_000
    return count / min(_run(bed, 0, count).cpu_s for _ in range(5))


def _all_runs(bed: Testbed, loops: float, rounds: int) -> list[Seen]:
    """Every kind and length in each round, in random order."""
    cases = [(kind, length) for kind in KINDS for length in LENGTHS_S]
    seen = []
    random = Random(1)
    for _ in range(rounds):
        for kind, length in random.sample(cases, len(cases)):
            sends, computes = KINDS[kind]
            size = round(sends * length * RATE_BPS / 8)
            one = _run(bed, size, round(computes * length * loops))
            seen.append(Seen(kind, length, one.completion_s, one.cpu_s, one.run_delay_s))
    return seen


def _run(bed: Testbed, size: int, loops: int) -> Seen:
    argv = [sys.executable, "-c", WORK, str(size), str(loops)]
    inside = bed.namespaces["h1"]
    spawn = partial(namespaces.spawn, inside, argv)
    with count_bytes(inside, INTERFACE) as counters:
        ran = run_command(spawn, counters, limit_s=LIMIT_S, where="bench")
    return Seen("", 0.0, ran.completion_s, ran.cpu_s, ran.run_delay_s)


def _of(seen: Sequence[Seen], kind: str, length_s: float) -> list[Seen]:
    return [one for one in seen if (one.kind, one.length_s) == (kind, length_s)]


def _tell(name: str, seen: Sequence[Seen], alone: Sequence[Seen]) -> None:
    """How much slower runs were than the quickest, by length and by how long they waited."""
    for kind in KINDS:
        print(f"{kind}, {name}: runs, and how much slower they were: median, p90")
        rows = [
            (one.length_s, *_judged(one, _of(alone, kind, one.length_s)))
            for one in seen
            if one.kind == kind
        ]
        for length in LENGTHS_S:
            calm = [slower for of, waited, slower in rows if of == length and waited <= CONTENDED]
            _row(f"{length:g} s, waited at most {CONTENDED:.0%}", calm)
        for low, high in WAITED:
            _row(
                f"waited {max(low, 0):.0%} to {high:.0%}",
                [slower for of, waited, slower in rows if of >= 0.5 and low < waited <= high],
            )


def _row(name: str, slower: Sequence[float]) -> None:
    if slower:
        at90 = sorted(slower)[math.ceil(0.9 * len(slower)) - 1]
        figures = f"{statistics.median(slower):7.1%} {at90:7.1%}"
        print(f"  {name:26s} {len(slower):4d}  {figures}", flush=True)


def _judged(one: Seen, alone: Sequence[Seen]) -> tuple[float, float]:
    """Waiting beyond what is usual, as a share of its completion, and how much slower it was."""
    ratios = sorted(other.run_delay_s / other.cpu_s for other in alone)
    usual = ratios[(len(ratios) - 1) // 4]
    calm = min(other.completion_s for other in alone)
    return (one.run_delay_s - usual * one.cpu_s) / one.completion_s, one.completion_s / calm - 1


if __name__ == "__main__":
    sys.exit(main())
