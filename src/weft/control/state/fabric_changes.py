"""What a fabric that was discovered changes: paths, plan and tables.

Every connection takes the paths of the new fabric. One without a path goes on counting at the ports
of its last one, as far as they are there: the fabric may have been seen in part. Where the nodes
are the same, ports whose connections have not moved keep their weights unsolved.
Entry points: `fabric_changed`, `prepared`, `told_ports`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from weft.control.policy.connection_path import ConnectionPath as Uses
from weft.control.policy.plan import Plan, Policy, PortPlan, build_plan, change_connections
from weft.control.state.events import FabricChanged
from weft.control.state.kinds import build_policy, port_policies
from weft.control.state.paths import Paths
from weft.control.state.persistent_map import PersistentMap
from weft.control.state.programming import reprogram, settle
from weft.control.state.requests import find_path
from weft.control.state.state import Connection, MissingPath, State, Step, then
from weft.fabric import Port
from weft.switches import PortName

_Ways = Mapping[str, tuple[Port, ...]]  # ports that count each connection


def change_fabric(state: State, event: FabricChanged) -> Step:
    """Every connection takes the paths of the new fabric; one without a path waits for one."""
    counted = settle(state)
    return then(counted, _in_fabric(counted.state, event))


def find_paths(state: State, event: FabricChanged) -> FabricChanged:
    """With the paths of all connections: of 10^5 that takes seconds, for which nobody need wait."""
    fit, _ = port_policies(event.abilities, state.settings)
    paths = _paths(event, fit)
    for own in state.connections.values():
        find_path(paths, own)
    return replace(event, paths=paths)


def _paths(event: FabricChanged, managed: Collection[PortName]) -> Paths:
    number = {node.name: i for i, node in enumerate(event.fabric.nodes)}
    ports = frozenset([Port(number[name.node], name.port) for name in managed])
    return Paths(event.fabric, ports, event.aliases)


def _in_fabric(state: State, event: FabricChanged) -> Step:
    fit, unfit = port_policies(event.abilities, state.settings)
    paths = event.paths or _paths(event, fit)
    ways, lost = _ways(state, paths)
    after = replace(
        state,
        paths=paths,
        abilities={name: event.abilities[name] for name in fit},
        policies=fit,
        unfit=unfit,
        lost=lost,
        plan=None,
    )
    policies = {paths.ports[name]: own for name, own in fit.items()}
    policy = build_policy(state.kinds, state.levels, policies)
    if policy is not None:
        after = replace(after, plan=_plan(state, after, policy, ways))
    return reprogram(after, _to_tell(state, after), "the fabric changed")


def _ways(state: State, paths: Paths) -> tuple[_Ways, PersistentMap[str, MissingPath]]:
    """Ports that count each connection, and those connections that have no path."""
    ways, lost = {}, {}
    for own in state.connections.values():
        ports = find_path(paths, own)
        if isinstance(ports, MissingPath):
            lost[own.id] = replace(ports, ports=_had(state, own))
            ports = paths.still_there(lost[own.id].ports or ())
        ways[own.id] = ports
    return ways, PersistentMap(lost)


def _had(state: State, own: Connection) -> tuple[PortName, ...] | None:
    """Ports of the last path, if it has had one; None after a start: nobody knows."""
    if own.id in state.lost:
        return state.lost[own.id].ports
    if state.paths is None:
        return None
    return tuple([state.paths.names[port] for port in state.ports_of(own)])


def _plan(before: State, after: State, policy: Policy, ways: _Ways) -> Plan:
    if before.plan is None or not _are_alike(before, after):
        uses = [
            Uses(application=own.application, ports=ways[own.id])
            for own in after.connections.values()
            if ways[own.id]
        ]
        return build_plan(policy, uses)
    changes: list[tuple[Uses, int]] = []
    for own in after.connections.values():
        had, has = before.ports_of(own), ways[own.id]
        if had != has:
            moves = ((had, -1), (has, 1))
            changes += [(Uses(application=own.application, ports=p), by) for p, by in moves if p]
    return change_connections(Plan(policy=policy, ports=before.plan.ports), changes)


def _are_alike(before: State, after: State) -> bool:
    """Whether ports have the numbers and the policies that they had."""
    if before.paths is None or after.paths is None:
        return False
    return before.paths.fabric.nodes == after.paths.fabric.nodes and all(
        before.policies.get(name, own) == own for name, own in after.policies.items()
    )


def _to_tell(before: State, after: State) -> list[PortName]:
    found = programmed_ports(after)
    if _has_unknown(after):
        # They may be those of a connection without a path: what they were told stands.
        return [name for name in found if name not in before.target or _told(after, name)]
    if _has_unknown(before) or not _are_alike(before, after):
        return found
    return [name for name in found if not _is_unmoved(before, after, name)]


def _has_unknown(state: State) -> bool:
    """Whether a connection may be counted at ports that nobody knows."""
    return any(lost.ports is None for lost in state.lost.values())


def _is_unmoved(before: State, after: State, name: PortName) -> bool:
    """Whether a port was told what the plan has for it, and that has not changed."""
    if name not in before.target or name not in before.policies:
        return False
    old, new = _told(before, name), _told(after, name)
    if old is None or new is None:
        return old is new
    return old.weights is new.weights


def _told(state: State, name: PortName) -> PortPlan | None:
    if state.plan is None or state.paths is None:
        return None
    return state.plan.ports.get(state.paths.ports[name])


def programmed_ports(state: State) -> list[PortName]:
    """Managed ports that have applications, were told something before, or are taken over."""
    if state.settings.take_over:
        return list(state.policies)
    touched = [name for name in state.target if name in state.policies]
    if state.plan is None or state.paths is None:
        return touched
    return [*{*touched, *(state.paths.names[port] for port in state.plan.ports)}]
