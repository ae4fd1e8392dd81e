"""Co-running with an invented troupe: who runs when, what counts, weights, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy.stats import t as student

from weft.cli import main
from weft.control.corun.outcome import mean_of, outcome_of, outcome_text
from weft.control.corun.rounds import Plan, Round, check_same, left_of, record_of
from weft.control.corun.together import together
from weft.control.corun.ways import (
    ALONE,
    EQUAL,
    LEND,
    MANAGED,
    ONE,
    WAYS,
    WEFT,
    mark,
    queues_of,
    ways_of,
)
from weft.control.policy.lending import (
    Lending,
    lent_slowdowns,
    volume,
    weights_with_lending,
)
from weft.errors import InputError
from weft.records import Record
from weft.sensitivity.application import application_of
from weft.sensitivity.model import Hinges
from weft.sensitivity.profile import Profile, Run
from weft.sensitivity.table import AppTable

SENDS = Hinges(terms=((1.0, 1.0),), floor=0.05)  # nothing but sending
WAITS = Hinges(terms=((1.0, 0.4),), floor=0.05)  # sends two fifths of its time
HIDES = Hinges(terms=((0.25, 1.0),), floor=0.05)  # computes meanwhile, down to a quarter
PLAN = Plan(names=("a", "b"), place="nowhere", repeat=3, runs=2, seed=5)


class Invented:
    """Runs that take fixed times on a clock of their own."""

    def __init__(self, takes_s: Sequence[float]) -> None:
        self.takes_s = takes_s
        self.now_s = 0.0
        self.ends: dict[int, float] = {}
        self.started: list[tuple[float, int]] = []
        self.stopped = False

    def start(self, number: int) -> None:
        assert number not in self.ends
        self.started.append((self.now_s, number))
        self.ends[number] = self.now_s + self.takes_s[number]

    def next_end(self, limit_s: float) -> tuple[int, float] | None:
        number = min(self.ends, key=lambda n: (self.ends[n], n))
        if self.ends[number] - self.now_s > limit_s:
            return None
        self.now_s = self.ends.pop(number)
        return number, self.takes_s[number]

    def stop(self) -> None:
        self.stopped = True
        self.ends.clear()


# ---- Running together -------------------------------------------------------------------------


def test_each_runs_again_until_all_have_ended_often_enough() -> None:
    troupe = Invented([3.0, 10.0])
    assert together(troupe, (0, 1), 2, 60) == {0: [3.0] * 6, 1: [10.0] * 2}
    assert troupe.stopped
    # The short one starts a seventh time, beside the long one's end; that run does not count.
    assert troupe.started == [
        (0, 0), (0, 1), (3, 0), (6, 0), (9, 0), (10, 1), (12, 0), (15, 0), (18, 0),
    ]  # fmt: skip


def test_one_that_does_not_end_is_an_error_and_all_are_stopped() -> None:
    troupe = Invented([100.0, 200.0])
    with pytest.raises(InputError, match="no run ended within 60 s"):
        together(troupe, (0, 1), 1, 60)
    assert troupe.stopped


def test_an_interrupt_stops_all() -> None:
    class Interrupted(Invented):
        def next_end(self, limit_s: float) -> tuple[int, float] | None:
            raise KeyboardInterrupt(limit_s)

    troupe = Interrupted([1.0, 2.0])
    with pytest.raises(KeyboardInterrupt):
        together(troupe, (0, 1), 1, 60)
    assert troupe.stopped


# ---- Ways and predictions ---------------------------------------------------------------------


def test_every_way_fills_the_managed_share_and_weft_favours_the_one_that_waits() -> None:
    ways = ways_of([SENDS, HIDES], 200e6)
    assert tuple(ways) == WAYS
    assert sum(ways[WEFT].weights) == pytest.approx(MANAGED)
    assert ways[EQUAL].weights == (MANAGED / 2,) * 2
    assert ways[WEFT].weights[1] == pytest.approx(0.25, abs=0.001)
    assert ways[WEFT].promised == pytest.approx((1 / (MANAGED - 0.25), 1.0), rel=1e-3)


def test_queues_of_a_way_take_every_mark_and_what_bears_none() -> None:
    ways = ways_of([SENDS, HIDES], 200e6)
    assert [queue.dscps for queue in queues_of(ways[ONE])] == [(0,)]
    queues = queues_of(ways[WEFT])
    assert [queue.dscps for queue in queues] == [(0,), (mark(0),), (mark(1),)]
    assert sum(queue.weight for queue in queues) == pytest.approx(1)


def test_one_that_always_sends_gets_what_the_other_leaves() -> None:
    """Closed form: the other, at its weight, uses V / D of the link."""
    other = 1 + 0.4 * (1 / 0.5 - 1)
    found = lent_slowdowns([SENDS, WAITS], [0.5, 0.5])
    assert found == pytest.approx([1 / (1 - 0.4 / other), other], rel=1e-5)


def test_lending_agrees_with_a_fluid_simulation_of_sender_and_alternator() -> None:
    """0.6 s of computing, then 0.4 link-seconds to send, beside one that always sends."""
    weight, step_s, now_s, ended, sent_by_other = 0.3, 1e-4, 0.0, 0, 0.0
    computing_s, sending = 0.6, 0.4
    while ended < 50:
        if computing_s > 0:
            computing_s -= step_s
            sent_by_other += step_s
        else:
            sending -= weight * step_s
            sent_by_other += (1 - weight) * step_s
            if sending <= 0:
                computing_s, sending, ended = 0.6, 0.4, ended + 1
        now_s += step_s
    found = lent_slowdowns([SENDS, WAITS], [1 - weight, weight])
    assert found[1] == pytest.approx(now_s / 50, rel=0.01)
    assert found[0] == pytest.approx(now_s / sent_by_other, rel=0.01)


def test_one_that_hides_is_not_helped_by_what_is_left_at_another_time() -> None:
    """Beside one that always sends it has its weight and no more."""
    found = lent_slowdowns([SENDS, HIDES], [0.9, 0.1])
    assert found[1] == pytest.approx(float(HIDES.slowdown(0.1)), rel=1e-5)
    found = lent_slowdowns([WAITS, HIDES], [0.9, 0.1])
    assert 1.2 < found[1] < float(HIDES.slowdown(0.1))


def test_lending_never_makes_anyone_slower_than_its_weight_does() -> None:
    random = np.random.default_rng(3)
    for _ in range(100):
        count = int(random.integers(1, 6))
        models = [
            Hinges(terms=((float(random.uniform(0.05, 1)), float(random.uniform(0, 1.5))),),
                   floor=0.01)
            for _ in range(count)
        ]  # fmt: skip
        weights = (random.dirichlet(np.ones(count)) * 0.9 + 0.1 / count).tolist()
        found = lent_slowdowns(models, weights)
        promised = [float(m.slowdown(w)) for m, w in zip(models, weights, strict=True)]
        assert (found <= np.array(promised) + 1e-6).all()
        assert (found >= 1 - 1e-9).all()
    assert lent_slowdowns([SENDS], [0.5])[0] == pytest.approx(1.0)


def test_volume_is_the_time_the_link_is_busy_alone() -> None:
    assert volume(SENDS) == 1
    assert volume(WAITS) == pytest.approx(0.4)
    assert volume(HIDES) == pytest.approx(0.25)


def test_weights_with_lending_are_as_good_as_a_search_of_all() -> None:
    for models in ([SENDS, WAITS], [WAITS, HIDES], [SENDS, HIDES], [SENDS, SENDS]):
        found = weights_with_lending(models)
        assert found.sum() == pytest.approx(1)
        total = Lending(models).total
        every = [total(np.array([w, 1 - w])) for w in np.arange(0.05, 0.951, 0.01)]
        assert total(found) <= 1.01 * min(every)


def test_weights_with_lending_keep_a_floor_above_equal_weights() -> None:
    """0.6 of the link is the least that one was profiled at: two others share the rest."""
    wide = Hinges(terms=((1.0, 0.4),), floor=0.6)
    found = weights_with_lending([wide, SENDS, WAITS])
    assert found.sum() == pytest.approx(1)
    assert found[0] >= 0.6 - 1e-9
    assert (found[1:] >= 0.05 - 1e-9).all()
    full = [Hinges(terms=((1.0, 0.4),), floor=floor) for floor in (0.6, 0.39)]
    assert weights_with_lending(full, MANAGED) == pytest.approx([0.6, 0.39])
    assert tuple(ways_of(full, 200e6)) == WAYS


def test_floors_that_exceed_the_capacity_are_refused_with_both_numbers() -> None:
    wide = Hinges(terms=((1.0, 0.4),), floor=0.6)
    with pytest.raises(InputError, match=r"2 applications sum to 1\.2, the capacity is 1;"):
        weights_with_lending([wide, wide])


@pytest.mark.parametrize("weights", [[0.5], [0.5, -0.1], [0.6, 0.6]])
def test_weights_that_cannot_be_are_refused(weights: list[float]) -> None:
    with pytest.raises(InputError, match="weights"):
        lent_slowdowns([SENDS, WAITS], weights)


# ---- Rounds -----------------------------------------------------------------------------------


def test_every_repetition_has_each_alone_and_every_way_in_an_order_of_its_own() -> None:
    rounds = PLAN.rounds
    assert len(rounds) == 3 * 6
    wanted = {(ALONE, (0,)), (ALONE, (1,)), *((way, (0, 1)) for way in WAYS)}
    for repetition in range(3):
        found = [(r.way, r.numbers) for r in rounds if r.repetition == repetition]
        assert set(found) == wanted
    assert PLAN.rounds == rounds
    assert replace(PLAN, seed=6).rounds != rounds


def test_what_has_a_record_is_not_run_again_and_others_records_are_refused() -> None:
    ways = ways_of([SENDS, HIDES], 200e6)
    records = [measured(ways, one, (1.0, 1.0)) for one in PLAN.rounds[:4]]
    assert left_of(PLAN, records) == list(PLAN.rounds[4:])
    check_same("x", PLAN, records)
    with pytest.raises(InputError, match="has records with applications 'a b', not 'a c'"):
        check_same("x", replace(PLAN, names=("a", "c")), records)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"names": ("a",)}, "1 application"),
        ({"names": ("a", "a")}, "'a' is named twice"),
        ({"repeat": 0}, "--repeat: 0 is not in 1 to 100"),
        ({"runs": 101}, "--runs: 101 is not in 1 to 100"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        replace(PLAN, **changes)  # type: ignore[arg-type]


def measured(ways: dict[str, object], one: Round, slower: Sequence[float]) -> Record:
    taken = {n: [2.0 * slower[n], 2.2 * slower[n]] for n in one.numbers}
    return record_of(PLAN, one, ways.get(one.way), taken, 0.5)  # type: ignore[arg-type]


# ---- Outcome ----------------------------------------------------------------------------------


def test_outcome_is_slowdown_against_alone_with_students_interval() -> None:
    ways = ways_of([SENDS, HIDES], 200e6)
    noise = {0: 0.98, 1: 1.0, 2: 1.02}
    by_way = {ALONE: (1.0, 1.0), ONE: (2.0, 1.6), EQUAL: (1.8, 1.2), WEFT: (1.4, 1.2)}
    by_way[LEND] = by_way[EQUAL]
    records = [
        measured(ways, one, [slow * (noise[one.repetition] if one.way != ALONE else 1)
                             for slow in by_way[one.way]])
        for one in PLAN.rounds
    ]  # fmt: skip
    found = outcome_of(PLAN.names, ways, records)
    assert found is not None
    assert found.slowdown[WEFT]["a"].value == pytest.approx(1.4)
    values = [1.4 * n for n in noise.values()]
    half = student.ppf(0.975, 2) * stdev(values) / 3**0.5
    assert found.slowdown[WEFT]["a"].half == pytest.approx(half)
    assert found.overall[EQUAL].value == pytest.approx(1.5)
    assert found.gains[WEFT, EQUAL].value == pytest.approx(0.2 / 1.5)
    assert found.gains[WEFT, EQUAL].half < 0.02
    text = outcome_text(found, ways)
    assert "weft over equal queues: gain in mean slowdown +13.3% ± " in text
    assert "weft, lending over equal queues: gain in mean slowdown +0.0% ± 0.0, within" in text


def test_half_a_measurement_gives_half_an_outcome() -> None:
    ways = ways_of([SENDS, HIDES], 200e6)
    assert outcome_of(PLAN.names, ways, []) is None
    alone = [one for one in PLAN.rounds if one.way == ALONE]
    found = outcome_of(PLAN.names, ways, [measured(ways, one, (1.0, 1.0)) for one in alone])
    assert found is not None
    assert found.overall == {}
    assert found.gains == {}
    assert "alone, s" in outcome_text(found, ways)


def test_one_repetition_has_no_interval() -> None:
    assert mean_of([2.0]).half == inf
    assert str(mean_of([2.0])) == "2.00"
    assert mean_of([1.0, 3.0]).value == fmean([1.0, 3.0])


# ---- Command line -----------------------------------------------------------------------------


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = AppTable(tmp_path / "table")
    for name, command in (("known", ("true",)), ("published", ())):
        runs = tuple(Run(share=b, completion=1 / b) for b in (0.1, 0.5, 1.0))
        profile = Profile(name=name, runs=runs, command=command, link_bps=200e6)
        table.save(application_of(profile))
    at = ["--table", str(tmp_path / "table"), "--testbed", "nowhere"]
    cases = {
        ("known",): "corun: 1 application; name two or more",
        ("known", "known"): "corun: 'known' is named twice; name each once",
        ("known", "other"): f"{table.directory}: no application 'other'",
        ("known", "published"): "application published: its command is not known",
        ("known", "published", "--repeat", "x"): "--repeat x: is not a number",
        ("known", "published", "--timeout", "-1"): "--timeout -1: is not a time",
    }
    for words, told in cases.items():
        assert main(["corun", *at, *words]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"weft: {told}"), said
        assert said.count("\n") == 1
