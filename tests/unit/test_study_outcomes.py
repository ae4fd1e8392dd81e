"""What the studies without a simulation come to: rows, verdicts and figures.

tests/data/studies/outcomes.json is our own output, every row and verdict of the version before. It
detects a change of a model, of a judge or of a limit; it is no oracle of what is right. If a
change is meant, write the file again: `python tests/unit/test_study_outcomes.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from weft.plot.style import PUBLISHED
from weft.studies import STUDIES, Result, Study, run_study, study_figures

FILE = Path(__file__).parents[1] / "data" / "studies" / "outcomes.json"
TIMED = "saba-fig4.19"  # measures this machine
CHOSEN = [
    study
    for study in STUDIES
    if study.points
    and study.name != TIMED
    and all(point.source != "simulation" for point in study.points)
]
# A column for every curve and a mark for every row.
TABLES = [s for s in CHOSEN if s.name.startswith(("efa-c", "ib2016-table")) and s.observations]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {study.name: run_study(study) for study in CHOSEN}


def outcome(result: Result) -> dict[str, object]:
    rows = {
        f"{row.observation.setting} | {row.observation.quantity} | {row.system}": float(
            f"{row.ours:.5g}"
        )
        for row in result.rows
    }
    verdicts = {
        f"{claim.statement} | {claim.system}": f"{verdict.word}: {verdict.evidence}"
        for claim, verdict in result.judged
    }
    outside = sorted(row.observation.setting for row in result.rows if not row.within)
    return {"rows": rows, "verdicts": verdicts, "outside": outside, "says": list(result.remarks)}


@pytest.mark.parametrize("study", CHOSEN, ids=lambda study: study.name)
def test_rows_and_verdicts_are_those_of_the_version_before(
    results: dict[str, Result], study: Study
) -> None:
    before, now = json.loads(FILE.read_text("utf-8"))[study.name], outcome(results[study.name])
    assert now["verdicts"] == before["verdicts"]
    assert now["outside"] == before["outside"]
    assert now["says"] == before["says"]
    assert now["rows"] == pytest.approx(before["rows"], rel=1e-4)


def published_marks(ax: Axes) -> list[tuple[float, float]]:
    """Points of the open marks that stand for published values."""
    marks = []
    for line in ax.get_lines():
        open_mark = line.get_markerfacecolor() == "none" and line.get_marker() not in ("", "None")
        if open_mark and to_hex(line.get_markeredgecolor()) == PUBLISHED.lower():
            marks += list(zip(line.get_xdata(), line.get_ydata(), strict=True))
    return [(float(x), float(y)) for x, y in marks]


@pytest.mark.parametrize("study", CHOSEN, ids=lambda study: study.name)
def test_axes_say_what_they_have_and_hide_nothing(results: dict[str, Result], study: Study) -> None:
    for drawing in study_figures(results[study.name]):
        (ax,) = drawing.axes
        assert ax.get_xlabel()
        assert ax.get_ylabel()
        legend = ax.get_legend()
        labels = [text.get_text() for text in legend.get_texts()] if legend else []
        assert len(set(labels)) == len(labels)
        assert not any(label.startswith("_") for label in labels)
        (left, right), (low, high) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
        for line in ax.get_lines():
            if len(line.get_xdata()) and line.get_transform() == ax.transData:
                assert left <= min(line.get_xdata()) <= max(line.get_xdata()) <= right
                assert low <= min(line.get_ydata()) <= max(line.get_ydata()) <= high


@pytest.mark.parametrize("study", TABLES, ids=lambda study: study.name)
def test_every_published_value_of_a_table_is_a_mark(
    results: dict[str, Result], study: Study
) -> None:
    result = results[study.name]
    marks = [y for drawing in study_figures(result) for _, y in published_marks(drawing.axes[0])]
    values = [row.published for row in result.compared]
    if study.name == "ib2016-table1":  # draws data rates, not signal rates
        values = [
            row.published for row in result.compared if row.observation.quantity == "data rate"
        ]
    assert sorted(marks) == pytest.approx(sorted(values))


MI = 2**20
# As the papers' texts have them: x and value, panel by panel.
STATED_MARKS = {
    "fdr-alignment": [[(0, 47.75), (1, 34)]],
    "fdr-outstanding": [[(1, 10), (16, 45), (32, 45)]],
    "fdr-cache": [[(4, 49), (5, 46)]],
    "fdr-eq1": [[(MI, 4), (8 * MI, 1)]],
    "fdr-notification": [[(MI, 50), (16 * MI, 47)]],
    "saba-fig4.3": [[(10, 2.2), (25, 1.2), (100, 1)], [(10, 4.5), (25, 3.4), (75, 1.3), (100, 1)]],
}


@pytest.mark.parametrize("name", STATED_MARKS)
def test_stated_values_are_marked_where_the_text_has_them(
    results: dict[str, Result], name: str
) -> None:
    for drawing, stated in zip(study_figures(results[name]), STATED_MARKS[name], strict=True):
        marks = [number for mark in sorted(published_marks(drawing.axes[0])) for number in mark]
        assert marks == pytest.approx([number for mark in stated for number in mark])


if __name__ == "__main__":
    outcomes = {study.name: outcome(run_study(study)) for study in CHOSEN}
    text = json.dumps(outcomes, ensure_ascii=False, indent=0, sort_keys=True)
    FILE.write_text(text + "\n", "utf-8")
