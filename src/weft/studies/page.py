"""Results of studies as sections of a report: the figure, what to know about it, the rows.

Entry point: `study_section`.
"""

from __future__ import annotations

from weft.plot import Section, to_svg
from weft.plot.page import bullets, join, picture
from weft.studies.draw import study_figure
from weft.studies.observation import Row
from weft.studies.study import Result
from weft.studies.text import number, ratio, stated


def study_section(result: Result) -> Section:
    """A study in a report, both series in its figure and in its table."""
    study = result.study
    svg = to_svg(study_figure(result), salt=study.name, title=study.title)
    return Section(
        title=f"{study.place.partition(',')[0]} ({study.system}): {study.title}",
        markup=join([picture(svg), bullets(result.remarks)]),
        rows=[_cells(row) for row in result.rows],
    )


def _cells(row: Row) -> dict[str, object]:
    unit = row.observation.unit.replace("us", "µs")
    return {
        "setting": row.observation.setting,
        "quantity": row.observation.quantity,
        "published": f"{stated(row.published)} {unit}" if row.published is not None else "–",
        "ours": f"{number(row.ours)} {unit}",
        "ratio": ratio(row),
        "in the paper": row.observation.place or "–",
    }
