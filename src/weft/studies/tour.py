"""The tour: what weft can do, shown on the studies of one switch, two hops and a gamed lane.

Entry points: `TOUR`, `run_tour`, `summary`, `tour_report`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.plot import Section, render_report
from weft.records import Record, describe_run
from weft.studies.report import short_table, study_section, summarise_rows
from weft.studies.rperf.many_to_one import FIG7A
from weft.studies.rperf.scheduling import FIG10, FIG11, FIG12, FIG13
from weft.studies.study import Result, Study, run_study, study_records

TOUR: tuple[Study, ...] = (FIG10, FIG7A, FIG12, FIG11, FIG13)
TITLE = "weft tour: an InfiniBand switch, published and simulated"


def run_tour(progress: Callable[[float], None] | None = None) -> list[Result]:
    """Run the studies of the tour, one after the other."""
    results: list[Result] = []
    for number, study in enumerate(TOUR):

        def share(fraction: float, number: int = number) -> None:
            if progress:
                progress((number + fraction) / len(TOUR))

        results.append(run_study(study, share))
    return results


def tour_records(results: Sequence[Result]) -> list[Record]:
    """Everything that the tour observed."""
    return [record for result in results for record in study_records(result)]


def tour_report(results: Sequence[Result]) -> str:
    """The studies as an HTML page, the records behind them below."""
    sections = [_opening(results), *map(study_section, results)]
    return render_report(tour_records(results), TITLE, sections, [describe_run()])


def _opening(results: Sequence[Result]) -> Section:
    rows = [row for result in results for row in result.compared]
    text = (
        "A 64 B probe crosses one switch, or two, beside up to five senders of 4096 B: what RPerf "
        "published and what weft simulates. omnet is the paper's simulator, sx6012 its testbed; "
        "two systems, told apart wherever they appear. Pairs are median / tail (p99.9) or "
        f"least / most; the ratio is ours to published. {summarise_rows(rows)}"
    )
    return Section(title="What was run", text=text)


def summary(results: Sequence[Result], elapsed_s: float, report: str, records: str) -> str:
    """One screen: what was run, published values beside ours, where the rest is."""
    rows = [row for result in results for row in result.compared]
    points = sum(len(result.records) for result in results)
    hops = sum(result.packet_hops for result in results)
    return "\n".join(
        [
            f"weft tour: {points} simulations, a 64 B probe beside 0 to 5 senders of 4096 B, after",
            "RPerf (Katebzadeh, Costa, Grot; ISPASS 2020). Pairs are median / tail (p99.9) or",
            "least / most. omnet: the paper's simulator; sx6012: its testbed.",
            "",
            short_table(results),
            "",
            summarise_rows(rows),
            f"{hops / 1e6:.1f} M packet-hops simulated; {elapsed_s:.1f} s in all.",
            f"Report: {report}",
            f"Records: {records}",
            "Next: weft study run all",
        ]
    )
