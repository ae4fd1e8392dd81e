"""Results of studies as sections of a report: the figure, what to know about it, the rows.

Entry points: `study_section`, `studies_report`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.plot import Section, render_report, to_svg
from weft.plot.html_page import bullets, fold, join, picture, pictures, row_table
from weft.records import describe_run
from weft.studies.claim import Claim, Verdict
from weft.studies.draw import study_figures
from weft.studies.observation import Row
from weft.studies.study import Result, study_records
from weft.studies.text import claims_verdict, number, paired, ratio, stated, unit_text, verdict

FOLDED = 24  # longer tables are folded away until they are asked for


def study_section(result: Result) -> Section:
    """A study in a report, both series in its figure and in its table."""
    study = result.study
    drawn = [
        picture(to_svg(made, salt=f"{study.name} {number}", title=study.title))
        for number, made in enumerate(study_figures(result))
    ]
    shown = pictures(drawn) if len(drawn) > 1 else join(drawn)
    claims = [row_table([_claim_cells(*pair) for pair in result.judged])] if result.judged else []
    rows = [_cells(rows) for rows in paired(result.rows)]
    many = [fold(f"{len(rows)} rows", row_table(rows))] if len(rows) > FOLDED else []
    return Section(
        title=f"{study.name}: {study.title}",
        markup=join([shown, *claims, bullets(result.remarks), *many]),
        rows=[] if many else rows,
    )


def studies_report(results: Sequence[Result]) -> str:
    """Studies as one HTML page, what they come to first."""
    rows = [row for result in results for row in result.compared]
    opening = Section(
        title="What was run", text=f"{verdict(rows)} {claims_verdict(results)}".strip()
    )
    sections = [opening, *map(study_section, results)]
    records = [study_records(result)[-1] for result in results]
    return render_report(
        records, "weft studies: published values and ours", sections, [describe_run()]
    )


def _claim_cells(claim: Claim, verdict: Verdict) -> dict[str, object]:
    return {
        "the paper's claim": claim.statement,
        "in the paper": claim.place,
        "judged on": f"{claim.source}, {claim.system}",
        "verdict": verdict.word,
        "evidence": verdict.evidence,
    }


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
        "ours is": f"{first.source}, {rows[0].system}",
        "in the paper": first.place or "–",
    }
