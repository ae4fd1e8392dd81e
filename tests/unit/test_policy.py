"""Levels, queues, ports and plans: examples worked by hand, edges, refusals."""

from __future__ import annotations

from math import nan
from statistics import fmean

import pytest

from weft.control.policy.allocate import ModelSet, Squeeze, allocate, least_units, split_ports
from weft.control.policy.fabric_wide import build_fabric_plan, compare_plans
from weft.control.policy.levels import (
    COEFFICIENTS,
    SHARES,
    SLOWDOWNS,
    Level,
    Levels,
    QueueMap,
    assign_levels,
    build_hierarchy,
    map_queues,
    partition_queues,
)
from weft.control.policy.plan import (
    ConnectionPath,
    Policy,
    PortPlan,
    add_connection,
    build_plan,
    build_policy,
    change_connections,
    find_connection_path,
    remove_connection,
    replan,
)
from weft.control.policy.port_policy import Htb, LatencyLane, PortPolicy, VlArbitration
from weft.control.state.policy_settings import add_to_levels
from weft.errors import InputError
from weft.fabric import Port, path, route
from weft.fabric.topology import back_to_back, leaf_spine
from weft.sensitivity.model import LARGEST, Hinges, Polynomial, Sensitivity
from weft.switches.tables import list_entries

VL8 = PortPolicy(scheduler=VlArbitration(queues=8))
AT = Port(0, 1)


def waits(part: float, floor: float = 0.05) -> Hinges:
    """Communicates for this part of its time, and nothing hides it."""
    return Hinges(terms=((1.0, part),), floor=floor)


def line(fall: float) -> Polynomial:
    return Polynomial(coefficients=(1 + fall, -fall), floor=0.05)


def levels_at(*places: float) -> Levels:
    levels = [
        Level(number=n, applications=(f"a{n}",), centroid=(x,), sensitivity=x)
        for n, x in enumerate(places, start=1)
    ]
    return Levels(levels=tuple(levels), coordinates="any", spread=0.0)


# ---- Levels -----------------------------------------------------------------------------------


def test_near_coefficients_share_a_level_and_the_least_sensitive_come_first() -> None:
    models = {"far": line(3.0), "a": line(0.1), "b": line(0.2), "mid": line(1.0)}
    levels = assign_levels(models, 3)
    assert [level.applications for level in levels.levels] == [("a", "b"), ("mid",), ("far",)]
    assert levels.levels[0].centroid == pytest.approx((1.15, -0.15))
    assert levels.coordinates == COEFFICIENTS
    assert levels.of("mid").number == 2


def test_lower_degrees_are_filled_up_with_zeros() -> None:
    bent = Polynomial(coefficients=(1.1, -0.1, 0.0), floor=0.05)
    assert assign_levels({"line": line(0.1), "bent": bent, "far": line(2)}, 2).assignment == {
        "line": 1,
        "bent": 1,
        "far": 2,
    }


def test_a_convex_model_makes_all_stand_by_their_slowdowns() -> None:
    levels = assign_levels({"line": line(0.5), "convex": waits(0.5)}, 2)
    assert levels.coordinates == SLOWDOWNS
    assert levels.of("convex").centroid == pytest.approx((5.5, 2.5, 1.5, 1 + 0.5 / 3))


def test_a_share_below_the_floor_stands_at_the_floor() -> None:
    levels = assign_levels({"a": waits(1.0, floor=0.5)}, 1)
    assert levels.levels[0].centroid == pytest.approx((2, 2, 2, 4 / 3))


def test_more_levels_than_applications_are_one_each_and_equal_ones_share() -> None:
    assert len(assign_levels({"a": waits(0.1), "b": waits(0.2)}, 16).levels) == 2
    assert len(assign_levels({"a": waits(0.1), "b": waits(0.1)}, 16).levels) == 1
    assert assign_levels({"a": waits(0.1)}, 1).levels[0].applications == ("a",)


def test_models_whose_distances_vanish_have_levels_all_the_same() -> None:
    models: dict[str, Sensitivity] = {
        f"a{n}": Polynomial(coefficients=(1.0, -n * 1e-170), floor=0.05) for n in range(17)
    }
    assert assign_levels(models, 16).assignment.keys() == models.keys()


def test_a_new_application_opens_a_free_level_then_joins_the_nearest() -> None:
    before = assign_levels({"a": waits(0.1), "b": waits(2.0)}, 3)
    opened = add_to_levels(before, "c", waits(1.0), 3)
    assert opened.assignment == {"a": 1, "b": 2, "c": 3}
    assert opened.spread == before.spread
    joined = add_to_levels(opened, "d", waits(1.9), 3)
    assert joined.assignment == {"a": 1, "b": 2, "c": 3, "d": 2}
    # (1/b - 1)^2 summed over the four shares, times the distance of the models.
    squares = 9**2 + 3**2 + 1 + (1 / 3) ** 2
    assert joined.spread == pytest.approx(before.spread + 0.1**2 * squares)
    assert add_to_levels(None, "a", waits(0.1), 3).assignment == {"a": 1}


def test_an_application_with_the_model_of_another_joins_its_level_though_one_is_free() -> None:
    before = assign_levels({"a": waits(0.1), "b": waits(0.8)}, 3)
    added = add_to_levels(before, "twin", waits(0.8), 3)
    assert added.assignment == {"a": 1, "b": 2, "twin": 2}
    assert add_to_levels(before, "other", waits(0.5), 3).assignment["other"] == 3


def test_an_application_halfway_between_two_levels_joins_the_lower_one() -> None:
    before = assign_levels({"a": waits(0.0), "b": waits(2.0)}, 2)
    assert add_to_levels(before, "c", waits(1.0), 2).assignment == {"a": 1, "b": 2, "c": 1}


def test_levels_without_applications_or_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="no applications; register"):
        assign_levels({}, 3)
    with pytest.raises(InputError, match="0 levels; use at least 1"):
        assign_levels({"a": waits(0.1)}, 0)
    with pytest.raises(InputError, match="application b: has no level"):
        assign_levels({"a": waits(0.1)}, 1).of("b")


# ---- Queues -----------------------------------------------------------------------------------


def test_a_joined_cluster_stands_at_the_midpoint_whatever_it_holds() -> None:
    # {3, 4} stands at 2.45: 5 at 4.3 is 1.85 away, {1, 2} at 0.5 is 1.95 away.
    steps = build_hierarchy(levels_at(0, 1, 2, 2.9, 4.3)).steps
    assert [[cluster.levels for cluster in step] for step in steps] == [
        [(1,), (2,), (3,), (4,), (5,)],
        [(1,), (2,), (3, 4), (5,)],
        [(1, 2), (3, 4), (5,)],
        [(1, 2), (3, 4, 5)],
        [(1, 2, 3, 4, 5)],
    ]
    assert steps[1][2].coordinates == pytest.approx((2.45,))
    assert steps[4][0].coordinates == pytest.approx(((0.5 + (2.45 + 4.3) / 2) / 2,))


def test_of_clusters_equally_near_those_with_the_lowest_levels_are_joined_first() -> None:
    steps = build_hierarchy(levels_at(0, 1, 2, 3)).steps
    assert [[cluster.levels for cluster in step] for step in steps[:3]] == [
        [(1,), (2,), (3,), (4,)],
        [(1, 2), (3,), (4,)],
        [(1, 2), (3, 4)],
    ]
    # {1, 2} and {3, 4} are as far from each other as 3 is from 5.
    assert [c.levels for c in build_hierarchy(levels_at(0, 0, 2, 4)).steps[2]] == [(1, 2, 3), (4,)]


def test_a_port_joins_no_more_levels_than_its_queues_ask_for() -> None:
    hierarchy = build_hierarchy(levels_at(0, 1, 3, 7, 15))
    assert map_queues(hierarchy, {1, 4}, 2).step == 1
    assert map_queues(hierarchy, {1, 2, 3}, 2).queues == ((1, 2), (3,))
    assert map_queues(hierarchy, {1, 2, 3, 4, 5}, 9).queues == ((1,), (2,), (3,), (4,), (5,))
    assert map_queues(hierarchy, {1, 3, 5}, 1).queues == ((1, 3, 5),)
    assert map_queues(build_hierarchy(levels_at(1)), {1}, 1).queues == ((1,),)


def test_ports_without_queues_or_levels_are_refused() -> None:
    hierarchy = build_hierarchy(levels_at(0, 1))
    with pytest.raises(InputError, match="queues of a port: 0; use at least 1"):
        map_queues(hierarchy, {1}, 0)
    with pytest.raises(InputError, match="no level is present"):
        map_queues(hierarchy, set(), 2)
    with pytest.raises(InputError, match="level 7: is not in the hierarchy"):
        map_queues(hierarchy, {1, 7}, 2)


# ---- Ports ------------------------------------------------------------------------------------


def test_units_are_the_managed_share_the_lane_and_the_rest() -> None:
    lane = LatencyLane(share=0.1, budget_bytes=400)
    port_policy = PortPolicy(scheduler=VlArbitration(queues=8), managed_share=0.7, lane=lane)
    assert (port_policy.managed_units, port_policy.lane_units, port_policy.unmanaged_units) == (
        178,
        26,
        51,
    )
    assert (port_policy.first_managed_queue, port_policy.managed_queues) == (1, 6)
    whole = PortPolicy(scheduler=Htb(queues=4, rate_kbps=200_000))
    assert (whole.managed_units, whole.unmanaged_units, whole.managed_queues) == (200_000, 0, 4)


def test_shares_that_miss_a_whole_unit_by_rounding_mean_that_unit() -> None:
    # 0.29 · 100 is 28.999999999999996 in floating point, and 0.07 · 100 is 7.000000000000001.
    port = PortPolicy(
        scheduler=Htb(queues=4, rate_kbps=100),
        managed_share=0.29,
        lane=LatencyLane(share=0.07, budget_bytes=256),
    )
    assert (port.managed_units, port.lane_units, port.unmanaged_units) == (29, 7, 64)
    assert allocate([waits(0.5)], [[0]], units=100, capacity=0.29).weights.tolist() == [29]


def test_a_floor_that_misses_a_whole_unit_by_rounding_means_that_unit() -> None:
    assert 0.1 + 0.2 > 0.3
    assert least_units(waits(0.5, floor=0.1 + 0.2), 10) == 3
    assert least_units(waits(0.5, floor=0.301), 10) == 4
    # At a port of ten units such floors of 3, 3 and 4 fit without being halved.
    models = ModelSet([waits(0.5, floor=0.1 + 0.2), waits(0.5, floor=0.4)])
    full = PortPolicy(scheduler=VlArbitration(queues=2, units=10))
    assert models.squeeze([0, 0, 1], full) == Squeeze(halvings=0, finer=1)
    assert split_ports(models, [[0, 0, 1]], [full])[0][0] == (3, 3, 4)


def test_of_equal_remainders_the_first_applications_have_the_unit_more() -> None:
    models: dict[str, Sensitivity] = {name: waits(0.5) for name in "abc"}
    port = PortPolicy(scheduler=VlArbitration(queues=8, units=100))
    uses = [ConnectionPath(application=name, ports=(AT,)) for name in "abc"]
    plan, _ = build_fabric_plan(build_policy(models, port, 16), uses)
    assert plan.ports[AT].weights == (34, 33, 33)


def test_a_lane_sends_at_most_its_budget_between_two_packets_of_others() -> None:
    one = LatencyLane(share=0.1, budget_bytes=4095 + 255, packet_bytes=256)
    assert one.high_limit == 0
    assert one.most_share == pytest.approx(256 / (256 + 4096))
    two = LatencyLane(share=0.6, budget_bytes=4095 + 256, packet_bytes=256)
    assert two.high_limit == 1
    assert two.most_share == pytest.approx(4351 / (4351 + 4096))


def test_a_lane_that_could_exceed_its_share_is_refused_on_infiniband_alone() -> None:
    lane = LatencyLane(share=0.05, budget_bytes=256)
    with pytest.raises(InputError, match=r"256 B can take 0.0588 .* its share is 0.05"):
        PortPolicy(scheduler=VlArbitration(queues=8), managed_share=0.9, lane=lane)
    PortPolicy(scheduler=Htb(queues=3, rate_kbps=1000), managed_share=0.9, lane=lane)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: VlArbitration(queues=0), "virtual lanes: 0; use at least 1"),
        (lambda: VlArbitration(queues=8, units=256), "256 units do not fit 8 entries of 8 lanes"),
        (lambda: VlArbitration(queues=9), "use an entry for each lane"),
        (lambda: VlArbitration(queues=16, entries=64), "virtual lanes: 16; use at most 15"),
        (lambda: VlArbitration(queues=8, entries=65), "arbitration table: 65; use at most 64"),
        (lambda: Htb(queues=0, rate_kbps=9), "HTB classes: 0; use at least 1"),
        (lambda: Htb(queues=1, rate_kbps=0), "HTB rate"),
        (lambda: Htb(queues=1, rate_kbps=nan), "kbit/s: nan; use"),  # type: ignore[arg-type]
        (
            lambda: PortPolicy(scheduler=Htb(queues=1, rate_kbps=9), managed_share=1.5),
            "managed applications: 1.5",
        ),
        (lambda: PortPolicy(scheduler=VlArbitration(queues=1), managed_share=0.9), "are reserved"),
        (lambda: PortPolicy(scheduler=Htb(queues=2, rate_kbps=9), managed_share=0.01), "not fit"),
        (lambda: LatencyLane(share=0, budget_bytes=1), "share of the latency lane"),
        (lambda: LatencyLane(share=0.1, budget_bytes=100), "below its packets of 256 B"),
        (
            lambda: PortPolicy(
                scheduler=Htb(queues=4, rate_kbps=100),
                managed_share=0.95,
                lane=LatencyLane(share=0.1, budget_bytes=256),
            ),
            "0.95 for managed applications and 0.1 for the latency lane do not fit 100 units",
        ),
    ],
)
def test_ports_that_cannot_be_are_refused(make: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make()  # type: ignore[operator]


def test_weights_above_an_entry_come_back_in_later_rounds() -> None:
    assert list_entries({0: 10, 1: 600, 2: 255}) == ((0, 10), (1, 255), (2, 255), (1, 255), (1, 90))


# ---- Plans ------------------------------------------------------------------------------------


def policy(port: PortPolicy = VL8, levels: int = 16) -> Policy:
    models: dict[str, Sensitivity] = {"a": waits(0.1), "b": waits(0.4), "c": waits(0.9)}
    return build_policy(models, port, levels)


def at_one_port(rules: Policy, *names: str) -> PortPlan:
    return build_plan(
        rules, [ConnectionPath(application=name, ports=(AT,)) for name in names]
    ).ports[AT]


def test_weights_go_as_the_root_of_what_communication_costs() -> None:
    # D' = −c/b² is equal where b ∝ √c.
    port = at_one_port(policy(PortPolicy(scheduler=Htb(queues=8, rate_kbps=100_000))), "a", "b")
    assert [a.units for a in port.applications] == [33_333, 66_667]
    assert [a.queue for a in port.applications] == [0, 1]
    assert port.gap == 0
    assert port.of("b").slowdown == pytest.approx(1 + 0.4 * (1.5 - 1), rel=1e-4)
    assert port.slowdown == pytest.approx(1.2 + 1.2, rel=1e-4)


def test_one_application_has_all_that_is_managed() -> None:
    port_policy = PortPolicy(scheduler=VlArbitration(queues=2), managed_share=0.8)
    port = at_one_port(policy(port_policy), "c")
    assert port.units == {0: 51, 1: 204}
    assert port.of("c").share == 0.8


def test_one_queue_holds_everyone() -> None:
    port = at_one_port(policy(PortPolicy(scheduler=VlArbitration(queues=1))), "a", "b", "c")
    assert port.units == {0: 255}
    assert (port.step, port.queues[0].levels) == (3, (1, 2, 3))


def test_the_lane_is_the_last_queue() -> None:
    lane = LatencyLane(share=0.1, budget_bytes=400)
    port_policy = PortPolicy(scheduler=VlArbitration(queues=4), managed_share=0.7, lane=lane)
    port_plan = at_one_port(policy(port_policy), "a", "b", "c")
    assert list(port_plan.units) == [0, 1, 2, 3]
    assert (port_plan.units[0], port_plan.units[3]) == (51, 26)
    assert port_plan.step == 2


def test_a_second_connection_of_an_application_changes_its_count_alone() -> None:
    both = ConnectionPath(application="a", ports=(AT, Port(0, 2)))
    before = build_plan(policy(), [both])
    after = add_connection(before, ConnectionPath(application="a", ports=(AT,)))
    assert after.ports[AT].of("a").connections == 2
    assert before.ports[AT].of("a").connections == 1
    assert after.ports[AT].units == before.ports[AT].units
    gone = remove_connection(before, both).ports
    assert (set(gone), len(gone), len(before.ports)) == (set(), 0, 2)


def test_a_port_where_nobody_came_or_went_keeps_the_very_weights() -> None:
    once, twice = (ConnectionPath(application=name, ports=(AT,)) for name in ("a", "b"))
    before = build_plan(policy(), [once, twice])
    after = change_connections(before, [(once, 1), (twice, 1), (twice, -1)])
    assert after.ports[AT].weights is before.ports[AT].weights
    assert after.ports[AT].counts == (2, 1)


def test_a_level_that_opens_changes_queues_of_ports_whose_own_levels_stay() -> None:
    # In two queues the nearest are together: 0 and 4; with 6.9 between them, 4 and 10.
    models: dict[str, Sensitivity] = {f"a{n}": waits(0.1 * n) for n in range(1, 5)}
    two = PortPolicy(scheduler=VlArbitration(queues=2))

    def among(*places: float) -> Policy:
        levels = levels_at(*places)
        models_of = {name: models[name] for name in levels.assignment}
        return Policy(models=models_of, levels=levels, hierarchy=build_hierarchy(levels), port=two)

    uses = [ConnectionPath(application=f"a{n}", ports=(AT,)) for n in (1, 2, 3)]
    before, opened = build_plan(among(0, 4, 10), uses), among(0, 4, 10, 6.9)
    assert before.ports[AT].mapped.queues == ((1, 2), (3,))
    after = replan(before, opened)
    assert after.ports[AT].mapped.queues == ((1,), (2, 3))
    assert after == build_plan(opened, uses)


def test_a_polynomial_joins_levels_of_polynomials_by_its_coefficients() -> None:
    flat, steep = line(0.2), line(3.0)
    before = assign_levels({"flat": flat, "steep": steep}, 3)
    assert before.coordinates == COEFFICIENTS
    joined = add_to_levels(before, "twin", line(3.0), 3)
    assert joined.assignment["twin"] == before.assignment["steep"]
    opened = add_to_levels(before, "middling", line(1.0), 3)
    assert opened.of("middling").centroid == (2.0, -1.0)
    assert opened.of("middling").sensitivity == pytest.approx(2.0 - fmean(SHARES))
    with pytest.raises(InputError, match="levels are clusters of polynomials of degree 1"):
        add_to_levels(before, "other", waits(0.5), 3)


def test_levels_share_queues_by_their_best_partition_where_that_is_asked_for() -> None:
    # The nearest two, 2 and 3, are joined first by the hierarchy, which then cannot part them:
    # {0, 2}, {3, 5} has a spread of 4; {0}, {2, 3, 5} one of 14/3.
    levels = levels_at(0, 2, 3, 5)
    assert map_queues(build_hierarchy(levels), {1, 2, 3, 4}, 2).queues == ((1, 2, 3), (4,))
    best = partition_queues(levels, {1, 2, 3, 4}, 2)
    assert (best.step, best.queues) == (0, ((1, 2), (3, 4)))
    assert partition_queues(levels, {1, 4}, 2) == QueueMap(step=1, queues=((1,), (4,)))
    with pytest.raises(InputError, match="level 7: is not in the hierarchy"):
        partition_queues(levels, {1, 7}, 2)
    with pytest.raises(InputError, match="11 levels share queues, at most 10 can be"):
        partition_queues(levels_at(*range(11)), range(1, 12), 2)
    names = [f"a{n}" for n in (1, 2, 3, 4)]
    rules = Policy(
        models={name: waits(0.1) for name in names},
        levels=levels,
        hierarchy=build_hierarchy(levels),
        port=PortPolicy(scheduler=VlArbitration(queues=2)),
        has_exact_queues=True,
    )
    plan = build_plan(rules, [ConnectionPath(application=name, ports=(AT,)) for name in names])
    assert plan.ports[AT].mapped == best


def test_applications_and_connections_that_are_unknown_are_refused() -> None:
    plan = build_plan(policy(), [ConnectionPath(application="a", ports=(AT,))])
    with pytest.raises(InputError, match="application z: is not registered"):
        add_connection(plan, ConnectionPath(application="z", ports=(AT,)))
    with pytest.raises(InputError, match="node 0 port 1: no connection of b to take away"):
        remove_connection(plan, ConnectionPath(application="b", ports=(AT,)))
    with pytest.raises(InputError, match="application b: is not at this port"):
        plan.ports[AT].of("b")
    with pytest.raises(InputError, match="no port, or one twice"):
        ConnectionPath(application="a", ports=(AT, AT))
    with pytest.raises(InputError, match="application a: has a model or a level, not both"):
        Policy(models={}, levels=plan.policy.levels, hierarchy=plan.policy.hierarchy, port=VL8)


def test_floors_that_exceed_the_managed_share_are_halved_until_they_fit() -> None:
    crowd: dict[str, Sensitivity] = {f"a{n}": waits(0.1 * n, floor=0.3) for n in range(1, 5)}
    port = at_one_port(build_policy(crowd, VL8, 4), *crowd)
    assert sum(port.weights) == 255
    assert min(port.weights) >= 0.15 * 255 - 1
    assert list(port.weights) == sorted(port.weights)
    assert port.of("a1").slowdown == pytest.approx(1 + 0.1 * (1 / 0.3 - 1))  # at its floor


def test_more_applications_than_units_are_split_in_finer_ones_and_folded() -> None:
    crowd: dict[str, Sensitivity] = {"calm": waits(0.1), "keen": waits(0.9)}
    jobs = [f"{name}#{n}" for name in crowd for n in range(300)]
    port = at_one_port(build_policy(crowd, VL8, 2), *jobs)
    assert sum(port.weights) == 255
    assert port.units[1] > port.units[0] > 0


def test_ports_with_room_are_solved_alike_beside_a_crowded_one() -> None:
    rules = build_policy({"a": waits(0.1, floor=0.4), "b": waits(0.4, floor=0.4)}, VL8, 4)
    crowd = [ConnectionPath(application=f"a#{n}", ports=(AT,)) for n in range(3)]
    roomy = [ConnectionPath(application=name, ports=(Port(0, 2),)) for name in ("a", "b")]
    both = build_plan(rules, [*crowd, *roomy])
    assert both.ports[Port(0, 2)] == build_plan(rules, roomy).ports[Port(0, 2)]
    assert sum(both.ports[AT].weights) == 255


def test_the_fabric_wide_split_names_the_port_that_is_crowded() -> None:
    crowd: dict[str, Sensitivity] = {f"a{n}": waits(0.1 * n, floor=0.3) for n in range(1, 5)}
    uses = [ConnectionPath(application=name, ports=(AT,)) for name in crowd]
    for ask in (build_fabric_plan, compare_plans):
        with pytest.raises(InputError, match=r"^node 0 port 1: the floors of 4 applications take"):
            ask(build_policy(crowd, VL8, 4), uses)


def test_the_fabric_wide_split_has_a_part_for_each_job() -> None:
    uses = [ConnectionPath(application=name, ports=(AT,)) for name in ("a#1", "a#2", "b#3")]
    plan, split = build_fabric_plan(policy(), uses)
    assert split.shares["a#1"] == pytest.approx(split.shares["a#2"])
    assert sum(plan.ports[AT].weights) == 255
    assert compare_plans(policy(), uses).promised == pytest.approx(0, abs=0.01)


def test_jobs_of_one_application_have_a_part_each() -> None:
    rules = policy()
    port = at_one_port(rules, "a#1", "a#2", "b#3")
    assert port.names == ("a#1", "a#2", "b#3")
    assert port.weights[0] == pytest.approx(port.weights[1], abs=1)
    assert {a.level for a in port.applications} == {rules.level_of["a"], rules.level_of["b"]}
    assert len(port.queues) == 2


def test_the_steepest_model_that_may_be_has_a_level_of_its_own() -> None:
    steep = Polynomial(coefficients=(1.0, -LARGEST), floor=0.05)
    models: dict[str, Sensitivity] = {f"a{n}": line(0.1 * n) for n in range(16)}
    rules = build_policy({**models, "steep": steep}, VL8, 16)
    assert rules.levels.of("steep").applications == ("steep",)
    assert rules.levels.spread < 0.02


def test_a_connection_uses_the_ports_of_its_path() -> None:
    fabric = leaf_spine(2, 2, 2)
    src, dst = fabric.hosts[0], fabric.hosts[-1]
    connection = find_connection_path(fabric, "a", src, dst)
    assert set(connection.ports) == {Port(*hop) for hop in path(fabric, src, dst)}


def test_where_paths_are_equal_all_their_ports_count() -> None:
    fabric = route(leaf_spine(2, 3, 2), "ecmp")
    connection = find_connection_path(fabric, "a", fabric.hosts[0], fabric.hosts[-1])
    assert len(connection.ports) == 1 + 3 + 3 + 1
    ways = {
        hop for flow in range(64) for hop in path(fabric, fabric.hosts[0], fabric.hosts[-1], flow)
    }
    assert set(connection.ports) == {Port(*hop) for hop in ways}


def test_a_connection_to_the_same_host_is_refused_and_a_cable_has_one_port() -> None:
    fabric = back_to_back()
    with pytest.raises(InputError, match="to itself; leave it out"):
        find_connection_path(fabric, "a", 0, 0)
    assert find_connection_path(fabric, "a", 0, 1).ports == (Port(0, 1),)
