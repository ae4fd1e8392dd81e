"""Caps on what an interface receives, and ends that are put back from another namespace."""

from __future__ import annotations

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
from restored import is_held, roots
from traffic import RATE_BPS, streams, when_full

from weft.errors import InputError
from weft.host.net import caps, namespaces, qdisc
from weft.host.net.caps import cap_links, change_ends
from weft.host.net.link_ends import LinkEnd
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import INTERFACE, Wiring

KILLS = 8
RESTORED_S = 15

CAPPING = """
import itertools, sys
from weft.host.net.caps import change_ends
from weft.host.net.link_ends import LinkEnd
places = [LinkEnd(None, sys.argv[1]), LinkEnd(None, sys.argv[1], receiving=True)]
print("begin", flush=True)
with change_ends(places) as links:
    for n in itertools.count():
        links.cap(rate_bps=10e6 + 1e5 * (n % 90))
        if n == 3:
            print("capped", flush=True)
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    need_namespaces()
    with testbed(Wiring(hosts=("a", "b"), rate_bps=RATE_BPS)) as made:
        yield made


def received(bed: Testbed, host: str) -> LinkEnd:
    return LinkEnd(bed.namespaces[host], INTERFACE, receiving=True)


def looks(bed: Testbed, host: str) -> str:
    """Everything that tc and ip show of a host."""
    inside = bed.namespaces[host]
    shown = [namespaces.run_command(["ip", "-n", inside, "-br", "link"])]
    shown.append(namespaces.run_command(["tc", "-n", inside, "qdisc"]))
    return "".join(shown)


def delivered_bps(end: LinkEnd, seconds: float) -> float:
    """What the capped interface hands on, by the counter of the device in between."""

    def count() -> int:
        with Rtnetlink(end.namespace) as link:
            device = link.find_index(f"weft-in-{link.find_index(end.interface)}")
            return next(q.count.bytes for q in qdisc.read_qdiscs(link, device) if q.kind == "tbf")

    started, before = time.monotonic(), count()
    time.sleep(seconds)
    return 8 * (count() - before) / (time.monotonic() - started)


def test_what_comes_in_is_capped_though_the_sender_is_not(bed: Testbed) -> None:
    end = received(bed, "b")
    with streams(bed, "b", {"a": 0}), change_ends([end]) as links:
        for rate in (10e6, 4e6):
            links.cap(rate_bps=rate)
            assert links.rates_bps() == {end: rate}

            def look(rate: float = rate) -> tuple[float, float]:
                result = delivered_bps(end, 1.5)
                return result, result / rate

            assert when_full(look) == pytest.approx(rate, rel=0.05)


def test_afterwards_nothing_of_it_is_left(bed: Testbed) -> None:
    before = looks(bed, "a")
    with cap_links([received(bed, "a")], rate_bps=30e6):
        during = looks(bed, "a")
    assert "ifb" not in before
    assert "qdisc ingress" in during
    assert looks(bed, "a") == before
    assert not is_held([received(bed, "a")])


def test_rules_of_others_for_what_comes_in_are_refused_and_stay(bed: Testbed) -> None:
    inside = bed.namespaces["a"]
    namespaces.run_command(["tc", "-n", inside, "qdisc", "add", "dev", INTERFACE, "clsact"])
    before = looks(bed, "a")
    message = "eth0, receiving: has rules for what it receives, which weft could not restore"
    with pytest.raises(InputError, match=message), cap_links([received(bed, "a")], rate_bps=1e6):
        pass
    assert looks(bed, "a") == before
    namespaces.run_command(["tc", "-n", inside, "qdisc", "del", "dev", INTERFACE, "clsact"])


def start_capping(bed: Testbed) -> subprocess.Popen[bytes]:
    """Caps its own eth0 from inside a's namespace, both directions."""
    argv = [sys.executable, "-c", CAPPING, INTERFACE]
    return bed.spawn("a", argv, stdout=subprocess.PIPE)


def wait_until(process: subprocess.Popen[bytes], word: bytes) -> None:
    assert process.stdout is not None
    while (line := process.stdout.readline()) != word + b"\n":
        assert line, f"ended with status {process.wait()}"


def test_killed_at_any_moment_nothing_of_it_is_left(bed: Testbed) -> None:
    before = looks(bed, "a")
    moments = random.Random(6)
    for n in range(KILLS):
        process = start_capping(bed)
        wait_until(process, b"capped" if n % 2 else b"begin")
        time.sleep(moments.uniform(0, 0.5))
        process.kill()
        process.communicate()
        deadline = time.monotonic() + RESTORED_S
        while looks(bed, "a") != before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert looks(bed, "a") == before


def watchdogs(parent: int) -> list[int]:
    result = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if b"weft.host.net.caps" in words and str(parent).encode() in words:
                result.append(int(path.parent.name))
    return result


def abandon(process: subprocess.Popen[bytes]) -> None:
    """Its caps are there, and whoever could have put back what was is dead."""
    wait_until(process, b"capped")
    for pid in watchdogs(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.communicate()


def test_when_all_who_knew_are_killed_another_namespace_s_next_command_restores(
    bed: Testbed,
) -> None:
    before = looks(bed, "a")
    abandon(start_capping(bed))
    assert looks(bed, "a") != before
    assert caps.restore_leftovers() >= 1
    assert looks(bed, "a") == before
    abandon(start_capping(bed))
    with change_ends([LinkEnd(bed.namespaces["b"], INTERFACE)]):
        assert looks(bed, "a") == before


def test_a_namespace_without_a_name_is_found_by_a_process_inside() -> None:
    need_namespaces()
    keeper = subprocess.Popen(["unshare", "--net", "sleep", "60"])
    while os.stat(f"/proc/{keeper.pid}/ns/net") == os.stat("/proc/self/ns/net"):
        time.sleep(0.01)
    place = f"/proc/{keeper.pid}/ns/net"
    namespaces.run_command(["nsenter", f"--net={place}", "ip", "link", "set", "lo", "up"])
    before = roots([LinkEnd(place, "lo")])
    argv = ["nsenter", f"--net={place}", sys.executable, "-c", CAPPING, "lo"]
    abandon(subprocess.Popen(argv, stdout=subprocess.PIPE))
    assert roots([LinkEnd(place, "lo")]) != before
    caps.restore_leftovers()
    assert roots([LinkEnd(place, "lo")]) == before
    keeper.kill()
    keeper.wait()


def test_an_end_in_use_is_known_whatever_its_namespace_is_called(bed: Testbed) -> None:
    process = start_capping(bed)
    wait_until(process, b"capped")
    message = f"is being changed by process {process.pid}"
    with pytest.raises(InputError, match=message), change_ends([received(bed, "a")]):
        pass
    # Its like on another host is another end.
    with change_ends([received(bed, "b")]):
        pass
    process.kill()
    process.communicate()
