"""An application: its profile, both kinds of model fitted to it, and how well each fits.

Entry point: `application_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from typing import Generic, TypeVar

import numpy as np

from weft.errors import InputError
from weft.model import ErrorSummary
from weft.sensitivity.fit import (
    DEGREES,
    Sample,
    fit_convex,
    fit_polynomial,
    left_out,
    r_squared,
    unseen_errors,
)
from weft.sensitivity.model import Hinges, Polynomial, Sensitivity
from weft.sensitivity.profile import Profile

Model = TypeVar("Model", Hinges, Polynomial)

_RISING = 1e-9  # slope: less is rounding
_WORSE = 0.1  # of R²: a convex fit so far behind a polynomial cannot follow the samples
_NOISE = 0.05  # of slowdown: below that, what R² is about is noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well a model fits; None where the samples do not tell.

    `r_squared` is of all samples (Saba, 4.2.2), `left_out` of shares that the fit has not seen.
    """

    r_squared: float | None
    left_out: ErrorSummary | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted(Generic[Model]):
    """A model and how well it fits the profile."""

    model: Model
    quality: Quality


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A row of the sensitivity table: the convex model is what is used unless told otherwise.

    `traced` is what the trace of a single run gave, if there was one: its quality is against the
    profile, of which it has seen nothing.
    """

    profile: Profile
    convex: Fitted[Hinges]
    paper: tuple[Fitted[Polynomial], ...]
    traced: Fitted[Hinges] | None = None

    @property
    def name(self) -> str:
        return self.profile.name

    @property
    def floor(self) -> float:
        return self.convex.model.floor

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before a model is used."""
        told = []
        ours, best = self.convex.quality.r_squared, self._best_polynomial()
        behind = ours is not None and best is not None and best > ours + _WORSE
        if behind and unseen_errors(self.convex.model, self.profile.samples).worst > _NOISE:
            told.append(
                f"the convex fit (R² {ours:.2f}) cannot follow samples that grow more slowly than "
                f"1/share, which no mix of computing and sending does; a polynomial has {best:.2f}"
            )
        rising = [m.model.degree for m in self.paper if _rises(m.model)]
        if rising:
            degrees = " and ".join(map(str, rising))
            told.append(f"the polynomial of degree {degrees} rises with more bandwidth somewhere")
        return tuple(told)

    def _best_polynomial(self) -> float | None:
        return max(
            (m.quality.r_squared for m in self.paper if m.quality.r_squared is not None),
            default=None,
        )


def application_of(profile: Profile, traced: Hinges | None = None) -> Application:
    """Fit every model that the profile determines: convex, and the polynomials of degree 1 to 3.

    `traced` is the estimate from one run, down to the least share profiled or below.
    """
    samples = profile.samples
    shares = len({sample.share for sample in samples})
    return Application(
        profile=profile,
        convex=_fitted(fit_convex, samples, 2),
        paper=tuple(
            _fitted(partial(fit_polynomial, degree=degree), samples, degree + 1)
            for degree in DEGREES
            if degree < shares
        ),
        traced=None if traced is None else _held_against(traced, samples),
    )


def _held_against(traced: Hinges, samples: Sequence[Sample]) -> Fitted[Hinges]:
    floor = min(sample.share for sample in samples)
    if traced.floor > floor:
        problem = f"its floor {traced.floor:g} is above the least share profiled, {floor:g}"
        raise InputError("estimate from a trace", problem, "estimate down to that share")
    errors = unseen_errors(traced, samples)
    return Fitted(
        model=traced, quality=Quality(r_squared=_explained(traced, samples), left_out=errors)
    )


def _explained(model: Sensitivity, samples: Sequence[Sample]) -> float | None:
    explained = r_squared(model, samples)
    return None if isnan(explained) else explained


def _fitted(
    fit: Callable[[Sequence[Sample]], Model], samples: Sequence[Sample], least: int
) -> Fitted[Model]:
    model = fit(samples)
    quality = Quality(r_squared=_explained(model, samples), left_out=left_out(fit, samples, least))
    return Fitted(model=model, quality=quality)


def _rises(model: Polynomial) -> bool:
    """Whether the slope is positive between the floor and 1, on a grid."""
    return bool((model.slope(np.linspace(model.floor, 1, 201)) > _RISING).any())
