"""Results of studies as text, as figures and as sections of an HTML report.

Entry points: `study_table`, `study_list`, `short_table`; `study_figures`; `study_section`,
`studies_report`. Units are written in the tables and on the axes.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from weft import __version__
from weft.plot import Section, figure, render_report, to_svg
from weft.plot.html_page import bullets, fold, join, picture, pictures, row_table
from weft.plot.style import MUTED
from weft.records import describe_run
from weft.records.record_text import format_table
from weft.studies.observation import MEDIAN_RTT, TAIL_RTT, Claim, Row, Verdict
from weft.studies.study import Result, Study, study_records

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 98
NEAR_PERCENT = (10, 15, 20)
OTHER_ROLES = {
    "fit": "Fits (the value set a parameter)",
    "check": "checks (arithmetic, definitions, examples)",
    "repeat": "repeats of another row",
}


def format_number(value: float) -> str:
    """Three significant digits, as many as the papers give; never a power of ten."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".removesuffix(".")


def format_published(row: Row) -> str:
    """A published value with the digits that the paper gives, or its bound."""
    bound = f"{row.observation.bound} " if row.observation.bound else ""
    return "–" if row.published is None else f"{bound}{row.published:g}"


def format_unit(row: Row) -> str:
    """The unit as people write it; machines are given "us"."""
    return row.observation.unit.replace("us", "µs")


def format_ratio(row: Row) -> str:
    """ours/published, marked where it is outside the tolerance or the bound."""
    ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
    return ratio if row.within else f"{ratio} !"


def study_list(studies: Sequence[Study]) -> str:
    """Names, what ours is, how many rows are fits, checks and predictions, paper by paper."""
    papers = dict.fromkeys(study.paper.short for study in studies)
    return "\n\n".join(_paper_list(p, [s for s in studies if s.paper.short == p]) for p in papers)


def _paper_list(paper: str, studies: Sequence[Study]) -> str:
    rows = [
        [s.name, s.place.partition(",")[0], _ours(s), _role_counts(s), s.title] for s in studies
    ]
    table = format_table(["study", "place", "ours", "rows", "title"], rows, left_columns=5)
    return f"{paper}\n\n{table}"


def _role_counts(study: Study) -> str:
    """Such as "6 fit, 2 prediction"."""
    roles = Counter(o.counts_as for o in study.observations if o.published is not None)
    return ", ".join(f"{count} {role}" for role, count in sorted(roles.items()))


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
    heads = ["setting", "quantity", "unit", "published", "ours", "ratio", "role"]
    for source, system in systems:
        cells = [
            [
                row.observation.setting,
                row.observation.quantity,
                format_unit(row),
                format_published(row),
                format_number(row.ours),
                format_ratio(row),
                row.observation.counts_as,
            ]
            for row in rows
            if (row.observation.source, row.system) == (source, system)
        ]
        yield f"ours: {source}, {system}\n\n{format_table(heads, cells, left_columns=3)}"


def _claim_text(claim: Claim, verdict: Verdict) -> str:
    statement = textwrap.fill(
        f"{claim.statement} ({claim.place})",
        WIDTH,
        initial_indent="claim: ",
        subsequent_indent="  ",
    )
    outcome = textwrap.fill(
        f"{verdict.word} ({claim.source}, {claim.system}): {verdict.evidence}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
    )
    return f"{statement}\n{outcome}"


def _bullet(remark: str) -> str:
    return textwrap.fill(remark, WIDTH, initial_indent="- ", subsequent_indent="  ")


def summarise_rows(rows: Sequence[Row]) -> str:
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


def summarise_claims(results: Sequence[Result]) -> str:
    """How many claims of the papers hold for what we have; nothing if there is none."""
    outcomes = Counter(verdict.word for result in results for verdict in result.verdicts)
    if not outcomes:
        return ""
    plural = {"holds": "hold", "does not hold": "do not hold"}
    parts = [
        f"{outcomes[word]} {plural.get(word, word) if outcomes[word] > 1 else word}"
        for word in ("holds", "does not hold", "not judged", "not modelled")
        if outcomes[word]
    ]
    return f"Of {outcomes.total()} claims of the papers: {', '.join(parts)}."


def summarise_predictions(rows: Sequence[Row]) -> str:
    """The headline: how near the physical predictions are; nothing if there is none."""
    predictions = [row for row in rows if row.observation.counts_as == "prediction"]
    off = [abs(row.ratio - 1) for row in predictions if row.ratio is not None]
    bounds = [row.within for row in predictions if row.observation.bound]
    within = ", ".join(
        f"{sum(o <= limit / 100 + 1e-9 for o in off)} within {limit} %" for limit in NEAR_PERCENT
    )
    sentences = [f"Physical predictions: {len(off)}, of which {within}."] if off else []
    if bounds:
        sentences.append(f"Predicted bounds: {len(bounds)}, of which {sum(bounds)} hold.")
    return " ".join(sentences)


def summarise_roles(rows: Sequence[Row]) -> str:
    """What the judged rows that are no predictions are."""
    counts: Counter[str] = Counter(row.observation.counts_as for row in rows if row.judged)
    parts = [f"{words}: {counts[role]}" for role, words in OTHER_ROLES.items() if counts[role]]
    return f"{'; '.join(parts)}." if parts else ""


SUMMARIES = (summarise_predictions, summarise_roles, summarise_rows)  # the headline first


# ---- Several studies on one screen ------------------------------------------------------------


def short_table(results: Sequence[Result]) -> str:
    """One line for a median and its tail, or for the two ends of a range."""
    lines = [f"{'':42}{'published':>15}{'ours':>16}{'ratio':>15}"]
    for result in results:
        study = result.study
        lines.append(f"{study.title} ({study.place.partition(',')[0]}, {study.system})")
        lines += [_short_line(rows) for rows in pair_rows(result.compared)]
    return "\n".join(lines)


def pair_rows(rows: Sequence[Row]) -> Iterator[tuple[Row, ...]]:
    """Rows in pairs where two belong together: median and tail, least and most."""
    waiting = list(rows)
    while waiting:
        row = waiting.pop(0)
        if waiting and _belong_together(row, waiting[0]):
            yield row, waiting.pop(0)
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
    for prefix in ("probe RTT ", "bandwidth "):  # the study's title has said it
        quantity = quantity.removeprefix(prefix)
    label = f"  {observation.setting}" + (f", {quantity}" if quantity != "median" else "")
    published = " / ".join(format_published(row) for row in rows)
    ours = " / ".join(format_number(row.ours) for row in rows)
    ratios = " / ".join(format_ratio(row) for row in rows)
    return f"{label:42}{published:>15}{ours:>16}{ratios:>15} {format_unit(rows[0])}"


WIDTH_IN, HEIGHT_IN = 6.4, 3.6
CAPTION_WIDTH = 112


def study_figures(result: Result) -> list[Figure]:
    """A figure of each panel of a study, with where its series come from below."""
    return [_panel_figure(panel, result) for panel in result.study.panels]


def _panel_figure(panel: Callable[[Axes, Result], None], result: Result) -> Figure:
    points = result.study.points
    three_bars = len(points) == 3 and points[0].source == "simulation"
    height = 0.75 * HEIGHT_IN if three_bars else HEIGHT_IN
    drawing = figure(lambda ax: panel(ax, result), WIDTH_IN, height)
    caption = textwrap.fill(_caption(result), CAPTION_WIDTH)
    drawing.supxlabel(caption, fontsize=7.5, color=MUTED, x=0.01, ha="left")
    return drawing


def _caption(result: Result) -> str:
    """The place of the published values, and the systems of ours that were available."""
    study = result.study
    ran = [point for point in study.points if point.setting in result.records]
    ours = dict.fromkeys(
        (point.source, point.system, result.records[point.setting].provenance.seed) for point in ran
    )
    named = "; ".join(
        f"{source}, {system}" + (f", seed {seed}" if source == "simulation" and seed else "")
        for source, system, seed in ours
    )
    return f"Published: {study.paper.short}, {study.place}. Ours: {named}. weft {__version__}."


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
    rows = [_cells(rows) for rows in pair_rows(result.rows)]
    many = [fold(f"{len(rows)} rows", row_table(rows))] if len(rows) > FOLDED else []
    return Section(
        title=f"{study.name}: {study.title}",
        markup=join([shown, *claims, bullets(result.remarks), *many]),
        rows=[] if many else rows,
    )


def studies_report(results: Sequence[Result]) -> str:
    """Studies as one HTML page, what they come to first."""
    rows = [row for result in results for row in result.compared]
    summaries = (*(of(rows) for of in SUMMARIES), summarise_claims(results))
    opening = Section(title="What was run", text=" ".join(filter(None, summaries)))
    sections = [opening, *map(study_section, results)]
    # Each section has its study's notes.
    records = [replace(study_records(result)[-1], notes=()) for result in results]
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
    first, unit = rows[0].observation, format_unit(rows[0])
    unit = "" if unit == "1" else unit
    quantities = " / ".join(
        [first.quantity, *(row.observation.quantity.split()[-1] for row in rows[1:])]
    )
    published = " / ".join(format_published(row) for row in rows)
    return {
        "setting": first.setting,
        "quantity": quantities,
        "published": f"{published} {unit}".rstrip() if rows[0].published is not None else "–",
        "ours": f"{' / '.join(format_number(row.ours) for row in rows)} {unit}".rstrip(),
        "ratio": " / ".join(format_ratio(row) for row in rows),
        "role": " / ".join(dict.fromkeys(row.observation.counts_as for row in rows)) or "–",
        "ours is": f"{first.source}, {rows[0].system}",
        "in the paper": first.place or "–",
    }
