"""The tuner's arithmetic by hand: levels, distances, schedules, forms, surfaces, confirmation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any, cast

import numpy as np
import pytest

from weft.errors import InputError, WeftError
from weft.measure.settings.values import ANYWHERE, AUTO
from weft.records import Plain, Provenance, Record, Scalar
from weft.tune.search import design as designs
from weft.tune.search import space as spaces
from weft.tune.search import surface as surfaces
from weft.tune.search.design import Schedule, count_profile, design, list_profile, schedule
from weft.tune.search.recommend import (
    Recommendation,
    _keep_at_defaults,
    _pick_spread_out,
    propose_improvements,
    rank_candidates,
    rank_ways,
)
from weft.tune.search.space import (
    GOALS,
    Candidate,
    Factor,
    HostLimits,
    MeasuredPoint,
    Space,
    build_point,
    build_space,
    list_candidates,
    loss_percent,
)
from weft.tune.search.surface import (
    Interval,
    Surface,
    _read_input,
    add_effects,
    base_forms,
    fit_model,
    fit_surface,
    form_inputs,
)
from weft.tune.search.tuning import (
    Stopped,
    Tuning,
    _Run,
    list_contenders,
    mean_interval,
    summarise_rounds,
    tune,
)

THROUGHPUT, LATENCY = GOALS["throughput"], GOALS["latency"]
HOST = HostLimits(
    transport="verbs", cpus=6, nodes=(0, 1), inline_limit=220, largest_bytes=2**21, size_bytes=64
)
DEPTH = Factor(name="depth", levels=(1, 2, 4, 8, 16, 32), default=1)
WAIT = Factor(name="wait", levels=("spin", "block"), default="spin")
THREADS = Factor(name="threads", levels=(1, 2), default=1)
LISTS = Factor(name="post_list", levels=(1, 4, 16), default=1)


def space_of(*factors: Factor, **fixed: Plain) -> Space:
    return Space(over="tcp", factors=factors, fixed={"size_bytes": 1024, **fixed})


def point(value: float, at: int | None = None, **setting: Plain) -> MeasuredPoint:
    return MeasuredPoint(setting=setting, value=value, stage="spread", turn=at)


def point_at(setting: Candidate) -> MeasuredPoint:
    return MeasuredPoint(setting=setting, value=1.0, stage="spread")


# ---- Levels -----------------------------------------------------------------------------------


def test_numbers_are_apart_by_their_doublings_and_words_by_being_others() -> None:
    assert [DEPTH.coordinate(level) for level in (1, 8, 5)] == pytest.approx([0, 3, math.log2(5)])
    assert [WAIT.coordinate(level) for level in ("spin", "block", "poll")] == [0, 1, -1]
    assert WAIT.is_number is False
    assert Factor(name="inline_bytes", levels=(0, 64), default=0).is_number is False
    # In reaches: 6 doublings of a depth, 0.6 of threads or of how to wait, 2 of anything else.
    ends = np.array([0.0, 3.0])
    assert DEPTH.distances(ends, ends)[0, 1] == pytest.approx(3 / 6)
    assert THREADS.distances(ends, ends)[0, 1] == pytest.approx(3 / 0.6)
    assert WAIT.distances(ends, ends)[0, 1] == pytest.approx(1 / 0.6)
    assert LISTS.distances(ends, ends)[0, 1] == pytest.approx(3 / 2)
    space = space_of(DEPTH, WAIT)
    at = space.coordinates([{"depth": 8, "wait": "block"}, {"depth": 1, "wait": "spin"}])
    assert at.tolist() == [[3, 1], [0, 0]]
    assert space.squared_distances(at, at)[0, 1] == pytest.approx(0.5**2 + (1 / 0.6) ** 2)


def test_lists_are_no_longer_than_the_window() -> None:
    space = space_of(DEPTH, LISTS)
    assert space.repair({"depth": 8, "post_list": 16}) == {"depth": 8, "post_list": 4}
    assert space.repair({"depth": 16, "post_list": 16}) == {"depth": 16, "post_list": 16}
    assert space.repair({"depth": 3, "post_list": 5}) == {"depth": 1, "post_list": 1}
    assert space.is_possible({"depth": 4, "post_list": 4})
    assert not space.is_possible({"depth": 3, "post_list": 4})
    fixed = space_of(LISTS, depth=4)
    assert fixed.repair({"post_list": 16}) == {"post_list": 4}
    assert space.default == {"depth": 1, "post_list": 1}


def test_the_default_is_the_nearest_level_where_it_is_none() -> None:
    assert space_of(replace(DEPTH, levels=(4, 32), default=8)).default == {"depth": 4}
    assert space_of(replace(DEPTH, levels=(4, 32), default=16)).default == {"depth": 32}
    assert space_of(replace(WAIT, levels=("block", "poll"))).default == {"wait": "block"}


def test_neighbours_are_one_step_away_and_every_other_word() -> None:
    ways = Factor(name="wait", levels=("spin", "block", "poll"), default="spin")
    space = space_of(DEPTH, ways, LISTS)
    near = [*space.neighbours({"depth": 4, "wait": "block", "post_list": 4})]
    assert near == [
        ("depth", {"depth": 2, "wait": "block", "post_list": 1}),
        ("depth", {"depth": 8, "wait": "block", "post_list": 4}),
        ("wait", {"depth": 4, "wait": "spin", "post_list": 4}),
        ("wait", {"depth": 4, "wait": "poll", "post_list": 4}),
        ("post_list", {"depth": 4, "wait": "block", "post_list": 1}),
    ]
    ends = [*space.neighbours({"depth": 1, "wait": "spin", "post_list": 1})]
    assert [setting["depth"] for name, setting in ends if name == "depth"] == [2]


def test_a_level_that_is_removed_is_a_refusal() -> None:
    reduced = space_of(DEPTH, WAIT).remove_level("depth", 4, "too deep")
    assert [f.levels for f in reduced.factors] == [(1, 2, 8, 16, 32), ("spin", "block")]
    assert [(r.name, r.reason) for r in reduced.refusals] == [("depth 4", "too deep")]


def test_candidates_are_all_that_can_run_and_probe_nothing() -> None:
    offsets = Factor(name="offset_bytes", levels=(0, 1), default=0)
    every = list_candidates(space_of(replace(DEPTH, levels=(1, 4)), LISTS, offsets))
    assert [(c["depth"], c["post_list"], c["offset_bytes"]) for c in every] == [
        (1, 1, 0),
        (4, 1, 0),
        (4, 4, 0),
    ]
    space = space_of(DEPTH)
    keys = [*space.group([point(1, depth=2), point(2, depth=1), point(3, depth=2)]).items()]
    assert [(key, [row.value for row in rows]) for key, rows in keys] == [
        ((2,), [1, 3]),
        ((1,), [2]),
    ]


def offers(goal: str, **limits: Any) -> dict[str, Any]:
    return dict(spaces._list_offers(GOALS[goal], replace(HOST, **limits)))


def test_a_throughput_has_every_choice_of_its_host() -> None:
    result = offers("throughput")
    assert result == {
        "size_bytes": tuple(2**n for n in range(12, 22)),
        "depth": tuple(2**n for n in range(9)),
        "qps": (1, 2, 4),
        "threads": (1, 2, 4),
        "post_list": (1, 4, 16),
        "signal_every": (1, 4, 16),
        "inline_bytes": "messages up to 220 B only, and this goal needs larger ones",
        "wait": ("spin", "block"),
        "offset_bytes": (0, 1),
        "cpu": (ANYWHERE, AUTO),
        "numa": (-1, 0, 1),
    }
    assert offers("throughput", cpus=64)["threads"] == (1, 2, 4, 8, 16)
    assert offers("throughput", largest_bytes=2**30)["size_bytes"][-1] == 4 * 2**20
    assert offers("throughput", largest_bytes=3000)["size_bytes"] == (2048, 3000)
    alone = offers("throughput", cpus=1, nodes=(0,), inline_limit=0)
    assert alone["threads"] == "1 CPU: a second thread would wait for the first"
    assert alone["cpu"] == "1 CPU: nothing to choose from"
    assert alone["numa"] == "this host has one NUMA node"
    assert alone["inline_bytes"] == "verbs has no inline sends"


def test_a_ping_pong_has_one_message_of_one_size() -> None:
    result = offers("latency")
    alone = "a ping-pong has one message on its way, on one connection"
    assert {result[n] for n in ("depth", "qps", "threads", "post_list", "signal_every")} == {alone}
    assert result["size_bytes"] == "smallest is best: 64 B, or as --size says"
    assert result["inline_bytes"] == (0, 64)
    assert offers("latency", size_bytes=220)["inline_bytes"] == (0, 220)
    too_long = offers("latency", size_bytes=221)["inline_bytes"]
    assert too_long == "221 B exceed what goes inline here, 220 B"
    assert offers("message-rate")["size_bytes"].startswith("small messages make the most: 64 B")


def test_options_fix_a_setting_or_limit_its_levels() -> None:
    space = build_space(THROUGHPUT, HOST, {"depth": "4,8", "qps": "2", "size": "8K..32K*2"})
    levels = {factor.name: factor.levels for factor in space.factors}
    assert [*levels] == [n for n in spaces.CHOICES if n not in ("qps", "inline_bytes")]
    assert (levels["depth"], levels["size_bytes"]) == ((4, 8), (8192, 16384, 32768))
    assert space.fixed == {"qps": 2}
    assert [refusal.name for refusal in space.refusals] == ["inline_bytes"]
    with pytest.raises(InputError, match="--colour: weft bandwidth has no such setting"):
        build_space(THROUGHPUT, HOST, {"colour": "red"})


def test_limits_of_the_host_are_those_of_the_transport_and_the_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Offer:
        def __init__(self, device: str, max_bytes: int, facts: dict[str, str]) -> None:
            self.device, self.max_bytes, self.facts = device, max_bytes, facts

    offered = [
        Offer("tcp", 0, {"rdm.inject_size": "128", "msg.inject_size": "64"}),
        Offer("tcp", 9000, {"rdm.inject_size": "256"}),
        Offer("shm", 10, {"rdm.inject_size": "4096"}),
    ]
    monkeypatch.setattr(spaces, "availability", lambda _: offered)
    result = spaces.find_host_limits("ofi:tcp", {"size": "2K"})
    assert (result.inline_limit, result.largest_bytes, result.size_bytes) == (256, 9000, 2048)
    assert spaces.find_host_limits("ofi:tcp", {"endpoint": "msg"}).inline_limit == 64
    for text in ("1K,2K", "1K..4K*2"):
        assert spaces.find_host_limits("ofi:tcp", {"size": text}).size_bytes == 64
    monkeypatch.setattr(spaces, "availability", lambda _: [])
    assert spaces.find_host_limits("verbs:mlx5_0", {}).inline_limit == 220
    assert spaces.find_host_limits("tcp", {}).largest_bytes == 2**30


# ---- Schedules and designs --------------------------------------------------------------------

PLAN = Schedule(
    spread=10,
    centres=2,
    refine=((24, 24), (12, 20)),
    race=((16, 4), (8, 8), (3, 16)),
    profile=7,
    repeats=5,
    point_s=0.2,
    overhead_s=0.15,
)


def test_a_schedule_counts_its_points_and_its_time() -> None:
    assert (PLAN.refine_points, PLAN.race_points, PLAN.confirm) == (44, 64 + 64 + 48, 20)
    assert PLAN.points == 10 + 44 + 176 + 7 + 20
    assert PLAN.measuring_s == pytest.approx(257 * 0.2)
    assert PLAN.seconds == pytest.approx(257 * 0.35)
    assert PLAN.confirm_s == pytest.approx(20 * 0.35)
    assert PLAN.text() == (
        "257 points of 0.2 s: 51.4 s of measuring, about 90 s in all (10 spread over the choices, "
        "44 where most is to be gained, 7 around the leader, 176 in a race of the best, 20 to "
        "confirm)"
    )


def test_the_usual_schedule_covers_every_way_to_share_processors_once() -> None:
    space = build_space(THROUGHPUT, HOST, {})
    usual = schedule(space, "verbs")
    assert usual.spread == min(24, 3 * 2 * 2 * 3) + 2  # threads, wait, cpu, qps; two defaults
    assert (usual.refine, usual.race) == (designs.REFINE, designs.RACE)
    assert (
        usual.profile == count_profile(space) == 2 * 7 + 3
    )  # wait, offset and cpu have two levels
    assert [schedule(space, t).overhead_s for t in ("delay", "tcp", "udp", "verbs")] == [
        0.15,
        0.2,
        0.2,
        0.45,
    ]
    small = schedule(space_of(DEPTH, WAIT), "tcp")
    assert (small.spread, small.profile) == (8 + 2, 2 + 1)
    assert small.refine == tuple((ways, 12) for ways, _ in designs.REFINE)
    assert small.race == ((12, 4), (8, 8), (3, 16))
    longest = schedule(space, "verbs", budget_s=1e6)
    assert longest.race == tuple((places, 12 * turns) for places, turns in designs.WIDER)
    assert longest.refine == designs.REFINE


def test_levels_are_dealt_evenly_over_a_design() -> None:
    assert designs._even_places(3, 6) == [0, 0, 1, 1, 2, 2]
    assert designs._even_places(2, 5) == [0, 0, 1, 1, 1]
    assert designs._even_places(4, 2) == [1, 3]
    random = np.random.default_rng(1)
    settings = design(space_of(DEPTH, WAIT), 14, 2, random, trials=3)
    assert len(settings) == 14
    depths = Counter(s["depth"] for s in settings)
    assert depths == Counter([1, 1, *DEPTH.levels, *DEPTH.levels])


def test_a_profile_goes_two_levels_to_either_side_and_to_other_words() -> None:
    space = space_of(DEPTH, WAIT, LISTS)
    moves = list_profile(space, {"depth": 8, "wait": "spin", "post_list": 4})
    assert moves == [
        {"depth": 2, "wait": "spin", "post_list": 1},
        {"depth": 32, "wait": "spin", "post_list": 4},
        {"depth": 8, "wait": "block", "post_list": 4},
        {"depth": 8, "wait": "spin", "post_list": 1},
    ]
    at_end = list_profile(space, {"depth": 32, "wait": "spin", "post_list": 1})
    assert [s["depth"] for s in at_end] == [8, 32, 32, 32]
    assert [s["post_list"] for s in at_end] == [1, 1, 4, 16]
    assert count_profile(space) == 2 + 1 + 2


def test_factors_are_combined_as_far_as_there_are_points() -> None:
    space = space_of(THREADS, WAIT, Factor(name="qps", levels=(1, 2, 4), default=1), DEPTH)
    names = [[f.name for f in designs._joint_factors(space, n)] for n in (12, 11, 3, 1)]
    assert names == [["threads", "wait", "qps"], ["threads", "wait"], ["threads"], []]


def test_a_window_that_needs_too_much_memory_is_made_smaller() -> None:
    sizes = Factor(name="size_bytes", levels=(2**20, 2**22), default=2**20)
    space = Space(over="tcp", factors=(DEPTH, sizes), fixed={})
    # 64 MiB hold 16 messages of 4 MiB.
    assert designs._shrink_window(space, {"depth": 32, "size_bytes": 2**22})["depth"] == 16
    kept = {"depth": 16, "size_bytes": 2**22}
    assert designs._shrink_window(space, kept) == kept


def test_a_design_is_as_wide_as_its_closest_pair() -> None:
    space = space_of(DEPTH)
    assert designs._least_distance([{"depth": 1}], space) == 0
    # Beside the default, 1: the pairs are 1-8, 1-32, 8-32.
    assert designs._least_distance([{"depth": 8}, {"depth": 32}], space) == pytest.approx(
        (2 / 6) ** 2
    )
    wide, narrow = [{"depth": 4}, {"depth": 32}], [{"depth": 2}, {"depth": 32}]
    assert designs._widest([narrow, wide], space) == wide  # type: ignore[list-item]


# ---- Goals ------------------------------------------------------------------------------------


def record(name: str = "bandwidth", **quantities: float) -> Record:
    units = {"throughput": "Gb/s", "sender_throughput": "Gb/s", "message_rate": "M/s", "loss": "%"}
    return Record(
        kind="measurement",
        name=name,
        settings={"over": "tcp", "size_bytes": 1000},
        quantities={
            n.replace("_", ".") if n != "message_rate" else n: Scalar(v, units.get(n, "%"))
            for n, v in quantities.items()
        },
        provenance=Provenance(weft_version="0"),
    )


def test_goals_read_what_both_ends_saw() -> None:
    carried = record(throughput=8.0, sender_throughput=4.0)
    assert THROUGHPUT.value(carried) == pytest.approx(0.5e9)
    assert THROUGHPUT.value(record("rate", throughput=8.0)) is None
    assert THROUGHPUT.value(record(throughput=0.0)) is None
    rate = GOALS["message-rate"]
    assert rate.value(record("rate", message_rate=2.0)) == pytest.approx(2.0)
    # 8 Gb/s are a million messages of 1000 B each second.
    assert rate.value(record("rate", message_rate=2.0, sender_throughput=8.0)) == pytest.approx(1.0)
    busy = record(throughput=8.0, cpu_percent=50.0, peer_cpu_percent=150.0)
    assert GOALS["cpu"].value(busy) == pytest.approx(2.0)  # 2 s of processors for 1e9 B
    assert GOALS["cpu"].value(record(throughput=8.0, cpu_percent=50.0)) is None
    assert (THROUGHPUT.sign, LATENCY.sign) == (1, -1)
    assert loss_percent(record(loss=2.5)) == 2.5
    assert loss_percent(record()) == 0
    lossy = build_point(THROUGHPUT, {"depth": 1}, "race", record(throughput=8.0, loss=1.01))
    assert lossy is not None
    assert (lossy.stage, lossy.lost_percent, lossy.is_acceptable) == ("race", 1.01, False)
    assert replace(lossy, lost_percent=1.0).is_acceptable
    assert build_point(THROUGHPUT, {}, "race", record()) is None


# ---- Forms ------------------------------------------------------------------------------------


def test_an_effect_applies_as_often_as_its_level_or_doubling() -> None:
    space = space_of(DEPTH, WAIT, THREADS)
    setting: Candidate = {"depth": 8, "wait": "block", "threads": 2}
    values = {
        "wait=block": 1,
        "wait=spin": 0,
        "depth doubled": 3,
        "wait=block and threads doubled": 1,
        "wait=spin and threads doubled": 0,
        "size_bytes": 1024,
        "size_bytes doubled": 10,
        "qps": 1,
        "qps doubled": 0,
        "wait": 1,
    }
    assert {n: _read_input(n, space, setting) for n in values} == values


def test_a_form_has_as_many_effects_as_its_rows_leave_room_for() -> None:
    x = {n.name: np.array([1.0, 2.0]) for n in form_inputs("throughput")}
    (base,) = base_forms("latency", "tcp", {"size_bytes": np.ones(2)}, np.array([3.0, 5.0]))
    assert base.unknowns[0].start == 4.0
    assert base.evaluate({"base_us": 2.0}, {"size_bytes": np.ones(3)}) == pytest.approx([2, 2, 2])
    names = [[u.name for u in add_effects(base, (WAIT, DEPTH), n).unknowns] for n in (2, 3, 4)]
    assert names == [
        ["base_us"],
        ["base_us", "wait=block"],
        ["base_us", "wait=block", "depth doubled"],
    ]
    form = add_effects(base, (WAIT, DEPTH), 4)
    assert form.formula == "base · [wait=block] · [depth doubled]"
    p = {"base_us": 5.0, "wait=block": 2.0, "depth doubled": 3.0}
    columns = {
        "size_bytes": np.ones(2),
        "wait=block": np.array([0, 1]),
        "depth doubled": np.array([2, 0]),
    }
    assert form.evaluate(p, columns) == pytest.approx([45, 10])
    assert {(u.low, u.start, u.high) for u in form.unknowns[1:]} == {(0.02, 1.0, 50.0)}
    with pytest.raises(InputError, match="1 settings for 1 unknowns; measure 2 or more"):
        add_effects(base, (), 1)
    assert [*x] == ["size_bytes", "depth", "qps", "threads"]
    assert [n.name for n in form_inputs("cpu")] == ["size_bytes"]


@pytest.mark.parametrize(
    ("over", "rows", "forms"), [("verbs", 4, 1), ("tcp", 15, 1), ("tcp", 16, 2), ("ofi:efa", 20, 1)]
)
def test_a_cache_is_fitted_from_sixteen_rows_on_where_there_is_no_adapter(
    over: str, rows: int, forms: int
) -> None:
    x = {n.name: np.full(rows, 2.0) for n in form_inputs("throughput")}
    assert len([*base_forms("throughput", over, x, np.full(rows, 4e6))]) == forms


def test_the_adapters_form_starts_from_what_was_seen() -> None:
    x = {n.name: np.array([2.0, 4.0]) for n in form_inputs("message-rate")}
    (form,) = base_forms("message-rate", "verbs:mlx5_0", x, np.array([1.0, 2.0]))
    starts = {unknown.name: unknown.start for unknown in form.unknowns}
    # 2·2·2 messages at 1 M/s are 8 us; half of the time of a message at 2 M/s; 2 M/s of 4 B.
    assert starts == pytest.approx(
        {"base_us": 8.0, "message_us": 0.25, "engine_us": 0.25, "line_GBps": 0.008}
    )
    (in_bytes,) = base_forms("throughput", "verbs", x, np.array([2e6, 8e6]))
    assert in_bytes.unit == "B/s"
    p = {unknown.name: unknown.start for unknown in in_bytes.unknowns}
    of_messages = form.evaluate({**p}, x)
    assert in_bytes.evaluate(p, x) == pytest.approx(1e6 * x["size_bytes"] * of_messages)


def test_processor_time_per_byte_is_a_cost_of_messages_and_of_bytes() -> None:
    rows = [
        MeasuredPoint(setting={"size_bytes": size}, value=900 / size + 0.5, stage="spread")
        for size in (64, 256, 1024, 4096, 16384)
    ]
    sizes = Factor(name="size_bytes", levels=(64, 256, 1024, 4096, 16384), default=64)
    fitted = fit_model(
        GOALS["cpu"], Space(over="tcp", factors=(sizes,), fixed={}), rows, held_out=False
    )
    values = {p.name: p.value for p in fitted.parameters}
    assert values == pytest.approx({"message_ns": 900, "byte_ns": 0.5}, rel=1e-3)


# ---- Surfaces ---------------------------------------------------------------------------------


def test_an_interval_is_of_a_logarithm_and_is_scaled_as_a_whole() -> None:
    interval = Interval.from_logs(math.log(8), math.log(2))
    assert (interval.value, interval.low, interval.high) == pytest.approx((8, 4, 16))
    assert str(interval.scale(0.5)) == "4 (2–8)"


def test_a_drift_is_correlated_over_eight_turns_where_all_turns_are_known() -> None:
    rows = [point(1.0, turn, depth=1) for turn in (0, 8, 16)]
    expected = [[math.exp(-((a - b) ** 2) / 2) for b in range(3)] for a in range(3)]
    assert surfaces._correlate_drift(rows) == pytest.approx(np.array(expected))
    assert not surfaces._correlate_drift([*rows, point(1.0, depth=1)]).any()


def test_a_covariance_is_that_of_the_process_the_drift_and_the_noise() -> None:
    likelihood = surfaces._Likelihood(
        np.array([[0.0, 2.0], [2.0, 0.0]]),
        np.array([[1.0, 0.5], [0.5, 1.0]]),
        np.array([1.0, -1.0]),
    )
    covariance = likelihood.covariance(2.0, 0.5, 0.3, 0.4)
    near = 4 * math.exp(-2 / (2 * 0.25))
    assert covariance == pytest.approx(
        np.array([[4 + 0.16 + 0.09, near + 0.08], [near + 0.08, 4 + 0.16 + 0.09]])
    )
    # −½ rᵀ C⁻¹ r − ½ ln det C
    residuals = np.array([1.0, -1.0])
    expected = -0.5 * residuals @ np.linalg.solve(covariance, residuals)
    expected -= 0.5 * np.linalg.slogdet(covariance)[1]
    assert likelihood._log_likelihood((2.0, 0.5, 0.3, 0.4)) == pytest.approx(expected)


def test_the_likelihood_is_the_greatest_along_each_axis_of_the_grid() -> None:
    random = np.random.default_rng(3)
    at = random.uniform(0, 3, 12)
    apart = np.subtract.outer(at, at) ** 2
    likelihood = surfaces._Likelihood(apart, np.zeros((12, 12)), random.normal(0, 0.2, 12))
    best = likelihood.maximise()
    assert best[3] == 0
    grids = (surfaces._SCALES, surfaces._REACHES, surfaces._NOISES)
    for place, levels in enumerate(grids):
        for level in levels:
            trial = (*best[:place], level, *best[place + 1 :])
            assert likelihood._log_likelihood(trial) <= likelihood._log_likelihood(best) + 1e-12


def kriged() -> tuple[Surface, list[MeasuredPoint]]:
    random = np.random.default_rng(4)
    rows = [
        point(1e6 * depth**0.5 * math.exp(0.05 * random.normal()), depth=depth, wait=wait)
        for depth, wait in product((1, 2, 4, 16), ("spin", "block"))
    ]
    return fit_surface(space_of(DEPTH, WAIT), THROUGHPUT, rows), rows


def test_a_prediction_is_that_of_a_gaussian_process_about_its_form() -> None:
    """Mean k C⁻¹ r and variance s² − k C⁻¹ kᵀ, in logarithms."""
    surface, rows = kriged()
    settings: list[Candidate] = [{"depth": 8, "wait": "spin"}, {"depth": 32, "wait": "block"}]
    space, scale, reach, noise = surface.space, surface.scale, surface.reach, surface.noise
    at = space.coordinates([row.setting for row in rows])
    covariance = scale**2 * np.exp(-space.squared_distances(at, at) / (2 * reach**2))
    covariance += noise**2 * np.eye(len(rows))
    k = scale**2 * np.exp(
        -space.squared_distances(space.coordinates(settings), at) / (2 * reach**2)
    )
    mean = surface._mean([row.setting for row in rows])
    residuals = np.log([row.value for row in rows]) - mean
    assert float(np.median(residuals)) == pytest.approx(0, abs=1e-9)
    prediction = surface.predict(settings)
    expected = surface._mean(settings) + k @ np.linalg.solve(covariance, residuals)
    assert prediction.log_value == pytest.approx(expected)
    variance = scale**2 - np.sum(k * np.linalg.solve(covariance, k.T).T, axis=1)
    assert prediction.log_error == pytest.approx(np.sqrt(variance))
    with pytest.raises(InputError, match="3 measured points are too few for a model; measure 4"):
        fit_surface(surface.space, THROUGHPUT, rows[:3])


# ---- Recommendations --------------------------------------------------------------------------


def test_candidates_are_ranked_by_what_is_expected_of_them() -> None:
    surface, rows = kriged()
    ranked = rank_candidates(surface, THROUGHPUT, rows, 3)
    values = surface.predict(ranked).log_value
    assert len(ranked) == 3
    assert [*values] == sorted(values, reverse=True)
    assert ranked[0]["depth"] == 32
    ways = rank_ways(surface, THROUGHPUT, rows, ("wait",))
    assert sorted(str(way["wait"]) for way in ways) == ["block", "spin"]
    assert [way["depth"] for way in ways] == [32, 32]


def test_proposals_are_shared_evenly_among_the_best_ways() -> None:
    surface, rows = kriged()
    for ways, points in ((2, 5), (1, 4), (2, 2)):
        result = propose_improvements(
            surface, THROUGHPUT, rows, ("wait",), ways=ways, points=points
        )
        assert len(result) == points
        counts = sorted(sum(s["wait"] == w for s in result) for w in ("spin", "block"))
        assert counts == ([points // 2, points - points // 2] if ways == 2 else [0, points])
    single = propose_improvements(surface, THROUGHPUT, rows, ("wait",), ways=2, points=2)
    assert [s["depth"] for s in single] == [32, 32]


def test_picks_keep_away_from_each_other() -> None:
    space = space_of(DEPTH)
    candidates: Sequence[Candidate] = [{"depth": d} for d in (1, 2, 32)]
    picked = _pick_spread_out(space, candidates, np.array([1.0, 0.99, 0.5]), 2)
    assert [s["depth"] for s in picked] == [1, 32]
    assert len(_pick_spread_out(space, candidates, np.ones(3), 9)) == 3


def test_factors_that_seldom_decide_stay_at_their_default_among_many_candidates() -> None:
    many = [{"depth": n, "post_list": m} for n in range(1, 101) for m in (1, 4)]
    space = space_of(DEPTH, LISTS)
    assert len(_keep_at_defaults(space, many)) == 100
    assert len(_keep_at_defaults(space, many[:-2])) == 198


# ---- A run ------------------------------------------------------------------------------------


def truth(setting: Candidate) -> float:
    return 1e6 * float(cast(int, setting["depth"])) * (1.5 if setting["wait"] == "block" else 1.0)


BRIEF = replace(
    PLAN, spread=8, refine=((2, 4),), race=((4, 2), (2, 2)), profile=3, repeats=3, overhead_s=0.0
)


def run_brief(**options: Any) -> tuple[Tuning, list[tuple[str, Candidate]], list[float]]:
    calls: list[tuple[str, Candidate]] = []
    shares: list[float] = []

    def observe(setting: Candidate, stage: str) -> MeasuredPoint:
        calls.append((stage, dict(setting)))
        return MeasuredPoint(setting=setting, value=truth(setting), stage=stage)

    result = tune(
        observe,
        space_of(DEPTH, WAIT),
        THROUGHPUT,
        BRIEF,
        progress=lambda share, _: shares.append(share),
        **options,
    )
    return result, calls, shares


def test_a_run_goes_through_its_stages_and_confirms_against_the_default() -> None:
    result, calls, shares = run_brief()
    stages = [stage.partition(":")[0] for stage, _ in calls]
    assert [*dict.fromkeys(stages)] == ["spread", "refine", "profile", "race", "confirm"]
    counts = {stage: stages.count(stage) for stage in dict.fromkeys(stages)}
    assert (counts["spread"], counts["refine"]) == (8, 4)
    assert counts["race"] == 4 * 2 + 2 * 2
    assert result.recommendation.setting == {"depth": 32, "wait": "block"}
    confirmed = [row.role for row in result.confirmation]
    assert confirmed[0] == "recommended"
    assert confirmed[-1] == "default"
    assert {*confirmed[1:-1]} == {"depth 16", "wait spin"}
    assert {len(row.values) for row in result.confirmation} == {3}
    assert result.gain is not None
    assert result.gain.value == pytest.approx(48)
    assert result.measured is not None
    assert result.measured.value == pytest.approx(48e6)
    assert [row.turn for row in result.rows] == [*range(1, len(calls) + 1)]
    assert shares == pytest.approx([n / BRIEF.points for n in range(len(calls))])
    assert result.ended == ""


def test_a_run_without_time_goes_from_its_spread_to_the_confirmation() -> None:
    result, calls, _ = run_brief(budget_s=0.0)
    stages = {stage.partition(":")[0] for stage, _ in calls}
    assert stages == {"spread", "confirm"}
    assert len(result.confirmation) >= 2


def state(**fields: Any) -> _Run:
    return _Run(
        goal=THROUGHPUT,
        space=space_of(DEPTH, WAIT),
        schedule=BRIEF,
        observe=fields.pop("observe", lambda setting, _: point_at(setting)),
        progress=lambda *_: None,
        deadline=math.inf,
        **fields,
    )


def test_a_level_that_fails_beside_the_defaults_too_is_removed_with_its_rows() -> None:
    def observe(setting: Candidate, stage: str) -> MeasuredPoint:
        if setting["wait"] == "block":
            raise InputError("wait", f"cannot block in {stage}")
        return point_at(setting)

    run = state(
        observe=observe, rows=[point(1.0, depth=1, wait="spin"), point(1.0, depth=1, wait="block")]
    )
    assert run.measure({"depth": 4, "wait": "block"}, "spread") is None
    assert [f.levels for f in run.space.factors if f.name == "wait"] == [("spin",)]
    assert [row.setting["wait"] for row in run.rows] == ["spin"]
    assert run.space.refusals[0].reason == "wait: cannot block in try"
    assert run.failed == []


def test_a_setting_that_fails_alone_is_noted_and_many_end_the_run() -> None:
    def observe(setting: Candidate, stage: str) -> MeasuredPoint:
        if setting["depth"] == 32:
            raise WeftError(f"no {stage} at this depth")
        return point_at(setting)

    run = state(observe=observe, rows=[point(1.0, depth=1, wait="spin")])
    for _ in range(2):  # max(1, 0.34 · 8) = 2.72 may fail
        assert run.measure({"depth": 32, "wait": "spin"}, "spread") is None
    assert run.is_refused({"depth": 32, "wait": "spin"})
    assert not run.is_refused({"depth": 16, "wait": "spin"})
    with pytest.raises(Stopped, match="3 settings could not be measured, the last: no spread at"):
        run.measure({"depth": 32, "wait": "spin"}, "spread")
    with pytest.raises(WeftError, match="no spread at this depth"):
        state(observe=observe).measure({"depth": 32, "wait": "spin"}, "spread")


def test_time_is_left_for_points_and_the_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    run = state()
    monkeypatch.setattr("weft.tune.search.tuning.time.monotonic", lambda: 100.0)
    run.deadline = 100.0 + 5 * 0.2 + 12 * 0.2  # three repeats of four
    assert run.has_time(5)
    assert not run.has_time(6)


def test_runners_are_ranked_by_their_lower_bounds_and_those_without_rows_come_last() -> None:
    settings = [{"depth": d, "wait": "spin"} for d in (1, 2, 4)]
    rows = [point(v, depth=1, wait="spin") for v in (10.0, 10.0)]
    rows += [point(v, depth=2, wait="spin") for v in (1.0, 100.0)]
    run = state(rows=rows)
    assert run.rank_runners(settings[::-1], rows) == [settings[0], settings[1], settings[2]]
    assert run.best_median() == [{"depth": 2, "wait": "spin"}]  # 50.5 against 10
    assert run.list_measured() == settings[:2]


def test_a_role_is_judged_by_the_rounds_it_shares_with_the_recommendation() -> None:
    surface, _ = kriged()
    chosen = Recommendation(setting={"depth": 16, "wait": "block"}, surface=surface)
    roles = [*list_contenders(THROUGHPUT, chosen)]
    assert (roles[0], roles[-1], len(roles)) == ("recommended", "default", 4)
    rival = roles[1]
    rounds = [{"recommended": 8.0, rival: 4.0}, {"recommended": 32.0, rival: 2.0, "default": 1.0}]
    rows = {row.role: row for row in summarise_rounds(THROUGHPUT, chosen, rounds)}
    assert {*rows} == {"recommended", rival}  # the default was there once
    assert rows["recommended"].measured.value == pytest.approx(16)
    assert rows[rival].better.value == pytest.approx(math.sqrt(2 * 16))
    assert rows[rival].values == pytest.approx((4, 2))
    same = Recommendation(setting=surface.space.default, surface=surface)
    assert "default" not in list_contenders(THROUGHPUT, same)
    steady = mean_interval(np.log([4.0, 4.0]))
    assert (steady.value, steady.low, steady.high) == pytest.approx((4, 4, 4))
