"""Every example of the documentation, executed; every key of a scenario, documented.

A document's blocks run in order in one directory with a copy of `examples/`: ```python blocks in
one namespace, lines `$ weft …` and `$ (…)` of ```console blocks as processes; `$ weft … &` runs
until the end of the document and is then interrupted. Exit status 0 is expected, or that of a
marker `<!-- exit 1 -->` before the block. Shown output (the lines below a command, or a ```text
block after a python block) must come in the same order in the real output; `…` stands for anything
left out, and durations in seconds are not compared. After `<!-- numbers vary -->` only the shape of
a line is compared: numbers, how many stand in a row, and prefixes of units may differ. After
`<!-- values vary -->` only the label of a line is compared: what stands before two spaces or a
colon.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from weft.cli import main
from weft.errors import InputError
from weft.fabric import TOPOLOGIES
from weft.measure.settings.options import Settings, options_of
from weft.measure.tests import TESTS
from weft.records import read_records, statistic
from weft.simulate import scenario_from
from weft.simulate.traffic import KINDS
from weft.toml_table import load_toml

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples" / "scenarios").glob("*.toml"))
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
EXPECTED_STATUS = {"deadlock.toml": 1, "ring-fabric.toml": 1}
LIMIT_SECONDS = 60

_FENCE = re.compile(r"^```(\w*)\s*$")
_MARKER = re.compile(r"^<!-- (?:exit (\d+)|(numbers|values) vary) -->\s*$")
_SECONDS = re.compile(r"\b\d+(\.\d+)? s\b")
_NUMBER = re.compile(r"[-−+]?\b\d[\d,]*(\.\d+)?(e[-+]?\d+)?\b")
_UNIT = re.compile(r"# (?:[pnµm]?s|[KMGT]?i?(?:b/s|B/s|B|bit/s)|[kMG]?/s)(?![\w/])")
_NUMBERS = re.compile(r"#(?:–[#…])?(?: #(?:–[#…])?)*")  # a row may leave cells empty
_LABEL = re.compile(r"^\s*(.*?)(?:  |:|$)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- Blocks -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: language, first line, expected exit status, what of a line may vary."""

    language: str
    line: int
    status: int
    lines: tuple[str, ...]
    varies: str = ""


def blocks(text: str) -> Iterator[Block]:
    start, language, status, varies, inside = 0, "", 0, "", False
    content: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if inside and line.startswith("```"):
            yield Block(language, start, status, tuple(content), varies)
            inside, status, varies = False, 0, ""
        elif inside:
            content.append(line)
        elif fence:
            inside, start, language, content = True, number, fence[1], []
        elif marker := _MARKER.match(line):
            status, varies = int(marker[1] or status), marker[2] or varies
        elif line.strip():
            status, varies = 0, ""


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Each `$ command` with the output shown below it."""
    command, shown = "", list[str]()
    for line in (*block.lines, "$ "):
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:].strip(), []
        else:
            shown.append(line)


def missing(shown: list[str], output: str, varies: str = "") -> str | None:
    """The first shown line that does not come in the output, in this order."""
    real = iter([_comparable(line, varies) for line in output.splitlines()])
    for line in shown:
        wanted = _comparable(line, varies)
        if wanted in ("", "…"):
            continue
        pattern = re.sub(r"([\[*?])", r"[\1]", wanted).replace("…", "*")
        if not any(fnmatchcase(candidate, pattern) for candidate in real):
            return line
    return None


def _comparable(line: str, varies: str = "") -> str:
    if varies == "values":
        label = _LABEL.match(line)
        return label[1] if label else ""
    if varies == "numbers":
        words = " ".join(_UNIT.sub("#", _NUMBER.sub("#", line)).split())
        return re.sub(r"-{2,}", "--", _NUMBERS.sub("#", words))
    return _SECONDS.sub("# s", line.rstrip())


def weft(command: str, folder: Path) -> tuple[int, str]:
    """Status and output: notices first, as a terminal shows them, errors last."""
    _, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "weft.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    parts = (done.stdout, done.stderr) if done.returncode else (done.stderr, done.stdout)
    return done.returncode, "\n".join(parts)


@contextlib.contextmanager
def background(command: str, shown: list[str], varies: str, folder: Path) -> Iterator[None]:
    """Runs a command from when it has printed what is shown until it is interrupted."""
    _, *arguments = shlex.split(command.removesuffix("&"))
    log = folder / "background.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "weft.cli", *arguments], cwd=folder, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while line := missing(shown, log.read_text(), varies):
            running = process.poll() is None and time.monotonic() < deadline
            assert running, f"{command}: not in the output: {line!r}\n{log.read_text()}"
            time.sleep(0.01)
        yield
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT_SECONDS) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()


def run_console(
    block: Block, where: str, folder: Path, until_the_end: contextlib.ExitStack
) -> None:
    for command, shown in commands(block):
        if command.startswith("("):
            subprocess.run(["sh", "-c", command], cwd=folder, timeout=LIMIT_SECONDS, check=True)
        if not command.startswith("weft "):
            continue
        if command.endswith("&"):
            until_the_end.enter_context(background(command, shown, block.varies, folder))
            continue
        status, output = weft(command, folder)
        assert status == block.status, f"{where}: {command}: status {status}\n{output}"
        line = missing(shown, output, block.varies)
        assert line is None, f"{where}: {command}: not in the output: {line!r}\n{output}"


def run_python(block: Block, where: str, namespace: dict[str, Any]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n".join(block.lines), where, "exec"), namespace)
    return printed.getvalue()


@pytest.mark.parametrize("document", DOCUMENTS, ids=name)
def test_every_example_of_a_document_runs_and_prints_what_is_shown(
    document: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    sockets = tmp_path_factory.getbasetemp().parent / f"weft-{os.getpid()}" / "weft"
    monkeypatch.setenv("WEFT_CONTROLLER", f"unix:{sockets}/control.sock")  # nobody else's
    namespace: dict[str, Any] = {"__name__": "docs"}
    printed: str | None = None
    with contextlib.ExitStack() as until_the_end:
        for block in blocks(document.read_text(encoding="utf-8")):
            where = f"{name(document)}:{block.line}"
            if block.language == "text" and printed is not None:
                line = missing(list(block.lines), printed, block.varies)
                assert line is None, f"{where}: not printed: {line!r}\n{printed}"
            printed = run_python(block, where, namespace) if block.language == "python" else None
            if block.language == "console":
                run_console(block, where, tmp_path, until_the_end)


def test_output_that_is_shown_but_not_printed_is_found() -> None:
    output = "a 1\nb 2\nc 3 in 4.5 s\n"
    assert missing(["a 1", "…", "c 3 in 9 s"], output) is None
    assert missing(["a …", "c 3 …"], output) is None
    assert missing(["c 3 in 4.5 s", "a 1"], output) == "a 1"
    assert missing(["a 2"], output) == "a 2"
    assert missing(["[*] x"], "y x") == "[*] x"


def test_a_shape_lets_numbers_and_prefixes_vary_but_no_word() -> None:
    output = "half_rtt   4.75 µs  12,000\n-----  ---\n  95 % interval 4.7 to 4.8 µs\n"
    shown = ["half_rtt 812.5 ns 7", "-- --------", "95 % interval 1 to 2 ms"]
    assert missing(shown, output, "numbers") is None
    assert missing(["full_rtt 4.75 µs 12,000"], output, "numbers") is not None
    assert missing(["half_rtt 4.75 Gb/s 12,000 more"], output, "numbers") is not None
    assert missing(["  clock         arm, 1 GHz"], "  clock  tsc\n", "values") is None
    assert missing(["  timer         tsc"], "  clock  tsc\n", "values") is not None


# ---- Files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_every_example_file_runs(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "simulate" if {"traffic", "job"} & load_toml(example).keys() else "fabric"
    status = main([command, str(example)])
    assert status == EXPECTED_STATUS.get(example.name, 0), capsys.readouterr().err
    assert "starved" not in capsys.readouterr().out


def test_simulate_md_lists_every_example() -> None:
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    assert {path.name for path in EXAMPLES} <= set(re.findall(r"`([\w-]+\.toml)`", text))


def check_lane_weights(output: str, _: Path) -> None:
    """Simulated, so the same digits every time."""
    assert output.splitlines() == [
        "limit   0: probe p99  67.94 us, senders 50.75 Gb/s, pretender  3.14 Gb/s",
        "limit   1: probe p99   9.28 us, senders 28.65 Gb/s, pretender 23.28 Gb/s",
        "limit   2: probe p99   6.67 us, senders 19.47 Gb/s, pretender 31.64 Gb/s",
        "limit   4: probe p99   5.27 us, senders 11.96 Gb/s, pretender 38.47 Gb/s",
        "limit 255: probe p99   1.16 us, senders  8.99 Gb/s, pretender 40.96 Gb/s",
        "best: 1",
    ]


def check_probe_beside_load(output: str, folder: Path) -> None:
    """A line for each load, the first without any; the printed numbers are those of the records."""
    line = r" *(\d+\.\d\d) Gb/s beside the probe: p99 +(\d+\.\d) us"
    printed = [re.fullmatch(line, text) for text in output.splitlines()]
    assert len(printed) == 5
    assert all(printed)
    records = read_records(folder / "probe-beside-load.jsonl").records
    loads = [record.quantities["achieved"] for record in records[:-1]]
    delays = [record.quantities["probe.half_rtt"] for record in records[:-1]]
    assert [match and match[1] for match in printed] == [
        f"{(statistic(load, 'value') or 0) / 1e9:.2f}" for load in loads
    ]
    assert [match and match[2] for match in printed] == [
        f"{(statistic(delay, 'p99') or 0) / 1e6:.1f}" for delay in delays
    ]
    assert statistic(loads[0], "value") == 0
    assert all((statistic(load, "value") or 0) > 0 for load in loads[1:])
    assert "A probe beside load" in (folder / "probe-beside-load.html").read_text("utf-8")


SCRIPT_CHECKS = {
    "lane_weights.py": check_lane_weights,
    "probe_beside_load.py": check_probe_beside_load,
}


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_every_example_script_says_what_it_promises(script: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    SCRIPT_CHECKS[script.name](done.stdout, tmp_path)


# ---- Keys -------------------------------------------------------------------------------------


def documented(document: str) -> dict[str, set[str]]:
    """Heading -> the keys in the first column of the table below it."""
    keys: dict[str, set[str]] = {}
    heading = ""
    for line in (ROOT / "docs" / document).read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        elif found := re.match(r"^\| `(\w+)` \|", line):
            keys.setdefault(heading, set()).add(found[1])
    return keys


def known_keys(section: str, data: dict[str, Any]) -> set[str]:
    """The keys that the reader says it knows when it meets one that it does not."""
    with pytest.raises(InputError) as raised:
        scenario_from(data, base=ROOT / "examples" / "scenarios")
    listed = re.search(r"(?:known here:|allowed are) (.*)", str(raised.value))
    assert listed, f"{section}: {raised.value}"
    return set(listed[1].split(", "))


def scenario(**changes: Any) -> dict[str, Any]:
    fabric = {"topology": "one_switch", "hosts": 4}
    probe = {"name": "probe", "kind": "latency", "from": "h0", "to": "h1"}
    return {"duration": "1 us", "fabric": fabric, "traffic": [probe]} | changes


WRONG = {"not_a_key": 1}
PORT = {"node": "switch0", "port": 1, "sl2vl": [0], "low": [[0, 1]]}
SECTIONS = {
    "Top level": scenario(**WRONG),
    "[fabric] from files": scenario(fabric={"file": "ring-fabric.toml"} | WRONG),
    "[fabric] in place": scenario(
        fabric={"toml": '[fabric]\ntopology = "one_switch"\nhosts = 4'} | WRONG
    ),
    "[switch]": scenario(switch=WRONG),
    "[loggop]": {"loggop": {"L": "1 us", "o": "1 us", "g": "1 us", "G": "1 ns"} | WRONG},
    "[[switch.port]]": scenario(
        switch={"port": [{"node": "switch0", "port": 1, "buffer": "64 KiB"} | WRONG]}
    ),
    "[credits]": scenario(credits=WRONG),
    "[host]": scenario(host=WRONG),
    "[congestion]": scenario(congestion=WRONG),
    "[grants]": scenario(grants={"ahead": "1 KiB"} | WRONG),
    "[flow]": scenario(flow=WRONG),
    "[lanes]": scenario(lanes=WRONG),
    "[lanes.budget]": scenario(lanes={"budget": {"sl": 1, "rate": "1 Gb/s"} | WRONG}),
    "[[lanes.port]]": scenario(lanes={"port": [PORT | WRONG]}),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_documents_exactly_the_keys_that_are_read(section: str) -> None:
    assert documented("simulate.md")[section] == known_keys(section, SECTIONS[section])


def missing_key(data: dict[str, Any]) -> str | None:
    """The key of [fabric] that the reader asks for before it looks at the others."""
    with pytest.raises(InputError) as raised:
        scenario_from(data)
    found = re.search(r"fabric\.(\w+): is missing", str(raised.value))
    return found and found[1]


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_topology_documents_exactly_the_keys_that_are_read(topology: str) -> None:
    fabric = {"topology": topology} | WRONG
    while missing := missing_key(scenario(fabric=fabric)):
        fabric[missing] = 4
    known = known_keys(topology, scenario(fabric=fabric))
    text = (ROOT / "docs" / "fabric.md").read_text(encoding="utf-8")
    (counts,) = re.findall(rf"^\| `{topology}` \|([^|]*)\|", text, re.MULTILINE)
    assert documented("simulate.md")["[fabric]"] | set(re.findall(r"`(\w+)`", counts)) == known


OWN_KEYS: dict[str, dict[str, Any]] = {
    "paced": {"interval": "1 us"},
    "estimators": {"slice": "1 us"},
    "replay": {"file": "trace.csv"},
    "workload": {"file": "pipeline.goal"},
    "collective": {"operation": "all-reduce"},
}
ENDS = {"from": "h0", "to": "h1"}
BETWEEN_PAIRS = ("bandwidth", "latency", "paced", "pretend", "estimators", "incast")


# Keys that other kinds share and that would mean nothing here; the text says so.
WITHOUT = {
    "estimators": {"operation", "transport", "stop", "inline"},
    "replay": {"size", "stop"},
    "workload": {"size", "stop"},
    "collective": {"stop"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_traffic_documents_exactly_the_keys_that_are_read(kind: str) -> None:
    ends = ENDS if kind in BETWEEN_PAIRS else {}
    size = {} if "size" in WITHOUT.get(kind, set()) else {"size": "64 B"}
    table = {"name": "t", "kind": kind} | size | ends | OWN_KEYS.get(kind, {}) | WRONG
    keys = documented("simulate.md")
    known = known_keys(kind, scenario(traffic=[table]))
    shared = keys["[[traffic]]"] - WITHOUT.get(kind, set())
    assert shared | keys[f'kind = "{kind}"'] == known


# ---- Settings of measurements -----------------------------------------------------------------


def options_in(document: str) -> set[str]:
    """Options in the first cells of a document's tables; a cell may have several."""
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`--[^|]*) \|", text, re.MULTILINE)
    return {name.removeprefix("no-") for name in re.findall(r"`--([\w-]+)`", " ".join(cells))}


def test_measure_md_documents_exactly_the_settings_that_the_tests_have() -> None:
    every = {name for test in TESTS.values() for name in options_of(test.settings)}
    assert options_in("measure.md") == {n for n in every if "." not in n}
    section = (ROOT / "docs" / "measure.md").read_text(encoding="utf-8").split("`--delay KEY")[1]
    keys = set(re.findall(r"^\| `([\w-]+)` \|", section.split("##")[0], re.MULTILINE))
    assert keys == {n.removeprefix("delay.") for n in every if n.startswith("delay.")}


@pytest.mark.parametrize("test", TESTS)
def test_measure_md_lists_each_test_and_which_has_a_setting_of_its_own(test: str) -> None:
    own = set(options_of(TESTS[test].settings)) - set(options_of(Settings))
    text = (ROOT / "docs" / "measure.md").read_text(encoding="utf-8")
    assert f"| `weft {test}` |" in text
    rows = re.findall(r"^\| `--([\w-]+)` \| [^|]* \| ([^|]*) \| [^|]* \|$", text, re.MULTILINE)
    assert {name for name, of in rows if test in of.split(", ")} == own
