"""The driver's connection to an agent: messages, requests and answers, starting the agent.

Driver and agent speak `weft.wire`, without a token, over a Unix socket that the agent's user and
group alone can open.
A request has one answer, or a `Failure`. A controller's connection begins with its claim. The
driver asks many agents at once and awaits all answers together; an agent that is silent, also
during the handshake, delays no other. An agent that does not answer is an InputError; the next
request connects again, and starts the agent if the driver knows how. An agent that still owes an
answer gets no new request. Entry points: `Agent`, `await_answers`, `start_agent`. Units: seconds.
"""

from __future__ import annotations

import grp
import os
import pwd
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from weft.errors import InputError
from weft.switches.linux.mark_guard import MarkCount, MarkRules
from weft.switches.tables import (
    Ability,
    AgentEvent,
    Claim,
    Failed,
    Foreign,
    HtbQueue,
    Tables,
    build_taken_error,
)
from weft.wire import (
    ClientHandshake,
    Connection,
    ConnectionLost,
    Decoder,
    Failure,
    Message,
    ProtocolError,
)

ANSWER_S = 10.0  # to start, and to answer: for all agents that are asked at once
EXIT_TIMEOUT_S = 5.0
FOLDER_MODE = 0o750
_RETRY_S = 0.01
_GREETING_BYTES = 4096
_MOST_EVENTS = 8
_OLD_OR_NEW = "its ports have their old tables or the requested ones"


# ---- Messages ---------------------------------------------------------------------------------


class Describe(Message):
    """Asks for the node's ports and for the stations behind them."""


class ClaimNode(Message):
    """The first request of a controller's connection (`weft.switches.tables`)."""

    owner: str
    epoch: int | None


class ReadAbilities(Message):
    ports: list[int]


class ReadTables(Message):
    ports: list[int]


class ReadSent(Message):
    ports: list[int]


class WriteTables(Message):
    tables: list[tuple[int, Tables]]


class ReleasePorts(Message):
    """Asks to restore all ports that were taken over."""


class Granted(Message):
    """The claim is granted for this connection, with this epoch."""

    epoch: int


class TakenBy(Message):
    """Refused: another controller has the switch."""

    owner: str
    epoch: int


class GuardMarks(Message):
    """Asks to admit these marks alone, or (None) for what was rewritten since the last look.

    An answer to new rules has it too, if the last look is some time ago.
    """

    rules: MarkRules | None


class Description(Message):
    """Interface by port number; port number by MAC address."""

    node: str
    ports: list[tuple[int, str]]
    forwarding: list[tuple[str, int]]


class PortResult(Message):
    """What was asked of a port, or why it failed: one of the fields is set.

    `queues` may stand beside `foreign`.
    """

    number: int
    ability: Ability | None = None
    tables: Tables | None = None
    foreign: str | None = None
    failed: str | None = None
    queues: tuple[HtbQueue, ...] | None = None

    @property
    def value(self) -> Ability | Tables | Foreign | Failed:
        if self.failed is not None:
            return Failed(self.failed)
        if self.foreign is not None:
            return Foreign(self.foreign, self.queues)
        return self.tables or self.ability or Failed("the agent's answer is empty")


class PortResults(Message):
    ports: list[PortResult]


class Released(Message):
    """Interfaces that were restored, and why others were left alone."""

    restored: list[str]
    left_alone: list[str]


class MarkCounts(Message):
    """Rewritten bytes since the last look."""

    counts: list[MarkCount]


class SentBytes(Message):
    """Bytes that each queue of a port has sent."""

    ports: list[tuple[int, list[int]]]


PortRequest = Describe | ReadAbilities | ReadTables | ReadSent | WriteTables | ReleasePorts
Request = PortRequest | GuardMarks
Answer = Description | PortResults | Released | MarkCounts | SentBytes
Reply = Answer | Granted | TakenBy | Failure
REQUESTS: Decoder[ClaimNode | Request] = Decoder(ClaimNode | Request)
ANSWERS: Decoder[Reply] = Decoder(Reply)


def encode_result(number: int, value: Ability | Tables | Foreign | Failed) -> PortResult:
    if isinstance(value, Failed):
        return PortResult(number, failed=value.problem)
    if isinstance(value, Foreign):
        return PortResult(number, foreign=value.description, queues=value.queues)
    if isinstance(value, Tables):
        return PortResult(number, tables=value)
    return PortResult(number, ability=value)


# ---- The driver's end -------------------------------------------------------------------------


class AgentSilent(InputError):
    """An agent that does not answer; the kernel keeps its tables and rules."""


class Agent:
    """The agent of a node. Ask several, then `await_answers` of all of them."""

    def __init__(
        self, node: str, path: Path, start: Callable[[], subprocess.Popen[bytes]] | None = None
    ) -> None:
        self.node = node
        self.path = path
        self._start = start
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._handshake = self._new_handshake()
        self._connection: Connection[Reply] | None = None
        self._request: Request | None = None  # sent when the handshake is over
        self._claim: Claim | None = None  # sent first
        self._is_pending = False
        self._is_claiming = False
        self.connections = 0  # so far: another one may be to another process
        self._events: deque[AgentEvent] = deque(maxlen=_MOST_EVENTS)

    def copy(self) -> Agent:
        """Another connection to the same agent."""
        agent = Agent(self.node, self.path, self._start)
        agent._claim = self._claim
        return agent

    def claim(self, claim: Claim) -> None:
        """Connections made from now on are this owner's."""
        self._hang_up()
        self._claim = claim

    def is_listening(self) -> bool:
        return self._socket is not None or _is_listening(self.path)

    def wake(self) -> None:
        """Connects to the agent, or begins to start it: `ask` waits until it listens."""
        while self._socket is not None and _list_readable([self], 0):
            self.read_answer()  # the end, a grant, or the answer to an old request
        if self._is_pending:
            raise self._build_error("it still owes an answer")
        if self._socket is not None or self._is_running():
            return
        try:
            self._connect()
        except PermissionError as error:
            raise self._build_permission_error() from error
        except OSError as error:
            if self._start is None:
                raise self._disconnect(error) from error
            self._start_process(self._start)

    def ask(self, request: Request, deadline: float) -> None:
        """Sends a request, by a time of the monotonic clock."""
        self.wake()
        if self._socket is None:
            self._await_socket(deadline)
        self._is_pending = True
        if self._connection is None or self._is_claiming:
            self._request = request
        else:
            self._send(self._connection, request)

    def read_answer(self) -> Answer | InputError | None:
        """What has come; None if the answer is not complete. Call it when there is data."""
        try:
            message = self._receive()
        except InputError as error:
            return error
        match message:
            case Failure():
                return message.to_error()
            case TakenBy():
                self._hang_up()
                return build_taken_error(f"agent of {self.node}", message.owner, message.epoch)
            case Granted():
                return self._use_grant(message)
        return message

    def _use_grant(self, message: Granted) -> InputError | None:
        """The epoch stays: after another's claim, this one is refused."""
        self._is_claiming = False
        if self._claim is not None:
            self._claim = replace(self._claim, epoch=message.epoch)
        try:
            self._send_request()
        except InputError as error:
            return error
        return None

    def build_timeout(self, seconds: float) -> InputError:
        """The error for an agent that has not answered in time. The connection stays."""
        if self._request is not None:
            self._request = None
            return self._build_error(f"not in {seconds:g} s; nothing was sent")
        return self._build_error(f"not in {seconds:g} s; {_OLD_OR_NEW}")

    def take_events(self) -> list[AgentEvent]:
        """When it ended or answered, since the last call; the latest if there are many."""
        events = list(self._events)
        self._events.clear()
        return events

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        """Also ends the agent if this driver started it; the ports keep their tables."""
        self._hang_up()
        if self._process is not None:
            self._end_process(self._process)
            if not _is_listening(self.path):
                self._clean_up()

    # ---- The connection -----------------------------------------------------------------------

    def _new_handshake(self) -> ClientHandshake:
        return ClientHandshake(None, f"agent of {self.node}")

    def _connect(self) -> None:
        self._socket = _connect(self.path)
        self.connections += 1
        self._handshake = self._new_handshake()
        self._socket.sendall(self._handshake.hello)

    def _await_socket(self, deadline: float) -> None:
        """Connects to an agent that was started; one that never listens is ended."""
        while True:
            try:
                return self._connect()
            except OSError as error:
                if not self._is_running() or time.monotonic() > deadline:
                    if self._process is not None:
                        self._end_process(self._process)
                    raise self._disconnect(error) from error
            time.sleep(_RETRY_S)

    def _send_request(self) -> None:
        request, self._request = self._request, None
        self._is_pending = request is not None
        if request is not None and self._connection is not None:
            self._send(self._connection, request)

    def _send(self, connection: Connection[Reply], request: ClaimNode | Request) -> None:
        try:
            connection.send(request)
        except ConnectionLost as error:
            self._note(has_ended=True)
            raise self._disconnect(error) from error

    def _receive(self) -> Reply | None:
        """The next message, if it is complete; carries on the handshake until that is over."""
        if self._socket is None:
            raise self._disconnect("it was not asked")
        try:
            if self._connection is None:
                self._continue_handshake(self._socket)
                return None
            messages = self._connection.receive()
        except ConnectionLost as error:
            if self._connection is not None:
                self._note(has_ended=True)
            raise self._disconnect(f"{error}; {_OLD_OR_NEW}") from error
        except (OSError, ProtocolError, InputError) as error:
            raise self._disconnect(error) from error
        if messages:
            self._is_pending = False
        return messages[0] if messages else None

    def _continue_handshake(self, sock: socket.socket) -> None:
        data = sock.recv(_GREETING_BYTES)
        if not data:
            raise ConnectionLost("closed the connection")
        sock.sendall(self._handshake.feed(data))
        if self._handshake.limits is None or self._handshake.keys is None:
            return
        self._connection = Connection(sock, self._handshake.keys, ANSWERS, server=False)
        self._note(has_ended=False)
        if self._claim is None:
            self._send_request()
        else:
            self._is_claiming = True
            self._send(self._connection, ClaimNode(self._claim.owner, self._claim.epoch))

    def _note(self, *, has_ended: bool) -> None:
        self._events.append(AgentEvent(self.node, has_ended, time.monotonic()))

    def _disconnect(self, reason: object) -> InputError:
        self._hang_up()
        return self._build_error(reason)

    def _build_error(self, reason: object) -> InputError:
        where, problem = f"agent of {self.node}", f"does not answer: {reason}"
        if self._start is not None:
            return AgentSilent(where, problem, f"see {_build_log_path(self.path.parent)}")
        return AgentSilent(where, problem, f"check that it listens at {self.path}")

    def _build_permission_error(self) -> InputError:
        """Names what refuses: the socket, or a folder on the way to it."""
        self._hang_up()
        barrier, status = _find_barrier(self.path)
        noun, needed = ("socket", 0o020) if barrier == self.path else (f"folder {barrier}", 0o010)
        owners = f"{_name_user(status.st_uid)}:{_name_group(status.st_gid)}"
        problem = f"its {noun} belongs to {owners} and may not be opened by user {os.geteuid()}"
        is_for_group = status.st_mode & needed
        remedy = (
            "run the controller in that group"
            if is_for_group
            else "run the controller as that user"
        )
        return AgentSilent(f"agent of {self.node}", problem, remedy)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        elif self._socket is not None:
            self._socket.close()
        self._socket = self._connection = self._request = None
        self._is_pending = self._is_claiming = False

    # ---- The process --------------------------------------------------------------------------

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start_process(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        try:
            self._process = start()
        except OSError as error:
            raise self._disconnect(f"it cannot be started: {error}") from error

    def _end_process(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def _clean_up(self) -> None:
        for path in (self.path, _build_log_path(self.path.parent)):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # saved ports are still there, or another agent is
            self.path.parent.rmdir()
            self.path.parent.parent.rmdir()


def await_answers(agents: Collection[Agent], seconds: float) -> dict[str, Answer | InputError]:
    """The answers of agents that were asked, by node, or why there is none; all have this time."""
    answers: dict[str, Answer | InputError] = {}
    pending = list(agents)
    deadline = time.monotonic() + seconds
    while pending and (ready := _list_readable(pending, deadline - time.monotonic())):
        for agent in ready:
            answer = agent.read_answer()
            if answer is not None:
                answers[agent.node] = answer
        pending = [agent for agent in pending if agent.node not in answers]
    return {**answers, **{agent.node: agent.build_timeout(seconds) for agent in pending}}


def _list_readable(agents: Collection[Agent], seconds: float) -> list[Agent]:
    """The agents with data to read, after waiting for the first of them."""
    poll = select.poll()
    by_descriptor = {agent.fileno(): agent for agent in agents}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.POLLIN)
    return [by_descriptor[n] for n, _ in poll.poll(1000 * max(0.0, seconds))]


def _connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(ANSWER_S)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    return sock


def _find_barrier(path: Path) -> tuple[Path, os.stat_result]:
    """The last part of a path that this user can see."""
    for part in (path, *path.parents):
        with suppress(OSError):
            return part, part.stat()
    raise FileNotFoundError(path)


def _name_user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # no such account here
        return str(uid)


def _name_group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _is_listening(path: Path) -> bool:
    """Another driver may have started an agent at the same time: then that one listens."""
    try:
        _connect(path).close()
    except OSError:
        return False
    return True


def build_socket_path(folder: Path) -> Path:
    return folder / "agent.sock"


def make_folder(folder: Path) -> None:
    """The agent's folder: its group may look for the socket. An existing one keeps its mode."""
    if not folder.is_dir():
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        folder.chmod(FOLDER_MODE)  # whatever the umask


def _build_log_path(folder: Path) -> Path:
    return folder / "agent.log"


def start_agent(
    node: str, namespace: str | None, folder: Path, interfaces: Mapping[int, str]
) -> subprocess.Popen[bytes]:
    """An agent that outlives this process; its errors go to a log in its folder."""
    make_folder(folder)
    ports = [f"--port={number}={name}" for number, name in interfaces.items()]
    module = ["-P", "-m", "weft.switches.linux.agent"]
    argv = [sys.executable, *module, node, f"--folder={folder}", *ports]
    inside = argv if namespace is None else ["ip", "netns", "exec", namespace, *argv]
    with _build_log_path(folder).open("wb") as log:
        return subprocess.Popen(
            inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
