"""Tables as HTB trees: what is built reads as what it was, and no change starves a level.

The kernel is one that keeps what it is told, byte for byte; the live tests have the real one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from fake_kernel import INDEX, FakeKernel
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.host.net import htb, qdisc
from weft.host.net.rtnetlink import Message
from weft.switches import Foreign, HtbQueue, Lane, Tables
from weft.switches.linux.agent_connection import REQUESTS, WriteTables, encode_result
from weft.switches.linux.htb_tables import (
    LEVELS,
    QUEUES,
    build_ability,
    build_single_queue,
    build_tree,
    choose_dscp,
    decode_tree,
    find_refusal,
)

LINK_BPS = 200_000_000
UNITS = 200_000
ABLE = build_ability(LINK_BPS)
PLAIN = Tables(queue_of=tuple(range(16)), weights=(100_000, *[1] * 15))
EXAMPLES = settings(deadline=None, max_examples=60)


@st.composite
def tables(draw: Callable[..., object]) -> Tables:
    """Any that a port can be told."""
    count = draw(st.integers(1, QUEUES))
    used = draw(st.permutations(range(QUEUES)))[:count]
    queue_of = draw(st.lists(st.sampled_from(used), min_size=LEVELS, max_size=LEVELS))
    parts = draw(st.lists(st.integers(0, 1000), min_size=count, max_size=count))
    share = (UNITS - count) / max(1, sum(parts))
    weights = {queue: 1 + int(part * share) for queue, part in zip(used, parts, strict=True)}
    lanes = st.builds(Lane, queue=st.sampled_from(used), limit=st.integers(0, 34_000))
    return Tables(
        queue_of=tuple(queue_of),
        weights=tuple(weights.get(queue, 0) for queue in range(QUEUES)),
        lane=draw(st.none() | lanes),
    )


def kernel_with(written: Tables) -> FakeKernel:
    return FakeKernel().built(build_tree(written, LINK_BPS))


def read(kernel: FakeKernel) -> Tables | Foreign:
    return decode_tree(kernel.found(), LINK_BPS)


def batches_to(kernel: FakeKernel, wanted: Tables) -> list[list[Message]]:
    return htb.pack_changes(INDEX, build_tree(wanted, LINK_BPS), kernel.found(), 400_000)


def messages_to(kernel: FakeKernel, wanted: Tables) -> list[Message]:
    return [message for batch in batches_to(kernel, wanted) for message in batch]


# ---- There and back ---------------------------------------------------------------------------


@EXAMPLES
@given(tables())
def test_tables_that_are_built_read_as_what_they_were(written: Tables) -> None:
    assert find_refusal(written, ABLE) is None
    assert read(kernel_with(written)) == written


@EXAMPLES
@given(tables(), tables())
def test_a_tree_that_is_changed_reads_as_what_was_wanted(before: Tables, wanted: Tables) -> None:
    kernel = kernel_with(before)
    kernel.request(messages_to(kernel, wanted), "")
    assert read(kernel) == wanted
    assert messages_to(kernel, wanted) == []


@EXAMPLES
@given(tables(), tables())
def test_at_no_moment_of_a_change_is_a_level_in_a_queue_without_weight(
    before: Tables, wanted: Tables
) -> None:
    kernel = kernel_with(before)
    for message in messages_to(kernel, wanted):
        kernel.take(message)
        found = kernel.found()
        for level in range(LEVELS):
            assert found.classes[found.class_of(choose_dscp(level))].rate_bps >= 1000


@given(tables())
def test_rates_are_the_weights_and_what_is_left_is_lent(written: Tables) -> None:
    for queue, one in enumerate(build_tree(written, LINK_BPS).queues):
        assert one.rate_bps // 1000 == written.weights[queue]
        is_lane = written.lane is not None and written.lane.queue == queue
        assert one.ceil_bps == (one.rate_bps if is_lane else LINK_BPS)
        assert one.priority == (0 if is_lane else 1)
        assert is_lane or one.quantum_bytes >= 1514


def test_weights_alone_change_in_one_batch_of_those_that_differ() -> None:
    kernel = kernel_with(PLAIN)
    wanted = replace(PLAIN, weights=(50_000, 50_001, *[1] * 14))
    (batch,) = batches_to(kernel, wanted)
    assert [message.description for message in batch] == ["class 7765:10", "class 7765:11"]
    assert {message.kind for message in batch} == {qdisc.NEW_CLASS}
    assert {message.flags for message in batch} == {qdisc.CHANGE}


def test_a_change_of_the_map_serves_new_queues_then_leads_there_then_leaves_the_old() -> None:
    crowded = Tables(queue_of=(0,) * 16, weights=(100_000, *[0] * 15))
    moved = Tables(queue_of=(1,) * 16, weights=(0, 100_000, *[0] * 14))
    kernel = kernel_with(crowded)
    batches = batches_to(kernel, moved)
    kinds = [{message.kind for message in batch} for batch in batches]
    assert kinds == [{qdisc.NEW_CLASS}, {qdisc.NEW_FILTER}, {qdisc.NEW_CLASS}]
    assert [message.description for message in (*batches[0], *batches[2])] == [
        "class 7765:11",
        "class 7765:10",
    ]
    assert len(batches[1]) == 2 * 15 + 1  # IPv4 and IPv6 of each level, and the rest


def test_ipv4_and_ipv6_packets_of_a_level_have_its_dscp_where_their_headers_have_it() -> None:
    # RFC 791: version 4, header length 5, DSCP 6 bits, ECN 2. RFC 8200: version 6, DSCP 6, ECN 2.
    headers = 0x45 << 24 | 9 << 18 | 3 << 16 | 40, 6 << 28 | 9 << 22 | 3 << 20 | 0xABCDE
    for header, match in zip(headers, qdisc.match_dscp(9), strict=True):
        assert header & match.mask == match.value
        assert (header ^ 1 << match.value.bit_length()) & match.mask != match.value


def test_a_port_that_was_told_nothing_is_one_queue() -> None:
    assert build_single_queue(LINK_BPS).weights == (UNITS, *[0] * 15)
    assert set(build_single_queue(LINK_BPS).queue_of) == {0}


# ---- What is not ours -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "report"),
    [
        ({"ceil_bps": 50_000_000}, "class 7765:12: ceil_bps is 50000000, not 200000000"),
        ({"burst_bytes": 1600}, "class 7765:12: burst_bytes is"),
        ({"quantum_bytes": 2000}, "class 7765:12: quantum_bytes is 2000, not 1514"),
        ({"rate_bps": 100}, "level 2: queue 2 has weight 0"),
        ({"priority": 0}, "class 7765:12: ceil_bps is 200000000, not 1000"),
    ],
)
def test_a_class_that_someone_has_changed_is_foreign_and_is_mended(
    change: dict[str, int], report: str
) -> None:
    kernel = kernel_with(PLAIN)
    bent = replace(build_tree(PLAIN, LINK_BPS).queues[2], **change)
    kernel.take(qdisc.pack_class(INDEX, bent, flags=qdisc.CHANGE))
    found = read(kernel)
    assert isinstance(found, Foreign)
    assert found.description.startswith(report)
    kernel.request(messages_to(kernel, PLAIN), "")
    assert read(kernel) == PLAIN


def test_a_class_that_was_changed_without_its_priority_is_compared_with_the_target() -> None:
    """As `tc class change ... classid 7765:12 htb rate 20Mbit ceil 50Mbit` leaves it."""
    target = replace(PLAIN, weights=(50_000, 1, 44_888, *[1] * 13))
    kernel = kernel_with(target)
    bent = replace(
        build_tree(target, LINK_BPS).queues[2], rate_bps=20_000_000, ceil_bps=50_000_000, priority=0
    )
    kernel.take(qdisc.pack_class(INDEX, bent, flags=qdisc.CHANGE))
    content = read(kernel)
    assert isinstance(content, Foreign)
    over_the_wire = encode_result(1, content).value
    assert isinstance(over_the_wire, Foreign)
    for foreign in (content, over_the_wire):
        assert foreign.list_changes(target) == [
            "queue 2: rate is 20 Mb/s, should be 44.888 Mb/s; priority is 0, should be 1"
        ]


def test_a_lane_of_another_queue_is_a_change_of_two_priorities() -> None:
    target = replace(PLAIN, weights=(100_000, *[10] * 15), lane=Lane(queue=3, limit=100))
    moved = replace(target, lane=Lane(queue=5, limit=100))
    queues = build_tree(moved, LINK_BPS).queues
    found = Foreign("", tuple(HtbQueue(queue.rate_bps, queue.priority) for queue in queues))
    assert found.list_changes(moved) == []
    assert found.list_changes(target) == [
        "queue 3: priority is 1, should be 0",
        "queue 5: priority is 0, should be 1",
    ]


def test_a_changed_rate_reads_as_another_weight() -> None:
    kernel = kernel_with(PLAIN)
    wanted = replace(PLAIN, weights=(90_000, *PLAIN.weights[1:]))
    first = build_tree(wanted, LINK_BPS).queues[0]
    kernel.take(qdisc.pack_class(INDEX, first, flags=qdisc.CHANGE))
    assert read(kernel) == wanted


def test_a_tree_that_lacks_a_part_or_has_one_more_is_foreign_and_is_mended_where_it_is() -> None:
    tree = build_tree(PLAIN, LINK_BPS)
    lacks_class, lacks_filter, has_more, has_twice = (kernel_with(PLAIN) for _ in range(4))
    del lacks_class.classes[htb.build_classid(3)]
    del lacks_filter.filters[next(iter(lacks_filter.filters))]
    has_more.take(qdisc.pack_filter(INDEX, qdisc.match_dscp(46)[0], htb.build_classid(0)))
    has_twice.take(qdisc.pack_filter(INDEX, qdisc.match_dscp(3)[0], htb.build_classid(5)))
    for kernel, report in (
        (lacks_class, "queue 3 has no class"),
        (lacks_filter, "1 filters are missing, 0 are not weft's"),
        (has_more, "0 filters are missing, 1 are not weft's"),
        (has_twice, "0 filters are missing, 1 are not weft's"),
    ):
        assert read(kernel) == Foreign(report)
        assert htb.is_changeable(kernel.found(), tree)
        assert len(messages_to(kernel, PLAIN)) == (2 if kernel is lacks_class else 1)
        kernel.request(messages_to(kernel, PLAIN), "")
        assert read(kernel) == PLAIN


@st.composite
def damaged(draw: Callable[..., object], written: Tables) -> FakeKernel:
    """Of what tables mean, someone has removed some and added some."""
    kernel = kernel_with(written)
    for handle in draw(st.sets(st.sampled_from(sorted(kernel.filters)))):
        del kernel.filters[handle]
    led_to = {one.classid for one in kernel.found().filters.values()}
    free = sorted(kernel.classes.keys() - led_to - {htb.LINK})
    for key in draw(st.sets(st.sampled_from(free))) if free else ():
        del kernel.classes[key]
    for minor in draw(st.sets(st.integers(0x80, 0x84))):
        strange = replace(build_tree(written, LINK_BPS).queues[0], classid=htb.MAJOR | minor)
        kernel.take(qdisc.pack_class(INDEX, strange, flags=qdisc.ADD))
    for dscp in draw(st.sets(st.integers(1, 63))):
        to = draw(st.sampled_from(sorted(kernel.classes)))
        kernel.take(qdisc.pack_filter(INDEX, qdisc.match_dscp(dscp)[0], to))
    return kernel


@EXAMPLES
@given(st.data())
def test_whatever_was_added_to_a_tree_or_removed_it_is_mended_where_it_is(
    data: st.DataObject,
) -> None:
    before, wanted = data.draw(tables()), data.draw(tables())
    kernel = data.draw(damaged(before))
    assert htb.is_changeable(kernel.found(), build_tree(wanted, LINK_BPS))
    kernel.request(messages_to(kernel, wanted), "")
    assert read(kernel) == wanted


def test_a_tree_without_its_link_or_with_a_class_elsewhere_must_be_built_anew() -> None:
    tree = build_tree(PLAIN, LINK_BPS)
    without, elsewhere = kernel_with(PLAIN), kernel_with(PLAIN)
    del without.classes[htb.LINK]
    del elsewhere.classes[htb.build_classid(2)]
    misplaced = replace(tree.queues[2], parent=htb.build_classid(1))
    elsewhere.take(qdisc.pack_class(INDEX, misplaced, flags=qdisc.ADD))
    assert htb.is_changeable(kernel_with(PLAIN).found(), tree)
    assert not htb.is_changeable(without.found(), tree)
    assert not htb.is_changeable(elsewhere.found(), tree)


# ---- Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "report"),
    [
        (replace(PLAIN, queue_of=(0,) * 15), "tables of 15 levels, and the port has 16"),
        (replace(PLAIN, weights=(*PLAIN.weights, 1)), "tables of 17 queues, and the port has 16"),
        (replace(PLAIN, weights=(UNITS, *[1] * 15)), "weights sum to 200015 kbit/s, and the link"),
        (replace(PLAIN, lane=Lane(queue=1, limit=34_360)), "a lane of 1 kbit/s has a limit"),
    ],
)
def test_what_a_port_cannot_be_told_is_refused(wanted: Tables, report: str) -> None:
    found = find_refusal(wanted, ABLE)
    assert found is not None
    assert found.startswith(report)


@EXAMPLES
@given(tables())
def test_tables_come_back_from_the_wire(wanted: Tables) -> None:
    request = WriteTables([(1, wanted)])
    assert REQUESTS.decode(msgspec.json.encode(request)) == request


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(
    JSON
    | st.fixed_dictionaries({"queue_of": JSON, "weights": JSON, "lane": JSON})
    | st.fixed_dictionaries(
        {"queue_of": st.just([0]), "weights": st.lists(st.integers()), "lane": JSON}
    )
)
def test_json_that_is_not_tables_is_refused(data: object) -> None:
    payload = json.dumps({"type": "writetables", "tables": [[1, data]]}).encode()
    try:
        request = REQUESTS.decode(payload)
    except (InputError, msgspec.DecodeError):
        return
    assert isinstance(request, WriteTables)
    (_, tables), *_ = request.tables
    assert all(tables.weights[queue] > 0 for queue in tables.queue_of)


@pytest.mark.parametrize(
    ("kbps", "most"), [(1000, (2**32 - 1) * 64 * 1000 // (8 * 10**6)), (200_000, 2**31 - 2)]
)
def test_the_limit_of_a_lane_is_what_the_kernel_can_keep(kbps: int, most: int) -> None:
    """As ticks of 64 ns in 32 bits at its rate, and as bytes in 31 bits."""
    weights = (kbps, *[0] * (QUEUES - 1))
    for limit, is_refused in ((most, False), (most + 1, True)):
        wanted = Tables(queue_of=(0,) * LEVELS, weights=weights, lane=Lane(queue=0, limit=limit))
        assert (find_refusal(wanted, ABLE) is not None) == is_refused
