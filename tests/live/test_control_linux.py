"""The controller on a testbed: what applications of the library get at ports that it programs.

Applications are processes of the library on hosts, the controller is a process, and what passes is
counted by the kernel. The oracle is the definition: at a saturated port, bytes of an application /
bytes of all = its weight / weights of all that send.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from control_fabric import FabricControl, listed
from control_process import Client, running
from linux_switch import RATE_BPS, SOURCES, WIRING, Meter, crossing_s, measured, port_to
from managed_sender import Sender
from needs import need_namespaces
from restored import roots
from serve_process import wait_until
from traffic import RECEIVE, TRIES, watched, when_full

from weft.control.client import App, register
from weft.fabric import path
from weft.host.net.link_ends import LinkEnd
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.host.testbed.wiring import Wiring
from weft.switches import PortName
from weft.switches.linux.testbed_discovery import discover_testbed

NAME, HOPS = "live-control", "live-control-hops"
# Part of its time that each application communicates.
PARTS = dict(zip("abcdefgh", (0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95), strict=True))
POLICY = "levels = 8"
FIRST_S = 30.0
JOBS, ROUNDS = 9, 5


# ---- A controller on a testbed ------------------------------------------------------------------


@contextmanager
def standing_bed(name: str, wiring: Wiring) -> Iterator[Testbed]:
    need_namespaces()
    made, _ = persistent.build_testbed(name, wiring)
    try:
        yield made
    finally:
        persistent.remove_testbed(name)


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with standing_bed(NAME, WIRING) as made, sinking(made):
        yield made


@contextmanager
def sinking(bed: Testbed) -> Iterator[None]:
    """Whatever comes to host `sink` is read there."""
    # Not `bed.spawn`: with gRPC's threads about, nothing may run between fork and exec.
    inside = ["ip", "netns", "exec", bed.namespace("sink")]
    receiver = subprocess.Popen([*inside, sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    try:
        assert receiver.stdout.readline() == b"listening\n"
        yield
    finally:
        receiver.kill()
        receiver.wait()
        receiver.stdout.close()


@contextmanager
def controlled(bed: Testbed, name: str, folder: Path, *, adapters: bool) -> Iterator[FabricControl]:
    """Afterwards every port has what it had."""
    before = roots(bed.all_ends())
    where = f'testbed = "{name}"\nadapters = {str(adapters).lower()}'
    told = f'driver = "linux"\n{where}\ncheck_s = 1.0'
    process = FabricControl(folder, told, PARTS, policy=POLICY)
    try:
        with running(process):
            yield process
    finally:
        process.release()
    assert roots(bed.all_ends()) == before


@pytest.fixture
def control(bed: Testbed, tmp_path: Path) -> Iterator[FabricControl]:
    with controlled(bed, NAME, tmp_path, adapters=False) as process:
        yield process


@pytest.fixture
def client(control: FabricControl) -> Iterator[Client]:
    with Client(control.address) as asking:
        asking.settled(FIRST_S)
        yield asking


@contextmanager
def senders(bed: Testbed, control: FabricControl, hosts: dict[str, str]) -> Iterator[list[Sender]]:
    """An application on each host, connected with the sink; none sends yet."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                Sender(name, control.address, bed.namespace(host), bed.addresses["sink"])
            )
            for host, name in hosts.items()
        ]
        for sender in made:
            sender.connected()
        yield made


def weights_of(client: Client, port: PortName, levels: Sequence[int]) -> list[float]:
    """Each level's part of the weights of these, at a port that is programmed."""
    client.settled(FIRST_S)
    own: Any = listed(client)[port]
    assert own.state == "programmed"
    weights = [own.weights[own.queue_of[level]] for level in levels]
    return [weight / sum(weights) for weight in weights]


def check_passing(end: LinkEnd, levels: Sequence[int], wanted: Sequence[float]) -> None:
    """What passes is within two points of the weights."""
    within = pytest.approx(list(wanted), abs=0.02)

    def look() -> tuple[list[float], float]:
        found, use = measured(end)
        return [found[level] for level in levels], use

    print(f"weights {', '.join(f'{w:.1%}' for w in wanted)}")
    assert when_full(look, lambda own: own == within) == within


def check_metrics(
    control: FabricControl, port: PortName, queues: Sequence[int], wanted: Sequence[float]
) -> None:
    """What /metrics says that queues have sent is within five points of the weights."""
    (line,) = (line for line in control.lines() if line["text"].startswith("metrics on "))
    url = f"http://{line['text'].removeprefix('metrics on ')}/metrics"
    name = f'weft_control_port_sent_bytes_total{{node="{port.node}",port="{port.port}",queue='

    def read_sent() -> list[int]:
        with urllib.request.urlopen(url, timeout=30) as reply:
            text = reply.read().decode()
        sent = dict(re.findall(re.escape(name) + r'"(\d+)"} (\d+)', text))
        return [int(sent.get(str(queue), 0)) for queue in queues]

    def look() -> bool:
        before = read_sent()
        time.sleep(3.0)
        sent = [after - first for first, after in zip(before, read_sent(), strict=True)]
        shares = [count / max(1, sum(sent)) for count in sent]
        return shares == pytest.approx(list(wanted), abs=0.05)

    wait_until(look, "the counters show the weights", FIRST_S)


# ---- Shares -------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["bh", "adh", "abcdefgh"], ids=lambda names: f"{len(names)}")
def test_applications_share_a_saturated_port_by_their_weights(
    bed: Testbed, control: FabricControl, client: Client, names: str
) -> None:
    with senders(bed, control, dict(zip(SOURCES, names, strict=False))) as made:
        client.settled()
        levels = [sender.level for sender in made]
        assert len(set(levels)) == len(names), "every application has a level of its own"
        wanted = weights_of(client, port_to(bed, "sink"), levels)
        assert wanted == sorted(wanted), "who waits more for the network has more"
        assert wanted[-1] > 1.5 * wanted[0]
        for sender in made:
            sender.send()
        check_passing(bed.ends("sink")[1], levels, wanted)
        queue_of = listed(client)[port_to(bed, "sink")].queue_of
        queues = [queue_of[level] for level in levels]
        check_metrics(control, port_to(bed, "sink"), queues, wanted)


def test_what_an_application_leaves_the_other_has_until_it_sends(
    bed: Testbed, control: FabricControl, client: Client
) -> None:
    end = bed.ends("sink")[1]
    with senders(bed, control, {"a1": "b", "a2": "h"}) as (calm, keen):
        client.settled()
        levels = [calm.level, keen.level]
        wanted = weights_of(client, port_to(bed, "sink"), levels)
        assert wanted[0] < 0.4
        calm.send()
        check_passing(end, levels, [1.0, 0.0])
        keen.send()
        check_passing(end, levels, wanted)
        calm.rest()
        check_passing(end, levels, [0.0, 1.0])


def test_an_application_that_ends_gives_its_weight_back(
    bed: Testbed, control: FabricControl, client: Client
) -> None:
    port, end = port_to(bed, "sink"), bed.ends("sink")[1]
    with senders(bed, control, {"a1": "b", "a2": "h"}) as (calm, keen):
        calm.send()
        keen.send()
        with senders(bed, control, {"a3": "e"}) as (third,):
            third.send()
            client.settled()
            every = [calm.level, keen.level, third.level]
            check_passing(end, every, weights_of(client, port, every))
        wait_until(lambda: client.status().applications == 2, "the third is gone")
        client.settled()
        check_passing(end, every[:2], weights_of(client, port, every[:2]))


# ---- Changes ------------------------------------------------------------------------------------


def test_applications_that_come_and_go_show_in_the_traffic_within_50_ms(
    bed: Testbed, control: FabricControl, client: Client
) -> None:
    """Nine more of the calm kind take its level from a quarter to three quarters of the port."""
    with ExitStack() as stack:
        calm, keen = stack.enter_context(senders(bed, control, {"a1": "b", "a2": "h"}))
        jobs = [stack.enter_context(register("b", controller=control.address)) for _ in range(JOBS)]
        calm.send()
        keen.send()
        client.settled()
        levels = [calm.level, keen.level]
        wanted = weights_of(client, port_to(bed, "sink"), levels)
        check_passing(bed.ends("sink")[1], levels, wanted)
        meter = stack.enter_context(closing(Meter(bed.ends("sink")[1])))
        for _ in range(TRIES):
            with watched() as machine:
                took = [s for _ in range(ROUNDS) for s in come_and_go(meter, jobs, calm.level)]
            print(f"seen in the traffic after {', '.join(f'{1000 * s:.0f}' for s in took)} ms")
            if statistics.median(took) <= 0.05:
                break
    if statistics.median(took) > 0.05 and machine.trouble:
        pytest.skip(machine.trouble)
    assert statistics.median(took) <= 0.05


def come_and_go(meter: Meter, jobs: Sequence[App], level: int) -> tuple[float, float]:
    """Seconds from telling the library until the level has more, and less, than half the port."""
    begun = time.monotonic()
    told = [job.declare("a3", "sink") for job in jobs]
    came_s = crossing_s(meter, begun, level, upwards=True)
    begun = time.monotonic()
    for connection in told:
        connection.close()
    return came_s, crossing_s(meter, begun, level, upwards=False)


# ---- Two hops -----------------------------------------------------------------------------------


def test_both_hops_of_a_path_are_shared_by_the_weights(tmp_path: Path) -> None:
    wiring = Wiring(hosts=("a1", "a2", "far", "sink"), rate_bps=RATE_BPS, switches="two-hops")
    with (
        standing_bed(HOPS, wiring) as bed,
        sinking(bed),
        controlled(bed, HOPS, tmp_path, adapters=True) as control,
        Client(control.address) as client,
        senders(bed, control, {"a1": "b", "a2": "h"}) as made,
    ):
        client.settled(FIRST_S)
        levels = [sender.level for sender in made]
        first, second = hops(bed, "a1", "sink")[1:]
        assert {port for port, own in listed(client).items() if own.applications} == {
            *hops(bed, "a1", "sink"),
            *hops(bed, "a2", "sink"),
        }
        for sender in made:
            sender.send()
        for port in (first, second):
            end = LinkEnd(bed.namespace(port.node), f"port{port.port}")
            check_passing(end, levels, weights_of(client, port, levels))


def hops(bed: Testbed, source: str, destination: str) -> list[PortName]:
    """By the testbed's wiring."""
    fabric = discover_testbed(bed, "wiring", {switch: {} for switch in bed.layout.switches}).fabric
    found = path(fabric, fabric.index(source), fabric.index(destination))
    return [PortName(fabric.nodes[node].name, port) for node, port in found]
