"""The tour: what weft does, shown by the commands that a user would type, in one report.

A stop runs some commands and keeps what they print; one that this machine or user cannot run is
skipped, and says why. The switch is simulated in this process, after RPerf's figures. Entry points:
`TOUR`, `run_tour`, `tour_report`.
"""

from __future__ import annotations

import html
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from weft.plot import Section, render_report
from weft.records import Record, describe_run, read_records
from weft.studies.report import short_table, study_section, summarise_rows
from weft.studies.rperf.rperf_figures import FIG7A, FIG10, FIG11, FIG12, FIG13
from weft.studies.saba.cohort import RECORDED
from weft.studies.study import Result, Study, run_study, study_records

TOUR: tuple[Study, ...] = (FIG10, FIG7A, FIG12, FIG11, FIG13)
TITLE = "weft tour"
LIMIT_S = 120  # of one command
BED = "weft-tour"
SENT_BYTES = 10_000_000
CONTROLLER = """\
store = "control.db"
apps = "apps"
socket = "control.sock"
[switches]
driver = "simulated"
fabric = "fabric.toml"
registers = "registers"
[policy]
levels = 7
managed_share = 0.9
objective = "slowdown"
"""
FABRIC = """\
[fabric]
topology = "leaf_spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
rate = "4xFDR"
delay = "50 ns"
"""
SINK = """
import socket
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    while True:
        with server.accept()[0] as connection:
            while connection.recv(1 << 18):
                pass
"""
SEND = f"""
import socket
with socket.create_connection(("h2", 5000)) as connection:
    connection.sendall(bytes({SENT_BYTES}))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
"""

Print = Callable[[str], None]


@dataclass(slots=True)
class Stop:
    """A part of the tour: what it shows, the commands, and what they printed."""

    title: str
    about: str
    lines: list[str] = field(default_factory=list)
    skipped: str = ""
    records: list[Record] = field(default_factory=list)


class Skip(Exception):
    """A stop cannot be made here; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Tour:
    """The stops in order, and the studies of the switch."""

    stops: list[Stop]
    results: list[Result]

    @property
    def records(self) -> list[Record]:
        measured = [record for stop in self.stops for record in stop.records]
        return measured + [record for result in self.results for record in study_records(result)]


def run_tour(directory: Path, show: Print, progress: Callable[[float], None] | None = None) -> Tour:
    """Make every stop; files go to the directory."""
    tour = Tour([], [])
    for visit in (_visit_doctor, _visit_truth, _visit_network):
        tour.stops.append(_make_stop(visit, directory, show))
    tour.stops.append(_visit_switch(tour.results, show, progress))
    for visit in (_visit_profile, _visit_controller):
        tour.stops.append(_make_stop(visit, directory, show))
    return tour


Visit = Callable[[Stop, Path], None]


def _make_stop(visit: Visit, directory: Path, show: Print) -> Stop:
    """Run a visit and show what it printed, or why it was skipped."""
    title, _, about = (visit.__doc__ or "").partition(": ")
    stop = Stop(title, about)
    try:
        visit(stop, directory)
    except Skip as reason:
        stop.skipped = str(reason)
    _show_stop(stop, show)
    return stop


def _show_stop(stop: Stop, show: Print) -> None:
    show(f"\n== {stop.title}: {stop.about}")
    for line in stop.lines:
        show(line)
    if stop.skipped:
        show(f"skipped: {stop.skipped}")


# ---- Commands ---------------------------------------------------------------------------------


def _run_weft(stop: Stop, *words: str, cwd: Path, shown: Sequence[str] = ()) -> list[str]:
    """Run a command, and keep it with its output; `shown` is how a user would type it."""
    stop.lines.append(f"$ weft {shlex.join(shown or words)}")
    command = [sys.executable, "-m", "weft.cli", *words]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise Skip(f"weft {words[0]} took more than {LIMIT_S} s; run it alone") from None
    if done.returncode not in (0, 1):
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Skip(reason.removeprefix("weft: "))
    return done.stdout.splitlines()


def _visit_doctor(stop: Stop, directory: Path) -> None:
    """This machine: what it can measure over, and what spoils measurements"""
    page = _run_weft(stop, "doctor", "--seconds", "0.3", cwd=directory)
    facts = [line for line in page if line.startswith(("  clock", "  processor", "  memory"))]
    usable = [line.split()[0] for line in page if " available; " in line]
    stop.lines += [*facts, f"  transports    {', '.join(usable)}"]
    stop.lines += page[next((i for i, line in enumerate(page) if "TO FIX" in line), len(page)) :]


def _visit_truth(stop: Stop, directory: Path) -> None:
    """Beside the truth: every estimator over a transport whose delays are known"""
    stop.lines += _run_weft(stop, "accuracy", "--messages", "2000", cwd=directory)


def _visit_network(stop: Stop, directory: Path) -> None:
    """A measurement: TCP on loopback; on a cluster, name the host of a `weft serve`"""
    words = ["latency", "--over", "tcp", "--duration", "500ms", "-o", "latency.jsonl"]
    stop.lines += _take_table(_run_weft(stop, *words, cwd=directory), "distribution ")
    stop.records += read_records(directory / "latency.jsonl").records


def _visit_switch(
    results: list[Result], show: Print, progress: Callable[[float], None] | None
) -> Stop:
    stop = Stop(
        "A switch",
        "a 64 B probe beside 0 to 5 senders of 4096 B, published (RPerf, ISPASS 2020) and ours",
    )
    for number, study in enumerate(TOUR):
        offset = number / len(TOUR)
        report = None if progress is None else _scale(progress, offset, 1 / len(TOUR))
        results.append(run_study(study, report))
    hops = sum(result.packet_hops for result in results)
    stop.lines += [
        f"$ weft study run {' '.join(study.name for study in TOUR)}",
        *short_table(results).splitlines(),
        summarise_rows([row for result in results for row in result.compared]),
        "Pairs are median / tail (p99.9) or least / most. omnet: the paper's simulator; sx6012: "
        "its testbed.",
        f"{hops / 1e6:.1f} M packet-hops simulated.",
    ]
    _show_stop(stop, show)
    return stop


def _scale(
    progress: Callable[[float], None], offset: float, share: float
) -> Callable[[float], None]:
    return lambda fraction: progress(offset + share * fraction)


# ---- Applications -----------------------------------------------------------------------------


def _visit_profile(stop: Stop, directory: Path) -> None:
    """An application's profile: a transfer between two hosts, with less and less of its link"""
    if os.geteuid() != 0:
        raise Skip("needs root, for network namespaces as hosts: sudo weft tour")
    table = directory / "apps"
    with _build_testbed(stop, directory), _start_sink(directory):
        command = [sys.executable, "-c", SEND]
        place = ["--name", "transfer", "--percent", "25,50,100", "--repeat", "2"]
        words = ["profile", *place, "--testbed", BED, "--table", str(table)]
        shown = ["profile", *place, "--testbed", BED, "--", "transfer-to-h2"]
        lines = _run_weft(stop, *words, "--", *command, cwd=directory, shown=shown)
        stop.lines += _take_table(lines, "share ")


def _take_table(lines: Sequence[str], head: str) -> list[str]:
    """The table whose first line begins like this."""
    start = next((i for i, line in enumerate(lines) if line.startswith(head)), 0)
    rows = [*lines[start:], ""]
    return rows[: rows.index("")]


@contextmanager
def _build_testbed(stop: Stop, directory: Path) -> Iterator[None]:
    words = ["testbed", "up", "--name", BED, "--hosts", "2", "--rate", "100M"]
    stop.lines += _run_weft(stop, *words, cwd=directory)[:1]
    try:
        yield
    finally:
        stop.lines += _run_weft(stop, "testbed", "down", "--name", BED, cwd=directory)


@contextmanager
def _start_sink(directory: Path) -> Iterator[None]:
    words = ["testbed", "exec", "--name", BED, "h2", "--", sys.executable, "-c", SINK]
    with _start_weft(*words, cwd=directory, until="listening"):
        yield


@contextmanager
def _start_weft(*words: str, cwd: Path, until: str) -> Iterator[str]:
    """A command that runs until the block ends; gives its first line with this text."""
    command = [sys.executable, "-m", "weft.cli", *words]
    with subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = next((text for text in process.stdout if until in text), None)
            if line is None:
                raise Skip(f"weft {words[0]} {words[1]} did not start; try it alone")
            yield line
        finally:
            process.terminate()


def _visit_controller(stop: Stop, directory: Path) -> None:
    """Two applications share simulated switches: the controller weighs them and explains"""
    if find_spec("grpc") is None:
        raise Skip("needs gRPC: pip install 'weft[control]'")
    table = directory / "apps"
    table.mkdir(exist_ok=True)
    for name in ("mpi-sgd", "mpi-stencil"):
        shutil.copy(RECORDED / "applications" / f"{name}.json", table)
    (directory / "control.toml").write_text(CONTROLLER)
    (directory / "fabric.toml").write_text(FABRIC)
    sensitive = "transfer" if (table / "transfer.json").exists() else "mpi-sgd"
    stop.lines.append("$ weft control serve control.toml &")
    serve = ["control", "serve", "control.toml", "--json"]
    with _start_weft(*serve, cwd=directory, until='"listening"') as line:
        where = ["--controller", json.loads(line)["text"]]
        change = ["--app", sensitive, "h0:h2", "--app", "mpi-stencil", "h1:h2"]
        for words in (["apply", *change], ["explain", "leaf1:1"], ["explain", sensitive]):
            lines = _run_weft(
                stop, "control", *words, *where, cwd=directory, shown=["control", *words]
            )
            stop.lines += lines


# ---- The report -------------------------------------------------------------------------------


def tour_report(tour: Tour) -> str:
    """The stops, the studies of the switch and the records behind them as an HTML page."""
    opening = Section(
        title="What was run",
        text="Each part shows the commands that were typed and what they printed. "
        + " ".join(f"Skipped: {s.title}: {s.skipped}." for s in tour.stops if s.skipped),
    )
    sections = [opening]
    for stop in tour.stops:
        text = f"{stop.about[:1].upper()}{stop.about[1:]}.".replace("`", "")
        sections.append(Section(title=stop.title, text=text, markup=_format_stop(stop)))
        if stop.title == "A switch":
            sections += map(study_section, tour.results)
    return render_report(tour.records, TITLE, sections, [describe_run()])


def _format_stop(stop: Stop) -> str:
    lines = [*stop.lines, *([f"skipped: {stop.skipped}"] if stop.skipped else [])]
    return f"<pre>{html.escape(chr(10).join(lines))}</pre>"
