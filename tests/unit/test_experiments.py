"""Experiments of papers on the user's fabric: data files that can be run, claims judged both ways.

Measured points are replaced by records of known values: what is tested is the judging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from matplotlib.figure import Figure

from weft.cli import main
from weft.errors import InputError
from weft.measure.settings.options import settings_from
from weft.measure.tests import TESTS as MEASURING_TESTS
from weft.records import Distribution, Histogram, Provenance, Record, Scalar, Series, read_records
from weft.studies import Result, Unavailable, find_studies, run_study
from weft.studies.experiment import (
    READINGS,
    ROUNDS,
    RULE,
    Line,
    experiment_names,
    experiment_points,
    find_experiment,
    read_experiment,
    round_name,
    rounds_panel,
    with_experiment,
)
from weft.studies.fdr.fdr_studies import KI, MI, throughput
from weft.studies.points import Point, RunContext
from weft.studies.run_studies import STUDIES

SIZES = {"32 Ki": 32 * KI, "256 Ki": 256 * KI, "512 Ki": 512 * KI, "2 Mi": 2 * MI, "8 Mi": 8 * MI}


def a_record(
    value: float = 1.0, cpu_percent: float = 50.0, probe: tuple[float, ...] = (1, 1, 1, 1, 1)
) -> Record:
    """A run of any test: `value` is its latency in us, its rate in M/s, its throughput in Gb/s."""
    histogram = Histogram()
    histogram.record(round(value * 1e6), 100)
    quantities = {
        "half_rtt": Distribution("ps", histogram),
        "message_rate": Scalar(value, "M/s"),
        "throughput": Scalar(value * 1e9, "b/s"),
        "sender.throughput": Scalar(value * 1e9, "b/s"),
        "cpu.percent": Scalar(cpu_percent, "%"),
        "probe.p50": Series("b/s", "ps", tuple(range(5)), tuple(1e6 * us for us in probe)),
    }
    return Record(
        kind="measurement", name="x", quantities=quantities, provenance=Provenance(weft_version="0")
    )


class Case(NamedTuple):
    """A case by its line and the value that is varied."""

    line: str
    value: str


Values = Callable[[Case], Record]


def pretend(study: str, values: Values) -> Result:
    """The study's experiment with known values instead of measured ones."""

    def known(point: Point) -> Point:
        case = point.setting.rpartition(", round ")[0]
        line, _, value = case.partition(" @ ")
        return replace(point, run=lambda _: values(Case(line, value)))

    (found,) = find_studies([study])
    whole = with_experiment(found, "node7")
    points = (known(p) if p.source == "measurement" else p for p in whole.points)
    return run_study(replace(whole, points=tuple(points)))


def words(result: Result) -> str:
    """A letter for each measured claim: holds, does not, or open."""
    letters = {"holds": "y", "does not hold": "n", "not judged": "-"}
    return "".join(letters[v.word] for c, v in result.judged if c.source == "measurement")


# ---- The files ---------------------------------------------------------------------------------

CASES = [
    pytest.param(line, options, id=f"{name}: {case}")
    for name in experiment_names()
    for line in find_experiment(name).lines
    for case, options in line.cases()
]


def test_every_experiment_is_of_a_study() -> None:
    assert set(experiment_names()) <= {study.name for study in STUDIES}
    assert len(experiment_names()) == 22


@pytest.mark.parametrize(("line", "options"), CASES)
def test_every_case_is_of_settings_that_the_test_has(
    line: Line, options: Mapping[str, object]
) -> None:
    test = MEASURING_TESTS[line.test]
    transport = line.over or "verbs"
    test.check(settings_from(test.settings, {**options, "over": transport}))


@pytest.mark.parametrize("name", experiment_names())
def test_every_claim_has_words_a_place_and_something_that_decides_it(name: str) -> None:
    experiment = find_experiment(name)
    assert experiment.claims
    for claim in experiment.claims:
        assert claim.statement
        assert claim.place
        for check in claim.comparisons:
            assert check.gain is not None or check.low > 0 or check.high < float("inf")


def test_a_claim_by_its_key_has_the_papers_words_value_and_place() -> None:
    claim = find_experiment("efa-c6").claims[0]
    assert claim.statement.startswith("average latency of SRD above that of UD: 1.5 us; judged")
    assert claim.place == "4.2.3, Fig. 4.4"


BASE = """
test = "latency"
read = "latency"
vary = "size"
values = [8, 64]
[[line]]
name = "a"
"""


def read_text(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x-1.toml"
    path.write_text(text)
    read_experiment(path)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("[[line]]", "[[lime]]"), r"x-1.toml: line: is missing"),
        (('"latency"\nread', '"letency"\nread'), r"test: 'letency' is no test; use one of"),
        (('read = "latency"', 'read = "speed"'), r"read: 'speed' is unknown; use one of"),
        (("vary", "wary"), r"wary: is not a known key"),
        (("@ 64", "@ 65"), r"ratio: 'a @ 65' is not measured; use one of a @ 8, a @ 64"),
        ((', "a @ 8"]', "]"), r"ratio: 1 cases; name two, or four"),
        (("low = 1", "least = 1"), r"least: is not a known key"),
    ],
)
def test_a_mistake_in_a_file_is_named_by_its_place(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    claim = '[[claim]]\nstatement = "s"\nplace = "p"\n'
    whole = f'{BASE}{claim}check = [{{ ratio = ["a @ 64", "a @ 8"], low = 1 }}]\n'
    read_text(tmp_path, whole)
    with pytest.raises(InputError, match=problem):
        read_text(tmp_path, whole.replace(*change, 1))


def test_an_unknown_experiment_is_named_with_those_that_there_are() -> None:
    with pytest.raises(InputError, match=r"rperf-fig4: has no experiment; use one of efa-c1, "):
        find_experiment("rperf-fig4")


# ---- Points ------------------------------------------------------------------------------------


def test_every_case_is_measured_once_in_each_round_to_and_fro() -> None:
    points = list(experiment_points(find_experiment("efa-c2"), "s"))
    cases = ["one outstanding @ 64", "one outstanding @ 8192", "ping-pong @ 64", "ping-pong @ 8192"]
    assert [p.setting for p in points[:4]] == [round_name(case, 1) for case in cases]
    assert [p.setting for p in points[4:8]] == [round_name(case, 2) for case in reversed(cases)]
    assert len(points) == ROUNDS * len(cases)


def test_the_users_transport_replaces_the_papers_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: set[str] = set()

    def record_transport(_: object, **options: object) -> None:
        asked.add(str(options["over"]))
        raise Unavailable("not run")

    def transports(over: str | None) -> set[str]:
        asked.clear()
        with RunContext() as context:
            for point in experiment_points(find_experiment("efa-c1"), "s", over):
                with pytest.raises(Unavailable, match="not run"):
                    point.run(context)
        return set(asked)

    monkeypatch.setattr("weft.measure.latency", record_transport)
    assert transports(None) == {"verbs", "tcp"}
    assert transports("ofi:efa") == {"ofi:efa", "tcp"}


def test_measured_rows_stand_beside_no_published_value_and_name_the_peer() -> None:
    result = pretend("fdr-eq2", lambda _: a_record(7))
    rows = [row for row in result.rows if row.observation.source == "measurement"]
    assert [row.ours for row in rows] == pytest.approx([7] * 5)
    assert {row.published for row in rows} == {None}
    assert {row.system for row in rows} == {"this host to node7, verbs"}
    assert RULE in result.remarks


# ---- Claims, both ways -------------------------------------------------------------------------


def flat(_: Case) -> Record:
    return a_record(10)


def by(**values: float) -> Values:
    """Of each line by its first word."""
    return lambda case: a_record(values[case.line.split()[0]])


FLAT = {
    "efa-c1": "yyn",  # not slower than sockets: the interval is 1 to 1
    "efa-c2": "n",  # 10 M/s, and 10 us each
    "efa-c3": "nnyy",
    "efa-c4": "ny",
    "efa-c5": "ny",
    "efa-c6": "yyy",
    "efa-c7": "yy",
    "efa-c8": "ny",
    "efa-c9": "ny",
    "efa-c10": "yny",
    "efa-interfaces": "n",
    "fdr-alignment": "nyy",
    "fdr-outstanding": "nyy",
    "fdr-cache": "nn",
    "fdr-eq1": "y",
    "fdr-notification": "nny",
    "fdr-eq2": "ny",
    "fdr-numa": "nnn",
    "ib2016-table5": "yy",
    "ib2016-table6": "yny",
    "ib2016-fig5": "yy",
    "ib2016-fig6": "y",
}


@pytest.mark.parametrize("name", experiment_names())
def test_a_fabric_on_which_everything_is_alike_shows_no_gain(name: str) -> None:
    assert words(pretend(name, flat)) == FLAT[name]


def outstanding(case: Case) -> Record:
    size = SIZES[case.line]
    return a_record(float(throughput(size, int(case.value))), cpu_percent=1e7 / size)


def aligned(case: Case) -> Record:
    if int(case.value) % 64 == 0:
        return a_record(47.75)
    return a_record(46 if case.line.endswith("B = 1") else 34)


def buffers(case: Case) -> Record:
    return a_record(float(throughput(MI, int(case.value), one_buffer=case.line.startswith("one"))))


def polled(case: Case) -> Record:
    if case.value == "spin":
        return a_record(50, cpu_percent=100)
    return a_record(48, cpu_percent={"32 Ki": 80, "1 Mi": 20, "8 Mi": 2}[case.line])


def signaled(case: Case) -> Record:
    return a_record(50 if case.value == "64" or case.line == "8 Mi" else 46)


def bound(case: Case) -> Record:
    speeds = {"no binding": 40, "sender bound": 38, "both bound": 48, "far buffers": 30}
    return a_record(speeds[case.line.partition(", ")[2]])


def latency_by_interface(case: Case) -> Record:
    size = int(case.value)
    return a_record((2 if case.line == "fabric" else 30) + size / 4000)


def synchronous(case: Case) -> Record:
    return a_record(0.1 if case.line.startswith("one") else 5)  # 0.1 M/s; 5 us are 0.2 M/s


def deep(case: Case) -> Record:
    return a_record(min(int(case.value), 64))


def threaded(case: Case) -> Record:
    if case.value == "1":
        return a_record(1)
    return a_record(2 if case.line == "depth 2" else 1.2)


def split(case: Case) -> Record:
    return a_record(31 if int(case.value) < 8760 else 32)


def one_sided(case: Case) -> Record:
    speeds = {"send": 10, "write": 10, "read": 8, "write, 100 outstanding": 50}
    return a_record(speeds.get(case.line, 20))


def ipoib(case: Case) -> Record:
    return a_record((10 if case.line == "UDP" else 12) * (4 if int(case.value) > 8000 else 1))


AS_PUBLISHED: dict[str, tuple[Values, str]] = {
    "efa-c1": (latency_by_interface, "yyy"),
    "efa-c2": (synchronous, "y"),
    "efa-c3": (deep, "yyyy"),
    "efa-c4": (lambda case: a_record(int(case.value)), "yn"),
    "efa-c5": (threaded, "yy"),
    "efa-c6": (by(SRD=11, UD=10), "yyy"),
    "efa-c7": (by(send=10, tagged=12, inject=5), "nn"),
    "efa-c8": (lambda _: a_record(probe=(10, 11, 12, 13, 20)), "yy"),
    "efa-c9": (split, "yy"),
    "efa-c10": (one_sided, "yyy"),
    "efa-interfaces": (by(verbs=1.5, libfabric=1), "y"),
    "fdr-alignment": (aligned, "yyy"),
    "fdr-outstanding": (outstanding, "yyy"),
    "fdr-cache": (buffers, "yy"),
    "fdr-eq1": (lambda case: a_record(50 if case.value == "1" else 20), "n"),
    "fdr-notification": (polled, "yyy"),
    "fdr-eq2": (signaled, "yy"),
    "fdr-numa": (bound, "yyy"),
    "ib2016-table5": (lambda case: a_record(1 / int(case.value)), "nn"),
    "ib2016-table6": (ipoib, "yyy"),
    "ib2016-fig5": (by(RC=50, UC=40, UD=40), "ny"),
    "ib2016-fig6": (by(one=50, both=40), "n"),
}


@pytest.mark.parametrize("name", experiment_names())
def test_a_claim_is_judged_by_the_numbers(name: str) -> None:
    values, expected = AS_PUBLISHED[name]
    assert words(pretend(name, values)) == expected


@pytest.mark.parametrize("name", experiment_names())
def test_claims_without_records_say_why_they_are_not_judged(name: str) -> None:
    result = pretend(name, _absent)
    assert set(words(result)) == {"-"}
    assert {v.evidence for c, v in result.judged if c.source == "measurement"} == {"no device"}
    assert any("no device" in remark for remark in result.remarks)
    assert all(row.observation.source != "measurement" for row in result.rows)


def test_evidence_names_the_cases_and_the_interval() -> None:
    result = pretend("fdr-eq2", signaled)
    (verdict,) = (v for c, v in result.judged if "5 to 10 %" in c.statement)
    assert verdict.evidence == (
        "256 Ki @ 64 over 256 Ki @ 1: ratio 1.09 (1.09–1.09); "
        "256 Ki @ 64 over 256 Ki @ 8: ratio 1.09 (1.09–1.09)"
    )


def test_readings_of_one_case_are_named_in_the_evidence() -> None:
    result = pretend("efa-c8", lambda _: a_record(probe=(10, 11, 12, 13, 20)))
    evidence = [v.evidence for c, v in result.judged if c.source == "measurement"]
    assert evidence[0] == (
        "probe half RTT, median, most load over probe half RTT, median, no load: ratio 2 (2–2)"
    )


# ---- Figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [(8, 64), (0, 1)])
def test_a_panel_shows_median_and_range_of_the_rounds(values: tuple[int, int]) -> None:
    reading = READINGS["throughput"]
    line = Line(
        name="udp",
        test="bandwidth",
        over=None,
        vary="size",
        values=values,
        options={},
        readings=(reading,),
    )
    spread = [9, 10, 10, 11, 12]
    records = {
        round_name(f"udp @ {value}", number + 1): a_record(spread[number])
        for value in values
        for number in range(ROUNDS)
    }
    axes = Figure().subplots()
    (study,) = find_studies(["fdr-numa"])
    result = Result(study=study, records=records, rows=(), verdicts=(), missing={})
    rounds_panel([line], reading, "payload (B)")(axes, result)
    (medians,) = axes.get_lines()
    assert list(medians.get_ydata()) == pytest.approx([10, 10])
    (bars,) = axes.collections
    assert bars.get_segments()[0][:, 1] == pytest.approx([9, 12])
    assert axes.get_ylabel() == "throughput (Gb/s)"


def test_a_panel_of_nothing_says_so() -> None:
    result = pretend("efa-c2", _absent)
    axes = Figure().subplots()
    result.study.panels[-1](axes, result)
    assert [text.get_text() for text in axes.texts] == ["nothing could be measured"]


def _absent(_: Case) -> Record:
    raise Unavailable("no device")


# ---- The command -------------------------------------------------------------------------------


def test_an_experiment_runs_with_a_real_peer(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    output = tmp_path / "r.jsonl"
    argv = ["study", "run", "efa-c2", "--peer", "local", "--over", "tcp", "-o", str(output)]
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "ours: measurement, this host to local, tcp" in shown
    assert "one outstanding @ 64 over ping-pong @ 64: ratio" in " ".join(shown.split())
    measured = [r for r in read_records(output).records if r.kind == "measurement"]
    assert len(measured) == 4 * ROUNDS
    assert {r.name for r in measured} == {"rate", "latency"}


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["efa-c2", "--over", "tcp"], "--over: is of an experiment; name the other host"),
        (["rperf-fig11", "--peer", "node7"], "--peer: none of these studies has an experiment"),
    ],
)
def test_options_of_an_experiment_need_one(
    capsys: pytest.CaptureFixture[str], argv: list[str], problem: str
) -> None:
    assert main(["study", "run", *argv]) == 2
    assert problem in capsys.readouterr().err


def test_without_a_peer_nothing_is_measured() -> None:
    sources = {p.source for study in STUDIES for p in study.points}
    assert sources == {"simulation", "model", "measurement"}
    measuring = {s.name for s in STUDIES for p in s.points if p.source == "measurement"}
    assert all(name.startswith("saba-") for name in measuring)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--peer", "127.0.0.1:1"], "127.0.0.1:1: no weft serve there"),
        (["--peer", "local", "--over", "bogus"], "--over: 'bogus' is not a transport"),
        (["--peer", "local", "--token-file", "/none"], "/none: No such file"),
    ],
)
def test_an_experiment_that_cannot_begin_is_an_error(
    options: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["study", "run", "fdr-eq2", *options]) == 2
    assert expected in capsys.readouterr().err
