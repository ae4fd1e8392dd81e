"""Linux switches on testbeds of several shapes: discovered, on two hops, hung, without a cable."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from linux_switch import RATE_BPS, agent_pid, check_shares, weighted
from needs import need_namespaces
from traffic import streams

from weft.fabric import path
from weft.host.net import namespaces
from weft.host.net.link_ends import LinkEnd
from weft.host.testbed import persistent
from weft.host.testbed.build import testbed
from weft.host.testbed.wiring import SHAPES, Wiring
from weft.switches import Failed, PortName, Tables
from weft.switches.linux import open_persistent_testbed, open_testbed
from weft.switches.linux.driver import Timeouts

TWO_HOPS = Wiring(hosts=("h1", "h2", "h3", "h4"), rate_bps=RATE_BPS, switches="two-hops")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_testbed_is_discovered_with_the_routes_that_its_bridges_have(
    shape: str, tmp_path: Path
) -> None:
    need_namespaces()
    hosts = tuple(f"h{n}" for n in range(1, 7))
    wiring = Wiring(hosts=hosts, rate_bps=RATE_BPS, switches=shape, uplink_bps=2 * RATE_BPS)  # type: ignore[arg-type]
    with testbed(wiring) as bed:
        driver = open_testbed(bed, tmp_path, adapters=False)
        try:
            fabric = driver.discover()
            assert driver.notes == ()
            assert driver.addresses == {bed.addresses[host]: host for host in hosts}
            assert tuple(fabric.nodes[n].name for n in fabric.hosts) == hosts
            assert fabric.routes is not None
            for row, switch in enumerate(bed.layout.switches):
                for column, host in enumerate(hosts):
                    (port,) = fabric.routes.ports(row, column)
                    assert f"port{port}" == bed.layout.routes[switch][host]
            forget = ["bridge", "-n", bed.namespace(bed.layout.switches[0]), "fdb", "del"]
            at = bed.layout.routes[bed.layout.switches[0]]["h1"]
            namespaces.run_command([*forget, "02:77:65:66:00:01", "dev", at, "master"])
            assert driver.discover() == fabric
            (note,) = driver.notes
            message = "routes to h1 are those of the testbed's wiring"
            assert note == f"{bed.layout.switches[0]}: {message}"
        finally:
            driver.close()


def test_two_hops_are_both_shared_by_the_weights(tmp_path: Path) -> None:
    need_namespaces()
    with testbed(TWO_HOPS) as bed:
        driver = open_testbed(bed, tmp_path)
        try:
            fabric = driver.discover()
            hops = path(fabric, fabric.index("h1"), fabric.index("h4"))
            way = [PortName(fabric.nodes[node].name, port) for node, port in hops]
            assert [port.node for port in way] == ["h1", "switch1", "switch2"]
            wanted = dict.fromkeys(way, weighted(65, 35))
            assert driver.write(wanted) == wanted
            uplink = LinkEnd(bed.namespace("switch1"), f"port{way[1].port}")
            with streams(bed, "h4", {"h1": 1, "h2": 2}):
                check_shares(uplink, (65, 35))
                check_shares(bed.ends("h4")[1], (65, 35))
        finally:
            driver.close()


def test_agents_that_hang_fail_their_ports_alone_and_hold_up_nobody_twice(tmp_path: Path) -> None:
    need_namespaces()
    answer_s = 3.0
    with testbed(TWO_HOPS) as bed:
        driver = open_testbed(bed, tmp_path, timeouts=Timeouts(ports_s=answer_s, port_s=0))
        stopped, other = [PortName("switch1", 1), PortName("h1", 1)], PortName("h2", 1)
        try:
            driver.read([*stopped, other])
            pids = [agent_pid(bed, port.node) for port in stopped]
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            for message, least_s, most_s in (
                ("does not answer: not in 3 s", answer_s, 5 * answer_s),
                ("does not answer: it still owes an answer", 0, answer_s),
            ):
                begun = time.monotonic()
                result = driver.read([*stopped, other])
                assert least_s <= time.monotonic() - begun < most_s
                assert all(message in str(result[port]) for port in stopped)
                assert isinstance(result[other], Tables)
            assert len(driver.discover().hosts) == 4
            assert [note.split(":")[0] for note in driver.notes] == [
                "agent of switch1",
                "agent of h1",
                "switch1",
            ]
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            time.sleep(0.5)
            assert all(isinstance(one, Tables) for one in driver.read(stopped).values())
        finally:
            driver.close()


def test_a_testbed_that_has_lost_a_cable_is_driven_without_it() -> None:
    need_namespaces()
    name = f"cut{os.getpid()}"
    bed, _ = persistent.build_testbed(name, Wiring(hosts=("h1", "h2"), rate_bps=RATE_BPS))
    try:
        end = bed.ends("h1")[1]
        namespaces.run_command(["ip", "-n", str(end.namespace), "link", "del", end.interface])
        driver = open_persistent_testbed(name, adapters=False)
        try:
            assert len(driver.discover().hosts) == 2
            lost, other = PortName("switch", 1), PortName("switch", 2)
            written = driver.write({lost: weighted(50, 50), other: weighted(50, 50)})
            assert written[other] == weighted(50, 50)
            assert isinstance(written[lost], Failed)
            assert "port1: no such interface" in written[lost].problem
            assert driver.release() == {"switch": ["port2"]}
        finally:
            driver.close()
        assert not (persistent.AGENTS / name).exists()
    finally:
        persistent.remove_testbed(name)


def test_a_port_that_was_deleted_is_not_listed_as_released() -> None:
    need_namespaces(short=True)
    name = f"deleted{os.getpid()}"
    bed, _ = persistent.build_testbed(name, Wiring(hosts=("h1", "h2"), rate_bps=RATE_BPS))
    try:
        driver = open_persistent_testbed(name, adapters=False)
        try:
            ports = [PortName("switch", 1), PortName("switch", 2)]
            wanted = dict.fromkeys(ports, weighted(50, 50))
            assert driver.write(wanted) == wanted
            end = bed.ends("h1")[1]
            namespaces.run_command(["ip", "-n", str(end.namespace), "link", "del", end.interface])
            assert driver.release() == {"switch": ["port2"]}
            assert driver.notes == ("switch port1 no longer exists",)
        finally:
            driver.close()
    finally:
        persistent.remove_testbed(name)


def test_a_testbed_takes_the_state_of_its_agents_with_it() -> None:
    need_namespaces(short=True)
    name = f"programmed{os.getpid()}"
    persistent.build_testbed(name, Wiring(hosts=("h1", "h2"), rate_bps=RATE_BPS))
    try:
        driver = open_persistent_testbed(name, adapters=False)
        try:
            wanted = {PortName("switch", 1): weighted(50, 50)}
            assert driver.write(wanted) == wanted
        finally:
            driver.close()
        assert [*(persistent.AGENTS / name).rglob("port1.json")]
    finally:
        persistent.remove_testbed(name)
    assert not (persistent.AGENTS / name).exists()
    (persistent.AGENTS / name / "switch").mkdir(parents=True)  # as a lost testbed leaves it
    assert persistent.remove_testbed(name) == []
    assert not (persistent.AGENTS / name).exists()
