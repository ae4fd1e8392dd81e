"""The tour: one screen, a report that stands alone, records beside it."""

from weft.cli import main
from weft.records import read_records
from weft.studies.tour import TOUR


def test_the_tour_is_the_switch_the_two_hops_and_the_gamed_lane():
    assert [s.name for s in TOUR] == [f"rperf-fig{n}" for n in ("10", "7a", "12", "11", "13")]


def test_the_tour_prints_one_screen_and_writes_report_and_records(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["tour"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert {"Report: report.html", "Records: tour.jsonl"} <= set(lines)
    assert any("packet-hops" in line for line in lines)

    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.index("What was run") < page.index("rperf-fig10: ") < page.index("Provenance")
    assert "http" not in page.replace("http://www.w3.org", "").split("</style>")[0]
    records = read_records(tmp_path / "tour.jsonl").records
    assert {r.name for r in records} == {s.name for s in TOUR}


def test_a_report_that_cannot_be_written_is_exit_status_2(tmp_path, capsys):
    assert main(["tour", "-o", str(tmp_path / "missing" / "report.html")]) == 2
    assert "missing" in capsys.readouterr().err
