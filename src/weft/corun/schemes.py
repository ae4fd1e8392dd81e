"""Schemes by which applications share ports, and what the models predict for each.

`one`: all in one queue. `equal`: one queue each, equal weights. `weft`: one queue each, with the
weights that minimise total slowdown if each has its weight and no more (Saba, Eq. 4.2). `lend`:
weights that minimise it if ports lend idle bandwidth to others. Where there are several queues,
unmarked traffic has a small one of its own. Records have the scheme under the key `way`.
Pure. Entry point: `build_schemes`. Shares are fractions of the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.control.policy.allocate import allocate
from weft.control.policy.lending import choose_weights, predict_slowdowns
from weft.host.net.weighted_queues import Queue
from weft.sensitivity.model import Hinges

MANAGED = 0.99
ALONE, ONE, EQUAL, WEFT, LEND = "alone", "one", "equal", "weft", "lend"
SCHEMES = (ONE, EQUAL, WEFT, LEND)
_KBPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A scheme to share ports. Without `weights` there is one queue, and nothing is predicted.

    `promised` is each application's predicted slowdown if it has no more than its weight, `lent`
    if what the others leave is added.
    """

    name: str
    weights: tuple[float, ...] = ()
    promised: tuple[float, ...] = ()
    lent: tuple[float, ...] = ()


def application_dscp(number: int) -> int:
    """The DSCP of the application with this number, from 0."""
    return number + 1


def build_queues(scheme: Scheme) -> list[Queue]:
    if not scheme.weights:
        return [Queue(weight=1.0, dscps=(0,))]
    managed = [Queue(weight=w, dscps=(application_dscp(n),)) for n, w in enumerate(scheme.weights)]
    return [Queue(weight=1 - MANAGED, dscps=(0,)), *managed]


def build_schemes(
    models: Sequence[Hinges], link_bps: float, volumes: Sequence[float] = ()
) -> dict[str, Scheme]:
    """Every scheme, with its weights and predictions; without volumes, those of the models."""
    everyone = range(len(models))
    units = round(link_bps / _KBPS)
    answer = allocate(models, [everyone], units=units, capacity=MANAGED).at(0)
    weft = [answer[n] / units for n in everyone]
    equal = [MANAGED / len(models)] * len(models)
    lend = choose_weights(models, MANAGED, volumes, units=units).tolist()
    return {
        ONE: Scheme(name=ONE),
        EQUAL: _predict_scheme(EQUAL, models, equal, volumes),
        WEFT: _predict_scheme(WEFT, models, weft, volumes),
        LEND: _predict_scheme(LEND, models, lend, volumes),
    }


def _predict_scheme(
    name: str, models: Sequence[Hinges], weights: Sequence[float], volumes: Sequence[float]
) -> Scheme:
    return Scheme(
        name=name,
        weights=tuple(weights),
        promised=_predict_promised(models, weights),
        lent=tuple(predict_slowdowns(models, weights, MANAGED, volumes).tolist()),
    )


def _predict_promised(models: Sequence[Hinges], shares: Sequence[float]) -> tuple[float, ...]:
    """Below its floor a model says nothing; it is no less there than at the floor."""
    return tuple(
        float(model.slowdown(max(share, model.floor)))
        for model, share in zip(models, shares, strict=True)
    )
