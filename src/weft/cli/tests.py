"""`weft latency`, `rperf`, `bandwidth`, `rate`, `paced`, `saturation`, `rma`, `transfer`.

One command per test of `weft.measure.tests`. Its options are the test's settings: a setting
that is declared there is an option here, a key of sweeps and an argument in Python.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial

from weft.cli.progress import ProgressBar
from weft.errors import InputError, WeftError
from weft.host.machine.examination import read_provenance_facts
from weft.measure import mpi
from weft.measure.measurement import Point, Test, identify, is_complete, plan_points, run_point
from weft.measure.peer.client import LOCAL, Peer, open_peer
from weft.measure.settings.options import options_of
from weft.measure.settings.values import integer_reader
from weft.measure.tests import TESTS
from weft.records import Record, Scalar, describe_run, note_ending, to_summary_line
from weft.records.campaign import Campaign, run_campaign
from weft.records.record_text import format_measurement, format_sweep
from weft.units import format_count
from weft.wire import read_token

MAX_REPETITIONS = 10_000
WITHOUT_PEER = {
    "delay": "the delay transport has no peer",
    "mpi": "mpirun starts both ranks and chooses their hosts",
}


def run(args: argparse.Namespace) -> int:
    test = TESTS[args.test]
    repeat = int(integer_reader(1, MAX_REPETITIONS)(args.repeat, "--repeat"))
    points = plan_points(test, read_settings(args, test), args.sweep, repeat, args.peer)
    _check_peer(args.peer, points)
    with contextlib.ExitStack() as stack:
        if any(point.settings.route.transport == "mpi" for point in points):
            if mpi.this_rank() == mpi.RESPONDS:
                mpi.respond()
                return 0
            stack.enter_context(mpi.ranks())
        return _run(args, test, points)


def _run(args: argparse.Namespace, test: Test, points: Sequence[Point]) -> int:
    campaign = Campaign(
        points={point.identity: point for point in points},
        identify=identify,
        is_complete=partial(is_complete, test),
        output=args.output,
    )
    done = campaign.done
    try:
        with contextlib.ExitStack() as stack:
            run_campaign(
                campaign,
                partial(_start_points, stack, args, test, len(points)),
                header=lambda: describe_run(sys.argv, **read_provenance_facts()),
                on_resume=lambda stored: print(
                    f"resuming: {stored} of {len(points)} points are stored", file=sys.stderr
                ),
            )
    finally:  # a full disk, too, leaves what was measured
        shown = [done[point.identity] for point in points if point.identity in done]
        _show(args, shown, points[0].shown)
    return _report_problems(test, points, done)


def read_settings(args: argparse.Namespace, test: Test) -> dict[str, object]:
    """Settings by their outside names, as they were written."""
    settings: dict[str, object] = {
        name: value
        for name in options_of(test.settings)
        if (value := getattr(args, name.replace("-", "_"), None)) is not None
    }
    for text in args.delay:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--delay {text!r}", "is not KEY=VALUE", "such as wire=5us loss=0.01")
        settings[f"delay.{key.strip()}"] = value
    return settings


def _check_peer(peer: str, points: Sequence[Point]) -> None:
    for point in points:
        transport = point.settings.route.transport
        if transport in WITHOUT_PEER and peer != LOCAL:
            raise InputError(f"{peer} --over {transport}", WITHOUT_PEER[transport], "leave it out")


Results = Generator[tuple[str, tuple[Record, ...], bool]]


def _start_points(
    stack: contextlib.ExitStack,
    args: argparse.Namespace,
    test: Test,
    total: int,
    points: Mapping[str, Point],
) -> Results:
    """Opens the peer, if a point needs one, before any record is stored."""
    peer = None
    if not all(point.settings.route.transport in WITHOUT_PEER for point in points.values()):
        token = read_token(args.token_file) if args.token_file else None
        peer = stack.enter_context(open_peer(args.peer, token))
    bar = stack.enter_context(ProgressBar(f"weft {test.name}"))
    return _run_points(test, peer, bar, points, is_alone=len(points) == total)


def _run_points(
    test: Test, peer: Peer | None, bar: ProgressBar, points: Mapping[str, Point], *, is_alone: bool
) -> Results:
    """Each point's records; a point that ends early is the last, and so is one that fails."""
    for number, (identity, point) in enumerate(points.items()):
        try:
            measured = run_point(test, peer, point, _scale_progress(bar, number, len(points)))
        except WeftError as error:
            if number == 0 and is_alone:
                raise
            print(f"weft: {error}", file=sys.stderr)
            return
        yield identity, measured.records, bool(measured.ended)


def _scale_progress(bar: ProgressBar, number: int, total: int) -> Callable[[float], None] | None:
    """Shown on a terminal only: each look costs the loops some time."""
    if not sys.stderr.isatty():
        return None
    note = f"{number + 1} of {total}" if total > 1 else ""
    return lambda share: bar.update((number + share) / total, note)


def _show(
    args: argparse.Namespace, done: Sequence[tuple[Record, ...]], swept: Sequence[str]
) -> None:
    """All as JSON lines; one point in full, several as a table."""
    if args.json:
        for records in done:
            for record in records:
                print(to_summary_line(record))
    elif len(done) == 1:
        *steps, record = done[0]
        print(
            *([f"{format_sweep(steps)}\n"] if steps else []), format_measurement(record), sep="\n"
        )
    elif done:
        print(format_sweep([records[-1] for records in done], swept))


def _report_problems(
    test: Test, points: Sequence[Point], done: Mapping[str, tuple[Record, ...]]
) -> int:
    """Prints what was cut short or is wrong; 1 when there is something."""
    records = [done[point.identity][-1] for point in points if point.identity in done]
    problems = [f"{r.label}: {note_ending(r.ending)}" for r in records if r.ending]
    for record in records:
        corrupted = record.quantities.get("corrupted")
        if isinstance(corrupted, Scalar) and corrupted.value:
            count = format_count(int(corrupted.value), "corrupted message")
            problems.append(f"{record.label}: {count}")
    if len(records) < len(points):
        problems.append(f"{test.name}: {len(records)} of {len(points)} points done")
    for line in problems:
        print(f"weft: {line}", file=sys.stderr)
    return 1 if problems else 0
