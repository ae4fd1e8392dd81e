"""The agent of a switch: a process on the switch, or in its namespace, that programs its ports.

    python -m weft.switches.linux.agent NODE --folder DIR --port 1=swp1 --port 2=swp2
    python -m weft.switches.linux.agent NODE --folder DIR --release

The agent listens on DIR/agent.sock (`weft.switches.linux.agent_connection`), which its user and its
group can open; use ssh to forward the socket from another machine. It serves one request at a time;
SIGTERM waits for the current one. Ending the agent changes nothing in the kernel: DIR has the saved
state of the ports, and `--release` restores it; DIR/claim has the controller with the highest epoch
so far, and older ones are refused. Ports that carry the default route, directly or for
their bridge, are refused unless they are allowed. Unverified on physical ports: ran on virtual ones
only. Entry point: `main`. Units: bits per second.
"""

from __future__ import annotations

import argparse
import os
import signal
import socketserver
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from weft.errors import InputError, WeftError
from weft.host.machine.processes import hold_lock, notify_service_manager
from weft.host.net.rtnetlink import Rtnetlink
from weft.switches.linux.agent_connection import (
    EXIT_TIMEOUT_S,
    REQUESTS,
    Answer,
    ClaimNode,
    Describe,
    Description,
    Granted,
    GuardMarks,
    MarkCounts,
    PortRequest,
    PortResults,
    ReadAbilities,
    ReadSent,
    ReadTables,
    ReleasePorts,
    Reply,
    Request,
    SentBytes,
    TakenBy,
    WriteTables,
    build_socket_path,
    encode_result,
    make_folder,
)
from weft.switches.linux.htb_ports import Ports, release_ports, restore_ports
from weft.switches.linux.mark_guard import MarkGuard
from weft.switches.tables import (
    Ability,
    Claim,
    Failed,
    Foreign,
    Tables,
    grant,
    read_grant,
    write_grant,
)
from weft.units import parse_rate
from weft.wire import Connection, Failure, ProtocolError, accept

_MAX_PATH = 107  # of a Unix socket
_SOCKET_MODE = 0o660
_IDLE_S = 3600.0
_CHANGES = (WriteTables, ReleasePorts)  # for the owner alone, as the guard's


# ---- Requests ---------------------------------------------------------------------------------


class RequestHandler:
    """Carries out requests about the ports of a node.

    A connection may claim the node. While its owner has the highest epoch, nobody else writes.
    """

    def __init__(self, node: str, ports: Ports) -> None:
        self.node = node
        self._ports = ports
        self._guard = MarkGuard(node, ports.interfaces, ports.folder)
        self._lock = threading.Lock()
        # Of the guard, taken before the other: it starts processes, for which tables do not wait.
        self._guard_lock = threading.Lock()
        self._grant = read_grant(_build_claim_path(ports.folder))
        self._claims: dict[object, Claim] = {}  # granted, of open connections

    def answer(self, request: ClaimNode | Request, connection: object = None) -> Reply:
        try:
            if isinstance(request, GuardMarks):
                return self._guard_marks(request, connection)
            is_release = isinstance(request, ReleasePorts)
            with self._guard_lock if is_release else nullcontext(), self._lock:
                if isinstance(request, ClaimNode):
                    return self._claim(Claim(owner=request.owner, epoch=request.epoch), connection)
                if isinstance(request, _CHANGES) and self._is_fenced(connection):
                    return TakenBy(self._grant.owner, self._grant.epoch)
                return self._carry_out(request)
        except InputError as error:
            return Failure.from_error(error)
        except OSError as error:
            return Failure(f"agent of {self.node}", str(error), "")

    def forget(self, connection: object) -> None:
        """The connection has ended."""
        with self._lock:
            self._claims.pop(connection, None)

    def _claim(self, claim: Claim, connection: object) -> Granted | TakenBy:
        is_connected = any(
            self._grant.belongs_to(other)
            for peer, other in self._claims.items()
            if peer is not connection
        )
        granted = grant(self._grant, claim, is_connected=is_connected)
        if granted is None:
            return TakenBy(self._grant.owner, self._grant.epoch)
        if granted != self._grant:
            make_folder(self._ports.folder)
            write_grant(_build_claim_path(self._ports.folder), granted)
            self._grant = granted
        self._claims[connection] = Claim(owner=granted.owner, epoch=granted.epoch)
        return Granted(granted.epoch)

    def _is_fenced(self, connection: object) -> bool:
        """A connection without a claim (a tool's) may write while no owner is connected."""
        claim = self._claims.get(connection)
        if claim is not None:
            return not self._grant.belongs_to(claim)
        return any(self._grant.belongs_to(other) for other in self._claims.values())

    def finish(self) -> None:
        """Waits for the current requests; none begins after that."""
        self._guard_lock.acquire()
        self._lock.acquire()

    def _guard_marks(self, request: GuardMarks, connection: object) -> Reply:
        """A new owner's rules come after those that an earlier one was still allowed to set."""
        with self._guard_lock:
            with self._lock:
                if self._is_fenced(connection):
                    return TakenBy(self._grant.owner, self._grant.epoch)
            if request.rules is None:
                return MarkCounts(self._guard.read_counts())
            self._guard.set_rules(request.rules)
            return MarkCounts(self._guard.read_new_counts())

    def _carry_out(self, request: PortRequest) -> Answer:
        ports = self._ports
        if isinstance(request, Describe):
            interfaces = [*ports.interfaces.items()]
            return Description(self.node, interfaces, [*ports.read_forwarding().items()])
        if isinstance(request, ReadAbilities):
            return _encode_results(ports.abilities(request.ports))
        if isinstance(request, ReadTables):
            return _encode_results(ports.read(request.ports))
        if isinstance(request, ReadSent):
            sent = ports.read_sent(request.ports)
            return SentBytes([(number, list(counts)) for number, counts in sent.items()])
        if isinstance(request, WriteTables):
            return _encode_results(ports.write(dict(request.tables)))
        return restore_ports(ports.folder)


def _build_claim_path(folder: Path) -> Path:
    return folder / "claim"


def _encode_results(results: Mapping[int, Ability | Tables | Foreign | Failed]) -> PortResults:
    return PortResults([encode_result(number, result) for number, result in results.items()])


# ---- The process ------------------------------------------------------------------------------


class _Session(socketserver.BaseRequestHandler):
    server: Server

    def handle(self) -> None:
        with suppress(OSError, WeftError):  # the driver is gone, or was told why it is refused
            self._talk(accept(self.request, None, REQUESTS))

    def _talk(self, connection: Connection[ClaimNode | Request]) -> None:
        try:
            while True:
                request = connection.next(_IDLE_S)
                if request is not None:
                    connection.send(self.server.handler.answer(request, self))
        except InputError as error:  # tables that no port could have
            connection.send(Failure.from_error(error))
        except ProtocolError as error:
            connection.send(Failure("request", str(error), "use the same weft on both sides"))
        finally:
            self.server.handler.forget(self)
            connection.close()


class Server(socketserver.ThreadingUnixStreamServer):
    """Listens in the agent's folder; its user and its group can connect, nobody else."""

    daemon_threads = True

    def __init__(self, folder: Path, handler: RequestHandler) -> None:
        self.handler = handler
        before = os.umask(0o777 & ~_SOCKET_MODE)
        try:
            super().__init__(str(build_socket_path(folder)), _Session)
        finally:
            os.umask(before)


def serve(node: str, ports: Ports) -> None:
    """Serves until a signal ends it."""
    folder = ports.folder
    make_folder(folder)
    check_socket_path(folder)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_on_signal)
    handler = RequestHandler(node, ports)
    with hold_lock(folder / "lock", f"agent of {node}", "switch agent", EXIT_TIMEOUT_S):
        build_socket_path(folder).unlink(missing_ok=True)
        try:
            with Server(folder, handler) as server:
                notify_service_manager("READY=1")
                server.serve_forever()
        finally:
            handler.finish()
            build_socket_path(folder).unlink(missing_ok=True)


def check_socket_path(folder: Path) -> None:
    if len(str(build_socket_path(folder))) > _MAX_PATH:
        problem = f"the socket's path is longer than {_MAX_PATH} characters"
        raise InputError(str(folder), problem, "choose another folder")


def _exit_on_signal(*_: object) -> None:
    """Interrupts the accept loop, once; other threads carry out requests."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(0)


def main(argv: Sequence[str] | None = None) -> int:
    args = _build_parser().parse_args(argv)
    try:
        if args.release:
            _release(args.node, args.folder)
        else:
            serve(args.node, _open_ports(args))
    except (WeftError, OSError) as error:
        print(f"weft: {error}", file=sys.stderr)
        return 2
    return 0


def _release(node: str, folder: Path) -> None:
    released = release_ports(node, folder)
    print(f"{node}: released {', '.join(released.restored) or 'nothing'}")
    for interface in released.left_alone:
        print(f"{node}: left alone: {interface}")


def _build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="weft.switches.linux.agent", description=__doc__)
    parser.add_argument("node", metavar="NODE", help="its name in the fabric")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="of its files")
    parser.add_argument("--port", action="append", default=[], metavar="N=INTERFACE")
    parser.add_argument("--rate", action="append", default=[], metavar="N=RATE")
    parser.add_argument(
        "--allow-default-route",
        action="store_true",
        help="also ports that carry it, alone or for their bridge (management in band)",
    )
    parser.add_argument("--release", action="store_true", help="give the ports back")
    return parser


def _open_ports(args: argparse.Namespace) -> Ports:
    interfaces = _parse_numbered("--port", args.port)
    if not interfaces:
        raise InputError("--port", "none is given", "name each as N=INTERFACE")
    rate_texts = _parse_numbered("--rate", args.rate)
    rates = {number: int(parse_rate(text, "--rate")) for number, text in rate_texts.items()}
    return Ports(
        Rtnetlink(),
        interfaces,
        args.folder,
        rates_bps=rates,
        allow_default_route=args.allow_default_route,
    )


def _parse_numbered(option: str, words: Sequence[str]) -> dict[int, str]:
    values: dict[int, str] = {}
    for word in words:
        number, _, name = word.partition("=")
        if not number.isdecimal() or int(number) < 1 or not name or int(number) in values:
            raise InputError(f"{option} {word}", "is not N=..., each N once from 1", "correct it")
        values[int(number)] = name
    return values


if __name__ == "__main__":
    sys.exit(main())
