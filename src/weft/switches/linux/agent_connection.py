"""Between the driver and an agent: frames on a Unix socket, and the driver's end of it.

A frame is a length (4 bytes, big endian) and a JSON object of at most `LARGEST_BYTES`. A request
has `weft` (the version of this protocol), `do` (describe, abilities, read, write, release) and
what it is about; an answer has `weft` and what was found, or `error` in three words. The socket is
its owner's alone. An agent that does not answer is an InputError; the next request tries to reach
it anew, and starts it where the driver knows how. One that owes an answer is asked nothing more
until that has come. Entry points: `send`, `receive`, `Agent`, `answers`, `start`. Units: bytes,
seconds.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.errors import InputError

VERSION = 1
MAX_FRAME_BYTES = 1 << 20
ANSWER_S = 10.0  # to start, and to answer: for all agents that are asked at once
EXIT_TIMEOUT_S = 5.0  # for an agent that is about to end
_FRAME_S = 1.0  # for the rest of a frame that has begun
_AGAIN_S = 0.01
_LENGTH = struct.Struct(">I")
_OLD_OR_NEW = "its ports have what they had or what was asked for"

Message = dict[str, Any]


class FrameError(InputError):
    """Bytes that no weft of this version sends, or an end in the middle of a frame."""


# ---- Frames -----------------------------------------------------------------------------------


def send(line: socket.socket, message: Message) -> None:
    payload = json.dumps({"weft": VERSION, **message}, separators=(",", ":")).encode()
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError("frame", f"of {len(payload)} bytes", f"send at most {MAX_FRAME_BYTES}")
    line.sendall(_LENGTH.pack(len(payload)) + payload)


def receive(line: socket.socket) -> Message | None:
    """The next message; None where the other side has closed between two."""
    head = _receive_exactly(line, _LENGTH.size)
    if not head:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MAX_FRAME_BYTES:
        raise FrameError("frame", f"of {length} bytes", f"send at most {MAX_FRAME_BYTES}")
    payload = _receive_exactly(line, length)
    if len(payload) < length:
        raise FrameError("frame", f"ends after {len(payload)} of {length} bytes")
    return _decode_message(payload)


def _receive_exactly(line: socket.socket, count: int) -> bytes:
    """So many bytes, or none if the other side has closed before the first."""
    data = bytearray()
    while len(data) < count:
        piece = line.recv(min(count - len(data), 1 << 16))
        if not piece:
            break
        data += piece
    if 0 < len(data) < count:
        raise FrameError("frame", f"ends after {len(data)} of {count} bytes")
    return bytes(data)


def _decode_message(payload: bytes) -> Message:
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError("frame", "is not JSON") from error
    if not isinstance(message, dict):
        raise FrameError("frame", "is not a JSON object")
    if message.get("weft") != VERSION:
        problem = f"speaks version {message.get('weft')!r:.40}, and this weft {VERSION}"
        raise FrameError("frame", problem, "use the same weft on both sides")
    return message


# ---- The driver's end -------------------------------------------------------------------------


class Agent:
    """The agent of a node. It is asked, then perhaps others are; `answers` awaits all of them."""

    def __init__(
        self, node: str, path: Path, start: Callable[[], subprocess.Popen[bytes]] | None = None
    ) -> None:
        self.node = node
        self.path = path
        self._start = start
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._is_pending = False

    def copy(self) -> Agent:
        """Another connection to the same agent."""
        return Agent(self.node, self.path, self._start)

    def wake(self) -> None:
        """Reaches the agent, or begins to start it: `ask` waits until it listens."""
        while self._socket is not None and self._is_readable():
            self._drop_old_answer()
        if self._is_pending:
            raise self._build_error("it still owes an answer")
        if self._socket is not None or self._is_running():
            return
        try:
            self._socket = _connect(self.path)
        except OSError as error:
            if self._start is None:
                raise self._disconnect(error) from error
            self._start_process(self._start)

    def ask(self, message: Message, deadline: float) -> None:
        """Sends a request, by a time of the monotonic clock."""
        self.wake()
        line = self._socket = self._socket or self._await_socket(deadline)
        line.settimeout(max(_FRAME_S, deadline - time.monotonic()))
        try:
            send(line, message)
        except OSError as error:
            raise self._disconnect(error) from error
        self._is_pending = True

    def read_answer(self) -> Message | InputError:
        """What was done, once it can be read; the agent's own refusal as it came."""
        try:
            message = self._receive()
        except InputError as error:
            return error
        if "error" in message:
            return InputError(*[str(word) for word in message["error"][:3]])
        return message

    def build_timeout(self, seconds: float) -> InputError:
        """What to say of an agent that has not answered in time. Its line stays."""
        return self._build_error(f"not in {seconds:g} s; {_OLD_OR_NEW}")

    def _is_readable(self) -> bool:
        return bool(_list_readable([self], 0))

    def _drop_old_answer(self) -> None:
        """Before a question nothing is to be read: what can be is the end, or an old answer."""
        with suppress(InputError):
            self._receive()

    @property
    def is_connected(self) -> bool:
        return self._socket is not None

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def _receive(self) -> Message:
        if self._socket is None:
            raise self._disconnect("it was not asked")
        self._socket.settimeout(_FRAME_S)
        try:
            message = receive(self._socket)
        except (OSError, FrameError) as error:
            raise self._disconnect(error) from error
        if message is None:
            raise self._disconnect(f"it has ended; {_OLD_OR_NEW}")
        self._is_pending = False
        return message

    def close(self) -> None:
        """Ends the agent too, if this driver has started it: the ports keep what they have."""
        self._hang_up()
        if self._process is not None:
            self._end_process(self._process)
            if not _is_listening(self.path):
                self._clean_up()

    def _clean_up(self) -> None:
        for path in (self.path, _build_log_path(self.path.parent)):
            path.unlink(missing_ok=True)
        with suppress(OSError):  # what ports had is still there, or another agent is
            self.path.parent.rmdir()
            self.path.parent.parent.rmdir()

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

    def _await_socket(self, deadline: float) -> socket.socket:
        """The line to an agent that was started; one that never listens is ended."""
        while True:
            try:
                return _connect(self.path)
            except OSError as error:
                if not self._is_running() or time.monotonic() > deadline:
                    if self._process is not None:
                        self._end_process(self._process)
                    raise self._disconnect(error) from error
            time.sleep(_AGAIN_S)

    def _disconnect(self, reason: object) -> InputError:
        self._hang_up()
        return self._build_error(reason)

    def _build_error(self, reason: object) -> InputError:
        where, problem = f"agent of {self.node}", f"does not answer: {reason}"
        if self._start is not None:
            return InputError(where, problem, f"see {_build_log_path(self.path.parent)}")
        return InputError(where, problem, f"see that it listens at {self.path}")

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._is_pending = False


def await_answers(agents: Collection[Agent], seconds: float) -> dict[str, Message | InputError]:
    """What agents that were asked answer, by their nodes, or why they do not; all in one time."""
    replies: dict[str, Message | InputError] = {}
    pending = list(agents)
    deadline = time.monotonic() + seconds
    while pending and (ready := _list_readable(pending, deadline - time.monotonic())):
        pending = [agent for agent in pending if agent not in ready]
        replies.update({agent.node: agent.read_answer() for agent in ready})
    return {**replies, **{agent.node: agent.build_timeout(seconds) for agent in pending}}


def _list_readable(agents: Collection[Agent], seconds: float) -> list[Agent]:
    """Those of which something can be read, waiting so long for the first."""
    poll = select.poll()
    by_line = {agent.fileno(): agent for agent in agents}
    for line in by_line:
        poll.register(line, select.POLLIN)
    return [by_line[line] for line, _ in poll.poll(1000 * max(0.0, seconds))]


def _connect(path: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(ANSWER_S)
    try:
        line.connect(str(path))
    except OSError:
        line.close()
        raise
    return line


def _is_listening(path: Path) -> bool:
    """Another agent than ours: of two drivers that start one at once, one has started it."""
    try:
        _connect(path).close()
    except OSError:
        return False
    return True


def build_socket_path(folder: Path) -> Path:
    return folder / "agent.sock"


def _build_log_path(folder: Path) -> Path:
    return folder / "agent.log"


def start_agent(
    node: str, namespace: str | None, folder: Path, interfaces: Mapping[int, str]
) -> subprocess.Popen[bytes]:
    """An agent that stays when this process ends; what it complains of is in its folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ports = [f"--port={number}={name}" for number, name in interfaces.items()]
    module = ["-P", "-m", "weft.switches.linux.agent"]
    argv = [sys.executable, *module, node, f"--folder={folder}", *ports]
    inside = argv if namespace is None else ["ip", "netns", "exec", namespace, *argv]
    with _build_log_path(folder).open("wb") as log:
        return subprocess.Popen(
            inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
