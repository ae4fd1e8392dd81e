"""Slowdowns at a port that lends: a weight is a promise, and what one leaves the others use.

A port that serves by weights never idles while someone waits. An application that sends while of
the others only the set S does has the share w_i / (w_i + sum of w_j over S), and the whole link
alone; so it is faster than its weight promises whenever another one computes. Taking the others to
send independently of each other, j for the part a_j of the time,

    1 / D_i = sum over S of P(S) / D_i(b_iS),   a_j = min(1, V_j / (b_j D_j)),   b_j the mean b_jS,

where V is the part of its time for which an application keeps the whole link busy when it is alone:
of its bytes (`volume_of`), or of its model. In a convex model a term c max(0, t/b - 1) is
communication of volume c t, so that V = sum of c t (what is hidden at every share of the profile is
not known and left out). Progress is averaged, not shares: that is right where the others' phases
last long beside what an application can hide.
Entry points: `lent_slowdowns`, `weights_with_lending`. Shares are fractions of the link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations, product
from math import log, sqrt
from statistics import median

import numpy as np

from weft.control.policy.response import Responses
from weft.errors import InputError
from weft.sensitivity.application import Application
from weft.sensitivity.model import FloatArray, Hinges

MOST = 10  # applications: all sets of them are looked at
_STEPS = 200
_SETTLED = 1e-6
_ROUNDING = 1e-9
_FINEST = 0.004  # of the link, the least weight that is handed over
_AS_GOOD = 0.005
_WORTH = 1e-4  # of slowdown, below which an exchange is not worth it


def volume(model: Hinges) -> float:
    """What the model says is sent in a run, as a fraction of a run's time with the whole link."""
    return min(1.0, sum(c * t for t, c in model.terms))


def volume_of(application: Application) -> float:
    """The same by the bytes of its runs with the whole link, where they tell.

    A profile has the bytes that the host of the command sent and received. Its busier direction had
    all of them or half of them, whichever is nearer to what the model says; where neither is within
    a factor of the root of 2, other hosts sent the rest, and the model says more than the bytes.
    """
    profile, said = application.profile, volume(application.convex.model)
    counted = [run.bytes for run in profile.runs if run.share == 1 and run.bytes]
    if not counted or not said or profile.link_bps is None or profile.completion_unit != "s":
        return said
    both = 8 * median(counted) / (profile.link_bps * profile.baseline)
    nearest = min((both, both / 2), key=lambda sent: abs(log(sent / said)))
    near = 1 / sqrt(2) <= nearest / said <= sqrt(2)
    return min(1.0, nearest) if near else said


@dataclass(frozen=True, slots=True)
class Lending:
    """Applications at a port whose managed share is `capacity`.

    `volumes` are the part of its time that each keeps the whole link busy alone; by default what
    the models say.
    """

    models: Sequence[Hinges]
    capacity: float = 1.0
    volumes: Sequence[float] = ()
    responses: Responses = field(init=False)
    sent: FloatArray = field(init=False)
    sets: FloatArray = field(init=False)  # a row per set of applications that send, 1 for each

    def __post_init__(self) -> None:
        count = len(self.models)
        if not 1 <= count <= MOST:
            raise InputError("lending", f"{count} applications", f"use 1 to {MOST}")
        object.__setattr__(self, "responses", Responses.of(self.models))
        sent = np.array(self.volumes or [volume(model) for model in self.models])
        if sent.shape != (count,) or not ((sent >= 0) & (sent <= 1)).all():
            problem = f"{[*self.volumes]} of {count} applications"
            raise InputError("volumes", problem, "give one of 0 to 1 for each")
        object.__setattr__(self, "sent", sent)
        object.__setattr__(self, "sets", np.array([*product((0.0, 1.0), repeat=count)]))

    def slowdowns(self, weights: FloatArray) -> FloatArray:
        """Predicted, of each application, with these weights."""
        shares = self._shares(weights)
        each = self._each(shares)
        sending, slower = np.ones(len(weights)), np.ones(len(weights))
        for _ in range(_STEPS):
            likely = self._likely(sending)
            slower = 1 / (likely / each).sum(axis=0)
            wanted = np.minimum(1.0, self.sent / ((likely * shares).sum(axis=0) * slower))
            if np.abs(wanted - sending).max() < _SETTLED:
                break
            sending = (sending + wanted) / 2
        return slower

    def total(self, weights: FloatArray) -> float:
        """The slowdowns' sum with these weights."""
        return float(self.slowdowns(weights).sum())

    def _shares(self, weights: FloatArray) -> FloatArray:
        """Of each application (column) while it sends beside each set of others (row)."""
        others = (self.sets @ weights)[:, None] - self.sets * weights
        return np.asarray(weights / (weights + others))

    def _each(self, shares: FloatArray) -> FloatArray:
        """Slowdowns at these shares; below a floor, what it is there."""
        b = np.maximum(shares, self.responses.floor)[..., None]
        hidden = np.maximum(0.0, self.responses.t / b - 1)
        return np.asarray(1 + (self.responses.c * hidden).sum(axis=-1))

    def _likely(self, sending: FloatArray) -> FloatArray:
        """How likely each set is beside an application: the others in it send, the rest do not.

        Sets that differ in the application itself are one: each has half of the likelihood.
        """
        chances = np.where(self.sets > 0, sending[None, :], 1 - sending[None, :])
        found = np.empty_like(chances)
        for n in range(len(sending)):
            found[:, n] = np.delete(chances, n, axis=1).prod(axis=1) / 2
        return found


def lent_slowdowns(
    models: Sequence[Hinges],
    weights: Sequence[float],
    capacity: float = 1.0,
    volumes: Sequence[float] = (),
) -> FloatArray:
    """The predicted slowdown of each application, what the others leave included."""
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (len(models),) or not (given > 0).all():
        raise InputError("weights", f"{list(weights)}", "give a positive one for each model")
    if given.sum() > capacity + _ROUNDING:
        problem = f"{given.sum():g} in all, the capacity is {capacity:g}"
        raise InputError("weights", problem, "scale them down")
    return Lending(models, capacity, volumes).slowdowns(given)


def weights_with_lending(
    models: Sequence[Hinges], capacity: float = 1.0, volumes: Sequence[float] = ()
) -> FloatArray:
    """Weights for which the total slowdown with lending is least, as far as exchanges find them.

    From weights as equal as the floors allow, and from one application far before or behind the
    others, a part of one's weight is handed over to another as long as that helps, in ever smaller
    parts. The total is not convex in the weights: the best of the local answers is taken, and of
    the weights between it and those equal ones the nearest to equal that are as good but for 0.5 %:
    a promise is worth something where a model is wrong.
    """
    lending = Lending(models, capacity, volumes)
    floors = lending.responses.floor
    if floors.sum() > capacity + _ROUNDING:
        told = f"the floors of {len(models)} applications sum to {floors.sum():.4g}"
        problem = f"{told}, the capacity is {capacity:.4g}"
        raise InputError("lending", problem, "lower the floors or admit fewer applications")
    equal = _as_equal(floors, capacity)
    starts = [equal]
    for one in np.eye(len(models)):
        before = np.where(one > 0, capacity - (floors.sum() - floors), floors)
        behind = floors + (1 - one) * (capacity - floors.sum()) / max(1, len(models) - 1)
        starts += [before, behind]
    best = min((_improved(lending, start) for start in starts), key=lending.total)
    return _nearest(lending, equal, best)


def _as_equal(floors: FloatArray, capacity: float) -> FloatArray:
    """Equal weights but for those whose floor is higher."""
    held = np.zeros(len(floors), dtype=bool)
    while True:
        level = (capacity - floors[held].sum()) / (~held).sum()
        short = ~held & (floors > level + _ROUNDING)
        if not short.any():
            return np.asarray(np.where(held, floors, level))
        held |= short


def _nearest(lending: Lending, equal: FloatArray, best: FloatArray) -> FloatArray:
    enough = lending.total(best) * (1 + _AS_GOOD)
    for step in np.linspace(0, 1, 101).tolist():
        weights: FloatArray = equal + step * (best - equal)
        if lending.total(weights) <= enough:
            return weights
    return best


def _improved(lending: Lending, weights: FloatArray) -> FloatArray:
    best, part = lending.total(weights), 0.25 * lending.capacity
    while part > _FINEST:
        found = min(_exchanges(lending, weights, part), key=lending.total, default=weights)
        total = lending.total(found)
        if total > best - _WORTH:
            part /= 2
        else:
            weights, best = found, total
    return weights


def _exchanges(lending: Lending, weights: FloatArray, part: float) -> Iterator[FloatArray]:
    """All that hand over a part of one's weight to another, and keep to its floor."""
    for giver, taker in permutations(range(len(weights)), 2):
        if weights[giver] - part >= lending.responses.floor[giver]:
            changed = weights.copy()
            changed[giver] -= part
            changed[taker] += part
            yield changed
