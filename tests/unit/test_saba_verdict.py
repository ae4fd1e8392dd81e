"""The verdict on Saba's claim, packet by packet: what the page says follows from the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.studies.saba.evaluation.judgement import PRODUCT, compare_ways, decompose, judge_regime
from weft.studies.saba.evaluation.recording import read_case

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "src" / "weft" / "studies" / "saba" / "recorded"
PAGE = (ROOT / "docs" / "saba-verdict.md").read_text("utf-8")


def read_cases(name: str) -> dict[str, Any]:
    cases: dict[str, Any] = json.loads((RECORDED / name).read_text("utf-8"))["cases"]
    return cases


PACKETS, FLOWS = read_cases("packets.json"), read_cases("flows.json")
DECIDING = "virtual output queues, buffers equal in total"


def is_judged(seeds: dict[str, Any]) -> bool:
    runs = seeds.values()
    return len(seeds) >= 10 and all(set(PRODUCT) <= set(run["completions_s"]) for run in runs)


def check_row(start: str, seeds: dict[str, Any]) -> None:
    product = decompose(read_case(seeds))
    (row,) = [line for line in PAGE.splitlines() if line.startswith(start)]
    factors = (product.total, product.isolation, product.mapping, product.sensitivity)
    for factor in (*factors, product.over_placebo):
        assert str(factor) in row
    assert judge_regime(product).sensitivity in row


@pytest.mark.parametrize("setting", [name for name in PACKETS if is_judged(PACKETS[name])])
def test_the_page_has_the_product_of_the_packet_record(setting: str) -> None:
    regime, inputs, buffers = setting.rsplit(", ", 2)
    kind = f"{inputs}, {buffers.removeprefix('buffers equal ')}"
    check_row(f"| {regime} | {kind} |", PACKETS[setting])


@pytest.mark.parametrize("setting", [name for name in FLOWS if is_judged(FLOWS[name])])
def test_the_page_has_the_product_of_the_flow_record(setting: str) -> None:
    check_row(f"| {setting} | 10 |", FLOWS[setting])


@pytest.mark.parametrize("setting", [name for name in PACKETS if name.startswith("testbed")])
def test_the_page_has_the_speedup_of_every_way_on_the_testbed(setting: str) -> None:
    evaluation = read_case(PACKETS[setting])
    for way in evaluation.completions:
        rows = [line for line in PAGE.splitlines() if line.startswith(f"| {way} |")]
        if way not in PRODUCT:
            assert any(str(compare_ways(evaluation, way)) in row for row in rows), way


def test_the_page_has_the_500_set_ups_of_fig_4_14() -> None:
    seeds = read_cases("fig4.14.json")["testbed"]
    check_row("| testbed (Figs. 4.13, 4.14), seeds 1–500 | 500 |", seeds)
    by_setup = np.exp(read_case(seeds).log_ratios("Saba", "one lane"))
    lost, least, most = int((by_setup < 1).sum()), by_setup.min(), by_setup.max()
    line = f"In {lost} of 500 set-ups of the testbed Saba is slower than one lane"
    assert f"{line} ({least:.2f} to {most:.2f};" in PAGE


def find_side_row(hypothesis: str) -> str:
    part = PAGE.partition("## Side hypotheses")[2].partition("## What is missing")[0]
    (row,) = [line for line in part.splitlines() if line.startswith(f"| {hypothesis} |")]
    return row


@pytest.mark.parametrize(
    ("hypothesis", "regime", "way", "over"),
    [
        ("order", "scale", "Saba", "Sincronia, jobs"),
        ("order", "scale", "Sincronia, jobs", "lane per workload"),
        ("order", "scale", "lane per workload", "Homa"),
        ("queues", "testbed", "Saba, 4 queues", "Saba, 2 queues"),
        ("queues", "testbed", "Saba", "Saba, 4 queues"),
        ("queues", "testbed", "Saba, unlimited queues", "Saba"),
        ("queues", "scale", "Saba, 4 queues", "Saba, 2 queues"),
        ("queues", "scale", "Saba", "Saba, 4 queues"),
        ("queues", "scale", "Saba, unlimited queues", "Saba"),
        ("distributed", "testbed", "Saba, distributed", "Saba"),
        ("distributed", "scale", "Saba, distributed", "Saba"),
        ("load", "load: 4 jobs, 0.5", "Saba", "8 equal lanes, k-means"),
        ("load", "load: 4 jobs, 1", "Saba", "8 equal lanes, k-means"),
        ("spread", "alike", "Saba", "8 equal lanes, k-means"),
    ],
)
def test_side_hypotheses_have_the_ratios_of_the_record(
    hypothesis: str, regime: str, way: str, over: str
) -> None:
    evaluation = read_case(PACKETS[f"{regime}, {DECIDING}"])
    assert str(compare_ways(evaluation, way, over)) in find_side_row(hypothesis)


def test_every_side_hypothesis_is_judged() -> None:
    hypotheses = (ROOT / "docs" / "saba-hypotheses.md").read_text("utf-8")
    table = hypotheses.partition("| | hypothesis | fails if |")[2].partition("\n\n")[0]
    names = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert len(names) == 9
    for name in names:
        verdict = find_side_row(name).split("|")[-2].strip()
        assert verdict.startswith(("holds", "fails", "not modelled")), name


def test_the_page_has_the_speedup_of_each_workload() -> None:
    speedups = [
        read_case(PACKETS[f"testbed, {inputs}, buffers equal in total"]).speedups_of("Saba")
        for inputs in ("FIFO inputs", "virtual output queues")
    ]
    for name in speedups[0]:
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
        assert row.endswith(f"| {speedups[0][name]:.2f} | {speedups[1][name]:.2f} |")


@pytest.mark.parametrize("regime", ["testbed", "scale", "favourable"])
def test_the_page_has_slowdowns_against_alone(regime: str) -> None:
    fifo, queues = (
        read_case(PACKETS[f"{regime}, {inputs}, buffers equal in total"])
        for inputs in ("FIFO inputs", "virtual output queues")
    )
    part = PAGE.partition("**Beside the speedup**")[2].partition("**At 1,944 servers**")[0]
    rows = [line for line in part.splitlines() if line.startswith(f"| {regime}, ")]
    assert len(rows) == 8
    for row in rows:
        way = row.split("|")[1].strip().removeprefix(f"{regime}, ")
        slowdowns = [
            f"{each.mean_slowdown(way):.2f} | {each.worst_slowdown(way):.1f}"
            for each in (fifo, queues)
        ]
        assert row.endswith(f"| {' | '.join(slowdowns)} |")


@pytest.mark.parametrize("inputs", ["virtual output queues", "FIFO inputs"])
@pytest.mark.parametrize("regime", ["testbed", "scale", "favourable"])
def test_the_policy_page_has_the_weights_by_size_of_the_record(regime: str, inputs: str) -> None:
    policy = (ROOT / "docs" / "saba-policy.md").read_text("utf-8")
    evaluation = read_case(PACKETS[f"{regime}, {inputs}, buffers equal in total"])
    (row,) = [line for line in policy.splitlines() if line.startswith(f"| {regime} | {inputs} |")]
    for over in ("one lane", "8 equal lanes, k-means", "Saba"):
        assert str(compare_ways(evaluation, "by size, 8 queues", over)) in row


def test_the_page_has_queues_and_the_distributed_controller_at_scale() -> None:
    evaluation = read_case(read_cases("fig4.18.json")["scale, 1,944 servers"])
    assert len(evaluation.seeds) == 10
    part = PAGE.partition("**Queues and the distributed controller at scale**")[2]
    for way in ("Saba, 2 queues", "Saba", "Saba, unlimited queues", "Saba, distributed"):
        (row,) = [line for line in part.splitlines() if line.startswith(f"| {way} |")]
        assert str(compare_ways(evaluation, way)) in row
    distributed = str(compare_ways(evaluation, "Saba, distributed", "Saba"))
    assert distributed in find_side_row("distributed")
