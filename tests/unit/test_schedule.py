"""What a profile runs next, and which runs count, from the runs that have ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from weft.errors import InputError
from weft.sensitivity.application import Run
from weft.sensitivity.profiler import Plan, judge_runs, next_run, select_good_runs, time_left_s

PLAN = Plan(
    name="made-up",
    command=("true",),
    shares=(0.1, 0.25, 0.5, 1.0),
    repeat=3,
    place="nowhere",
    link_bps=1e8,
    seed=7,
)


def run(share: float, completion: float, number: int = 0, **more: float) -> Run:
    return Run(share=share, completion=completion, repetition=number, **more)  # type: ignore[arg-type]


def finish(plan: Plan, runs: list[Run], noise: Random | None = None) -> list[Run]:
    """Runs until nothing is due: 1 + 1/b seconds, 1 % of noise."""
    runs = list(runs)
    while (due := next_run(plan, runs)) is not None:
        factor = noise.gauss(1, 0.01) if noise else 1.0
        runs.append(run(due.share, (1 + 1 / due.share) * factor, due.repetition))
    return runs


def test_every_repetition_has_every_share_once_in_an_order_of_its_own() -> None:
    thirds = [PLAN.order[n : n + 4] for n in (0, 4, 8)]
    assert [sorted(third) for third in thirds] == [list(PLAN.shares)] * 3
    orders = {replace(PLAN, seed=seed).order for seed in range(20)}
    assert len(orders) == 20
    assert sum(len({order[:4], order[4:8], order[8:]}) == 3 for order in orders) > 10


def test_quiet_runs_are_not_repeated() -> None:
    runs = finish(PLAN, [], Random(1))
    assert [one.share for one in runs] == list(PLAN.order)
    assert select_good_runs(runs) == runs
    assert [one.repetition for one in runs if one.share == 0.25] == [0, 1, 2]


@pytest.mark.parametrize("ended", range(13))
def test_an_interrupted_profile_goes_on_as_if_it_had_not_been(ended: int) -> None:
    whole = finish(PLAN, [])
    assert finish(PLAN, whole[:ended]) == whole


def test_an_outlying_run_is_set_aside_and_repeated_for_a_stated_reason() -> None:
    runs = finish(PLAN, [])[:12]
    place = [n for n, one in enumerate(runs) if one.share == 0.25][1]
    runs[place] = replace(runs[place], completion=6.5)
    due = next_run(PLAN, runs)
    assert due is not None
    assert (due.share, due.repetition) == (0.25, 3)
    assert due.because == "run 2 at 25 % took 6.5 s, 30% above the median of its share"
    after = finish(PLAN, runs)
    assert len(after) == 13
    assert runs[place] not in select_good_runs(after)
    assert Counter(one.share for one in select_good_runs(after)) == dict.fromkeys(PLAN.shares, 3)


def test_of_two_runs_that_differ_the_slower_is_repeated() -> None:
    plan = replace(PLAN, repeat=2)
    runs = [run(b, 1 + 1 / b) for b in plan.order]
    runs[-1] = replace(runs[-1], completion=1.2 * runs[-1].completion)
    due = next_run(plan, runs)
    assert due is not None
    assert due.share == runs[-1].share
    assert [one.reason != "" for one in judge_runs(runs)] == [False] * 7 + [True]


def test_a_share_whose_runs_scatter_by_nature_is_not_repeated_for_ever() -> None:
    random = Random(3)
    runs: list[Run] = []
    while (due := next_run(PLAN, runs)) is not None:
        runs.append(run(due.share, (1 + 1 / due.share) * random.uniform(0.5, 2), due.repetition))
    counts = Counter(one.share for one in runs)
    assert max(counts.values()) <= 6
    assert {one.share for one in select_good_runs(runs)} == set(PLAN.shares)


def test_a_run_that_waited_for_processors_is_contended_and_one_that_always_waits_is_not() -> None:
    runs = [run(b, 1 + 1 / b, n, cpu_s=2.0, run_delay_s=1.0) for n, b in enumerate(PLAN.order)]
    assert not any(one.reason for one in judge_runs(runs))
    runs[4] = replace(runs[4], run_delay_s=1.1 + 0.06 * runs[4].completion)
    reasons = [one.reason for one in judge_runs(runs) if one.reason]
    assert len(reasons) == 1
    assert "longer for a processor than is usual" in reasons[0]
    due = next_run(PLAN, runs)
    assert due is not None
    assert due.because == reasons[0]


def test_a_neighbour_that_is_there_half_of_the_time_does_not_become_usual() -> None:
    runs = [
        run(b, (1 + 1 / b) * (1.05 if n % 2 else 1), n, cpu_s=1.0, run_delay_s=0.8 * (n % 2))
        for n, b in enumerate(PLAN.order)
    ]
    result = judge_runs(runs)
    wanted = [n % 2 == 1 and 0.05 * one.run.completion < 0.8 for n, one in enumerate(result)]
    assert [one.reason != "" for one in result] == wanted


def test_waiting_that_every_run_of_a_share_has_is_the_commands_own() -> None:
    """As of processes that wait for each other while a slow link feeds them."""
    runs: list[Run] = []
    while (due := next_run(PLAN, runs)) is not None:
        delay = 2.0 if due.share == 0.1 else 0.0
        runs.append(run(due.share, 1 + 1 / due.share, due.repetition, cpu_s=1, run_delay_s=delay))
    assert len(runs) == 12
    runs[PLAN.order.index(0.1)] = run(0.1, 11.0, cpu_s=1, run_delay_s=3.0)
    assert [one.run.share for one in judge_runs(runs) if one.reason] == [0.1]


def test_where_no_run_of_a_share_is_good_all_count() -> None:
    others = [run(b, 1 + 1 / b, cpu_s=1, run_delay_s=0) for b in PLAN.order if b != 0.1]
    taken = [run(0.1, 11.0, cpu_s=1, run_delay_s=2.0), run(0.1, 11.1, cpu_s=1, run_delay_s=2.0)]
    taken.append(run(0.1, 20.0, cpu_s=1, run_delay_s=0))
    result = judge_runs([*others, *taken])
    assert all(one.reason for one in result[-3:])
    assert len(select_good_runs([*others, *taken])) == len(result)


def test_the_one_run_of_a_share_that_nobody_disturbed_counts_though_most_were_slower() -> None:
    others = [run(b, 1 + 1 / b, cpu_s=1, run_delay_s=0) for b in PLAN.order if b != 0.1]
    taken = [run(0.1, 20.0, cpu_s=1, run_delay_s=8.0), run(0.1, 20.0, cpu_s=1, run_delay_s=8.0)]
    quiet = run(0.1, 11.0, cpu_s=1, run_delay_s=0)
    result = judge_runs([*others, *taken, quiet])
    assert [one.reason != "" for one in result[-3:]] == [True, True, False]
    assert select_good_runs([*others, *taken, quiet]) == [*others, quiet]
    # A second one that nobody disturbed is held against the first, not against the disturbed.
    slower = replace(quiet, completion=13.0)
    assert judge_runs([*others, *taken, quiet, slower])[-1].reason.endswith(
        "took 13 s, 18% above the median of its share"
    )


def test_time_left_is_that_of_the_runs_seen_and_a_guess_for_the_others() -> None:
    assert time_left_s(PLAN, [], lambda b: 1 / b) == pytest.approx(3 * (10 + 4 + 2 + 1))
    runs = finish(PLAN, [])
    assert time_left_s(PLAN, runs, lambda b: 1 / b) == 0
    rest = sum(1 + 1 / b for b in PLAN.order[8:])
    assert time_left_s(PLAN, runs[:8], lambda _: 1e9) == pytest.approx(rest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"repeat": 0}, r"--repeat: 0 is not in 1 to 100"),
        ({"repeat": 101}, r"--repeat: 101 is not in 1 to 100"),
        ({"shares": (0.1, 0.5)}, r"--percent: no 100"),
        ({"shares": (1.0,)}, r"--percent: nothing but 100"),
        ({"name": "../x"}, r"cannot be the name of an application"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(PLAN, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("repeat", [1, 100])
def test_a_plan_may_have_its_least_and_most_repetitions(repeat: int) -> None:
    assert len(replace(PLAN, repeat=repeat).order) == repeat * len(PLAN.shares)
