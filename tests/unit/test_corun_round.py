"""Co-running with an invented troupe: who runs when, what counts, weights, predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy.stats import t as student

from weft.cli import main
from weft.control.policy.lending import (
    LendingPort,
    choose_weights,
    estimate_volume,
    model_volume,
    predict_slowdowns,
)
from weft.corun.rounds import (
    ALONE,
    EQUAL,
    LEND,
    MANAGED,
    ONE,
    PROFILES,
    SCHEMES,
    WEFT,
    Plan,
    Round,
    Scheme,
    application_dscp,
    build_identity,
    build_queues,
    build_record,
    build_schemes,
    check_resumable,
    compute_outcome,
    estimate_mean,
    format_outcome,
    list_remaining,
    read_schemes,
)
from weft.corun.run_rounds import run_together
from weft.errors import InputError
from weft.records import Record
from weft.sensitivity.application import Profile, Run, fit_application
from weft.sensitivity.application_table import AppTable
from weft.sensitivity.model import Hinges

SENDS = Hinges(terms=((1.0, 1.0),), floor=0.05)  # nothing but sending
WAITS = Hinges(terms=((1.0, 0.4),), floor=0.05)  # sends two fifths of its time
HIDES = Hinges(terms=((0.25, 1.0),), floor=0.05)  # computes meanwhile, down to a quarter
PLAN = Plan(names=("a", "b"), repeat=3, runs=2, seed=5)
AT_ONCE = {0: 0.0, 1: 0.0}


class Invented:
    """Runs that take given times on a clock of their times_s; the last one again and again."""

    def __init__(self, *takes_s: Sequence[float]) -> None:
        self.takes_s = [list(times_s) for times_s in takes_s]
        self.clock_s = 0.0
        self.running: dict[int, tuple[float, float]] = {}  # when it ends, what it takes
        self.started: list[tuple[float, int]] = []
        self.stopped = False
        self.waits = 0

    def name(self, number: int) -> str:
        return "ab"[number]

    def now_s(self) -> float:
        return self.clock_s

    def start(self, number: int) -> None:
        assert number not in self.running
        self.started.append((self.clock_s, number))
        times_s = self.takes_s[number]
        takes_s = times_s.pop(0) if len(times_s) > 1 else times_s[0]
        self.running[number] = self.clock_s + takes_s, takes_s

    def next_end(self, wait_s: float) -> tuple[int, float] | None:
        self.waits += 1
        assert self.waits < 10_000, "it goes on for ever"
        end_s, number = min(
            ((end_s, n) for n, (end_s, _) in self.running.items()), default=(inf, -1)
        )
        if end_s > self.clock_s + wait_s:
            self.clock_s += wait_s
            return None
        self.clock_s = end_s
        return number, self.running.pop(number)[1]

    def stop(self) -> None:
        self.stopped = True
        self.running.clear()


# ---- Running together -------------------------------------------------------------------------


def test_each_runs_again_until_all_have_ended_often_enough() -> None:
    troupe = Invented([3.0], [10.0])
    # The short one's first run began before the other's; the last one, from 18 to 21, counts.
    assert run_together(troupe, AT_ONCE, 2, 60) == {0: [3.0] * 6, 1: [10.0] * 2}
    assert troupe.stopped
    assert troupe.started == [
        (0, 0),
        (0, 1),
        (3, 0),
        (6, 0),
        (9, 0),
        (10, 1),
        (12, 0),
        (15, 0),
        (18, 0),
        (20, 1),
    ]


def test_a_slow_run_counts_though_all_others_have_ended_often_enough() -> None:
    troupe = Invented([3.0, 3.0, 12.0, 1.0], [10.0])
    assert run_together(troupe, AT_ONCE, 1, 60) == {0: [3.0, 12.0], 1: [10.0]}
    assert (10, 1) in troupe.started  # goes on beside it
    assert troupe.clock_s == 18


def test_runs_count_from_when_all_have_begun() -> None:
    troupe = Invented([3.0], [10.0])
    assert run_together(troupe, {0: 0.0, 1: 4.0}, 1, 60) == {0: [3.0] * 3, 1: [10.0]}
    assert troupe.started[:3] == [(0, 0), (3, 0), (4, 1)]
    assert troupe.clock_s == 15


def test_the_mean_of_what_counts_is_that_of_all_runs() -> None:
    """The longer a run, the likelier it is the one that runs when the others have ended."""
    random = np.random.default_rng(2)
    taken_s: list[float] = []
    for _ in range(2000):
        troupe = Invented(random.choice([1.0, 9.0], 60), [20.0])
        taken_s += run_together(troupe, {0: random.uniform(0, 5), 1: 0.0}, 1, 60)[0]
    assert fmean(taken_s) == pytest.approx(5, abs=0.15)


@pytest.mark.parametrize("takes_s", [(100.0, 200.0), (3.0, inf)])
def test_one_that_does_not_end_is_an_error_and_all_are_stopped(takes_s: tuple[float, ...]) -> None:
    troupe = Invented(*([takes] for takes in takes_s))
    with pytest.raises(InputError, match=r"application .: a run did not end within 60 s"):
        run_together(troupe, AT_ONCE, 1, 60)
    assert troupe.stopped
    assert troupe.clock_s == 60


def test_all_begin_at_random_within_what_they_take_alone_the_first_at_once() -> None:
    several = [
        PLAN.delays_s(round_, (4.0, 10.0)) for round_ in PLAN.rounds if round_.scheme != ALONE
    ]
    assert all(min(delays.values()) == 0 for delays in several)
    assert all(delays[0] <= 4 and delays[1] <= 10 for delays in several)
    assert len({*map(str, several)}) == len(several)
    assert several == [
        PLAN.delays_s(round_, (4.0, 10.0)) for round_ in PLAN.rounds if round_.scheme != ALONE
    ]
    alone = [PLAN.delays_s(round_, (4.0, 10.0)) for round_ in PLAN.rounds if round_.scheme == ALONE]
    assert all([*delays.values()] == [0.0] for delays in alone)


def test_an_interrupt_stops_all() -> None:
    class Interrupted(Invented):
        def next_end(self, wait_s: float) -> tuple[int, float] | None:
            raise KeyboardInterrupt(wait_s)

    troupe = Interrupted([1.0], [2.0])
    with pytest.raises(KeyboardInterrupt):
        run_together(troupe, AT_ONCE, 1, 60)
    assert troupe.stopped


# ---- Ways and predictions ---------------------------------------------------------------------


def test_every_way_fills_the_managed_share_and_weft_favours_the_one_that_waits() -> None:
    schemes = build_schemes([SENDS, HIDES], 200e6)
    assert tuple(schemes) == SCHEMES
    assert sum(schemes[WEFT].weights) == pytest.approx(MANAGED)
    assert schemes[EQUAL].weights == (MANAGED / 2,) * 2
    assert schemes[WEFT].weights[1] == pytest.approx(0.25, abs=0.001)
    assert schemes[WEFT].promised == pytest.approx((1 / (MANAGED - 0.25), 1.0), rel=1e-3)


def test_queues_of_a_way_take_every_mark_and_what_bears_none() -> None:
    schemes = build_schemes([SENDS, HIDES], 200e6)
    assert [queue.dscps for queue in build_queues(schemes[ONE])] == [(0,)]
    queues = build_queues(schemes[WEFT])
    assert [queue.dscps for queue in queues] == [
        (0,),
        (application_dscp(0),),
        (application_dscp(1),),
    ]
    assert [queue.weight for queue in queues] == pytest.approx(
        [1 - MANAGED, *schemes[WEFT].weights]
    )
    assert schemes[WEFT].weights[0] > 2 * schemes[WEFT].weights[1]


def test_one_that_always_sends_gets_what_the_other_leaves() -> None:
    """Closed form: the other, at its weight, uses V / D of the link."""
    other = 1 + 0.4 * (1 / 0.5 - 1)
    slowdowns = predict_slowdowns([SENDS, WAITS], [0.5, 0.5])
    assert slowdowns == pytest.approx([1 / (1 - 0.4 / other), other], rel=1e-5)


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
    slowdowns = predict_slowdowns([SENDS, WAITS], [1 - weight, weight])
    assert slowdowns[1] == pytest.approx(now_s / 50, rel=0.01)
    assert slowdowns[0] == pytest.approx(now_s / sent_by_other, rel=0.01)


def test_one_that_hides_is_not_helped_by_what_is_left_at_another_time() -> None:
    """Beside one that always sends it has its weight and no more."""
    slowdowns = predict_slowdowns([SENDS, HIDES], [0.9, 0.1])
    assert slowdowns[1] == pytest.approx(float(HIDES.slowdown(0.1)), rel=1e-5)
    slowdowns = predict_slowdowns([WAITS, HIDES], [0.9, 0.1])
    assert 1.2 < slowdowns[1] < float(HIDES.slowdown(0.1))


def test_lending_never_makes_anyone_slower_than_its_weight_does() -> None:
    random = np.random.default_rng(3)
    for _ in range(100):
        count = int(random.integers(1, 6))
        models = [
            Hinges(
                terms=((float(random.uniform(0.05, 1)), float(random.uniform(0, 1.5))),), floor=0.01
            )
            for _ in range(count)
        ]
        weights = (random.dirichlet(np.ones(count)) * 0.9 + 0.1 / count).tolist()
        slowdowns = predict_slowdowns(models, weights)
        promised = [float(m.slowdown(w)) for m, w in zip(models, weights, strict=True)]
        assert (slowdowns <= np.array(promised) + 1e-6).all()
        assert (slowdowns >= 1 - 1e-9).all()
    assert predict_slowdowns([SENDS], [0.5])[0] == pytest.approx(1.0)


def test_volume_is_the_time_the_link_is_busy_alone() -> None:
    assert model_volume(SENDS) == 1
    assert model_volume(WAITS) == pytest.approx(0.4)
    assert model_volume(HIDES) == pytest.approx(0.25)


def moved(both: float, model: Hinges = WAITS, sent: float | None = None) -> float:
    """The volume of an application whose host moved so many times what the link takes in a run."""
    whole = 1e6 / 8
    runs = tuple(
        Run(
            share=b,
            completion=float(model.slowdown(b)),
            bytes=round(both * whole),
            sent_bytes=None if sent is None else round(sent * whole),
        )
        for b in (0.05, 0.1, 0.25, 0.5, 1.0)
    )
    return estimate_volume(fit_application(Profile(name="x", runs=runs, link_bps=1e6)))


def test_volume_is_that_of_the_bytes_whether_they_went_one_way_or_both() -> None:
    assert moved(0.38) == pytest.approx(0.38)
    assert moved(0.9) == pytest.approx(0.45)
    assert moved(0.01) == pytest.approx(0.4, rel=0.01)  # between other hosts
    assert moved(0.3, Hinges(terms=(), floor=0.05)) == pytest.approx(0, abs=1e-6)
    assert moved(1.01, SENDS) == 1


def test_volume_is_that_of_the_busier_direction_where_they_were_counted_apart() -> None:
    """By the sum of 0.8 both directions would have had 0.4 each, as the model says."""
    assert moved(0.8) == pytest.approx(0.4)
    assert moved(0.8, sent=0.3) == pytest.approx(0.5)
    assert moved(0.8, sent=0.5) == pytest.approx(0.5)
    assert moved(0.4, sent=0.39) == pytest.approx(0.39)
    assert moved(1.4, sent=0.7) == pytest.approx(0.4, rel=0.01)  # too far from the model


def test_who_sends_less_than_its_model_says_leaves_more() -> None:
    more, less = (
        predict_slowdowns([SENDS, WAITS], [0.5, 0.5], 1.0, volumes) for volumes in ((), (1.0, 0.2))
    )
    assert less[0] == pytest.approx(1 / (1 - 0.2 / 1.4), rel=1e-5)
    assert less[0] < more[0]
    assert less[1] == pytest.approx(more[1])


@pytest.mark.parametrize("volumes", [[0.5], [0.5, 1.1], [-0.1, 0.5]])
def test_volumes_that_cannot_be_are_refused(volumes: list[float]) -> None:
    with pytest.raises(InputError, match="volumes"):
        predict_slowdowns([SENDS, WAITS], [0.5, 0.5], 1.0, volumes)


def test_weights_with_lending_are_as_good_as_a_search_of_all() -> None:
    for models in ([SENDS, WAITS], [WAITS, HIDES], [SENDS, HIDES], [SENDS, SENDS]):
        weights = choose_weights(models)
        assert weights.sum() == pytest.approx(1)
        totals = LendingPort(models).totals
        every = np.array([[w, 1 - w] for w in np.arange(0.05, 0.951, 0.01)])
        assert totals(weights) <= 1.01 * totals(every).min()


def test_weights_with_lending_keep_a_floor_above_equal_weights() -> None:
    """0.6 of the link is the least that one was profiled at: two others share the rest."""
    wide = Hinges(terms=((1.0, 0.4),), floor=0.6)
    weights = choose_weights([wide, SENDS, WAITS])
    assert weights.sum() == pytest.approx(1)
    assert weights[0] >= 0.6 - 1e-9
    assert (weights[1:] >= 0.05 - 1e-9).all()
    full = [Hinges(terms=((1.0, 0.4),), floor=floor) for floor in (0.6, 0.39)]
    assert choose_weights(full, MANAGED) == pytest.approx([0.6, 0.39])
    assert tuple(build_schemes(full, 200e6)) == SCHEMES


def test_floors_that_exceed_the_capacity_are_refused_with_both_numbers() -> None:
    wide = Hinges(terms=((1.0, 0.4),), floor=0.6)
    with pytest.raises(
        InputError, match="2 applications take 1200000 units, the capacity is 1000000;"
    ):
        choose_weights([wide, wide])


@pytest.mark.parametrize("weights", [[0.5], [0.5, -0.1], [0.6, 0.6]])
def test_weights_that_cannot_be_are_refused(weights: list[float]) -> None:
    with pytest.raises(InputError, match="weights"):
        predict_slowdowns([SENDS, WAITS], weights)


# ---- Rounds -----------------------------------------------------------------------------------


def test_every_repetition_has_each_alone_and_every_way_in_an_order_of_its_own() -> None:
    rounds = PLAN.rounds
    assert len(rounds) == 3 * 6
    wanted = {(ALONE, (0,)), (ALONE, (1,)), *((scheme, (0, 1)) for scheme in SCHEMES)}
    for repetition in range(3):
        rounds_run = [(r.scheme, r.numbers) for r in rounds if r.repetition == repetition]
        assert set(rounds_run) == wanted
    assert PLAN.rounds == rounds
    assert replace(PLAN, seed=6).rounds != rounds


def test_what_has_a_record_is_not_run_again_and_others_records_are_refused() -> None:
    schemes = build_schemes([SENDS, HIDES], 200e6)
    records = [measured(schemes, round_, (1.0, 1.0)) for round_ in PLAN.rounds[:4]]
    assert list_remaining(PLAN, records) == list(PLAN.rounds[4:])
    check_resumable("x", PLAN, schemes, records)
    with pytest.raises(InputError, match="has records with applications 'a b', not 'a c'"):
        check_resumable("x", replace(PLAN, names=("a", "c")), schemes, records)


def planned(place: str = "here", directory: str = "/", **commands: str) -> Plan:
    """Of a and b, whose commands are their names unless told otherwise."""
    runs = tuple(Run(share=b, completion=1 / b) for b in (0.1, 0.5, 1.0))
    applications = [
        fit_application(Profile(name=name, runs=runs, command=(commands.get(name, name),)))
        for name in PLAN.names
    ]
    return replace(PLAN, identity=build_identity(applications, place, directory))


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (planned(place="there"), "with place 'here', not 'there'"),
        (planned(directory="/tmp"), "with directory '/', not '/tmp'"),
        (planned(b="c"), "of another command of b"),
        (replace(planned(), runs=3), "with runs 2, not 3"),
    ],
)
def test_a_series_goes_on_only_with_what_it_was_of(changed: Plan, problem: str) -> None:
    plan = planned()
    records = [
        build_record(plan, round_, None, {0: [1.0], 1: [1.0]}, 0.5) for round_ in plan.rounds[:4]
    ]
    check_resumable("x", planned(), {ONE: Scheme(name=ONE)}, records)
    assert list_remaining(planned(), records) == list(plan.rounds[4:])
    with pytest.raises(InputError, match=f"x: has records {problem}; give another file"):
        check_resumable("x", changed, {ONE: Scheme(name=ONE)}, records)


def test_a_series_does_not_go_on_after_another_profile_of_the_same_command() -> None:
    plan = planned()
    again = {**plan.identity, PROFILES: "0 " + plan.identity[PROFILES].split()[1]}
    records = [
        build_record(plan, round_, None, {0: [1.0], 1: [1.0]}, 0.5) for round_ in plan.rounds[:1]
    ]
    with pytest.raises(InputError, match="x: has records of another profile of a;"):
        check_resumable("x", replace(plan, identity=again), {ONE: Scheme(name=ONE)}, records)


def test_records_that_do_not_say_what_they_are_of_are_refused() -> None:
    """As those of weft before it kept that."""
    old = replace(PLAN, identity={"place": "here"})
    records = [
        build_record(old, round_, None, {0: [1.0], 1: [1.0]}, 0.5) for round_ in old.rounds[:1]
    ]
    with pytest.raises(InputError, match="x: has records without their directory; give"):
        check_resumable("x", planned(), {ONE: Scheme(name=ONE)}, records)


def test_records_of_other_weights_or_predictions_are_refused() -> None:
    schemes = build_schemes([SENDS, HIDES], 200e6)
    records = [measured(schemes, round_, (1.0, 1.0)) for round_ in PLAN.rounds]
    assert read_schemes("x", records) == schemes
    changed = build_schemes([SENDS, WAITS], 200e6)
    for scheme in (EQUAL, WEFT, LEND):
        some = [record for record in records if record.settings["way"] in (ALONE, ONE, scheme)]
        with pytest.raises(InputError, match=f"x: has records of .{scheme}. with other weights"):
            check_resumable("x", PLAN, changed, some)
    others = [
        measured(changed, round_, (1.0, 1.0)) for round_ in PLAN.rounds if round_.scheme == WEFT
    ]
    with pytest.raises(InputError, match="with different weights"):
        read_schemes("x", [*records, *others])


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"names": ("a",)}, "1 application"),
        ({"names": ("a", "a")}, "'a' is named twice"),
        ({"repeat": 0}, "--repeat: 0 is not in 1 to 100"),
        ({"runs": 101}, "--runs: 101 is not in 1 to 100"),
    ],
)
def test_a_measurement_that_cannot_be_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        replace(PLAN, **changes)  # type: ignore[arg-type]


def measured(
    schemes: Mapping[str, Scheme],
    round_: Round,
    slower: Sequence[float],
    unmarked: float | None = None,
) -> Record:
    taken = {n: [2.0 * slower[n], 2.2 * slower[n]] for n in round_.numbers}
    return build_record(PLAN, round_, schemes.get(round_.scheme), taken, 0.5, unmarked)


# ---- Outcome ----------------------------------------------------------------------------------


def test_outcome_is_slowdown_against_alone_with_students_interval() -> None:
    schemes = build_schemes([SENDS, HIDES], 200e6)
    noise = {0: 0.98, 1: 1.0, 2: 1.02}
    by_scheme = {ALONE: (1.0, 1.0), ONE: (2.0, 1.6), EQUAL: (1.8, 1.2), WEFT: (1.4, 1.2)}
    by_scheme[LEND] = by_scheme[EQUAL]
    records = [
        measured(
            schemes,
            round_,
            [
                slow * (noise[round_.repetition] if round_.scheme != ALONE else 1)
                for slow in by_scheme[round_.scheme]
            ],
        )
        for round_ in PLAN.rounds
    ]
    outcome = compute_outcome(PLAN.names, schemes, records)
    assert outcome is not None
    assert outcome.slowdown[WEFT]["a"].value == pytest.approx(1.4)
    values = [1.4 * n for n in noise.values()]
    half = student.ppf(0.975, 2) * stdev(values) / 3**0.5
    assert outcome.slowdown[WEFT]["a"].half == pytest.approx(half)
    assert outcome.overall[EQUAL].value == pytest.approx(1.5)
    assert outcome.gains[WEFT, EQUAL].value == pytest.approx(0.2 / 1.5)
    assert outcome.gains[WEFT, EQUAL].half < 0.02
    text = format_outcome(outcome, schemes)
    assert "weft over equal queues: gain in mean slowdown +13.3% ± " in text
    assert "weft, lending over equal queues: gain in mean slowdown +0.0% ± 0.0, within" in text


def test_the_error_of_the_time_alone_is_in_the_interval_of_what_is_relative_to_it() -> None:
    """Relative variances of a quotient add; every round beside others takes the same here."""
    schemes = build_schemes([SENDS, HIDES], 200e6)
    noise = {0: 0.95, 1: 1.0, 2: 1.05}
    by_scheme = {ONE: (2.0, 1.5), EQUAL: (2.0, 1.5), WEFT: (1.0, 0.75), LEND: (1.0, 1.5)}
    records = [
        measured(schemes, round_, by_scheme.get(round_.scheme, (noise[round_.repetition], 1.0)))
        for round_ in PLAN.rounds
    ]
    outcome = compute_outcome(PLAN.names, schemes, records)
    assert outcome is not None
    part = student.ppf(0.975, 2) * stdev(noise.values()) / 3**0.5
    assert outcome.alone_s["a"].half == pytest.approx(2.1 * part)
    assert outcome.slowdown[EQUAL]["a"].half == pytest.approx(2 * part)
    assert outcome.slowdown[EQUAL]["b"].half == pytest.approx(0, abs=1e-9)
    assert outcome.overall[EQUAL].half == pytest.approx(2 * part / 2)
    # Both gain a half, whatever their times alone; then one alone does.
    assert outcome.gains[WEFT, EQUAL].value == pytest.approx(0.5)
    assert outcome.gains[WEFT, EQUAL].half == pytest.approx(0, abs=1e-9)
    changed = 1 / (2 + 1.5 * 1.001)  # its time alone longer by a thousandth: its gain counts less
    slope = (outcome.gains[LEND, EQUAL].value - changed) / 0.001
    assert outcome.gains[LEND, EQUAL].half == pytest.approx(slope * part, rel=0.01)


def test_half_a_measurement_gives_half_an_outcome() -> None:
    schemes = build_schemes([SENDS, HIDES], 200e6)
    assert compute_outcome(PLAN.names, schemes, []) is None
    alone = [round_ for round_ in PLAN.rounds if round_.scheme == ALONE]
    outcome = compute_outcome(
        PLAN.names, schemes, [measured(schemes, round_, (1.0, 1.0)) for round_ in alone]
    )
    assert outcome is not None
    assert outcome.overall == {}
    assert outcome.gains == {}
    text = format_outcome(outcome, schemes)
    assert "alone, s" in text
    assert "idle" not in text


def test_one_repetition_has_no_interval() -> None:
    assert estimate_mean([2.0]).half == inf
    assert str(estimate_mean([2.0])) == "2.00"
    assert estimate_mean([1.0, 3.0]).value == fmean([1.0, 3.0])
    schemes = build_schemes([SENDS, HIDES], 200e6)
    first = [round_ for round_ in PLAN.rounds if round_.repetition == 0]
    outcome = compute_outcome(
        PLAN.names, schemes, [measured(schemes, round_, (1.0, 1.0)) for round_ in first]
    )
    assert outcome is not None
    text = format_outcome(outcome, schemes)
    assert "gain in mean slowdown +0.0%, noise not known" in text
    assert "within noise" not in text
    assert "processors idle: 50% of the time" in text


def test_traffic_that_bears_no_mark_is_reported_if_it_is_more_than_a_little() -> None:
    schemes = build_schemes([SENDS, HIDES], 200e6)
    for most, is_reported in ((0.02, False), (0.4, True)):
        records = [
            measured(schemes, round_, (1.0, 1.0), None if round_.scheme in (ALONE, ONE) else most)
            for round_ in PLAN.rounds
        ]
        outcome = compute_outcome(PLAN.names, schemes, records)
        assert outcome is not None
        assert outcome.unmarked == most
        assert (
            "40% of the bytes bore no application's mark" in format_outcome(outcome, schemes)
        ) is is_reported


# ---- Command line -----------------------------------------------------------------------------


def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table = AppTable(tmp_path / "table")
    for name, command in (("known", ("true",)), ("published", ())):
        runs = tuple(Run(share=b, completion=1 / b) for b in (0.1, 0.5, 1.0))
        profile = Profile(name=name, runs=runs, command=command, link_bps=200e6)
        table.save(fit_application(profile))
    at = ["--table", str(tmp_path / "table"), "--testbed", "nowhere"]
    cases = {
        ("known",): "corun: 1 application; name two or more",
        ("known", "known"): "corun: 'known' is named twice; name each once",
        ("known", "other"): f"{table.directory}: no application 'other'",
        ("known", "published"): "application published: its command is unknown",
        ("known", "published", "--repeat", "x"): "--repeat x: is not a number",
        ("known", "published", "--timeout", "-1"): "--timeout -1: is not a time",
    }
    for words, problem in cases.items():
        assert main(["corun", *at, *words]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"weft: {problem}"), said
        assert said.count("\n") == 1


def test_delays_of_short_applications_are_as_short() -> None:
    (round_, *_) = (round_ for round_ in PLAN.rounds if round_.scheme != ALONE)
    delays = PLAN.delays_s(round_, (0.25, 0.25))
    assert 0 < max(delays.values()) < 0.25
