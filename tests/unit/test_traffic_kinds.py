"""Kinds of traffic: who sends what to whom, before anything is simulated."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from weft._core import FlowSpec, Op, Pattern
from weft.errors import InputError
from weft.simulate import scenario_from
from weft.simulate.traffic import derangement

HOSTS = 6


def flows(seed: int = 1, base: Path = Path(), **table: Any) -> tuple[FlowSpec, ...]:
    fabric = {"topology": "one_switch", "hosts": HOSTS, "rate": "56 Gb/s", "delay": "10 ns"}
    data = {"duration": "1 us", "seed": seed, "fabric": fabric, "traffic": [{"name": "t"} | table]}
    (traffic,) = scenario_from(data, base=base).traffic
    return tuple(flow for part in traffic.parts for flow in part.flows)


def pairs(**table: Any) -> list[tuple[int, int]]:
    return [(flow.src, flow.dst) for flow in flows(**table)]


def test_every_sender_sends_to_every_receiver_but_itself() -> None:
    got = pairs(kind="bandwidth", size="1 B", **{"from": "h0..h2", "to": ["h1", "h4"]})
    assert sorted(got) == [(0, 1), (0, 4), (1, 4), (2, 1), (2, 4)]


def test_all_names_every_host() -> None:
    got = pairs(kind="incast", size="1 B", **{"from": "all", "to": "h3"})
    assert sorted(got) == [(host, 3) for host in range(HOSTS) if host != 3]


@pytest.mark.parametrize(("messages", "window"), [(3, 3), (64, 64), (100, 64)])
def test_a_finite_flow_has_up_to_64_messages_outstanding(messages: int, window: int) -> None:
    got = flows(kind="incast", size="1 B", messages=messages, **{"from": "h0", "to": "h3"})
    assert [(flow.messages, flow.window) for flow in got] == [(messages, window)]


def test_the_digest_covers_the_content_of_the_files_that_a_scenario_names(tmp_path: Path) -> None:
    fabric = {"topology": "one_switch", "hosts": HOSTS}
    replay = {"name": "t", "kind": "replay", "file": "trace.csv"}
    digests = set()
    for size in (64, 65, 64):
        (tmp_path / "trace.csv").write_text(f"time_ns,from,to,bytes\n0,h0,h1,{size}\n")
        data = {"duration": "1 us", "fabric": fabric, "traffic": [replay]}
        digests.add(scenario_from(data, base=tmp_path).digest)
    assert len(digests) == 2


def test_a_shuffle_is_every_ordered_pair_once() -> None:
    got = pairs(kind="shuffle", size="1 B")
    assert sorted(got) == [(a, b) for a in range(HOSTS) for b in range(HOSTS) if a != b]


@pytest.mark.parametrize("seed", range(20))
def test_a_permutation_sends_once_from_and_once_to_every_host_and_never_home(seed: int) -> None:
    got = pairs(seed=seed, kind="permutation", size="1 B")
    assert sorted(src for src, _ in got) == list(range(HOSTS))
    assert sorted(dst for _, dst in got) == list(range(HOSTS))
    assert all(src != dst for src, dst in got)


def test_derangements_are_uniform() -> None:
    """The 9 derangements of 4 items, 900 expected of each; 5 sigma is 141."""
    rng = random.Random(1)
    counts = Counter(tuple(derangement(range(4), rng)) for _ in range(8100))
    assert len(counts) == 9
    assert all(abs(count - 900) < 141 for count in counts.values())


@pytest.mark.parametrize("seed", range(10))
def test_random_peers_get_all_messages_of_every_host_and_none_from_themselves(seed: int) -> None:
    got = flows(seed=seed, kind="random", size="1 B", messages=50)
    sent = Counter[int]()
    for flow in got:
        sent[flow.src] += flow.messages
        assert flow.src != flow.dst
    assert sent == dict.fromkeys(range(HOSTS), 50)


def test_the_choice_of_peers_depends_on_the_seed_alone() -> None:
    table = {"kind": "random", "size": "1 B", "messages": 50}
    assert pairs(seed=3, **table) == pairs(seed=3, **table)
    assert pairs(seed=3, **table) != pairs(seed=4, **table)


def test_a_ring_all_reduce_is_a_cycle_of_triggers_with_2_n_minus_1_chunks_each() -> None:
    ring = flows(kind="allreduce", size="60 kB")
    for i, flow in enumerate(ring):
        assert (flow.src, flow.dst) == (i, (i + 1) % HOSTS)
        assert flow.pattern == Pattern.TRIGGERED
        assert flow.messages == 2 * (HOSTS - 1)
        assert flow.size_bytes == 10_000
        assert ring[flow.triggers].src == flow.dst


def test_a_trace_keeps_every_message_in_order_of_time(tmp_path: Path) -> None:
    trace = "time_ns,from,to,bytes\n30,h0,h1,3\n10,h0,h1,1\n20.5,h2,h1,2\n10,h0,h1,4\n"
    (tmp_path / "t.csv").write_text(trace)
    got = flows(base=tmp_path, kind="replay", file="t.csv", start="1 us")
    by_source = {flow.src: flow for flow in got}
    assert by_source[0].schedule == [(1_010_000, 1), (1_010_000, 4), (1_030_000, 3)]
    assert [time for time, _ in by_source[2].schedule] == [1_020_500]
    assert by_source[0].messages == 3


def test_estimators_take_turns_and_only_post_poll_writes() -> None:
    got = flows(kind="estimators", slice="5 us", start="1 us", **{"from": "h0", "to": "h1"})
    spans = [(flow.start_ps, flow.stop_ps) for flow in got]
    assert spans == [(us * 1_000_000, (us + 5) * 1_000_000) for us in (1, 6, 11, 16)]
    assert [flow.op for flow in got] == [Op.SEND, Op.SEND, Op.WRITE, Op.SEND]


def test_a_pretend_probe_is_small_and_batched() -> None:
    (flow,) = flows(kind="pretend", **{"from": "h0", "to": "h1"})
    assert flow.size_bytes == 256
    assert flow.batch > 1


ENDS = {"from": "h0", "to": "h1"}
LIMITS = [
    ("bandwidth", "size", "1 B", "1 TiB", "0 B", 2**40 + 1),
    ("bandwidth", "sl", 0, 15, -1, 16),
    ("bandwidth", "ack_every", 0, 2**20, -1, 2**20 + 1),
    ("bandwidth", "ack_size", "1 B", "4096 B", "0 B", "4097 B"),
    ("bandwidth", "window", 1, 2**20, 0, 2**20 + 1),
    ("bandwidth", "batch", 1, 2**20, 0, 2**20 + 1),
    ("bandwidth", "messages", 1, 2**40, 0, 2**40 + 1),
    ("latency", "messages", 1, 2**40, 0, 2**40 + 1),
    ("paced", "messages", 1, 2**40, 0, 2**40 + 1),
    ("incast", "messages", 1, 2**40, 0, 2**40 + 1),
    ("permutation", "messages", 1, 2**40, 0, 2**40 + 1),
    ("random", "messages", 1, None, 0, 10**6 + 1),
]


@pytest.mark.parametrize(("kind", "key", "low", "high", "below", "above"), LIMITS)
def test_a_key_takes_its_limits_and_nothing_beyond(
    kind: str, key: str, low: Any, high: Any, below: Any, above: Any
) -> None:
    table = {"kind": kind, "size": "64 B"}
    table |= {"interval": "1 us"} if kind == "paced" else {}
    table |= {} if kind in ("permutation", "random") else ENDS
    for value in (low, high):
        if value is not None:
            assert flows(**table | {key: value})
    for value in (below, above):
        with pytest.raises(InputError, match=key):
            flows(**table | {key: value})
