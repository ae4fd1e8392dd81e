"""An application of the sensitivity table: the profile of its command and the models fitted to it.

A profile holds the runs at several shares of the link as observed; slowdowns are computed from
them. The convex model is the default, the paper's polynomials stand beside it. `build_curve` lists
observations, models and confidence band share by share.
Entry points: `Profile`, `fit_application`, `build_curve`, `parse_shares`.
Units: shares are fractions of the link, times seconds, rates bits per second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf, isfinite, isnan
from statistics import fmean, mean
from typing import Generic, Literal, TypeVar

import numpy as np

from weft.errors import InputError
from weft.model import ErrorSummary
from weft.records import Plain
from weft.sensitivity.model import (
    DEGREES,
    Hinges,
    Polynomial,
    Sample,
    Sensitivity,
    confidence_band,
    fit_convex,
    fit_polynomial,
    leave_one_out,
    prediction_errors,
    r_squared,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

CompletionUnit = Literal["s", "slowdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run at a share of the link; None where something was not observed.

    `completion` is in the profile's unit. `bytes` are those of both directions, `sent_bytes` those
    of them that went out. `run_delay_s` is how long the command's processes were
    ready and waited for a processor: a contended run has much of it.
    """

    share: float
    completion: float
    repetition: int = 0
    bytes: int | None = None
    cpu_s: float | None = None
    run_delay_s: float | None = None
    sent_bytes: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            problem = f"{self.share:g} is not a fraction of the link"
            raise InputError("run: share", problem, "use 0 < share <= 1, 0.25 for 25 %")
        for name, least in (("completion", 0.0), ("bytes", -1), ("cpu_s", -1), ("run_delay_s", -1)):
            value = getattr(self, name)
            if value is not None and not least < value < inf:
                problem = f"{value:g} at share {self.share:g}"
                raise InputError(f"run: {name}", problem, "leave out runs that did not finish")
        if self.sent_bytes is not None and not 0 <= self.sent_bytes <= (self.bytes or 0):
            problem = f"{self.sent_bytes} of {self.bytes} in all"
            raise InputError("run: sent_bytes", problem, "give a part of its bytes")

    @property
    def received_bytes(self) -> int | None:
        if self.bytes is None or self.sent_bytes is None:
            return None
        return self.bytes - self.sent_bytes

    @property
    def busier_bytes(self) -> int | None:
        """Bytes of the busier direction; None if directions were not counted separately."""
        sent, received = self.sent_bytes, self.received_bytes
        return None if sent is None or received is None else max(sent, received)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Runs of one command, where and when. `completion_unit` "slowdown": as published, no times.

    `link_bps` is the rate of the whole link, None where it is not known. `machine` says on what.
    """

    name: str
    runs: tuple[Run, ...]
    command: tuple[str, ...] = ()
    link_bps: float | None = None
    completion_unit: CompletionUnit = "s"
    machine: Mapping[str, Plain] = field(default_factory=dict)
    date: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.link_bps is not None and not (isfinite(self.link_bps) and self.link_bps > 0):
            raise InputError(self.name, f"link rate {self.link_bps:g} b/s", "give a positive rate")
        if not any(run.share == 1 for run in self.runs):
            problem = "no run with the whole link, which slowdown is relative to"
            raise InputError(self.name, problem, "profile at 100 % too")

    @property
    def baseline(self) -> float:
        """Completion with the whole link: the mean of its runs."""
        return fmean(run.completion for run in self.runs if run.share == 1)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Slowdown of each run."""
        baseline = self.baseline
        return tuple(
            Sample(share=run.share, slowdown=run.completion / baseline, repetition=run.repetition)
            for run in self.runs
        )


def is_name(text: str) -> bool:
    """Whether it is a valid name of an application (and of its file)."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str, where: str = "name") -> str:
    """The name, if valid; `where` is the option or field that holds it."""
    if not is_name(name):
        problem = f"{name!r} cannot be the name of an application"
        remedy = "use up to 64 letters, digits and . _ -, a letter or digit first"
        raise InputError(where, problem, remedy)
    return name


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
    """A row of the sensitivity table: the convex model is the default.

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
        """Reasons not to trust a model."""
        warnings = []
        ours, best = self.convex.quality.r_squared, self._best_polynomial()
        behind = ours is not None and best is not None and best > ours + _WORSE
        if behind and prediction_errors(self.convex.model, self.profile.samples).worst > _NOISE:
            warnings.append(
                f"the convex fit (R² {ours:.2f}) cannot follow samples that grow more slowly than "
                f"1/share, which no mix of computing and sending does; a polynomial has {best:.2f}"
            )
        rising = [m.model.degree for m in self.paper if _is_rising(m.model)]
        if rising:
            degrees = " and ".join(map(str, rising))
            warnings.append(
                f"the polynomial of degree {degrees} rises with more bandwidth somewhere"
            )
        return tuple(warnings)

    def _best_polynomial(self) -> float | None:
        return max(
            (m.quality.r_squared for m in self.paper if m.quality.r_squared is not None),
            default=None,
        )


def fit_application(profile: Profile, traced: Hinges | None = None) -> Application:
    """Fit every model that the profile determines: convex, and the polynomials of degree 1 to 3.

    `traced` is the estimate from one run, down to the least share profiled or below.
    """
    samples = profile.samples
    shares = len({sample.share for sample in samples})
    return Application(
        profile=profile,
        convex=_fit_model(fit_convex, samples, 2),
        paper=tuple(
            _fit_model(partial(fit_polynomial, degree=degree), samples, degree + 1)
            for degree in DEGREES
            if degree < shares
        ),
        traced=None if traced is None else _check_estimate(traced, samples),
    )


def _check_estimate(traced: Hinges, samples: Sequence[Sample]) -> Fitted[Hinges]:
    floor = min(sample.share for sample in samples)
    if traced.floor > floor:
        problem = f"its floor {traced.floor:g} is above the least share profiled, {floor:g}"
        raise InputError("estimate from a trace", problem, "estimate down to that share")
    errors = prediction_errors(traced, samples)
    return Fitted(
        model=traced,
        quality=Quality(r_squared=_r_squared_or_none(traced, samples), left_out=errors),
    )


def _r_squared_or_none(model: Sensitivity, samples: Sequence[Sample]) -> float | None:
    explained = r_squared(model, samples)
    return None if isnan(explained) else explained


def _fit_model(
    fit: Callable[[Sequence[Sample]], Model], samples: Sequence[Sample], least: int
) -> Fitted[Model]:
    model = fit(samples)
    quality = Quality(
        r_squared=_r_squared_or_none(model, samples), left_out=leave_one_out(fit, samples, least)
    )
    return Fitted(model=model, quality=quality)


def _is_rising(model: Polynomial) -> bool:
    """Whether the slope is positive between the floor and 1, on a grid."""
    return bool((model.slope(np.linspace(model.floor, 1, 201)) > _RISING).any())


# What `weft profile` and the paper (4.5.1) use.
PAPER_SHARES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """Slowdown at one share; None where nothing was observed or there is no spread."""

    share: float
    observed: float | None
    convex: float
    low: float | None
    high: float | None
    paper: tuple[float, ...]  # by degree, in the application's order
    traced: float | None


def default_shares(application: Application) -> tuple[float, ...]:
    """The profiled shares and those of the paper above the floor, ascending."""
    profiled = {run.share for run in application.profile.runs}
    return tuple(sorted(profiled | {b for b in PAPER_SHARES if b >= application.floor}))


def build_curve(application: Application, shares: Sequence[float]) -> list[CurveRow]:
    """The application's curve at the shares."""
    places = np.array(shares, dtype=np.float64)
    samples = application.profile.samples
    convex = application.convex.model.slowdown(places)
    paper = [fitted.model.slowdown(places) for fitted in application.paper]
    traced = None if application.traced is None else application.traced.model.slowdown(places)
    limits = confidence_band(samples, places)
    return [
        CurveRow(
            share=share,
            observed=mean(observed) if observed else None,
            convex=float(convex[n]),
            low=None if limits is None else float(limits.low[n]),
            high=None if limits is None else float(limits.high[n]),
            paper=tuple(float(values[n]) for values in paper),
            traced=None if traced is None else float(traced[n]),
        )
        for n, share in enumerate(shares)
        for observed in [[sample.slowdown for sample in samples if sample.share == share]]
    ]


def parse_shares(text: str) -> list[float]:
    """Fractions of the link from `--percent`, each once and in ascending order."""
    shares = [_parse_share(word) for word in text.split(",")]
    for before, after in pairwise(shares):
        if after <= before:
            problem = f"{100 * after:g} after {100 * before:g}"
            raise InputError("--percent", problem, "write them ascending, each once")
    return shares


def _parse_share(word: str) -> float:
    try:
        value = float(word)
    except ValueError as error:
        raise InputError("--percent", f"{word!r} is not a number", "write 10,25,50") from error
    if not 0 < value <= 100:  # nan too
        problem = f"{word.strip()} is not above 0 and up to 100"
        raise InputError("--percent", problem, "use percent of the link")
    return value / 100
