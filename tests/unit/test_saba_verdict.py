"""The verdict on Saba's claim, packet by packet: what the page says follows from the record."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from weft.studies.saba.evaluation.judgement import Evaluation, decompose, judge_regime

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "src" / "weft" / "studies" / "saba" / "recorded" / "packets.json"
PRODUCT = ("one lane", "8 equal lanes, random", "8 equal lanes, k-means", "Saba", "placebo")
CASES = json.loads(RECORD.read_text("utf-8"))["cases"]


def read_case(setting: str) -> Evaluation:
    seeds = CASES[setting]
    runs = list(seeds.values())
    ways = [way for way in runs[0]["completions_s"] if all(way in r["completions_s"] for r in runs)]
    return Evaluation(
        seeds=tuple(map(int, seeds)),
        workloads=tuple(tuple(run["workloads"]) for run in runs),
        completions={w: tuple(np.array(run["completions_s"][w]) for run in runs) for w in ways},
        alone=tuple(np.array(run["alone_s"]) for run in runs),
        busiest_s=tuple(run["busiest_s"] for run in runs),
    )


JUDGED = [
    setting
    for setting, seeds in CASES.items()
    if len(seeds) >= 10 and all(set(PRODUCT) <= set(r["completions_s"]) for r in seeds.values())
]


@pytest.mark.parametrize("setting", JUDGED)
def test_the_page_has_the_product_of_the_record(setting: str) -> None:
    page = (ROOT / "docs" / "saba-verdict.md").read_text("utf-8")
    product = decompose(read_case(setting))
    regime, inputs, buffers = setting.split(", ")
    (row,) = [
        line
        for line in page.splitlines()
        if line.startswith(f"| {regime} | {inputs}, {buffers.removeprefix('buffers equal ')} |")
    ]
    factors = (product.total, product.isolation, product.mapping, product.sensitivity)
    for factor in (*factors, product.over_placebo):
        assert str(factor) in row
    assert judge_regime(product).sensitivity in row
