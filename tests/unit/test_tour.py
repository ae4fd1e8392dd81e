"""The tour: every part, a report that stands alone, records beside it."""

from types import SimpleNamespace

import pytest

from weft.cli import main
from weft.records import read_records
from weft.studies.tour import TOUR, Skip, Stop, _run_weft, _take_table, _visit_switch


def test_the_tour_is_the_switch_the_two_hops_and_the_gamed_lane():
    assert [s.name for s in TOUR] == [f"rperf-fig{n}" for n in ("10", "7a", "12", "11", "13")]


def test_the_tour_shows_every_part_and_writes_report_and_records(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("weft.studies.tour.os.geteuid", lambda: 1000)  # an ordinary user
    assert main(["tour"]) == 0
    text = capsys.readouterr().out
    parts = [line[3:].split(":")[0] for line in text.splitlines() if line.startswith("== ")]
    assert parts == [
        "This machine",
        "Beside the truth",
        "A measurement",
        "A switch",
        "An application's profile",
        "Two applications share simulated switches",
    ]
    assert "skipped: needs root, for network namespaces as hosts: sudo weft tour" in text
    assert text.count("skipped: ") == 1
    assert "applied mpi-sgd#1 mpi-stencil#2: revision 1" in text
    assert "Its smallest share is at" in text
    assert {"Report: report.html", "Records: tour.jsonl"} <= set(text.splitlines())

    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.index("What was run") < page.index("rperf-fig10: ") < page.index("Provenance")
    assert "Skipped: An application&#x27;s profile: needs root" in page
    assert "http" not in page.replace("http://www.w3.org", "").split("</style>")[0]
    records = read_records(tmp_path / "tour.jsonl").records
    assert {r.name for r in records} == {"latency", *(s.name for s in TOUR)}


def test_the_progress_of_a_switch_is_that_of_all_its_studies(monkeypatch):
    def run_half(_, report):
        report(0.5)
        return SimpleNamespace(packet_hops=0, compared=[])

    monkeypatch.setattr("weft.studies.tour.run_study", run_half)
    monkeypatch.setattr("weft.studies.tour.short_table", lambda _: "")
    fractions: list[float] = []
    _visit_switch([], lambda *_: None, fractions.append)
    assert fractions == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])


def test_a_stop_that_fails_is_skipped_with_the_commands_reason(tmp_path):
    stop = Stop("title", "about")
    with pytest.raises(Skip, match=r"no such file|No such file"):
        _run_weft(stop, "simulate", "missing.toml", cwd=tmp_path)
    assert stop.lines == ["$ weft simulate missing.toml"]


def test_a_report_that_cannot_be_written_is_exit_status_2(tmp_path, capsys):
    assert main(["tour", "-o", str(tmp_path / "missing" / "report.html")]) == 2
    assert "missing" in capsys.readouterr().err


def test_a_table_is_taken_from_its_head_to_the_first_empty_line():
    lines = ["noise", "share slow", "0.1 2", "", "more"]
    assert _take_table(lines, "share ") == ["share slow", "0.1 2"]
    assert _take_table(lines[:3], "share ") == ["share slow", "0.1 2"]
    assert _take_table(["a", "b", "", "c"], "share ") == ["a", "b"]
