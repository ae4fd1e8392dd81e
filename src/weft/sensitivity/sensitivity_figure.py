"""An application's sensitivity as a figure: samples, convex fit with its band, polynomials.

Entry point: `sensitivity_curve`. The horizontal axis is percent of the link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.plot.style import INK, OURS, PALETTE, legend
from weft.sensitivity.application import Application
from weft.sensitivity.fit import confidence_band
from weft.sensitivity.model import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 200
_COLOURS = (PALETTE[1], PALETTE[2], PALETTE[3])
_DASHES = (":", "-.", "--")


def sensitivity_curve(ax: Axes, application: Application) -> None:
    """Slowdown over the share of the link, from the floor up."""
    samples = application.profile.samples
    # Closer together where the curve bends most.
    shares = np.geomspace(application.floor, 1.0, _POINTS)
    _draw_band(ax, application, shares)
    _draw_other_models(ax, application, shares)
    ax.plot(100 * shares, application.convex.model.slowdown(shares), color=OURS, label="convex")
    ax.plot(
        [100 * s.share for s in samples],
        [s.slowdown for s in samples],
        "o",
        markersize=4.5,
        markerfacecolor="white",
        markeredgecolor=INK,
        markeredgewidth=1.1,
        zorder=4,
        clip_on=False,
        label="samples",
    )
    ax.set_xlim(0, 102)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("share of the link (%)")
    ax.set_ylabel(f"slowdown of {application.name}")
    legend(ax)


def _draw_band(ax: Axes, application: Application, shares: FloatArray) -> None:
    limits = confidence_band(application.profile.samples, shares)
    if limits is not None:
        ax.fill_between(
            100 * shares,
            limits.low,
            limits.high,
            color=OURS,
            alpha=0.18,
            linewidth=0,
            label=f"convex, {100 * limits.confidence:.0f} % band",
        )


def _draw_other_models(ax: Axes, application: Application, shares: FloatArray) -> None:
    for number, fitted in enumerate(application.paper):
        ax.plot(
            100 * shares,
            fitted.model.slowdown(shares),
            linewidth=1.2,
            color=_COLOURS[number % 3],
            linestyle=_DASHES[number % 3],
            label=f"polynomial, degree {fitted.model.degree}",
        )
    if application.traced is not None:
        ax.plot(
            100 * shares,
            application.traced.model.slowdown(shares),
            color=INK,
            linewidth=1.2,
            linestyle=(0, (1, 2)),
            label="traced, one run",
        )
