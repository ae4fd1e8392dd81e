"""The fabric-wide split: feasible, never below its bound, and at it for convex models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from some_examples import examples

from weft.control.policy.fabric_wide import (
    build_fabric_plan,
    compare_plans,
    compute_gap,
    find_promised_rates,
    find_working_rates,
    predict_path_slowdowns,
    split_fabric,
)
from weft.control.policy.lending import Demands
from weft.control.policy.plan import ConnectionPath, Policy, build_plan, build_policy
from weft.control.policy.port_policy import Htb, PortPolicy, VlArbitration
from weft.fabric import Port
from weft.sensitivity.model import Hinges, Polynomial, Sensitivity

FLOOR = 0.02
FINE = Htb(queues=8, rate_kbps=1_000_000)
seeds = st.integers(0, 2**32 - 1)


def random_hinges(random: np.random.Generator) -> Hinges:
    knots = np.sort(random.uniform(0.1, 1, random.integers(1, 4)))[::-1]
    costs = random.lognormal(-1, 1, len(knots))
    return Hinges(terms=tuple(zip(knots.tolist(), costs.tolist(), strict=True)), floor=FLOOR)


def random_cubic(random: np.random.Generator) -> Polynomial:
    return Polynomial(coefficients=tuple(random.normal(0, 3, 4).tolist()), floor=FLOOR)


def random_fabric(
    random: np.random.Generator, models: dict[str, Sensitivity]
) -> tuple[dict[str, list[Port]], dict[Port, float]]:
    ports = [Port(0, n) for n in range(1, int(random.integers(2, 9)))]
    paths = {
        name: [
            ports[i]
            for i in random.choice(len(ports), random.integers(1, len(ports) + 1), replace=False)
        ]
        for name in models
    }
    return paths, {port: float(random.uniform(0.5, 1)) for port in ports}


@examples(60)
@given(seeds)
def test_the_share_at_a_price_is_the_best_on_a_fine_grid(seed: int) -> None:
    random = np.random.default_rng(seed)
    models = [random_hinges(random), random_cubic(random), Hinges(terms=(), floor=FLOOR)]
    price = random.lognormal(0, 2, len(models)) * (random.random(len(models)) < 0.9)
    shares = Demands.of(models).find_shares(price)
    grid = np.linspace(FLOOR, 1, 20001)
    for model, share, paid in zip(models, shares, price, strict=True):
        assert FLOOR <= share <= 1
        ours = float(model.slowdown(share)) + paid * share
        assert ours <= float((model.slowdown(grid) + paid * grid).min()) + 1e-9


@examples(15)
@given(seeds)
def test_convex_models_are_split_at_the_bound_and_within_every_port(seed: int) -> None:
    random = np.random.default_rng(seed)
    models: dict[str, Sensitivity] = {f"a{i}": random_hinges(random) for i in range(12)}
    paths, capacity = random_fabric(random, models)
    split = split_fabric(models, paths, capacity)
    assert split.gap <= 1e-6
    for port, most in capacity.items():
        assert sum(split.shares[name] for name in models if port in paths[name]) <= most + 1e-9
    assert all(FLOOR - 1e-12 <= share <= 1 for share in split.shares.values())
    total = sum(float(models[name].slowdown(share)) for name, share in split.shares.items())
    assert split.slowdown == pytest.approx(total)


@examples(12)
@given(seeds)
def test_no_random_split_is_below_the_bound(seed: int) -> None:
    random = np.random.default_rng(seed)
    makers = (random_hinges, random_cubic)
    models: dict[str, Sensitivity] = {
        f"a{i}": makers[int(random.integers(2))](random) for i in range(6)
    }
    paths, capacity = random_fabric(random, models)
    split = split_fabric(models, paths, capacity)
    assert split.slowdown >= split.bound - 1e-9
    for _ in range(50):
        shares = FLOOR + random.dirichlet(np.ones(6)) * (min(capacity.values()) - 6 * FLOOR)
        total = sum(float(m.slowdown(b)) for m, b in zip(models.values(), shares, strict=True))
        assert total >= split.bound - 1e-9


def random_policy(random: np.random.Generator, scheduler: VlArbitration | Htb) -> Policy:
    models: dict[str, Sensitivity] = {f"a{i}": random_hinges(random) for i in range(10)}
    return build_policy(models, PortPolicy(scheduler=scheduler, managed_share=0.9), 4)


def random_connections(random: np.random.Generator, policy: Policy) -> list[ConnectionPath]:
    paths, _ = random_fabric(random, dict(policy.models))
    return [ConnectionPath(application=name, ports=tuple(ports)) for name, ports in paths.items()]


@examples(12)
@given(seeds)
def test_fabric_wide_weights_are_whole_keep_floors_and_promise_the_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    policy = random_policy(random, FINE)
    connections = random_connections(random, policy)
    wide, found = build_fabric_plan(policy, connections)
    for port in wide.ports.values():
        assert sum(port.units.values()) == port.policy.units
        assert all(a.share >= a.model.floor - 1e-12 for a in port.applications)
    local = predict_path_slowdowns(build_plan(policy, connections)).promised
    ours = predict_path_slowdowns(wide).promised
    assert ours <= found.slowdown / len(connections) * (1 + 1e-3)
    assert ours <= local * (1 + 1e-3)
    assert compute_gap(wide, found) <= 1e-3


@examples(12)
@given(seeds)
def test_what_a_coarse_plan_promises_is_within_its_own_gap_of_the_bound(seed: int) -> None:
    random = np.random.default_rng(seed)
    policy = random_policy(random, VlArbitration(queues=8))
    connections = random_connections(random, policy)
    wide, found = build_fabric_plan(policy, connections)
    total = predict_path_slowdowns(wide).promised * len(connections)
    assert total * (1 - compute_gap(wide, found)) == pytest.approx(found.bound, rel=1e-9)
    brought = compare_plans(policy, connections)
    assert brought.gap == compute_gap(wide, found)
    assert brought.promised == 1 - brought.wide.promised / brought.local.promised


def test_the_gain_of_two_that_hold_each_other_back() -> None:
    """a is at both ports, b and c at one each; D = 1/b.

    Each port alone: the least 1/x + 1/(1 − x) is at x = 1/2. Both: the least 1/x + 2/(1 − x) is
    (1 + √2)², at x = 1/(1 + √2).
    """
    sends = Hinges(terms=((1.0, 1.0),), floor=FLOOR)
    policy = build_policy(dict.fromkeys("abc", sends), PortPolicy(scheduler=FINE), 1)
    one, two = Port(0, 1), Port(0, 2)
    comparison = compare_plans(
        policy,
        [
            ConnectionPath(application="a", ports=(one, two)),
            ConnectionPath(application="b", ports=(one,)),
            ConnectionPath(application="c", ports=(two,)),
        ],
    )
    assert comparison.local.promised == pytest.approx(2.0)
    assert comparison.wide.promised == pytest.approx((1 + 2**0.5) ** 2 / 3, rel=1e-5)
    assert comparison.promised == pytest.approx(1 - (1 + 2**0.5) ** 2 / 6, rel=1e-4)
    assert comparison.gap <= 1e-5


@examples(12)
@given(seeds)
def test_coarse_weights_stay_within_a_unit_of_each_port(seed: int) -> None:
    random = np.random.default_rng(seed)
    policy = random_policy(random, VlArbitration(queues=8))
    wide, found = build_fabric_plan(policy, random_connections(random, policy))
    for port in wide.ports.values():
        assert sum(a.units for a in port.applications) == port.policy.managed_units
        for a in port.applications:
            # Floors that are rounded up take up to a unit per application from the others.
            least = found.shares[a.application] * port.policy.units - 1 - len(port.applications)
            assert a.units >= least


@examples(12)
@given(seeds)
def test_working_rates_fill_a_port_of_each_application_that_could_send_more(seed: int) -> None:
    random = np.random.default_rng(seed)
    policy = random_policy(random, Htb(queues=8, rate_kbps=100_000))
    plan = build_plan(policy, random_connections(random, policy))
    capacity = {port: own.policy.capacity for port, own in plan.ports.items()}
    rates = find_working_rates(plan.shares, capacity)
    assume(rates is not None)
    assert rates is not None
    promised = find_promised_rates(plan.shares)
    used = {p: sum(rates[name] for name in own) for p, own in plan.shares.items()}
    assert all(used[p] <= capacity[p] + 1e-6 for p in used)
    for name, rate in rates.items():
        assert rate >= promised[name] - 1e-9
        own = [p for p in plan.shares if name in plan.shares[p]]
        assert rate >= 1 - 1e-9 or any(used[p] >= capacity[p] - 1e-6 for p in own)


def test_working_rates_of_ports_that_hand_on_what_others_cannot_use() -> None:
    """At the second port all could use more: each has its share. At the first, b has the rest."""
    first, second, third = Port(0, 1), Port(0, 2), Port(0, 3)
    shares = {
        first: {"a": 0.45, "b": 0.45},
        second: {"a": 0.2, "c": 0.5, "d": 0.3},
        third: {"e": 0.5},
    }
    rates = find_working_rates(shares, {first: 0.9, second: 1.0, third: 1.0})
    assert rates == pytest.approx({"a": 0.2, "b": 0.7, "c": 0.5, "d": 0.3, "e": 1.0})


def test_working_rates_pass_on_along_a_chain_of_ports() -> None:
    """The fourth holds c to 0.3, so that b has 0.7 of the second; the third holds a to 0.1."""
    first, second, third, fourth = (Port(0, n) for n in range(1, 5))
    shares = {
        first: {"a": 0.5, "b": 0.5},
        second: {"b": 0.5, "c": 0.5},
        third: {"a": 0.1, "d": 0.9},
        fourth: {"c": 0.3, "e": 0.7},
    }
    rates = find_working_rates(shares, dict.fromkeys(shares, 1.0))
    assert rates == pytest.approx({"a": 0.1, "b": 0.7, "c": 0.3, "d": 0.9, "e": 0.7})


def test_working_rates_of_random_fabrics_settle() -> None:
    unsettled = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        policy = random_policy(random, Htb(queues=8, rate_kbps=100_000))
        plan = build_plan(policy, random_connections(random, policy))
        unsettled += predict_path_slowdowns(plan).working is None
    assert unsettled <= 2
