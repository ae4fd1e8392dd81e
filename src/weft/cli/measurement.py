"""`weft latency`, `rperf`, `bandwidth`, `rate`, `paced`, `saturation`, `rma`, `transfer`.

One command per test of `weft.measure.tests.catalog`: options come from its settings, so a setting
that is declared there is here, in sweeps and in Python alike.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from weft.cli.progress import ProgressBar
from weft.errors import InputError, WeftError
from weft.host.machine.facts import read_provenance_facts
from weft.measure import mpi
from weft.measure.campaign import Point, finished, plan_points, run_point
from weft.measure.measurement import ENDED, Measurement, Test
from weft.measure.peer.client import LOCAL, Peer, open_peer
from weft.measure.settings.options import Option, Settings, options_of
from weft.measure.settings.values import flag, whole
from weft.measure.tests.catalog import TESTS
from weft.records import (
    Record,
    RecordWriter,
    Scalar,
    check_output,
    describe_run,
    read_records,
    to_line,
)
from weft.records.record_text import format_measurement, format_sweep
from weft.units import format_value, split_unit
from weft.wire import read_token

MOST_REPETITIONS = 10_000
WITHOUT_PEER = {
    "delay": "the delay transport has no peer",
    "mpi": "mpirun starts both ranks and chooses their hosts",
}


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    test = TESTS[name]
    command = commands.add_parser(
        name,
        help=test.help,
        description=f"{test.description} See docs/measure.md.",
        usage=f"weft {name} [PEER] [--over TRANSPORT] [--SETTING VALUE ...] [-o FILE]",
        allow_abbrev=False,
    )
    command.add_argument(
        "peer",
        nargs="?",
        default=LOCAL,
        metavar="PEER",
        help="HOST[:PORT] of a weft serve, or local: one is started for this command",
    )
    command.add_argument(
        "--sweep",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUES",
        help="every combination, such as size=64..8M*2 depth=1,4,16",
    )
    command.add_argument("--repeat", default="1", metavar="N", help="measure each point N times")
    command.add_argument(
        "-o", "--output", metavar="FILE", help="keep the records (JSON lines); resumes"
    )
    command.add_argument("--json", action="store_true", help="records on standard output")
    command.add_argument("--token-file", metavar="FILE", help="the token that the peer asks for")
    add_settings(command, test)
    command.set_defaults(run=run, test=name)


def add_settings(command: argparse.ArgumentParser, test: Test) -> None:
    """The test's own settings first, then the common ones, then those of some transports."""
    common = options_of(Settings)
    titles = ("of this test", "common settings", "of some transports")
    groups = {title: command.add_argument_group(title) for title in titles}
    defaults = {field.name: field.default for field in dataclasses.fields(test.settings)}
    for field_name, option in options_of(test.settings).values():
        if "." in option.name:
            continue
        title = (
            "of some transports"
            if option.only
            else "common settings"
            if option.name in common
            else "of this test"
        )
        _add_option(groups[title], option, _default_text(field_name, defaults[field_name]))
    delay = [name.partition(".")[2] for name in common if name.startswith("delay.")]
    groups["of some transports"].add_argument(
        "--delay",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help=f"of the delay transport: {', '.join(delay)}",
    )


def _default_text(name: str, value: object) -> str:
    """A default that says something: none, nothing and off do not."""
    if value is None or value is False or value in ("", -1):
        return ""
    _, unit = split_unit(name)
    return format_value(value, unit) if unit and isinstance(value, int) else f"{value}"


def _add_option(group: argparse._ArgumentGroup, option: Option, default: str) -> None:
    only = f" ({', '.join(option.only)})" if option.only else ""
    shown = f" [{default}]" if default else ""
    words = f"{option.help}{only}{shown}".replace("%", "%%")
    if option.read is flag:
        group.add_argument(f"--{option.name}", action="store_true", default=None, help=words)
    else:
        group.add_argument(f"--{option.name}", metavar=option.metavar, help=words)


def run(args: argparse.Namespace) -> int:
    test = TESTS[args.test]
    repeat = int(whole(1, MOST_REPETITIONS)(args.repeat, "--repeat"))
    points = plan_points(test, given_settings(args, test), args.sweep, repeat, args.peer)
    _check_peer(args.peer, points)
    with contextlib.ExitStack() as stack:
        if any(point.settings.route.transport == "mpi" for point in points):
            if mpi.this_rank() == mpi.RESPONDS:
                mpi.respond()
                return 0
            stack.enter_context(mpi.ranks())
        return _run(args, test, points)


def _run(args: argparse.Namespace, test: Test, points: Sequence[Point]) -> int:
    if args.output:
        check_output(args.output)
    stored = _stored(args.output, test)
    resumed = sum(point.identity in stored for point in points)
    if resumed:
        print(f"resuming: {resumed} of {len(points)} points are stored", file=sys.stderr)
    done = _measure(args, test, points, stored)
    _show(args, [done[point.identity] for point in points if point.identity in done])
    return _troubles(test, points, done)


def given_settings(args: argparse.Namespace, test: Test) -> dict[str, object]:
    """Settings by their outside names, as they were written."""
    given: dict[str, object] = {
        name: value
        for name in options_of(test.settings)
        if (value := getattr(args, name.replace("-", "_"), None)) is not None
    }
    for text in args.delay:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--delay {text!r}", "is not KEY=VALUE", "such as wire=5us loss=0.01")
        given[f"delay.{key.strip()}"] = value
    return given


def _check_peer(peer: str, points: Sequence[Point]) -> None:
    for point in points:
        transport = point.settings.route.transport
        if transport in WITHOUT_PEER and peer != LOCAL:
            raise InputError(f"{peer} --over {transport}", WITHOUT_PEER[transport], "leave it out")


def _stored(output: str | None, test: Test) -> dict[str, tuple[Record, ...]]:
    """What an earlier run has finished; points that were cut short run again."""
    if not output or not Path(output).exists() or not Path(output).stat().st_size:
        return {}
    return finished(test, read_records(output).records)


def _measure(
    args: argparse.Namespace,
    test: Test,
    points: Sequence[Point],
    stored: Mapping[str, tuple[Record, ...]],
) -> dict[str, tuple[Record, ...]]:
    """Runs what is left; a point that ends early is kept, and one that fails ends it."""
    done = dict(stored)
    left = [point for point in points if point.identity not in stored]
    with contextlib.ExitStack() as stack:
        peer = _peer(args, left)
        if peer is not None:
            stack.enter_context(peer)
        writer = stack.enter_context(_writer(args.output)) if args.output and left else None
        bar = stack.enter_context(ProgressBar(f"weft {test.name}"))
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        for number, point in enumerate(left):
            try:
                measured = run_point(test, peer, point, _progress(bar, number, len(left)))
            except WeftError as error:
                if not done:
                    raise
                print(f"weft: {error}", file=sys.stderr)
                return done
            done[point.identity] = measured.records
            _keep(writer, measured)
            if measured.ended:
                return done
        if writer:
            _tidy(writer, [r for p in points for r in done[p.identity]])
    return done


def _peer(args: argparse.Namespace, left: Sequence[Point]) -> Peer | None:
    """The peer, if any point needs one."""
    if all(point.settings.route.transport in WITHOUT_PEER for point in left):
        return None
    return open_peer(args.peer, read_token(args.token_file) if args.token_file else None)


def _progress(bar: ProgressBar, number: int, total: int) -> Callable[[float], None] | None:
    """Shown on a terminal only: each look costs the loops some time."""
    if not sys.stderr.isatty():
        return None
    note = f"{number + 1} of {total}" if total > 1 else ""
    return lambda share: bar.update((number + share) / total, note)


def _writer(output: str) -> RecordWriter:
    return RecordWriter(output, describe_run(sys.argv, **read_provenance_facts()))


def _keep(writer: RecordWriter | None, measured: Measurement) -> None:
    if writer:
        for record in measured.records:
            writer.append(record)


def _tidy(writer: RecordWriter, records: Sequence[Record]) -> None:
    """Records of one run in the order of its points; those of several as they came.

    Records of a point that was cut short and has now run to its end are left out.
    """
    if writer.alone:
        writer.rewrite(records)
        return
    kept = {to_line(record) for record in records}
    points = {record.provenance.scenario_digest for record in records}
    writer.discard(lambda r: r.provenance.scenario_digest in points and to_line(r) not in kept)


def _show(args: argparse.Namespace, done: Sequence[tuple[Record, ...]]) -> None:
    """All as JSON lines; one point in full, several as a table."""
    if args.json:
        for records in done:
            for record in records:
                print(to_line(record))
    elif len(done) == 1:
        *steps, record = done[0]
        print(
            *([f"{format_sweep(steps)}\n"] if steps else []), format_measurement(record), sep="\n"
        )
    elif done:
        print(format_sweep([records[-1] for records in done]))


def _troubles(test: Test, points: Sequence[Point], done: Mapping[str, tuple[Record, ...]]) -> int:
    """1 when something was cut short or is wrong."""
    shown = [done[point.identity][-1] for point in points if point.identity in done]
    troubles = [
        f"{record.label}: {note}"
        for record in shown
        for note in record.notes
        if note.startswith(ENDED)
    ]
    for record in shown:
        corrupted = record.quantities.get("corrupted")
        if isinstance(corrupted, Scalar) and corrupted.value:
            troubles.append(f"{record.label}: {corrupted.value} messages were corrupted")
    if len(shown) < len(points):
        troubles.append(f"{test.name}: {len(shown)} of {len(points)} points done")
    for line in troubles:
        print(f"weft: {line}", file=sys.stderr)
    return 1 if troubles else 0
