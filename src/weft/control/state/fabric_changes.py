"""What a newly discovered fabric changes: paths, plan and tables.

Every connection takes the paths of the new fabric. One without a path still counts at the ports of
its last one, as far as they exist: the discovery may have seen only a part. Where the nodes are the
same, ports whose connections have not moved keep their weights unsolved.
Entry points: `change_fabric`, `find_paths`, `list_programmed_ports`. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from immutables import Map

from weft.control.policy.plan import ConnectionPath, Plan, Policy, build_plan, change_connections
from weft.control.state.events import Connection, FabricChanged
from weft.control.state.managed_paths import Paths
from weft.control.state.policy_settings import build_policy, build_port_policies
from weft.control.state.programming import find_port_plan, reprogram, settle
from weft.control.state.requests import find_path
from weft.control.state.state import MissingPath, State, Step
from weft.fabric import Port
from weft.switches import PortName

_PortsByConnection = Mapping[str, tuple[Port, ...]]  # ports that count each connection


def change_fabric(state: State, event: FabricChanged) -> Step:
    """Every connection takes the paths of the new fabric; one without a path waits for one."""
    step = settle(state)
    return step.then(_place_in_fabric(step.state, event))


def find_paths(state: State, event: FabricChanged) -> FabricChanged:
    """Adds the paths of all connections. 10^5 take seconds, so this runs outside the engine."""
    policies, _ = build_port_policies(event.abilities, state.settings)
    paths = _build_paths(event, policies)
    for connection in state.connections.values():
        find_path(paths, connection)
    return replace(event, paths=paths)


def _build_paths(event: FabricChanged, managed: Collection[PortName]) -> Paths:
    number = {node.name: i for i, node in enumerate(event.fabric.nodes)}
    ports = frozenset([Port(number[name.node], name.port) for name in managed])
    return Paths(event.fabric, ports, event.aliases)


def _place_in_fabric(old: State, event: FabricChanged) -> Step:
    policies, unfit = build_port_policies(event.abilities, old.settings)
    paths = event.paths or _build_paths(event, policies)
    ports, missing_paths = _find_ports(old, paths)
    new = replace(
        old,
        paths=paths,
        abilities={name: event.abilities[name] for name in policies},
        policies=policies,
        unfit=unfit,
        missing_paths=missing_paths,
        plan=None,
    )
    by_port = {paths.ports[name]: policy for name, policy in policies.items()}
    policy = build_policy(old.models, old.levels, by_port, old.settings, old.stated_bytes)
    if policy is not None:
        new = replace(new, plan=_build_plan(old, new, policy, ports))
    return reprogram(new, _ports_to_program(old, new), "the fabric changed")


def _find_ports(state: State, paths: Paths) -> tuple[_PortsByConnection, Map[str, MissingPath]]:
    """Ports that count each connection, and connections without a path."""
    ports, missing_paths = {}, {}
    for connection in state.connections.values():
        path = find_path(paths, connection)
        if isinstance(path, MissingPath):
            missing = replace(path, last_ports=_last_ports(state, connection))
            missing_paths[connection.id] = missing
            path = paths.find_ports(missing.last_ports or ())
        ports[connection.id] = path
    return ports, Map(missing_paths)


def _last_ports(state: State, connection: Connection) -> tuple[PortName, ...] | None:
    """Ports of the last path, if it had one; None after a restart: they are unknown."""
    if connection.id in state.missing_paths:
        return state.missing_paths[connection.id].last_ports
    if state.paths is None:
        return None
    return tuple([state.paths.names[port] for port in state.ports_of(connection)])


def _build_plan(old: State, new: State, policy: Policy, ports: _PortsByConnection) -> Plan:
    connections = new.connections.values()
    if old.plan is None or not _has_same_ports(old, new):
        paths = [_path(new, link, ports[link.id]) for link in connections if ports[link.id]]
        return build_plan(policy, paths)
    changes: list[tuple[ConnectionPath, int]] = []
    for connection in connections:
        old_ports, new_ports = old.ports_of(connection), ports[connection.id]
        if old_ports != new_ports:
            moves = ((old_ports, -1), (new_ports, 1))
            changes += [(_path(new, connection, path), change) for path, change in moves if path]
    return change_connections(Plan(policy=policy, ports=old.plan.ports), changes)


def _path(state: State, connection: Connection, ports: tuple[Port, ...]) -> ConnectionPath:
    return ConnectionPath(application=state.applications[connection.application].unit, ports=ports)


def _has_same_ports(old: State, new: State) -> bool:
    """Whether ports have the same numbers and policies in both."""
    if old.paths is None or new.paths is None:
        return False
    return old.paths.fabric.nodes == new.paths.fabric.nodes and all(
        old.policies.get(name, policy) == policy for name, policy in new.policies.items()
    )


def _ports_to_program(old: State, new: State) -> list[PortName]:
    names = list_programmed_ports(new)
    if _has_unknown_ports(new):
        # They may be on a connection whose path is unknown: their tables stay.
        return [n for n in names if n not in old.target or find_port_plan(new, n) is not None]
    if _has_unknown_ports(old) or not _has_same_ports(old, new):
        return names
    return [name for name in names if not _is_unchanged(old, new, name)]


def _has_unknown_ports(state: State) -> bool:
    """Whether a connection may count at ports that are unknown since a restart."""
    return any(missing.last_ports is None for missing in state.missing_paths.values())


def _is_unchanged(old: State, new: State, name: PortName) -> bool:
    """Whether a port's target is the plan's, and the plan for it has not changed."""
    if name not in old.target or name not in old.policies:
        return False
    old_plan, new_plan = find_port_plan(old, name), find_port_plan(new, name)
    if old_plan is None or new_plan is None:
        return old_plan is new_plan
    return old_plan.weights is new_plan.weights


def list_programmed_ports(state: State) -> list[PortName]:
    """Managed ports that have applications, have a target, or are taken over."""
    if state.settings.take_over:
        return list(state.policies)
    targeted = [name for name in state.target if name in state.policies]
    if state.plan is None or state.paths is None:
        return targeted
    return [*{*targeted, *(state.paths.names[port] for port in state.plan.ports)}]
