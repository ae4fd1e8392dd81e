"""The Linux driver: asks each node's agent to read or program its ports.

The driver sends all requests before it awaits the first answer, and all agents have the same time,
so they work in parallel. An agent that does not answer fails only its own ports. Several drivers
may use the same agents. Entry points: `open_persistent_testbed`, `open_testbed`, `open_agents`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from weft.errors import InputError
from weft.fabric import Fabric, check_fabric
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.switches.linux.agent_connection import (
    ANSWER_S,
    Agent,
    AgentSilent,
    Answer,
    Describe,
    Description,
    GuardMarks,
    MarkCounts,
    PortResults,
    ReadAbilities,
    ReadSent,
    ReadTables,
    Released,
    ReleasePorts,
    Request,
    SentBytes,
    WriteTables,
    await_answers,
    build_socket_path,
    start_agent,
)
from weft.switches.linux.mark_guard import GuardedPort, MarkRules
from weft.switches.linux.testbed_discovery import (
    Discovery,
    Forwarding,
    discover_testbed,
    list_interfaces,
)
from weft.switches.tables import (
    Ability,
    AgentEvent,
    Claim,
    EdgePort,
    EdgeReport,
    EdgeRules,
    Failed,
    Fenced,
    Foreign,
    PortName,
    Tables,
    Taken,
    Violation,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long agents may take: `answer_s` to start, describe or release; for tables `ports_s`
    and `port_s` per port. A port takes milliseconds, some tens on a busy machine. The ports of a
    node wait in turn, and so do those of all nodes while they are taken over."""

    answer_s: float = ANSWER_S
    ports_s: float = 1.0
    port_s: float = 0.05


class LinuxSwitches:
    """Ports of nodes that have an agent.

    After a discovery `addresses` has the hosts' names by IP address where known, and `notes` what
    could not be read; after a release `notes` has the ports that were left alone.
    """

    def __init__(
        self,
        agents: Iterable[Agent],
        build_discovery: Callable[[Forwarding], Discovery],
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self._agents = {agent.node: agent for agent in agents}
        self._build_discovery = build_discovery
        self._timeouts = timeouts
        self.addresses: Mapping[str, str] = {}
        self.notes: tuple[str, ...] = ()
        self._forwarding: dict[str, list[tuple[str, int]]] = {}  # by node, as of the last discovery
        # By node: the connection by which its agent was told rules, and these.
        self._guarded: dict[str, tuple[int, MarkRules]] = {}

    def discover(self) -> Fabric:
        """From the agents that answer; `notes` names the others. Fails if none answers."""
        answers = self._ask_agents(dict.fromkeys(self._agents, Describe()))
        silent = [answer for answer in answers.values() if isinstance(answer, InputError)]
        _raise_taken(silent)
        if silent and len(silent) == len(answers):
            raise silent[0]
        self._forwarding = {
            node: answer.forwarding
            for node, answer in answers.items()
            if isinstance(answer, Description)
        }
        discovery = self._build_discovery({n: dict(pairs) for n, pairs in self._forwarding.items()})
        self.addresses, self.notes = discovery.addresses, (*map(str, silent), *discovery.notes)
        return discovery.fabric

    def has_changed(self) -> bool:
        """Whether a bridge has learned other routes; agents that do not answer say nothing."""
        answers = self._ask_agents(dict.fromkeys(self._agents, Describe()), self._timeouts.ports_s)
        return any(
            isinstance(answer, Description)
            and self._forwarding.get(node, answer.forwarding) != answer.forwarding
            for node, answer in answers.items()
        )

    def abilities(self, ports: Collection[PortName]) -> dict[PortName, Ability | Failed]:
        requests = {node: ReadAbilities(ns) for node, ns in _group_by_node(ports).items()}
        results = self._ask_ports(ports, requests)
        return {port: _check_kind(result, (Ability, Failed)) for port, result in results.items()}

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]:
        requests = {node: ReadTables(ns) for node, ns in _group_by_node(ports).items()}
        results = self._ask_ports(ports, requests)
        kinds = (Tables, Foreign, Failed)
        return {port: _check_kind(result, kinds) for port, result in results.items()}

    def read_sent(self, ports: Collection[PortName]) -> dict[PortName, tuple[int, ...]]:
        requests = {node: ReadSent(ns) for node, ns in _group_by_node(ports).items()}
        seconds = self._timeouts.ports_s + self._timeouts.port_s * len(ports)
        return {
            PortName(node, number): tuple(counts)
            for node, answer in self._ask_agents(requests, seconds).items()
            if isinstance(answer, SentBytes)
            for number, counts in answer.ports
        }

    def write(self, wanted: Mapping[PortName, Tables]) -> dict[PortName, Tables | Failed]:
        requests = {
            node: WriteTables([(number, wanted[PortName(node, number)]) for number in numbers])
            for node, numbers in _group_by_node(wanted).items()
        }
        results = self._ask_ports(wanted, requests)
        return {port: _check_kind(result, (Tables, Failed)) for port, result in results.items()}

    def police(self, rules: EdgeRules) -> EdgeReport:
        """Other marks are rewritten to level 0 where they enter."""
        wanted, problems = _build_mark_rules(rules, self._agents.keys())
        requests = {
            node: GuardMarks(None if self._has_rules(node, mark_rules) else mark_rules)
            for node, mark_rules in wanted.items()
        }
        violations: list[Violation] = []
        unchecked: list[str] = []
        seconds = self._timeouts.ports_s + self._timeouts.port_s * len(rules.ports)
        for node, answer in self._ask_agents(requests, seconds).items():
            if isinstance(answer, MarkCounts):
                self._guarded[node] = self._agents[node].connections, wanted[node]
                violations += _list_violations(node, answer, rules)
            else:
                self._guarded.pop(node, None)
                (unchecked if isinstance(answer, AgentSilent) else problems).append(str(answer))
        return EdgeReport(
            violations=tuple(violations), problems=tuple(problems), unchecked=tuple(unchecked)
        )

    def _has_rules(self, node: str, mark_rules: MarkRules) -> bool:
        """Whether the agent's process was told these; one that was started since was not."""
        agent = self._agents[node]
        with suppress(InputError):
            agent.wake()
        is_same = self._guarded.get(node) == (agent.connections, mark_rules)
        return agent.is_connected and is_same

    def take_agent_events(self) -> tuple[AgentEvent, ...]:
        return tuple(event for agent in self._agents.values() for event in agent.take_events())

    @property
    def unanswered(self) -> tuple[PortName, ...]:
        """None: an agent that does not answer is in `notes`."""
        return ()

    def claim(self, claim: Claim) -> None:
        """Agents that listen are asked now, the others with the first request."""
        claimed = {node: agent for node, agent in self._agents.items() if claim.manages(node)}
        for agent in claimed.values():
            agent.claim(claim)
        listening = [node for node, agent in claimed.items() if agent.is_listening()]
        answers = self._ask_agents(dict.fromkeys(listening, Describe()), self._timeouts.ports_s)
        _raise_taken(answers.values())

    def open_second(self) -> LinuxSwitches:
        """A driver with its own connections to the same agents."""
        agents = [agent.copy() for agent in self._agents.values()]
        return LinuxSwitches(agents, self._build_discovery, self._timeouts)

    def learn_from(self, second: LinuxSwitches) -> None:
        self.addresses, self.notes = second.addresses, second.notes

    def release(self) -> dict[str, list[str]]:
        """Restores every port that was taken over; interfaces by node.

        A port whose root someone has replaced keeps that root; `notes` names it, and ports that no
        longer exist.
        """
        answers = self._ask_agents(dict.fromkeys(self._agents, ReleasePorts()))
        released: dict[str, Released] = {}
        for node, answer in answers.items():
            if isinstance(answer, InputError):
                raise answer
            if isinstance(answer, Released):
                released[node] = answer
        self.notes = tuple(
            f"{node} {why}" for node in released for why in released[node].left_alone
        )
        return {node: answer.restored for node, answer in released.items()}

    def close(self) -> None:
        for agent in self._agents.values():
            agent.close()

    def _ask_ports(
        self, ports: Collection[PortName], requests: Mapping[str, Request]
    ) -> dict[PortName, Ability | Tables | Foreign | Failed]:
        timeouts = self._timeouts
        answers = self._ask_agents(requests, timeouts.ports_s + timeouts.port_s * len(ports))
        return {port: _find_result(port, answers[port.node]) for port in ports}

    def _ask_agents(
        self, requests: Mapping[str, Request], seconds: float | None = None
    ) -> dict[str, Answer | InputError]:
        """The answer of each node's agent within this time, or why there is none."""
        answer_s = self._timeouts.answer_s
        deadline = time.monotonic() + answer_s
        failed: dict[str, InputError] = {}
        for step in (self._wake, self._ask):
            for node, request in requests.items():
                if node not in failed:
                    try:
                        step(node, request, deadline)
                    except InputError as error:
                        failed[node] = error
        agents = [self._agents[node] for node in requests if node not in failed]
        return {**failed, **await_answers(agents, answer_s if seconds is None else seconds)}

    def _wake(self, node: str, _: Request, __: float) -> None:
        if node not in self._agents:
            nodes = ", ".join(self._agents)
            raise InputError(node, "has no agent", f"agents are known for {nodes}")
        self._agents[node].wake()

    def _ask(self, node: str, request: Request, deadline: float) -> None:
        self._agents[node].ask(request, deadline)


def _raise_taken(answers: Iterable[Answer | InputError]) -> None:
    for answer in answers:
        if isinstance(answer, Taken):
            raise answer


def _build_mark_rules(
    rules: EdgeRules, nodes: Collection[str]
) -> tuple[dict[str, MarkRules], list[str]]:
    """The rules of each node's agent, and why some ports are not guarded."""
    by_node: dict[str, MarkRules] = {}
    problems: list[str] = []
    for port, edge in rules.ports.items():
        if port.node not in nodes:
            problems.append(f"{port}: {port.node} has no agent")
            continue
        missing = {host for host, _ in edge.admitted if not rules.addresses.get(host)}
        if missing:
            remedy = "add it to [hosts]"
            problems.append(f"{port}: the address of {min(missing)} is not known; {remedy}")
            continue
        mark_rules = by_node.setdefault(port.node, MarkRules(rules.levels, rules.lane, []))
        mark_rules.ports.append(_build_guarded_port(port.port, edge, rules.addresses))
    return by_node, problems


def _build_guarded_port(
    number: int, edge: EdgePort, addresses: Mapping[str, Collection[str]]
) -> GuardedPort:
    admitted = [
        (address, level) for host, level in sorted(edge.admitted) for address in addresses[host]
    ]
    return GuardedPort(number, admitted, edge.lane_bps)


def _list_violations(node: str, counts: MarkCounts, rules: EdgeRules) -> list[Violation]:
    host_of = {
        address: host for host, addresses in rules.addresses.items() for address in addresses
    }
    return [
        Violation(
            port=PortName(node, count.number),
            host=rules.ports[PortName(node, count.number)].host,
            destination=host_of.get(count.destination, count.destination),
            level=count.level,
            bytes=count.bytes,
            is_lane=count.is_lane,
            is_rewritten=True,
        )
        for count in counts.counts
        if PortName(node, count.number) in rules.ports
    ]


def _group_by_node(ports: Iterable[PortName]) -> dict[str, list[int]]:
    by_node: dict[str, list[int]] = {}
    for port in ports:
        by_node.setdefault(port.node, []).append(port.port)
    return by_node


def _find_result(
    port: PortName, answer: Answer | InputError
) -> Ability | Tables | Foreign | Failed:
    if isinstance(answer, InputError):
        return (Fenced if isinstance(answer, Taken) else Failed)(str(answer))
    results = answer.ports if isinstance(answer, PortResults) else []
    values = [result.value for result in results if result.number == port.port]
    return values[0] if values else Failed("the agent's answer does not name it")


def _check_kind(result: object, kinds: tuple[type[_T], ...]) -> _T | Failed:
    if isinstance(result, kinds):
        return result
    return Failed(f"the agent answered {type(result).__name__}")


# ---- Which switches ---------------------------------------------------------------------------


def open_persistent_testbed(
    name: str = persistent.DEFAULT_NAME, *, adapters: bool = True
) -> LinuxSwitches:
    """The switches of a testbed that is up (`weft testbed up`), and its hosts' adapters.

    Missing ports fail; the others do not wait for them.
    """
    bed = persistent.find_damaged_testbed(name)
    return open_testbed(bed, persistent.AGENTS / name, name=name, adapters=adapters)


def open_testbed(
    bed: Testbed,
    folder: Path,
    *,
    name: str = "testbed",
    adapters: bool = True,
    timeouts: Timeouts = Timeouts(),
) -> LinuxSwitches:
    """The switches of a testbed, with an agent in each namespace; starts agents where none runs."""
    nodes = [*bed.layout.switches, *(bed.wiring.hosts if adapters else ())]
    agents = [_build_agent(bed, node, folder / node) for node in nodes]
    return LinuxSwitches(agents, partial(discover_testbed, bed, name), timeouts)


def _build_agent(bed: Testbed, node: str, folder: Path) -> Agent:
    start = partial(start_agent, node, bed.namespace(node), folder, list_interfaces(bed, node))
    return Agent(node, build_socket_path(folder), start)


def open_agents(
    fabric: Fabric, sockets: Mapping[str, Path], timeouts: Timeouts = Timeouts()
) -> LinuxSwitches:
    """The switches of a known fabric, with agents that already run: the socket of each node."""
    if fabric.routes is None:
        raise InputError(f"fabric {fabric.name}", "has no routes", "route it")
    unknown = sockets.keys() - {node.name for node in fabric.nodes}
    if unknown:
        raise InputError(f"agent of {min(unknown)}", "is not in the fabric", "name a node of it")
    agents = [Agent(node, path) for node, path in sockets.items()]
    return LinuxSwitches(agents, lambda _: Discovery(fabric=check_fabric(fabric)), timeouts)
