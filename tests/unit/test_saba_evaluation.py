"""Saba's evaluation: ways worked by hand, the product of causes, the verdict's rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.cli import main
from weft.errors import InputError
from weft.fabric import leaf_spine3, path
from weft.jobs import Job, read_job
from weft.records import Scalar
from weft.sensitivity.model import Polynomial
from weft.studies import run_study
from weft.studies.saba.evaluation.cluster import (
    SetUp,
    build_homogeneous,
    connect_fabric,
    connect_one_switch,
    draw_favourable,
    draw_scale,
    draw_testbed,
    list_flows,
)
from weft.studies.saba.evaluation.judgement import (
    CLUSTERED,
    PLACEBO,
    RANDOM,
    SABA,
    Estimate,
    Evaluation,
    Product,
    bootstrap,
    decompose,
    judge_regime,
    judge_regimes,
)
from weft.studies.saba.evaluation.ways import (
    BY_SIZE,
    WAYS,
    Knowledge,
    evaluate,
    simulate_alone,
    simulate_way,
)
from weft.studies.saba.priority_order import order_coflows
from weft.studies.saba.speedup_cases import RecordedCase, Size
from weft.studies.saba.speedups import SPEEDUP_BUILDERS, SPEEDUPS
from weft.toml_table import Table

TESTBED_FIFO = "testbed, FIFO inputs, buffers equal in total"
SECOND = 7_000_000_000  # bytes of a 56 Gb/s port
SHARP = Polynomial(coefficients=(4.0, -3.0), floor=0.05)
FLAT = Polynomial(coefficients=(1.2, -0.2), floor=0.05)


def make_job(name: str, sends_s: float, *, computes_s: float = 0, loops: int = 1) -> Job:
    """Two or more instances; each port is needed for `sends_s` a loop."""
    stage = {
        "name": "exchange",
        "compute": f"{computes_s} s",
        "volume": f"{round(sends_s * SECOND)} B",
        "pattern": "shuffle",
    }
    table = {"name": name, "instances": 2, "loops": loops, "stage": [stage]}
    return read_job(Table(table, name))


def share(jobs: list[Job], way: str, hosts: list[list[int]] | None = None) -> list[float]:
    """Completion times of jobs named after their workloads, `sharp` and `flat` by their names."""
    places = hosts or [[0, 1]] * len(jobs)
    setup = SetUp(
        cluster=connect_one_switch(1 + max(max(place) for place in places)),
        jobs=tuple(jobs),
        workloads=tuple(job.name for job in jobs),
        hosts=tuple(np.array(place) for place in places),
        seed=1,
    )
    models = {job.name: SHARP if job.name.startswith("sharp") else FLAT for job in jobs}
    knowledge = Knowledge(setup=setup, flows=list_flows(setup), models=models, profiled=models)
    return [float(t) for t in simulate_way(way, knowledge)]


@pytest.mark.parametrize("way", ["SRPT", "Homa", "Sincronia", "Sincronia, jobs"])
def test_the_shortest_of_three_goes_first(way: str) -> None:
    """One port, 1, 2 and 4 s of work: they end at 1, 3 and 7."""
    jobs = [make_job("c", 4), make_job("a", 1), make_job("b", 2)]
    assert share(jobs, way) == pytest.approx([7, 1, 3], rel=1e-3)


def test_srpt_serves_who_has_least_left_not_who_was_smallest() -> None:
    """A has 4 s to send from 0, B 2.5 s from 3, when A has 1 left: A ends at 4, B at 6.5.

    By the sizes at the start B would go first: it would end at 5.5 and A at 6.5.
    """
    late = replace(make_job("B", 2.5), start_ps=round(3e12))
    first, second = share([make_job("A", 4), late], "SRPT")
    assert first == pytest.approx(4, rel=1e-3)
    assert 3 + second == pytest.approx(6.5, rel=1e-3)


def test_bottleneck_select_scale_iterate_scales() -> None:
    """Coflows A = (5, 0), B = (2, 3), C = (0, 3) at two ports, worked by hand, weights 1.

    Cases of Sincronia's authors: the property tests. Port 0 has most, 7. A has 1/5 there and B 1/2,
    so A is last, and B keeps 1 - 2/5. Then port 1 has most, 6: B has (3/5)/3 = 1/5 and C 1/3, so B
    is last but one. Without the scaling B and C would be equal, and C, given last, would go after
    B.

    The bound: 1/5 of (7² + 5² + 2²)/2 = 7.8, 1/5 of (6² + 3² + 3²)/2 = 5.4, and C, which keeps
    1 - 3/5, 2/15 of (3² + 3²)/2 = 1.2. In this order C ends at 3, B at 6, A at 7: 16 in all.
    """
    ordered = order_coflows([[5, 0], [2, 3], [0, 3]])
    assert ordered.order == (2, 1, 0)
    assert ordered.bound == pytest.approx(7.8 + 5.4 + 1.2)
    assert ordered.bound <= 3 + 6 + 7 <= 4 * ordered.bound


def test_queues_by_size_favour_the_small_one() -> None:
    """1 s and 4 s, the weights 1 and 1/4: the small one ends at 1/0.8, whatever its sensitivity."""
    for names in (("sharp", "flat"), ("flat", "sharp")):
        jobs = [make_job(names[0], 1), make_job(names[1], 4)]
        assert share(jobs, BY_SIZE) == pytest.approx([1 / 0.8, 5], rel=1e-3)


def test_one_lane_shares_by_flows() -> None:
    """1, 2 and 4 s: a third each until 3, half each until 5, then alone until 7."""
    jobs = [make_job("c", 4), make_job("a", 1), make_job("b", 2)]
    assert share(jobs, "one lane") == pytest.approx([7, 3, 5], rel=1e-3)


def test_sincronia_orders_again_when_a_coflow_ends() -> None:
    """Coflows A = (2, 2), B = (0, 3), C = (4, 0) of the property tests, in the order B, A, C.

    Both flows of A pass host 1, which B has until 3. Meanwhile C, behind A in the order, has host 0
    to itself. Then A has 2 left and C 1, on one port: C ends at 4 and A at 6.
    """
    jobs = [make_job("A", 2), make_job("B", 3), make_job("C", 4)]
    hosts = [[0, 1], [1, 2], [0, 3]]
    assert share(jobs, "Sincronia", hosts) == pytest.approx([6, 3, 4], rel=1e-3)


def test_an_order_of_jobs_stays_as_it_is() -> None:
    """The same coflows: at 3 A goes before what C has left, until 5. C ends at 6, as by hand."""
    jobs = [make_job("A", 2), make_job("B", 3), make_job("C", 4)]
    hosts = [[0, 1], [1, 2], [0, 3]]
    assert share(jobs, "Sincronia, jobs", hosts) == pytest.approx([5, 3, 6], rel=1e-3)


def test_sincronia_completes_within_four_times_the_lower_bound() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        count = int(rng.integers(2, 9))  # one priority each
        jobs = [make_job(f"j{n}", float(rng.uniform(0.5, 5))) for n in range(count)]
        hosts = [rng.permutation(6)[: rng.integers(2, 6)].tolist() for _ in jobs]
        setup = SetUp(
            cluster=connect_one_switch(6),
            jobs=tuple(jobs),
            workloads=tuple(job.name for job in jobs),
            hosts=tuple(np.array(place) for place in hosts),
            seed=1,
        )
        flows = list_flows(setup)
        seconds = [job.stages[0].volume_bytes / SECOND for job in jobs]
        peers = [len(place) - 1 for place in hosts]
        demand = flows.counts * (np.array(seconds) / peers)[:, None]
        bound = order_coflows(demand).bound
        total = sum(share(jobs, "Sincronia", hosts))
        assert bound * (1 - 1e-3) <= total <= 4 * bound


def test_saba_favours_the_sensitive_and_fixed_caps_lend_nothing() -> None:
    """D = 4 − 3b beside D = 1.2 − 0.2b: the sharp one gets all but the other's floor of 5 %.

    It ends at 1 / 0.95. The flat one then borrows everything: 1 + 1 in all. With fixed caps it has
    5 % until the first has gone, and then the port alone, as Eq. 4.2 has one application there.
    """
    jobs = [make_job("sharp", 1), make_job("flat", 1)]
    assert share(jobs, "Saba") == pytest.approx([1 / 0.95, 2], rel=1e-3)
    assert share(jobs, "fixed caps") == pytest.approx([1 / 0.95, 2], rel=1e-3)
    idle = [make_job("sharp", 0, computes_s=10), make_job("flat", 1)]
    assert share(idle, "Saba") == pytest.approx([10, 1], rel=1e-3)
    assert share(idle, "fixed caps")[1] > 10


def test_the_placebo_gives_the_weight_to_the_other() -> None:
    jobs = [make_job("sharp", 1), make_job("flat", 1)]
    assert share(jobs, "placebo") == pytest.approx([2, 1 / 0.95], rel=1e-3)


def test_every_way_finishes_every_job_no_sooner_than_alone() -> None:
    evaluation = evaluate(draw_favourable, [1], list(WAYS))
    for way, (times,) in evaluation.completions.items():
        assert np.isfinite(times).all(), way
        assert (times >= evaluation.alone[0] * (1 - 1e-2)).all(), way
    assert evaluation.alone[0] == pytest.approx(simulate_alone(draw_favourable(1)))


def test_set_ups_come_from_their_seed_and_hold_the_thesis_limits() -> None:
    setup = draw_testbed(3)
    assert [job.name for job in setup.jobs] == [job.name for job in draw_testbed(3).jobs]
    assert len(setup.jobs) == 16
    assert all(4 <= len(hosts) <= 32 for hosts in setup.hosts)
    scale = draw_scale(2, full=True)
    assert scale.cluster.hosts == 1944
    placed = np.concatenate(scale.hosts)
    assert [len(hosts) for hosts in scale.hosts] == [97] * 20
    assert len(np.unique(placed)) == len(placed)  # each server runs one workload
    assert all((hosts == np.arange(8)).all() for hosts in build_homogeneous(1).hosts)


def test_flows_take_the_routes_of_the_fabric() -> None:
    fabric = leaf_spine3(2, 5, 6, 18, 6, 6, rate="56 Gb/s", delay="50 ns")
    cluster, hosts = connect_fabric(False), fabric.hosts
    sources, targets = np.array([0, 3, 70, 20]), np.array([71, 4, 1, 23])
    taken: list[list[tuple[int, int]]] = [[] for _ in sources]
    width = fabric.wiring.shape[1]
    for which, ports in cluster.find_hops(sources, targets):
        for pair, port in zip(which.tolist(), ports.tolist(), strict=True):
            taken[pair].append((port // width, port % width + 1))
    pairs = zip(sources.tolist(), targets.tolist(), strict=True)
    assert taken == [path(fabric, hosts[source], hosts[target]) for source, target in pairs]


def test_more_instances_than_hosts_is_one_line() -> None:
    job = replace(make_job("big", 1), instances=5)
    with pytest.raises(InputError, match="5 instances, and the cluster has 4 hosts"):
        SetUp(
            cluster=connect_one_switch(4),
            jobs=(job,),
            workloads=("big",),
            hosts=(np.arange(5),),
            seed=1,
        )


# ---- Verdicts ---------------------------------------------------------------------------------


def make_evaluation(seeds: int, factors: dict[str, float]) -> Evaluation:
    """Completion times of three jobs, divided by a way's factor, with noise by seed and job."""
    rng = np.random.default_rng(1)
    base = [rng.uniform(1, 9, 3) for _ in range(seeds)]

    def run(factor: float) -> tuple[NDArray[np.float64], ...]:
        return tuple(times / factor * rng.uniform(0.99, 1.01, 3) for times in base)

    return Evaluation(
        seeds=tuple(range(seeds)),
        workloads=(("a", "b", "a"),) * seeds,
        completions={way: run(factor) for way, factor in factors.items()},
        alone=tuple(base),
        busiest_s=(1.0,) * seeds,
    )


def test_the_total_is_the_product_of_its_factors() -> None:
    ways = {"one lane": 1.0, RANDOM: 1.2, CLUSTERED: 1.3, SABA: 1.5, PLACEBO: 1.1}
    product = decompose(make_evaluation(10, ways))
    factors = product.isolation.value * product.mapping.value * product.sensitivity.value
    assert factors == pytest.approx(product.total.value)
    assert product.total.value == pytest.approx(1.5, rel=0.02)
    verdict = judge_regime(product)
    assert verdict.sensitivity == "confirmed"
    assert verdict.isolation_explains is False  # ln 1.2 / ln 1.5 = 0.45


def judge(sensitivity: tuple[float, ...], placebo: tuple[float, ...], total: float = 1.5) -> str:
    def estimate(three: tuple[float, ...]) -> Estimate:
        return Estimate(value=three[0], low=three[1], high=three[2])

    one = estimate((total, total, total))
    product = Product(
        total=one,
        isolation=one,
        mapping=estimate((1, 1, 1)),
        sensitivity=estimate(sensitivity),
        over_placebo=estimate(placebo),
    )
    return judge_regime(product).sensitivity


def test_sensitivity_is_confirmed_only_above_one_and_above_the_placebo() -> None:
    assert judge((1.1, 1.05, 1.2), (1.1, 1.02, 1.2)) == "confirmed"
    assert judge((1.1, 1.05, 1.2), (1.0, 0.98, 1.02)) == "equal to the placebo"
    assert judge((1.1, 1.05, 1.2), (1.0, 0.9, 1.1)) == "undecided"
    assert judge((1.1, 0.9, 1.2), (1.2, 1.1, 1.3)) == "undecided"
    assert judge((0.99, 0.9, 1.2), (1.2, 1.1, 1.3)) == "at or below 1"


def test_refuted_needs_every_regime() -> None:
    assert judge_regimes(["at or below 1", "equal to the placebo"]) == "refuted"
    assert judge_regimes(["at or below 1", "undecided"]) == "undecided"
    assert judge_regimes(["at or below 1", "confirmed"]) == "confirmed"


def test_isolation_explains_four_fifths_of_the_log_total() -> None:
    ways = {"one lane": 1.0, RANDOM: 1.45, CLUSTERED: 1.45, SABA: 1.5, PLACEBO: 1.5}
    assert judge_regime(decompose(make_evaluation(10, ways))).isolation_explains is True
    slower = {**ways, SABA: 0.9}
    assert judge_regime(decompose(make_evaluation(10, slower))).isolation_explains is None


def test_the_interval_covers_the_mean_of_most_samples() -> None:
    rng = np.random.default_rng(1)
    estimates = [bootstrap(rng.normal(0.1, 0.05, 20)) for _ in range(200)]
    covered = sum(e.low <= np.exp(0.1) <= e.high for e in estimates)
    assert 175 <= covered <= 199  # 95 %; percentiles of 20 are a little narrow


def test_one_seed_has_no_interval() -> None:
    estimate = bootstrap(np.array([0.1]))
    assert (estimate.low, estimate.high) == (0, np.inf)


# ---- Studies ----------------------------------------------------------------------------------


def test_a_study_says_what_size_was_run_and_keeps_every_completion() -> None:
    study = SPEEDUP_BUILDERS["saba-fig4.15"](Size(seeds=2))
    result = run_study(study)
    assert {row.observation.setting for row in result.rows} == {
        f"{data} times the data (2 set-ups, 8 servers, 10 jobs)" for data in ("0.1", "1", "10")
    }
    assert [row.published for row in result.rows] == [1.33, 1.54, 1.40]
    record = result.records["1 times the data"]
    rows = record.tables["completions"]
    assert len(rows) == 2 * 5 * 10  # seeds, ways, jobs
    logs = {
        way: np.log([float(r["completion_s"] or 0) for r in rows if r["way"] == way]).mean()
        for way in ("one lane", SABA)
    }
    speedup = record.quantities["Saba.speedup"]
    assert isinstance(speedup, Scalar)
    assert speedup.value == pytest.approx(np.exp(logs["one lane"] - logs[SABA]))


@pytest.mark.parametrize("name", ["saba-packets", "saba-packets-1944", "saba-fig4.18a"])
def test_by_default_a_recorded_run_is_shown(name: str) -> None:
    study = SPEEDUP_BUILDERS[name](Size())
    assert all("recorded set-ups" in row.setting for row in study.observations)
    (note,) = [note for note in study.notes if note.startswith("A recorded run of ")]
    assert "--seeds N runs N set-ups anew" in note
    case = RecordedCase(setting="x", recording="packets", cell_name=TESTBED_FIFO, ways=(SABA,))
    assert case.describe(Size()) == "10 recorded set-ups, 32 servers, 16 jobs"
    assert case.describe(Size(seeds=3)) == "3 set-ups, 32 servers, 16 jobs"


def test_rows_of_a_recorded_run_are_its_factors_and_notes_have_intervals() -> None:
    result = run_study(SPEEDUP_BUILDERS["saba-packets"](Size()))
    case = RecordedCase(setting="x", recording="packets", cell_name=TESTBED_FIFO, ways=(SABA,))
    product = decompose(case.read())
    rows = {
        row.observation.quantity: row
        for row in result.rows
        if row.observation.setting.startswith(TESTBED_FIFO)
    }
    assert rows["sensitivity"].ours == pytest.approx(product.sensitivity.value)
    assert rows["Saba over one lane"].ours == pytest.approx(product.total.value)
    assert rows["Saba over one lane"].published == 1.88
    assert any(f"sensitivity {product.sensitivity};" in remark for remark in result.remarks)


def test_notes_state_the_size_that_ran() -> None:
    for name, hops, servers in (("", "500,000", "72"), ("-1944", "20,000,000", "1,944")):
        note = SPEEDUP_BUILDERS[f"saba-packets{name}"](Size(seeds=1)).notes[0]
        assert f"make {hops} hops" in note
        assert f"{servers} servers" in note


def test_what_data_and_nodes_change_is_not_modelled() -> None:
    for name in ("saba-fig4.15", "saba-fig4.16"):
        claim = SPEEDUP_BUILDERS[name](Size()).claims[-1]
        assert claim.judge({}).word == "not modelled"


def test_every_stated_value_has_a_row() -> None:
    stated = {
        "saba-fig4.13": [1.88, 3.9, 3.6, 0.95, 0.99],
        "saba-fig4.14": [0.94, 2.99, 0.4],
        "saba-fig4.15": [1.33, 1.54, 1.40],
        "saba-fig4.16": [1.42, 1.34, 1.26, 1.09, 0.92, 0.94, 0.97],
        "saba-fig4.17": [1.27, 0.93, 1.42, 1.03, 1.22],
        "saba-fig4.18a": [1.27, 1.14, 1.12, 1.19, 1.79, 0.97],
        "saba-fig4.18b": [1.27, 1.23],
        "saba-fig4.18c": [1.12, 1.27, 1.33],
        # All jobs over one lane, on four kinds of switches; over FECN/BECN and by workload on two.
        "saba-packets": [1.88, 1.88, 3.9, 3.6, 0.95, 0.99, 1.88] * 2,
        "saba-packets-1944": [1.27, 1.27],
    }
    shown = {s.name: [o.published for o in s.observations if o.published] for s in SPEEDUPS}
    assert shown == stated


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["saba-fig4.18a", "--seeds", "0"], "--seeds: 0 set-ups; use 1 to 100,000"),
        (["rperf-fig4", "--seeds", "3"], "--seeds: none of these studies draws set-ups"),
    ],
)
def test_seeds_that_cannot_be_run_are_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], problem: str
) -> None:
    assert main(["study", "run", *argv]) == 2
    assert problem in capsys.readouterr().err
