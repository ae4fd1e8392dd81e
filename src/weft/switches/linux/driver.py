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
from weft.switches.linux.agent_connection import Agent, Message, build_socket_path, start_agent
from weft.switches.linux.htb_ports import Release, decode_release
from weft.switches.linux.htb_tables import decode_tables, encode_tables
from weft.switches.linux.testbed_discovery import (
    Discovery,
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
        self, agents: Iterable[Agent], discovered: Callable[[Forwarding], Discovery]
    ) -> None:
        self._agents = {agent.node: agent for agent in agents}
        self._build_discovery = discovered
        self.addresses: Mapping[str, str] = {}
        self.notes: tuple[str, ...] = ()

    def discover(self) -> Fabric:
        """With what answers: agents that do not are told in `notes`, unless none does."""
        described = self._ask_agents(
            {node: {"do": "describe"} for node in self._agents}, agent_connection.ANSWER_S
        )
        silent = [one for one in described.values() if isinstance(one, InputError)]
        if silent and len(silent) == len(described):
            raise silent[0]
        discovery = self._build_discovery(
            {
                node: {str(mac): int(port) for mac, port in answer["forwarding"]}
                for node, answer in described.items()
                if not isinstance(answer, InputError)
            }
        )
        self.addresses, self.notes = discovery.addresses, (*map(str, silent), *discovery.notes)
        return discovery.fabric

    def abilities(self, ports: Collection[PortName]) -> dict[PortName, Ability | Failed]:
        requests = {
            node: {"do": "abilities", "ports": [port.port for port in node_ports]}
            for node, node_ports in _group_by_node(ports).items()
        }
        return self._ask_ports(ports, requests, lambda _, data: Ability(**data))

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]:
        requests = {
            node: {"do": "read", "ports": [port.port for port in node_ports]}
            for node, node_ports in _group_by_node(ports).items()
        }
        return self._ask_ports(ports, requests, _decode_port)

    def write(self, wanted: Mapping[PortName, Tables]) -> dict[PortName, Tables | Failed]:
        requests = {
            node: {
                "do": "write",
                "tables": [[port.port, encode_tables(wanted[port])] for port in node_ports],
            }
            for node, node_ports in _group_by_node(wanted).items()
        }
        return self._ask_ports(wanted, requests, lambda port, data: decode_tables(data, str(port)))

    @property
    def unanswered(self) -> tuple[PortName, ...]:
        """None: an agent that does not answer is in `notes`."""
        return ()

    def open_second(self) -> LinuxSwitches:
        """With connections of its own to the same agents."""
        return LinuxSwitches(
            [agent.copy() for agent in self._agents.values()], self._build_discovery
        )

    def learn_from(self, second: LinuxSwitches) -> None:
        self.addresses, self.notes = second.addresses, second.notes

    def release(self) -> dict[str, list[str]]:
        """Every port that was taken over has again what it had; interfaces of each node.

        A port to which someone has given another root keeps that, and is named in `notes`.
        """
        answers = self._ask_agents(
            {node: {"do": "release"} for node in self._agents}, agent_connection.ANSWER_S
        )
        done: dict[str, Release] = {}
        for node, answer in answers.items():
            if isinstance(answer, InputError):
                raise answer
            done[node] = decode_release(answer)
        self.notes = tuple(
            f"{node} {interface}" for node in done for interface in done[node].left_alone
        )
        return {node: list(interface.restored) for node, interface in done.items()}

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()

    def _ask_ports(
        self,
        ports: Collection[PortName],
        requests: Mapping[str, Message],
        read: Callable[[PortName, Any], _T],
    ) -> dict[PortName, _T | Failed]:
        answers = self._ask_agents(requests, PORTS_S + PORT_S * len(ports))
        return {port: _decode_answer(port, answers[port.node], read) for port in ports}

    def _ask_agents(
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
        agents = [self._agents[node] for node in messages if node not in failed]
        return {**failed, **agent_connection.await_answers(agents, seconds)}

    def _wake(self, node: str, _: Message, __: float) -> None:
        if node not in self._agents:
            nodes = ", ".join(self._agents)
            raise InputError(node, "no agent is known for it", f"there are {nodes}")
        self._agents[node].wake()

    def _ask(self, node: str, message: Message, deadline: float) -> None:
        self._agents[node].ask(message, deadline)


def _group_by_node(ports: Iterable[PortName]) -> dict[str, list[PortName]]:
    by_node: dict[str, list[PortName]] = {}
    for port in ports:
        by_node.setdefault(port.node, []).append(port)
    return by_node


def _decode_port(port: PortName, data: Any) -> Tables | Foreign:
    return Foreign(data["foreign"]) if "foreign" in data else decode_tables(data, str(port))


def _decode_answer(
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
    agents = [_build_agent(bed, node, folder / node) for node in nodes]
    return LinuxSwitches(agents, partial(discover_testbed, bed, name))


def _build_agent(bed: Testbed, node: str, folder: Path) -> Agent:
    begin = partial(start_agent, node, bed.namespace(node), folder, list_interfaces(bed, node))
    return Agent(node, build_socket_path(folder), begin)


def open_agents(fabric: Fabric, sockets: Mapping[str, Path]) -> LinuxSwitches:
    """Those of a fabric that is known, with agents that run already: socket of each node."""
    if fabric.routes is None:
        raise InputError(f"fabric {fabric.name}", "has no routes", "route it")
    unknown = sockets.keys() - {node.name for node in fabric.nodes}
    if unknown:
        raise InputError(f"agent of {min(unknown)}", "is not of the fabric", "name a node of it")
    agents = [Agent(node, path) for node, path in sockets.items()]
    return LinuxSwitches(agents, lambda _: Discovery(fabric=check_fabric(fabric)))
