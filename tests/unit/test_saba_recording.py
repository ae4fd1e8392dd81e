"""Records of Saba's evaluation that grow run by run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.studies.saba.evaluation import recording
from weft.studies.saba.evaluation.__main__ import draw_products, list_rows, main
from weft.studies.saba.evaluation.cluster import draw_favourable
from weft.studies.saba.evaluation.judgement import PRODUCT, decompose
from weft.studies.saba.evaluation.packet_level import SwitchKind
from weft.studies.saba.evaluation.recording import Cell, Recording, grow_record, read_case


@pytest.fixture(autouse=True)
def _small_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell(
        draw=draw_favourable,
        ways=PRODUCT,
        servers=8,
        jobs=12,
        kind=SwitchKind(),
        hops=5_000,
        has_alone=False,
    )
    small = Recording(level="packet", cells={"favourable": cell})
    monkeypatch.setitem(recording.RECORDINGS, "small", small)


def test_a_record_goes_on_where_it_ended(tmp_path: Path) -> None:
    path, lines = tmp_path / "record.json", list[str]()
    assert grow_record(path, "small", 2, ways=["one lane"], report=lines.append)
    first = json.loads(path.read_text())["cases"]["favourable"]
    assert [*first] == ["1", "2"]
    lines.clear()
    assert grow_record(path, "small", 2, report=lines.append)
    both = json.loads(path.read_text())["cases"]["favourable"]
    assert not [line for line in lines if "one lane" in line]
    for seed in ("1", "2"):
        assert set(both[seed]["completions_s"]) == set(PRODUCT)
        assert both[seed]["completions_s"]["one lane"] == first[seed]["completions_s"]["one lane"]
    rows = [*list_rows({"favourable": both})]
    assert len([row for row in rows if row.startswith("| favourable | 2 |")]) == len(PRODUCT)


def test_a_record_is_drawn_as_the_products_of_its_cases(tmp_path: Path) -> None:
    recorded = Path(recording.__file__).parents[1] / "recorded" / "packets.json"
    cases = json.loads(recorded.read_text("utf-8"))["cases"]
    (ax,) = draw_products(cases).axes
    assert len(ax.get_yticklabels()) == len(cases)
    sensitivity = decompose(read_case(cases[next(iter(cases))])).sensitivity.value
    assert sensitivity in [x for line in ax.lines for x in line.get_xdata()]
    picture = tmp_path / "products.png"
    assert main(["packets", "--record", str(recorded), "--figure", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_record_stops_when_its_time_is_over(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    assert not grow_record(path, "small", 2, until_s=0.0)
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(["--cases", "paradise"], "paradise"), (["--ways", "one lane;magic"], "magic")],
)
def test_unknown_cases_and_ways_are_refused(
    arguments: list[str], word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = str(tmp_path / "record.json")
    assert main(["packets", "--record", record, *arguments]) == 2
    error = capsys.readouterr().err
    assert word in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("name", "kind"), [("flows", "packets"), ("packets-1944", "flows")])
def test_a_record_of_another_kind_is_refused(
    name: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record = Path(recording.__file__).parents[1] / "recorded" / f"{kind}.json"
    assert main([name, "--record", str(record), "--tables"]) == 2
    error = capsys.readouterr().err
    assert f"no case of {name}; use {kind}" in error
    assert error.count("\n") == 1


def test_recorded_cells_have_the_servers_and_jobs_of_their_set_ups() -> None:
    for name in ("packets", "flows", "fig4.14"):
        for setting, cell in recording.RECORDINGS[name].cells.items():
            setup = cell.draw(cell.first_seed)
            assert (setup.cluster.hosts, len(setup.jobs)) == (cell.servers, cell.jobs), setting


@pytest.mark.parametrize("text", ["not JSON", "[]", "{}"])
def test_a_file_that_is_no_record_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "record.json"
    path.write_text(text)
    assert main(["packets", "--record", str(path), "--tables"]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert error.count("\n") == 1
