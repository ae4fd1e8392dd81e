"""Stages of a job from slowdowns: how much it sends after computing, and how much beside it.

Each loop has up to two stages. `exchange` computes, then sends: E of the time alone, all of it
waited for. `stream` sends beside a computation of length H, hidden down to a quarter of the link:

    D(b) = 1 + E (1/b − 1) + H max(0, 0.25/b − 1),    E, H >= 0,    E + H <= 1

The last is the volume bound (`port_bound`). E and H are the least squares of relative errors, by
non-negative least squares with a slack. Where the slowdowns leave H open, a volume decides.
`complete_s` is the closed form of such a job alone, from its stages and not from E and H.
Entry points: `fit_mix`, `build_stages`, `complete_s`. Units: seconds, bytes, bits per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.jobs import Job

HIDDEN_TO = 0.25  # a stream costs nothing down to this share
_BINDING = 1e6  # weight of the volume bound
_WEAK = 1e-3  # weight of a volume beside slowdowns


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Of a job's time alone: what it sends after computing (E), computes while sending (H)."""

    exchanged: float
    streamed: float

    @property
    def volume(self) -> float:
        """V: what is sent, at the full rate, over the time alone."""
        return self.exchanged + HIDDEN_TO * self.streamed

    def slowdown(self, share: float) -> float:
        hidden = self.streamed * max(0.0, HIDDEN_TO / share - 1)
        return 1 + self.exchanged * (1 / share - 1) + hidden


def fit_mix(slowdowns: Mapping[float, float], volume: float | None) -> Mix:
    """The mix closest to the slowdowns by share; `volume` None: nothing is sent beside."""
    from scipy.optimize import nnls  # see weft.model.fit

    terms = Mix(exchanged=1, streamed=0), Mix(exchanged=0, streamed=1)
    rows = [[*((t.slowdown(b) - 1) / d for t in terms), 0.0] for b, d in slowdowns.items()]
    right = [(d - 1) / d for d in slowdowns.values()]
    rows.append([_BINDING] * 3)
    right.append(_BINDING)
    if volume is not None:
        rows.append([_WEAK, _WEAK * HIDDEN_TO, 0.0])
        right.append(_WEAK * volume)
    matrix = np.array(rows)
    if volume is None:
        matrix[:, 1] = 0
    (exchanged, streamed, _), _ = nnls(matrix, np.array(right))
    return Mix(exchanged=float(exchanged), streamed=float(streamed))


def build_stages(
    mix: Mix, alone_s: float, loops: int, rate_bps: float, pieces: Sequence[float] = (1.0,)
) -> list[dict[str, Any]]:
    """The stages of one loop, as in a job file; times in whole ms, volumes in whole MB.

    `pieces` are the parts of the exchange, each a stage.
    """
    loop_s = alone_s / loops
    computed = max(0.0, 1 - mix.exchanged - mix.streamed)
    names = (
        [f"exchange-{n}" for n in range(1, len(pieces) + 1)] if len(pieces) > 1 else ["exchange"]
    )
    stages = [
        _make_stage(name, piece * computed, piece * mix.exchanged, 0.0, loop_s, rate_bps)
        for name, piece in zip(names, pieces, strict=True)
    ]
    if mix.streamed:
        hidden = HIDDEN_TO * mix.streamed
        stages.append(_make_stage("stream", mix.streamed, hidden, 1.0, loop_s, rate_bps))
    return stages


def _make_stage(
    name: str, computed: float, sent: float, overlap: float, loop_s: float, rate_bps: float
) -> dict[str, Any]:
    return {
        "name": name,
        "compute": f"{round(computed * loop_s * 1e3)} ms",
        "volume": f"{round(sent * loop_s * rate_bps / 8e6)} MB",
        "pattern": "shuffle",
        "overlap": overlap,
    }


def complete_s(job: Job, rate_bps: float, share: float = 1.0) -> float:
    """Completion alone, its ports capped at a share: max(C + (1 − o) S / b, S / b) a stage."""
    if job.loops is None:
        raise InputError(job.where, "loops until the end", "give a number of loops")
    total = 0.0
    for number, stage in enumerate(job.stages):
        if stage.pattern not in ("", "shuffle"):
            problem = f"stage {stage.name} is {stage.pattern}"
            raise InputError(job.where, problem, "the closed form is of shuffles; simulate it")
        if stage.after != ((number - 1,) if number else ()):
            problem = f"stage {stage.name} does not follow the one before"
            raise InputError(job.where, problem, "the closed form is of a chain; simulate it")
        sending_s = 8 * stage.volume_bytes / (rate_bps * share)
        total += max(stage.compute_ps / 1e12 + (1 - stage.overlap) * sending_s, sending_s)
    return job.loops * total
