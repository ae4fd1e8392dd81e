"""A day under the controller, in minutes: five real applications start and stop on a testbed.

Each runs unmodified, again and again from its begin to its end, under `weft run`; a controller
gives the ports their weights. Recorded over time: what the controller promises each at one port,
what passes there by the kernel's counters, what is predicted and what each run took, and what the
controller explains at three moments. Applications that the table has not are profiled first.
As root, from the project's directory; the data and programs are those of examples/applications.

    examples/applications/data
    python examples/control/day.py [examples/control/day.toml] [-o day.jsonl]
    weft report day.jsonl -o day.html
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.control.operators.timeline import Explanation, Moment, Run, Timeline, build_records
from weft.control.service import weft_pb2 as pb
from weft.control.service.operator_client import Controller, call
from weft.errors import InputError, WeftError
from weft.host.net import htb, qdisc
from weft.host.net.link_ends import LinkEnd
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.host.testbed.wiring import Wiring
from weft.records import Record, Scalar, check_output, describe_run, write_records
from weft.records.record_text import format_table
from weft.sensitivity.application_table import AppTable
from weft.switches import PortName
from weft.toml_table import Table, load_toml

HERE = Path(__file__).parent
WEFT = [sys.executable, "-m", "weft.cli"]
ENDS_WITH_US = ["setpriv", "--pdeathsig", "TERM"]
BED = "day"
PERCENT = "10,25,50,100"
PROFILE_S, START_S, LAST_RUN_S, END_S = 600, 60, 120, 30
LONGEST_S = 86_400.0


# ---- The timetable ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """An application: what runs, from when until when."""

    name: str
    command: tuple[str, ...]
    from_s: float
    until_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    wiring: Wiring
    watch: str
    sample_s: float
    explain_s: tuple[float, ...]
    shifts: tuple[Shift, ...]


def read_day(path: Path) -> Day:
    table = Table(load_toml(path), str(path))
    commands = _commands(path.parent / table.text("commands"))
    hosts = table.integer("hosts", 2, 64)
    day = Day(
        wiring=Wiring(
            hosts=tuple(f"h{n}" for n in range(1, hosts + 1)),
            rate_bps=round(table.rate_bps("rate")),
        ),
        watch=table.text("watch"),
        sample_s=table.number("sample_s", 0.05, 60.0),
        explain_s=tuple(float(at_s) for at_s in table.raw("explain_s")),
        shifts=tuple(_shift(own, commands) for own in table.tables("application")),
    )
    table.done()
    return day


def _shift(table: Table, commands: dict[str, tuple[str, ...]]) -> Shift:
    name = table.text("name")
    if name not in commands:
        raise InputError(table.place("name"), f"no command {name!r}", "give it in the commands")
    from_s = table.number("from_s", 0.0, LONGEST_S)
    until_s = table.number("until_s", from_s, LONGEST_S)
    table.done()
    return Shift(name=name, command=commands[name], from_s=from_s, until_s=until_s)


def _commands(path: Path) -> dict[str, tuple[str, ...]]:
    words = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return {name: tuple(command) for name, *command in filter(None, words)}


# ---- What is there ----------------------------------------------------------------------------


@contextmanager
def built(wiring: Wiring) -> Iterator[Testbed]:
    bed, _ = persistent.build_testbed(BED, wiring)
    try:
        yield bed
    finally:
        persistent.remove_testbed(BED)


def profile_missing(day: Day, table: Path) -> None:
    """Applications that the table does not have, on this testbed."""
    known = AppTable(table).names()
    for shift in day.shifts:
        if shift.name not in known:
            print(f"profiling {shift.name}", flush=True)
            how = ["--percent", PERCENT, "--repeat", "1", "--testbed", BED, "--table", str(table)]
            argv = [*WEFT, "profile", "--name", shift.name, *how, "--", *shift.command]
            subprocess.run(argv, check=True, timeout=PROFILE_S, stdout=subprocess.DEVNULL)


@contextmanager
def controlling(folder: Path, table: Path) -> Iterator[str]:
    """A controller of the testbed's switches and adapters; its address. Ports are given back."""
    file = folder / "control.toml"
    file.write_text(
        'listen = "127.0.0.1:0"\nlisten_without_tls = true\n'
        f'socket = "control.sock"\nstore = "control.db"\napps = "{table}"\n'
        '[policy]\nmanaged_share = 1.0\nobjective = "slowdown"\n'
        f'[switches]\ndriver = "linux"\ntestbed = "{BED}"\n'
    )
    log = folder / "control.log"
    argv = [*ENDS_WITH_US, *WEFT, "control", "serve", str(file), "--json"]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdout=output)
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        process.wait(END_S)
        argv = [*WEFT, "control", "release", str(file)]
        subprocess.run(argv, check=True, timeout=END_S, stdout=subprocess.DEVNULL)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, once it says so."""
    while process.poll() is None:
        whole = log.read_text().rpartition("\n")[0]
        for told in map(json.loads, whole.splitlines()):
            if told["event"] == "listening":
                return str(told["text"])
        time.sleep(0.05)
    raise InputError("weft control serve", "has ended", "see what it says above")


# ---- Watching ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Watch:
    """One port, by the controller and by the kernel. `queues` are those seen so far, by name."""

    controller: Controller
    port: PortName
    end: LinkEnd
    queues: dict[str, int] = field(default_factory=dict)

    def moment(self, at_s: float) -> Moment:
        status = self.ask("Status", pb.StatusRequest(applications=True))
        there = self.explained().ports[0].applications
        self.queues |= {_name(own.id): own.queue for own in there}
        return Moment(
            at_s=at_s,
            weights={_name(own.id): own.share for own in there},
            slowdowns={
                own.name: own.slowdown
                for own in status.listed_applications
                if own.HasField("slowdown")
            },
            passed_bytes=self._passed(),
        )

    def explained(self) -> Any:
        port = pb.PortId(node=self.port.node, port=self.port.port)
        return self.ask("Explain", pb.ExplainRequest(port=port))

    def ask(self, call_name: str, request: Any) -> Any:
        return call(self.controller, call_name, request)

    def _passed(self) -> dict[str, int]:
        with Rtnetlink(self.end.namespace) as link:
            found = qdisc.read_classes(link, link.find_index(self.end.interface))
        ids = {name: htb.build_classid(queue) for name, queue in self.queues.items()}
        return {name: found[id_][1].bytes for name, id_ in ids.items() if id_ in found}


def _name(id_: str) -> str:
    return id_.rpartition("#")[0]


def watch_of(bed: Testbed, day: Day, address: str) -> Watch:
    """Of the switch's port towards a host, as soon as the switches are known."""
    plug = bed.layout.access(day.watch).ends[1]
    port = PortName(plug.node, int(plug.interface.removeprefix("port")))
    made = Watch(Controller(address=address), port, bed.end(plug))
    until = time.monotonic() + START_S
    while made.ask("Status", pb.StatusRequest()).problems:
        if time.monotonic() > until:
            raise InputError("controller", f"is not ready after {START_S} s", "see what it says")
        time.sleep(0.1)
    return made


# ---- The day ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Worker:
    """A shift under way: runs until its file `stop` is there."""

    shift: Shift
    process: subprocess.Popen[bytes]
    log: Path
    stop: Path

    def runs(self, epoch_s: float) -> list[Run]:
        """Those that have ended; times since `epoch_s`."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        times = [tuple(map(float, line.split())) for line in lines]
        return [
            Run(application=self.shift.name, began_s=began - epoch_s, took_s=ended - began)
            for began, ended in times
        ]

    def check(self) -> None:
        if self.process.poll():
            problem = f"ended with status {self.process.returncode}"
            raise InputError(f"application {self.shift.name}", problem, "mend its command")


def start(shift: Shift, folder: Path, address: str) -> Worker:
    """An unmodified command, registered and marked by `weft run`, on the first host."""
    log, stop = folder / f"{shift.name}.log", folder / f"{shift.name}.stop"
    again = [str(HERE / "again"), str(log), str(stop), *shift.command]
    on_host = [*WEFT, "testbed", "exec", "--name", BED, "h1", "--", *again]
    run = [*WEFT, "run", "--app", shift.name, "--controller", address, "--", *on_host]
    process = subprocess.Popen([*ENDS_WITH_US, *run], stdin=subprocess.DEVNULL)
    return Worker(shift, process, log, stop)


@dataclass(slots=True)
class Story:
    """What has happened so far."""

    began_s: float = field(default_factory=time.monotonic)
    epoch_s: float = field(default_factory=time.time)
    moments: list[Moment] = field(default_factory=list)
    explanations: list[Explanation] = field(default_factory=list)
    workers: dict[str, Worker] = field(default_factory=dict)

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.began_s

    @property
    def is_working(self) -> bool:
        return any(worker.process.poll() is None for worker in self.workers.values())


def lived(day: Day, watch: Watch, folder: Path) -> Story:
    """From the first begin until the last run has ended."""
    story, end_s = Story(), max(shift.until_s for shift in day.shifts)
    try:
        while story.now_s < end_s or story.is_working:
            if story.now_s > end_s + LAST_RUN_S:
                raise InputError("day", f"a run lasts {LAST_RUN_S} s after its end", "look at it")
            _step(story, day, watch, folder)
            time.sleep(max(0.0, len(story.moments) * day.sample_s - story.now_s))
    finally:
        _end(story)
    return story


def _step(story: Story, day: Day, watch: Watch, folder: Path) -> None:
    """Who is to begin or to end does, and what is there is noted."""
    now_s = story.now_s
    for shift in day.shifts:
        if shift.from_s <= now_s and shift.name not in story.workers:
            story.workers[shift.name] = start(shift, folder, watch.controller.address)
        if shift.until_s <= now_s and shift.name in story.workers:
            story.workers[shift.name].stop.touch()
    for worker in story.workers.values():
        worker.check()
    for at_s in day.explain_s[len(story.explanations) : len(story.explanations) + 1]:
        if at_s <= now_s:
            text = str(watch.explained().text)
            story.explanations.append(Explanation(at_s=now_s, text=text))
    story.moments.append(watch.moment(story.now_s))


def _end(story: Story) -> None:
    """Whoever still runs is told to end, and what it has started with it."""
    for worker in story.workers.values():
        worker.stop.touch()
        if worker.process.poll() is None:
            worker.process.terminate()
            worker.process.wait(END_S)


def recorded(day: Day, bed: Testbed, table: Path, folder: Path) -> list[Record]:
    applications = AppTable(table)
    with controlling(folder, table) as address:
        watch = watch_of(bed, day, address)
        story = lived(day, watch, folder)
    return build_records(
        Timeline(
            port=f"{watch.port.node}:{watch.port.port}",
            link_bps=bed.wiring.rate_bps,
            baselines_s={
                shift.name: applications.load(shift.name).profile.baseline for shift in day.shifts
            },
            moments=story.moments,
            runs=[run for worker in story.workers.values() for run in worker.runs(story.epoch_s)],
            explanations=story.explanations,
        )
    )


def summary(records: Sequence[Record]) -> str:
    """What each application was predicted and took."""
    columns = ("alone", "runs", "completion", "slowdown", "slowdown.predicted", "weight", "share")
    rows = [
        [
            str(record.settings["application"]),
            *(
                f"{value.value:.3g}"
                if isinstance(value := record.quantities.get(name), Scalar)
                else "-"
                for name in columns
            ),
        ]
        for record in records
        if "application" in record.settings
    ]
    heads = [
        "application",
        "alone, s",
        "runs",
        "mean, s",
        "slowdown",
        "predicted",
        "weight, %",
        "share, %",
    ]
    return format_table(heads, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("day", nargs="?", default=str(HERE / "day.toml"), metavar="day.toml")
    parser.add_argument("-o", "--output", default="day.jsonl", help="the records")
    parser.add_argument("--table", default="day-apps", help="profiles of these applications")
    args = parser.parse_args()
    check_output(args.output)
    day, table = read_day(Path(args.day)), Path(args.table).resolve()
    with ExitStack() as stack:
        bed = stack.enter_context(built(day.wiring))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-day-")))
        profile_missing(day, table)
        records = recorded(day, bed, table, folder)
    write_records(args.output, records, describe_run())
    print(summary(records))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WeftError as error:
        sys.exit(f"{Path(__file__).name}: {error}")
