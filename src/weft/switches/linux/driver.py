"""The Linux driver: asks the agent of every node for what the controller wants of its ports.

All agents are asked before the first answer is awaited, and all have the same time for it, so that
they work side by side; an agent that does not answer fails its own ports alone. What agents do is
in `weft.switches.linux.htb_ports`. Several drivers may use the same agents. Entry points:
`on_testbed`, `on_bed`, `with_agents`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from weft.errors import InputError
from weft.fabric import Fabric, check_fabric
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.switches.linux import agent_connection
from weft.switches.linux.agent_connection import Agent, Message, socket_path, start
from weft.switches.linux.htb_ports import Released, released_from
from weft.switches.linux.htb_tables import as_json, tables_from
from weft.switches.linux.testbed_discovery import (
    Discovered,
    Forwarding,
    discover_testbed,
    list_interfaces,
)
from weft.switches.tables import Ability, Failed, Foreign, PortName, Tables

FOLDERS = Path("/run/weft/switches")
# A port takes milliseconds, some tens of them on a busy machine. Those of a node wait in turn, and
# so do those of all nodes when they are taken over.
PORTS_S, PORT_S = 1.0, 0.05
_T = TypeVar("_T")


class LinuxSwitches:
    """Ports of nodes that have an agent.

    After a discovery `addresses` has the hosts' names by their addresses on the network, where
    those are known, and `notes` what could not be seen; after a release, what was left alone.
    """

    def __init__(
        self, agents: Iterable[Agent], discovered: Callable[[Forwarding], Discovered]
    ) -> None:
        self._agents = {agent.node: agent for agent in agents}
        self._discovered = discovered
        self.addresses: Mapping[str, str] = {}
        self.notes: tuple[str, ...] = ()

    def discover(self) -> Fabric:
        """With what answers: agents that do not are told in `notes`, unless none does."""
        described = self._asked(
            {node: {"do": "describe"} for node in self._agents}, agent_connection.ANSWER_S
        )
        silent = [one for one in described.values() if isinstance(one, InputError)]
        if silent and len(silent) == len(described):
            raise silent[0]
        found = self._discovered(
            {
                node: {str(mac): int(port) for mac, port in answer["forwarding"]}
                for node, answer in described.items()
                if not isinstance(answer, InputError)
            }
        )
        self.addresses, self.notes = found.addresses, (*map(str, silent), *found.notes)
        return found.fabric

    def abilities(self, ports: Collection[PortName]) -> dict[PortName, Ability | Failed]:
        asked = {
            node: {"do": "abilities", "ports": [port.port for port in own]}
            for node, own in _by_node(ports).items()
        }
        return self._told(ports, asked, lambda _, data: Ability(**data))

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]:
        asked = {
            node: {"do": "read", "ports": [port.port for port in own]}
            for node, own in _by_node(ports).items()
        }
        return self._told(ports, asked, _tables_or_foreign)

    def write(self, wanted: Mapping[PortName, Tables]) -> dict[PortName, Tables | Failed]:
        asked = {
            node: {"do": "write", "tables": [[port.port, as_json(wanted[port])] for port in own]}
            for node, own in _by_node(wanted).items()
        }
        return self._told(wanted, asked, lambda port, data: tables_from(data, str(port)))

    @property
    def unanswered(self) -> tuple[PortName, ...]:
        """None: an agent that does not answer is in `notes`."""
        return ()

    def open_second(self) -> LinuxSwitches:
        """With connections of its own to the same agents."""
        return LinuxSwitches([agent.copy() for agent in self._agents.values()], self._discovered)

    def learn_from(self, second: LinuxSwitches) -> None:
        self.addresses, self.notes = second.addresses, second.notes

    def release(self) -> dict[str, list[str]]:
        """Every port that was taken over has again what it had; interfaces of each node.

        A port to which someone has given another root keeps that, and is named in `notes`.
        """
        answers = self._asked(
            {node: {"do": "release"} for node in self._agents}, agent_connection.ANSWER_S
        )
        done: dict[str, Released] = {}
        for node, answer in answers.items():
            if isinstance(answer, InputError):
                raise answer
            done[node] = released_from(answer)
        self.notes = tuple(f"{node} {one}" for node in done for one in done[node].left_alone)
        return {node: list(one.given_back) for node, one in done.items()}

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()

    def _told(
        self,
        ports: Collection[PortName],
        asked: Mapping[str, Message],
        read: Callable[[PortName, Any], _T],
    ) -> dict[PortName, _T | Failed]:
        answers = self._asked(asked, PORTS_S + PORT_S * len(ports))
        return {port: _of_port(port, answers[port.node], read) for port in ports}

    def _asked(
        self, messages: Mapping[str, Message], seconds: float
    ) -> dict[str, Message | InputError]:
        """What each node's agent answers in so much time, or why it does not."""
        deadline = time.monotonic() + agent_connection.ANSWER_S
        failed: dict[str, InputError] = {}
        for step in (self._wake, self._ask):
            for node, message in messages.items():
                if node not in failed:
                    try:
                        step(node, message, deadline)
                    except InputError as error:
                        failed[node] = error
        asked = [self._agents[node] for node in messages if node not in failed]
        return {**failed, **agent_connection.answers(asked, seconds)}

    def _wake(self, node: str, _: Message, __: float) -> None:
        if node not in self._agents:
            known = ", ".join(self._agents)
            raise InputError(node, "no agent is known for it", f"there are {known}")
        self._agents[node].wake()

    def _ask(self, node: str, message: Message, deadline: float) -> None:
        self._agents[node].ask(message, deadline)


def _by_node(ports: Iterable[PortName]) -> dict[str, list[PortName]]:
    found: dict[str, list[PortName]] = {}
    for port in ports:
        found.setdefault(port.node, []).append(port)
    return found


def _tables_or_foreign(port: PortName, data: Any) -> Tables | Foreign:
    return Foreign(data["foreign"]) if "foreign" in data else tables_from(data, str(port))


def _of_port(
    port: PortName, answer: Message | InputError, read: Callable[[PortName, Any], _T]
) -> _T | Failed:
    if isinstance(answer, InputError):
        return Failed(str(answer))
    data = dict(answer["ports"]).get(port.port)
    if data is None:
        return Failed("the agent does not speak of it")
    if "failed" in data:
        return Failed(str(data["failed"]))
    return read(port, data)


# ---- Which switches ---------------------------------------------------------------------------


def open_persistent_testbed(
    name: str = persistent.DEFAULT_NAME, *, adapters: bool = True
) -> LinuxSwitches:
    """The switches of a testbed that is up (`weft testbed up`), and its hosts' adapters.

    Ports that it has lost fail; the others do not wait for them.
    """
    bed = persistent.find_damaged_testbed(name)
    return open_testbed(bed, FOLDERS / name, name=name, adapters=adapters)


def open_testbed(
    bed: Testbed, folder: Path, *, name: str = "testbed", adapters: bool = True
) -> LinuxSwitches:
    """Those of a testbed, with an agent for each in its namespace, started where none listens."""
    nodes = [*bed.layout.switches, *(bed.wiring.hosts if adapters else ())]
    agents = [_agent_in(bed, node, folder / node) for node in nodes]
    return LinuxSwitches(agents, partial(discover_testbed, bed, name))


def _agent_in(bed: Testbed, node: str, folder: Path) -> Agent:
    begin = partial(start, node, bed.namespace(node), folder, list_interfaces(bed, node))
    return Agent(node, socket_path(folder), begin)


def open_agents(fabric: Fabric, sockets: Mapping[str, Path]) -> LinuxSwitches:
    """Those of a fabric that is known, with agents that run already: socket of each node."""
    if fabric.routes is None:
        raise InputError(f"fabric {fabric.name}", "has no routes", "route it")
    unknown = sockets.keys() - {node.name for node in fabric.nodes}
    if unknown:
        raise InputError(f"agent of {min(unknown)}", "is not of the fabric", "name a node of it")
    agents = [Agent(node, path) for node, path in sockets.items()]
    return LinuxSwitches(agents, lambda _: Discovered(fabric=check_fabric(fabric)))
