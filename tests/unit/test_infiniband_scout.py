"""Two drivers of one subnet, each in a thread of its own, over one adapter."""

from __future__ import annotations

import struct
import threading
import time

from test_infiniband_driver import three_hosts
from test_infiniband_wire import Nodes, answered, own_answer, requests

from weft.switches import Ability, Failed, PortName
from weft.switches.infiniband import InfinibandSwitches
from weft.switches.infiniband.mad_transport import Arrival, Refusal, WindowedSmps


def test_two_threads_ask_at_once_and_each_gets_its_own_answers() -> None:
    wire = WindowedSmps(Nodes(lambda mad: [answered(mad)]))
    result: dict[int, list[bytes | Refusal]] = {}

    def ask(first: int) -> None:
        result[first] = wire.ask(requests(first + 2000)[first:])

    threads = [threading.Thread(target=ask, args=(first,)) for first in (0, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert result == {first: [own_answer(first + n) for n in range(2000)] for first in (0, 2000)}


def test_an_address_that_is_silent_holds_up_only_who_asks_it() -> None:
    silent = 4000
    nodes = Nodes(lambda mad: [] if modifier(mad) == silent else [answered(mad)])
    wire = WindowedSmps(nodes, tries=4, timeout_s=0.5)
    given_up: list[bytes | Refusal] = []
    asking = threading.Thread(target=lambda: given_up.extend(wire.ask(requests(silent + 1)[-1:])))
    asking.start()
    while not nodes.sent:
        time.sleep(0.001)
    assert wire.ask(requests(500)) == [own_answer(n) for n in range(500)]
    assert asking.is_alive()
    asking.join(20)
    assert [type(answer) for answer in given_up] == [Refusal]


def test_who_still_asks_when_the_adapter_is_closed_is_refused_and_nothing_is_sent() -> None:
    asked = threading.Event()

    def fate(_: bytes) -> list[Arrival]:
        asked.set()
        return []

    nodes = Nodes(fate)
    wire = WindowedSmps(nodes, tries=1000, timeout_s=0.01)
    answers: list[bytes | Refusal] = []
    asking = threading.Thread(target=lambda: answers.extend(wire.ask(requests(3))))
    asking.start()
    assert asked.wait(20)
    wire.close()
    sent = len(nodes.sent)
    asking.join(20)
    assert [answer.problem for answer in answers if isinstance(answer, Refusal)] == [
        "infiniband: the adapter is closed"
    ] * 3
    assert len(nodes.sent) == sent


def modifier(mad: bytes) -> int:
    (result,) = struct.unpack_from(">I", mad, 20)
    return int(result)


def test_what_a_scout_has_discovered_its_driver_learns_and_the_adapter_stays_open() -> None:
    subnet, _ = three_hosts()
    closed: list[bool] = []
    subnet.close = lambda: closed.append(True)  # type: ignore[method-assign]
    driver = InfinibandSwitches(subnet)
    scout = driver.open_second()
    fabric = scout.discover()
    asked = len(subnet.asked)
    driver.learn_from(scout)
    port = PortName("near", 4)
    assert isinstance(driver.abilities([port])[port], Ability)
    assert len(subnet.asked) - asked < 5
    assert not isinstance(driver.read([port])[port], Failed)
    assert driver.discover() == fabric
    scout.close()
    assert closed == []
    driver.close()
    assert closed == [True]


def test_an_answer_that_comes_too_late_is_nobody_s() -> None:
    late: list[Arrival] = []
    nodes = Nodes(lambda mad: late.append(answered(mad)) or [answered(mad)])  # type: ignore[func-returns-value]
    wire = WindowedSmps(nodes)
    assert wire.ask(requests(3)) == [own_answer(n) for n in range(3)]
    nodes._under_way += late
    assert wire.ask(requests(3)) == [own_answer(n) for n in range(3)]
