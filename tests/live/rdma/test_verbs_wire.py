"""Two devices with a cable between them: what is seen on the wire, and RPerf beside it."""

from __future__ import annotations

import re

import pytest
from rdma_network import Veth
from verbs_pairs import connected, loop, loopback, served, settings
from wire_tap import classes, ends, listening

from weft._core import Availability, echo, paced, ping_pong, post_poll, sink
from weft.errors import InputError


@pytest.mark.parametrize("kind", ["rc", "uc", "ud"])
@pytest.mark.parametrize("traffic_class", [0, 0x68, 0xB8])
def test_the_traffic_class_is_in_every_packet_on_the_wire(
    veth: Veth, kind: str, traffic_class: int
) -> None:
    configs = ends(veth, endpoint=kind, traffic_class=traffic_class)
    spec = loop(count=10, validate=True)
    with listening(veth) as packets, connected(*configs) as (a, b):
        result, _ = served(lambda s: ping_pong(a, spec, s), lambda s: echo(b, spec, s))
    assert (result.counts.received, result.counts.corrupted) == (10, 0)
    seen = classes(packets)
    assert len(seen) == len(packets) >= 20
    assert set(seen) == {traffic_class}
    for address in veth.addresses:
        assert any(re.search(rf"{re.escape(address)}\.\d+ > ", line) for line in packets)


@pytest.mark.parametrize("service_level", [0, 3, 7])
def test_service_levels_are_taken(veth: Veth, service_level: int) -> None:
    # Soft RoCE ignores them; the queue pair holds them.
    spec = loop(count=5)
    with connected(*ends(veth, service_level=service_level)) as (a, b):
        assert a.describe()["service_level"] == str(service_level)
        result, _ = served(lambda s: ping_pong(a, spec, s), lambda s: echo(b, spec, s))
    assert result.counts.received == 5


@pytest.mark.parametrize("path_mtu", [256, 512, 1024])
def test_messages_are_cut_at_the_path_mtu(veth: Veth, path_mtu: int) -> None:
    spec = loop(count=4, bytes=2048, validate=True)
    fields = {"path_mtu": path_mtu, "send_bytes": 2048, "receive_bytes": 2048}
    full = 4 * 2 * (2048 // path_mtu)
    with listening(veth) as packets, connected(*ends(veth, **fields)) as (a, b):
        assert a.describe()["mtu_bytes"] == str(path_mtu)
        result, _ = served(lambda s: ping_pong(a, spec, s), lambda s: echo(b, spec, s))
    assert (result.counts.received, result.counts.corrupted) == (4, 0)
    # UDP payload: 12 B base header, the data, 4 B checksum.
    sizes = [int(size) for line in packets for size in re.findall(r"UDP, length (\d+)", line)]
    assert max(sizes) == path_mtu + 16
    assert sizes.count(path_mtu + 16) >= full


@pytest.mark.parametrize("order", ["wire-first", "loopback-first", "alternating"])
def test_rperf_completes_every_pair_of_wire_and_loopback(veth: Veth, order: str) -> None:
    spec = loop(count=30, warmup=3, samples=30)
    with (
        connected(*ends(veth)) as (wire, far),
        loopback(device=veth.devices[0], receive_depth=64) as back,
    ):
        result, _ = served(
            lambda stop: post_poll(wire, back, spec, order, 0.0, stop),
            lambda stop: sink([far], loop(), stop),
        )
    assert result.counts.error == ""
    assert result.rtt.count == result.post_poll.count == result.loopback.count == 30
    assert result.device_rtt.count == 0
    assert result.negative == sum(sample < 0 for sample in result.samples)
    # T_W - T_L and its parts, sample by sample: the sums agree.
    assert result.rtt.mean == pytest.approx(result.post_poll.mean - result.loopback.mean, rel=0.01)


@pytest.mark.parametrize("kind", ["rc", "ud"])
def test_an_open_loop_answers_all_it_sent(veth: Veth, kind: str) -> None:
    spec = loop(count=50)
    with connected(*ends(veth, endpoint=kind, depth=32)) as (a, b):
        result, _ = served(
            lambda stop: paced(a, spec, stop, rate=100.0, window=16),
            lambda stop: echo(b, loop(), stop),
        )
    assert result.counts.error == ""
    assert (result.counts.sent, result.counts.received) == (50, 50)
    assert result.latency.count == 50


def test_subnets_without_a_route_are_refused(veth: Veth, machine: Availability) -> None:
    ours, theirs = settings(device=machine.device), settings(device=veth.devices[0])
    route = r"no route from 10\.9\.0\.1 .dm0. to 10\.9\.1\.1"
    subnets = r"ours is 10\.9\.0\.0/24, the peer's 10\.9\.1\.0/24; add a route, or choose"
    with pytest.raises(InputError, match=f"{route}: {subnets}"), connected(ours, theirs):
        pass
