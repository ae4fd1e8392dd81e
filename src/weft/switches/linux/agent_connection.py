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
LARGEST_BYTES = 1 << 20
ANSWER_S = 10.0  # to start, and to answer: for all agents that are asked at once
LEAVE_S = 5.0  # for an agent that is about to end
_FRAME_S = 1.0  # for the rest of a frame that has begun
_AGAIN_S = 0.01
_LENGTH = struct.Struct(">I")
_EITHER = "its ports have what they had or what was asked for"

Message = dict[str, Any]


class Broken(InputError):
    """Bytes that no weft of this version sends, or an end in the middle of a frame."""


# ---- Frames -----------------------------------------------------------------------------------


def send(line: socket.socket, message: Message) -> None:
    payload = json.dumps({"weft": VERSION, **message}, separators=(",", ":")).encode()
    if len(payload) > LARGEST_BYTES:
        raise Broken("frame", f"of {len(payload)} bytes", f"send at most {LARGEST_BYTES}")
    line.sendall(_LENGTH.pack(len(payload)) + payload)


def receive(line: socket.socket) -> Message | None:
    """The next message; None where the other side has closed between two."""
    head = _exactly(line, _LENGTH.size)
    if not head:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > LARGEST_BYTES:
        raise Broken("frame", f"of {length} bytes", f"send at most {LARGEST_BYTES}")
    payload = _exactly(line, length)
    if len(payload) < length:
        raise Broken("frame", f"ends after {len(payload)} of {length} bytes")
    return _message(payload)


def _exactly(line: socket.socket, count: int) -> bytes:
    """So many bytes, or none if the other side has closed before the first."""
    got = bytearray()
    while len(got) < count:
        piece = line.recv(min(count - len(got), 1 << 16))
        if not piece:
            break
        got += piece
    if 0 < len(got) < count:
        raise Broken("frame", f"ends after {len(got)} of {count} bytes")
    return bytes(got)


def _message(payload: bytes) -> Message:
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise Broken("frame", "is not JSON") from error
    if not isinstance(found, dict):
        raise Broken("frame", "is not a JSON object")
    if found.get("weft") != VERSION:
        problem = f"speaks version {found.get('weft')!r:.40}, and this weft {VERSION}"
        raise Broken("frame", problem, "use the same weft on both sides")
    return found


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
        self._line: socket.socket | None = None
        self._owes = False

    def copy(self) -> Agent:
        """Another connection to the same agent."""
        return Agent(self.node, self.path, self._start)

    def wake(self) -> None:
        """Reaches the agent, or begins to start it: `ask` waits until it listens."""
        while self._line is not None and self._is_readable():
            self._drop_old_answer()
        if self._owes:
            raise self._silent("it still owes an answer")
        if self._line is not None or self._is_running():
            return
        try:
            self._line = _connect(self.path)
        except OSError as error:
            if self._start is None:
                raise self._lost(error) from error
            self._begin(self._start)

    def ask(self, message: Message, deadline: float) -> None:
        """Sends a request, by a time of the monotonic clock."""
        self.wake()
        line = self._line = self._line or self._awaited(deadline)
        line.settimeout(max(_FRAME_S, deadline - time.monotonic()))
        try:
            send(line, message)
        except OSError as error:
            raise self._lost(error) from error
        self._owes = True

    def answer(self) -> Message | InputError:
        """What was done, once it can be read; the agent's own refusal as it came."""
        try:
            found = self._received()
        except InputError as error:
            return error
        if "error" in found:
            return InputError(*[str(word) for word in found["error"][:3]])
        return found

    def overdue(self, seconds: float) -> InputError:
        """What to say of an agent that has not answered in time. Its line stays."""
        return self._silent(f"not in {seconds:g} s; {_EITHER}")

    def _is_readable(self) -> bool:
        return bool(_readable([self], 0))

    def _drop_old_answer(self) -> None:
        """Before a question nothing is to be read: what can be is the end, or an old answer."""
        with suppress(InputError):
            self._received()

    @property
    def is_connected(self) -> bool:
        return self._line is not None

    def fileno(self) -> int:
        return -1 if self._line is None else self._line.fileno()

    def _received(self) -> Message:
        if self._line is None:
            raise self._lost("it was not asked")
        self._line.settimeout(_FRAME_S)
        try:
            found = receive(self._line)
        except (OSError, Broken) as error:
            raise self._lost(error) from error
        if found is None:
            raise self._lost(f"it has ended; {_EITHER}")
        self._owes = False
        return found

    def close(self) -> None:
        """Ends the agent too, if this driver has started it: the ports keep what they have."""
        self._hang_up()
        if self._process is not None:
            self._end(self._process)
            if not _is_listening(self.path):
                self._clean_up()

    def _clean_up(self) -> None:
        for left in (self.path, _log(self.path.parent)):
            left.unlink(missing_ok=True)
        with suppress(OSError):  # what ports had is still there, or another agent is
            self.path.parent.rmdir()
            self.path.parent.parent.rmdir()

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _begin(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        try:
            self._process = start()
        except OSError as error:
            raise self._lost(f"it cannot be started: {error}") from error

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def _awaited(self, deadline: float) -> socket.socket:
        """The line to an agent that was started; one that never listens is ended."""
        while True:
            try:
                return _connect(self.path)
            except OSError as error:
                if not self._is_running() or time.monotonic() > deadline:
                    if self._process is not None:
                        self._end(self._process)
                    raise self._lost(error) from error
            time.sleep(_AGAIN_S)

    def _lost(self, reason: object) -> InputError:
        self._hang_up()
        return self._silent(reason)

    def _silent(self, reason: object) -> InputError:
        where, problem = f"agent of {self.node}", f"does not answer: {reason}"
        if self._start is not None:
            return InputError(where, problem, f"see {_log(self.path.parent)}")
        return InputError(where, problem, f"see that it listens at {self.path}")

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
        self._owes = False


def answers(agents: Collection[Agent], seconds: float) -> dict[str, Message | InputError]:
    """What agents that were asked answer, by their nodes, or why they do not; all in one time."""
    found: dict[str, Message | InputError] = {}
    owing = list(agents)
    deadline = time.monotonic() + seconds
    while owing and (some := _readable(owing, deadline - time.monotonic())):
        owing = [agent for agent in owing if agent not in some]
        found.update({agent.node: agent.answer() for agent in some})
    return {**found, **{agent.node: agent.overdue(seconds) for agent in owing}}


def _readable(agents: Collection[Agent], seconds: float) -> list[Agent]:
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


def socket_path(folder: Path) -> Path:
    return folder / "agent.sock"


def _log(folder: Path) -> Path:
    return folder / "agent.log"


def start(
    node: str, namespace: str | None, folder: Path, interfaces: Mapping[int, str]
) -> subprocess.Popen[bytes]:
    """An agent that stays when this process ends; what it complains of is in its folder."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ports = [f"--port={number}={name}" for number, name in interfaces.items()]
    module = ["-P", "-m", "weft.switches.linux.agent"]
    argv = [sys.executable, *module, node, f"--folder={folder}", *ports]
    inside = argv if namespace is None else ["ip", "netns", "exec", namespace, *argv]
    with _log(folder).open("wb") as log:
        return subprocess.Popen(
            inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
