"""Simulation = publication: every published row of RPerf, each a test of its own."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from weft.studies import Observation, Result, Row, Study, run_study
from weft.studies.observation import TOLERANCE
from weft.studies.run_studies import RPERF, STUDIES

PUBLISHED = [(s, o) for s in RPERF for o in s.observations if o.published is not None]


def row_id(case: tuple[Study, Observation]) -> str:
    study, observation = case
    return f"{study.name}: {observation.setting}: {observation.quantity}"


@pytest.fixture(scope="session")
def result_of() -> Callable[[Study], Result]:
    """Each study is simulated once in a session, when its first row is asked for."""
    results: dict[str, Result] = {}

    def find(study: Study) -> Result:
        if study.name not in results:
            results[study.name] = run_study(study)
        return results[study.name]

    return find


def found(result: Result, observation: Observation) -> Row:
    return next(row for row in result.rows if row.observation is observation)


@pytest.mark.parametrize("case", PUBLISHED, ids=row_id)
def test_ours_is_within_tolerance_or_a_reason_is_written(result_of, case):
    study, observation = case
    row = found(result_of(study), observation)
    # |ours / published - 1| <= tolerance of the system and kind of quantity
    off = abs(row.ours / observation.published - 1)
    assert off <= TOLERANCE[study.system][observation.kind] or observation.reason


@pytest.mark.parametrize("case", PUBLISHED, ids=row_id)
def test_a_published_value_is_positive_and_has_a_place_in_the_paper(case):
    _, observation = case
    assert observation.published > 0
    assert observation.place.split("-")[0].split(",")[0].split(":")[0] in ("VI", "VII", "VIII")


def test_a_reason_is_written_only_where_it_is_needed(result_of):
    rows = [row for study in RPERF for row in result_of(study).rows if row.observation.reason]
    assert rows
    assert not [row for row in rows if row.within]


@pytest.mark.parametrize("study", RPERF, ids=lambda study: study.name)
def test_a_tail_rests_on_a_thousand_samples(result_of, study):
    for record in result_of(study).records.values():
        for name, quantity in record.quantities.items():
            if name.endswith(".rtt") and name.startswith(("probe", "e.")):
                assert quantity.histogram.count >= 1000, (record.settings, name)


def median_us(result: Result, setting: str) -> float:
    return result.records[setting].quantities["probe.rtt"].quantile(0.5) / 1e6


def study_named(name: str) -> Study:
    return next(study for study in RPERF if study.name == name)


def test_each_further_sender_costs_the_probe_the_same_under_fcfs(result_of):
    # (N - 1) B / R: equal steps, B = 7 packets of 4096 B and headers, R = 56 Gb/s
    fig10 = result_of(study_named("rperf-fig10"))
    medians = [median_us(fig10, f"FCFS, {n} senders") for n in (2, 3, 4, 5)]
    steps = [after - before for before, after in pairwise(medians)]
    assert steps == pytest.approx([7 * (4096 + 26) * 8 / 56e3] * 3, rel=0.01)


def test_round_robin_protects_the_probe_over_one_hop_but_not_over_two(result_of):
    fig10, fig11 = (result_of(study_named(f"rperf-fig{n}")) for n in (10, 11))
    assert median_us(fig10, "RR, 5 senders") < 0.2 * median_us(fig10, "FCFS, 5 senders")
    assert median_us(fig11, "RR") > 0.7 * median_us(fig11, "FCFS")


def test_order_by_local_arrival_does_not_explain_the_published_two_hop_value(result_of):
    fig11 = result_of(study_named("rperf-fig11"))
    assert median_us(fig11, "FCFS, local arrival") == pytest.approx(42, rel=0.05)
    assert median_us(fig11, "FCFS, local arrival") > 2 * 18.4


def test_rperf_is_the_least_biased_estimator_of_the_switch(result_of):
    fig6 = result_of(study_named("rperf-fig6"))
    biases = {
        row.observation.setting: row.ours
        for row in fig6.rows
        if row.observation.quantity.startswith("bias")
    }
    for payload in (64, 4096):
        rperf = biases[f"RPerf, {payload} B"]
        assert 0 < rperf < 0.1
        assert min(biases[f"{tool}, {payload} B"] for tool in ("perftest", "qperf")) > 20 * rperf


def test_a_lane_of_its_own_makes_the_number_of_senders_irrelevant(result_of):
    fig12 = result_of(study_named("rperf-fig12"))
    medians = [median_us(fig12, f"{n} senders, own lane") for n in (2, 3, 4, 5)]
    assert max(medians) < 1.05 * min(medians)


DOCUMENT = Path(__file__).parents[2] / "docs" / "studies.md"


def documented(study: Study) -> list[list[str]]:
    """The table in docs/studies.md: setting, quantity, published, ours, ratio."""
    _, _, after = DOCUMENT.read_text("utf-8").partition(f"## {study.name}:")
    section = re.split(r"\n#+ ", after)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def numbers(cell: str) -> list[float]:
    return [float(word) for word in cell.replace("!", "").split() if word[0].isdigit()]


@pytest.mark.parametrize("study", RPERF, ids=lambda study: study.name)
def test_the_tables_of_the_documentation_are_those_of_this_version(result_of, study):
    table = documented(study)
    rows = result_of(study).rows
    assert [n for cells in table for n in numbers(cells[2])] == [
        row.published for row in rows if row.published is not None
    ]
    # A table of three digits, from another machine's libm perhaps, but not from another model.
    shown = [n for cells in table for n in numbers(cells[3])]
    assert shown == pytest.approx([row.ours for row in rows], rel=0.02)


def test_the_headline_of_readme_and_docs_is_that_of_this_version(result_of):
    studies = [s for s in STUDIES if any(o.counts_as == "prediction" for o in s.observations)]
    rows = [row for study in studies for row in result_of(study).compared]
    off = [
        abs(row.ratio - 1)
        for row in rows
        if row.observation.counts_as == "prediction" and row.ratio is not None
    ]
    ten, fifteen, twenty = (sum(o <= limit + 1e-9 for o in off) for limit in (0.10, 0.15, 0.20))
    readme = " ".join((DOCUMENT.parents[1] / "README.md").read_text("utf-8").split())
    assert (
        f"**{len(off)} physical predictions: {ten} are within 10 %, {fifteen} within 15 %, "
        f"{twenty} within 20 %**"
    ) in readme
    assert f"| {ten}, {fifteen}, {twenty} of {len(off)} |" in DOCUMENT.read_text("utf-8")
