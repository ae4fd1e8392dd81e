"""Persistent testbeds: built by one command, used by others, removed by a last one.

A state file records each step before it creates something, so a crash at any point leaves nothing
that `remove_testbed` would not find. All names start with `weft-NAME-`, and a namespace is removed
only if it is the recorded one (its inode). One process at a time changes or uses a testbed. Entry
points: `build_testbed`, `remove_testbed`, `use_testbed`, `find_testbed`, `find_damaged_testbed`,
`list_testbeds`, `read_status`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.host.machine.processes import hold_lock_in_folder
from weft.host.net import caps, link_ends, namespaces, qdisc
from weft.host.net.link_ends import LinkEnd
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed.build import Testbed, build_steps, check_possible, plan_testbed
from weft.host.testbed.wiring import Cable, Wiring

STATES = Path("/run/weft/testbeds")
AGENTS = Path("/run/weft/switches")  # a folder for each testbed: sockets and saved ports of agents
DEFAULT_NAME = "default"
LOCK_TIMEOUT_S = 20.0
_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The content of the state file. `inodes` has the namespaces whose creation has begun."""

    name: str
    boot: str
    wiring: Wiring
    inodes: Mapping[str, int | None]
    doing: str
    complete: bool

    @property
    def bed(self) -> Testbed:
        return plan_testbed(self.wiring, lambda node: f"weft-{self.name}-{node}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One end of a cable in the kernel; `rate_bps` is None without a token bucket."""

    node: str
    interface: str
    peer: str
    discipline: str
    rate_bps: int | None
    passed_bytes: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The current state of a testbed; `problems` is empty if it is as requested."""

    name: str
    state: State
    ports: tuple[Port, ...]
    processes: Mapping[str, int]
    problems: tuple[str, ...]


# ---- Commands ---------------------------------------------------------------------------------


def build_testbed(
    name: str, wiring: Wiring, *, wait_s: float = LOCK_TIMEOUT_S
) -> tuple[Testbed, bool]:
    """Builds a testbed, or finds it as requested; True if it was built now."""
    check_name(name)
    check_possible(wiring)
    namespaces.remove_leftovers()
    with _lock_testbed(name, "testbed up", wait_s):
        caps.restore_leftovers()
        state = read_state(name)
        if state is not None and state.complete and state.boot == _read_boot_id():
            _refuse_other_wiring(state, wiring)
            return state.bed, False
        if state is not None:
            _remove(state)
        return _build(name, wiring), True


def remove_testbed(name: str, *, wait_s: float = LOCK_TIMEOUT_S) -> list[str]:
    """Removes a testbed and ends processes inside; returns the names of its namespaces."""
    check_name(name)
    if os.geteuid() == 0:
        namespaces.remove_leftovers()
    if read_state(name) is None and not (AGENTS / name).exists():
        return []
    _require_root()
    with _lock_testbed(name, "testbed down", wait_s):
        state = read_state(name)
        removed = [] if state is None else _remove(state)
        _remove_agents_folder(name)  # may be left by a testbed that was lost
        return removed


@contextmanager
def use_testbed(name: str, purpose: str) -> Iterator[Testbed]:
    """A testbed that no other process uses or changes inside the block."""
    check_name(name)
    with _lock_testbed(name, purpose):
        yield find_testbed(name)


def find_testbed(name: str) -> Testbed:
    """A testbed that is up and undamaged."""
    return _find_or_refuse(name, _list_problems)


def find_damaged_testbed(name: str) -> Testbed:
    """A testbed that is up; some nodes and cables may be missing."""
    return _find_or_refuse(name, _list_build_problems)


def _find_or_refuse(name: str, problems: Callable[[State], list[str]]) -> Testbed:
    check_name(name)
    state = read_state(name)
    if state is None:
        remedy = f"run `weft testbed up --name {name} --hosts N --rate RATE`"
        raise InputError(f"testbed {name}", "is not up", remedy)
    _require_root()
    found_problems = problems(state)
    if found_problems:
        raise InputError(f"testbed {name}", found_problems[0], _suggest_rebuild(name))
    return state.bed


def list_testbeds() -> list[str]:
    return sorted(path.stem for path in STATES.glob("*.json"))


def read_status(name: str) -> Status | None:
    """The status of a testbed, read from the kernel; None if it is not up."""
    check_name(name)
    state = read_state(name)
    if state is None:
        return None
    _require_root()
    problems = _list_problems(state)
    ports = () if problems else tuple(_read_ports(state.bed))
    present = [
        namespace for node, namespace in state.bed.namespaces.items() if _is_ours(state, node)
    ]
    return Status(
        name=name,
        state=state,
        ports=ports,
        processes={namespace: len(namespaces.list_pids(namespace)) for namespace in present},
        problems=(*problems, *_list_rate_problems(state.bed, ports)),
    )


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        remedy = "use small letters, digits and -, a letter first, at most 32"
        raise InputError(f"--name {name!r}", "is not a testbed's name", remedy)


# ---- State ------------------------------------------------------------------------------------


def read_state(name: str) -> State | None:
    try:
        data = json.loads(_path(name).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        remedy = f"delete it, and the namespaces weft-{name}-* of `ip netns`"
        raise InputError(str(_path(name)), "is not a testbed's state", remedy) from error
    if data["schema"] != _SCHEMA:
        problem = f"schema {data['schema']} is not {_SCHEMA}"
        raise InputError(str(_path(name)), problem, "remove the testbed with the weft that made it")
    wiring = data["wiring"] | {"hosts": tuple(data["wiring"]["hosts"])}
    return State(
        name=name,
        boot=data["boot"],
        wiring=Wiring(**wiring),
        inodes=data["inodes"],
        doing=data["doing"],
        complete=data["complete"],
    )


def _write_state(state: State) -> None:
    """Atomically: a crash leaves the old file or the new one."""
    data = asdict(state) | {"schema": _SCHEMA}
    STATES.mkdir(parents=True, exist_ok=True)
    _temporary_path(state.name).write_text(json.dumps(data))
    _temporary_path(state.name).replace(_path(state.name))


def _path(name: str) -> Path:
    return STATES / f"{name}.json"


def _temporary_path(name: str) -> Path:
    return STATES / f"{name}.json.new"


def _read_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _lock_testbed(
    name: str, purpose: str, wait_s: float = LOCK_TIMEOUT_S
) -> AbstractContextManager[None]:
    _require_root()
    lock = STATES / f"{name}.lock"
    return hold_lock_in_folder(lock, f"testbed {name}", f"weft {purpose}", wait_s)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise InputError("testbed", "cannot be used: not root", "run it as root")


# ---- Building and removing --------------------------------------------------------------------


def _build(name: str, wiring: Wiring) -> Testbed:
    state = State(
        name=name, boot=_read_boot_id(), wiring=wiring, inodes={}, doing="begin", complete=False
    )
    for namespace in state.bed.namespaces.values():
        _refuse_foreign(namespace)
    try:
        for step in build_steps(state.bed):
            begun: dict[str, int | None] = {}
            if step.node is not None:
                _refuse_foreign(state.bed.namespaces[step.node])
                begun = {step.node: None}
            state = replace(state, doing=step.description, inodes={**state.inodes, **begun})
            _write_state(state)
            step.run()
            if step.node is not None:
                made = _read_inode(state.bed.namespaces[step.node])
                state = replace(state, inodes={**state.inodes, step.node: made})
        state = replace(state, doing="", complete=True)
        _write_state(state)
    except BaseException:
        _remove(state)
        raise
    return state.bed


def _refuse_foreign(namespace: str) -> None:
    if _exists(namespace):
        remedy = f"`ip netns del {namespace}` if it is not needed, or choose another --name"
        raise InputError(namespace, "exists already, and no testbed created it", remedy)


def _remove(state: State) -> list[str]:
    """Removes the namespaces first, and the state file last."""
    bed = state.bed
    removed = [bed.namespaces[node] for node in state.inodes if _is_ours(state, node)]
    for node in reversed(list(state.inodes)):
        namespaces.remove_files(bed.namespaces[node])
        if _is_ours(state, node):
            namespaces.remove(bed.namespaces[node])
    _remove_agents_folder(state.name)
    _temporary_path(state.name).unlink(missing_ok=True)
    _path(state.name).unlink(missing_ok=True)
    return removed


def _remove_agents_folder(name: str) -> None:
    """What agents saved of ports that are gone with their namespaces."""
    shutil.rmtree(AGENTS / name, ignore_errors=True)
    with suppress(OSError):  # other testbeds have agents
        AGENTS.rmdir()


def _is_ours(state: State, node: str) -> bool:
    """Whether the namespace exists and is the recorded one, or its creation was interrupted."""
    namespace = state.bed.namespaces[node]
    if node not in state.inodes or not _exists(namespace):
        return False
    made = state.inodes[node]
    stale = state.boot != _read_boot_id() and not os.path.ismount(namespaces.DIRECTORY / namespace)
    return made is None or stale or made == _read_inode(namespace)


def _exists(namespace: str) -> bool:
    return (namespaces.DIRECTORY / namespace).exists()


def _read_inode(namespace: str) -> int:
    return (namespaces.DIRECTORY / namespace).stat().st_ino


# ---- What is there ----------------------------------------------------------------------------


def _refuse_other_wiring(state: State, wiring: Wiring) -> None:
    had, wanted = asdict(state.wiring), asdict(wiring)
    differ = [
        f"{key} {_format_setting(had[key])}, not {_format_setting(wanted[key])}"
        for key in had
        if had[key] != wanted[key]
    ]
    if differ:
        problem = f"is up with {'; '.join(differ)}"
        raise InputError(f"testbed {state.name}", problem, _suggest_rebuild(state.name))
    problems = _list_problems(state) or [
        *_list_rate_problems(state.bed, tuple(_read_ports(state.bed)))
    ]
    if problems:
        raise InputError(f"testbed {state.name}", problems[0], _suggest_rebuild(state.name))


def _format_setting(value: Any) -> str:
    return f"{len(value)}" if isinstance(value, (tuple, list)) else f"{value}"


def _suggest_rebuild(name: str) -> str:
    return f"run `weft testbed down --name {name}`, then up again"


def _list_build_problems(state: State) -> list[str]:
    if state.boot != _read_boot_id():
        return ["was lost when the machine restarted"]
    return [] if state.complete else [f"was not finished, at: {state.doing}"]


def _list_problems(state: State) -> list[str]:
    unbuilt = _list_build_problems(state)
    if unbuilt:
        return unbuilt
    lost = [node for node in state.bed.namespaces if not _is_ours(state, node)]
    if lost:
        return [f"has lost {', '.join(lost)}"]
    return [f"has lost the cable {cable}" for cable in _list_missing_cables(state.bed)]


def _list_missing_cables(bed: Testbed) -> list[Cable]:
    """Cables with a missing end."""
    interfaces = {node: _read_interfaces(namespace) for node, namespace in bed.namespaces.items()}
    return [
        cable
        for cable in bed.layout.cables
        if any(plug.interface not in interfaces[plug.node] for plug in cable.ends)
    ]


def _read_interfaces(namespace: str) -> Mapping[str, int]:
    with Rtnetlink(namespace) as link:
        return link.read_interfaces()


def _read_ports(bed: Testbed) -> Iterator[Port]:
    for cable in bed.layout.cables:
        for near, far in (cable.ends, cable.ends[::-1]):
            yield _read_port(bed.end(near), near.node, f"{far.node} {far.interface}")


def _read_port(end: LinkEnd, node: str, peer: str) -> Port:
    with Rtnetlink(end.namespace) as link:
        root = link_ends.read_root(link, end, link.find_index(end.interface))
    return Port(
        node=node,
        interface=end.interface,
        peer=peer,
        discipline=root.kind,
        rate_bps=qdisc.unpack_bucket(root.options).rate_bps if root.kind == "tbf" else None,
        passed_bytes=root.count.bytes,
        dropped=root.count.dropped,
    )


def _list_rate_problems(bed: Testbed, ports: tuple[Port, ...]) -> Iterator[str]:
    """Ends that a cap, queues or someone else has changed."""
    wanted = [cable.rate_bps for cable in bed.layout.cables for _ in cable.ends]
    for port, rate in zip(ports, wanted, strict=False):
        if port.rate_bps is None:
            yield f"{port.node} {port.interface} has {port.discipline}, not its token bucket"
        elif port.rate_bps != rate // 8 * 8:
            yield f"{port.node} {port.interface} is at {port.rate_bps} b/s, not {rate}"
