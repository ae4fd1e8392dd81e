"""The fabric-wide split: feasible, never below its bound, and at it for convex models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_examples import examples

from weft.control.policy.connection import Connection
from weft.control.policy.fabric_wide import fabric_wide
from weft.control.policy.plan import Policy, plan, policy_of
from weft.control.policy.port import Htb, PortPolicy, VlArbitration
from weft.control.policy.rates import promised_rates, working_rates
from weft.control.policy.response import Responses
from weft.control.policy.wide_plan import fabric_wide_plan, path_slowdowns
from weft.fabric import Port
from weft.sensitivity.model import Hinges, Polynomial, Sensitivity

FLOOR = 0.02
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
        name: [ports[i] for i in random.choice(len(ports), random.integers(1, len(ports) + 1),
                                               replace=False)]
        for name in models
    }  # fmt: skip
    return paths, {port: float(random.uniform(0.5, 1)) for port in ports}


@examples(60)
@given(seeds)
def test_the_share_at_a_price_is_the_best_on_a_fine_grid(seed: int) -> None:
    random = np.random.default_rng(seed)
    models = [random_hinges(random), random_cubic(random), Hinges(terms=(), floor=FLOOR)]
    price = random.lognormal(0, 2, len(models)) * (random.random(len(models)) < 0.9)
    shares = Responses.of(models).at_price(price)
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
    found = fabric_wide(models, paths, capacity)
    assert found.gap <= 1e-6
    for port, most in capacity.items():
        assert sum(found.shares[name] for name in models if port in paths[name]) <= most + 1e-9
    assert all(FLOOR - 1e-12 <= share <= 1 for share in found.shares.values())
    total = sum(float(models[name].slowdown(share)) for name, share in found.shares.items())
    assert found.slowdown == pytest.approx(total)


@examples(12)
@given(seeds)
def test_no_random_split_is_below_the_bound(seed: int) -> None:
    random = np.random.default_rng(seed)
    makers = (random_hinges, random_cubic)
    models: dict[str, Sensitivity] = {
        f"a{i}": makers[int(random.integers(2))](random) for i in range(6)
    }
    paths, capacity = random_fabric(random, models)
    found = fabric_wide(models, paths, capacity)
    assert found.slowdown >= found.bound - 1e-9
    for _ in range(50):
        shares = FLOOR + random.dirichlet(np.ones(6)) * (min(capacity.values()) - 6 * FLOOR)
        total = sum(float(m.slowdown(b)) for m, b in zip(models.values(), shares, strict=True))
        assert total >= found.bound - 1e-9


def random_policy(random: np.random.Generator, scheduler: VlArbitration | Htb) -> Policy:
    models: dict[str, Sensitivity] = {f"a{i}": random_hinges(random) for i in range(10)}
    return policy_of(models, PortPolicy(scheduler=scheduler, managed_share=0.9), 4)


def random_connections(random: np.random.Generator, policy: Policy) -> list[Connection]:
    paths, _ = random_fabric(random, dict(policy.models))
    return [Connection(application=name, ports=tuple(ports)) for name, ports in paths.items()]


@examples(12)
@given(seeds)
def test_fabric_wide_weights_are_whole_keep_floors_and_promise_the_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    policy = random_policy(random, Htb(queues=8, rate_kbps=1_000_000))
    connections = random_connections(random, policy)
    wide, found = fabric_wide_plan(policy, connections)
    for port in wide.ports.values():
        assert sum(port.units.values()) == port.policy.units
        assert all(a.share >= a.model.floor - 1e-12 for a in port.applications)
    local = path_slowdowns(plan(policy, connections)).promised
    ours = path_slowdowns(wide).promised
    assert ours <= found.slowdown / len(connections) * (1 + 1e-3)
    assert ours <= local * (1 + 1e-3)


@examples(12)
@given(seeds)
def test_coarse_weights_stay_within_a_unit_of_each_port(seed: int) -> None:
    random = np.random.default_rng(seed)
    policy = random_policy(random, VlArbitration(queues=8))
    wide, found = fabric_wide_plan(policy, random_connections(random, policy))
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
    told = plan(policy, random_connections(random, policy))
    capacity = {port: own.policy.capacity for port, own in told.ports.items()}
    rates = working_rates(told.shares, capacity)
    if rates is None:
        return
    promised = promised_rates(told.shares)
    used = {p: sum(rates[name] for name in own) for p, own in told.shares.items()}
    assert all(used[p] <= capacity[p] + 1e-6 for p in used)
    for name, rate in rates.items():
        assert rate >= promised[name] - 1e-9
        own = [p for p in told.shares if name in told.shares[p]]
        assert rate >= 1 - 1e-9 or any(used[p] >= capacity[p] - 1e-6 for p in own)
