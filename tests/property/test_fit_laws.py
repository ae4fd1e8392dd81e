"""Laws of fits: what was put in comes out, whatever the order and the unit of the rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.model import Fit, FloatArray, Form, Input, Unknown, fit

SIZES = np.array([4, 16, 64, 128, 256, 1024, 4096, 65536, 1 << 20], dtype=float)


def line(parameters: Mapping[str, float], inputs: Mapping[str, FloatArray]) -> FloatArray:
    return parameters["base_us"] + parameters["slope_us"] * inputs["size_bytes"]


LINE = Form(
    name="line",
    formula="base + slope × size",
    source="a straight line",
    unit="us",
    unknowns=(
        Unknown(name="base_us", unit="us", meaning="at no bytes", start=1.0),
        Unknown(name="slope_us", unit="us/B", meaning="of each byte", start=1e-3),
    ),
    inputs=(Input(name="size_bytes", unit="B", meaning="payload"),),
    evaluate=line,
)


def fitted(observed: FloatArray, sizes: FloatArray = SIZES) -> Fit:
    return fit(LINE, {"size_bytes": sizes}, observed, data="made up")


def noisy(base_us: float, slope_us: float, seed: int, spread: float = 0.05) -> FloatArray:
    noise = np.random.default_rng(seed).normal(0.0, spread, SIZES.size)
    return np.asarray((base_us + slope_us * SIZES) * np.exp(noise))


bases = st.floats(1e-2, 1e3)
slopes = st.floats(1e-6, 1e-1)
seeds = st.integers(0, 2**32 - 1)


@given(bases, slopes)
@settings(max_examples=30, deadline=None)
def test_a_fit_to_values_of_known_parameters_gives_them_back(
    base_us: float, slope_us: float
) -> None:
    assume(slope_us * SIZES[-1] > 1e-2 * base_us)  # else no row knows of the slope
    found = fitted(base_us + slope_us * SIZES)
    assert found.value("base_us") == pytest.approx(base_us, rel=1e-4)
    assert found.value("slope_us") == pytest.approx(slope_us, rel=1e-4)
    assert found.error.worst < 1e-5


@given(bases, slopes, seeds)
@settings(max_examples=8, deadline=None)
def test_leave_one_out_is_the_error_of_a_fit_that_never_saw_the_row(
    base_us: float, slope_us: float, seed: int
) -> None:
    observed = noisy(base_us, slope_us, seed)
    left_out = fitted(observed).leave_one_out
    for row in range(SIZES.size):
        without = fitted(np.delete(observed, row), np.delete(SIZES, row))
        predicted = without.predict(size_bytes=SIZES[row], extrapolate=True)
        assert left_out[row] == pytest.approx(predicted / observed[row] - 1, abs=1e-5)


@given(bases, slopes, seeds)
@settings(max_examples=12, deadline=None)
def test_the_order_of_rows_changes_nothing(base_us: float, slope_us: float, seed: int) -> None:
    observed = noisy(base_us, slope_us, seed)
    order = np.random.default_rng(seed + 1).permutation(SIZES.size)
    one, other = fitted(observed), fitted(observed[order], SIZES[order])
    assert np.allclose(one.residuals[order], other.residuals, atol=1e-6)
    assert np.allclose(one.leave_one_out[order], other.leave_one_out, atol=1e-5)
    assert one.ranges == other.ranges


@given(bases, slopes, seeds, st.floats(1e-3, 1e3))
@settings(max_examples=12, deadline=None)
def test_the_unit_of_the_values_scales_the_parameters_and_not_the_errors(
    base_us: float, slope_us: float, seed: int, unit: float
) -> None:
    observed = noisy(base_us, slope_us, seed)
    one, other = fitted(observed), fitted(observed * unit)
    assert np.allclose(one.residuals, other.residuals, atol=1e-5)


def test_standard_errors_are_the_spread_of_fits_to_repeated_noise() -> None:
    fits = [fitted(noisy(2.0, 1e-3, seed)) for seed in range(60)]
    for index in range(2):
        spread = np.std([found.parameters[index].value for found in fits])
        told = np.median([found.parameters[index].standard_error for found in fits])
        assert told == pytest.approx(spread, rel=0.35)


def test_a_parameter_that_no_row_depends_on_has_an_infinite_standard_error() -> None:
    idle = Unknown(name="idle", unit="us", meaning="unused", start=1.0)
    form = replace(LINE, unknowns=(*LINE.unknowns, idle))
    found = fit(form, {"size_bytes": SIZES}, noisy(2.0, 1e-3, 1), data="made up")
    assert [np.isinf(p.standard_error) for p in found.parameters] == [False, False, True]


def stepped(parameters: Mapping[str, float], inputs: Mapping[str, FloatArray]) -> FloatArray:
    step = parameters["step_us"] * (inputs["size_bytes"] >= SIZES[-1])
    return line(parameters, inputs) + step


def test_what_only_one_row_tells_is_not_known_without_it() -> None:
    step = Unknown(name="step_us", unit="us", meaning="of the largest alone", start=1.0)
    form = replace(LINE, unknowns=(*LINE.unknowns, step), evaluate=stepped)
    observed = stepped({"base_us": 2.0, "slope_us": 1e-3, "step_us": 1e4}, {"size_bytes": SIZES})
    found = fit(form, {"size_bytes": SIZES}, observed, data="made up")
    assert found.value("step_us") == pytest.approx(1e4, rel=1e-4)
    without = (2.0 + 1e-3 * SIZES[-1] + step.start) / observed[-1] - 1
    assert found.leave_one_out[-1] == pytest.approx(without, rel=1e-3)


def test_a_known_parameter_is_no_longer_found_but_used() -> None:
    form = LINE.fix(base_us=2.0)
    found = fit(form, {"size_bytes": SIZES}, 2.0 + 1e-3 * SIZES, data="made up")
    assert [parameter.name for parameter in found.parameters] == ["slope_us"]
    assert found.value("slope_us") == pytest.approx(1e-3)
    assert "base_us = 2" in form.formula
    with pytest.raises(InputError, match=r"'depth'.*base_us, slope_us"):
        LINE.fix(depth=1.0)


def test_a_parameter_stays_within_its_bounds() -> None:
    found = fitted(np.asarray(10.0 - 5e-6 * SIZES))
    assert found.value("slope_us") >= 0.0


def test_predictions_broadcast_and_keep_the_shape() -> None:
    found = fitted(2.0 + 1e-3 * SIZES)
    assert found.predict(size_bytes=64).shape == ()
    assert found.predict(size_bytes=np.array([[4, 8], [16, 32]])).shape == (2, 2)


@given(st.floats(1.0001, 1e6))
@settings(max_examples=30, deadline=None)
def test_a_prediction_past_the_range_is_refused_unless_told_to(factor: float) -> None:
    found = fitted(2.0 + 1e-3 * SIZES)
    for size in (SIZES[-1] * factor, SIZES[0] / factor):
        with pytest.raises(
            InputError, match=r"size_bytes .* outside the fitted range 4 to 1048576 B"
        ):
            found.predict(size_bytes=size)
        assert found.predict(size_bytes=size, extrapolate=True) > 0


def test_a_refused_prediction_says_what_to_do() -> None:
    with pytest.raises(InputError, match="extrapolate=True"):
        fitted(2.0 + 1e-3 * SIZES).predict(size_bytes=1)


@pytest.mark.parametrize(
    ("inputs", "observed", "problem"),
    [
        ({"size_bytes": [1, 2]}, [1, 2], "2 rows for the 2 unknowns.*at least 3"),
        ({"size_bytes": []}, [], "0 rows"),
        ({"size_bytes": [1, 2, 3]}, [1, 2], "shape"),
        ({"size_bytes": [1, 2, np.nan]}, [1, 2, 3], "size_bytes of row 2 is nan"),
        ({"size_bytes": [1, 2, np.inf]}, [1, 2, 3], "size_bytes of row 2 is inf"),
        ({"size_bytes": [1, 2, 3]}, [1, np.nan, 3], "row 1 has the value nan"),
        ({"size_bytes": [1, 2, 3]}, [1, 0, 3], "row 1 has the value 0"),
        ({"size_bytes": [1, 2, 3]}, [1, -4, 3], "row 1 has the value -4"),
        ({"size_bytes": [1, 2, 3, 2]}, [1, 2, 3, 9], "contradict.*size_bytes 2: 2 and 9 us"),
        ({"size": [1, 2, 3]}, [1, 2, 3], "unknown input 'size'.*give size_bytes"),
        ({}, [1, 2, 3], "input 'size_bytes' is missing"),
    ],
)
def test_rows_that_cannot_be_fitted_are_refused(
    inputs: dict[str, list[float]], observed: list[float], problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as refused:
        fit(LINE, inputs, observed, data="made up", where="here")
    assert refused.value.where == "here"
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({}, "missing"),
        ({"size_bytes": 64, "depth": 1}, "unknown input 'depth'"),
        ({"size_bytes": np.nan}, "nan"),
        ({"size_bytes": -1, "extrapolate": True}, "is -1; give finite inputs of at least 0 B"),
    ],
)
def test_predictions_from_wrong_inputs_are_refused(inputs: dict[str, float], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        fitted(2.0 + 1e-3 * SIZES).predict(**inputs)


def test_a_parameter_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'depth'.*base_us, slope_us"):
        fitted(2.0 + 1e-3 * SIZES).value("depth")


def test_a_form_of_which_all_is_known_is_not_fitted() -> None:
    with pytest.raises(InputError, match="no unknowns"):
        fit(LINE.fix(base_us=1, slope_us=1), {"size_bytes": SIZES}, SIZES, data="made up")


# ---- Fits without a row that do not settle ------------------------------------------------------

WALL, SLOPE, PIN = 0.0, 1.0, 2.0


def valley(parameters: Mapping[str, float], inputs: Mapping[str, FloatArray]) -> FloatArray:
    """ln f = 10⁴ (q − p²) of walls, (3 − p)/50 of the slope between them, 10³ (p − 1) of a pin."""
    p, q = parameters["p"], parameters["q"]
    logs = {WALL: 1e4 * (q - p * p), SLOPE: (3.0 - p) / 50, PIN: 1e3 * (p - 1.0)}
    return np.exp([np.clip(logs[kind], -600.0, 600.0) for kind in inputs["kind"].tolist()])


VALLEY = Form(
    name="valley",
    formula="a narrow bent valley",
    source="Rosenbrock (1960)",
    unit="1",
    unknowns=(
        Unknown(name="p", unit="1", meaning="along the valley", start=1.0, low=-np.inf),
        Unknown(name="q", unit="1", meaning="across it", start=1.0, low=-np.inf),
    ),
    inputs=(Input(name="kind", unit="1", meaning="of a row"),),
    evaluate=valley,
)


def test_a_row_without_which_the_fit_does_not_settle_is_counted_and_the_fit_is_kept() -> None:
    """Without the pin p goes from 1 towards 3 along q = p², in more steps than are granted."""
    kinds = [WALL, WALL, SLOPE, SLOPE, PIN]
    found = fit(VALLEY, {"kind": kinds}, np.ones(5), data="made up")
    assert found.value("p") == pytest.approx(1.0, abs=1e-3)
    assert np.isnan(found.leave_one_out).tolist() == [False, False, False, False, True]
    assert (found.held_out.n, found.held_out.unsettled) == (4, 1)
    assert found.held_out.worst == pytest.approx(np.exp(2 / 50) - 1, rel=1e-3)
    assert str(found.held_out).endswith("of 4 rows; without each of 1 more the fit did not settle")


def test_where_all_fits_settle_the_held_out_errors_are_of_all_rows() -> None:
    held_out = fitted(noisy(2.0, 1e-3, 1)).held_out
    assert (held_out.n, held_out.unsettled) == (SIZES.size, 0)
    assert str(held_out).endswith(f"of {SIZES.size} rows")


def test_a_fit_that_settles_without_none_of_its_rows_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The start is the answer for all three rows, and for no two of them; no step is granted."""
    level = Unknown(name="level", unit="us", meaning="of all rows", start=1.0)
    form = replace(
        LINE, unknowns=(level,), evaluate=lambda p, x: np.full(x["size_bytes"].size, p["level"])
    )
    monkeypatch.setattr(import_module("weft.model.fit"), "_STEPS_PER_UNKNOWN", 1)
    with pytest.raises(InputError, match="does not settle without any one of its 3 rows"):
        fit(form, {"size_bytes": [1, 2, 3]}, [0.5, 1.25, 1.6], data="made up")
