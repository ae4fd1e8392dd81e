"""`weft tune FILE`: a recommendation without measuring, or one line with the reason for none."""

import json
from pathlib import Path

import pytest

from weft.cli import main
from weft.records import Plain, Provenance, Record, Scalar, write_records


def stored(path: Path, depths: tuple[int, ...] = (1, 4, 16, 64), over: str = "tcp") -> str:
    records = [
        Record(
            kind="measurement",
            name="bandwidth",
            provenance=Provenance(weft_version="0"),
            settings=_at(over, size, depth),
            quantities={"throughput": Scalar(8e9 * min(depth, 20) * size / (size + 1e4), "b/s")},
        )
        for size in (4096, 65536)
        for depth in depths
    ]
    write_records(path, records)
    return str(path)


def _at(over: str, size: int, depth: int) -> dict[str, Plain]:
    return {"over": over, "size_bytes": size, "depth": depth}


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["tune", *words]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def test_a_recommendation_with_its_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", stored(tmp_path / "a.jsonl")]) == 0
    text = capsys.readouterr().out
    assert "recommended for throughput" in text
    assert "not confirmed by measurement" in text
    assert "keep 64 or more messages outstanding" in text


def test_json_is_one_record_with_the_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "tuned.jsonl"
    assert main(["tune", stored(tmp_path / "a.jsonl"), "--json", "-o", str(output)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {row["topic"] for row in record["tables"]["advice"]} >= {"outstanding", "batching"}
    assert output.is_file()


def test_choices_are_limited_by_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [stored(tmp_path / "a.jsonl"), "--depth", "1,4", "--json"]
    assert main(["tune", *words]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    chosen = {row["choice"]: row["use"] for row in tables["recommendation"]}
    assert chosen["depth"] in (1, 4)


def test_input_that_cannot_be_tuned_from_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = stored(tmp_path / "a.jsonl")
    b = stored(tmp_path / "b.jsonl", over="ofi:shm")
    few = stored(tmp_path / "few.jsonl", depths=(1,))
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert "choose one with --over" in refusal(capsys, a, b)
    assert "No such file" in refusal(capsys, str(tmp_path / "none.jsonl"))
    assert "the file is empty" in refusal(capsys, str(empty))
    assert "2 settings measured, but a model needs 4" in refusal(capsys, few)
    assert "0 settings measured" in refusal(capsys, a, "--goal", "latency")
    assert "no record has depth 3; use 1, 4, 16, 64" in refusal(capsys, a, "--depth", "3")
    assert "nothing is measured" in refusal(capsys, a, "--budget", "10")
    assert "is not a choice" in refusal(capsys, a, "--nagle")
    assert "also an input" in refusal(capsys, a, "-o", a)
    assert "2 peers" in refusal(capsys, "node1", "node2")


def test_an_output_that_is_an_input_is_left_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = stored(tmp_path / "a.jsonl")
    before = Path(a).read_bytes()
    refusal(capsys, a, "-o", a)
    assert Path(a).read_bytes() == before
