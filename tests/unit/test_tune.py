"""The tuner against truths that are known: an invented function, and the delay transport."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.cli import main
from weft.errors import InputError
from weft.measure.peer.client import PeerLost
from weft.measure.settings.values import ANYWHERE
from weft.records import read_records
from weft.tune.search import over_fabric
from weft.tune.search.design import Schedule, design, schedule
from weft.tune.search.over_fabric import prepare_tuning
from weft.tune.search.recommend import recommend
from weft.tune.search.space import (
    DECISIVE,
    GOALS,
    SHARING,
    Candidate,
    HostLimits,
    MeasuredPoint,
    Space,
    build_space,
    list_candidates,
)
from weft.tune.search.surface import fit_surface
from weft.tune.search.tuning import Observe, Stopped, Tuning, mean_interval, tune
from weft.tune.search.tuning_report import build_tuning_record, tuning_sections

HERE = HostLimits(
    transport="ofi:tcp", cpus=4, nodes=(0,), inline_limit=64, largest_bytes=2**30, size_bytes=64
)
FEW = {"size": "16K..1M*4", "qps": "1,2", "post-list": "1", "offset": "0", "cpu": "-1"}
THROUGHPUT = GOALS["throughput"]


def few() -> Space:
    return build_space(THROUGHPUT, HERE, FEW)


def brief(space: Space, transport: str) -> Schedule:
    """Of some 180 points: for claims that do not need the usual ones."""
    return schedule(space, transport, budget_s=80)


def truth(setting: Candidate) -> float:
    """A window over 30 us, 2 us and 0.25 ns/B of work, a cache of 4 MB, threads that share."""
    size, depth, qps, threads = (int(setting[n]) for n in ("size_bytes", "depth", "qps", "threads"))  # type: ignore[arg-type]
    held = size * depth * qps * threads
    busy = 2e-6 + size * (0.25e-9 if held <= 4e6 else 0.4e-9)
    rate = min(1 / busy, depth * qps / (30e-6 + busy)) * size
    together = threads**0.6 if setting["wait"] == "block" else 1.2 * threads**-0.5
    return rate * together


def noisy(relative: float, seed: int) -> Observe:
    random = np.random.default_rng(seed)

    def observe(setting: Candidate, stage: str) -> MeasuredPoint:
        value = truth(setting) * float(np.exp(relative * random.standard_normal()))
        return MeasuredPoint(setting=setting, value=value, stage=stage)

    return observe


def test_a_spread_has_each_level_of_a_factor_as_often_as_any_other() -> None:
    space = build_space(THROUGHPUT, HERE, {"size": "16K", "post-list": "1", "signal-every": "1"})
    settings = design(space, 27, 3, np.random.default_rng(1))
    default = space.key(space.default)
    spread = [s for s in settings if space.key(s) != default]
    assert len(settings) == 27
    assert sum(space.key(s) == default for s in settings) >= 3
    for factor in space.factors:
        counts = Counter(s[factor.name] for s in spread)
        if factor.name not in DECISIVE:
            assert set(counts) == {space.default[factor.name]}
            continue
        assert max(counts.values()) - min(counts[level] for level in factor.levels) <= 2
    together = Counter((s["threads"], s["wait"]) for s in spread)
    assert max(together.values()) - min(together.values()) <= 2


def test_every_way_to_share_processors_and_connections_is_in_the_spread() -> None:
    space = build_space(THROUGHPUT, replace(HERE, cpus=2), {})
    plan = schedule(space, "tcp")
    settings = design(space, plan.spread, plan.centres, np.random.default_rng(3))
    ways = {tuple(setting[name] for name in SHARING) for setting in settings}
    assert len(ways) == 2 * 2 * 2 * 3


def test_a_setting_that_is_seldom_fast_is_not_taken_for_a_steady_one() -> None:
    """One way to share is steady; all others are as fast at times, and half as fast as often."""
    space = build_space(THROUGHPUT, replace(HERE, cpus=2), FEW)
    random = np.random.default_rng(5)

    def observe(setting: Candidate, stage: str) -> MeasuredPoint:
        steady = (setting["wait"], setting["threads"], setting["qps"]) == ("block", 2, 1)
        value = 1e9 if steady else float(random.choice([1.1e9, 0.55e9]))
        return MeasuredPoint(setting=setting, value=value, stage=stage)

    for seed in range(3):
        result = tune(observe, space, THROUGHPUT, schedule(space, "tcp"), seed=seed)
        taken = result.recommendation.setting
        assert (taken["wait"], taken["threads"], taken["qps"]) == ("block", 2, 1)


def test_every_candidate_is_a_setting_that_the_test_takes() -> None:
    for setting in list_candidates(few()):
        assert int(setting["signal_every"]) <= int(setting["depth"])  # type: ignore[arg-type]
        held = [int(setting[n]) for n in ("size_bytes", "depth", "qps", "threads")]  # type: ignore[arg-type]
        assert np.prod(held) <= 2**26


@cache
def tuned(seed: int) -> Tuning:
    return tune(noisy(0.05, seed), few(), THROUGHPUT, schedule(few(), "tcp"), seed=seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_recommendation_is_within_a_tenth_of_the_best_there_is(seed: int) -> None:
    result = tuned(seed)
    best = max(truth(setting) for setting in list_candidates(few()))
    assert truth(result.recommendation.setting) >= 0.9 * best
    assert result.recommendation.setting["wait"] == "block"
    assert result.gain is not None
    assert result.gain.low > 1


def test_predicted_is_measured_where_the_model_holds() -> None:
    space = few()
    result = tune(noisy(0.02, 7), space, THROUGHPUT, brief(space, "tcp"), seed=7)
    for row in result.confirmation:
        if row.role in ("recommended", "default"):
            assert row.predicted.value == pytest.approx(truth(row.setting), rel=0.1)
        assert row.measured.value == pytest.approx(truth(row.setting), rel=0.06)
        assert row.better.value == pytest.approx(
            truth(result.recommendation.setting) / truth(row.setting), rel=0.1
        )


def test_without_noise_a_choice_that_changes_nothing_stays_at_its_default() -> None:
    space = few()
    result = tune(noisy(0.001, 1), space, THROUGHPUT, brief(space, "tcp"))
    assert result.recommendation.setting["signal_every"] == 1


def test_less_is_better_for_latency() -> None:
    goal = GOALS["latency"]
    space = build_space(goal, HERE, {})

    def observe(setting: Candidate, stage: str) -> MeasuredPoint:
        value = (
            10.0
            * (1.5 if setting["wait"] == "block" else 1)
            * (0.8 if setting["inline_bytes"] else 1)
        )
        return MeasuredPoint(setting=setting, value=value, stage=stage)

    result = tune(observe, space, goal, brief(space, "ofi"))
    assert result.recommendation.setting["wait"] == "spin"
    assert result.recommendation.setting["inline_bytes"] == 64
    assert result.recommendation.predicted.value == pytest.approx(8, rel=0.02)
    assert result.gain is not None
    assert result.gain.value == pytest.approx(1.25, rel=0.01)


def test_settings_that_lose_messages_are_not_recommended() -> None:
    space = few()

    def observe(setting: Candidate, stage: str) -> MeasuredPoint:
        lost = 20.0 if int(setting["depth"]) > 4 else 0.0  # type: ignore[arg-type]
        return MeasuredPoint(setting=setting, value=truth(setting), stage=stage, lost_percent=lost)

    result = tune(observe, space, THROUGHPUT, brief(space, "udp"))
    lossy = [row for row in result.rows if not row.is_acceptable]
    assert lossy
    assert space.key(result.recommendation.setting) not in {space.key(r.setting) for r in lossy}


def test_a_setting_is_lossy_by_the_mean_of_its_rows_not_by_those_that_went_well() -> None:
    space = few()

    def observe(setting: Candidate, stage: str) -> MeasuredPoint:
        lost = 20.0 if int(setting["depth"]) > 4 and random.random() < 0.5 else 0.0  # type: ignore[arg-type]
        return MeasuredPoint(setting=setting, value=truth(setting), stage=stage, lost_percent=lost)

    random = np.random.default_rng(3)
    result = tune(observe, space, THROUGHPUT, brief(space, "udp")).recommendation.setting
    random = np.random.default_rng(4)
    rows = [observe(result, "again") for _ in range(400)]
    assert np.mean([row.lost_percent for row in rows]) <= 1


def test_a_level_that_is_only_probed_is_never_recommended_however_lucky_it_was() -> None:
    space = build_space(THROUGHPUT, HERE, {**FEW, "offset": "0,1"})

    def observe(setting: Candidate, stage: str) -> MeasuredPoint:
        lucky = 10.0 if setting["offset_bytes"] else 1.0
        return MeasuredPoint(setting=setting, value=lucky * truth(setting), stage=stage)

    result = tune(observe, space, THROUGHPUT, brief(space, "tcp"))
    assert any(row.setting["offset_bytes"] for row in result.rows)
    assert result.recommendation.setting["offset_bytes"] == 0


def test_the_luck_that_let_a_setting_into_the_race_does_not_carry_it_to_the_last_heat() -> None:
    space, observe, calls = few(), noisy(0.02, 5), Counter[str]()
    bad = next(s for s in list_candidates(space) if 0.8 < truth(s) / truth(space.default) < 0.95)

    def lucky_once(setting: Candidate, stage: str) -> MeasuredPoint:
        calls[stage] += 1
        if stage == "profile" and calls[stage] == 1:
            return MeasuredPoint(setting=bad, value=1e6 * truth(space.default), stage=stage)
        return observe(setting, stage)

    plan = brief(space, "tcp")
    result = tune(lucky_once, space, THROUGHPUT, plan)
    raced = [row for row in result.rows if row.stage == "race" and row.setting == bad]
    assert 0 < len(raced) < sum(turns for _, turns in plan.race)  # never in the last heat
    assert truth(result.recommendation.setting) > truth(space.default)


def test_a_level_that_is_lost_later_takes_its_rows_with_it() -> None:
    space, observe, left = few(), noisy(0.05, 1), [30]

    def until(setting: Candidate, stage: str) -> MeasuredPoint:
        left[0] -= 1
        if left[0] < 0 and setting["wait"] == "block":
            raise InputError("wait", "no such way any more", "spin")
        return observe(setting, stage)

    result = tune(until, space, THROUGHPUT, brief(space, "tcp"))
    assert result.recommendation.setting["wait"] == "spin"
    assert {row.setting["wait"] for row in result.rows} == {"spin"}
    assert any(refused.name == "wait block" for refused in result.space.refusals)


def test_a_peer_that_dies_between_points_keeps_what_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left, real = [20], over_fabric.run_test

    def until(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise PeerLost("node7: connection reset")
        return real(*args, **options)

    monkeypatch.setattr(over_fabric, "run_test", until)
    given = {"over": "delay", "size": "4096", "depth": "1..64*2", "qps": "1", "threads": "1"}
    result = prepare_tuning(given, point_s=0.002).run(None)
    assert (result.ended, len(result.rows)) == ("node7: connection reset", 20)


def test_many_settings_that_fail_late_end_the_run_with_what_it_has() -> None:
    space, observe, left = few(), noisy(0.05, 1), [40]

    def until(setting: Candidate, stage: str) -> MeasuredPoint:
        left[0] -= 1
        if left[0] < 0 and space.key(setting) != space.key(space.default) and stage != "try":
            raise InputError("point", "no memory", "use less")
        return observe(setting, stage)

    result = tune(until, space, THROUGHPUT, brief(space, "tcp"))
    assert "could not be measured, the last: point: no memory" in result.ended
    assert len(result.rows) >= 40


def test_a_neighbour_that_cannot_be_measured_leaves_the_proof_of_the_others() -> None:
    space, observe = few(), noisy(0.05, 2)

    def refuses(setting: Candidate, stage: str) -> MeasuredPoint:
        if stage.startswith("confirm: ") and stage.split()[1] not in ("recommended", "default"):
            raise InputError("point", "no memory", "use less")
        return observe(setting, stage)

    result = tune(refuses, space, THROUGHPUT, brief(space, "tcp"), seed=2)
    assert {row.role for row in result.confirmation} == {"recommended", "default"}
    assert result.gain is not None


def test_loss_everywhere_is_refused_with_a_remedy() -> None:
    space = few()
    rows = [
        MeasuredPoint(setting=s, value=1.0, stage="spread", lost_percent=50.0)
        for s in list_candidates(space)[:8]
    ]
    with pytest.raises(InputError, match=r"lost at every point; send slower"):
        recommend(space, THROUGHPUT, rows)


def test_a_run_that_is_stopped_recommends_from_what_it_has() -> None:
    space, observe, left = few(), noisy(0.05, 1), [25]

    def until(setting: Candidate, stage: str) -> MeasuredPoint:
        left[0] -= 1
        if left[0] < 0:
            raise Stopped("interrupted")
        return observe(setting, stage)

    result = tune(until, space, THROUGHPUT, brief(space, "tcp"))
    assert (result.ended, len(result.rows), result.confirmation) == ("interrupted", 25, ())
    assert truth(result.recommendation.setting) > truth(space.default)


def test_a_run_that_is_stopped_at_once_says_that_it_has_too_few_points() -> None:
    space = few()

    def never(*_: object) -> MeasuredPoint:
        raise Stopped("interrupted")

    with pytest.raises(InputError, match="ended after 0 points"):
        tune(never, space, THROUGHPUT, brief(space, "tcp"))


def test_a_setting_that_is_refused_is_told_and_never_recommended() -> None:
    space, observe = few(), noisy(0.05, 1)
    best = max(list_candidates(space), key=truth)

    def choosy(setting: Candidate, stage: str) -> MeasuredPoint:
        if space.key(setting) == space.key(best):
            raise InputError("--depth", "too many", "lower it")
        return observe(setting, stage)

    result = tune(choosy, space, THROUGHPUT, brief(space, "tcp"))
    assert space.key(result.recommendation.setting) != space.key(best)
    assert all("too many" in failed.reason for failed in result.failed)


def test_a_level_that_the_transport_turns_out_not_to_have_is_no_choice() -> None:
    space, observe = few(), noisy(0.05, 1)

    def polls_only(setting: Candidate, stage: str) -> MeasuredPoint:
        if setting["wait"] == "block":
            raise InputError("shm", "the provider cannot sleep", "poll instead")
        return observe(setting, stage)

    result = tune(polls_only, space, THROUGHPUT, brief(space, "ofi"))
    assert result.recommendation.setting["wait"] == "spin"
    reasons = {r.name: r.reason for r in result.space.refusals}
    assert "cannot sleep" in reasons["wait block"]
    assert not result.failed


def test_the_schedule_keeps_to_the_budget() -> None:
    space = few()
    plans = [schedule(space, "tcp", budget_s=budget_s) for budget_s in range(40, 240, 5)]
    for plan, budget_s in zip(plans, range(40, 240, 5), strict=True):
        assert plan.seconds <= budget_s
    assert [plan.points for plan in plans] == sorted(plan.points for plan in plans)
    usual = schedule(space, "tcp")
    assert schedule(space, "tcp", budget_s=usual.seconds) == usual
    with pytest.raises(InputError, match=r"--budget: 2 s is too short for \d+ points; give"):
        schedule(space, "tcp", budget_s=2)


def test_the_mean_interval_is_students() -> None:
    # t of 4 degrees of freedom at 97.5 %: 2.776; s of 1..5 is 1.5811
    result = mean_interval(np.arange(1.0, 6.0))
    assert np.log([result.low, result.value, result.high]) == pytest.approx(
        [3 - 2.776 * 1.5811 / 5**0.5, 3, 3 + 2.776 * 1.5811 / 5**0.5], abs=1e-3
    )


def test_what_is_not_to_be_had_is_refused_with_its_reason() -> None:
    reasons = {r.name: r.reason for r in build_space(THROUGHPUT, HERE, {}).refusals}
    assert reasons["numa"] == "this host has one NUMA node"
    assert reasons["inline_bytes"].startswith("messages up to 64 B only")
    reasons = {r.name: r.reason for r in build_space(GOALS["latency"], HERE, {}).refusals}
    assert "one message" in reasons["depth"]
    assert "smallest is best" in reasons["size_bytes"]


DELAY = ["--over", "delay", "--delay", "wire=100us", "rate=8Gb/s"]
FIXED = [
    "--size",
    "8K",
    "--qps",
    "1",
    "--threads",
    "1",
    "--post-list",
    "1",
    "--signal-every",
    "1",
    "--wait",
    "spin",
    "--offset",
    "0",
    "--cpu",
    "-1",
]


def test_the_depth_covers_the_bandwidth_delay_product(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 8 KiB at 8 Gb/s take 8.2 us and are confirmed 200 us later: 25 or more must be on their way
    output = tmp_path / "tune.jsonl"
    command = ["tune", *DELAY, *FIXED, "--depth", "1..128*2", "--point", "30ms", "--budget", "15"]
    assert main([*command, "--json", "-o", str(output)]) == 0
    said = capsys.readouterr()
    assert "points of 0.03 s" in said.err
    record = json.loads(said.out)
    (depth,) = (row for row in record["tables"]["recommendation"] if row["choice"] == "depth")
    assert depth["use"] >= 25
    stored = read_records(output).records
    assert stored[-1].name == "tune"
    assert len(stored) == len(stored[-1].tables["points"]) + 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--budget", "1"], "--budget: 1 s is too short"),
        (["--size", "3G"], "'3G' is too large"),
        (["--over", "udp", "--size", "1M,2M"], "do not fit a UDP datagram"),
        (["--goal", "latency", "--depth", "4"], "weft latency has no such setting"),
        (["--duration", "1s"], "use --point TIME"),
        (["--point", "0.0001s"], "--point: 0.0001 s is out of range"),
        (["--over", "mpi"], "--over mpi: what could be chosen is mpirun's"),
        (["--over", "warp"], "'warp' is not a transport"),
        ([*FIXED, "--depth", "4"], "there is nothing to choose"),
        (["127.0.0.1:9", "--size", "4K"], "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_tuned_is_one_line_with_a_remedy(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *words]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("weft: ")
    assert problem in last


def test_transport_is_another_word_for_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--transport", "udp", "--dry-run"]) == 0
    assert "tuning throughput over udp: " in capsys.readouterr().out


def test_a_plan_is_told_before_anything_is_measured() -> None:
    result = prepare_tuning({"over": "tcp", "size": "4K,64K", "wait": "block"}, goal="throughput")
    assert result.space.fixed == {"wait": "block"}
    sizes = next(f for f in result.space.factors if f.name == "size_bytes")
    assert sizes.levels == (4096, 65536)
    assert result.space.default.get("cpu", ANYWHERE) == ANYWHERE
    assert f"{result.schedule.points} points of 0.2 s" in result.schedule.text()


def test_a_drift_of_the_machine_is_told_from_the_settings_where_the_turns_are_known() -> None:
    space = few()
    every = list_candidates(space)
    true = np.log([truth(setting) for setting in every])
    errors = {True: 0.0, False: 0.0}
    for seed in range(3):
        settings = design(space, 40, 3, np.random.default_rng(seed))
        drift = np.exp(0.4 * np.sin(np.arange(40) / 6))
        for is_known in errors:
            rows = [
                MeasuredPoint(
                    setting=setting,
                    value=truth(setting) * float(drift[turn]),
                    stage="spread",
                    turn=turn if is_known else None,
                )
                for turn, setting in enumerate(settings)
            ]
            result = fit_surface(space, THROUGHPUT, rows).predict(every).log_value - true
            errors[is_known] += float(np.std(result))
    assert errors[True] < errors[False]


def test_ctrl_c_between_two_points_keeps_what_was_measured() -> None:
    space, observe, left = few(), noisy(0.05, 1), [20]

    def pressed(setting: Candidate, stage: str) -> MeasuredPoint:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return observe(setting, stage)

    result = tune(pressed, space, THROUGHPUT, brief(space, "tcp"))
    assert (result.ended, len(result.rows)) == ("interrupted", 20)


def test_a_report_has_a_section_for_the_tuning() -> None:
    (section,) = tuning_sections([build_tuning_record(tuned(1))])
    assert section.title == "Tuning throughput over ofi:tcp"
    assert section.markup.count("<svg") == 3
