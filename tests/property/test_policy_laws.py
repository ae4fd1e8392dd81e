"""Laws of levels, queues and plans over random models, fabrics and connections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from random import Random

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import linkage
from scipy.cluster.vq import kmeans2
from some_examples import examples

from weft.control.policy.levels import (
    Hierarchy,
    Level,
    Levels,
    assign_levels,
    build_hierarchy,
    compute_coordinates,
    map_queues,
    partition,
    partition_queues,
)
from weft.control.policy.plan import (
    ConnectionPath,
    Plan,
    add_connection,
    build_plan,
    build_policy,
    change_connections,
    remove_connection,
)
from weft.control.policy.port_policy import Htb, LatencyLane, PortPolicy, VlArbitration
from weft.control.state.policy_settings import add_to_levels
from weft.fabric import Port
from weft.sensitivity.model import Hinges, Polynomial, Sensitivity
from weft.switches.tables import list_entries

FLOOR = 0.02
shares = st.floats(0.05, 1.0)
costs = st.floats(0.0, 5.0)


@st.composite
def hinges(draw: st.DrawFn) -> Hinges:
    knots = sorted(draw(st.sets(shares, min_size=0, max_size=3)), reverse=True)
    return Hinges(terms=tuple((t, draw(costs)) for t in knots), floor=FLOOR)


@st.composite
def lines(draw: st.DrawFn) -> Polynomial:
    fall = draw(st.floats(0.0, 5.0))
    return Polynomial(coefficients=(1 + fall, -fall), floor=FLOOR)


def applications(least: int = 1, most: int = 14) -> st.SearchStrategy[dict[str, Sensitivity]]:
    models = st.one_of(
        st.lists(hinges(), min_size=least, max_size=most),
        st.lists(lines(), min_size=least, max_size=most),
    )
    return models.map(lambda found: {f"app{i}": model for i, model in enumerate(found)})


# ---- Levels -----------------------------------------------------------------------------------


def partitions(items: Sequence[int], groups: int) -> Iterator[list[list[int]]]:
    """All partitions of the items into at most so many groups."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:], groups):
        for i, group in enumerate(rest):
            yield [*rest[:i], [items[0], *group], *rest[i + 1 :]]
        if len(rest) < groups:
            yield [[items[0]], *rest]


def spread(points: np.ndarray, weights: np.ndarray, groups: Sequence[Sequence[int]]) -> float:
    total = 0.0
    for group in groups:
        mean = np.average(points[group], axis=0, weights=weights[group])
        total += float((weights[group, None] * (points[group] - mean) ** 2).sum())
    return total


@examples(60)
@given(st.integers(2, 7), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_few_points_are_in_the_best_of_all_partitions(n: int, groups: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    points, weights = random.normal(size=(n, 2)), random.integers(1, 5, n)
    groups_of_points = partition(points, weights, groups)
    ours = [list(np.flatnonzero(groups_of_points == g)) for g in set(groups_of_points.tolist())]
    best = min(spread(points, weights, p) for p in partitions(range(n), groups))
    assert spread(points, weights, ours) <= best + 1e-9


@examples(20)
@given(st.integers(11, 24), st.integers(2, 3), st.integers(0, 2**32 - 1))
def test_points_on_a_line_are_in_the_best_of_all_partitions(n: int, groups: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    line, start = random.normal(size=3), random.normal(size=3)
    points = start + random.exponential(size=(n, 1)) * line
    weights = random.integers(1, 5, n)
    groups_of_points = partition(points, weights, groups)
    # Groups of a best partition do not interleave: all of those are tried.
    order = np.argsort(points[:, 0])
    best = min(
        spread(points, weights, [order[a:b] for a, b in pairwise([0, *cuts, n])])
        for cuts in combinations(range(1, n), groups - 1)
    )
    ours = [np.flatnonzero(groups_of_points == g) for g in range(groups)]
    assert spread(points, weights, ours) <= best * (1 + 1e-9)


def test_eleven_to_forty_applications_are_within_a_percent_of_the_best_partition_known() -> None:
    random = np.random.default_rng(5)
    for n, groups in ((11, 4), (15, 6), (20, 7), (30, 7), (39, 7)):
        points = random.normal(size=(n, 2))
        groups_of_points = partition(points, np.ones(n), groups)
        ours = [np.flatnonzero(groups_of_points == g) for g in range(groups)]
        # A second method: SciPy's own k-means from 300 starts.
        best = np.inf
        for _ in range(300):
            _, of = kmeans2(points, groups, minit="++", seed=random, missing="warn")
            kept = [np.flatnonzero(of == g) for g in range(groups) if (of == g).any()]
            best = min(best, spread(points, np.ones(n), kept))
        assert spread(points, np.ones(n), ours) <= best * 1.01


@examples(40)
@given(st.integers(2, 7), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_no_partition_of_levels_is_better_than_the_exact_queues(
    n: int, queues: int, seed: int
) -> None:
    points = np.random.default_rng(seed).normal(size=(n, 4))
    levels = Levels(
        levels=tuple(
            Level(number=i, applications=(f"a{i}",), centroid=tuple(point), sensitivity=1.0)
            for i, point in enumerate(points.tolist())
        ),
        coordinates="any",
        spread=0.0,
    )
    weights = np.ones(n)
    mapped = partition_queues(levels, range(n), queues).queues
    exact = spread(points, weights, [list(queue) for queue in mapped])
    mapped = map_queues(build_hierarchy(levels), range(n), queues).queues
    greedy = [list(queue) for queue in mapped]
    assert exact <= min(spread(points, weights, p) for p in partitions(range(n), queues)) + 1e-9
    assert exact <= spread(points, weights, greedy) + 1e-9


@examples(40)
@given(st.integers(11, 40), st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_no_single_point_moved_elsewhere_lessens_the_spread(n: int, groups: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    points, weights = random.normal(size=(n, 3)), random.integers(1, 5, n)
    of = partition(points, weights, groups)

    def total(numbers: np.ndarray) -> float:
        kept = [np.flatnonzero(numbers == g) for g in range(groups) if (numbers == g).any()]
        return spread(points, weights, kept)

    least = total(of)
    for point in range(n):
        for group in range(groups):
            moved = of.copy()
            moved[point] = group
            assert total(moved) >= least * (1 - 1e-9)


@examples(40)
@given(st.integers(11, 60), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_many_points_are_each_in_the_group_of_the_nearest_mean(
    n: int, groups: int, seed: int
) -> None:
    points = np.random.default_rng(seed).normal(size=(n, 3))
    groups_of_points = partition(points, np.ones(n), groups)
    means = np.array([points[groups_of_points == g].mean(axis=0) for g in range(groups)])
    distances = ((points[:, None] - means) ** 2).sum(axis=2)
    assert (distances[np.arange(n), groups_of_points] <= distances.min(axis=1) + 1e-9).all()


@examples(100)
@given(applications(), st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_order_of_applications_changes_no_level(
    models: dict[str, Sensitivity], most: int, random: Random
) -> None:
    names = list(models)
    random.shuffle(names)
    assert assign_levels({name: models[name] for name in names}, most) == assign_levels(
        models, most
    )


@examples(100)
@given(applications(), st.integers(1, 6))
def test_every_application_has_one_level_and_levels_rise_in_sensitivity(
    models: dict[str, Sensitivity], most: int
) -> None:
    levels = assign_levels(models, most).levels
    members = [name for level in levels for name in level.applications]
    assert sorted(members) == sorted(models)
    assert [level.number for level in levels] == list(range(1, len(levels) + 1))
    points = compute_coordinates(models)[1]
    # Points nearer than rounding of their squares may share a level, though another is free.
    separate, distinct = (len(np.unique(p, axis=0)) for p in (np.round(points, 6), points))
    assert min(most, separate) <= len(levels) <= min(most, distinct)
    assert all(a.sensitivity <= b.sensitivity for a, b in pairwise(levels))


@examples(100)
@given(st.lists(hinges(), min_size=1, max_size=8), hinges(), st.integers(1, 6))
def test_who_has_a_level_keeps_it_when_another_comes(
    curves: list[Hinges], new: Hinges, most: int
) -> None:
    before = assign_levels({f"a{n}": curve for n, curve in enumerate(curves)}, most)
    after = add_to_levels(before, "new", new, most)
    assert (
        after.assignment.items() - {("new", after.assignment["new"])} == before.assignment.items()
    )
    numbers = [level.number for level in after.levels]
    assert numbers == sorted(set(numbers))
    assert set(numbers) <= set(range(1, most + 1))
    assert after.spread >= before.spread


# ---- Queues -----------------------------------------------------------------------------------


def hierarchy(points: np.ndarray) -> Hierarchy:
    levels = [
        Level(number=i, applications=(str(i),), centroid=tuple(point.tolist()), sensitivity=1.0)
        for i, point in enumerate(points, start=1)
    ]
    return build_hierarchy(Levels(levels=tuple(levels), coordinates="any", spread=0.0))


random_points = st.tuples(st.integers(1, 12), st.integers(0, 2**32 - 1)).map(
    lambda drawn: np.random.default_rng(drawn[1]).normal(size=(drawn[0], 2))
)


@examples(100)
@given(random_points)
def test_each_step_joins_two_clusters_and_never_splits_one(points: np.ndarray) -> None:
    steps = [{cluster.levels for cluster in step} for step in hierarchy(points).steps]
    assert [len(step) for step in steps] == list(range(len(points), 0, -1))
    for finer, coarser in pairwise(steps):
        assert all(any(set(old) <= set(new) for new in coarser) for old in finer)
        assert len(finer & coarser) == len(finer) - 2


@examples(100)
@given(random_points)
def test_joins_are_those_of_median_linkage(points: np.ndarray) -> None:
    n = len(points)
    assume(n > 1)
    members = {i: (i + 1,) for i in range(n)}
    joined = []
    for i, row in enumerate(linkage(points, method="median")):
        members[n + i] = tuple(sorted(members[int(row[0])] + members[int(row[1])]))
        joined.append(members[n + i])
    steps = [{cluster.levels for cluster in step} for step in hierarchy(points).steps]
    # SciPy sorts joins by distance, which midpoints may make fall: the joins are compared, not
    # their order.
    assert sorted(next(iter(b - a)) for a, b in pairwise(steps)) == sorted(joined)


@examples(100)
@given(random_points, st.integers(1, 8), st.data())
def test_a_port_takes_the_first_step_that_fits_its_queues(
    points: np.ndarray, queues: int, data: st.DataObject
) -> None:
    tree = hierarchy(points)
    present = data.draw(st.sets(st.sampled_from(tree.levels), min_size=1))
    mapped = map_queues(tree, present, queues)
    clusters = [sum(1 for cluster in step if present & set(cluster.levels)) for step in tree.steps]
    assert mapped.step == 1 + next(i for i, count in enumerate(clusters) if count <= queues)
    assert sorted(level for queue in mapped.queues for level in queue) == sorted(present)
    assert len(mapped.queues) == clusters[mapped.step - 1]


# ---- Plans ------------------------------------------------------------------------------------

PORTS = tuple(Port(node, port) for node in range(2) for port in (1, 2))
PORT_POLICIES = (
    PortPolicy(scheduler=VlArbitration(queues=8)),
    PortPolicy(scheduler=VlArbitration(queues=2), managed_share=0.8),
    PortPolicy(
        scheduler=VlArbitration(queues=4, entries=64, units=4096),
        managed_share=0.75,
        lane=LatencyLane(share=0.1, budget_bytes=400),
    ),
    PortPolicy(scheduler=Htb(queues=3, rate_kbps=10_000), managed_share=0.9),
)


@st.composite
def situations(draw: st.DrawFn) -> tuple[dict[str, Sensitivity], list[ConnectionPath]]:
    """Applications by their names alone, and jobs of them."""
    models = draw(applications(most=8))
    uses = st.builds(
        lambda name, job, ports: ConnectionPath(application=name + job, ports=tuple(sorted(ports))),
        st.sampled_from(sorted(models)),
        st.sampled_from(("", "#1", "#2")),
        st.sets(st.sampled_from(PORTS), min_size=1),
    )
    return models, draw(st.lists(uses, max_size=12))


def planned(models: dict[str, Sensitivity], connections: Sequence[ConnectionPath]) -> Plan:
    ports = dict(zip(PORTS, PORT_POLICIES, strict=True))
    return build_plan(build_policy(models, PORT_POLICIES[0], 4, ports), connections)


@examples(100)
@given(situations())
def test_units_sum_to_the_ports_units_and_queues_to_their_applications(
    situation: tuple[dict[str, Sensitivity], list[ConnectionPath]],
) -> None:
    plan = planned(*situation)
    assert set(plan.ports) == {port for c in situation[1] for port in c.ports}
    for port in plan.ports.values():
        assert sum(port.units.values()) == port.policy.units
        assert sum(queue.units for queue in port.queues) == port.policy.managed_units
        assert len(port.units) <= port.policy.scheduler.queues
        if isinstance(port.policy.scheduler, VlArbitration):
            assert len(list_entries(port.units)) <= port.policy.scheduler.entries
        for queue in port.queues:
            own = [a for a in port.applications if a.queue == queue.number]
            assert queue.units == sum(a.units for a in own)
            assert {a.level for a in own} == set(queue.levels)


@examples(100)
@given(situations())
def test_no_application_and_no_queue_is_below_the_floor(
    situation: tuple[dict[str, Sensitivity], list[ConnectionPath]],
) -> None:
    for port in planned(*situation).ports.values():
        weight = {queue.number: queue.units for queue in port.queues}
        for assigned in port.applications:
            assert assigned.share >= assigned.model.floor - 1e-12
            assert weight[assigned.queue] >= assigned.units


@examples(40)
@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_connections_and_applications_changes_nothing(
    situation: tuple[dict[str, Sensitivity], list[ConnectionPath]], random: Random
) -> None:
    models, connections = situation
    names, shuffled = list(models), list(connections)
    random.shuffle(names)
    random.shuffle(shuffled)
    assert planned({n: models[n] for n in names}, shuffled) == planned(models, connections)


@examples(30)
@given(situations())
def test_one_connection_at_a_time_gives_the_plan_of_all(
    situation: tuple[dict[str, Sensitivity], list[ConnectionPath]],
) -> None:
    models, connections = situation
    plan = planned(models, [])
    for count, connection in enumerate(connections, start=1):
        plan = add_connection(plan, connection)
        assert plan == planned(models, connections[:count])
    for count, connection in enumerate(connections, start=1):
        plan = remove_connection(plan, connection)
        assert plan == planned(models, connections[count:])


@examples(60)
@given(situations(), st.data())
def test_a_batch_of_changes_gives_the_plan_of_the_connections_that_are_left(
    situation: tuple[dict[str, Sensitivity], list[ConnectionPath]], data: st.DataObject
) -> None:
    models, connections = situation
    number = st.sets(st.sampled_from(range(len(connections)))) if connections else st.just(set())
    before, after = data.draw(number), data.draw(number)
    come = [(connections[n], 1) for n in after - before]
    go = [(connections[n], -1) for n in before - after]
    changes = data.draw(st.permutations([*come, *go]))
    plan = change_connections(planned(models, [connections[n] for n in before]), changes)
    assert plan == planned(models, [connections[n] for n in after])
    assert len(plan.ports) == len(list(plan.ports))


@examples(40)
@given(applications(most=5), st.integers(1, 400), st.sampled_from(PORT_POLICIES), st.data())
def test_however_many_jobs_a_port_has_all_its_managed_units_are_given(
    models: dict[str, Sensitivity], jobs: int, own: PortPolicy, data: st.DataObject
) -> None:
    names = [f"{data.draw(st.sampled_from(sorted(models)))}#{n}" for n in range(min(jobs, 8))]
    names += [f"app0#{n}" for n in range(len(names), jobs)]
    uses = [ConnectionPath(application=name, ports=(PORTS[0],)) for name in names]
    port = build_plan(build_policy(models, own, 4), uses).ports[PORTS[0]]
    assert sum(port.weights) == own.managed_units
    assert min(port.weights) >= (1 if len(names) <= own.managed_units // 2 else 0)
