"""Applications for people: the table of all, one with its curve as text, and as a figure.

Entry points: `format_table_of_applications`, `format_application`, and `sensitivity_curve` for the
samples, the convex fit with its band, and the polynomials. Shares are in percent of the link.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.plot.style import INK, OURS, PALETTE, legend
from weft.records.record_text import format_table
from weft.sensitivity.application import Application, CurveRow, Quality
from weft.sensitivity.model import FloatArray, Hinges, confidence_band
from weft.units import format_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_NONE = "–"
_WIDTH = 98
_TERMS = 3  # of a convex model, in its formula


def percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def format_table_of_applications(applications: Sequence[Application]) -> str:
    """One line per application."""
    heads = ["application", "runs", "shares", "link", "D(50 %)", "D(floor)", "R²", "left out"]
    return format_table([*heads, "profiled"], [_line(a) for a in applications])


def _line(application: Application) -> list[str]:
    profile, quality = application.profile, application.convex.quality
    model, floor = application.convex.model, application.floor
    half = f"{float(model.slowdown(0.5)):.2f}" if floor <= 0.5 else _NONE
    shares = {run.share for run in profile.runs}
    return [
        application.name,
        str(len(profile.runs)),
        f"{len(shares)} from {percent(floor)}",
        _NONE if profile.link_bps is None else format_value(profile.link_bps, "b/s"),
        half,
        f"{float(model.slowdown(floor)):.2f}",
        _optional(quality.r_squared, 3),
        _left_out(quality),
        profile.date.partition("T")[0] or _NONE,
    ]


def format_application(application: Application, rows: Sequence[CurveRow]) -> str:
    """What is known of one application, its models and its curve."""
    parts = [_facts(application), _models(application), _curve(application, rows)]
    if application.warnings:
        parts.append("\n".join(_bullet(f"note: {warning}") for warning in application.warnings))
    return "\n\n".join(parts)


def _facts(application: Application) -> str:
    profile = application.profile
    shares = ", ".join(f"{100 * b:g}" for b in sorted({run.share for run in profile.runs}))
    facts = [("profile", f"{len(profile.runs)} runs at {shares} % of the link")]
    if profile.command:
        facts.append(("command", " ".join(profile.command)))
    if profile.link_bps is not None:
        facts.append(("link", format_value(profile.link_bps, "b/s")))
    if profile.completion_unit == "s":
        facts.append(("at 100 %", f"{profile.baseline:.4g} s, the mean"))
    facts += [("date", profile.date)] if profile.date else []
    facts += [(name, str(value)) for name, value in profile.machine.items()]
    facts += [("note", note) for note in profile.notes]
    return "\n".join([application.name, *(_fact(name, text) for name, text in facts)])


def _fact(name: str, text: str) -> str:
    indent = " " * 12
    return textwrap.fill(text, _WIDTH, initial_indent=f"{name:>10}: ", subsequent_indent=indent)


def _models(application: Application) -> str:
    convex, traced = application.convex, application.traced
    cells = [["convex (default)", *_quality(convex.quality), _hinges(convex.model)]]
    cells += [
        [
            f"paper, degree {fitted.model.degree}",
            *_quality(fitted.quality),
            "".join(_power(n, c) for n, c in enumerate(fitted.model.coefficients)),
        ]
        for fitted in application.paper
    ]
    if traced is not None:
        cells.append(["traced, one run", *_quality(traced.quality), _hinges(traced.model)])
    return format_table(
        ["model", "R²", "left out", "slowdown at the share b"], cells, left_columns=4
    )


def _quality(quality: Quality) -> tuple[str, str]:
    return _optional(quality.r_squared, 3), _left_out(quality)


def _left_out(quality: Quality) -> str:
    """The worst error at a share that the fit has not seen."""
    return _NONE if quality.left_out is None else f"{100 * quality.left_out.worst:.1f} %"


def _hinges(model: Hinges) -> str:
    shown = model.terms[:_TERMS]
    more = [f"{len(model.terms) - _TERMS} more"] if len(model.terms) > _TERMS else []
    return " + ".join(["1", *(f"{c:.4g} max(0, {t:.4g}/b − 1)" for t, c in shown), *more])


def _power(power: int, c: float) -> str:
    if power == 0:
        return f"{c:.4g}"
    return f" {'−' if c < 0 else '+'} {abs(c):.4g} b{'' if power == 1 else f'^{power}'}"


def _curve(application: Application, rows: Sequence[CurveRow]) -> str:
    degrees = [f"degree {fitted.model.degree}" for fitted in application.paper]
    traced = ["traced"] if application.traced is not None else []
    heads = ["share", "observed", "convex", "95 % from", "to", *degrees, *traced]
    return format_table(heads, [list(_cells(row)) for row in rows])


def _cells(row: CurveRow) -> Iterator[str]:
    yield percent(row.share)
    yield from (_optional(v, 3) for v in (row.observed, row.convex, row.low, row.high, *row.paper))
    if row.traced is not None:
        yield _optional(row.traced, 3)


def _optional(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def _bullet(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ")


# ---- The figure ---------------------------------------------------------------------------------

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
