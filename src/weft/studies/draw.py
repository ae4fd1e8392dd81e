"""The figures of a study: ours as lines or bars, the published values as open orange marks.

`study_figures` makes one of each panel; the other functions are what studies use to draw theirs:
each draws one quantity on given axes. Units are on the axes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft import __version__
from weft.plot import figure
from weft.plot.style import MUTED
from weft.studies.site import SEED
from weft.studies.study import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_IN, HEIGHT_IN = 6.4, 3.6
CAPTION_WIDTH = 112


def study_figures(result: Result) -> list[Figure]:
    """A figure of each panel of a study, with where its series come from below."""
    return [_panel_figure(panel, result) for panel in result.study.panels]


def _panel_figure(panel: Callable[[Axes, Result], None], result: Result) -> Figure:
    height = HEIGHT_IN if len(result.study.points) != 3 else 0.75 * HEIGHT_IN
    made = figure(lambda ax: panel(ax, result), WIDTH_IN, height)
    caption = textwrap.fill(_caption(result), CAPTION_WIDTH)
    made.supxlabel(caption, fontsize=7.5, color=MUTED, x=0.01, ha="left")
    return made


def _caption(result: Result) -> str:
    """Where the published values are, and what ours are of, as far as it could be had."""
    study = result.study
    had = [point for point in study.points if point.setting in result.records]
    ours = dict.fromkeys((point.source, point.system) for point in had)
    named = "; ".join(
        f"{source}, {system}" + (f", seed {SEED}" if source == "simulation" else "")
        for source, system in ours
    )
    return f"Published: {study.paper.short}, {study.place}. Ours: {named}. weft {__version__}."
