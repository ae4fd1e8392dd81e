"""Studies: rows, tolerances, what is printed and stored, exit status."""

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from weft.cli import main
from weft.errors import InputError
from weft.measure import latency
from weft.plot import to_svg
from weft.records import Record, Scalar, read_records
from weft.studies import (
    STUDIES,
    Claim,
    Observation,
    Point,
    Row,
    Unavailable,
    Verdict,
    find_studies,
    measurement_point,
    model_point,
    row_line,
    run_study,
    simulation_point,
    study_figures,
    study_records,
)
from weft.studies.observation import ANOTHER_SYSTEM, MEDIAN_RTT, TAIL_RTT, Records, judge_unmodelled
from weft.studies.points import record_point, simulate_scenario
from weft.studies.published import find_table
from weft.studies.report import (
    pair_rows,
    study_list,
    study_table,
    summarise_claims,
    summarise_predictions,
    summarise_roles,
    summarise_rows,
)
from weft.studies.rperf import RPERF
from weft.studies.rperf.rperf_setups import shares
from weft.studies.run_studies import run_studies
from weft.studies.study import RPERF_PAPER, Study

KEYS = [
    "study",
    "setting",
    "quantity",
    "unit",
    "published",
    "bound",
    "ours",
    "ratio",
    "role",
    "source",
    "system",
]
DOCUMENT = Path(__file__).parents[2] / "docs" / "studies.md"
NAMES = [f"rperf-fig{n}" for n in ("4", "5", "6", "7a", "7b", "8", "9", "10", "11", "12", "13")]


def observation(**changes) -> Observation:
    fields = {
        "setting": "5 senders",
        "quantity": MEDIAN_RTT,
        "unit": "us",
        "kind": "median",
        "read": lambda _: 11.0,
        "published": 10.0,
        "place": "VII",
    }
    return Observation(**(fields | changes))


def row(ours: float, system: str = "omnet", **changes) -> Row:
    return Row(study="s", system=system, observation=observation(**changes), ours=ours)


@pytest.fixture(scope="module")
def two_hops():
    return run_study(find_studies(["rperf-fig11"])[0])


@pytest.fixture
def shifted(monkeypatch) -> Study:
    """A study in the catalog whose published values are ten times what they are."""
    study = find_studies(["rperf-fig11"])[0]
    wrong = replace(
        study,
        observations=tuple(
            replace(o, published=o.published and 10 * o.published) for o in study.observations
        ),
    )
    monkeypatch.setattr("weft.studies.run_studies.STUDIES", (wrong,))
    return wrong


# ---- Rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("system", "kind", "tolerance"),
    [
        ("omnet", "median", 0.15),
        ("sx6012", "median", 0.20),
        ("omnet", "tail", 0.30),
        ("sx6012", "tail", 0.30),
        ("sx6012", "bandwidth", 0.20),
    ],
)
def test_a_row_is_within_up_to_its_tolerance_on_either_side(system, kind, tolerance):
    for side in (-1, 1):
        inside, outside = (
            10 * (1 + side * (tolerance - 0.001)),
            10 * (1 + side * (tolerance + 0.001)),
        )
        assert row(inside, system, kind=kind).within
        assert not row(outside, system, kind=kind).within


def test_a_written_reason_explains_a_row_outside_its_tolerance():
    assert row(20).unexplained
    assert not row(20, reason="the buffer is larger").unexplained
    assert not row(10).unexplained


def test_a_row_without_a_published_value_has_no_ratio_and_fails_nothing():
    ours_only = row(42, published=None)
    assert ours_only.ratio is None
    assert ours_only.within


def test_a_line_of_json_has_exactly_the_keys_of_a_row():
    line = json.loads(row_line(row(11)))
    assert list(line) == KEYS
    assert (line["published"], line["ours"], line["ratio"]) == (10, 11, 1.1)


def test_median_and_tail_and_the_ends_of_a_range_are_paired():
    rows = [
        row(1, quantity=MEDIAN_RTT),
        row(1, quantity=TAIL_RTT),
        row(1, quantity="share, least"),
        row(1, quantity="share, most"),
        row(1, quantity=MEDIAN_RTT),
        row(1, quantity=TAIL_RTT, setting="another"),
    ]
    assert [len(pair) for pair in pair_rows(rows)] == [2, 2, 1, 1]


def count_roles(studies) -> Counter:
    """Rows by role, bounds apart from values."""
    counts = Counter()
    for o in (o for study in studies for o in study.observations if o.published is not None):
        counts["bound" if o.bound and o.role == "prediction" else o.counts_as] += 1
    return counts


def documented_counts(first_cell: str) -> list[int]:
    """The numbers of the one row of docs/studies.md with this first cell."""
    lines = [
        line
        for line in DOCUMENT.read_text("utf-8").splitlines()
        if re.match(rf"\| {re.escape(first_cell)} \| \d", line)
    ]
    assert len(lines) == 1, first_cell
    cells = [cell.strip() for cell in lines[0].split("|")[2:]]
    return [int(cell) for cell in cells if cell.isdigit()]


@pytest.mark.parametrize("study", RPERF, ids=lambda study: study.name)
def test_a_value_that_set_a_parameter_is_a_fit_and_one_that_stands_elsewhere_a_repeat(study):
    rows = [o for o in study.observations if o.published is not None]
    for o, parameter in zip(rows, find_table(study.name).cells("sets"), strict=True):
        repeated = str(parameter).startswith("repeats ")
        assert o.role == ("repeat" if repeated else "fit" if parameter else "prediction")
    counts = count_roles([study])
    wanted = [len(rows), counts["fit"], counts["repeat"], counts["prediction"]]
    assert documented_counts(study.name.removeprefix("rperf-fig")) == wanted


def test_the_docs_count_fits_checks_repeats_and_predictions_by_paper():
    roles = ("fit", "check", "repeat", "shown", "prediction", "bound")
    papers = dict.fromkeys(study.paper.short for study in STUDIES)
    for paper in papers:
        counts = count_roles([study for study in STUDIES if study.paper.short == paper])
        assert documented_counts(paper) == [counts[role] for role in roles], paper
    total = count_roles(STUDIES)
    assert documented_counts("all") == [total[role] for role in roles]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "prediction"),
        ({"role": "fit"}, "fit"),
        ({"published": None}, ""),
        ({"tolerance": ANOTHER_SYSTEM, "role": "fit"}, "shown"),
        ({"kind": "gain"}, "shown"),
    ],
)
def test_only_a_judged_row_counts_by_its_role(changes, expected):
    assert observation(**changes).counts_as == expected
    assert row(10, **changes).judged == (expected not in ("", "shown"))


@pytest.mark.parametrize(
    ("bound", "ours", "within"),
    [(">", 10.1, True), (">", 10, False), (">", 9.9, False), ("<", 9.9, True), ("<", 10, False)],
)
def test_a_bound_is_met_on_its_side_only_and_has_no_ratio(bound, ours, within):
    bounded = row(ours, bound=bound)
    assert bounded.within is within
    assert bounded.ratio is None
    assert bounded.judged
    assert bounded.unexplained is not within


def test_the_headline_is_how_near_the_predictions_are():
    near = [row(ours) for ours in (9.0, 11.0, 11.1, 11.5, 12.0, 12.1, 99)]
    others = [row(10, role="fit"), row(10, role="check"), row(10, role="repeat")]
    bounds = [row(11, bound=">"), row(9, bound=">"), row(9, bound=">", role="fit")]
    assert summarise_predictions([*near, *others, *bounds]) == (
        "Physical predictions: 7, of which 2 within 10 %, 4 within 15 %, 5 within 20 %. "
        "Predicted bounds: 2, of which 1 hold."
    )
    assert summarise_roles([*near, *others, *bounds]) == (
        "Fits (the value set a parameter): 2; checks (arithmetic, definitions, examples): 1; "
        "repeats of another row: 1."
    )
    assert summarise_roles(near) == ""


def test_a_list_of_studies_counts_the_roles_of_their_rows():
    line = next(line for line in study_list(STUDIES).splitlines() if line.startswith("rperf-fig4 "))
    assert "6 fit, 2 prediction" in line


def test_the_verdict_counts_what_is_outside_and_explained():
    assert summarise_rows([row(10)]) == "1 of 1 published values are within tolerance."
    assert "1 outside, with a written reason" in summarise_rows(
        [row(10), row(20, reason="because")]
    )
    assert "2 outside, 1 with a reason" in summarise_rows([row(20, reason="because"), row(20)])


# ---- The catalog ------------------------------------------------------------------------------


def test_the_catalog_has_the_figures_of_the_paper_in_order():
    assert [study.name for study in RPERF] == NAMES
    assert STUDIES[: len(RPERF)] == RPERF


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_the_rows_and_points_of_a_study_are_told_apart(study):
    keys = [(o.setting, o.quantity, o.source, o.system) for o in study.observations]
    assert len(set(keys)) == len(keys)
    assert len({point.setting for point in study.points}) == len(study.points)


@pytest.mark.parametrize("study", RPERF, ids=lambda study: study.name)
def test_a_study_of_rperf_is_of_one_system(study):
    system = "omnet" if study.name in ("rperf-fig10", "rperf-fig11") else "sx6012"
    assert {study.system, *(point.system for point in study.points)} == {system}


def test_studies_are_found_once_each_and_all_means_all():
    assert [s.name for s in find_studies(["rperf-fig8", "rperf-fig4", "rperf-fig8"])] == [
        "rperf-fig8",
        "rperf-fig4",
    ]
    assert find_studies(["all"]) == list(STUDIES)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("fig99", "'fig99' is unknown; weft study list has all"),
        ("fig10", "'fig10' is unknown; did you mean rperf-fig10 or ib2016-fig10? weft study list"),
        ("rperf-fg5", "'rperf-fg5' is unknown; did you mean rperf-fig5"),
    ],
)
def test_an_unknown_study_is_named_with_those_that_are_meant(name, line):
    with pytest.raises(InputError, match=re.escape(line)):
        find_studies([name])


# ---- Running ----------------------------------------------------------------------------------


def test_a_study_gives_a_record_per_setting_and_one_of_the_comparison(two_hops):
    *simulated, comparison = study_records(two_hops)
    assert [r.kind for r in simulated] == ["simulation"] * 3
    assert {r.settings["system"] for r in simulated} == {"omnet"}
    assert comparison.kind == "study"
    assert len(comparison.tables["published and ours"]) == 4
    assert comparison.provenance.seed == 1


def test_the_same_seed_gives_the_same_rows(two_hops):
    assert [r.ours for r in run_study(two_hops.study).rows] == [r.ours for r in two_hops.rows]


def test_the_table_for_people_shows_rows_without_a_published_value_and_notes(two_hops):
    text = study_table(two_hops)
    assert "FCFS, local arrival" in text
    assert "With one switch" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_figure_shows_both_series_and_where_they_come_from(two_hops):
    svg = to_svg(study_figures(two_hops)[0])
    for words in ("published", "RTT", "simulation, omnet", "seed 1", "Fig. 11"):
        assert words in svg


def test_the_share_of_a_lone_sender_is_its_part():
    point = run_study(
        replace(
            find_studies(["rperf-fig7b"])[0],
            points=find_studies(["rperf-fig7b"])[0].points[:1],
            observations=(),
        )
    )
    (record,) = point.records.values()
    assert shares(record, "senders") == (record.quantities["senders.goodput"].value,)


# ---- Points, claims and what this machine cannot give ------------------------------------------


def a_model(value: float) -> Point:
    return model_point("m", {}, lambda: {"v": Scalar(value, "us")}, "a closed form")


def absent(_: object) -> Record:
    raise Unavailable("no such device")


ABSENT = Point(setting="gone", settings={}, source="measurement", system="here", run=absent)


def claim(judge: Callable[[Records], Verdict]) -> Claim:
    return Claim(statement="more is more", place="IV", source="model", system="s", judge=judge)


def a_study(**changes) -> Study:
    fields = {
        "name": "s",
        "title": "t",
        "paper": RPERF_PAPER,
        "place": "IV",
        "system": "a closed form",
        "points": (a_model(3), ABSENT),
        "observations": (),
        "panels": (),
    }
    return Study(**(fields | changes))


def test_what_this_machine_cannot_give_is_left_out_and_told():
    result = run_study(
        a_study(
            observations=(
                observation(
                    read=lambda r: r["m"].quantities["v"].value,
                    source="model",
                    tolerance=0.1,
                    published=3.1,
                ),
                observation(setting="gone", read=lambda r: r["gone"].quantities["v"].value),
            ),
            claims=(
                claim(lambda r: Verdict(holds=r["m"].quantities["v"].value > 2, evidence="3 > 2")),
                claim(lambda r: Verdict(holds=bool(r["gone"]), evidence="")),
            ),
        )
    )
    assert [row.ours for row in result.rows] == [3]
    assert [verdict.word for verdict in result.verdicts] == ["holds", "not judged"]
    assert result.verdicts[1].evidence == "no such device"
    assert "Not available: gone: no such device" in study_table(result)
    assert summarise_claims([result]) == "Of 2 claims of the papers: 1 holds, 1 not judged."


def test_a_ratio_to_another_system_is_shown_and_not_judged():
    other = row(99, tolerance=ANOTHER_SYSTEM)
    assert other.ratio == pytest.approx(9.9)
    assert other.within
    assert not other.judged
    assert summarise_rows([other, row(10)]) == "1 of 1 published values are within tolerance."


def test_what_there_is_nothing_of_is_left_out():
    other = row(99, tolerance=ANOTHER_SYSTEM)
    assert summarise_rows([other]) == ""
    assert summarise_predictions([other]) == ""
    assert summarise_claims([run_study(a_study())]) == ""


def test_claims_are_counted_by_what_became_of_them():
    holds = [True, True, False, False, False, None]
    claims = [claim(lambda _, h=h: Verdict(holds=h, evidence="")) for h in holds]
    claims.append(claim(judge_unmodelled("no cache")))
    result = run_study(a_study(claims=tuple(claims)))
    assert summarise_claims([result]) == (
        "Of 7 claims of the papers: 2 hold, 3 do not hold, 1 not judged, 1 not modelled."
    )
    assert (result.verdicts[-1].word, result.verdicts[-1].evidence) == ("not modelled", "no cache")


def test_a_gain_has_no_ratio_and_is_not_judged():
    gain = row(-1, kind="gain", tolerance=0.1)
    assert gain.published == 10
    assert gain.ratio is None
    assert not gain.judged
    assert not gain.unexplained


def test_two_systems_are_told_in_two_tables():
    value = lambda r: r["m"].quantities["v"].value  # noqa: E731
    result = run_study(
        a_study(
            observations=(
                observation(read=value, source="model", tolerance=0.1, published=3),
                observation(
                    read=value,
                    source="measurement",
                    system="this machine, tcp",
                    tolerance=ANOTHER_SYSTEM,
                    published=3,
                ),
            )
        )
    )
    text = study_table(result)
    assert "ours: model, a closed form" in text
    assert "ours: measurement, this machine, tcp" in text
    claims = study_records(result)[-1].tables
    assert "claims" not in claims


def test_a_measured_point_keeps_the_settings_to_repeat_it():
    point = measurement_point(
        "64 B", {"payload_B": 64}, latency, "a delay", over="delay", size="64 B", count=50
    )
    result = run_study(a_study(points=(point,)))
    record = result.records["64 B"]
    assert record.name == "latency"
    assert record.settings["over"] == "delay"
    assert record.settings["system"] == "a delay"
    assert result.missing == {}


def test_a_transport_that_is_not_there_is_a_reason_and_not_an_error():
    point = measurement_point("64 B", {}, latency, "s", over="ofi:nowhere", size="64 B", count=50)
    result = run_study(a_study(points=(point,)))
    assert "not available" in result.missing["64 B"]


# ---- The command ------------------------------------------------------------------------------


def test_list_names_every_study(capsys):
    assert main(["study", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES)


def test_run_prints_one_json_object_per_published_row_and_nothing_else(capsys, tmp_path):
    file, figures = tmp_path / "r.jsonl", tmp_path / "figures"
    page = tmp_path / "page.html"
    argv = ["study", "run", "rperf-fig11", "--json", "-o", str(file), "--figure", str(figures)]
    assert main([*argv, "--report", str(page)]) == 0
    assert page.read_text("utf-8").count("<svg") >= 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert all(list(line) == KEYS and line["published"] for line in lines)
    assert len(read_records(file).records) == 4
    assert (figures / "rperf-fig11.svg").read_text().startswith("<svg")
    assert (figures / "rperf-fig11.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_outside_its_tolerance_without_a_reason_is_exit_status_1(shifted, capsys):
    assert main(["study", "run", shifted.name]) == 1
    output = capsys.readouterr()
    assert "No reason is known" in output.out
    assert "0 of 4" in output.err


def test_an_unknown_study_is_exit_status_2_and_one_line(capsys):
    assert main(["study", "run", "rperf-fig99"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def interrupt_before(monkeypatch, number: int) -> list[str]:
    """The settings that are simulated; the given one of them never is, an interrupt comes first."""
    simulated = []

    def simulate_or_interrupt(setting, scenario, progress):
        if len(simulated) + 1 == number:
            raise KeyboardInterrupt
        simulated.append(setting)
        return simulate_scenario(setting, scenario, progress)

    monkeypatch.setattr("weft.studies.run_studies.simulate_scenario", simulate_or_interrupt)
    return simulated


def records_without_headers(path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines() if b'"weft":"record"' in line]


def test_an_interrupt_keeps_finished_studies_and_the_same_command_resumes_the_others(
    monkeypatch, tmp_path, capsys
):
    file, names = tmp_path / "r.jsonl", ["rperf-fig11", "rperf-fig10"]
    argv = ["study", "run", *names, "-j", "1", "-o", str(file)]
    sizes = [len(study.points) for study in find_studies(names)]
    interrupt_before(monkeypatch, sizes[0] + 3)
    assert main(argv) == 130
    kept = read_records(file).records
    assert [record.kind for record in kept] == ["simulation"] * sizes[0] + [
        "study",
        "simulation",
        "simulation",
    ]
    assert "rperf-fig11" in capsys.readouterr().out
    simulated = interrupt_before(monkeypatch, 0)
    assert main(argv) == 0
    output = capsys.readouterr()
    assert output.err.startswith(f"resuming: {sizes[0] + 2} of {sum(sizes)} simulations are stored")
    assert len(simulated) == sizes[1] - 2
    assert len(read_records(file).headers) == 2
    whole = tmp_path / "whole.jsonl"
    assert main([*argv[:-1], str(whole)]) == 0
    assert capsys.readouterr().out == output.out
    assert records_without_headers(file) == records_without_headers(whole)


def test_records_and_tables_are_the_same_whatever_the_number_of_processes(tmp_path, capsys):
    printed, stored = [], []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.jsonl"
        argv = ["study", "run", "rperf-fig11", "saba-fig4.3", "-j", jobs, "-o", str(file)]
        assert main(argv) == 0
        printed.append(capsys.readouterr().out)
        stored.append(records_without_headers(file))
    assert printed[0] == printed[1]
    assert stored[0] == stored[1]


def test_a_measured_study_waits_until_nothing_is_simulated(monkeypatch):
    def measure():
        order.append("measured")
        return {}

    order = interrupt_before(monkeypatch, 0)
    two_hops = find_studies(["rperf-fig11"])[0]
    timed = record_point("t", {}, measure, "", "timed")
    studies = [a_study(points=(timed,)), two_hops]
    run_studies(studies, lambda study, records: run_study(study, simulated=records))
    assert order == [*(point.setting for point in two_hops.points), "measured"]


def test_a_simulation_that_fails_in_a_process_is_named_by_study_and_setting(monkeypatch, capsys):
    bad = simulation_point("no end", {}, {"duration": "1 us", "fabric": {}}, "omnet")
    fine = find_studies(["rperf-fig11"])[0].points
    monkeypatch.setattr(
        "weft.cli.study.find_studies", lambda _: [a_study(name="s", points=(bad, *fine))]
    )
    assert main(["study", "run", "s", "-j", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("weft: s, no end: no end: fabric")


def test_a_directory_that_cannot_be_made_is_exit_status_2(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["study", "run", "rperf-fig11", "--figure", str(tmp_path / "file")]) == 2
    assert "not a directory" in capsys.readouterr().err
