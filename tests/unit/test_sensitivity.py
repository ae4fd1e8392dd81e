"""Sensitivity models, profiles, and the table of applications."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest

from weft.errors import InputError
from weft.sensitivity.application import Profile, Run, build_curve, default_shares, fit_application
from weft.sensitivity.application_table import (
    AppTable,
    default_directory,
    format_application,
    from_json,
    read_application,
    to_json,
)
from weft.sensitivity.model import Hinges, Polynomial, Sample, fit_convex, fit_polynomial

EXAMPLES = Path(__file__).parents[2] / "examples" / "apps"


def profile(name: str = "app", repetitions: int = 3) -> Profile:
    """T = 10 s computing and 5 s of sending at the full rate: D = 1 + (1/b − 1) / 3, ± 1 %."""
    noise = np.random.default_rng(1).normal(1, 0.01, (4, repetitions))
    runs = tuple(
        Run(
            share=b,
            completion=float((10 + 5 / b) * noise[n, r]),
            repetition=r,
            bytes=10**8,
            cpu_s=10.0,
            run_delay_s=0.1,
        )
        for n, b in enumerate((0.1, 0.25, 0.5, 1.0))
        for r in range(repetitions)
    )
    return Profile(
        name=name,
        runs=runs,
        command=("rsync", "-a"),
        link_bps=2e8,
        machine={"host": "here", "cpus": 2},
        date="2026-11-15T10:00:00+00:00",
        notes=("made up",),
    )


# ---- Models -----------------------------------------------------------------------------------


def test_a_hinge_is_flat_above_its_knot_and_grows_as_one_over_the_share_below() -> None:
    model = Hinges(terms=((0.4, 0.5),), floor=0.1)
    # D = max(1, 1 + 0.5 (0.4/b − 1))
    assert model.slowdown([1, 0.4, 0.2, 0.1]) == pytest.approx([1, 1, 1.5, 2.5])
    assert model.slope([1, 0.5]).tolist() == [0, 0]
    assert model.slope(0.2) == pytest.approx(-0.5 * 0.4 / 0.2**2)
    assert model.slope(0.4) == pytest.approx(-0.5 / 0.4)  # the side below


def test_a_polynomial_has_the_values_and_the_derivative_of_its_formula() -> None:
    model = Polynomial(coefficients=(5.0, -8.0, 4.0), floor=0.1)
    assert float(model.slowdown(0.5)) == 5 - 4 + 1
    assert float(model.slope(0.5)) == -8 + 4
    assert model.degree == 2
    assert Polynomial(coefficients=(1.0,), floor=0.1).slope([0.5, 1]).tolist() == [0, 0]


def test_models_take_arrays_of_any_shape() -> None:
    shares = np.array([[0.1, 0.2], [0.5, 1.0]])
    for model in (
        Hinges(terms=((1.0, 1.0), (0.3, 2.0)), floor=0.1),
        Hinges(terms=(), floor=0.1),
        Polynomial(coefficients=(2.0, -1.0), floor=0.1),
    ):
        for values in (model.slowdown(shares), model.slope(shares)):
            assert values.shape == (2, 2)
        assert float(model.slowdown(shares)[1, 0]) == float(model.slowdown(0.5))
        assert model.slowdown(0.5).shape == ()


@pytest.mark.parametrize("share", [0.0999, 0.0, -1.0, 1.01, nan, inf])
def test_nothing_is_predicted_outside_the_floor_and_one(share: float) -> None:
    for model in (
        Hinges(terms=((1.0, 1.0),), floor=0.1),
        Polynomial(coefficients=(1.0, 1.0), floor=0.1),
    ):
        with pytest.raises(InputError, match=r"share: .*(below the floor 0\.1|not in 0\.1 to 1)"):
            model.slowdown([0.5, share])
        with pytest.raises(InputError, match=r"share: .*(below the floor 0\.1|not in 0\.1 to 1)"):
            model.slope(share)


def test_a_share_that_misses_the_floor_by_rounding_is_at_the_floor() -> None:
    model = Hinges(terms=((1.0, 1.0),), floor=0.3)
    assert float(model.slowdown(0.1 * 3 - 1e-16)) == float(model.slowdown(0.3))


@pytest.mark.parametrize(
    "terms",
    [
        ((1.1, 1.0),),
        ((0.5, -1.0),),
        ((0.5, nan),),
        ((0.5, inf),),
        ((0.5, 1.1e9),),
        ((nan, 1.0),),
        ((0.0, 1.0),),
        ((0.3, 1.0), (0.5, 1.0)),
        ((0.3, 1.0), (0.3, 1.0)),
    ],
)
def test_terms_that_are_no_model_are_refused(terms: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(InputError, match="convex model"):
        Hinges(terms=terms, floor=0.1)


@pytest.mark.parametrize("coefficients", [(), (nan,), (1.0, inf), (1.0, -1.1e9), (1.0,) * 5])
def test_coefficients_that_are_no_model_are_refused(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="polynomial"):
        Polynomial(coefficients=coefficients, floor=0.1)


@pytest.mark.parametrize("floor", [0.0, -0.1, 1.1, nan])
def test_a_floor_is_a_share(floor: float) -> None:
    with pytest.raises(InputError, match="floor"):
        Hinges(terms=(), floor=floor)


# ---- Fits -------------------------------------------------------------------------------------


def samples(*pairs: tuple[float, float]) -> list[Sample]:
    return [Sample(share=b, slowdown=d) for b, d in pairs]


def test_a_knot_between_two_profiled_shares_is_found() -> None:
    # 1.2 at 25 % and 2.2 at 10 %: a line in 1/b that reaches 1 at b = 1/2.8
    model = fit_convex(samples((1, 1), (0.25, 1.2), (0.1, 2.2)))
    ((t, c),) = model.terms
    assert t == pytest.approx(1 / 2.8)
    assert c * t == pytest.approx((2.2 - 1.2) / (10 - 4))


def test_an_application_that_bandwidth_does_not_touch_has_no_terms() -> None:
    assert fit_convex(samples((1, 1), (0.5, 0.98), (0.1, 0.99))).terms == ()


def test_a_noisy_share_weighs_less() -> None:
    def slowdowns(noise: float) -> list[Sample]:
        quiet = [
            Sample(share=0.1, slowdown=d, repetition=n)
            for n, d in enumerate((9.9, 10.0, 10.1, 10.0))
        ]
        loud = [
            Sample(share=0.2, slowdown=6 * (1 + noise * e), repetition=n)
            for n, e in enumerate((-1, 1, -1, 1))
        ]
        return [*quiet, *loud, *samples((1, 1))]

    # the line to (0.1, 10) has 5 at 0.2; the loud mean of 6 draws less, the louder it is
    loud, quiet = (float(fit_convex(slowdowns(n)).slowdown(0.1)) for n in (0.3, 0.003))
    assert abs(loud - 10) < abs(quiet - 10)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (samples((1, 1)), "100 %"),
        (samples((0.5, 2), (0.1, 3)), "profiled at 10 %, 50 %"),
        ([], "no share"),
        (samples((1, 1), (0.0, 2)), "share 0 "),
        (samples((1, 1), (25, 2)), "fractions"),
        (samples((1, 1), (nan, 2)), "share nan"),
        (samples((1, 1), (0.5, nan)), "slowdown nan"),
        (samples((1, 1), (0.5, inf)), "slowdown inf"),
        (samples((1, 1), (0.5, -2)), "slowdown -2"),
    ],
)
def test_samples_that_cannot_be_fitted_are_refused(bad: list[Sample], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        fit_convex(bad)


def test_a_polynomial_needs_more_shares_than_its_degree() -> None:
    with pytest.raises(InputError, match="degree 2 with 2 shares; use degree 1 to 1"):
        fit_polynomial(samples((1, 1), (0.5, 2)), 2)


# ---- Profiles and applications ----------------------------------------------------------------


def test_slowdown_is_relative_to_the_mean_at_the_whole_link() -> None:
    runs = [Run(share=1.0, completion=t, repetition=n) for n, t in enumerate((10, 11, 12))]
    result = Profile(name="a", runs=(*runs, Run(share=0.5, completion=22.0))).samples
    assert [s.slowdown for s in result] == pytest.approx([10 / 11, 1, 12 / 11, 2])


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden", "a b", "ä", "a" * 65, "a\n", "-a"])
def test_a_name_is_one_of_a_file_and_of_an_option_value(name: str) -> None:
    with pytest.raises(InputError, match="cannot be the name"):
        replace(profile(), name=name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 0.0},
        {"share": 25.0},
        {"share": nan},
        {"completion": 0.0},
        {"completion": nan},
        {"completion": inf},
        {"bytes": -5},
        {"cpu_s": nan},
    ],
)
def test_a_run_with_an_impossible_value_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"run: {next(iter(wrong))}"):
        Run(**({"share": 0.5, "completion": 1.0} | wrong))  # type: ignore[arg-type]


def test_an_application_has_every_model_that_its_shares_determine() -> None:
    result = fit_application(profile())
    assert [f.model.degree for f in result.paper] == [1, 2, 3]
    assert result.floor == 0.1
    # D = 1 + (1/b − 1) / 3
    assert result.convex.model.slowdown([0.1, 0.25]) == pytest.approx([4, 2], rel=0.03)
    two = replace(profile(), runs=tuple(r for r in profile().runs if r.share in (0.5, 1)))
    assert [f.model.degree for f in fit_application(two).paper] == [1]
    assert fit_application(two).convex.quality.left_out is None


def test_an_estimate_from_a_trace_is_kept_and_held_against_the_profile() -> None:
    exact = Hinges(terms=((1.0, 1 / 3),), floor=0.05)
    result = fit_application(profile(), exact)
    assert result.traced is not None
    assert result.traced.quality.left_out is not None
    assert result.traced.quality.left_out.n == 3  # 10, 25, 50 %
    assert result.traced.quality.left_out.worst < 0.03
    assert from_json(to_json(result), "file") == result
    text = format_application(result, build_curve(result, [0.25, 1.0]))
    assert "traced, one run" in text
    # 1 + (1/0.25 − 1) / 3
    assert next(line for line in text.splitlines() if line.startswith("25 %")).endswith(" 2.000")
    with pytest.raises(InputError, match=r"floor 0\.2 is above the least share profiled, 0\.1"):
        fit_application(profile(), Hinges(terms=(), floor=0.2))


def test_noise_about_no_slowdown_is_not_called_a_shape_that_cannot_be_followed() -> None:
    took = {0.25: 1.012, 0.5: 1.02, 1.0: 1.0}
    runs = tuple(Run(share=b, completion=s) for b, s in took.items())
    warnings = fit_application(Profile(name="compute", runs=runs)).warnings
    assert not any("cannot follow" in warning for warning in warnings)


def test_a_file_from_before_estimates_were_kept_is_read() -> None:
    runs = tuple(Run(share=b, completion=1 + 1 / b) for b in (0.25, 0.5, 1.0))
    application = fit_application(Profile(name="old", runs=runs))
    data = json.loads(to_json(application))
    del data["models"]["traced"]
    assert from_json(json.dumps(data), "file") == application


def test_warnings_tell_of_models_that_should_not_be_trusted() -> None:
    lr, sql = (read_application(EXAMPLES / f"saba-{n}.json") for n in ("lr", "sql"))
    assert any("more slowly than 1/share" in message for message in lr.warnings)
    assert any("degree 2 rises" in message for message in sql.warnings)
    linear = fit_application(
        replace(profile(), runs=tuple(Run(share=b, completion=2 - b) for b in (0.1, 0.5, 1.0)))
    )
    assert not any("rises" in message for message in linear.warnings)
    little = fit_application(
        replace(
            profile(), runs=tuple(Run(share=b, completion=1 + 0.03 * b) for b in (0.1, 0.5, 1.0))
        )
    )
    assert any("degree 1" in message and "rises" in message for message in little.warnings)


def test_the_curve_has_observed_means_band_and_every_model() -> None:
    application = fit_application(profile())
    rows = build_curve(application, default_shares(application))
    assert [row.share for row in rows] == [0.1, 0.25, 0.5, 0.75, 0.9, 1.0]
    for row in rows:
        assert row.low is not None
        assert row.high is not None
        assert row.low <= row.convex <= row.high
        assert len(row.paper) == 3
        assert (row.observed is None) == (row.share in (0.75, 0.9))
    assert rows[-1].low == rows[-1].high == 1


# ---- Files ------------------------------------------------------------------------------------


def test_an_application_survives_its_file() -> None:
    application = fit_application(profile())
    assert from_json(to_json(application), "file") == application
    assert to_json(from_json(to_json(application), "file")) == to_json(application)


def test_readers_that_do_not_know_bytes_of_one_direction_find_runs_as_they_were() -> None:
    plain = profile()
    runs = tuple(replace(run, sent_bytes=10**7 * run.repetition) for run in plain.runs)
    application = fit_application(replace(plain, runs=runs))
    assert from_json(to_json(application), "file") == application
    old, new = (json.loads(to_json(a)) for a in (fit_application(plain), application))
    assert new["profile"].pop("sent_bytes") == [0, 10**7, 2 * 10**7] * 4
    assert new == old


def test_more_bytes_sent_than_moved_are_refused() -> None:
    for sent in (-1, 11):
        with pytest.raises(InputError, match=f"run: sent_bytes: {sent} of 10 in all"):
            Run(share=1.0, completion=1.0, bytes=10, sent_bytes=sent)


@pytest.mark.parametrize("name", ["saba-lr", "saba-sql"])
def test_the_examples_hold_the_models_that_their_profiles_give(name: str) -> None:
    stored = read_application(EXAMPLES / f"{name}.json")
    fitted = fit_application(stored.profile)
    grid = np.linspace(stored.floor, 1, 9)
    assert stored.convex.model.slowdown(grid) == pytest.approx(fitted.convex.model.slowdown(grid))
    for old, new in zip(stored.paper, fitted.paper, strict=True):
        assert old.model.slowdown(grid) == pytest.approx(new.model.slowdown(grid), rel=1e-6)


def put(field: str, value: str) -> Callable[[str], str]:
    """Damage: another value in the first field of that name."""
    return lambda text: re.sub(rf'("{field}": )[^,\n]+', rf"\g<1>{value}", text, count=1)


DAMAGE: dict[str, Callable[[str], str | bytes]] = {
    "cut short": lambda text: text[: len(text) // 2],
    "not JSON": lambda _: "hello",
    "empty": lambda _: "",
    "a list": lambda _: "[]",
    "not UTF-8": lambda _: b"\xff\xfe{",
    "deep": lambda _: "[" * 100_000,
    "NaN": lambda text: text.replace('"share": 0.1', '"share": NaN', 1),
    "other kind": lambda text: text.replace('"application"', '"run"', 1),
    "newer schema": lambda text: text.replace('"schema": 1', '"schema": 99', 1),
    "share out of range": lambda text: text.replace('"share": 0.1', '"share": 10', 1),
    "share as text": lambda text: text.replace('"share": 0.1', '"share": "0.1"', 1),
    "share true": lambda text: text.replace('"share": 1.0', '"share": true'),
    "no baseline": lambda text: text.replace('"share": 1.0', '"share": 0.9'),
    "negative term": lambda text: re.sub(r'"terms": \[\s*\[', '"terms": [[1.0, -1], [', text),
    "floor below the profile": lambda text: text.replace('"floor": 0.1', '"floor": 0.01', 1),
    "too few numbers of bytes": lambda text: text.replace('"runs"', '"sent_bytes": [1], "runs"', 1),
    "no models": lambda text: json.dumps({**json.loads(text), "models": {}}),
    "unknown field": lambda text: text.replace('"repetition"', '"repeated"', 1),
    "slash in the name": lambda text: text.replace('"name": "app"', '"name": "../app"', 1),
    "endless integer": lambda text: text.replace('"share": 0.1', f'"share": {"9" * 400}', 1),
    "infinite completion": put("completion", "1e999"),
    "infinite R²": put("r_squared", "1e999"),
    "infinite error": put("worst", "-1e999"),
    "infinite machine": put("cpus", "1e999"),
    "a list in the machine": put("cpus", "[2]"),
    "huge term": lambda text: re.sub(r'("terms": \[\s*\[[^,]+,)[^\]]+', r"\g<1>1e300", text),
    "huge coefficient": lambda text: re.sub(r'("coefficients": \[)', r"\g<1>-1e300,", text),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_refused_by_name_and_the_others_stay(damage: str, tmp_path: Path) -> None:
    table = AppTable(tmp_path)
    table.save(fit_application(profile("other")))
    path = table.save(fit_application(profile("app")))
    made = DAMAGE[damage](path.read_text())
    path.write_bytes(made if isinstance(made, bytes) else made.encode())
    with pytest.raises(InputError) as raised:
        table.load("app")
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.remedy
    result, damaged = table.all()
    assert [a.name for a in result] == ["other"]
    assert len(damaged) == 1
    table.remove("app")
    assert table.names() == ("other",)


def test_a_file_under_another_name_is_refused(tmp_path: Path) -> None:
    table = AppTable(tmp_path)
    table.save(fit_application(profile())).rename(tmp_path / "else.json")
    with pytest.raises(InputError, match=r"holds the application 'app'; rename it to app\.json"):
        table.load("else")


def test_a_table_that_does_not_exist_is_empty_and_is_made_when_needed(tmp_path: Path) -> None:
    table = AppTable(tmp_path / "a" / "b")
    assert table.names() == ()
    with pytest.raises(InputError, match="no application 'app'; profile or import one first"):
        table.load("app")
    table.save(fit_application(profile()))
    assert table.names() == ("app",)


def test_saving_without_replace_refuses_and_keeps_what_is_there(tmp_path: Path) -> None:
    table = AppTable(tmp_path)
    first = fit_application(profile())
    table.save(first)
    with pytest.raises(InputError, match="in the table already"):
        table.save(fit_application(replace(profile(), notes=())), replace=False)
    assert table.load("app") == first


def test_other_files_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "README.txt").write_text("mine")
    (tmp_path / ".weft-torn.json").write_text("{")
    (tmp_path / "my notes.json").write_text("{}")
    table = AppTable(tmp_path)
    table.save(fit_application(profile()))
    assert table.names() == ("app",)
    assert (tmp_path / "README.txt").read_text() == "mine"


def _write_many(directory: Path, writer: int, outcome: multiprocessing.Queue[str]) -> None:
    table, mine = AppTable(directory), fit_application(profile(f"own-{writer}", 1))
    for n in range(10):
        table.save(replace(mine, profile=replace(mine.profile, notes=(f"{writer}-{n}",))))
        table.save(replace(mine, profile=replace(mine.profile, name="shared")))
    try:
        table.save(replace(mine, profile=replace(mine.profile, name="once")), replace=False)
        outcome.put("first")
    except InputError:
        outcome.put("refused")


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    outcome: multiprocessing.Queue[str] = context.Queue()
    writers = [context.Process(target=_write_many, args=(tmp_path, n, outcome)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    table = AppTable(tmp_path)
    result, damaged = table.all()
    assert [a.name for a in result] == ["once", "own-0", "own-1", "own-2", "shared"]
    assert not damaged
    for n in range(3):
        assert table.load(f"own-{n}").profile.notes == (f"{n}-9",)
    assert sorted(outcome.get(timeout=5) for _ in range(3)) == ["first", "refused", "refused"]
    assert not [p for p in tmp_path.iterdir() if p.suffix != ".json"]


def test_the_table_is_in_the_data_home_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_directory() == Path("/data/weft/apps")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_directory() == Path("/home/me/.local/share/weft/apps")
