"""From a plan's weights to the tables of a port."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_parts import HTB, VLARB, after, connect, ready, register, running

from weft.control.policy.port_policy import LatencyLane
from weft.control.state.policy_settings import Settings, build_port_policies
from weft.control.state.programming import build_default_tables, has_queue_per_level
from weft.control.state.state import State
from weft.switches import Ability, Lane, PortName, Tables

PORT = PortName("h0", 1)
LANE = LatencyLane(share=0.1, budget_bytes=400)


def tables_of(settings: Settings, ability: Ability, *names: str) -> Tables:
    """The first port of applications from h0 to h2."""
    state = ready(settings, ability)
    for number, name in enumerate(names, start=1):
        state, id_ = register(state, name, number)
        state = after(state, connect(id_, "h0", "h2", number))
    return state.target[PORT]


def default(settings: Settings, ability: Ability) -> Tables:
    fit, _ = build_port_policies({PORT: ability}, settings)
    return build_default_tables(fit[PORT], ability, settings)


def test_queue_n_is_level_n_where_levels_fit_and_empty_ones_have_one_unit() -> None:
    tables = tables_of(Settings(), VLARB, "calm", "keen")
    assert tables.queue_of == (0, 1, 2, 3, 4, 5, 6, 7)
    # √0.1 : √0.9 = 1 : 3 of 255, less six units for the empty queues, taken from the larger one.
    assert tables.weights == (1, 64, 1, 185, 1, 1, 1, 1)


def test_weights_always_sum_to_the_units_of_the_link() -> None:
    for settings in (Settings(), Settings(managed_share=0.7), Settings(levels=4, lane=LANE)):
        if settings.lane is not None:
            settings = replace(settings, managed_share=0.8)
        for ability in (VLARB, HTB, replace(VLARB, queues=3, entries=8)):
            assert sum(tables_of(settings, ability, "calm", "keen").weights) == ability.units
            assert sum(default(settings, ability).weights) == ability.units


def test_htb_queues_have_the_least_rate_that_can_be_set() -> None:
    tables = tables_of(Settings(), HTB, "calm")
    assert tables.weights == (8, 200_000 - 7 * 8, 8, 8, 8, 8, 8, 8)


def test_levels_beyond_the_queues_share_as_the_plan_has_it() -> None:
    few = replace(VLARB, queues=2, entries=8)
    assert not has_queue_per_level(few, Settings())
    tables = tables_of(Settings(managed_share=0.8), few, "calm", "middling", "keen")
    # Queue 0 is unmanaged traffic's, so that one is left for all three.
    assert tables.queue_of == (0, 1, 1, 1, 0, 0, 0, 0)
    assert tables.weights == (51, 204)


def test_levels_that_are_not_there_go_with_unmanaged_traffic_where_queues_are_few() -> None:
    tables = tables_of(
        Settings(managed_share=0.8), replace(VLARB, queues=3, entries=8), "calm", "keen"
    )
    assert tables.queue_of == (0, 1, 0, 2, 0, 0, 0, 0)
    assert tables.weights == (51, 51, 153)


def test_the_lane_is_the_last_queue_with_its_limit() -> None:
    settings = Settings(levels=4, managed_share=0.8, lane=LANE)
    tables = tables_of(settings, VLARB, "calm")
    assert tables.queue_of == (0, 1, 2, 3, 4, 7, 0, 0)
    assert tables.lane == Lane(queue=7, limit=0)
    assert tables.weights[7] == 26  # 10 % of 255, rounded up
    htb = tables_of(settings, HTB, "calm")
    assert (htb.lane, htb.weights[7]) == (Lane(queue=7, limit=400), 20_000)


def test_a_port_without_applications_is_for_unmanaged_traffic() -> None:
    assert default(Settings(), VLARB).weights == (248, 1, 1, 1, 1, 1, 1, 1)
    assert default(Settings(), HTB).weights == (200_000 - 56, 8, 8, 8, 8, 8, 8, 8)
    assert default(Settings(), replace(VLARB, queues=2, entries=8)).queue_of == (0,) * 8


def test_virtual_lanes_that_no_level_of_ours_is_in_are_served_too() -> None:
    tables = tables_of(Settings(levels=2), replace(VLARB, levels=4), "calm")
    assert tables.queue_of == (0, 1, 2, 3)
    assert all(tables.weights)


def test_every_level_lies_in_a_queue_that_is_served() -> None:
    state, _ = running("calm", "middling", "keen")
    for tables in state.target.values():
        assert all(tables.weights[queue] for queue in tables.queue_of)


@pytest.mark.parametrize(
    ("ability", "settings", "problem"),
    [
        (replace(VLARB, levels=7), Settings(), "has 7 levels, and 8 are required"),
        (replace(VLARB, queues=1), Settings(managed_share=0.5), "of which 1 are reserved"),
        (replace(HTB, units=40), Settings(), "has 40 units, too few for 8 queues"),
        (
            replace(VLARB, levels=9, queues=9),
            Settings(managed_share=0.95, lane=LANE),
            "do not fit 255 units",
        ),
    ],
)
def test_ports_that_cannot_do_it_are_listed_apart(
    ability: Ability, settings: Settings, problem: str
) -> None:
    fit, unfit = build_port_policies({PORT: ability}, settings)
    assert fit == {}
    assert problem in unfit[PORT]


def test_a_port_with_more_floors_than_room_is_still_split_and_all_are_served() -> None:
    state: State = ready()
    for number in range(1, 31):  # 30 floors of 5 %
        state, id_ = register(state, ("calm", "keen")[number % 2], number)
        state = after(state, connect(id_, "h0", "h2", number))
    assert state.plan is not None
    assert state.paths is not None
    plan = state.plan.ports[state.paths.ports[PORT]]
    assert sum(plan.weights) == 255
    assert min(plan.weights) >= 1
    by_name = dict(zip(plan.names, plan.weights, strict=True))
    assert by_name["keen#1"] > by_name["calm#2"]
    state, id_ = register(state, "calm", 99)
    assert sum(after(state, connect(id_, "h0", "h2", 99)).target[PORT].weights) == 255
