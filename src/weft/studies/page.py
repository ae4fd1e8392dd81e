"""Results of studies as sections of a report: the figure, what to know about it, the rows.

Entry point: `study_section`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.plot import Section, to_svg
from weft.plot.page import bullets, join, picture
from weft.studies.draw import study_figure
from weft.studies.observation import Row
from weft.studies.study import Result
from weft.studies.text import number, paired, ratio, stated, unit_text


def study_section(result: Result) -> Section:
    """A study in a report, both series in its figure and in its table."""
    study = result.study
    svg = to_svg(study_figure(result), salt=study.name, title=study.title)
    return Section(
        title=f"{study.place.partition(',')[0]} ({study.system}): {study.title}",
        markup=join([picture(svg), bullets(result.remarks)]),
        rows=[_cells(rows) for rows in paired(result.rows)],
    )


def _cells(rows: Sequence[Row]) -> dict[str, object]:
    first, unit = rows[0].observation, unit_text(rows[0])
    quantities = " / ".join(
        [first.quantity, *(row.observation.quantity.split()[-1] for row in rows[1:])]
    )
    published = " / ".join(stated(row.published) for row in rows)
    return {
        "setting": first.setting,
        "quantity": quantities,
        "published": f"{published} {unit}" if rows[0].published is not None else "–",
        "ours": f"{' / '.join(number(row.ours) for row in rows)} {unit}",
        "ratio": " / ".join(ratio(row) for row in rows),
        "in the paper": first.place or "–",
    }
