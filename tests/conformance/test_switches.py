"""What every driver must do with a port's tables, whatever the switches are made of.

The oracle is the contract of `weft.switches.Switches`: what is written is what is read, all or
nothing, and at no moment does a level lie in a queue that is not served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rigs import Rig, State

from weft.errors import InputError
from weft.fabric import check_fabric, path
from weft.switches import Ability, Failed, Lane, PortName, Tables

EXAMPLES = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@cache
def ability(rig: Rig, port: PortName) -> Ability:
    result = rig.switches.abilities([port])[port]
    assert isinstance(result, Ability), result
    return result


@st.composite
def tables(draw: Callable[..., object], able: Ability) -> Tables:
    """Any tables that the port can be told: weights that sum to no more than its units."""
    count = draw(st.integers(1, able.queues))
    used = draw(st.permutations(range(able.queues)))[:count]
    queue_of = draw(
        st.lists(st.sampled_from(used), min_size=able.levels, max_size=able.levels).map(tuple)
    )
    parts = draw(st.lists(st.integers(1, 1000), min_size=count, max_size=count))
    share = (able.units - count) / sum(parts)
    weights = {queue: 1 + int(part * share) for queue, part in zip(used, parts, strict=True)}
    return Tables(
        queue_of=queue_of, weights=tuple(weights.get(queue, 0) for queue in range(able.queues))
    )


def as_themselves(able: Ability, heaviest: int) -> Tables:
    """Level n in queue n, all of equal weight but one."""
    queues = range(able.queues)
    least = max(1, able.units // (2 * able.queues))
    return Tables(
        queue_of=tuple(level % able.queues for level in range(able.levels)),
        weights=tuple(2 * least if queue == heaviest else least for queue in queues),
    )


def test_discovery_gives_a_sound_fabric_whose_hosts_reach_each_other(rig: Rig) -> None:
    fabric = check_fabric(rig.switches.discover())
    assert fabric.routes is not None
    for source in fabric.hosts:
        for target in fabric.hosts:
            assert source == target or path(fabric, source, target)


def test_ports_can_be_told_levels_queues_and_units(rig: Rig) -> None:
    for port in rig.ports:
        able = ability(rig, port)
        assert able.levels >= 1
        assert 1 <= able.queues <= able.entries
        assert able.units >= able.queues


@EXAMPLES
@given(data=st.data())
def test_what_is_written_is_what_is_read(rig: Rig, data: st.DataObject) -> None:
    wanted = {port: data.draw(tables(ability(rig, port)), label=str(port)) for port in rig.ports}
    assert rig.switches.write(wanted) == wanted
    assert rig.switches.read(list(wanted)) == wanted


def test_a_driver_that_starts_anew_reads_what_an_earlier_one_wrote(rig: Rig) -> None:
    wanted = {port: as_themselves(ability(rig, port), 1) for port in rig.ports}
    assert rig.switches.write(wanted) == wanted
    other = rig.again()
    try:
        assert other.read(list(wanted)) == wanted
    finally:
        other.close()


def test_writing_again_changes_nothing(rig: Rig) -> None:
    port = rig.ports[0]
    wanted = as_themselves(ability(rig, port), 2)
    rig.switches.write({port: wanted})
    written, states = rig.traced(port, wanted)
    assert written == wanted
    assert len(states) == 1


def test_what_another_driver_wrote_is_left_as_it_is(rig: Rig) -> None:
    port = rig.ports[0]
    rig.switches.write({port: as_themselves(ability(rig, port), 2)})
    wanted = as_themselves(ability(rig, port), 3)
    other = rig.again()
    try:
        assert other.write({port: wanted}) == {port: wanted}
    finally:
        other.close()
    written, states = rig.traced(port, wanted)
    assert written == wanted
    assert len(states) == 1


def starving(state: State) -> set[int]:
    """Levels whose packets wait for a queue that is not served."""
    return {
        level
        for queue_of in state.queues_of
        for level, queue in enumerate(queue_of)
        if queue not in state.served
    }


@EXAMPLES
@given(data=st.data())
def test_no_level_starves_at_any_moment_of_a_change(rig: Rig, data: st.DataObject) -> None:
    port = data.draw(st.sampled_from(rig.ports))
    before, wanted = (data.draw(tables(ability(rig, port))) for _ in range(2))
    assert rig.switches.write({port: before}) == {port: before}
    written, states = rig.traced(port, wanted)
    assert written == wanted
    assert [starving(state) for state in states] == [set()] * len(states)


def test_a_latency_lane_is_read_as_it_was_written(rig: Rig) -> None:
    port = rig.ports[1]
    plain = as_themselves(ability(rig, port), 1)
    wanted = replace(plain, lane=Lane(queue=2, limit=0))
    assert rig.switches.write({port: wanted}) == {port: wanted}
    assert rig.switches.read([port]) == {port: wanted}
    assert rig.switches.write({port: plain}) == {port: plain}


def test_a_lane_that_comes_moves_and_goes_starves_nobody(rig: Rig) -> None:
    port = rig.ports[2]
    plain = as_themselves(ability(rig, port), 1)
    rig.switches.write({port: plain})
    for lane in (Lane(queue=2, limit=0), Lane(queue=3, limit=0), None):
        written, states = rig.traced(port, replace(plain, lane=lane))
        assert written == replace(plain, lane=lane)
        assert [starving(state) for state in states] == [set()] * len(states)


def impossible(able: Ability) -> dict[str, Tables]:
    plain = as_themselves(able, 1)
    return {
        "a level too few": replace(plain, queue_of=plain.queue_of[:-1]),
        "a level too many": replace(plain, queue_of=(*plain.queue_of, 0)),
        "a queue too many": replace(plain, weights=(*plain.weights, 1)),
        "too much weight": replace(plain, weights=(10**9, *plain.weights[1:])),
    }


@pytest.mark.parametrize(
    "which", ["a level too few", "a level too many", "a queue too many", "too much weight"]
)
def test_impossible_tables_are_refused_before_anything_is_written(rig: Rig, which: str) -> None:
    port = rig.ports[0]
    before = as_themselves(ability(rig, port), 3)
    rig.switches.write({port: before})
    written, states = rig.traced(port, impossible(ability(rig, port))[which])
    assert isinstance(written, Failed)
    assert len(states) == 1
    assert rig.switches.read([port]) == {port: before}


def test_a_level_in_a_queue_without_weight_cannot_even_be_said() -> None:
    with pytest.raises(InputError, match="queue 1 has weight 0"):
        Tables(queue_of=(0, 1), weights=(1, 0))


@pytest.mark.parametrize("port", [PortName("no such node", 1), PortName("leaf0", 250)])
def test_an_unknown_port_fails_alone(rig: Rig, port: PortName) -> None:
    known = rig.ports[0]
    wanted = as_themselves(ability(rig, known), 2)
    written = rig.switches.write({port: wanted, known: wanted})
    assert isinstance(written[port], Failed)
    assert written[known] == wanted
    assert isinstance(rig.switches.read([port])[port], Failed)
    assert isinstance(rig.switches.abilities([port])[port], Failed)


def crowded(able: Ability) -> Tables:
    """All levels in one queue: to spread them, weights, map and weights must change in turn."""
    return Tables(queue_of=(0,) * able.levels, weights=(able.units // 2, *[0] * (able.queues - 1)))


def test_a_port_that_fails_keeps_its_tables_and_the_others_get_theirs(rig: Rig) -> None:
    bad, *good = rig.ports
    before = {port: crowded(ability(rig, port)) for port in rig.ports}
    wanted = {port: as_themselves(ability(rig, port), 1) for port in rig.ports}
    assert rig.switches.write(before) == before
    with rig.refusing(bad):
        written = rig.switches.write(wanted)
    assert isinstance(written[bad], Failed)
    assert {port: written[port] for port in good} == {port: wanted[port] for port in good}
    assert rig.switches.read([bad]) == {bad: before[bad]}


@pytest.mark.parametrize("step", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("spreads", [True, False])
def test_a_change_that_fails_half_way_is_undone(rig: Rig, step: int, spreads: bool) -> None:
    port = rig.ports[0]
    both = crowded(ability(rig, port)), as_themselves(ability(rig, port), 1)
    before, wanted = both if spreads else reversed(both)
    assert rig.switches.write({port: before}) == {port: before}
    with rig.refusing(port, step, step):
        written, states = rig.traced(port, wanted)
    # Where a driver needs fewer changes than that, none was refused.
    assert isinstance(written, Failed) or step >= len(states)
    there = before if isinstance(written, Failed) else wanted
    assert rig.switches.read([port]) == {port: there}
    assert [starving(state) for state in states] == [set()] * len(states)


def test_a_port_that_cannot_be_put_back_says_so_and_starves_nobody(rig: Rig) -> None:
    port = rig.ports[0]
    before, wanted = crowded(ability(rig, port)), as_themselves(ability(rig, port), 1)
    assert rig.switches.write({port: before}) == {port: before}
    with rig.refusing(port, first=2):
        written, states = rig.traced(port, wanted)
    assert isinstance(written, Failed)
    assert "could not be restored" in written.problem
    assert [starving(state) for state in states] == [set()] * len(states)
    assert rig.switches.write({port: before}) == {port: before}
