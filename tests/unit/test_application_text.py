"""An application on the terminal and as a figure: every number in its place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from weft.model import ErrorSummary
from weft.plot.style import INK, OURS, PALETTE
from weft.sensitivity.application import Application, CurveRow, Fitted, Profile, Quality, Run
from weft.sensitivity.application_table import (
    format_application,
    format_table_of_applications,
    sensitivity_curve,
)
from weft.sensitivity.model import Hinges, Polynomial, confidence_band


def quality(r_squared: float | None, worst: float | None) -> Quality:
    errors = None if worst is None else ErrorSummary(median=0.01, p90=0.02, worst=worst, n=2)
    return Quality(r_squared=r_squared, left_out=errors)


RUNS = tuple(Run(share=b, completion=c) for b, c in ((0.25, 4.0), (0.5, 2.0), (1, 1.0), (1, 1.5)))
WEB = Application(
    profile=Profile(
        name="web",
        runs=RUNS,
        command=("fetch", "--all", "pages"),
        link_bps=1e9,
        machine={"host": "h1", "cores": 4},
        date="2026-11-16T10:00:00Z",
        notes=("set aside: run 2",),
    ),
    convex=Fitted(
        model=Hinges(terms=((1.0, 0.5), (0.5, 0.25)), floor=0.25), quality=quality(0.98765, 0.0449)
    ),
    paper=(
        Fitted(model=Polynomial(coefficients=(3.0, -2.0), floor=0.25), quality=quality(0.9, None)),
        Fitted(
            model=Polynomial(coefficients=(4.0, -5.5, 2.5), floor=0.25), quality=quality(None, 0.2)
        ),
    ),
    traced=Fitted(
        model=Hinges(terms=((1.0, 0.1), (0.9, 0.2), (0.8, 0.3), (0.7, 0.4)), floor=0.1),
        quality=quality(0.5, 0.3),
    ),
)
BARE = replace(
    WEB,
    profile=Profile(name="web", runs=RUNS, completion_unit="slowdown"),
    convex=Fitted(model=Hinges(terms=(), floor=0.6), quality=quality(None, None)),
    traced=None,
)
ROWS = [
    CurveRow(
        share=0.25, observed=3.5, convex=2.75, low=2.5, high=3.0, paper=(2.5, 2.78), traced=4.2
    ),
    CurveRow(
        share=1.0, observed=None, convex=1.0, low=None, high=None, paper=(1.0, 1.0), traced=1.0
    ),
]


def test_the_table_has_slowdowns_at_half_the_link_and_at_the_floor() -> None:
    """D(0.5) = 1 + 0.5 · (2 − 1); D(0.25) = 1 + 0.5 · 3 + 0.25 · 1."""
    head, _, web, bare = format_table_of_applications([WEB, BARE]).splitlines()
    assert head.split("  ")[0] == "application"
    assert " ".join(web.split()) == "web 4 3 from 25 % 1 Gb/s 1.50 2.75 0.988 4.5 % 2026-11-16"
    assert " ".join(bare.split()) == "web 4 3 from 60 % – – 1.00 – – –"
    at_half = replace(BARE, convex=replace(BARE.convex, model=Hinges(terms=(), floor=0.5)))
    assert format_table_of_applications([at_half]).splitlines()[2].split()[7:9] == ["1.00", "1.00"]


def test_one_application_is_shown_with_its_facts_models_and_curve() -> None:
    assert format_application(WEB, ROWS) == "\n".join(
        [
            "web",
            "   profile: 4 runs at 25, 50, 100 % of the link",
            "   command: fetch --all pages",
            "      link: 1 Gb/s",
            "  at 100 %: 1.25 s, the mean",
            "      date: 2026-11-16T10:00:00Z",
            "      host: h1",
            "     cores: 4",
            "      note: set aside: run 2",
            "",
            "model             R²     left out  slowdown at the share b",
            f"----------------  -----  --------  {'-' * 80}",
            "convex (default)  0.988  4.5 %     1 + 0.5 max(0, 1/b − 1) + 0.25 max(0, 0.5/b − 1)",
            "paper, degree 1   0.900  –         3 − 2 b",
            "paper, degree 2   –      20.0 %    4 − 5.5 b + 2.5 b^2",
            "traced, one run   0.500  30.0 %    1 + 0.1 max(0, 1/b − 1) + 0.2 max(0, 0.9/b − 1) "
            "+ 0.3 max(0, 0.8/b − 1) + 1 more",
            "",
            "share  observed  convex  95 % from     to  degree 1  degree 2  traced",
            "-----  --------  ------  ---------  -----  --------  --------  ------",
            "25 %      3.500   2.750      2.500  3.000     2.500     2.780   4.200",
            "100 %         –   1.000          –      –     1.000     1.000   1.000",
        ]
    )


def test_what_is_not_known_has_no_line() -> None:
    text = format_application(BARE, [replace(row, traced=None) for row in ROWS])
    facts, models, curve = text.split("\n\n")
    assert facts.splitlines() == ["web", "   profile: 4 runs at 25, 50, 100 % of the link"]
    assert [line.split("  ")[0] for line in models.splitlines()[2:]] == [
        "convex (default)",
        "paper, degree 1",
        "paper, degree 2",
    ]
    assert curve.splitlines()[0].endswith("degree 2")


def test_long_texts_are_wrapped_below_themselves() -> None:
    notes = (" ".join(["word"] * 40),)
    rising = Fitted(
        model=Polynomial(coefficients=(1.0, 2.0), floor=0.25), quality=quality(1.0, None)
    )
    flat = Fitted(model=Hinges(terms=(), floor=0.25), quality=quality(0.1, None))
    noted = replace(BARE, profile=replace(BARE.profile, notes=notes), paper=(rising,), convex=flat)
    lines = format_application(noted, []).splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("      note: word"))
    assert lines[first + 1].startswith(" " * 12 + "word")
    assert max(map(len, lines)) <= 98
    warned = [n for n, line in enumerate(lines) if line.startswith("note: ")]
    assert len(warned) == len(noted.warnings) == 2
    assert lines[warned[0] + 1].startswith("  ")


# ---- The figure -------------------------------------------------------------------------------


def draw(application: Application) -> Any:
    ax = Figure().subplots()
    sensitivity_curve(ax, application)
    return ax


def test_the_figure_has_a_line_for_each_model_from_the_floor_to_the_whole_link() -> None:
    ax = draw(WEB)
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert [*lines] == [
        "polynomial, degree 1",
        "polynomial, degree 2",
        "traced, one run",
        "convex",
        "samples",
    ]
    models = {
        "polynomial, degree 1": WEB.paper[0].model,
        "polynomial, degree 2": WEB.paper[1].model,
        "traced, one run": WEB.traced.model if WEB.traced else None,
        "convex": WEB.convex.model,
    }
    for name, model in models.items():
        x, y = (np.asarray(part) for part in lines[name].get_data())
        assert model is not None
        assert (x[0], x[-1], len(x)) == (pytest.approx(25), pytest.approx(100), 200)
        assert y == pytest.approx(model.slowdown(x / 100))
    assert lines["samples"].get_xdata() == pytest.approx([25, 50, 100, 100])
    assert lines["samples"].get_ydata() == pytest.approx([3.2, 1.6, 0.8, 1.2])


def test_the_figure_has_its_axes_and_tells_its_lines_apart() -> None:
    ax = draw(WEB)
    assert ax.get_xlim() == (0, 102)
    assert ax.get_ylim()[0] == 0
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("share of the link (%)", "slowdown of web")
    first, second, traced, convex, samples = ax.get_lines()
    colours = [to_hex(line.get_color()) for line in (first, second, traced, convex)]
    assert colours == [to_hex(colour) for colour in (PALETTE[1], PALETTE[2], INK, OURS)]
    assert len({line.get_linestyle() for line in (first, second, convex)}) == 3
    assert (samples.get_linestyle(), samples.get_marker()) == ("None", "o")


def test_the_band_is_drawn_where_runs_were_repeated() -> None:
    ax = draw(WEB)
    (band,) = ax.collections
    assert band.get_label() == "convex, 95 % band"
    edge = band.get_paths()[0].vertices
    limits = confidence_band(WEB.profile.samples, np.array([0.25]))
    assert limits is not None
    at_floor = edge[np.isclose(edge[:, 0], 25), 1]
    assert (at_floor.min(), at_floor.max()) == (
        pytest.approx(float(limits.low[0])),
        pytest.approx(float(limits.high[0])),
    )
    once = replace(WEB, profile=replace(WEB.profile, runs=RUNS[:3]), traced=None)
    assert not draw(once).collections
    assert "traced, one run" not in {line.get_label() for line in draw(once).get_lines()}
