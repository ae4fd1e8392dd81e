"""Records as figures and reports.

A drawing function draws one quantity on given axes; `figure` makes styled axes, `to_svg` and
`to_png` files of them, `render_report` a whole page.
"""

from weft.plot.drawings import (
    PublishedPoint,
    cdf,
    cdf_tail,
    compare_published,
    quantile_bars,
    series,
    sweep,
    topology,
)
from weft.plot.report import Section, render_report
from weft.plot.style import figure, to_png, to_svg

__all__ = [
    "PublishedPoint",
    "Section",
    "cdf",
    "cdf_tail",
    "compare_published",
    "figure",
    "quantile_bars",
    "render_report",
    "series",
    "sweep",
    "to_png",
    "to_svg",
    "topology",
]
