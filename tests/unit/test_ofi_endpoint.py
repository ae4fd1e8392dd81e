"""libfabric endpoints: loopback, delivery, sleeping, refusals, peers that are silent or gone."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time

import pytest
from ofi_pair import CONNECT_MS, JOIN_S, KINDS, config, connected, loop, need, providers

from weft import _core
from weft._core import Endpoint, StopFlag
from weft.errors import InputError
from weft.measure.peer.server import remove_stale_shared_memory

# The shm provider holds a spin lock in shared memory while it polls. A peer killed meanwhile leaves
# it locked, and libfabric then never returns. So this peer stops polling before it is killed.
ECHOING = """
import sys, threading, time
from weft._core import Endpoint, EndpointConfig, LoopSpec, StopFlag, echo
config = EndpointConfig()
config.transport, config.device, config.endpoint = "ofi", sys.argv[1], sys.argv[2]
config.depth = config.receive_depth = 8
config.address = "" if config.device == "shm" else "127.0.0.1"
config.server = True
endpoint = Endpoint.open(config)
print(endpoint.address().hex(), flush=True)
endpoint.connect(bytes.fromhex(sys.stdin.readline()), 10_000)
spec = LoopSpec()
spec.bytes = 64
stop = StopFlag()
def stop_after_some():
    while stop.done < 20:
        time.sleep(0.001)
    stop.set()
if config.device == "shm":
    threading.Thread(target=stop_after_some).start()
echo(endpoint, spec, stop)
time.sleep(60)
"""

RELIABLE = [kind for kind in KINDS if kind[1] != "dgram"]
RDM = [kind[0] for kind in KINDS if kind[1] == "rdm"]
# Providers whose threads take messages without the program have nothing to wait for.
DELIVERING = [kind for kind in RELIABLE if kind[0] not in ("tcp;ofi_rxm", "sockets")]


@pytest.mark.parametrize("provider", RDM)
def test_an_endpoint_connected_to_itself_receives_what_it_sends(provider: str) -> None:
    need(provider, "rdm")
    endpoint = Endpoint.open(config(provider, "rdm"))
    endpoint.connect(endpoint.address(), CONNECT_MS)
    counts = _core.complete(endpoint, loop(count=20, bytes=64), StopFlag()).counts
    endpoint.close()
    assert (counts.error, counts.sent) == ("", 20)


def test_a_connection_cannot_be_its_own_peer() -> None:
    need("tcp", "msg")
    endpoint = Endpoint.open(config("tcp", "msg", server=True))
    with pytest.raises(InputError, match="its own peer; use an rdm endpoint"):
        endpoint.connect(endpoint.address(), CONNECT_MS)


@pytest.mark.parametrize("size", [1, 64, 4096])
@pytest.mark.parametrize("kind", DELIVERING, ids=str)
def test_with_delivery_a_send_completes_only_when_the_peer_has_taken_it(
    kind: tuple[str, str], size: int
) -> None:
    need(*kind)
    if kind[0] == "shm" and not providers()["shm"].facts["libfabric"].startswith("1."):
        pytest.skip("ofi:shm: libfabric 2.5 crashes when both endpoints are in one process")
    with connected(*kind, delivery=True, send_bytes=size, receive_bytes=size) as pair:
        stop, counts = StopFlag(), []
        spec = loop(count=1, bytes=size)
        sender = threading.Thread(
            target=lambda: counts.append(_core.complete(pair.ours, spec, stop).counts), daemon=True
        )
        sender.start()
        time.sleep(0.1)
        before = stop.done
        with pair.served(lambda theirs, ended: _core.sink([theirs], spec, ended)):
            sender.join(JOIN_S)
    assert before == 0
    assert (counts[0].error, counts[0].sent) == ("", 1)


def test_delivery_is_refused_where_the_provider_completes_too_early() -> None:
    need("tcp;ofi_rxm", "rdm")
    with pytest.raises(InputError, match=r"FI_DELIVERY_COMPLETE.*; use another"):
        Endpoint.open(config("tcp;ofi_rxm", "rdm", delivery=True))


def test_a_write_that_completes_when_it_has_left_is_refused_where_delivery_is_asked() -> None:
    with connected("tcp", "msg", delivery=True, remote_bytes=64) as pair:
        counts = _core.complete(pair.ours, loop(count=1, bytes=64, op="write"), StopFlag()).counts
    assert "no completion of write of 64 B that means delivery" in counts.error


def test_delivery_is_refused_where_the_provider_has_none() -> None:
    need("udp", "dgram")
    with pytest.raises(InputError, match=r"FI_DELIVERY_COMPLETE.*; use another"):
        Endpoint.open(config("udp", "dgram", delivery=True))


def test_an_injected_message_cannot_have_delivery() -> None:
    need("shm")
    with pytest.raises(InputError, match="inline size at 0"):
        Endpoint.open(config("shm", delivery=True, inline_bytes=64))


@pytest.mark.parametrize("kind", [k for k in KINDS if k[0] != "shm"], ids=str)
def test_a_sleeping_loop_gets_every_message(kind: tuple[str, str]) -> None:
    with connected(*kind, events=True) as pair:
        spec = loop(count=40, bytes=64, block=True, validate=True)
        with pair.served(lambda theirs, stop: _core.echo(theirs, spec, stop)):
            counts = _core.ping_pong(pair.ours, spec, StopFlag()).counts
    assert (counts.error, counts.received, counts.corrupted) == ("", 40, 0)


def test_a_sleeping_loop_uses_no_processor_time() -> None:
    with connected("tcp", "rdm", events=True) as pair:
        stop = StopFlag()
        threading.Timer(0.5, stop.set).start()
        counts = _core.sink([pair.theirs], loop(count=1, bytes=64, block=True), stop)
    assert counts.stopped
    assert counts.user_ns + counts.system_ns < 250_000_000


def test_events_are_refused_where_the_provider_cannot_sleep() -> None:
    need("shm")
    with pytest.raises(InputError, match=r"ofi:shm: the provider cannot sleep.*; poll instead"):
        Endpoint.open(config("shm", events=True))


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_inline_messages_arrive_intact(kind: tuple[str, str]) -> None:
    with connected(*kind, inline_bytes=64) as pair:
        spec = loop(count=40, bytes=64, validate=True)
        with pair.served(lambda theirs, stop: _core.echo(theirs, spec, stop)):
            counts = _core.ping_pong(pair.ours, spec, StopFlag()).counts
    assert (counts.error, counts.received, counts.corrupted) == ("", 40, 0)


def test_a_message_larger_than_a_datagram_is_refused_with_the_limit() -> None:
    need("udp", "dgram")
    with pytest.raises(InputError, match=r"1473 B exceeds the limit of the dgram endpoint, 1472 B"):
        Endpoint.open(config("udp", "dgram", send_bytes=1473))


def test_an_inline_size_over_the_providers_is_refused_with_the_limit() -> None:
    need("tcp", "rdm")
    with pytest.raises(InputError, match=r"1000000 B exceed the provider's inject limit of \d+ B"):
        Endpoint.open(config("tcp", "rdm", inline_bytes=1_000_000))


def test_an_inject_over_the_providers_limit_is_refused() -> None:
    with connected("tcp", "rdm", send_bytes=1 << 20, receive_bytes=1 << 20) as pair:
        spec = loop(count=1, bytes=1 << 20, op="inject")
        counts = _core.complete(pair.ours, spec, StopFlag()).counts
    assert "inject of 1048576 B exceeds the provider's limit of" in counts.error


def test_a_queue_deeper_than_the_providers_is_refused_with_the_limit() -> None:
    need("shm")
    with pytest.raises(InputError, match=r"queue depth 1000000 exceeds .*; lower the depth"):
        Endpoint.open(config("shm", depth=1_000_000))


def test_an_unknown_provider_is_refused_with_those_there_are() -> None:
    need("shm")
    with pytest.raises(InputError, match=r"no provider 'warp'; use one of: .*shm") as refused:
        Endpoint.open(config("warp"))
    assert "tcp" in str(refused.value)


def test_an_endpoint_the_provider_does_not_have_is_refused_with_those_it_has() -> None:
    need("shm")
    with pytest.raises(InputError, match="has no msg endpoint; use --endpoint rdm"):
        Endpoint.open(config("shm", "msg"))


def test_an_address_that_is_not_ours_is_refused() -> None:
    need("tcp", "rdm")
    with pytest.raises(InputError, match=r"203\.0\.113\.7.*; use an address of this host"):
        Endpoint.open(config("tcp", "rdm", address="203.0.113.7"))


def test_a_window_without_one_sided_operations_is_refused() -> None:
    need("udp", "dgram")
    with pytest.raises(InputError, match="no one-sided operations"):
        Endpoint.open(config("udp", "dgram", remote_bytes=64))


def test_access_outside_the_peers_window_is_refused() -> None:
    with connected("shm", remote_bytes=32, send_bytes=64, receive_bytes=64) as pair:
        counts = _core.complete(pair.ours, loop(count=1, bytes=64, op="write"), StopFlag()).counts
    assert "outside the peer's window of 32 B" in counts.error


@pytest.mark.parametrize("garbage", [b"", b"weftofi1", bytes(200), b"\xff" * 4096])
def test_an_address_of_garbage_is_refused(garbage: bytes) -> None:
    need("shm")
    endpoint = Endpoint.open(config("shm"))
    with pytest.raises(InputError, match="the peer's address"):
        endpoint.connect(garbage, 100)


def test_a_peer_with_another_provider_is_refused_with_both_names() -> None:
    need("shm")
    need("tcp", "rdm")
    ours, theirs = Endpoint.open(config("shm")), Endpoint.open(config("tcp", "rdm"))
    with pytest.raises(InputError, match=r"the peer has provider tcp.*, we have shm"):
        ours.connect(theirs.address(), 100)


@pytest.mark.parametrize("kind", RELIABLE, ids=str)
def test_a_peer_that_does_not_connect_is_noticed_in_time(kind: tuple[str, str]) -> None:
    need(*kind)
    theirs = Endpoint.open(config(*kind))
    ours = Endpoint.open(config(*kind, server=True))
    start = time.monotonic()
    with pytest.raises(InputError, match=r"ofi:.*; .+"):
        ours.connect(theirs.address(), 300)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_loop_whose_peer_was_killed_ends_by_itself_or_by_its_flag(kind: tuple[str, str]) -> None:
    need(*kind)
    peer = subprocess.Popen(
        [sys.executable, "-c", ECHOING, *kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdin
    assert peer.stdout
    ours = Endpoint.open(config(*kind))
    try:
        peer.stdin.write(ours.address().hex() + "\n")
        peer.stdin.flush()
        ours.connect(bytes.fromhex(peer.stdout.readline()), CONNECT_MS)
        stop, counts = StopFlag(), []
        spec = loop(duration_ns=60_000_000_000, bytes=64, loss_timeout_ns=60_000_000_000)
        client = threading.Thread(
            target=lambda: counts.append(_core.ping_pong(ours, spec, stop).counts), daemon=True
        )
        client.start()
        while stop.done < 10 and client.is_alive():
            time.sleep(0.01)
        time.sleep(0.2)
        peer.kill()
        time.sleep(0.2)
        stop.set()
        client.join(JOIN_S)
    finally:
        ours.close()
        peer.kill()
        peer.communicate()
        remove_stale_shared_memory(peer.pid)
    assert counts[0].stopped
    assert counts[0].received >= 9


def test_providers_have_the_endpoints_that_fi_info_lists() -> None:
    need("shm")
    tool = shutil.which("fi_info")
    if tool is None:
        pytest.skip("fi_info: not installed; apt-get install libfabric-bin")
    kinds = {"rdm": "FI_EP_RDM", "msg": "FI_EP_MSG", "dgram": "FI_EP_DGRAM"}
    for name in ("shm", "tcp", "udp", "sockets"):
        listed = subprocess.run(
            [tool, "-p", name], capture_output=True, text=True, timeout=30, check=True
        ).stdout
        expected = {kind for kind, text in kinds.items() if text in listed}
        assert set(providers()[name].endpoints) == expected


def test_each_provider_is_described_as_fi_info_would_or_says_why_not() -> None:
    need("shm")
    for entry in providers().values():
        assert entry.available == (entry.reason == "")
        assert entry.available or entry.remedy
        for kind in entry.endpoints:
            for fact in ("caps", "max_msg_size", "inject_size", "mr_mode", "operations"):
                assert f"{kind}.{fact}" in entry.facts
    assert providers()["shm"].facts["verified"] == "yes"
    assert providers()["udp"].facts["dgram.max_msg_size"] == "1472"
    assert "127.0.0.1" in providers()["tcp"].facts["addresses"]
