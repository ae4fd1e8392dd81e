"""`weft apps` as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples" / "apps"
LR, SQL = (str(EXAMPLES / f"saba-{name}.json") for name in ("lr", "sql"))
Apps = Callable[..., int]


@pytest.fixture
def apps(tmp_path: Path) -> Apps:
    """Runs an action on a table of its own."""
    return lambda action, *words: main(["apps", action, "--table", str(tmp_path / "t"), *words])


@pytest.fixture
def filled(apps: Apps, capsys: pytest.CaptureFixture[str]) -> Apps:
    assert apps("import", LR, SQL) == 0
    assert capsys.readouterr().out == "imported saba-lr, saba-sql\n"
    return apps


def test_an_empty_table_is_said_to_be_empty(apps: Apps, capsys: pytest.CaptureFixture[str]) -> None:
    assert apps("list") == 0
    assert "No application in" in capsys.readouterr().out
    assert apps("list", "--json") == 0
    assert capsys.readouterr().out == ""


def test_list_has_a_line_per_application(filled: Apps, capsys: pytest.CaptureFixture[str]) -> None:
    assert filled("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["saba-lr", "saba-sql"]
    assert filled("list", "--json") == 0
    outcome = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["floor"] for row in outcome] == [0.1, 0.1]
    assert outcome[1]["slowdown_at_floor"] == pytest.approx(2.2)


def test_show_prints_the_curve(filled: Apps, capsys: pytest.CaptureFixture[str]) -> None:
    assert filled("show", "saba-sql") == 0
    out = capsys.readouterr().out
    assert "0.4667 max(0, 0.3571/b − 1)" in out
    assert [line.split()[:4] for line in out.splitlines() if line.startswith("25 %")] == [
        ["25", "%", "1.200", "1.200"]
    ]
    assert filled("show", "saba-sql", "--percent", "10,20", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [row["share"] for row in shown["curve"]] == [0.1, 0.2]
    assert shown["curve"][0]["low"] is None
    assert shown["models"]["convex"]["floor"] == 0.1


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_show_draws(filled: Apps, tmp_path: Path, suffix: str, start: bytes) -> None:
    file = tmp_path / f"lr.{suffix}"
    assert filled("show", "saba-lr", "--figure", str(file)) == 0
    assert file.read_bytes().startswith(start)


def test_what_is_exported_can_be_imported_elsewhere(
    filled: Apps, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lr.json"
    assert filled("export", "saba-lr", "-o", str(file)) == 0
    assert file.read_text() == Path(LR).read_text()
    assert filled("export", "saba-lr") == 0
    assert capsys.readouterr().out == Path(LR).read_text()
    assert main(["apps", "import", "--table", str(tmp_path / "u"), "--json", str(file)]) == 0
    assert json.loads(capsys.readouterr().out) == {"imported": ["saba-lr"]}


def test_remove_takes_away_those_named(filled: Apps, capsys: pytest.CaptureFixture[str]) -> None:
    assert filled("remove", "saba-lr", "saba-lr") == 0
    assert capsys.readouterr().out == "removed saba-lr\n"
    assert filled("list", "--json") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_damaged_file_is_told_and_the_others_are_listed(
    filled: Apps, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t" / "saba-lr.json").write_text("{")
    assert filled("list") == 1
    message = capsys.readouterr()
    assert "saba-sql" in message.out
    assert message.err.count("\n") == 1
    assert "saba-lr.json: damaged" in message.err


BAD = {
    "unknown application": (["show", "nothing"], "no application 'nothing'; use one of saba-lr"),
    "name with slashes": (["show", "../saba-lr"], "NAME: '../saba-lr' cannot be the name of"),
    "percentages out of order": (["show", "saba-lr", "--percent", "50,10"], "10 after 50"),
    "a percentage twice": (["show", "saba-lr", "--percent", "50,50"], "50 after 50"),
    "above 100": (["show", "saba-lr", "--percent", "50,101"], "101 is not above 0 and up to 100"),
    "zero": (["show", "saba-lr", "--percent", "0"], "0 is not above 0 and up to 100"),
    "negative": (["show", "saba-lr", "--percent=-5"], "-5 is not above 0 and up to 100"),
    "NaN": (["show", "saba-lr", "--percent", "nan"], "nan is not above 0 and up to 100"),
    "infinite": (["show", "saba-lr", "--percent", "inf"], "inf is not above 0 and up to 100"),
    "no number": (["show", "saba-lr", "--percent", "10,,20"], "'' is not a number"),
    "below the floor": (["show", "saba-lr", "--percent", "5"], "0.05 is below the floor 0.1"),
    "figure of another kind": (["show", "saba-lr", "--figure", "x.pdf"], "not .svg or .png"),
    "figure nowhere": (["show", "saba-lr", "--figure", "/no/x.svg"], "does not exist"),
    "export nowhere": (["export", "saba-lr", "-o", "/no/x.json"], "does not exist"),
    "export of nothing": (["export", "nothing"], "no application 'nothing'"),
    "import of nothing": (["import", "/no/such.json"], "No such file"),
    "import of a directory": (["import", "/"], "Is a directory"),
    "import of what is no application": (["import", __file__], "damaged"),
    "import twice": (["import", LR, LR], "two files of 'saba-lr'"),
    "import of what is there": (["import", LR], "in the table already; use --replace"),
    "remove of nothing": (["remove", "saba-lr", "nothing"], "no application 'nothing'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_changes_nothing(
    case: str, filled: Apps, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = BAD[case]
    assert filled(*words) == 2
    result = capsys.readouterr()
    assert result.out == ""
    assert result.err.count("\n") == 1
    assert message in result.err
    assert filled("list", "--json") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def with_infinite(*place: str) -> str:
    """An application with a number at that place that a file of ours cannot hold."""
    data = json.loads(Path(SQL).read_text())
    within = data
    for name in place[:-1]:
        within = within[name]
    within[place[-1]] = "infinite"
    return json.dumps(data).replace('"infinite"', "1e999")


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        with_infinite("models", "convex", "quality", "r_squared"),
        with_infinite("profile", "machine", "what"),
    ],
    ids=["empty", "R²", "machine"],
)
def test_a_damaged_file_among_several_imports_none(
    content: str, apps: Apps, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text(content)
    assert apps("import", LR, str(tmp_path / "bad.json")) == 2
    assert not (tmp_path / "t").exists()


def test_a_table_that_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t"
    file.write_text("")
    assert main(["apps", "list", "--table", str(file)]) == 2
    assert "not a directory" in capsys.readouterr().err
