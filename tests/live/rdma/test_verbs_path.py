"""Ports that cannot reach each other are refused before anything is sent, with both values."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from verbs_pairs import loopback, opened, settings

from weft._core import Availability
from weft.errors import InputError
from weft.measure import Peer, latency, open_peer


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with open_peer("local") as opened_peer:
        yield opened_peer


def gids(device: Availability) -> dict[bool, tuple[int, str]]:
    """By whether it is IPv4: the last GID's index and address."""
    rows = re.findall(r"(\d+): (\S+) \(", device.facts["gids"])
    return {"." in address: (int(index), address) for index, address in rows}


def test_gids_of_two_families_are_refused_with_both_and_their_options(
    device: Availability, peer: Peer
) -> None:
    (v4, four), (v6, six) = gids(device)[True], gids(device)[False]
    with pytest.raises(InputError) as refusal:
        latency(
            peer, over=f"verbs:{device.device}", gid_index=v4, peer_gid_index=v6, count=5, warmup=0
        )
    text = str(refusal.value)
    assert f"ours is {four} (index {v4}, RoCE v2), the peer's {six} (index {v6}, RoCE v2)" in text
    assert "--gid-index and --peer-gid-index" in text


def test_a_port_for_each_side_reaches_its_side(device: Availability, peer: Peer) -> None:
    with pytest.raises(InputError, match="port 9 does not exist"):
        latency(peer, over=f"verbs:{device.device}", port=1, peer_port=9, count=5, warmup=0)


def test_the_path_the_port_and_the_partition_are_described(device: Availability) -> None:
    with loopback(device=device.device) as endpoint:
        facts = endpoint.describe()
    assert facts["port"] == device.facts["port"]
    assert facts["partition"] == device.facts["partition"] == "0xffff"
    assert facts["path"].startswith("within ")


def test_partition_keys_that_are_not_there_or_differ_are_refused(device: Availability) -> None:
    with (
        pytest.raises(
            InputError, match=r"has no partition key 0x1234; use one of its table .0xffff"
        ),
        opened(settings(device=device.device, partition=0x1234)),
    ):
        pass
    # Keys are found whatever their membership bit.
    with opened(settings(device=device.device, partition=0x7FFF)) as (endpoint,):
        ours = endpoint.address()
        assert ours.count(b" ffff ") == 1
        with pytest.raises(InputError, match="ours is 0xffff, the peer's 0x8001"):
            endpoint.connect(ours.replace(b" ffff ", b" 8001 "), 1000)
