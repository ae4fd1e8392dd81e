"""The Linux driver on a testbed of two leaves, two spines and four hosts.

The agents answer in threads of this process, each with the kernel's interface of its namespace in
between, which can be told to refuse requests and tells what ports were like after each.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from needs import need_namespaces
from rigs import EVER, State

from weft.host.net import htb, link_ends
from weft.host.net.link_ends import LinkEnd
from weft.host.net.rtnetlink import KernelRefusal, Message, Rtnetlink
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import Wiring
from weft.switches import Failed, PortName, Switches, Tables
from weft.switches.linux.agent import RequestHandler, Server
from weft.switches.linux.agent_connection import Agent, build_socket_path
from weft.switches.linux.driver import LinuxSwitches
from weft.switches.linux.htb_ports import Ports
from weft.switches.linux.htb_tables import LEVELS, QUEUES, choose_dscp
from weft.switches.linux.testbed_discovery import discover_testbed, list_interfaces

WIRING = Wiring(hosts=("h1", "h2", "h3", "h4"), rate_bps=100_000_000, switches="leaf-spine")
NODES = ("leaf1", "leaf2", "spine1", "spine2", "h3")
ONE_KBPS = 1000


class _Watched(Rtnetlink):
    """Requests one by one; as in the kernel, one that is refused does not stop its batch."""

    def __init__(self, namespace: str, made: Callable[[str], None]) -> None:
        super().__init__(namespace)
        self.refused: tuple[str, int, int] | None = None
        self._made = made
        self._count = 0

    def refuse(self, refused: tuple[str, int, int] | None) -> None:
        self.refused, self._count = refused, 0

    def request(self, messages: Sequence[Message], where: str) -> None:
        refusal = None
        for message in messages:
            if self._is_refused(where):
                refusal = refusal or KernelRefusal(where, errno.ENOMEM, "as was asked for")
            else:
                super().request([message], where)
                self._made(where)
        if refusal is not None:
            raise refusal

    def _is_refused(self, where: str) -> bool:
        if self.refused is None or where != self.refused[0]:
            return False
        self._count += 1
        return self.refused[1] <= self._count <= self.refused[2]


class LinuxRig:
    def __init__(self, bed: Testbed, directory: Path, stack: ExitStack) -> None:
        self._bed = bed
        self._directory = directory
        self._states: list[State] = []
        self._traced: LinkEnd | None = None
        self._links = {node: self._served(node, stack) for node in NODES}
        self._driver = self.again()
        stack.callback(self._driver.close)

    def _served(self, node: str, stack: ExitStack) -> _Watched:
        link = stack.enter_context(_Watched(self._bed.namespace(node), self._changed))
        folder = self._directory / node
        folder.mkdir(mode=0o700)
        ports = Ports(link, list_interfaces(self._bed, node), folder)
        server = stack.enter_context(Server(folder, RequestHandler(node, ports)))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        return link

    def _changed(self, where: str) -> None:
        if self._traced is not None and where == str(self._traced):
            self._states.append(_state(self._traced))

    @property
    def switches(self) -> Switches:
        return self._driver

    @property
    def ports(self) -> tuple[PortName, ...]:
        names = [PortName("leaf1", port) for port in (1, 2, 4)]
        return (*names, PortName("spine1", 2), PortName("h3", 1))

    def again(self) -> LinuxSwitches:
        agents = [Agent(node, build_socket_path(self._directory / node)) for node in NODES]
        return LinuxSwitches(agents, lambda known: discover_testbed(self._bed, "rig", known))

    @contextmanager
    def refusing(self, port: PortName, first: int = 1, last: int = EVER) -> Iterator[None]:
        link = self._links[port.node]
        link.refuse((str(self._end(port)), first, last))
        try:
            yield
        finally:
            link.refuse(None)

    def traced(self, port: PortName, wanted: Tables) -> tuple[Tables | Failed, list[State]]:
        self._traced = self._end(port)
        self._states = [_state(self._traced)]
        written = self._driver.write({port: wanted})[port]
        self._traced = None
        return written, self._states

    def _end(self, port: PortName) -> LinkEnd:
        return LinkEnd(
            self._bed.namespace(port.node), list_interfaces(self._bed, port.node)[port.port]
        )


def _state(end: LinkEnd) -> State:
    """From the kernel: the class of each DSCP, and classes with a rate to speak of."""
    with Rtnetlink(end.namespace) as link:
        index = link.find_index(end.interface)
        found = htb.read_tree(link, index, link_ends.read_root(link, end, index))
    served = {q for q in range(QUEUES) if found.classes[htb.build_classid(q)].rate_bps >= ONE_KBPS}
    queue_of = [
        found.class_of(choose_dscp(level)) - htb.build_classid(0) for level in range(LEVELS)
    ]
    return State(queues_of=[tuple(queue_of)], served=frozenset(served))


@contextmanager
def rig(directory: Path) -> Iterator[LinuxRig]:
    need_namespaces()
    with testbed(WIRING) as bed, ExitStack() as stack:
        yield LinuxRig(bed, directory, stack)
