"""Two controllers on the same switches: one has them, the other is refused and knows by whom."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fabric import leaf_spine, one_switch
from weft.host.net.rtnetlink import Rtnetlink
from weft.switches import Claim, Failed, Fenced, PortName, Tables, Taken
from weft.switches.linux import LinuxSwitches, open_agents
from weft.switches.linux.agent import RequestHandler, Server
from weft.switches.linux.agent_connection import build_socket_path
from weft.switches.linux.htb_ports import Ports
from weft.switches.simulated import DEFAULT_ABILITY, SimulatedSwitches, build_initial_tables
from weft.switches.tables import Grant, decode_grant, grant, read_grant, write_grant

PORT = PortName("switch0", 1)
WANTED = Tables(queue_of=(0,), weights=(1,))


# ---- The rule ---------------------------------------------------------------------------------

CLAIMS = st.builds(
    lambda owner, epoch: Claim(owner=owner, epoch=epoch),
    st.sampled_from("abc"),
    st.none() | st.integers(1, 6),
)


@given(st.lists(st.tuples(CLAIMS, st.booleans())))
def test_epochs_only_grow_and_each_belongs_to_one_owner(claims: list[tuple[Claim, bool]]) -> None:
    held, owners = Grant(), dict[int, str]()
    for claim, is_connected in claims:
        given_ = grant(held, claim, is_connected=is_connected)
        if given_ is None:
            continue
        assert given_.epoch >= held.epoch
        assert owners.setdefault(given_.epoch, given_.owner) == given_.owner == claim.owner
        held = given_


def test_a_connected_owner_keeps_its_switch_unless_others_come_with_a_higher_epoch() -> None:
    held = Grant(owner="a", epoch=3)
    assert grant(held, Claim(owner="b"), is_connected=True) is None
    assert grant(held, Claim(owner="b"), is_connected=False) == Grant(owner="b", epoch=4)
    assert grant(held, Claim(owner="b", epoch=9), is_connected=True) == Grant(owner="b", epoch=9)
    assert grant(held, Claim(owner="b", epoch=3), is_connected=False) is None
    assert grant(held, Claim(owner="a"), is_connected=True) == held


def test_a_damaged_claim_is_refused_with_a_remedy(tmp_path: Path) -> None:
    write_grant(tmp_path / "claim", Grant(owner="a", epoch=3))
    assert read_grant(tmp_path / "claim") == Grant(owner="a", epoch=3)
    with pytest.raises(InputError, match=r"claim: damaged: .*delete it once"):
        decode_grant(b'{"epoch":', "claim")


# ---- Linux agents -----------------------------------------------------------------------------


class AgentThread:
    """An agent whose one port is an interface that is not there; may be restarted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.start()

    def start(self) -> None:
        self._stack = ExitStack()
        link = self._stack.enter_context(Rtnetlink())
        build_socket_path(self.folder).unlink(missing_ok=True)
        handler = RequestHandler("switch0", Ports(link, {1: "nonesuch"}, self.folder))
        server = self._stack.enter_context(Server(self.folder, handler))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(server.shutdown)

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def agent(stack: ExitStack, tmp_path: Path) -> AgentThread:
    started = AgentThread(tmp_path / "agent")
    stack.callback(lambda: started.stop())
    return started


def open_driver(agent: AgentThread, stack: ExitStack, claim: Claim | None) -> LinuxSwitches:
    driver = open_agents(one_switch(2), {"switch0": build_socket_path(agent.folder)})
    stack.callback(driver.close)
    if claim is not None:
        driver.claim(claim)
    return driver


def write(driver: LinuxSwitches) -> Failed:
    outcome = driver.write({PORT: WANTED})[PORT]
    assert isinstance(outcome, Fenced) or "no such interface" in outcome.problem, outcome
    return outcome


def test_an_agent_has_one_owner_and_names_it_to_others(
    agent: AgentThread, stack: ExitStack
) -> None:
    first = open_driver(agent, stack, Claim(owner="first"))
    assert not isinstance(write(first), Fenced)
    second = first.open_second()
    stack.callback(second.close)
    assert not isinstance(write(second), Fenced)
    with pytest.raises(Taken, match="agent of switch0: belongs to the controller first, epoch 1"):
        open_driver(agent, stack, Claim(owner="second"))
    assert isinstance(write(open_driver(agent, stack, None)), Fenced)
    assert not isinstance(write(first), Fenced)


def test_the_next_controller_has_a_higher_epoch_and_older_ones_stay_refused(
    agent: AgentThread, stack: ExitStack
) -> None:
    old = open_driver(agent, stack, Claim(owner="old", epoch=5))
    assert not isinstance(write(old), Fenced)
    new = open_driver(agent, stack, Claim(owner="new", epoch=8))
    assert not isinstance(write(new), Fenced)
    outcome = write(old)
    assert isinstance(outcome, Fenced)
    assert "belongs to the controller new, epoch 8" in outcome.problem
    new.close()
    assert isinstance(write(old), Fenced)
    agent.stop()
    agent.start()  # the epoch is on disk
    assert isinstance(write(old), Fenced)
    third = open_driver(agent, stack, Claim(owner="third"))
    assert not isinstance(write(third), Fenced)
    assert read_grant(agent.folder / "claim") == Grant(owner="third", epoch=9)


# ---- Simulated switches -----------------------------------------------------------------------


def test_simulated_switches_refuse_the_writes_of_lower_epochs(tmp_path: Path) -> None:
    old, new = (SimulatedSwitches(leaf_spine(1, 1, 2), path=tmp_path / "r") for _ in range(2))
    tables = build_initial_tables(DEFAULT_ABILITY)
    wanted, later = (replace(tables, weights=(n, *tables.weights[1:])) for n in (7, 9))
    port = PortName("leaf0", 1)
    old.claim(Claim(owner="old", epoch=1))
    assert old.write({port: wanted}) == {port: wanted}
    new.claim(Claim(owner="new", epoch=2))
    assert isinstance(old.write({port: later})[port], Fenced)
    assert old.read([port]) == {port: wanted}
    with pytest.raises(Taken, match="belongs to the controller new, epoch 2"):
        old.claim(Claim(owner="old", epoch=1))
    assert new.write({port: later}) == {port: later}
    old.close()
    new.close()


# ---- Controllers ------------------------------------------------------------------------------


def test_a_second_controller_on_the_same_switches_refuses_to_start(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")
    from control_process import ControlProcess, running

    process = ControlProcess(tmp_path)
    with running(process):
        other = tmp_path / "other.toml"
        text = process.file.read_text().replace("control.", "other.")
        other.write_text(text)
        argv = [sys.executable, "-m", "weft.cli", "control", "serve", str(other)]
        second = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 2
        assert "belongs to the controller" in second.stderr
        assert f"{process.file} on " in second.stderr
        assert f"pid {process.pid}" in second.stderr
        assert process.process is not None
        assert process.process.poll() is None
    process.start()  # with the next epoch
    process.end()
