"""The controller on a subnet of ibsim and OpenSM, as other programs see it.

Applications are clients of the library, the controller is a process; what ports hold is read by
`smpquery vlarb` and `sl2vl`, and which ports are on a path is said by `ibtracert`. Tables are
changed by hand, OpenSM is restarted, a link goes and comes.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from control_fabric import FabricControl, listed
from control_parts import ports_of
from control_process import Client, running
from driver_process import RemoteDriver
from ibsim import Subnet, subnet
from needs import need_ibsim, need_time
from serve_process import wait_until
from subnet_witness import (
    CONVERGED_S,
    LEVELS,
    Held,
    Pairs,
    Witness,
    dumped,
    held,
    lid_of,
    on_paths,
    port_towards,
    traced,
)

from weft.control.client import App, Connection, register
from weft.fabric import Fabric, leaf_spine, papers_1944
from weft.switches import PortName
from weft.switches.infiniband import mad

KEEN, CALM = "keen", "calm"
PARTS = {KEEN: 0.9, CALM: 0.1}
# Hosts h0 to h2 are on one leaf, h3 to h5 on the other.
PAIRS = {
    KEEN: (("h0", "h3"), ("h1", "h3"), ("h0", "h4"), ("h0", "h1")),
    CALM: (("h2", "h3"), ("h1", "h4"), ("h5", "h3")),
}
SHARED = ("leaf1", "h3")  # both send to h3
CHECK_S = 0.5
FLAPS = int(os.environ.get("WEFT_LINK_FLAPS", "3"))
FAIL_OVERS = int(os.environ.get("WEFT_FAIL_OVERS", "1"))
SEED = 20261117
BIG_S = 300.0


# ---- The controller -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subnet]:
    need_time()
    need_ibsim()
    with subnet(leaf_spine(2, 2, 3, rate="4xEDR"), tmp_path_factory.mktemp("subnet")) as up:
        yield up


@pytest.fixture
def control(made: Subnet, tmp_path: Path) -> Iterator[FabricControl]:
    pace = f"check_s = {CHECK_S}"
    with running(on_subnet(made, tmp_path, pace)) as process:
        yield process


def on_subnet(made: Subnet, folder: Path, more: str) -> FabricControl:
    switches = f'driver = "infiniband"\n{more}'
    environment = made.environment()
    return FabricControl(folder, switches, PARTS, environment=environment, directory=made.directory)


@contextmanager
def connected(control: FabricControl, pairs: Pairs) -> Iterator[dict[str, App]]:
    """Applications of the library with these connections."""
    with ExitStack() as stack:
        apps = {
            name: stack.enter_context(register(name, controller=control.address, ttl_s=30))
            for name in pairs
        }
        told: list[Connection] = []
        for name, own in pairs.items():
            told += [apps[name].declare(*pair) for pair in own]
        for connection in told:
            stack.callback(connection.close)
            assert connection.wait_counted(10.0), connection.problem
        yield apps


@pytest.fixture
def client(control: FabricControl) -> Iterator[Client]:
    with Client(control.address) as asking:
        asking.settled(CONVERGED_S)
        yield asking


# ---- Two controllers ----------------------------------------------------------------------------


def test_a_second_controller_on_the_subnet_is_refused(made: Subnet, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, second = (on_subnet(made, folder, f"check_s = {CHECK_S}") for folder in folders)
    second.environment = made.environment("h1")
    with running(first):
        with pytest.raises(AssertionError, match=f"belongs to the controller .*pid {first.pid}"):
            second.start()
        assert second.process is not None
        assert second.process.returncode == 2
        first.kill()
        first.start()  # its record is there, and is its own
        with Client(first.address) as client:
            client.settled(CONVERGED_S)
        assert "ServiceName.............weft-control" in made.run("saquery", "SR")
    assert "weft-control" not in made.run("saquery", "SR")
    with running(second):
        pass


# ---- Exactly the ports on their paths -----------------------------------------------------------


def test_exactly_the_ports_on_their_paths_hold_the_new_tables(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    witness = Witness(made, client)
    began = time.monotonic()
    with connected(control, PAIRS) as apps:
        client.settled()
        took_s = time.monotonic() - began
        fabric = dumped(made)
        paths = on_paths(made, fabric, PAIRS)
        assert witness.differences(PAIRS) == []
        assert witness.untouched(PAIRS) == set(ports_of(fabric)) - paths
        keen, calm = apps[KEEN].level, apps[CALM].level
        both = held(made, fabric, port_towards(fabric, *SHARED)).low
        assert both[keen] > both[calm] > 1
        alone = held(made, fabric, port_towards(fabric, "h5", "leaf1")).low
        assert alone[calm] > 200
        assert alone[keen] == 1
    count = sum(map(len, PAIRS.values()))
    print(
        f"2 applications, {count} connections: {len(paths)} of {len(fabric.links) * 2} ports "
        f"programmed and read back in {1000 * took_s:.0f} ms; the others hold what they held"
    )


def test_what_has_ended_is_no_longer_in_any_table(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    witness = Witness(made, client)
    with connected(control, PAIRS) as apps:
        client.settled()
        levels = [apps[name].level for name in PAIRS]
    wait_until(lambda: not client.status().applications, "both are gone")
    client.settled()
    assert witness.differences({}) == []
    fabric = dumped(made)
    for port in listed(client):
        low = held(made, fabric, port).low
        assert [low[level] for level in levels] == [1, 1]


# ---- Behind its back ----------------------------------------------------------------------------


def set_by_hand(by_hand: RemoteDriver, request: mad.Smp) -> float:
    """When another program had set something."""
    (answer,) = by_hand.call("wire", "ask", [request])
    assert isinstance(answer, bytes), answer
    return time.monotonic()


def nine_each(fabric: Fabric, port: PortName) -> mad.Smp:
    """Equal weights, which nobody asked for."""
    block = mad.pack_arbitration([(vl, 9) for vl in range(LEVELS)])
    modifier = mad.pack_arbitration_modifier(mad.LOW, 0, port.port)
    return mad.Smp(lid_of(fabric, port.node), mad.VL_ARBITRATION, modifier, block)


def repaired_s(made: Subnet, fabric: Fabric, port: PortName, wanted: Held, set_s: float) -> float:
    """Seconds from a change by hand until smpquery reads again what was there."""
    wait_until(lambda: held(made, fabric, port) == wanted, f"{port} repaired", CONVERGED_S)
    return time.monotonic() - set_s


def test_weights_changed_by_hand_are_noticed_and_repaired(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    with connected(control, PAIRS), closing(RemoteDriver(made)) as by_hand:
        client.settled()
        fabric = dumped(made)
        port = port_towards(fabric, *SHARED)
        wanted, took = held(made, fabric, port), []
        for count in range(1, 6):
            set_s = set_by_hand(by_hand, nine_each(fabric, port))
            took.append(repaired_s(made, fabric, port, wanted, set_s))
            wait_until(lambda n=count: client.status().drifts >= n, "every drift is counted")
        said = [line["text"] for line in control.lines() if "repaired" in line["text"]]
        (problem,) = client.status().problems
        assert problem.startswith(f"{port}: changed by somebody else 4 times")
    print(f"weights: read as they were {', '.join(f'{s:.2f}' for s in took)} s after the change")
    print("\n".join(said))
    assert said
    assert max(took) < CHECK_S + 10.0


def test_a_map_changed_by_hand_is_noticed_within_a_round_of_reads(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    with connected(control, PAIRS), closing(RemoteDriver(made)) as by_hand:
        client.settled()
        fabric = dumped(made)
        port = port_towards(fabric, *SHARED)
        wanted = held(made, fabric, port)
        all_in_one = mad.Smp(
            lid_of(fabric, port.node),
            mad.SL_TO_VL,
            mad.pack_map_modifier(1, port.port),
            mad.pack_map([0] * 15 + [7]),
        )
        set_s = set_by_hand(by_hand, all_in_one)
        took_s = repaired_s(made, fabric, port, wanted, set_s)
        wait_until(lambda: client.status().drifts, "the drift is counted")
    inputs = fabric.nodes[fabric.index(port.node)].ports + 1
    print(f"one of {inputs} maps: repaired after {took_s:.1f} s, read every {CHECK_S:g} s")
    assert took_s < (inputs + 2) * CHECK_S + 10.0


# ---- OpenSM and links ---------------------------------------------------------------------------


def test_opensm_may_go_and_come_and_applications_are_programmed_all_the_while(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    witness = Witness(made, client)
    with connected(control, PAIRS) as apps:
        client.settled()
        made.stop_manager()
        more = apps[CALM].declare("h4", "h0")
        assert more.wait_counted(10.0), more.problem
        client.settled()
        pairs = PAIRS | {CALM: (*PAIRS[CALM], ("h4", "h0"))}
        assert witness.differences(pairs) == []
        made.start_manager()
        took_s = witness.converged(pairs)
        assert client.status().drifts == 0
        more.close()
        assert witness.converged(PAIRS) < CONVERGED_S
    print(f"after a restart of OpenSM nothing is wrong {took_s:.1f} s later, no drift")


def test_what_an_opensm_with_quality_of_service_writes_is_repaired(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    with connected(control, PAIRS):
        client.settled()
        made.stop_manager()
        made.start_manager(qos=True)
        wait_until(lambda: client.status().drifts, "OpenSM's weights are drift", CONVERGED_S)
        made.stop_manager()
        made.start_manager()
        took_s = Witness(made, client).converged(PAIRS)
        drifts = client.status().drifts
    print(f"{drifts} drifts made by OpenSM, nothing wrong {took_s:.1f} s after it stopped")


def test_a_link_that_goes_and_comes_moves_the_tables_with_the_paths(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    witness = Witness(made, client)
    with connected(control, PAIRS):
        client.settled()
        fabric = dumped(made)
        (cut,) = [p for p in traced(made, fabric, "h0", "h3") if p.node == "leaf0"]
        place = f'"{made.node_id("leaf0")}"[{cut.port}]'
        revision, began = client.status().revision, time.monotonic()
        made.console(f"Unlink {place}")
        wait_until(lambda: client.status().revision > revision, "tables move", CONVERGED_S)
        moved_s = time.monotonic() - began
        gone_s = seconds_until(lambda: cut not in traced(made, dumped(made), "h0", "h3"))
        around_s = witness.converged(PAIRS)
        assert cut not in on_paths(made, dumped(made), PAIRS)
        made.console(f"ReLink {place}")
        back_s = seconds_until(lambda: len(dumped(made).links) == len(fabric.links))
        again_s = witness.converged(PAIRS)
        assert not client.status().connections_without_path
    print(
        f"link cut: tables moved after {moved_s:.1f} s; "
        f"OpenSM's routes seen {gone_s:.1f} s later, nothing wrong {around_s:.1f} s after that; "
        f"mended: seen after {back_s:.1f} s, nothing wrong {again_s:.1f} s later"
    )


def test_a_link_that_flaps_leaves_tables_on_the_paths(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    """At any pace: also faster than OpenSM sweeps and than the controller looks."""
    witness, rng = Witness(made, client), random.Random(SEED)
    with connected(control, PAIRS):
        client.settled()
        fabric = dumped(made)
        (cut,) = [p for p in traced(made, fabric, "h0", "h3") if p.node == "leaf0"]
        place = f'"{made.node_id("leaf0")}"[{cut.port}]'
        for _ in range(FLAPS):
            made.console(f"Unlink {place}")
            time.sleep(rng.uniform(0.0, 1.5))
            made.console(f"ReLink {place}")
            time.sleep(rng.uniform(0.0, 1.5))
        began = time.monotonic()
        seconds_until(lambda: len(dumped(made).links) == len(fabric.links))
        witness.converged(PAIRS)
        took_s = time.monotonic() - began
        status = client.settled(CONVERGED_S)
        assert (status.applications, status.connections) == (2, sum(map(len, PAIRS.values())))
        assert not status.connections_without_path
    print(f"link flapped {FLAPS} times: nothing wrong {took_s:.1f} s after the last")


def test_a_switch_that_goes_and_comes_moves_the_tables_with_the_paths(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    witness = Witness(made, client)
    with connected(control, PAIRS):
        client.settled()
        fabric = dumped(made)
        (via,) = [p.node for p in traced(made, fabric, "h0", "h3") if p.node.startswith("spine")]
        made.console(f'Unlink "{made.node_id(via)}"')
        began = time.monotonic()
        seconds_until(lambda: via not in {p.node for p in traced(made, dumped(made), "h0", "h3")})
        around_s = witness.converged(PAIRS)
        gone_s = time.monotonic() - began
        assert not client.status().connections_without_path
        made.console(f'ReLink "{made.node_id(via)}"')
        began = time.monotonic()
        seconds_until(lambda: len(dumped(made).links) == len(fabric.links))
        witness.converged(PAIRS)
    print(
        f"switch gone: nothing wrong {gone_s:.1f} s later, {around_s:.1f} s after OpenSM's routes; "
        f"and {time.monotonic() - began:.1f} s after it is back"
    )


def test_tables_follow_the_routes_of_the_opensm_that_takes_over(
    made: Subnet, control: FabricControl, client: Client
) -> None:
    witness, took = Witness(made, client), []
    with connected(control, PAIRS):
        client.settled()
        for number in range(FAIL_OVERS):
            made.start_standby(("h4", "h5")[number % 2])
            took.append(made.fail_over())
            witness.converged(PAIRS)
            fabric = dumped(made)
            (cut,) = [p for p in traced(made, fabric, "h0", "h3") if p.node == "leaf0"]
            place = f'"{made.node_id("leaf0")}"[{cut.port}]'
            made.console(f"Unlink {place}")
            seconds_until(lambda gone=cut: gone not in traced(made, dumped(made), "h0", "h3"))
            witness.converged(PAIRS)
            made.console(f"ReLink {place}")
            seconds_until(lambda before=fabric: len(dumped(made).links) == len(before.links))
            witness.converged(PAIRS)
        assert client.status().drifts == 0
        made.stop_manager()
        made.start_manager()
        witness.converged(PAIRS)
    print(f"{FAIL_OVERS} fail-overs of OpenSM: routed after at most {max(took):.1f} s, no drift")


def seconds_until(is_so: Callable[[], bool]) -> float:
    """Tools fail while OpenSM is at it."""
    began = time.monotonic()

    def now() -> bool:
        with suppress(AssertionError):
            return is_so()
        return False

    wait_until(now, "OpenSM has noticed", CONVERGED_S)
    return time.monotonic() - began


# ---- The papers' fabric -------------------------------------------------------------------------


def test_the_papers_fabric_is_taken_over_reconciled_and_programmed(tmp_path: Path) -> None:
    need_time()
    need_ibsim()
    (tmp_path / "subnet").mkdir()
    with subnet(papers_1944(rate="4xFDR"), tmp_path / "subnet") as made:
        control = on_subnet(made, tmp_path, "take_over = true\ncheck_s = 10\ntopology_s = 3600")
        told = [taken_over(control), reconciled(control), programmed(made, control)]
    print(f"on {os.cpu_count()} CPUs: {'; '.join(told)}")


def discovered_s(client: Client, began: float) -> float:
    wait_until(lambda: client.status().ports, "the fabric is discovered", BIG_S)
    return time.monotonic() - began


def taken_over(control: FabricControl) -> str:
    """Every port from what it came with to the tables of one without applications."""
    began = time.monotonic()
    with running(control), Client(control.address) as client:
        first_s = discovered_s(client, began)
        found = client.settled(BIG_S)
        took_s = time.monotonic() - began
    assert found.ports == 9288 + 1944
    return (
        f"{found.ports} ports discovered {first_s:.1f} s after the start, all programmed and "
        f"read back after {took_s:.1f} s"
    )


def reconciled(control: FabricControl) -> str:
    """A controller that starts again reads all ports, and finds nothing to do."""
    began = time.monotonic()
    with running(control), Client(control.address) as client:
        first_s = discovered_s(client, began)
        found = client.settled(BIG_S)
        took_s = time.monotonic() - began - first_s
    assert found.drifts == 0
    return f"started again: reconciled without a change {took_s:.1f} s after discovery"


def programmed(made: Subnet, control: FabricControl) -> str:
    """Two applications across the fabric, by smpquery; then drift at one of their ports."""
    hosts = [made.fabric.nodes[n].name for n in made.fabric.hosts]
    a, b, c, d, e = (hosts[n] for n in (0, 500, 1000, 1500, 1943))
    pairs = {KEEN: ((a, c), (b, c), (a, d)), CALM: ((e, c), (b, d))}
    ports = ports_of(made.fabric)
    with running(control), Client(control.address) as client:
        client.settled(BIG_S)
        witness = Witness(made, client, ports[:: len(ports) // 40])
        began = time.monotonic()
        with connected(control, pairs):
            client.settled()
            took_s = time.monotonic() - began
            assert witness.differences(pairs) == []
            drift_s = mended_s(made, min(on_paths(made, dumped(made), pairs)))
    return (
        f"two applications programmed and read back in {1000 * took_s:.0f} ms; drift at one "
        f"port repaired after {drift_s:.1f} s, all ports being read every 10 s"
    )


def mended_s(made: Subnet, port: PortName) -> float:
    """Seconds in which weights that were changed by hand are as they were."""
    fabric = dumped(made)
    wanted = held(made, fabric, port)
    with closing(RemoteDriver(made)) as by_hand:
        set_s = set_by_hand(by_hand, nine_each(fabric, port))
        return repaired_s(made, fabric, port, wanted, set_s)
