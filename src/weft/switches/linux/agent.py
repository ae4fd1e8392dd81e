"""The agent of a switch: a process on the switch, or in its namespace, that programs its ports.

    python -m weft.switches.linux.agent NODE --folder DIR --port 1=swp1 --port 2=swp2
    python -m weft.switches.linux.agent NODE --folder DIR --release

It listens on DIR/agent.sock (`weft.switches.linux.agent_connection`), which only its owner can
open; to reach it from another machine, let ssh forward the socket. One request at a time is done,
whoever asks, and SIGTERM waits for its end. The agent's own end changes nothing in the kernel; DIR
keeps what ports had, and `--release` puts that back. Ports that carry the default route, those of a
bridge that does among them, are refused unless they are allowed. Unverified on physical ports: it
has run on virtual ones alone. Entry point: `main`. Units: bits per second.
"""

from __future__ import annotations

import argparse
import os
import signal
import socketserver
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft.errors import InputError, WeftError
from weft.host.net.file_lock import hold_lock
from weft.host.net.rtnetlink import Rtnetlink
from weft.switches.linux import agent_connection
from weft.switches.linux.agent_connection import (
    EXIT_TIMEOUT_S,
    FrameError,
    Message,
    build_socket_path,
)
from weft.switches.linux.htb_ports import Ports, release_ports, restore_ports
from weft.switches.linux.htb_tables import decode_tables, encode_tables
from weft.switches.tables import Ability, Failed, Foreign, Tables
from weft.units import parse_rate

PortResult = Ability | Tables | Foreign | Failed

_MAX_PATH = 107  # of a Unix socket


# ---- What it answers --------------------------------------------------------------------------


class RequestHandler:
    """What is asked of the ports of a node, and what is answered."""

    def __init__(self, node: str, ports: Ports) -> None:
        self.node = node
        self._ports = ports
        self._lock = threading.Lock()
        self._verbs: Mapping[str, Callable[[Message], Message]] = {
            "describe": self._describe,
            "abilities": self._abilities,
            "read": self._read,
            "write": self._write,
            "release": self._release,
        }

    def answer(self, message: Message) -> Message:
        verb = self._verbs.get(str(message.get("do")))
        try:
            if verb is None:
                problem = f"cannot {message.get('do')!s:.40}"
                raise InputError(f"agent of {self.node}", problem, f"ask {', '.join(self._verbs)}")
            with self._lock:
                return verb(message)
        except InputError as error:
            return {"error": [error.where, error.problem, error.remedy]}
        except OSError as error:
            return {"error": [f"agent of {self.node}", str(error), ""]}

    def finish(self) -> None:
        """Waits for what is under way; nothing more is begun."""
        self._lock.acquire()

    def _describe(self, _: Message) -> Message:
        return {
            "node": self.node,
            "ports": [[n, name] for n, name in self._ports.interfaces.items()],
            "forwarding": [[mac, n] for mac, n in self._ports.forwarding().items()],
        }

    def _abilities(self, message: Message) -> Message:
        return {"ports": _encode_results(self._ports.abilities(_read_numbers(message)))}

    def _read(self, message: Message) -> Message:
        return {"ports": _encode_results(self._ports.read(_read_numbers(message)))}

    def _write(self, message: Message) -> Message:
        wanted: dict[int, Tables] = {}
        refused: dict[int, PortResult] = {}
        for number, data in _read_pairs(message):
            try:
                wanted[number] = decode_tables(data, f"tables of {self.node} port {number}")
            except InputError as error:
                refused[number] = Failed(str(error))
        return {"ports": _encode_results({**refused, **self._ports.write(wanted)})}

    def _release(self, _: Message) -> Message:
        released = restore_ports(self._ports.folder)
        return {"released": list(released.restored), "left": list(released.left_alone)}


def _read_numbers(message: Message) -> list[int]:
    numbers = message.get("ports")
    if not isinstance(numbers, list) or any(type(number) is not int for number in numbers):
        raise InputError("request", "ports are not numbers", "send a list of whole numbers")
    return numbers


def _read_pairs(message: Message) -> list[tuple[int, Any]]:
    tables = message.get("tables")
    pairs: list[Any] = tables if isinstance(tables, list) else [None]
    if any(
        not isinstance(pair, list) or len(pair) != 2 or type(pair[0]) is not int for pair in pairs
    ):
        raise InputError("request", "are not tables of ports", "send [number, tables] of each")
    return [(number, data) for number, data in pairs]


def _encode_results(results: Mapping[int, PortResult]) -> list[list[Any]]:
    return [[number, _encode_result(result)] for number, result in results.items()]


def _encode_result(result: PortResult) -> Message:
    if isinstance(result, Failed):
        return {"failed": result.problem}
    if isinstance(result, Foreign):
        return {"foreign": result.what}
    return encode_tables(result) if isinstance(result, Tables) else asdict(result)


# ---- The process ------------------------------------------------------------------------------


class _Session(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):  # the driver has gone
            self._talk()

    def _talk(self) -> None:
        try:
            while (message := agent_connection.receive(self.request)) is not None:
                agent_connection.send(self.request, self.server.handler.answer(message))  # type: ignore[attr-defined]
        except FrameError as error:
            agent_connection.send(
                self.request, {"error": [error.where, error.problem, error.remedy]}
            )


class Server(socketserver.ThreadingUnixStreamServer):
    """Listens in an agent's folder, whose owner alone may ask."""

    daemon_threads = True

    def __init__(self, folder: Path, handler: RequestHandler) -> None:
        self.handler = handler
        before = os.umask(0o077)
        try:
            super().__init__(str(build_socket_path(folder)), _Session)
        finally:
            os.umask(before)


def serve(node: str, ports: Ports) -> None:
    """Until a signal ends it."""
    folder = ports.folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if len(str(build_socket_path(folder))) > _MAX_PATH:
        problem = f"the socket's path is longer than {_MAX_PATH} characters"
        raise InputError(str(folder), problem, "choose another folder")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_on_signal)
    handler = RequestHandler(node, ports)
    with hold_lock(folder / "lock", f"agent of {node}", "switch agent", EXIT_TIMEOUT_S):
        build_socket_path(folder).unlink(missing_ok=True)
        try:
            with Server(folder, handler) as server:
                server.serve_forever()
        finally:
            handler.finish()
            build_socket_path(folder).unlink(missing_ok=True)


def _exit_on_signal(*_: object) -> None:
    """Raised once, where connections are accepted: requests are done by other threads."""
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
            raise InputError(f"{option} {word}", "is not N=..., each N once from 1", "mend it")
        values[int(number)] = name
    return values


if __name__ == "__main__":
    sys.exit(main())
