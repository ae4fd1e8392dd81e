"""Links of a small testbed, as `ip`, `tc` and `bridge` show them: the kernel is the oracle.

Short enough for every run as root; tests/live has traffic, kills and other shapes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from weft.errors import InputError
from weft.host.net import caps, htb, ingress, link_ends, namespaces, qdisc
from weft.host.net.caps import cap_links, change_ends
from weft.host.net.htb import Queue, change_queues, open_counters, read_queues, set_queues
from weft.host.net.link_ends import LinkEnd
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed, find_mac, testbed
from weft.host.testbed.wiring import Wiring
from weft.switches import Failed, Foreign, Lane, Tables
from weft.switches.linux.htb_ports import Ports, release_ports, restore_ports
from weft.switches.linux.htb_tables import QUEUES, build_single_queue

RATE_BPS, UPLINK_BPS = 80_000_000, 40_000_000
WIRING = Wiring(
    hosts=("a", "b"),
    rate_bps=RATE_BPS,
    switches="two-hops",
    uplink_bps=UPLINK_BPS,
    limit_bytes=300_000,
    nic_limit_bytes=200_000,
    mtu_bytes=1400,
    congestion="reno",
)
NAME = f"unit-{os.getpid()}"


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    reason = namespaces.find_obstacle()
    if reason is not None:
        pytest.skip(f"netns: {reason}")
    with testbed(WIRING) as made:
        yield made
    assert not any((namespaces.DIRECTORY / name).exists() for name in made.namespaces.values())
    assert not any((namespaces.FILES / name).exists() for name in made.namespaces.values())


@pytest.fixture
def journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(caps, "JOURNALS", tmp_path / "weft" / "caps")
    return caps.JOURNALS


def shown(program: str, bed: Testbed, node: str, *words: str) -> Any:
    return json.loads(
        namespaces.run_command([program, "-j", "-n", bed.namespace(node), *words]) or "[]"
    )


def root_of(end: LinkEnd) -> tuple[str, int, bytes]:
    with Rtnetlink(end.namespace) as link:
        root = link_ends.read_root(link, end, link.find_index(end.interface))
    return root.kind, root.handle, root.options


# ---- The testbed ------------------------------------------------------------------------------


def test_every_end_of_a_cable_has_its_rate_burst_and_limit(bed: Testbed) -> None:
    for cable in bed.layout.cables:
        for plug in cable.ends:
            bucket = link_ends.read_bucket(bed.end(plug))
            assert bucket is not None
            is_uplink = {end.node for end in cable.ends} == {"switch1", "switch2"}
            assert bucket.rate_bps == (UPLINK_BPS if is_uplink else RATE_BPS)
            assert bucket.limit_bytes == (200_000 if plug.node in WIRING.hosts else 300_000)
            assert bucket.burst_bytes == pytest.approx(
                max(0.004 * bucket.rate_bps / 8, 32768), rel=1e-3
            )


def test_interfaces_have_their_addresses_and_sizes_and_know_each_other(bed: Testbed) -> None:
    for number, host in enumerate(WIRING.hosts, 1):
        (eth0,) = [row for row in shown("ip", bed, host, "addr") if row["ifname"] == "eth0"]
        assert (eth0["operstate"], eth0["mtu"], eth0["address"]) == (
            "UP",
            1400,
            find_mac(bed, host),
        )
        assert eth0["address"] == f"02:77:65:66:00:0{number}"
        assert [(a["local"], a["prefixlen"]) for a in eth0["addr_info"]] == [
            (f"10.77.0.{number}", 24)
        ]
        (route,) = shown("ip", bed, host, "route")
        assert (route["dst"], route["prefsrc"]) == ("10.77.0.0/24", f"10.77.0.{number}")
        assert "congctl reno" in namespaces.run_command(["ip", "-n", bed.namespace(host), "route"])
        (other,) = [name for name in WIRING.hosts if name != host]
        (neighbour,) = shown("ip", bed, host, "neigh")
        assert (neighbour["dst"], neighbour["lladdr"]) == (
            bed.addresses[other],
            find_mac(bed, other),
        )
        assert neighbour["state"] == ["PERMANENT"]
        details = shown("ip", bed, host, "-d", "link", "show", "eth0")[0]
        assert details["gso_max_size"] == 32_000


def test_switches_forward_by_fixed_tables_and_do_not_flood_their_cable(bed: Testbed) -> None:
    for switch in bed.layout.switches:
        rows = shown("bridge", bed, switch, "fdb")
        static = {r["mac"]: r["ifname"] for r in rows if r.get("state") == "static"}
        assert static == {find_mac(bed, h): bed.layout.routes[switch][h] for h in WIRING.hosts}
        ports = shown("ip", bed, switch, "-d", "link", "show", "master", "br0")
        flooding = {row["ifname"]: row["linkinfo"]["info_slave_data"]["flood"] for row in ports}
        access = {bed.ends(host)[1].interface for host in WIRING.hosts}
        (uplink,) = [
            plug.interface
            for cable in bed.layout.cables
            if cable.between_switches
            for plug in cable.ends
            if plug.node == switch
        ]
        assert flooding[uplink] is False
        assert any(flooding[name] for name in access & flooding.keys())


def test_hosts_know_each_other_by_name_and_a_datagram_is_counted_at_the_port(bed: Testbed) -> None:
    lookup = "import socket; print(socket.gethostname(), socket.gethostbyname('b'))"
    process = bed.spawn("a", [sys.executable, "-c", lookup], stdout=subprocess.PIPE)
    assert process.communicate(timeout=30)[0].decode().split() == ["a", bed.addresses["b"]]
    before = bed.read_port_counters("b")
    with ExitStack() as opened:
        ends = [
            opened.enter_context(
                namespaces.run_inside(
                    bed.namespaces[host], lambda: socket.socket(type=socket.SOCK_DGRAM)
                )
            )
            for host in WIRING.hosts
        ]
        ends[1].bind((bed.addresses["b"], 7000))
        ends[1].settimeout(5)
        ends[0].sendto(bytes(1000), (bed.addresses["b"], 7000))
        assert ends[1].recvfrom(2000)[1][0] == bed.addresses["a"]
    after = bed.read_port_counters("b")
    assert (after.packets - before.packets, after.bytes - before.bytes) == (1, 1000 + 8 + 20 + 14)
    assert after.dropped == before.dropped


@pytest.mark.usefixtures("bed")
def test_a_namespace_ends_with_all_that_runs_in_it() -> None:
    name = namespaces.build_name("brief")
    namespaces.create(name, "127.0.0.1 here\n")
    assert (namespaces.FILES / name / "hosts").read_text() == "127.0.0.1 here\n"
    with namespaces.spawn(name, ["sleep", "60"]) as process:
        identity = namespaces.read_identity(name)
        assert identity != namespaces.read_identity(None)
        assert namespaces.find_by_identity(identity) == name
        assert namespaces.run_inside(name, lambda: namespaces.read_identity(None)) == identity
        namespaces.remove(name)
        assert process.wait(10) == -9
    assert not (namespaces.DIRECTORY / name).exists()
    assert not (namespaces.FILES / name).exists()
    with pytest.raises(InputError, match="no such network namespace"):
        namespaces.run_inside(name, lambda: None)


# ---- Caps -------------------------------------------------------------------------------------


def test_caps_are_what_was_asked_for_and_what_was_there_comes_back(
    bed: Testbed, journals: Path
) -> None:
    ends = bed.all_ends()
    before = [root_of(end) for end in ends]
    with change_ends(ends) as changed:
        assert len([*journals.glob("weft-*.json")]) == 1
        for percent in (50, 10):
            changed.cap(percent=percent)
            wanted = [bed.layout.cables[n // 2].rate_bps * percent // 100 for n in range(len(ends))]
            assert [*changed.rates_bps().values()] == wanted
            changed.check(percent=percent)
        with pytest.raises(InputError, match="was given 40 Mb/s and has 8 Mb/s: someone else"):
            changed.check(percent=50)
        changed.cap(rate_bps=5_000_000)
        assert {*changed.rates_bps().values()} == {5_000_000}
    assert [root_of(end) for end in ends] == before
    assert not journals.exists()


def test_an_end_that_is_capped_is_refused_to_others_and_a_default_route_to_all(
    bed: Testbed, journals: Path
) -> None:
    near, far = bed.ends("a")
    with cap_links([near], rate_bps=1_000_000):
        with pytest.raises(InputError, match=f"is being changed by process {os.getpid()}"):
            change_ends([near]).__enter__()
        with cap_links([far], rate_bps=2_000_000) as other:
            assert other.rates_bps() == {far: 2_000_000}
    inside = bed.namespace("a")
    namespaces.run_command(["ip", "-n", inside, "route", "add", "default", "dev", "eth0"])
    try:
        with pytest.raises(InputError, match="carries the default route"):
            link_ends.save(near)
        assert link_ends.save(near, allow_default_route=True).bucket is not None
    finally:
        namespaces.run_command(["ip", "-n", inside, "route", "del", "default"])
    assert not [*journals.glob("weft-*.json")]


def test_an_end_of_our_namespace_is_found_from_another_one(bed: Testbed) -> None:
    near, _ = bed.ends("a")
    saved = link_ends.save(near)
    ours = replace(saved, end=LinkEnd(None, "eth0"))  # as the process inside saved it
    assert link_ends.find_reachable(saved) == saved
    result = link_ends.find_reachable(ours)
    assert result is not None
    assert (result.end.namespace, result.end.interface) == (near.namespace, "eth0")
    for netns in (0, namespaces.read_identity(None)):
        assert link_ends.find_reachable(replace(ours, netns=netns)) == replace(ours, netns=netns)
    assert link_ends.find_reachable(replace(ours, netns=1)) is None
    assert link_ends.exists(saved)
    assert not link_ends.exists(replace(saved, index=saved.index + 1))


def test_what_an_interface_receives_is_capped_by_a_device_that_goes_again(
    bed: Testbed, journals: Path
) -> None:
    end = LinkEnd(bed.namespace("a"), "eth0", receiving=True)
    names = {row["ifname"] for row in shown("ip", bed, "a", "link")}
    disciplines = namespaces.run_command(["tc", "-n", bed.namespace("a"), "qdisc"])
    with change_ends([end]) as changed:
        assert ingress.read_bucket(end) is None
        for rate_bps in (3_000_000, 6_000_000):
            changed.cap(rate_bps=rate_bps)
            assert changed.rates_bps() == {end: rate_bps}
        (device,) = {row["ifname"] for row in shown("ip", bed, "a", "link")} - names
        assert device.startswith("weft-in-")
        rules = namespaces.run_command(
            ["tc", "-n", bed.namespace("a"), "filter", "show", "dev", "eth0", "ingress"]
        )
        assert f"Redirect to device {device}" in rules
        with pytest.raises(InputError, match="has rules for what it receives"):
            ingress.save(end)
    assert {row["ifname"] for row in shown("ip", bed, "a", "link")} == names
    assert namespaces.run_command(["tc", "-n", bed.namespace("a"), "qdisc"]) == disciplines
    assert journals.parent.exists() is False


# ---- Queues -----------------------------------------------------------------------------------


def test_queues_are_read_back_as_set_and_the_port_is_as_before(
    bed: Testbed, journals: Path
) -> None:
    end = bed.ends("b")[1]
    before = root_of(end)
    assert read_queues(end) == []
    queues = [
        Queue(weight=5, dscps=(0, 10)),
        Queue(weight=3, dscps=(20,)),
        Queue(weight=2, dscps=(46,)),
    ]
    with change_ends([end]) as changed:
        (port,) = changed.saved
        set_queues(port, queues)
        result = read_queues(end)
        assert [queue.dscps for queue in result] == [(0, 10), (20,), (46,)]
        assert [queue.rate_bps for queue in result] == [40_000_000, 24_000_000, 16_000_000]
        assert {queue.ceil_bps for queue in result} == {RATE_BPS}
        assert [queue.share for queue in result] == pytest.approx([0.5, 0.3, 0.2])
        where = [
            "tc",
            "-n",
            bed.namespace(find_node(bed, end)),
            "class",
            "show",
            "dev",
            end.interface,
        ]
        assert "rate 24Mbit ceil 80Mbit" in namespaces.run_command(where)
        changed_weights = [replace(q, weight=w) for q, w in zip(queues, (1, 1, 2), strict=True)]
        change_queues(port, changed_weights)
        assert [queue.share for queue in read_queues(end)] == pytest.approx([0.25, 0.25, 0.5])
        with pytest.raises(InputError, match="has 3 queues, not 2"):
            change_queues(port, queues[:2])
        with open_counters([port]) as read:
            assert read() == [[0, 0, 0]]
        change_queues(port, [replace(queues[0], is_capped=True), *queues[1:]])
        assert [q.ceil_bps for q in read_queues(end)] == [40_000_000, RATE_BPS, RATE_BPS]
        strict = [queues[0], *(replace(q, priority=n) for n, q in enumerate(queues[1:], 3))]
        change_queues(port, strict)
        assert [q.rate_bps for q in read_queues(end)] == [40_000_000, 8_000, 8_000]
        shown = namespaces.run_command(where)
        assert "prio 3" in shown
        assert "prio 4" in shown
        with pytest.raises(InputError, match="priority 8 is not in 0 to 7"):
            change_queues(port, [replace(queues[0], priority=8), *queues[1:]])
        set_queues(port, queues[:1], rate_bps=8_000_000)
        assert [queue.ceil_bps for queue in read_queues(end)] == [8_000_000]
        with pytest.raises(InputError, match=r"has htb .*, which weft could not restore"):
            link_ends.save(end)
    assert root_of(end) == before
    assert not [*journals.glob("weft-*.json")]


def find_node(bed: Testbed, end: LinkEnd) -> str:
    return next(node for node, name in bed.namespaces.items() if name == end.namespace)


def test_a_port_without_a_bucket_has_no_rate_of_its_own(bed: Testbed) -> None:
    saved = link_ends.save(LinkEnd(bed.namespace("a"), "lo"))
    assert (saved.bucket, saved.kind) == (None, "noqueue")
    with pytest.raises(InputError, match="has no token bucket, so its rate is not known"):
        set_queues(saved, [Queue(weight=1, dscps=(0,))])
    assert htb._find_link_rate(saved, 5) == 5


# ---- Tables -----------------------------------------------------------------------------------


def tables(*weights: int, lane: Lane | None = None) -> Tables:
    padded = (*weights, *[0] * (QUEUES - len(weights)))
    queue_of = (0, *(level % len(weights) for level in range(1, 16)))
    return Tables(queue_of=queue_of, weights=padded, lane=lane)


def test_tables_are_written_changed_in_place_and_given_back(
    bed: Testbed, journals: Path, tmp_path: Path
) -> None:
    end = bed.ends("b")[1]
    before, folder = root_of(end), tmp_path / "agent"
    with Rtnetlink(end.namespace) as link:
        ports = Ports(link, {1: end.interface, 2: "gone"}, folder)
        ability = ports.abilities([1, 2, 3])
        assert getattr(ability[1], "units", None) == RATE_BPS // 1000
        assert ability[2] == Failed("gone: no such interface; plug it in again")
        assert ability[3] == Failed("port 3: is not of this switch; there are 1, 2")
        assert ports.read([1]) == {1: build_single_queue(RATE_BPS)}
        assert ports.write({1: build_single_queue(RATE_BPS)}) == {1: build_single_queue(RATE_BPS)}
        assert root_of(end) == before  # nothing to do
        first = tables(30_000, 20_000, 10_000)
        assert ports.write({1: first}) == ports.read([1]) == {1: first}
        assert (folder / f"{end.interface}.json").exists()
        handle = root_of(end)[1]
        for wanted in (
            tables(10_000, 50_000),
            tables(9_000, 50_000, lane=Lane(queue=1, limit=4000)),
        ):
            assert ports.write({1: wanted}) == ports.read([1]) == {1: wanted}
            assert root_of(end)[1] == handle
        (refused,) = ports.write({1: tables(80_001)}).values()
        assert isinstance(refused, Failed)
        assert "weights sum to 80001 kbit/s, and the link has 80000" in refused.problem
        delete = qdisc.pack_class_deletion(link.find_index(end.interface), handle | 0x1F)
        link.request([delete], "damage")
        assert isinstance(ports.read([1])[1], Foreign)
        assert ports.write({1: first}) == ports.read([1]) == {1: first}
        assert release_ports("b", folder).restored == [end.interface]
        assert root_of(end) == before
        assert not [*folder.glob("*.json")]
        assert ports.read([1]) == {1: build_single_queue(RATE_BPS)}
    assert not [*journals.glob("weft-*.json")]


def test_what_does_not_read_back_is_undone(
    bed: Testbed, journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, folder = bed.ends("b")[1], tmp_path / "agent"
    before, first, second = root_of(end), tables(30_000, 20_000), tables(5_000, 6_000, 7_000)
    verify = Ports._verify

    def refuse_second(ports: Ports, port: Any, wanted: Tables, link_bps: int) -> None:
        verify(ports, port, wanted, link_bps)
        if wanted == second:
            raise InputError(str(port.end), "reads back as something else")

    monkeypatch.setattr(Ports, "_verify", refuse_second)
    with Rtnetlink(end.namespace) as link:
        ports = Ports(link, {1: end.interface}, folder)
        (failed,) = ports.write({1: second}).values()
        assert isinstance(failed, Failed)
        assert "could not be taken over, and has its old root" in failed.problem
        assert root_of(end) == before
        assert not [*folder.glob("*.json")]
        assert ports.write({1: first}) == {1: first}
        (failed,) = ports.write({1: second}).values()
        assert isinstance(failed, Failed)
        assert "could not be changed, and keeps its old tables" in failed.problem
        assert ports.read([1]) == {1: first}
        assert restore_ports(folder).restored == [end.interface]
    assert root_of(end) == before
    assert not [*journals.glob("weft-*.json")]


def test_a_root_of_someone_else_is_neither_written_nor_restored(
    bed: Testbed, journals: Path, tmp_path: Path
) -> None:
    end = bed.ends("a")[1]
    before = root_of(end)
    tc = ["tc", "-n", str(end.namespace), "qdisc", "replace", "dev", end.interface, "root"]
    with change_ends([end]), Rtnetlink(end.namespace) as link:
        ports = Ports(link, {1: end.interface}, tmp_path, rates_bps={1: 50_000_000})
        namespaces.run_command([*tc, "handle", "7:", "pfifo"])
        assert ports.read([1]) == {1: Foreign("pfifo 7:")}
        (refused,) = ports.write({1: tables(1000)}).values()
        assert isinstance(refused, Failed)
        assert "has pfifo 7:, which weft could not restore" in refused.problem
    assert root_of(end) == before
    with Rtnetlink(end.namespace) as link:
        ports = Ports(link, {1: end.interface}, tmp_path, rates_bps={1: 50_000_000})
        assert getattr(ports.abilities([1])[1], "units", None) == 50_000
        ports.write({1: tables(1000)})
        namespaces.run_command([*tc, "handle", "7:", "pfifo"])
        released = restore_ports(tmp_path)
        assert released.left_alone == [f"{end.interface} has pfifo 7:, not weft's"]
        assert root_of(end)[:2] == ("pfifo", 7 << 16)
    assert not [*journals.glob("weft-*.json")]


def test_a_class_that_tc_has_changed_is_told_by_its_rate_and_priority(
    bed: Testbed, journals: Path, tmp_path: Path
) -> None:
    end, target = bed.ends("b")[1], tables(10_000, 1_000, 14_888)
    words = f"tc -n {end.namespace} class change dev {end.interface} parent 7765:1 classid 7765:12"
    with Rtnetlink(end.namespace) as link:
        ports = Ports(link, {1: end.interface}, tmp_path)
        assert ports.write({1: target}) == {1: target}
        namespaces.run_command([*words.split(), "htb", "rate", "20Mbit", "ceil", "50Mbit"])
        (content,) = ports.read([1]).values()
        assert isinstance(content, Foreign)
        assert content.list_changes(target) == [
            "queue 2: rate is 20 Mb/s, should be 14.888 Mb/s; priority is 0, should be 1"
        ]
        assert ports.write({1: target}) == ports.read([1]) == {1: target}
    assert restore_ports(tmp_path).restored == [end.interface]
    assert not [*journals.glob("weft-*.json")]


# ---- Testbeds that stay -----------------------------------------------------------------------


@pytest.fixture
def states(bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    assert bed.namespaces
    monkeypatch.setattr(persistent, "STATES", tmp_path / "weft" / "testbeds")
    yield persistent.STATES
    persistent.remove_testbed(NAME)


PAIR = Wiring(hosts=("h1",), rate_bps=10_000_000)


def test_a_testbed_is_built_once_found_again_and_removed(states: Path, journals: Path) -> None:
    assert persistent.read_status(NAME) is None
    with pytest.raises(InputError, match=f"testbed {NAME}: is not up"):
        persistent.find_testbed(NAME)
    made, is_new = persistent.build_testbed(NAME, PAIR)
    assert is_new
    assert persistent.build_testbed(NAME, PAIR) == (made, False)
    assert persistent.list_testbeds() == [NAME]
    with pytest.raises(InputError, match="is up with rate_bps 10000000, not 20000000"):
        persistent.build_testbed(NAME, Wiring(hosts=("h1",), rate_bps=20_000_000))
    status = persistent.read_status(NAME)
    assert status is not None
    assert status.problems == ()
    assert [(port.node, port.interface, port.peer) for port in status.ports] == [
        ("h1", "eth0", "switch port1"),
        ("switch", "port1", "h1 eth0"),
    ]
    assert {(port.discipline, port.rate_bps) for port in status.ports} == {("tbf", 10_000_000)}
    with persistent.use_testbed(NAME, "test") as used:
        assert used == made
        with pytest.raises(InputError, match=rf"is in use by process {os.getpid()} \(weft test\)"):
            persistent.remove_testbed(NAME, wait_s=0)
        with cap_links([made.ends("h1")[1]], rate_bps=1_000_000):
            capped = persistent.read_status(NAME)
            assert capped is not None
            assert capped.problems == ("switch port1 is at 1000000 b/s, not 10000000",)
    assert {*persistent.remove_testbed(NAME)} == {*made.namespaces.values()}
    assert persistent.remove_testbed(NAME) == []
    assert not any((namespaces.DIRECTORY / name).exists() for name in made.namespaces.values())
    assert not states.exists()
    assert not [*journals.glob("weft-*.json")]


def test_a_testbed_that_has_lost_a_part_says_which(states: Path, journals: Path) -> None:
    made, _ = persistent.build_testbed(NAME, PAIR)
    namespaces.run_command(["ip", "-n", made.namespace("switch"), "link", "del", "port1"])
    with pytest.raises(InputError, match="has lost the cable h1 eth0 - switch port1; run `weft"):
        persistent.find_testbed(NAME)
    assert persistent.find_damaged_testbed(NAME) == made
    with (namespaces.DIRECTORY / made.namespace("h1")).open():  # its number is not used again
        namespaces.remove(made.namespace("h1"))
        with pytest.raises(InputError, match="has lost h1"):
            persistent.build_testbed(NAME, PAIR)
        namespaces.create(made.namespace("h1"))  # of someone else
        assert persistent.remove_testbed(NAME) == [made.namespace("switch")]
    assert (namespaces.DIRECTORY / made.namespace("h1")).exists()
    with pytest.raises(InputError, match="exists already, and no testbed created it"):
        persistent.build_testbed(NAME, PAIR)
    assert not (states / f"{NAME}.json").exists()
    namespaces.remove(made.namespace("h1"))
    assert not [*journals.glob("weft-*.json")]


def test_after_a_restart_a_testbed_is_lost_and_what_it_left_is_removed(
    states: Path, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = persistent.build_testbed(NAME, PAIR)
    boot = persistent._read_boot_id()
    monkeypatch.setattr(persistent, "_read_boot_id", lambda: "another")
    with pytest.raises(InputError, match="was lost when the machine restarted"):
        persistent.find_testbed(NAME)
    with pytest.raises(InputError, match="was lost when the machine restarted"):
        persistent.find_damaged_testbed(NAME)
    assert persistent.build_testbed(NAME, PAIR) == (made, True)  # all of it again
    monkeypatch.setattr(persistent, "_read_boot_id", lambda: boot)
    # A file that nothing is mounted on is all that a restart leaves of a namespace.
    namespaces.remove(made.namespace("h1"))
    left = namespaces.DIRECTORY / made.namespace("h1")
    left.touch()
    assert persistent.remove_testbed(NAME) == [str(name) for name in made.namespaces.values()]
    assert not left.exists()
    assert not states.exists()
    assert not [*journals.glob("weft-*.json")]


@pytest.mark.usefixtures("states")
def test_namespaces_of_dead_processes_go_when_a_testbed_does() -> None:
    dead = f"weft-1-1-{NAME}"
    namespaces.create(dead, "127.0.0.1 here\n")
    persistent.remove_testbed(NAME)
    assert not (namespaces.DIRECTORY / dead).exists()
    assert not (namespaces.FILES / dead).exists()


def test_a_testbed_that_was_not_finished_is_removed_and_built_again(
    states: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("weft.host.testbed.build._wait_until_ready", stop)
        patched.setattr(persistent, "_remove", lambda _: [])
        with pytest.raises(KeyboardInterrupt):
            persistent.build_testbed(NAME, PAIR)
    state = persistent.read_state(NAME)
    assert state is not None
    assert (state.complete, state.doing) == (False, "wait until all links pass packets")
    with pytest.raises(InputError, match="was not finished, at: wait until all links"):
        persistent.find_testbed(NAME)
    assert persistent.build_testbed(NAME, PAIR)[1]
    state = persistent.read_state(NAME)
    assert state is not None
    assert (state.complete, state.doing) == (True, "")
    assert {*state.inodes} == {"switch", "h1"}
    assert all(
        namespaces.read_identity(state.bed.namespaces[n]) == i for n, i in state.inodes.items()
    )
    assert (states / f"{NAME}.json").exists()
