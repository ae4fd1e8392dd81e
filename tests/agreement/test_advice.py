"""The rules, given the papers' own tables, come to the papers' own conclusions."""

from typing import Any

import pytest

from weft.studies.efa.efa_text import ADVICE, MIB, Fabric, advise_on_tables
from weft.studies.published import find_statement
from weft.studies.study import run_study
from weft.tune.rules.advice import advise
from weft.tune.rules.evidence import UNKNOWN, Evidence, Row, Rule, Setting, Spread


def build_fdr_evidence() -> Evidence:
    """What the FDR study states of alignment, buffers and waiting, in Gb/s."""
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("unaligned-8Mi", {"size_bytes": 8 * MIB, "offset_bytes": 1}),
        ("aligned-8Mi", {"size_bytes": 8 * MIB}),
        ("1Mi-outstanding-5", {"size_bytes": MIB, "depth": 5}),
        ("1Mi-outstanding-4", {"size_bytes": MIB, "depth": 5, "one_buffer": True}),
        ("waiting-highest", {"size_bytes": MIB, "depth": 4, "wait": "block"}),
        ("polling-highest", {"size_bytes": MIB, "depth": 4}),
    )
    rows = [
        Row(
            setting=Setting(test="transfer", over="verbs", endpoint="rc", **setting),
            origins=(f"FDR study, {find_statement('fdr', key).place}",),
            throughput_Bps=Spread((find_statement("fdr", key).value * 1e9 / 8,)),
        )
        for key, setting in cases
    ]
    return Evidence(over="verbs", endpoint="rc", peer="PEER", rows=tuple(rows))


@pytest.fixture(scope="module")
def rules() -> dict[str, dict[str, Rule]]:
    fabrics: tuple[Fabric, ...] = ("RC", "SRD")
    by_fabric = {fabric: {r.topic: r for r in advise_on_tables(fabric)} for fabric in fabrics}
    return {**by_fabric, "FDR": {r.topic: r for r in advise(build_fdr_evidence())}}


# EFA thesis, Section 6.1 (and the sections it rests on); FDR study, Sections 3.2, 3.4, 3.6 and 4.
CONCLUSIONS = [
    ("SRD", "batching", "batch"),
    ("RC", "batching", "small messages"),
    ("SRD", "inline", "no inline"),
    ("RC", "inline", "inline"),
    ("SRD", "outstanding", "256"),
    ("RC", "outstanding", "64"),
    ("SRD", "connections", "4"),
    ("RC", "connections", "1"),
    ("SRD", "bound", "message rate"),
    ("RC", "bound", "line rate"),
    ("SRD", "one-sided", "send"),
    ("SRD", "tagged", "tags are free"),
    ("SRD", "inject", "no inject"),
    ("SRD", "post list", "post singly"),
    ("RC", "post list", "post lists"),
    ("FDR", "alignment", "align"),
    ("FDR", "buffers", "stay in the cache"),
    ("FDR", "waiting, throughput", "block"),
]


@pytest.mark.parametrize(("fabric", "topic", "choice"), CONCLUSIONS)
def test_the_rule_concludes_what_the_paper_does(
    rules: dict[str, dict[str, Rule]], fabric: str, topic: str, choice: str
) -> None:
    assert rules[fabric][topic].choice == choice


def test_several_connections_pay_below_8_kib_on_efa(rules: dict[str, dict[str, Rule]]) -> None:
    says = rules["SRD"]["connections"].says
    assert says == "use 4 connections below 8 KiB; one is enough from there on"


def test_efa_needs_messages_of_8_kib_to_fill_the_line(rules: dict[str, dict[str, Rule]]) -> None:
    assert rules["SRD"]["message size"].choice == "8192 B"


def test_efas_message_rate_bound_lies_between_4_and_8_kib(
    rules: dict[str, dict[str, Rule]],
) -> None:
    """Section 4.4: message bound at 4 kB, full bandwidth at 8 kB."""
    number = rules["SRD"]["bound"].number
    assert number is not None
    assert 4096 < number < 8192


def test_efas_median_latency_nearly_doubles_at_full_load(rules: dict[str, dict[str, Rule]]) -> None:
    """Section 4.8; the tail, which the rule keeps to, doubles before."""
    assert "p50 grows 1.9-fold" in rules["SRD"]["load"].because


def test_what_the_thesis_does_not_measure_is_not_guessed(rules: dict[str, dict[str, Rule]]) -> None:
    rule = rules["RC"]["one-sided"]
    assert rule.choice == UNKNOWN
    assert rule.number is None
    assert "weft rma PEER --over verbs" in rule.because


def test_every_known_rule_has_a_number_and_a_threshold_with_its_reason(
    rules: dict[str, dict[str, Rule]],
) -> None:
    for fabric in rules.values():
        for rule in fabric.values():
            assert rule.because
            if rule.is_known:
                assert rule.threshold is not None
                assert rule.threshold_why
                assert rule.unit


def test_every_conclusion_of_the_study_holds() -> None:
    result = run_study(ADVICE)
    assert [c.statement for c, verdict in result.judged if not verdict.holds] == []
    assert all(row.within for row in result.rows)
