"""What the weights of a port follow: sizes, equality, or the least total slowdown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.control.policy.levels import assign_levels, build_hierarchy
from weft.control.policy.objectives import (
    EQUAL,
    LEAST_PART,
    SIZE,
    SLOWDOWN,
    split_in_proportion,
    weigh_by_size,
)
from weft.control.policy.plan import ConnectionPath, Plan, Policy, build_plan
from weft.control.policy.port_policy import Htb, PortPolicy
from weft.control.runtime.config import read_config
from weft.control.runtime.restore import convert_application
from weft.errors import InputError
from weft.fabric import Port
from weft.sensitivity.application import Profile, Run, fit_application
from weft.sensitivity.model import Hinges

PORT = Port(0, 1)
CURVES = {
    "small": Hinges(terms=((1.0, 0.9),), floor=0.05),
    "large": Hinges(terms=((1.0, 0.9),), floor=0.05),
    "new": Hinges(terms=((1.0, 0.2),), floor=0.05),
}


def plan_by(objective: str, sizes: dict[str, float]) -> Plan:
    levels = assign_levels(CURVES, 7)
    policy = Policy(
        models=CURVES,
        levels=levels,
        hierarchy=build_hierarchy(levels),
        port=PortPolicy(scheduler=Htb(queues=8, rate_kbps=9000)),
        objective=objective,
        profiled_bytes=sizes,
    )
    return build_plan(policy, [ConnectionPath(application=n, ports=(PORT,)) for n in CURVES])


def test_weights_follow_sizes_and_an_unknown_size_is_typical() -> None:
    assert weigh_by_size([1.0, 4.0]) == [1.0, 0.25]
    assert weigh_by_size([1.0, 4.0, None]) == pytest.approx([1.0, 0.25, 0.5])
    assert weigh_by_size([None, None]) == [1.0, 1.0]
    assert weigh_by_size([1.0, 1e9]) == [1.0, LEAST_PART]


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=40), st.integers(1, 100_000))
def test_units_sum_up_and_nobody_is_left_out(weights: list[float], units: int) -> None:
    parts = split_in_proportion(weights, units)
    assert sum(parts) == units
    assert min(parts) >= (1 if units >= len(weights) else 0)


def test_a_port_is_split_by_the_objective() -> None:
    sizes = {"small": 10.0, "large": 100.0}
    shares = plan_by(SIZE, sizes).ports[PORT].shares
    assert shares["small"] == pytest.approx(10 * shares["large"], rel=0.01)
    assert shares["new"] == pytest.approx(shares["small"] / 10**0.5, rel=0.01)
    assert plan_by(SIZE, sizes).ports[PORT].gap is None
    assert set(plan_by(EQUAL, sizes).ports[PORT].shares.values()) == {1 / 3}
    least = plan_by(SLOWDOWN, sizes).ports[PORT]
    assert least.gap is not None
    assert least.shares["small"] == pytest.approx(least.shares["large"], abs=0.001)
    assert least.shares["small"] > least.shares["new"]


def test_a_profile_has_a_size_where_it_has_times_and_the_rate_of_its_link() -> None:
    """Half of 10 s at 8 Mb/s: 5 MB. Polynomials have it too."""
    runs = tuple(Run(share=b, completion=5 + 5 / b) for b in (0.1, 0.25, 0.5, 1.0))
    profile = Profile(name="sort", runs=runs, link_bps=8e6)
    for degree in (None, 2):
        model = convert_application(fit_application(profile), degree)
        assert model.size_bytes == pytest.approx(5e6, rel=1e-3)
    for lacking in (replace(profile, link_bps=None), replace(profile, completion_unit="slowdown")):
        assert convert_application(fit_application(lacking), None).size_bytes is None


def test_size_is_the_default_objective_of_a_controller(tmp_path: Path) -> None:
    def parse(policy: str) -> str:
        path = tmp_path / "control.toml"
        path.write_text(
            f'store = "c.db"\napps = "apps"\n{policy}\n[switches]\ndriver = "simulated"\n'
            'fabric = "f.toml"\nregisters = "r"\n'
        )
        return read_config(path).settings.objective

    assert parse("") == SIZE
    assert parse('[policy]\nobjective = "equal"') == EQUAL
    assert parse('[policy]\nobjective = "slowdown"') == SLOWDOWN
    with pytest.raises(InputError, match="use one of size, equal, slowdown"):
        parse('[policy]\nobjective = "fair"')
