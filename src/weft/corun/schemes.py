"""The ways in which applications share ports, and what the models predict for each.

`one`: all in one queue. `equal`: a queue each, of equal weights. `weft`: a queue each, of the
weights that make the total slowdown least if each has its weight and no more (Saba, Eq. 4.2).
`lend`: of weights that make it least if what one leaves the others use. Where there are several
queues, traffic that bears no mark has a small one of its own. Pure. Entry point: `ways_of`. Shares
are fractions of the link.
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
    """A way to share. Without `weights` there is one queue, and nothing is predicted.

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


def build_queues(way: Scheme) -> list[Queue]:
    if not way.weights:
        return [Queue(weight=1.0, dscps=(0,))]
    own = [Queue(weight=w, dscps=(application_dscp(n),)) for n, w in enumerate(way.weights)]
    return [Queue(weight=1 - MANAGED, dscps=(0,)), *own]


def build_schemes(
    models: Sequence[Hinges], link_bps: float, volumes: Sequence[float] = ()
) -> dict[str, Scheme]:
    """Every way, with its weights and predictions; without volumes, those of the models."""
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
