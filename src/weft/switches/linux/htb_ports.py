"""The ports of a node as its agent programs them: taken over once, then changed in place.

The first write takes a port over: it saves the port's root to a file, replaces it by HTB, and
builds the tree. Linux cannot build a second root beside the one in use: packets waiting in the old
queue are lost, and packets that arrive while classes are added pass without waiting. Later writes
change classes and filters in place, without loss. A failed write is undone. The file outlives the
agent, so `release_ports` can restore the port. A root is ours if it has our handle and the port has
a file; other roots are left alone. Entry points: `Ports`, `release_ports`. Units: bits per second,
bytes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import TypeVar

from weft.errors import InputError
from weft.host.machine.processes import hold_lock
from weft.host.net import caps, htb, link_ends, namespaces, qdisc
from weft.host.net.htb import HtbTree, KernelTree
from weft.host.net.link_ends import LinkEnd, SavedEnd
from weft.host.net.qdisc import Qdisc
from weft.host.net.rtnetlink import Message, Rtnetlink
from weft.host.testbed.wiring import LIMIT_BYTES, choose_burst_bytes
from weft.switches.linux.agent_connection import (
    ANSWER_S,
    EXIT_TIMEOUT_S,
    Agent,
    Answer,
    Released,
    ReleasePorts,
    await_answers,
    build_socket_path,
)
from weft.switches.linux.htb_tables import (
    build_ability,
    build_single_queue,
    build_tree,
    decode_tree,
    find_refusal,
)
from weft.switches.linux.mark_guard import remove_guard
from weft.switches.tables import Ability, Failed, Foreign, Tables

INTERFACES = Path("/sys/class/net")
_SCHEMA = 1
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """A port's saved root, its rate, and how much may wait in a queue."""

    saved: SavedEnd
    link_bps: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Port:
    """The current state of a port."""

    number: int
    end: LinkEnd
    index: int
    root: Qdisc
    takeover: Takeover | None

    @property
    def is_ours(self) -> bool:
        return self.takeover is not None and _is_tree(self.root)

    @property
    def is_free(self) -> bool:
        """Whether it has the kernel's default or a token bucket, which can be restored."""
        return self.root.is_default or self.root.kind == "tbf"


def _format_root(root: Qdisc) -> str:
    return f"{root.kind} {qdisc.format_handle(root.handle)}"


def _is_tree(root: Qdisc) -> bool:
    return (root.kind, root.handle) == ("htb", htb.MAJOR)


class Ports:
    """Ports by number, each an interface of the namespace of `link`."""

    def __init__(
        self,
        link: Rtnetlink,
        interfaces: Mapping[int, str],
        folder: Path,
        *,
        rates_bps: Mapping[int, int] | None = None,
        allow_default_route: bool = False,
    ) -> None:
        self.interfaces = dict(interfaces)
        self.folder = folder
        self._link = link
        self._rates_bps = dict(rates_bps or {})
        self._allow_default_route = allow_default_route

    def abilities(self, numbers: Collection[int]) -> dict[int, Ability | Failed]:
        default_routes: set[int] = (
            set() if self._allow_default_route else self._link.read_default_routes()
        )

        def find_ability(port: _Port) -> Ability:
            if port.index in default_routes:
                problem = "carries the default route"
                raise InputError(str(port.end), problem, "allow it explicitly, or leave it out")
            return build_ability(self._find_link_bps(port))

        return self._do_each(numbers, find_ability)

    def read(self, numbers: Collection[int]) -> dict[int, Tables | Foreign | Failed]:
        return self._do_each(numbers, self._read_tables)

    def read_sent(self, numbers: Collection[int]) -> dict[int, tuple[int, ...]]:
        """Bytes that each queue has sent, of ports that have our queues."""
        sent = self._do_each(numbers, self._read_sent)
        return {n: counts for n, counts in sent.items() if isinstance(counts, tuple) and counts}

    def _read_sent(self, port: _Port) -> tuple[int, ...]:
        if not port.is_ours:
            return ()
        classes = qdisc.read_classes(self._link, port.index)
        ids = takewhile(classes.__contains__, map(htb.build_classid, count()))
        return tuple(classes[classid][1].bytes for classid in ids)

    def write(self, wanted: Mapping[int, Tables]) -> dict[int, Tables | Failed]:
        return self._do_each(wanted, lambda port: self._write_port(port, wanted[port.number]))

    def read_forwarding(self) -> dict[str, int]:
        """The port behind which each MAC address is, from the bridge."""
        indexes = self._link.read_interfaces()
        number_of = {indexes[name]: n for n, name in self.interfaces.items() if name in indexes}
        stations = self._link.read_forwarding()
        return {mac: number_of[index] for mac, index in stations.items() if index in number_of}

    def _do_each(
        self, numbers: Collection[int], do: Callable[[_Port], _T]
    ) -> dict[int, _T | Failed]:
        """The result for each port; a port that fails does not delay the others."""
        indexes, disciplines = self._link.read_interfaces(), qdisc.read_all_qdiscs(self._link)
        results: dict[int, _T | Failed] = {}
        for number in numbers:
            try:
                results[number] = do(self._read_port(number, indexes, disciplines))
            except (InputError, OSError) as error:
                results[number] = Failed(str(error))
        return results

    # ---- What is there ------------------------------------------------------------------------

    def _read_port(
        self, number: int, indexes: Mapping[str, int], disciplines: Mapping[int, list[Qdisc]]
    ) -> _Port:
        if number not in self.interfaces:
            numbers = ", ".join(map(str, self.interfaces))
            raise InputError(f"port {number}", "is not of this switch", f"there are {numbers}")
        interface = self.interfaces[number]
        if interface not in indexes:
            raise InputError(interface, "no such interface", "plug it in again")
        index = indexes[interface]
        roots = [
            discipline
            for discipline in disciplines.get(index, [])
            if discipline.parent == qdisc.ROOT
        ]
        if not roots:
            raise InputError(interface, "has no queueing discipline", "set it up first")
        return _Port(
            number=number,
            end=LinkEnd(self._link.namespace, interface),
            index=index,
            root=roots[0],
            takeover=self._find_takeover(interface, index, roots[0]),
        )

    def _find_takeover(self, interface: str, index: int, root: Qdisc) -> Takeover | None:
        """The saved state, unless the interface or its root has been replaced since."""
        takeover = _read_takeover(self._build_path(interface))
        if takeover is None or not (_is_tree(root) or root.is_default):
            return None
        netns = namespaces.read_identity(self._link.namespace)
        return takeover if (takeover.saved.index, takeover.saved.netns) == (index, netns) else None

    def _build_path(self, interface: str) -> Path:
        return self.folder / f"{interface}.json"

    def _find_link_bps(self, port: _Port) -> int:
        if port.number in self._rates_bps:
            return self._rates_bps[port.number]
        if port.takeover is not None:
            return port.takeover.link_bps
        if port.root.kind == "tbf":
            return qdisc.unpack_bucket(port.root.options).rate_bps
        speed_bps = _read_speed_bps(port.end)
        if speed_bps is None:
            problem = "has no token bucket and no speed, so its rate is not known"
            raise InputError(str(port.end), problem, f"give it: --rate {port.number}=RATE")
        return speed_bps

    def _read_tables(self, port: _Port) -> Tables | Foreign:
        if port.is_ours:
            current = htb.read_tree(self._link, port.index, port.root)
            return decode_tree(current, self._find_link_bps(port))
        return (
            build_single_queue(self._find_link_bps(port))
            if port.is_free
            else Foreign(_format_root(port.root))
        )

    # ---- Writing ------------------------------------------------------------------------------

    def _write_port(self, port: _Port, wanted: Tables) -> Tables:
        if not (port.is_ours or port.is_free):
            problem = f"has {_format_root(port.root)}, which weft could not restore"
            remedy = f"`tc qdisc del dev {port.end.interface} root` if it is not needed"
            raise InputError(str(port.end), problem, remedy)
        link_bps = self._find_link_bps(port)
        why = find_refusal(wanted, build_ability(link_bps))
        if why is not None:
            raise InputError(str(port.end), why)
        if port.is_ours:
            self._change(port, wanted, link_bps)
        elif wanted != build_single_queue(link_bps):
            self._take_over(port, wanted, link_bps)
        return wanted

    def _take_over(self, port: _Port, wanted: Tables, link_bps: int) -> None:
        takeover = port.takeover or self._save(port, link_bps)
        try:
            self._request(port, _pack_new_tree(port.index, build_tree(wanted, link_bps), takeover))
            self._verify(port, wanted, link_bps)
        except (InputError, OSError) as error:
            raise self._undo_takeover(port, takeover, error) from error

    def _save(self, port: _Port, link_bps: int) -> Takeover:
        with caps.exclude_other_changes([port.end]):
            saved = link_ends.save(port.end, allow_default_route=self._allow_default_route)
            bucket = saved.bucket
            limit = bucket.limit_bytes if bucket else max(LIMIT_BYTES, choose_burst_bytes(link_bps))
            takeover = Takeover(saved=saved, link_bps=link_bps, limit_bytes=limit)
            _write_takeover(self._build_path(port.end.interface), takeover)
        return takeover

    def _undo_takeover(self, port: _Port, takeover: Takeover, error: Exception) -> InputError:
        try:
            other = _restore_end(takeover.saved)
            self._build_path(port.end.interface).unlink(missing_ok=True)
        except (InputError, OSError) as second:
            problem = f"could not be taken over ({error}), and could not be restored ({second})"
            return InputError(str(port.end), problem, "see `tc qdisc show`")
        has = other or "its old root"
        return InputError(str(port.end), f"could not be taken over, and has {has}: {error}")

    def _change(self, port: _Port, wanted: Tables, link_bps: int) -> None:
        current = htb.read_tree(self._link, port.index, port.root)
        old = decode_tree(current, link_bps)
        if old == wanted:
            return
        try:
            self._change_tree(port, current, wanted, link_bps)
        except (InputError, OSError) as error:
            raise self._undo_change(port, old, link_bps, error) from error

    def _change_tree(self, port: _Port, current: KernelTree, wanted: Tables, link_bps: int) -> None:
        """Changes the kernel's tree in place if possible, or builds it again."""
        assert port.takeover is not None
        tree = build_tree(wanted, link_bps)
        if htb.is_changeable(current, tree):
            limit_bytes = port.takeover.limit_bytes
            self._request(port, htb.pack_changes(port.index, tree, current, limit_bytes))
        else:  # HTB cannot replace HTB
            delete = [qdisc.pack_qdisc_deletion(port.index, handle=htb.MAJOR)]
            self._request(port, [delete, *_pack_new_tree(port.index, tree, port.takeover)])
        self._verify(port, wanted, link_bps)

    def _undo_change(
        self, port: _Port, old: Tables | Foreign, link_bps: int, error: Exception
    ) -> InputError:
        where = str(port.end)
        if isinstance(old, Foreign):
            return InputError(
                where, f"was damaged ({old.description}), and is not repaired: {error}"
            )
        try:
            now = htb.read_tree(self._link, port.index, port.root)
            self._change_tree(port, now, old, link_bps)
        except (InputError, OSError) as second:
            problem = f"could not be changed ({error}), and could not be restored ({second})"
            return InputError(where, problem, "write its tables again")
        return InputError(where, f"could not be changed, and keeps its old tables: {error}")

    def _request(self, port: _Port, batches: Iterable[Sequence[Message]]) -> None:
        """The kernel continues a batch after a refusal, so dependent messages are in the next
        batch.
        """
        for batch in batches:
            self._link.request(batch, str(port.end))

    def _verify(self, port: _Port, wanted: Tables, link_bps: int) -> None:
        """Reads back; a difference is an error."""
        root = port.root if port.is_ours else self._read_root(port)
        now = decode_tree(htb.read_tree(self._link, port.index, root), link_bps)
        if now != wanted:
            raise InputError(str(port.end), f"reads back as {now}", "write its tables again")

    def _read_root(self, port: _Port) -> Qdisc:
        return link_ends.read_root(self._link, port.end, port.index)


def _pack_new_tree(index: int, tree: HtbTree, takeover: Takeover) -> list[list[Message]]:
    """The root alone first: if it is refused, the rest would go to someone else's root."""
    under = htb.pack_under_root(index, tree, takeover.limit_bytes)
    return [[htb.pack_root(index, tree)], under]


def _read_speed_bps(end: LinkEnd) -> int | None:
    """The speed of a physical device in this namespace; virtual devices invent theirs."""
    folder = INTERFACES / end.interface
    if end.namespace is not None or not (folder / "device").exists():
        return None
    try:
        megabits = int((folder / "speed").read_text())
    except (OSError, ValueError):
        return None  # its link is down
    return megabits * 10**6 if megabits > 0 else None


# ---- Saved roots ------------------------------------------------------------------------------


def release_ports(node: str, folder: Path) -> Released:
    """Restores the ports of a node, by its agent if that runs."""
    if not folder.is_dir():
        return Released([], [])
    agent = Agent(node, build_socket_path(folder))
    answer: Answer | InputError
    try:
        agent.ask(ReleasePorts(), time.monotonic() + ANSWER_S)
        answer = await_answers([agent], ANSWER_S)[node]
    except InputError as error:
        answer = error
    is_running = agent.is_connected
    agent.close()
    if isinstance(answer, Released):
        return answer
    if not is_running:  # no agent listens, or not any more: the lock is free, or will be
        with hold_lock(folder / "lock", f"agent of {node}", "release", EXIT_TIMEOUT_S):
            return restore_ports(folder)
    if isinstance(answer, InputError):
        raise answer
    raise InputError(f"agent of {node}", f"answered {answer.kind} to a release")


def restore_ports(folder: Path) -> Released:
    """Restores every port that was taken over, except those that are gone or someone else's.

    Also removes the rules for marks.
    """
    released = Released([], [])
    failures: list[Exception] = []
    try:
        remove_guard(folder)
    except (InputError, OSError) as error:
        failures.append(error)
    for path in sorted(folder.glob("*.json")):
        try:
            remark = _restore_port(path)
        except (InputError, OSError) as error:
            failures.append(error)
            continue
        if remark is None:
            released.restored.append(path.stem)
        else:
            released.left_alone.append(f"{path.stem} {remark}")
    if failures:
        raise failures[0]
    return released


def _restore_port(path: Path) -> str | None:
    """Restores a port; returns a remark if it is gone, or has a root that is not ours."""
    takeover = _read_takeover(path)
    saved = None if takeover is None else link_ends.find_reachable(takeover.saved)
    is_gone = saved is None or not link_ends.exists(saved)
    other = None if saved is None else _restore_end(saved)
    path.unlink(missing_ok=True)
    if is_gone:
        return "no longer exists"
    return None if other is None else f"has {other}, not weft's"


def _restore_end(saved: SavedEnd) -> str | None:
    """Restores the saved root, unless someone has replaced ours: then returns that one."""
    if not link_ends.exists(saved):
        return None
    with Rtnetlink(saved.end.namespace) as link:
        root = link_ends.read_root(link, saved.end, saved.index)
    if _is_tree(root) or root.is_default:
        link_ends.restore(saved)
        return None
    is_old = (root.kind, root.handle, root.options) == (saved.kind, saved.handle, saved.options)
    return None if is_old else _format_root(root)


def _write_takeover(path: Path, takeover: Takeover) -> None:
    """Atomically."""
    data = {
        "schema": _SCHEMA,
        "saved": takeover.saved.as_json(),
        "link_bps": takeover.link_bps,
        "limit_bytes": takeover.limit_bytes,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data))
    fresh.replace(path)


def _read_takeover(path: Path) -> Takeover | None:
    try:
        data = json.loads(path.read_text())
        if data["schema"] != _SCHEMA:
            problem = f"schema {data['schema']} is not {_SCHEMA}"
            raise InputError(str(path), problem, "give the port back with the weft that took it")
        return Takeover(
            saved=link_ends.decode_saved(data["saved"]),
            link_bps=int(data["link_bps"]),
            limit_bytes=int(data["limit_bytes"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        problem = "does not say what a port had"
        raise InputError(str(path), problem, "delete it, and see `tc qdisc show`") from error
