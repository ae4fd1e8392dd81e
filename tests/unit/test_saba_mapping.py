"""Figs. 4.7 to 4.9 of the Saba thesis: what the text says of the mapping comes out."""

from __future__ import annotations

import pytest

from weft.plot.style import figure
from weft.studies import Result, Study, run_study
from weft.studies.saba.priority_levels import FIG4_7, FIG4_8, FIG4_9, fit_stated_lines

MAPPING = (FIG4_7, FIG4_8, FIG4_9)


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {study.name: run_study(study) for study in MAPPING}


def test_lines_pass_through_what_is_stated() -> None:
    assert set(fit_stated_lines()) == {"TS", "PR", "SQL", "LR"}
    assert float(fit_stated_lines()["LR"].slowdown(0.25)) == pytest.approx(3.4)
    assert float(fit_stated_lines()["LR"].slowdown(1.0)) == pytest.approx(1.0)


def test_claims_are_judged_as_far_as_the_text_goes(results: dict[str, Result]) -> None:
    words = {
        name: [verdict.word for verdict in result.verdicts] for name, result in results.items()
    }
    assert words == {
        FIG4_7.name: ["holds", "not judged", "holds"],
        FIG4_8.name: ["holds"],
        FIG4_9.name: ["holds", "holds"],
    }


def test_every_published_number_comes_out(results: dict[str, Result]) -> None:
    rows = [row for result in results.values() for row in result.compared]
    assert len(rows) == 4
    assert all(row.ours == row.published for row in rows)


@pytest.mark.parametrize("study", MAPPING, ids=lambda study: study.name)
def test_every_panel_names_its_axes(study: Study, results: dict[str, Result]) -> None:
    result = results[study.name]
    for panel in study.panels:
        (ax,) = figure(lambda ax, draw=panel: draw(ax, result)).axes  # type: ignore[misc]
        assert ax.get_xlabel()
        assert ax.get_ylabel()
