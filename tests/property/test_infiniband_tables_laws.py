"""Laws of InfiniBand's tables: what is encoded is decoded, and ways between two of them are safe.

The oracle of safety is the scheduler's definition: a VL is served if it has weight in the low or in
the high list; a level is safe if the VL of every map sends it to a VL that is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hypothesis import assume, given
from hypothesis import strategies as st
from some_examples import examples

from weft.switches import Ability, Failed, Foreign, Lane, Tables
from weft.switches.infiniband.mad import LEVELS, PortInfo
from weft.switches.infiniband.vl_tables import (
    ENTRY_WEIGHT,
    PortTables,
    Step,
    are_maps_sufficient,
    decode_tables,
    encode_tables,
    find_ability,
    find_refusal,
    find_starved_level,
    is_equivalent,
    merge_steps,
    plan_steps,
)

INPUTS = 4


def info(data_vls: int = 8, low: int = 8, high: int = 8) -> PortInfo:
    return PortInfo(
        data=bytes(64),
        lid=1,
        lmc=0,
        has_maps=True,
        is_linked=True,
        rate="4xEDR",
        data_vls=data_vls,
        high_limit=0,
        high_entries=high,
        low_entries=low,
    )


INFOS = st.builds(info, st.sampled_from([1, 2, 4, 8, 15]), st.integers(15, 64), st.integers(5, 64))


def row(data: bytes) -> tuple[int, ...]:
    return tuple(byte % 16 for byte in data)


def entries(data: bytes) -> tuple[tuple[int, int], ...]:
    """VLs and weights, of which every other is 0."""
    pairs = zip(data[::2], data[1::2], strict=True)
    return tuple((vl % 16, weight if vl & 16 else 0) for vl, weight in pairs)


@st.composite
def port_tables(draw: Callable[..., object], about: PortInfo) -> PortTables:
    """Anything that a port might hold. Drawn as bytes: 200 draws of a number each take long."""

    def drawn(count: int) -> bytes:
        return draw(st.binary(min_size=count, max_size=count))

    return PortTables(
        maps=tuple(row(drawn(LEVELS)) for _ in range(INPUTS)),
        low=entries(drawn(2 * about.low_entries)),
        high=entries(drawn(2 * about.high_entries)),
        limit=draw(st.integers(0, 255)),
    )


@st.composite
def tables(draw: Callable[..., object], able: Ability) -> Tables:
    """Tables of the right size whose low list fits; a lane's weight may not fit the high one."""
    used = sorted(draw(st.sets(st.sampled_from(range(able.queues)), min_size=1)))
    parts = draw(st.lists(st.integers(1, 1000), min_size=len(used), max_size=len(used)))
    share = (able.units - len(used)) / sum(parts)
    weights = {queue: 1 + int(part * share) for queue, part in zip(used, parts, strict=True)}
    lanes = st.builds(Lane, queue=st.sampled_from(used), limit=st.integers(0, 254))
    return Tables(
        queue_of=tuple(draw(st.sampled_from(used)) for _ in range(able.levels)),
        weights=tuple(weights.get(queue, 0) for queue in range(able.queues)),
        lane=draw(st.none() | lanes),
    )


@st.composite
def problems(draw: Callable[..., object]) -> tuple[Tables, PortTables, PortInfo, Ability]:
    """Tables that fit a port, and what it holds before."""
    about = draw(INFOS)
    able = find_ability(about, draw(st.integers(1, LEVELS)))
    assert isinstance(able, Ability)
    wanted = draw(tables(able).filter(lambda t: find_refusal(t, about, able.levels) is None))
    return wanted, draw(port_tables(about)), about, able


@examples(300)
@given(problems())
def test_what_is_encoded_is_decoded(problem: tuple[Tables, PortTables, PortInfo, Ability]) -> None:
    wanted, there, _, able = problem
    assert decode_tables(encode_tables(wanted, there), able) == wanted


@examples(300)
@given(problems())
def test_levels_that_are_not_ours_keep_their_lane(
    problem: tuple[Tables, PortTables, PortInfo, Ability],
) -> None:
    wanted, there, _, able = problem
    for old, new in zip(there.maps, encode_tables(wanted, there).maps, strict=True):
        assert new[able.levels :] == old[able.levels :]


@examples(300)
@given(problems())
def test_no_entry_is_longer_than_a_turn_may_be(
    problem: tuple[Tables, PortTables, PortInfo, Ability],
) -> None:
    wanted, there, about, _ = problem
    new = encode_tables(wanted, there)
    assert (len(new.low), len(new.high)) == (about.low_entries, about.high_entries)
    assert all(0 <= weight <= ENTRY_WEIGHT for _, weight in (*new.low, *new.high))


def written(there: PortTables, step: Step) -> Iterator[PortTables]:
    """The port after each single write of a step."""
    for n, vls in step.maps.items():
        there = replace(there, maps=(*there.maps[:n], vls, *there.maps[n + 1 :]))
        yield there
    for name in ("high", "limit", "low"):
        if getattr(step, name) is not None:
            there = replace(there, **{name: getattr(step, name)})
            yield there


def unserved(there: PortTables, able: Ability) -> set[int]:
    """Levels of ours that some input sends to a VL in use that has no weight."""
    weighty = {vl for vl, weight in (*there.low, *there.high) if weight}
    ours = {(n, vl) for vls in there.maps for n, vl in enumerate(vls[: able.levels])}
    return {n for n, vl in ours if vl < able.queues and vl not in weighty}


def moments(first: PortTables, old: PortTables, new: PortTables, able: Ability) -> list[PortTables]:
    """A port that holds `first`, after each write of the steps from old to new."""
    result = [first]
    for step in plan_steps(old, new, able.queues):
        result += written(result[-1], step)
    return result


def before_and_after(
    problem: tuple[Tables, PortTables, PortInfo, Ability], data: st.DataObject
) -> tuple[Tables, PortTables, PortTables]:
    """Other tables of the port, what it holds with them, and what it is to hold."""
    wanted, there, about, able = problem
    before = data.draw(tables(able).filter(lambda t: find_refusal(t, about, able.levels) is None))
    old = encode_tables(before, there)
    return before, old, encode_tables(wanted, old)


@examples(600)
@given(problems(), st.data())
def test_every_moment_of_a_change_serves_every_level(
    problem: tuple[Tables, PortTables, PortInfo, Ability], data: st.DataObject
) -> None:
    wanted, _, _, able = problem
    _, old, new = before_and_after(problem, data)
    way = moments(old, old, new, able)
    assert [unserved(now, able) for now in way] == [set()] * len(way)
    assert decode_tables(way[-1], able) == wanted


@examples(600)
@given(problems(), st.data())
def test_a_change_that_stops_anywhere_is_undone_as_safely(
    problem: tuple[Tables, PortTables, PortInfo, Ability], data: st.DataObject
) -> None:
    able = problem[3]
    before, old, new = before_and_after(problem, data)
    stopped = data.draw(st.sampled_from(moments(old, old, new, able)))
    way = moments(stopped, new, old, able)
    assert [unserved(now, able) for now in way] == [set()] * len(way)
    assert decode_tables(way[-1], able) == before


def in_turn(there: PortTables, able: Ability) -> set[int]:
    """VLs in use that have weight."""
    return {vl for vl, weight in (*there.low, *there.high) if weight and vl < able.queues}


def with_unread(
    problem: tuple[Tables, PortTables, PortInfo, Ability], data: st.DataObject
) -> tuple[Tables, PortTables, PortTables]:
    """Tables that serve every queue, what a port really holds, and what was read of it.

    Maps that were read are as wanted already; the others are anything.
    """
    wanted, there, about, able = problem
    whole = replace(wanted, weights=tuple(weight or 1 for weight in wanted.weights))
    assume(find_refusal(whole, about, able.levels) is None)
    seen = data.draw(st.sets(st.integers(0, INPUTS - 1), max_size=INPUTS - 1))
    hidden = [n not in seen for n in range(INPUTS)]
    known = encode_tables(whole, there).maps
    held = replace(
        there, maps=tuple(m if h else k for h, m, k in zip(hidden, there.maps, known, strict=True))
    )
    read = tuple(None if h else vls for h, vls in zip(hidden, held.maps, strict=True))
    return whole, held, replace(held, maps=read)


@examples(600)
@given(problems(), st.data())
def test_whatever_a_map_holds_that_was_not_read_no_lane_loses_its_turn(
    problem: tuple[Tables, PortTables, PortInfo, Ability], data: st.DataObject
) -> None:
    able = problem[3]
    wanted, held, read = with_unread(problem, data)
    assert are_maps_sufficient(wanted, read)
    new = encode_tables(wanted, read)
    there = moments(held, read, new, able)
    back = moments(data.draw(st.sampled_from(there)), new, read, able)
    assert all(in_turn(held, able) <= in_turn(now, able) for now in (*there, *back[1:]))
    assert in_turn(there[-1], able) == set(range(able.queues))
    assert [now.maps for now in there] == [held.maps] * len(there)
    assert is_equivalent(back[-1], held)


@examples(300)
@given(problems(), st.data())
def test_unread_maps_are_not_enough_where_a_queue_is_to_have_no_weight_or_levels_move(
    problem: tuple[Tables, PortTables, PortInfo, Ability], data: st.DataObject
) -> None:
    wanted, _, read = with_unread(problem, data)
    if len(wanted.weights) > 1:
        less = replace(wanted, queue_of=(0,) * len(wanted.queue_of), lane=None)
        assert not are_maps_sufficient(
            replace(less, weights=(1, *[0] * (len(less.weights) - 1))), read
        )
    moved = tuple((vl + 1) % 16 for vl in wanted.queue_of)
    some = replace(read, maps=(moved + (0,) * (LEVELS - len(moved)), None))
    assert not are_maps_sufficient(wanted, some)


def test_a_port_without_maps_sends_all_by_its_first_lane() -> None:
    able = find_ability(info(data_vls=1), 8)
    assert isinstance(able, Ability)
    there = PortTables(maps=(), low=((0, 4),) * 8, high=((0, 0),) * 8, limit=0)
    assert decode_tables(there, able) == Tables(queue_of=(0,) * 8, weights=(32,))


@examples(300)
@given(problems())
def test_what_a_port_holds_already_is_not_written(
    problem: tuple[Tables, PortTables, PortInfo, Ability],
) -> None:
    wanted, there, _, able = problem
    held = encode_tables(wanted, there)
    assert plan_steps(held, encode_tables(wanted, held), able.queues) == ()


@examples(300)
@given(INFOS.flatmap(port_tables), st.integers(1, LEVELS))
def test_whatever_a_port_holds_is_read_as_tables_or_as_foreign(
    there: PortTables, levels: int
) -> None:
    able = find_ability(info(low=len(there.low), high=len(there.high)), levels)
    assert isinstance(able, Ability)
    result = decode_tables(there, able)
    assert isinstance(result, Foreign) or len(result.queue_of) == levels


def test_a_switch_fresh_from_the_vendor_is_foreign() -> None:
    # Service level 8 goes to VL 8, and 8 VLs are in use: its packets would be dropped.
    fresh = PortTables(
        maps=((*range(15), 7),) * INPUTS,
        low=tuple((vl, 4 if vl else 0) for vl in range(8)),
        high=((0, 4), *[(vl, 0) for vl in range(1, 8)]),
        limit=0,
    )
    able = find_ability(info(), 16)
    assert isinstance(able, Ability)
    assert decode_tables(fresh, able) == Foreign("level 8 goes to VL 8, which is not served")
    few = find_ability(info(), 8)
    assert isinstance(few, Ability)
    assert decode_tables(fresh, few) == Tables(
        queue_of=tuple(range(8)), weights=(4,) * 8, lane=Lane(queue=0, limit=0)
    )


def test_a_list_that_serves_every_lane_is_written_once_and_first() -> None:
    # As ibsim's switches are: VL 0 alone is of high priority.
    fresh = PortTables(
        maps=((*range(8), *range(8)),) * INPUTS,
        low=tuple((vl, 4 if vl else 0) for vl in range(8)),
        high=((0, 4), *[(0, 0)] * 7),
        limit=0,
    )
    wanted = Tables(queue_of=tuple(range(8)), weights=(30,) * 8)
    new = encode_tables(wanted, fresh)
    assert plan_steps(fresh, new, 8) == (Step(maps={}, low=new.low), Step(maps={}, high=new.high))


def test_a_queue_that_others_use_may_not_lose_its_weight() -> None:
    there = PortTables(
        maps=((*range(8), *[7] * 8),), low=((0, 4),) * 8, high=((0, 0),) * 8, limit=0
    )
    wanted = Tables(queue_of=(0,) * 8, weights=(255, 0, 0, 0, 0, 0, 0, 0))
    assert find_starved_level(wanted, there) == "service level 8, not ours, is in VL 7 of weight 0"
    assert find_starved_level(replace(wanted, weights=(255, 0, 0, 0, 0, 0, 0, 1)), there) is None


def test_a_port_without_arbitration_has_nothing_to_share() -> None:
    assert isinstance(find_ability(info(data_vls=0), 8), Failed)
    assert isinstance(find_ability(info(low=0), 8), Failed)


def test_what_does_not_fit_is_refused_with_numbers() -> None:
    plain = Tables(queue_of=tuple(range(8)), weights=(30,) * 8)
    assert find_refusal(plain, info(), 8) is None
    assert find_refusal(plain, info(), 16) == "tables of 8 levels, and the port has 16"
    assert find_refusal(plain, info(data_vls=4), 8) == "tables of 8 queues, and the port has 4"
    heavy = replace(plain, weights=(256, *plain.weights[1:]))
    assert find_refusal(heavy, info(), 8) == "9 arbitration entries needed, and it has 8"
    laned = replace(plain, lane=Lane(queue=3, limit=0))
    assert find_refusal(laned, info(high=0), 8) == (
        "1 high-priority arbitration entries needed, and it has 0"
    )
    assert find_refusal(replace(laned, lane=Lane(queue=3, limit=255)), info(), 8) == (
        "limit 255 of high priority, 254 is the most"
    )


def test_the_last_write_of_each_kind_is_what_remains() -> None:
    first = Step(maps={0: (1,) * 16}, low=((1, 1),))
    last = Step(maps={1: (2,) * 16}, low=((2, 2),), limit=3)
    assert merge_steps([first, last]) == Step(
        maps={0: (1,) * 16, 1: (2,) * 16}, low=((2, 2),), limit=3
    )
