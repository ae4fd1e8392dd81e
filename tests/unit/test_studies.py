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
    study_figures,
    study_records,
)
from weft.studies.observation import ANOTHER_SYSTEM, MEDIAN_RTT, TAIL_RTT, Records
from weft.studies.published import find_table
from weft.studies.report import (
    pair_rows,
    study_table,
    summarise_claims,
    summarise_predictions,
    summarise_rows,
)
from weft.studies.rperf import RPERF
from weft.studies.rperf.rperf_setups import shares
from weft.studies.study import RPERF_PAPER, Study

KEYS = ["study", "setting", "quantity", "unit", "published", "ours", "ratio", "source", "system"]
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
    monkeypatch.setattr("weft.studies.catalog.STUDIES", (wrong,))
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


def test_what_served_to_set_a_parameter_is_no_prediction_and_the_docs_count_it():
    text = (Path(__file__).parents[2] / "docs" / "studies.md").read_text("utf-8")
    totals = Counter()
    for study in RPERF:
        parameters = find_table(study.name).cells("sets")
        rows = [o for o in study.observations if o.published is not None]
        assert [o.is_prediction for o in rows] == [not parameter for parameter in parameters]
        figure = study.name.removeprefix("rperf-fig")
        free = parameters.count("")
        served = len(parameters) - free
        totals.update(rows=len(rows), served=served)
        assert re.search(
            rf"^\| {figure} \| {len(rows)} \| {served} \| .*\| {free}\b", text, re.MULTILINE
        ), figure
    counts = f"Of the {totals['rows']} published values {totals['served']} were used to set one"
    assert counts in " ".join(text.split())


@pytest.mark.parametrize(
    ("source", "predicted", "expected"),
    [
        ("simulation", None, True),
        ("measurement", None, True),
        ("model", None, False),
        ("model", True, True),
        ("simulation", False, False),
    ],
)
def test_a_models_row_is_fitted_and_any_other_predicted_unless_it_says_otherwise(
    source, predicted, expected
):
    assert observation(source=source, predicted=predicted).is_prediction is expected


def test_predictions_are_counted_apart():
    assert summarise_predictions([row(10, predicted=False), row(10), row(99)]) == (
        "1 of the 3 served to set parameters; "
        "of the other 2, the predictions, 1 are within tolerance."
    )


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


def test_an_unknown_study_is_named_with_those_that_there_are():
    with pytest.raises(InputError, match=r"'fig99' is unknown; use all, rperf-fig4"):
        find_studies(["fig99"])


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
    assert summarise_claims([result]) == (
        "Of 2 claims of the papers 1 holds, 1 could not be judged."
    )


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
    claims = tuple(claim(lambda _, h=h: Verdict(holds=h, evidence="")) for h in holds)
    assert summarise_claims([run_study(a_study(claims=claims))]) == (
        "Of 6 claims of the papers 2 hold, 3 do not, 1 could not be judged."
    )


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


def test_an_interrupt_keeps_the_studies_that_were_finished(monkeypatch, tmp_path, capsys):
    def interrupted_at_the_second(study, progress, connect):
        if study.name != "rperf-fig11":
            raise KeyboardInterrupt
        return run_study(study, progress, connect)

    monkeypatch.setattr("weft.cli.study.run_study", interrupted_at_the_second)
    file = tmp_path / "r.jsonl"
    assert main(["study", "run", "rperf-fig11", "rperf-fig10", "-o", str(file)]) == 1
    assert len(read_records(file).records) == 4
    assert "rperf-fig11" in capsys.readouterr().out


def test_a_directory_that_cannot_be_made_is_exit_status_2(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["study", "run", "rperf-fig11", "--figure", str(tmp_path / "file")]) == 2
    assert "not a directory" in capsys.readouterr().err
