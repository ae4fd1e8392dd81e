"""A paper's values beside ours, with the ratio of the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.plot.style import MUTED, OURS, PUBLISHED, legend
from weft.units import choose_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPoint:
    """One value as published and as we find it, in one unit."""

    label: str
    published: float
    ours: float


def ratio_text(point: PublishedPoint) -> str:
    """ours/published as "0.98×"."""
    return f"{point.ours / point.published:.2f}×" if point.published else "–"


def published_and_ours(
    ax: Axes, points: Sequence[PublishedPoint], unit: str, quantity: str
) -> None:
    """A row for each point: published (ring), ours (dot), and ours/published at the right."""
    display = choose_unit(unit, max((abs(p.published) for p in points), default=0))
    rows = range(len(points))
    published = [p.published / display.divisor for p in points]
    ours = [p.ours / display.divisor for p in points]
    ax.hlines(rows, published, ours, color="#CBD5E1", linewidth=2.5, zorder=1)
    ax.plot(
        published,
        rows,
        "o",
        markersize=8.5,
        markerfacecolor="white",
        markeredgecolor=PUBLISHED,
        markeredgewidth=1.8,
        label="published",
    )
    ax.plot(ours, rows, "o", markersize=5, color=OURS, label="ours")
    for row, point in enumerate(points):
        ax.annotate(
            ratio_text(point),
            (1.01, row),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8.5,
            color=MUTED,
        )
    ax.set_yticks(rows, [p.label for p in points])
    ax.set_ylim(len(points) - 0.4, -0.6)
    if min([*published, *ours], default=0) >= 0:
        ax.set_xlim(left=0)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(f"{quantity} ({display.unit})" if display.unit else quantity)
    legend(ax)
