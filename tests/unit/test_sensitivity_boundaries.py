"""Limits of sensitivity at their edges: which runs count, how wide a band is, what files hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest

from weft.errors import InputError
from weft.sensitivity.application import Fitted, Profile, Run, fit_application
from weft.sensitivity.application_table import from_json, read_application, to_json
from weft.sensitivity.model import Hinges, Sample, confidence_band, prediction_errors
from weft.sensitivity.place import Links, Place
from weft.sensitivity.profiler import Plan, RunLog, judge_runs, next_run, predict_s, profile_command
from weft.sensitivity.run_command import CommandRun, UsageSeries, computing_cores
from weft.sensitivity.trace import Trace, estimate, find_phases

# ---- The band of a fit ------------------------------------------------------------------------

STEADY = (2.0, 2.0, 2.0, 2.0, 2.0)
NOISY = (1.0, 0.94, 1.06, 0.97, 1.03)


def band_by_definition(low: Sequence[float], whole: Sequence[float]) -> tuple[float, float]:
    """95 % limits of D(1/2) = mean(low) / mean(whole), both means drawn with their standard errors.

    A share's relative variance is that of its n runs, pooled with four runs' worth of all shares';
    the standard error of a mean is the deviation over √n, drawn from Student's t.
    """
    freedom = [len(low) - 1, len(whole) - 1]
    squares = [sum((x / mean(runs) - 1) ** 2 for x in runs) for runs in (low, whole)]
    pooled = max(sum(squares) / sum(freedom), 1e-6)
    errors = [
        ((ss + 4 * pooled) / (f + 4)) ** 0.5 / (f + 1) ** 0.5
        for ss, f in zip(squares, freedom, strict=True)
    ]
    noise = np.random.default_rng(99).standard_t(sum(freedom), (200_000, 2))
    below, baseline = (np.maximum(1 + e * noise[:, n], 0.1) for n, e in enumerate(errors))
    ratio = mean(low) / mean(whole) * below / baseline
    lower, upper = np.quantile(np.maximum(ratio, 1.0), [0.025, 0.975])
    return float(lower), float(upper)


@pytest.mark.parametrize(
    ("low", "whole"),
    [
        (tuple(2 * x for x in NOISY), NOISY),
        ((1.96, 2.04), (0.99, 1.01)),  # two runs each: the spread itself is hardly known
        (STEADY, NOISY),  # a share that was steady by chance is trusted less than it looks
        (tuple(2 * x for x in NOISY), (1.0,) * 5),
        ((2.0,) * 3, (1.0,) * 3),  # repetitions never agree better than 0.1 %
    ],
)
def test_the_band_is_as_wide_as_the_standard_errors_of_the_means(
    low: Sequence[float], whole: Sequence[float]
) -> None:
    runs = [(0.5, low), (1.0, whole)]
    samples = [Sample(share=b, slowdown=d) for b, values in runs for d in values]
    limits = confidence_band(samples, np.array([0.5]), draws=4000)
    assert limits is not None
    lower, upper = band_by_definition(low, whole)
    width = float(limits.high[0] - limits.low[0])
    assert width == pytest.approx(upper - lower, rel=0.08)


def test_errors_of_a_prediction_are_relative_to_what_was_observed() -> None:
    model = Hinges(terms=((1.0, 1.0),), floor=0.5)  # D(0.5) = 2
    samples = [Sample(share=0.5, slowdown=1.6), Sample(share=1.0, slowdown=1.0)]
    assert prediction_errors(model, samples).worst == pytest.approx(2 / 1.6 - 1)


# ---- Which runs count -------------------------------------------------------------------------

PLAN = Plan(
    name="made-up",
    command=("true",),
    shares=(0.1, 0.5, 1.0),
    repeat=3,
    place="nowhere",
    link_bps=1e8,
    seed=7,
)


def run(share: float, completion: float, **more: float) -> Run:
    return Run(share=share, completion=completion, **more)  # type: ignore[arg-type]


def rejected(*runs: Run) -> list[bool]:
    return [judged.reason != "" for judged in judge_runs(runs)]


def test_a_share_that_is_disturbed_again_and_again_has_twice_its_repetitions_and_no_more() -> None:
    runs: list[Run] = []
    while (due := next_run(PLAN, runs)) is not None:
        is_disturbed = due.share == 0.1 and due.repetition > 0
        delay_s = 5.0 if is_disturbed else 0.0
        runs.append(run(due.share, 10.0, repetition=due.repetition, cpu_s=1, run_delay_s=delay_s))
        assert len(runs) < 100
    counts = [sum(r.share == share for r in runs) for share in PLAN.shares]
    assert counts == [6, 3, 3]


def test_a_tenth_above_the_median_of_steady_runs_still_counts() -> None:
    steady = [run(0.5, 10.0), run(0.5, 10.0)]
    assert rejected(*steady, run(0.5, 11.0)) == [False] * 3
    assert rejected(*steady, run(0.5, 11.01)) == [False, False, True]
    assert rejected(*steady, run(0.5, 8.99)) == [False, False, True]


def test_three_deviations_from_the_median_of_scattered_runs_still_count() -> None:
    """The median deviation of 9, 10, 10, 11 and one far off is 1: 3 · 1.4826 is the limit."""
    scattered = [run(0.5, completion) for completion in (9.0, 10.0, 10.0, 11.0)]
    assert not any(rejected(*scattered, run(0.5, 14.44)))
    assert rejected(*scattered, run(0.5, 14.45)) == [False] * 4 + [True]


def test_waiting_counts_as_contention_above_five_percent_and_a_tenth_of_what_is_usual() -> None:
    calm = [run(0.5, 10.0, cpu_s=2, run_delay_s=0) for _ in range(3)]
    assert not any(rejected(*calm, run(0.5, 10.0, cpu_s=2, run_delay_s=0.5)))
    assert rejected(*calm, run(0.5, 10.0, cpu_s=2, run_delay_s=0.51))[-1]
    waiting = [run(0.5, 10.0, cpu_s=2, run_delay_s=2.0) for _ in range(3)]
    assert not any(rejected(*waiting, run(0.5, 10.0, cpu_s=2, run_delay_s=2.69)))
    assert rejected(*waiting, run(0.5, 10.0, cpu_s=2, run_delay_s=2.71))[-1]


def test_what_waiting_is_usual_is_known_from_three_runs_on() -> None:
    calm, waiting = run(0.5, 10.0, cpu_s=1, run_delay_s=0), run(0.5, 10.0, cpu_s=1, run_delay_s=5)
    assert rejected(calm, waiting) == [False, False]
    assert rejected(calm, waiting, calm) == [False, True, False]


def test_usual_is_the_lower_quartile_of_waiting() -> None:
    """Of four runs the least: the second at 10 % waited longer than that."""
    waited = [(0.1, 0.0), (0.1, 1.0), (0.5, 1.0), (1.0, 1.0)]
    runs = [run(share, 2.0, cpu_s=1, run_delay_s=delay_s) for share, delay_s in waited]
    assert rejected(*runs) == [False, True, False, False]


def test_a_run_is_expected_to_take_the_lower_median_of_its_share() -> None:
    runs = [run(0.5, 2.0), run(0.5, 9.0), run(0.5, 3.0), run(1.0, 1.0)]
    assert predict_s(0.5, runs, lambda _: 0.0) == 3.0
    assert predict_s(0.5, runs[:2], lambda _: 0.0) == 2.0
    assert predict_s(0.1, runs, lambda _: 7.0) == 7.0


# ---- Profiling --------------------------------------------------------------------------------


def command_run(completion_s: float, sent_bytes: int) -> CommandRun:
    at_s = np.linspace(0, completion_s, 11)
    usage = UsageSeries(at_s, 0 * at_s, np.linspace(0, sent_bytes, 11), 0 * at_s, 0 * at_s)
    return CommandRun(usage, completion_s, 0, sent_bytes, 0.0, 0.0)


def profile_notes(path: Path, completion_s: float, sent_bytes: int) -> tuple[list[float], Any]:
    """Time limits of the runs by share, and the notes of the profile."""
    limits: list[float] = []

    def run_at(share: float, limit_s: float, where: str) -> CommandRun:
        limits.append(limit_s * share if "first" not in where else limit_s)
        return command_run(completion_s, sent_bytes)

    log = RunLog(path / "log", PLAN)
    application = profile_command(log, run_at, lambda _: None, machine={}, date="2026")
    return limits, application.profile.notes


def test_a_run_may_take_three_times_as_long_as_if_all_of_it_were_sending(tmp_path: Path) -> None:
    limits, notes = profile_notes(tmp_path, 2.0, 10**7)
    assert limits[0] == 600
    expected = [3 * 2.0 + 10 * share for share in PLAN.order]
    assert limits[1:] == pytest.approx(expected)
    assert notes == ()


def test_a_command_that_moves_less_than_a_hundredth_of_the_link_is_noted(tmp_path: Path) -> None:
    """1e8 b/s carry 25 MB in 2 s."""
    (tmp_path / "enough").mkdir()
    (tmp_path / "few").mkdir()
    assert profile_notes(tmp_path / "enough", 2.0, 250_000)[1] == ()
    (note,) = profile_notes(tmp_path / "few", 2.0, 249_999)[1]
    assert note == "moved 244.1 KiB in a run: is it the right interface?"


def test_half_a_second_is_long_enough_to_measure(tmp_path: Path) -> None:
    assert profile_notes(tmp_path, 0.5, 10**7)[1] == ()


def test_the_slowest_link_decides_which_share_can_be_capped() -> None:
    def capping() -> AbstractContextManager[Links]:
        raise AssertionError

    place = Place(
        description="nowhere",
        namespace=None,
        hostname="",
        interface="lo",
        link_bps=1e9,
        slowest_bps=80_000,
        capping=capping,
    )
    place.check_share(0.1)  # 8 kb/s, the least cap
    with pytest.raises(InputError, match=r"9.9 % of a link of 80 kb/s is below 8 kb/s"):
        place.check_share(0.099)


# ---- Traces -----------------------------------------------------------------------------------


def trace(*intervals: tuple[float, float, float]) -> Trace:
    """Intervals of (length, seconds of the link, seconds of the processor), at 8 b/s."""
    length, link, processor = np.array(intervals, dtype=np.float64).T
    return Trace(
        duration_s=length, sent_bytes=link, received_bytes=0 * link, cpu_s=processor, link_bps=8.0
    )


def test_an_interval_that_mostly_waits_is_a_barrier_for_what_was_sent_before() -> None:
    # 1 s is sent beside computing, then the program waits for 0.6 of 1 s, then computes for 1 s.
    # At half the link: 0.6 · 2 + max(1 · 2, 1.4) + 1 s instead of 3 s.
    program = trace((1, 1, 1), (1, 0.6, 0.4), (1, 0, 1))
    assert float(estimate(program).model.slowdown(0.5)) == pytest.approx(4.2 / 3)
    # A wait of half the interval is none: what was sent may hide in the second computation too.
    program = trace((1, 1, 1), (1, 0.5, 0.5), (1, 0, 1))
    assert float(estimate(program).model.slowdown(0.5)) == pytest.approx((1 + 2.5) / 3)


@pytest.mark.parametrize(("apart", "terms"), [(1.03, 2), (1.005, 1)])
def test_hinges_within_a_hundredth_of_each_other_are_one(apart: float, terms: int) -> None:
    assert len(estimate(trace((apart, 1, apart), (1, 1, 0))).model.terms) == terms


def test_bytes_that_exceed_the_link_by_a_little_are_rounding_and_by_more_a_wrong_rate() -> None:
    estimate(trace((1, 1.05, 0)))
    with pytest.raises(InputError, match="check the link rate"):
        estimate(trace((1, 1.06, 0)))


def test_a_tenth_of_the_link_is_communication() -> None:
    kinds = [find_phases(trace((1, link, 0)))[0].kind for link in (0.09, 0.11)]
    assert kinds == ["idle", "communication"]


def test_time_in_which_neither_link_nor_processor_is_used_is_idle() -> None:
    split = estimate(trace((1, 0.3, 0.2)))
    assert (split.exposed_s, split.computing_s, split.idle_s) == pytest.approx((0.3, 0.2, 0.5))


def test_a_program_computes_with_nearly_as_many_processors_as_it_ever_uses() -> None:
    duration_s = np.ones(100)
    cpu_s = np.where(np.arange(100) < 90, 1.0, 4.0)
    assert computing_cores(duration_s, cpu_s) == 4.0
    assert computing_cores(duration_s, np.where(np.arange(100) < 97, 1.0, 4.0)) == 1.0
    assert computing_cores(duration_s, 0.2 * duration_s) == 1.0


# ---- Profiles and files -----------------------------------------------------------------------


@pytest.mark.parametrize(("sent", "busier"), [(0, 10), (4, 6), (7, 7), (10, 10)])
def test_the_busier_direction_is_the_one_with_more_bytes(sent: int, busier: int) -> None:
    assert run(0.5, 1.0, bytes=10, sent_bytes=sent).busier_bytes == busier


def stored() -> dict[str, Any]:
    runs = tuple(run(share, 1 + 1 / share) for share in (0.2, 0.5, 1.0))
    data: dict[str, Any] = json.loads(to_json(fit_application(Profile(name="app", runs=runs))))
    return data


@pytest.mark.parametrize("model", [("convex",), ("paper", 0)])
def test_a_model_that_reaches_below_the_least_share_profiled_is_refused(
    model: tuple[Any, ...],
) -> None:
    data = stored()
    place = data["models"]
    for key in model:
        place = place[key]
    place["floor"] = 0.199
    with pytest.raises(InputError, match=r"floor 0.199 is below the least share profiled, 0.2"):
        from_json(json.dumps(data), "app.json")


def test_a_coefficient_above_a_thousand_million_is_refused() -> None:
    data = stored()
    data["models"]["paper"][0]["coefficients"] = [1e9, -1e9]
    from_json(json.dumps(data), "app.json")
    data["models"]["paper"][0]["coefficients"] = [1.01e9, -1e9]
    with pytest.raises(InputError, match=r"damaged: 1.01e\+09 is not in -1e9 to 1e9"):
        from_json(json.dumps(data), "app.json")


def test_a_file_above_64_mebibytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "app.json"
    for size, problem in ((64 * 2**20, "damaged"), (64 * 2**20 + 1, "over 64 MiB")):
        with path.open("wb") as file:
            file.truncate(size)
        with pytest.raises(InputError, match=problem):
            read_application(path)


@pytest.mark.parametrize(("convex", "polynomial", "is_behind"), [(0.8, 0.89, 0), (0.8, 0.91, 1)])
def test_a_convex_fit_a_tenth_of_r_squared_behind_a_polynomial_is_warned_of(
    convex: float, polynomial: float, is_behind: int
) -> None:
    runs = tuple(run(share, 1 + 1 / share) for share in (0.2, 0.5, 1.0))
    fitted = fit_application(Profile(name="app", runs=runs))
    quality = fitted.convex.quality
    flat = Hinges(terms=(), floor=0.2)  # far from every sample
    application = replace(
        fitted,
        convex=Fitted(model=flat, quality=replace(quality, r_squared=convex)),
        paper=(replace(fitted.paper[0], quality=replace(quality, r_squared=polynomial)),),
    )
    warnings = [text for text in application.warnings if "cannot follow samples" in text]
    assert len(warnings) == is_behind
