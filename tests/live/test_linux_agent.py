"""Agents of Linux switches: killed, hung, twice; and ports that others have changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from linux_switch import (
    LIMIT_S,
    SEND,
    WIRING,
    agent_pid,
    check_shares,
    driven,
    levels,
    port_to,
    weighted,
)
from needs import need_namespaces
from restored import Root, roots
from traffic import streams

from weft.host.net import link_ends, namespaces
from weft.host.net.caps import cap_links
from weft.host.net.link_ends import LinkEnd
from weft.host.net.qdisc import Qdisc
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed.build import Testbed, testbed
from weft.switches import Failed, Foreign, Tables
from weft.switches.linux import LinuxSwitches, agent, open_testbed


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    need_namespaces()
    with testbed(WIRING) as made:
        yield made


@pytest.fixture
def switches(bed: Testbed, tmp_path: Path) -> Iterator[LinuxSwitches]:
    with driven(bed, tmp_path) as driver:
        yield driver


# ---- Agents -----------------------------------------------------------------------------------


def kill_agent(bed: Testbed) -> int:
    pid = agent_pid(bed)
    os.kill(pid, signal.SIGKILL)
    return pid


def test_an_agent_that_is_killed_changes_nothing_and_is_started_again(
    bed: Testbed, switches: LinuxSwitches
) -> None:
    port, end = port_to(bed, "sink"), bed.ends("sink")[1]
    wanted = weighted(70, 30)
    switches.write({port: wanted})
    with streams(bed, "sink", levels(2)):
        check_shares(end, (70, 30))
        pid = kill_agent(bed)
        check_shares(end, (70, 30))
    assert switches.read([port]) == {port: wanted}
    assert agent_pid(bed) != pid


def test_a_second_agent_of_a_node_is_refused(bed: Testbed, tmp_path: Path) -> None:
    driver = open_testbed(bed, tmp_path, adapters=False)
    try:
        driver.discover()
        argv = [sys.executable, "-m", "weft.switches.linux.agent", "switch"]
        argv += ["--folder", str(tmp_path / "switch"), "--port", "1=port1"]
        second = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert second.returncode == 2
        assert second.stderr.startswith("weft: agent of switch: is in use by process")
    finally:
        driver.close()


def test_a_driver_that_comes_later_uses_the_agent_that_is_there(
    bed: Testbed, switches: LinuxSwitches, tmp_path: Path
) -> None:
    port, wanted = port_to(bed, "sink"), weighted(40, 60)
    switches.write({port: wanted})
    pid = agent_pid(bed)
    later = open_testbed(bed, tmp_path, adapters=False)
    assert later.read([port]) == {port: wanted}
    later.close()
    assert agent_pid(bed) == pid


# ---- What others do to ports ------------------------------------------------------------------


def tc(end: LinkEnd, *words: str) -> None:
    namespaces.run_command(["tc", "-n", str(end.namespace), *words])


def test_drift_is_seen_and_repaired(bed: Testbed, switches: LinuxSwitches) -> None:
    """In place: the root goes on counting. Only where that is gone, it is another one."""
    port, end = port_to(bed, "sink"), bed.ends("sink")[1]
    wanted = weighted(70, 30)
    switches.write({port: wanted})
    passed = 0
    for words in DRIFT:
        sent(bed, "a1", 20)
        passed = root_now(end).count.bytes
        tc(end, *words[:2], "dev", end.interface, *words[2:])
        result = switches.read([port])[port]
        assert isinstance(result, Tables | Foreign)
        assert result != wanted
        print(" ".join(words[:2]), "is read as", result)
        assert switches.write({port: wanted}) == {port: wanted}
        assert switches.read([port]) == {port: wanted}
        is_same = root_now(end).count.bytes >= passed >= 20 * 1200
        assert is_same == (words != GONE)


GONE = ("qdisc", "del", "root")
DRIFT = [
    (
        "class",
        "change",
        "parent",
        "7765:1",
        "classid",
        "7765:11",
        "htb",
        "rate",
        "5mbit",
        "ceil",
        "200mbit",
    ),
    (
        "class",
        "change",
        "parent",
        "7765:1",
        "classid",
        "7765:11",
        "htb",
        "rate",
        "139mbit",
        "ceil",
        "139mbit",
    ),
    ("filter", "del", "parent", "7765:", "prio", "2"),
    ("filter", "del", "parent", "7765:", "prio", "1"),
    (
        "filter",
        "add",
        "parent",
        "7765:",
        "prio",
        "9",
        "protocol",
        "ip",
        "u32",
        "match",
        "ip",
        "tos",
        "0x10",
        "0xff",
        "flowid",
        "7765:12",
    ),
    (
        "filter",
        "add",
        "parent",
        "7765:",
        "prio",
        "7",
        "protocol",
        "all",
        "bpf",
        "bytecode",
        "1,6 0 0 0,",
        "flowid",
        "7765:12",
    ),
    ("class", "add", "parent", "7765:1", "classid", "7765:99", "htb", "rate", "1mbit"),
    GONE,
]


def root_now(end: LinkEnd) -> Qdisc:
    with Rtnetlink(end.namespace) as link:
        return link_ends.read_root(link, end, link.find_index(end.interface))


def sent(bed: Testbed, host: str, packets: int) -> None:
    """So many packets of level 1 have left for the sink."""
    argv = [sys.executable, "-c", SEND, bed.addresses["sink"], str(packets)]
    assert bed.spawn(host, argv).wait(LIMIT_S) == 0
    time.sleep(0.05)


@pytest.fixture
def spare(bed: Testbed) -> Iterator[LinkEnd]:
    """The port to a8, which has its token bucket again afterwards."""
    end = bed.ends("a8")[1]
    saved = link_ends.save(end)
    yield end
    link_ends.restore(saved)


def replaced(end: LinkEnd, *words: str) -> Root:
    """The end's root is someone else's now."""
    tc(end, "qdisc", "replace", "dev", end.interface, "root", *words)
    return roots([end])[0]


BUCKET = ("tbf", "rate", "200mbit", "burst", "100kb", "limit", "400kb")


@pytest.mark.parametrize("handle", ["1:", "5:"])
def test_a_bucket_of_whatever_handle_is_taken_over_and_given_back(
    bed: Testbed, spare: LinkEnd, tmp_path: Path, handle: str
) -> None:
    had = replaced(spare, "handle", handle, *BUCKET)
    port, driver = port_to(bed, "a8"), open_testbed(bed, tmp_path, adapters=False)
    try:
        assert driver.write({port: weighted(50, 50)}) == {port: weighted(50, 50)}
        assert driver.release() == {"switch": ["port8"]}
        assert driver.notes == ()
    finally:
        driver.close()
    assert roots([spare]) == [had]


def test_a_port_that_is_told_what_it_does_already_is_not_taken_over(
    bed: Testbed, spare: LinkEnd, tmp_path: Path
) -> None:
    had = roots([spare])
    port, driver = port_to(bed, "a8"), open_testbed(bed, tmp_path, adapters=False)
    try:
        result = driver.read([port])
        assert isinstance(result[port], Tables)
        assert driver.write(result) == result
        assert driver.release() == {"switch": []}
    finally:
        driver.close()
    assert roots([spare]) == had


def test_a_root_that_the_kernel_does_not_exchange_is_left_as_it_was(
    bed: Testbed, spare: LinkEnd, tmp_path: Path
) -> None:
    replaced(spare, "handle", "7765:", *BUCKET)
    shown = ["tc", "-n", str(spare.namespace), "qdisc", "show", "dev", spare.interface]
    had = namespaces.run_command(shown)
    port, driver = port_to(bed, "a8"), open_testbed(bed, tmp_path, adapters=False)
    try:
        message = driver.write({port: weighted(50, 50)})[port]
        assert isinstance(message, Failed)
        assert "could not be taken over, and has its old root" in message.problem
        assert namespaces.run_command(shown) == had
    finally:
        driver.close()


@pytest.mark.parametrize("handle", ["1:", "5:"])
def test_a_discipline_of_someone_else_is_told_and_left_alone(
    bed: Testbed, spare: LinkEnd, tmp_path: Path, handle: str
) -> None:
    """Before a port is taken over, and after it: also by a release, with and without its agent."""
    port = port_to(bed, "a8")
    for takes_over in (False, True):
        driver = open_testbed(bed, tmp_path, adapters=False)
        try:
            if takes_over:
                tc(spare, "qdisc", "del", "dev", spare.interface, "root")
                tc(spare, "qdisc", "add", "dev", spare.interface, "root", *BUCKET)
                assert driver.write({port: weighted(50, 50)}) == {port: weighted(50, 50)}
                tc(spare, "qdisc", "del", "dev", spare.interface, "root")
            theirs = replaced(spare, "handle", handle, "htb")
            tc(
                spare,
                "class",
                "add",
                "dev",
                spare.interface,
                "parent",
                handle,
                "classid",
                f"{handle}1",
                "htb",
                "rate",
                "200mbit",
            )
            assert driver.read([port]) == {port: Foreign(f"htb {handle}")}
            message = driver.write({port: weighted(50, 50)})[port]
            assert isinstance(message, Failed)
            assert f"has htb {handle}, which weft could not restore" in message.problem
            assert driver.release() == {"switch": []}
            left = (f"switch port8 has htb {handle}, not weft's",) if takes_over else ()
            assert driver.notes == left
            assert roots([spare]) == [theirs]
        finally:
            driver.close()
    assert not tmp_path.exists()


def test_an_interface_with_the_default_route_is_refused(
    bed: Testbed, switches: LinuxSwitches
) -> None:
    port, end = port_to(bed, "a7"), bed.ends("a7")[1]
    route = ["default", "dev", end.interface]
    namespaces.run_command(["ip", "-n", str(end.namespace), "route", "add", *route])
    try:
        for message in (
            switches.abilities([port])[port],
            switches.write({port: weighted(50, 50)})[port],
        ):
            assert isinstance(message, Failed)
            assert "carries the default route" in message.problem
    finally:
        namespaces.run_command(["ip", "-n", str(end.namespace), "route", "del", *route])


def test_ports_are_given_back_with_and_without_their_agent(
    bed: Testbed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = roots(bed.all_ends())
    names = [port_to(bed, host) for host in ("a1", "sink")]
    for kills in (False, True):
        driver = open_testbed(bed, tmp_path, adapters=False)
        try:
            wanted = dict.fromkeys(names, weighted(60, 40))
            assert driver.write(wanted) == wanted
            assert roots(bed.all_ends()) != before
            if kills:
                kill_agent(bed)
            assert agent.main(["switch", "--folder", str(tmp_path / "switch"), "--release"]) == 0
            assert capsys.readouterr().out == "switch: released port1, port9\n"
            assert roots(bed.all_ends()) == before
        finally:
            driver.close()
    assert not tmp_path.exists()


def test_a_capped_port_is_not_taken_over(bed: Testbed, switches: LinuxSwitches) -> None:
    port, end = port_to(bed, "a6"), bed.ends("a6")[1]
    with cap_links([end], percent=50):
        message = switches.write({port: Tables(queue_of=(0,) * 16, weights=(500,) * 16)})[port]
        assert isinstance(message, Failed)
        assert "is being changed by process" in message.problem
