"""A published table beside a model: a row for each published value, two series in the figure."""

import numpy as np
import pytest

from weft.plot import figure, to_svg
from weft.studies import run_study, study_figures
from weft.studies.published import find_table
from weft.studies.study import IB2016_PAPER, Study
from weft.studies.table_curves import (
    build_table_curve,
    draw_published,
    error_remark,
    observations_of,
    points_of,
    row_errors,
    table_panel,
)

TABLE = find_table("ib2016-table5")


def a_study(factor: float) -> Study:
    curves = [
        build_table_curve(
            TABLE,
            column,
            x="size_bytes",
            label=column,
            quantity="throughput",
            unit="Mb/s",
            system="scaled",
            tolerance=0.1,
            kind="bandwidth",
            predict=lambda x, c=column: (
                factor * np.interp(x, TABLE.column("size_bytes"), TABLE.column(c))
            ),
        )
        for column in TABLE.columns[1:]
    ]
    return Study(
        name="s",
        title="t",
        paper=IB2016_PAPER,
        place="Table 5",
        system="scaled",
        points=points_of(curves),
        observations=observations_of(curves),
        panels=(table_panel(curves, "payload (B)", "throughput (Mb/s)"),),
    )


def test_every_published_value_has_a_row_and_gaps_have_none():
    rows = run_study(a_study(1.0)).rows
    cells = np.array([TABLE.column(c) for c in TABLE.columns[1:]])
    assert np.isnan(cells).any()
    assert len(rows) == np.isfinite(cells).sum()
    assert sorted(row.published for row in rows) == pytest.approx(sorted(cells[np.isfinite(cells)]))


def test_the_error_of_a_model_that_is_a_tenth_high_is_a_tenth():
    result = run_study(a_study(1.1))
    error = row_errors(result)
    whole = [row for row in result.rows if np.isfinite(row.ours)]
    assert error.n == len(whole)
    assert error.median == pytest.approx(0.1)
    assert "error median 10.0 %" in error_remark("scaled", error)


def test_the_figure_has_published_marks_and_a_line_for_each_column():
    (made,) = study_figures(run_study(a_study(1.0)))
    svg = to_svg(made)
    assert all(label in svg for label in ("published", *TABLE.columns[1:], "Table 5"))


def test_axes_without_published_values_are_as_high_as_others():
    def height(points) -> float:
        drawing = figure(lambda ax: draw_published(ax, points, "published"))
        to_svg(drawing)
        return drawing.axes[0].get_position().height

    assert height([]) == pytest.approx(height([(1, 1)]), abs=0.02)
