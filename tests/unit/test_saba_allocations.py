"""Rules for weights at flow level, regimes, placement, and the probe beside them."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import InputError
from weft.sensitivity.application import PAPER_SHARES
from weft.sensitivity.trace import estimate
from weft.simulate import scenario_from
from weft.studies.saba.evaluation.allocations import (
    AMONG,
    BESIDE_ONE,
    EQ_4_2,
    EQUAL,
    FABRIC_WIDE,
    LENDING,
    LIGHT,
    PLACEBO,
    PROBED,
    ROUGH,
    RULES,
    build_probe_scenario,
    draw_alike,
    draw_load,
    draw_oversubscribed,
    evaluate_rules,
    learn,
    measure_sizes,
    place_jobs,
    simulate_rule,
    trace_job,
)
from weft.studies.saba.evaluation.cluster import list_flows
from weft.studies.saba.evaluation.judgement import compare_ways
from weft.studies.saba.workloads import read_testbed


def test_a_size_is_the_time_that_the_bytes_fill_the_busiest_port() -> None:
    setup = draw_alike(1)
    sizes = measure_sizes(setup, list_flows(setup))
    volumes = [10 * job.stages[0].volume_bytes * 8 / 56e9 for job in setup.jobs]
    assert sizes == pytest.approx(volumes, rel=1e-6)


@pytest.mark.parametrize("name", [*read_testbed()])
def test_one_traced_run_gives_the_slowdowns_of_the_closed_form(name: str) -> None:
    workload = read_testbed()[name]
    model = estimate(trace_job(workload.job)).model
    for share in PAPER_SHARES:
        assert float(model.slowdown(share)) == pytest.approx(workload.slowdown(share), rel=1e-3)


def test_weights_of_the_rules() -> None:
    known = learn(draw_alike(2))
    jobs = tuple(range(len(known.setup.jobs)))
    weights = {rule: np.array(RULES[rule](known, jobs)) for rule in RULES if rule != LENDING}
    assert len(set(weights[EQUAL].tolist())) == 1
    assert weights[EQ_4_2] == pytest.approx(weights[EQ_4_2].mean(), rel=0.01)  # they are alike
    order = np.argsort(known.sizes_s)
    assert (np.diff(weights[LIGHT][order]) <= 0).all()
    assert sorted(weights[PLACEBO]) == pytest.approx(sorted(weights[LIGHT]))
    assert (weights[PLACEBO] != weights[LIGHT]).all()
    assert weights[ROUGH].tolist() != weights[LIGHT].tolist()


def test_small_jobs_first_is_faster_where_jobs_differ_in_length_alone() -> None:
    evaluation = evaluate_rules(draw_alike, [1, 2, 3], [EQUAL, EQ_4_2, LIGHT])
    assert compare_ways(evaluation, EQ_4_2, EQUAL).value == pytest.approx(1, abs=0.01)
    assert compare_ways(evaluation, LIGHT, EQUAL).low > 1.05


def test_one_share_in_the_whole_fabric_runs() -> None:
    known = learn(draw_load(1, count=4, load=1.0))
    assert np.isfinite(simulate_rule(FABRIC_WIDE, known)).all()


def test_fewer_spines_oversubscribe_the_leaves() -> None:
    full, scarce = (draw_oversubscribed(3, ratio=ratio) for ratio in (1, 4))
    assert full.jobs == scarce.jobs
    assert full.cluster.hosts == scarce.cluster.hosts == 64
    assert measure_sizes(scarce, list_flows(scarce)).max() > 1.5 * (
        measure_sizes(full, list_flows(full)).max()
    )


def test_placement_spreads_what_it_is_asked_to() -> None:
    setup = draw_oversubscribed(1, ratio=1)
    applications = learn(setup).applications
    assert place_jobs(setup, "random", applications) is setup
    for placement in ("count", "volume", "sensitivity"):
        placed = place_jobs(setup, placement, applications)
        assert [len(hosts) for hosts in placed.hosts] == [len(hosts) for hosts in setup.hosts]
    by_count = np.bincount(np.concatenate(place_jobs(setup, "count", applications).hosts))
    assert by_count.max() - by_count.min() <= 1
    with pytest.raises(InputError, match="use one of random, count, volume, sensitivity"):
        place_jobs(setup, "best", applications)


@pytest.mark.parametrize("rule", PROBED)
def test_the_probe_has_a_lane_of_high_priority_unless_it_is_among_the_jobs(rule: str) -> None:
    scenario = build_probe_scenario(rule, 1, "1 ms")
    scenario_from(scenario)
    lanes = scenario["fabric"]["lanes"]
    assert lanes == {AMONG: 1, BESIDE_ONE: 2}.get(rule, 9)
    if rule != AMONG:
        assert scenario["lanes"]["high"][0][0] == lanes - 1
