"""The verdict on Saba's claim, packet by packet: what the page says follows from the record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
