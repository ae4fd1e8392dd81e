"""Caps on links: they hold, and what was there before comes back, whoever is killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from needs import need_namespaces
from restored import is_held, roots, wait_restored
from traffic import RATE_BPS, rate_bps, streams, when_full

from weft.errors import InputError
from weft.host.net import caps, namespaces, qdisc
from weft.host.net.caps import cap_links, change_ends
from weft.host.net.link_ends import LinkEnd
from weft.host.net.qdisc import ADD, TokenBucket
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import Wiring

KILLS = 20


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    need_namespaces()
    with testbed(Wiring(hosts=("a", "b"), rate_bps=RATE_BPS)) as made:
        yield made


def tc(end: LinkEnd, verb: str, *words: str) -> str:
    assert end.namespace is not None
    where = ["qdisc", verb, "dev", end.interface]
    return namespaces.run_command(["tc", "-j", "-n", end.namespace, *where, *words])


@pytest.fixture
def spare(bed: Testbed) -> Iterator[list[LinkEnd]]:
    """A veth of two ends in a's namespace that no one has limited."""
    inside = bed.namespaces["a"]
    namespaces.run_command(
        ["ip", "-n", inside, "link", "add", "v0", "type", "veth", "peer", "name", "v1"]
    )
    for name in ("v0", "v1"):
        namespaces.run_command(["ip", "-n", inside, "link", "set", name, "up"])
    yield [LinkEnd(inside, "v0"), LinkEnd(inside, "v1")]
    namespaces.run_command(["ip", "-n", inside, "link", "del", "v0"])


def test_a_capped_link_passes_its_rate(bed: Testbed) -> None:
    with streams(bed, "b", {"a": 0}), change_ends(bed.ends("b")) as links:
        for percent in (100, 50, 10):
            links.cap(percent=percent)
            wanted = RATE_BPS * percent / 100
            assert set(links.rates_bps().values()) == {wanted}

            # A bucket that has filled passes at once, so it must be small beside what is counted:
            # 0.13 s at 2 Mb/s, within 5 s.
            seconds = 50 / percent

            def look(wanted: float = wanted, seconds: float = seconds) -> tuple[float, float]:
                result = rate_bps(bed, "b", seconds)
                return result, result / wanted

            assert when_full(look) == pytest.approx(wanted, rel=0.05)


def test_what_tc_shows_is_what_was_asked_for(spare: list[LinkEnd]) -> None:
    with cap_links(spare, rate_bps=40_000_000):
        for end in spare:
            (shown,) = json.loads(tc(end, "show"))
            assert shown["kind"] == "tbf"
            assert shown["options"]["rate"] == 5_000_000
            assert shown["options"]["burst"] == pytest.approx(32 * 1024, rel=1e-3)


LARGE = """
import socket
with socket.socket(type=socket.SOCK_DGRAM) as there, socket.socket(type=socket.SOCK_DGRAM) as here:
    there.bind(("127.0.0.1", 0))
    there.settimeout(5)
    here.sendto(bytes(60000), there.getsockname())
    assert len(there.recv(1 << 16)) == 60000
"""


def test_a_cap_lets_the_largest_packet_of_the_interface_pass(bed: Testbed) -> None:
    argv = [sys.executable, "-c", LARGE]
    with cap_links([LinkEnd(bed.namespaces["a"], "lo")], rate_bps=8_000_000):
        assert bed.spawn("a", argv).wait(20) == 0


def test_limits_made_by_tc_come_back_byte_for_byte(spare: list[LinkEnd]) -> None:
    tc(
        spare[0],
        "add",
        "root",
        "handle",
        "77:",
        "tbf",
        "rate",
        "123456kbit",
        "burst",
        "54321",
        "limit",
        "222222",
        "peakrate",
        "500mbit",
        "mtu",
        "3000",
    )
    before = roots(spare)
    shown = tc(spare[0], "show")
    with cap_links(spare, rate_bps=1_000_000):
        assert roots(spare) != before
    assert roots(spare) == before
    assert tc(spare[0], "show") == shown


def test_an_error_inside_the_block_restores_too(bed: Testbed) -> None:
    places = bed.all_ends()
    before = roots(places)

    def profile() -> None:
        with change_ends(places) as links:
            links.cap(rate_bps=1_000_000)
            links.cap(percent=101)

    with pytest.raises(InputError, match=r"is not in \(0, 100\]"):
        profile()
    assert roots(places) == before
    assert not is_held(places)


def test_what_could_not_be_restored_is_refused_before_anything_changes(
    spare: list[LinkEnd],
) -> None:
    tc(spare[1], "add", "root", "handle", "1:", "htb", "default", "1")
    before = roots(spare)
    message = "v1: has htb 1:, which weft could not restore; `tc qdisc del dev v1 root`"
    with pytest.raises(InputError, match=message), cap_links(spare, rate_bps=10**6):
        pass
    tc(spare[1], "del", "root")
    tc(
        spare[1],
        "add",
        "root",
        "handle",
        "1:",
        "tbf",
        "rate",
        "1mbit",
        "burst",
        "9k",
        "limit",
        "9k",
    )
    tc(spare[1], "add", "parent", "1:1", "handle", "2:", "pfifo")
    with pytest.raises(InputError, match="has tbf 1:, pfifo 2:"), cap_links(spare, rate_bps=10**6):
        pass
    tc(spare[1], "del", "root")
    assert before[0] == roots(spare)[0]


def test_the_interface_of_the_default_route_is_capped_only_when_allowed(
    spare: list[LinkEnd],
) -> None:
    inside = spare[0].namespace
    for words in ("addr add 192.0.2.1/24 dev v0", "route add default via 192.0.2.2"):
        namespaces.run_command(["ip", "-n", str(inside), *words.split()])
    message = "v0: carries the default route"
    with pytest.raises(InputError, match=message), cap_links(spare[:1], rate_bps=10**6):
        pass
    with cap_links(spare[:1], rate_bps=10**6, allow_default_route=True) as links:
        assert links.rates_bps() == {spare[0]: 10**6}


def test_a_port_of_the_bridge_with_the_default_route_is_refused_too(spare: list[LinkEnd]) -> None:
    inside = str(spare[0].namespace)
    for words in (
        "link add br9 type bridge",
        "link set br9 up",
        "link set v0 master br9",
        "addr add 192.0.2.1/24 dev br9",
        "route add default via 192.0.2.2",
    ):
        namespaces.run_command(["ip", "-n", inside, *words.split()])
    try:
        for end in spare:  # v1 is where v0 leads to
            message = f"{end.interface}: carries the default route"
            with pytest.raises(InputError, match=message), cap_links([end], rate_bps=10**6):
                pass
        with Rtnetlink(inside) as link:
            assert (
                link.find_index("eth0") not in link.read_default_routes()
            )  # its peer is elsewhere
    finally:
        namespaces.run_command(["ip", "-n", inside, "link", "del", "br9"])
    with cap_links(spare, rate_bps=10**6) as links:
        assert len(links.rates_bps()) == 2


def test_a_cap_that_someone_else_changes_is_told(spare: list[LinkEnd]) -> None:
    with cap_links(spare, rate_bps=10**6) as links:
        links.check(rate_bps=10**6)
        tc(spare[1], "change", "root", "tbf", "rate", "2mbit", "burst", "32k", "limit", "99k")
        message = "v1: was given 1 Mb/s and has 2 Mb/s: someone else changed it"
        with pytest.raises(InputError, match=message):
            links.check(rate_bps=10**6)


def test_an_end_is_changed_by_one_process_at_a_time(spare: list[LinkEnd]) -> None:
    with cap_links(spare[:1], rate_bps=10**6):
        message = f"v0: is being changed by process {os.getpid()}"
        with pytest.raises(InputError, match=message), change_ends(spare):
            pass
    with change_ends(spare):
        pass


PROFILER = """
import itertools, os, sys, time
from weft.host.net.caps import change_ends
from weft.host.net.link_ends import LinkEnd
places = [LinkEnd(*text.split()) for text in sys.argv[1:]]
print("begin", flush=True)
with change_ends(places) as links:
    for n in itertools.count():
        links.cap(percent=5 + n % 90)
        if n == 3:
            print("capped", flush=True)
            if os.fork() == 0:  # a child that holds every descriptor of its parent
                time.sleep(30)
                os._exit(0)
"""


def start_profiler(places: list[LinkEnd]) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", PROFILER, *map(str, places)]
    profiler = subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True)
    assert profiler.stdout is not None
    assert profiler.stdout.readline() == b"begin\n"
    return profiler


def test_a_profiler_killed_at_any_moment_leaves_the_links_as_they_were(bed: Testbed) -> None:
    places = bed.all_ends()
    before = roots(places)
    moments = random.Random(5)
    changed = 0
    for n in range(KILLS):
        profiler = start_profiler(places)
        assert profiler.stdout is not None
        if n % 4 == 0:  # here it is changing them for sure
            assert profiler.stdout.readline() == b"capped\n"
        time.sleep(moments.uniform(0, 0.6))
        profiler.kill()
        profiler.wait()
        changed += roots(places) != before
        time.sleep(0.05)
        wait_restored(places, before)
        profiler.stdout.close()
        with suppress(ProcessLookupError):
            os.killpg(profiler.pid, signal.SIGKILL)  # the child that it may have had
    print(f"{changed} of {KILLS} kills came while links were changed")
    assert changed > 0


def _watchdogs(parent: int) -> list[int]:
    result = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"weft.host.net.caps" in words and str(parent).encode() in words:
            result.append(int(path.parent.name))
    return result


def test_when_the_watchdog_is_killed_as_well_the_next_one_restores(bed: Testbed) -> None:
    places = bed.all_ends()
    before = roots(places)
    profiler = start_profiler(places)
    assert profiler.stdout is not None
    assert profiler.stdout.readline() == b"capped\n"
    (watchdog,) = _watchdogs(profiler.pid)
    os.kill(watchdog, signal.SIGKILL)
    os.killpg(profiler.pid, signal.SIGKILL)
    profiler.wait()
    profiler.stdout.close()
    assert roots(places) != before
    assert caps.restore_leftovers() == 1
    assert roots(places) == before
    assert not is_held(places)


def test_without_its_watchdog_the_process_restores_by_itself(spare: list[LinkEnd]) -> None:
    before = roots(spare)
    with cap_links(spare, rate_bps=10**6):
        (watchdog,) = _watchdogs(os.getpid())
        os.kill(watchdog, signal.SIGKILL)
    assert roots(spare) == before


def test_links_that_are_gone_need_no_restoring(bed: Testbed) -> None:
    inside = bed.namespaces["a"]
    for words in ("add gone type veth peer name peer", "set gone up", "set peer up"):
        namespaces.run_command(["ip", "-n", inside, "link", *words.split()])
    with cap_links([LinkEnd(inside, "gone")], rate_bps=10**6):
        namespaces.run_command(["ip", "-n", inside, "link", "del", "gone"])
    assert not is_held([LinkEnd(inside, "gone")])


def test_batched_changes_are_all_made_and_the_rate_is_told(spare: list[LinkEnd]) -> None:
    """Tens of thousands per second are expected (docs/testbed.md); here only that all are made."""
    count = 20_000
    with Rtnetlink(spare[0].namespace) as link:
        index = link.find_index("v0")
        bucket = TokenBucket(rate_bps=10**6, burst_bytes=32_768, limit_bytes=10**5)
        options = qdisc.pack_bucket(bucket)
        link.request([qdisc.pack_qdisc(index, "tbf", options, handle=0, flags=ADD)], "v0")
        started = time.monotonic()
        link.request(
            [
                qdisc.pack_qdisc(
                    index,
                    "tbf",
                    handle=0,
                    flags=qdisc.CHANGE,
                    options=qdisc.pack_bucket(
                        TokenBucket(rate_bps=8 * (10**6 + n), burst_bytes=32_768, limit_bytes=10**5)
                    ),
                )
                for n in range(count)
            ],
            "v0",
        )
        print(f"{count / (time.monotonic() - started):.0f} changes per second, packed and sent")
        (root,) = qdisc.read_qdiscs(link, index)
        assert qdisc.unpack_bucket(root.options).rate_bps == 8 * (10**6 + count - 1)
        link.request([qdisc.pack_qdisc_deletion(index)], "v0")
