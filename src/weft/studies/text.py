"""Results of studies as text: the table of one study, and several on one screen.

Entry points: `study_table`, `study_list`, `short_table`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from weft.records.record_text import format_table
from weft.studies.claim import Claim, Verdict
from weft.studies.observation import MEDIAN_RTT, TAIL_RTT, Row
from weft.studies.study import Result, Study

WIDTH = 98


def number(value: float) -> str:
    """Three significant digits, as many as the papers give; never a power of ten."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")


def stated(value: float | None) -> str:
    """A published value with the digits that the paper gives."""
    return "–" if value is None else f"{value:g}"


def unit_text(row: Row) -> str:
    """The unit as people write it; machines are given "us"."""
    return row.observation.unit.replace("us", "µs")


def ratio(row: Row) -> str:
    """ours/published, marked where it is outside the tolerance."""
    return "–" if row.ratio is None else f"{row.ratio:.2f}{'' if row.within else ' !'}"


def study_list(studies: Sequence[Study]) -> str:
    """Names, what ours is, and titles, paper by paper."""
    papers = dict.fromkeys(study.paper.short for study in studies)
    return "\n\n".join(_paper_list(p, [s for s in studies if s.paper.short == p]) for p in papers)


def _paper_list(paper: str, studies: Sequence[Study]) -> str:
    rows = [[s.name, s.place.partition(",")[0], _ours(s), s.title] for s in studies]
    return f"{paper}\n\n{format_table(['study', 'place', 'ours', 'title'], rows, left=4)}"


def _ours(study: Study) -> str:
    """The kinds of its points, without repetition."""
    return ", ".join(dict.fromkeys(point.source for point in study.points))


def study_table(result: Result) -> str:
    """A study's rows, and its remarks below them."""
    study = result.study
    head = f"{study.name}: {study.title}\n{study.paper.short}, {study.place}"
    parts = [head, *_row_tables(result.rows)]
    if result.judged:
        parts.append("\n".join(_claim_text(*pair) for pair in result.judged))
    if result.remarks:
        parts.append("\n".join(map(_bullet, result.remarks)))
    return "\n\n".join(parts)


def _row_tables(rows: Sequence[Row]) -> Iterator[str]:
    """A table of each system: two systems are never mixed in one."""
    systems = dict.fromkeys((row.observation.source, row.system) for row in rows)
    heads = ["setting", "quantity", "unit", "published", "ours", "ratio"]
    for source, system in systems:
        cells = [
            [
                row.observation.setting,
                row.observation.quantity,
                unit_text(row),
                stated(row.published),
                number(row.ours),
                ratio(row),
            ]
            for row in rows
            if (row.observation.source, row.system) == (source, system)
        ]
        yield f"ours: {source}, {system}\n\n{format_table(heads, cells, left=3)}"


def _claim_text(claim: Claim, verdict: Verdict) -> str:
    said = textwrap.fill(
        f"{claim.statement} ({claim.place})",
        WIDTH,
        initial_indent="claim: ",
        subsequent_indent="  ",
    )
    found = textwrap.fill(
        f"{verdict.word} ({claim.source}, {claim.system}): {verdict.evidence}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
    )
    return f"{said}\n{found}"


def _bullet(remark: str) -> str:
    return textwrap.fill(remark, WIDTH, initial_indent="- ", subsequent_indent="  ")


def verdict(rows: Sequence[Row]) -> str:
    """How many published values ours meets; nothing if none is judged."""
    rows = [row for row in rows if row.judged]
    if not rows:
        return ""
    outside = [row for row in rows if not row.within]
    reasons = sum(1 for row in outside if not row.unexplained)
    met = f"{len(rows) - len(outside)} of {len(rows)} published values are within tolerance"
    if not outside:
        return f"{met}."
    explained = "with a written reason" if reasons == len(outside) else f"{reasons} with a reason"
    return f"{met}; {len(outside)} outside, {explained}."


def claims_verdict(results: Sequence[Result]) -> str:
    """How many claims of the papers hold for what we have; nothing if there is none."""
    found = [verdict.holds for result in results for verdict in result.verdicts]
    if not found:
        return ""
    told = [
        f"{found.count(holds)} {words[found.count(holds) > 1]}"
        for holds, words in (
            (True, ("holds", "hold")),
            (False, ("does not", "do not")),
            (None, ("could not be judged",) * 2),
        )
        if holds in found
    ]
    return f"Of {len(found)} claims of the papers {', '.join(told)}."


def standing(rows: Sequence[Row]) -> str:
    """How many values are predictions, and how many of those are met; nothing of none."""
    rows = [row for row in rows if row.judged]
    free = [row for row in rows if row.observation.is_prediction]
    met = sum(row.within for row in free)
    served = f"{len(rows) - len(free)} of the {len(rows)} served to set parameters"
    if not free:
        return f"{served}." if rows else ""
    return f"{served}; of the other {len(free)}, the predictions, {met} are within tolerance."


# ---- Several studies on one screen ------------------------------------------------------------


def short_table(results: Sequence[Result]) -> str:
    """One line for a median and its tail, or for the two ends of a range."""
    lines = [f"{'':42}{'published':>15}{'ours':>16}{'ratio':>15}"]
    for result in results:
        study = result.study
        lines.append(f"{study.title} ({study.place.partition(',')[0]}, {study.system})")
        lines += [_short_line(rows) for rows in paired(result.compared)]
    return "\n".join(lines)


def paired(rows: Sequence[Row]) -> Iterator[tuple[Row, ...]]:
    """Rows in pairs where two belong together: median and tail, least and most."""
    left = list(rows)
    while left:
        row = left.pop(0)
        if left and _belong_together(row, left[0]):
            yield row, left.pop(0)
        else:
            yield (row,)


def _belong_together(row: Row, after: Row) -> bool:
    if row.observation.setting != after.observation.setting:
        return False
    first, second = row.observation.quantity, after.observation.quantity
    return (first, second) == (MEDIAN_RTT, TAIL_RTT) or (
        first.endswith(", least") and second == first.removesuffix("least") + "most"
    )


def _short_line(rows: Sequence[Row]) -> str:
    observation = rows[0].observation
    quantity = observation.quantity.removesuffix(", least")
    for known in ("probe RTT ", "bandwidth "):  # the study's title has said it
        quantity = quantity.removeprefix(known)
    label = f"  {observation.setting}" + (f", {quantity}" if quantity != "median" else "")
    published = " / ".join(stated(row.published) for row in rows)
    ours = " / ".join(number(row.ours) for row in rows)
    ratios = " / ".join(ratio(row) for row in rows)
    return f"{label:42}{published:>15}{ours:>16}{ratios:>15} {unit_text(rows[0])}"
