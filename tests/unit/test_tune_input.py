"""What `weft tune` refuses in one line, what it makes of settings given, and what it tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from weft.cli import main
from weft.measure.settings.values import ANYWHERE, AUTO
from weft.records import Plain, Provenance, Quantity, Record, Scalar, write_records
from weft.tune.rules.evidence import Spread, gather_evidence
from weft.tune.search.from_records import (
    StoredTuning,
    find_better_stored,
    find_unreached_factors,
    predict_gain,
    tune_records,
)
from weft.tune.search.space import GOALS, HostLimits, MeasuredPoint, Space, build_space
from weft.tune.search.surface import Interval
from weft.tune.search.tuning import Confirmation
from weft.tune.search.tuning_report import (
    build_stored_record,
    build_tuning_record,
    format_command,
    format_stored,
    format_tuning,
)

Capture = pytest.CaptureFixture[str]
HERE = HostLimits(
    transport="tcp", cpus=4, nodes=(0,), inline_limit=0, largest_bytes=2**30, size_bytes=64
)
THROUGHPUT = GOALS["throughput"]
ODD: dict[str, Plain] = {"size_bytes": 16384, "depth": 8, "wait": "block"}


def refusal(capsys: Capture, *words: str) -> str:
    """The one line with which `weft tune` refuses these."""
    assert main(["tune", *words]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert not said.out
    return said.err


def levels(space: Space, name: str) -> tuple[Plain, ...]:
    return next((factor.levels for factor in space.factors if factor.name == name), ())


def speed_Bps(size: int, depth: int, wait: str) -> float:
    """A thread busy 1 us with each message and 0.1 ns with each byte; a message is away 20 us."""
    busy = 1e-6 + 1e-10 * size
    return min(1 / busy, depth / (20e-6 + busy)) * size * (1.0 if wait == "spin" else 0.8)


def record(quantities: dict[str, Quantity], **settings: Plain) -> Record:
    return Record(
        kind="measurement",
        name="bandwidth",
        settings={"over": "tcp", **settings},
        quantities=quantities,
        provenance=Provenance(weft_version="0"),
    )


def carried(bytes_per_s: float, **settings: Plain) -> Record:
    return record({"throughput": Scalar(8 * bytes_per_s, "b/s")}, **settings)


def swept(depths: tuple[int, ...] = (1, 8, 64), **settings: Plain) -> list[Record]:
    return [
        carried(speed_Bps(size, depth, wait), size_bytes=size, depth=depth, wait=wait, **settings)
        for size in (4096, 16384, 65536, 262144)
        for depth in depths
        for wait in ("spin", "block")
    ]


def stored(records: list[Record]) -> StoredTuning:
    return tune_records(gather_evidence(records), THROUGHPUT)


@pytest.mark.parametrize("budget", [(), ("--budget", "60")])
def test_what_never_fits_the_memory_of_a_window_is_refused(
    budget: tuple[str, ...], capsys: Capture
) -> None:
    message = refusal(capsys, "--over", "tcp", "--size", "1M", "--depth", "128", *budget)
    assert "every combination holds more than 64 MiB outstanding; lower one" in message


@pytest.mark.parametrize("name", ["post-list", "signal-every"])
@pytest.mark.parametrize(("text", "least"), [("4,16", 4), ("16", 16)])
def test_depths_that_no_list_fits_are_no_choice_and_are_told(
    name: str, text: str, least: int, capsys: Capture
) -> None:
    space = build_space(THROUGHPUT, HERE, {name: text})
    assert levels(space, "depth") == tuple(
        d for d in (1, 2, 4, 8, 16, 32, 64, 128, 256) if d >= least
    )
    assert f"--{name} {least} needs {least} or more" in {r.reason for r in space.refusals}
    assert main(["tune", "--over", "tcp", f"--{name}", text, "--dry-run"]) == 0
    assert "depth 1, 2" in capsys.readouterr().out


def test_one_depth_that_is_left_is_no_choice_but_given() -> None:
    space = build_space(THROUGHPUT, HERE, {"depth": "1,8", "post-list": "4"})
    assert space.fixed == {"depth": 8, "post_list": 4}
    assert not levels(space, "depth")


@pytest.mark.parametrize("depth", ["2", "1,2"])
def test_depths_given_that_hold_no_list_are_refused(depth: str, capsys: Capture) -> None:
    message = refusal(capsys, "--over", "tcp", "--depth", depth, "--post-list", "4,16")
    assert "--post-list: 4 exceeds the 2 messages outstanding" in message
    assert "raise --depth to 4" in message


@pytest.mark.parametrize("option", ["--budget", "--point"])
@pytest.mark.parametrize("text", ["inf", "nan", "0", "0s", "-1"])
def test_a_time_that_never_ends_or_never_begins_is_refused(
    option: str, text: str, capsys: Capture
) -> None:
    assert f"{option}: {text!r} is no time" in refusal(capsys, "--over", "tcp", option, text)


def test_the_length_of_points_has_no_meaning_for_records(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "a.jsonl"
    write_records(file, swept())
    message = refusal(capsys, str(file), "--point", "1s")
    assert "--point: nothing is measured when tuning from records" in message


def test_an_unknown_goal_is_one_line_with_those_known(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "a.jsonl"
    write_records(file, swept())
    for words in ([], [str(file)]):
        message = refusal(capsys, *words, "--goal", "foo")
        assert "--goal: 'foo' is not known; use one of throughput, latency" in message


def test_the_command_names_the_peer_that_was_measured() -> None:
    far = stored(swept(peer="node7:7471"))
    assert "weft bandwidth node7:7471 --over tcp --size" in format_stored(far)
    assert "weft bandwidth node8 --over tcp" in format_tuning(far.tuning, peer="node8")


def test_the_command_of_a_local_run_names_no_peer() -> None:
    assert format_command(stored(swept()).tuning).startswith("weft bandwidth --over tcp")


def test_the_default_told_is_the_level_that_stands_for_it() -> None:
    tuning = stored(swept(depths=(1, 8, 32))).tuning  # the test's own default is 64
    (row,) = (
        r for r in build_tuning_record(tuning).tables["recommendation"] if r["choice"] == "depth"
    )
    assert row["default"] == 32
    (line,) = (one for one in format_tuning(tuning).splitlines() if one.startswith("depth "))
    assert "64" not in line


def test_processor_time_of_both_ends_needs_both() -> None:
    ours: dict[str, Quantity] = {"throughput": Scalar(8e9, "b/s"), "cpu.percent": Scalar(50.0, "%")}
    both = {**ours, "peer.cpu.percent": Scalar(100.0, "%")}
    read = GOALS["cpu"].value
    assert read(record(both, size_bytes=4096)) == pytest.approx(1.5)  # ns/B at 1 GB/s
    assert read(record(ours, size_bytes=4096)) is None
    assert read(record(ours, size_bytes=4096, over="delay")) == pytest.approx(0.5)


def test_the_gain_that_records_predict_is_that_of_the_fabric_that_made_them() -> None:
    result = stored(swept())
    space, chosen = result.tuning.space, result.tuning.recommendation.setting
    true = [
        speed_Bps(int(at["size_bytes"] or 0), int(at["depth"] or 0), str(at["wait"]))
        for at in (chosen, space.default)
    ]
    gain = predict_gain(result.tuning)
    assert gain is not None
    assert gain.low < gain.value < gain.high
    assert gain.value == pytest.approx(true[0] / true[1], rel=0.15)
    assert f"predicted: {gain} times as good as the default (95 % interval)" in format_stored(
        result
    )
    assert build_stored_record(result).quantities["predicted.gain"] == Scalar(gain.value, "")


def test_a_default_beyond_the_records_has_no_predicted_gain() -> None:
    result = stored(swept(depths=(1, 8)))
    assert [factor.name for factor in find_unreached_factors(result.tuning.space)] == ["depth"]
    assert predict_gain(result.tuning) is None
    assert "the records do not reach its depth 64" in format_stored(result)


def test_that_nothing_was_confirmed_is_said_once() -> None:
    assert format_stored(stored(swept())).count("not confirmed") == 1


def test_three_runs_are_needed_to_win_over_the_model() -> None:
    tuning = stored(swept()).tuning
    rows = [MeasuredPoint(setting=ODD, value=v, stage="") for v in (4.9e10, 5.1e10, 5e10)]
    model = tuning.recommendation
    assert find_better_stored(tuning.space, tuning.goal, rows[:2], model) is None
    won = find_better_stored(tuning.space, tuning.goal, rows, model)
    assert won is not None
    assert won[0].setting == ODD
    assert won[1].values == pytest.approx((4.9e10, 5e10, 5.1e10))


def test_figures_of_runs_are_told_as_stored_and_not_as_predicted() -> None:
    result = replace(stored(swept()), runs=Spread((4.9e10, 5e10, 5.1e10)))
    text = format_stored(result)
    assert "stored: 50 (49–51) GB/s, median (range) of 3 runs" in text
    assert "predicted 50" not in text


def test_without_rounds_that_have_the_default_no_gain_is_claimed() -> None:
    tuning = stored(swept()).tuning
    same = Interval(value=1.0, low=1.0, high=1.0)
    only = Confirmation(
        role="recommended",
        setting=tuning.recommendation.setting,
        predicted=same,
        measured=same,
        better=same,
        values=(1.0, 1.0),
    )
    assert "not compared with the default" in format_tuning(replace(tuning, confirmation=(only,)))


def test_a_level_that_was_withdrawn_has_a_place_apart_from_all_others() -> None:
    space = build_space(THROUGHPUT, HERE, {})
    blocking = {**space.default, "wait": "block"}
    reduced = space.remove_level("wait", "block", "cannot sleep")
    removed, default = reduced.coordinates([blocking]), reduced.coordinates([reduced.default])
    assert reduced.squared_distances(removed, default)[0, 0] > 0


def test_placement_decides_as_waiting_does() -> None:
    space = build_space(THROUGHPUT, HERE, {})
    anywhere = space.default
    apart = [
        space.squared_distances(
            space.coordinates([{**anywhere, **other}]), space.coordinates([anywhere])
        )[0, 0]
        for other in ({"cpu": AUTO}, {"wait": "block"})
    ]
    assert anywhere["cpu"] == ANYWHERE
    assert apart[0] == apart[1] > 1.0


def test_numbers_without_the_default_none_of_a_choice_have_a_nearest() -> None:
    assert build_space(THROUGHPUT, HERE, {"cpu": "1,2"}).default["cpu"] == 1
