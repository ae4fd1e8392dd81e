"""The style of all figures, and figures as SVG or PNG.

Colours differ for all common kinds of colour vision, and line styles differ in grey. The same
figure gives the same bytes. matplotlib takes half a second to import, so it is imported where
something is drawn. Entry points: `figure`, `to_svg`, `to_png`.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#4D4D4D", "#000000")
DASHES = ("-", "--", "-.", ":", "-", "--", "-.", ":")
OURS, PUBLISHED, MUTED, GRID = "#0072B2", "#D55E00", "#6B7280", "#E5E7EB"
INK = "#1F2937"

# matplotlib types its keys as a literal that changes with each release.
SETTINGS: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.labelsize": 9.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9CA3AF",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "text.color": INK,
    "text.parse_math": False,
    "lines.linewidth": 1.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 150,
    "svg.fonttype": "none",
    "svg.hashsalt": "weft",
}

WIDTH_IN, HEIGHT_IN = 5.6, 3.2
_LEGEND_ROW_IN = 0.17


def figure(
    draw: Callable[[Axes], None], width_in: float = WIDTH_IN, height_in: float = HEIGHT_IN
) -> Figure:
    """A figure of one set of axes, drawn on by `draw` in weft's style."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        drawing = Figure(figsize=(width_in, height_in), layout="constrained")
        FigureCanvasAgg(drawing)
        draw(drawing.add_subplot())
    return drawing


def line_style(index: int) -> dict[str, Any]:
    """Colour and dash of the index-th line."""
    return {"color": PALETTE[index % len(PALETTE)], "linestyle": DASHES[index % len(DASHES)]}


_LEGEND_LETTERS = 84  # that fit beside each other, the sample of a line being some six
_LABEL_LETTERS = 72


def _legend_columns(labels: Sequence[str]) -> int:
    longest = max(map(len, labels))
    return max(1, min(len(labels), 4, _LEGEND_LETTERS // (longest + 6)))


def legend(ax: Axes) -> None:
    """A legend above the axes, where it hides no data; none for a single line."""
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) < 2:
        return
    columns = _legend_columns(labels)
    labels = [textwrap.fill(label, _LABEL_LETTERS) for label in labels]
    rows = -(-(len(labels) + sum(label.count("\n") for label in labels)) // columns)
    drawing = ax.get_figure(root=True)
    if drawing is not None:
        # The figure grows by the legend's rows: every plot keeps the same height.
        drawing.set_figheight(drawing.get_figheight() + _LEGEND_ROW_IN * rows)
    ax.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1.01),
        borderaxespad=0,
        ncols=columns,
        handlelength=2.2,
        columnspacing=1.4,
    )


def to_svg(drawing: Figure, salt: str = "weft", title: str = "") -> str:
    """An <svg> element, to be put in a page or a file.

    Ids are derived from `salt`: two figures on one page need two salts.
    """
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context(SETTINGS | {"svg.hashsalt": salt}):
        drawing.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    element = buffer.getvalue()
    element = element[element.index("<svg") :].rstrip() + "\n"
    # Names such as axes_1 recur in every figure; only hashed ids are ever referred to.
    element = re.sub(r'<g id="[a-z0-9]+(?:\.[a-z]+)?_\d+">', "<g>", element)
    label = f' role="img" aria-label="{_attribute(title)}"' if title else ' role="img"'
    return element.replace("<svg", f"<svg{label}", 1)


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def to_png(drawing: Figure, dpi: int = 150) -> bytes:
    """The figure as a PNG file."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        drawing.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def label_log_axis(axis: Axis) -> None:
    """Plain numbers on a log axis, between its decades too where there are few."""
    from matplotlib.ticker import LogFormatter

    class PlainNumbers(LogFormatter):
        """Labels where matplotlib would have one, as numbers: text here is never mathematics."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axis.set_major_formatter(PlainNumbers())
    axis.set_minor_formatter(PlainNumbers())
