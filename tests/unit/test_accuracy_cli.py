"""`weft accuracy`: what it prints and refuses. Its figures are judged in tests/agreement."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from weft.cli import main
from weft.measure import accuracy

ESTIMATORS = 9


def test_accuracy_gives_every_estimator_beside_the_truth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["accuracy", "--messages", "1000", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len({row["estimator"] for row in rows}) == len(rows) == ESTIMATORS
    for row in rows:
        assert row["messages"] == 1000
        assert 0 <= row["undisturbed"] <= 1
        assert row["every_p50_injected_ps"] > 0


def test_what_a_closed_loop_hides_is_told_and_drawn(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = partial(accuracy.measure_omission, parts=1)
    monkeypatch.setattr(accuracy, "measure_omission", brief)
    picture = tmp_path / "omission.png"
    assert main(["accuracy", "--messages", "1000", "--omission", str(picture)]) == 0
    said = capsys.readouterr().out.splitlines()
    start = said.index(next(line for line in said if line.startswith("round trip")))
    names = [line[:11].strip() for line in said[start + 2 : start + 5]]
    assert names == ["injected", "open loop", "closed loop"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_truth_of_a_seed_is_the_same_every_time(capsys: pytest.CaptureFixture[str]) -> None:
    def injected() -> list[float]:
        main(["accuracy", "--messages", "1000", "--json", "--seed", "3"])
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return [r["every_p50_injected_ps"] for r in rows if r["estimator"].startswith("comp")]

    assert injected() == injected()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--messages", "10"], "10 messages have no p99.9; use 1000 or more"),
        (["--omission", "nowhere/x.png"], "does not exist"),
    ],
)
def test_accuracy_says_what_it_cannot_do(
    options: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["accuracy", *options]) == 2
    assert words in capsys.readouterr().err
