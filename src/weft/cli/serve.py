"""`weft serve`: a persistent measurement peer; clients negotiate every test."""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from weft import _core
from weft.errors import InputError
from weft.measure.peer.admission import Limits
from weft.measure.peer.client import split_address
from weft.measure.peer.messages import DEFAULT_PORT
from weft.measure.peer.server import Address, Server
from weft.units import parse_rate, parse_size, parse_time
from weft.wire import MAKE_TOKEN, read_token

_T = TypeVar("_T", int, float)
UNLIMITED = "unlimited"
_BOUNDS = ("max_size", "max_duration", "max_rate")


def run(args: argparse.Namespace) -> int:
    addresses = _choose_addresses(args.listen)
    token = read_token(args.token_file)
    _check_exposure(addresses, token, args)
    report = _print_json if args.json else _print_text
    private = args.until_stdin_closes
    log: Callable[[str], None] = (lambda _: None) if private else lambda text: report("log", text)
    _core.Clock.shared()  # calibrated once, here, for every session
    server = Server(addresses, token, _read_limits(args), log)
    report("listening", server.addresses)
    server.run(sys.stdin.fileno() if private else None)
    return 0


def _choose_addresses(listen: Sequence[str]) -> list[Address]:
    if not listen:
        v6 = [("::1", DEFAULT_PORT)] if _has_loopback_v6() else []
        return [("127.0.0.1", DEFAULT_PORT), *v6]
    return [_resolve(text) for text in listen]


def _has_loopback_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _resolve(text: str) -> Address:
    host, port = split_address(text)
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"--listen {text}", f"{error.strerror}", "give an address") from error
    return str(infos[0][4][0]), port


def _check_exposure(
    addresses: Sequence[Address], token: bytes | None, args: argparse.Namespace
) -> None:
    """Addresses beyond loopback need a token and bounds."""
    public = [host for host, _ in addresses if not ipaddress.ip_address(host).is_loopback]
    if not public:
        return
    where = f"--listen {public[0]}"
    if token is None:
        raise InputError(
            where, "not loopback, so a token is needed", f"{MAKE_TOKEN} and give --token-file FILE"
        )
    missing = [f"--{name.replace('_', '-')}" for name in _BOUNDS if getattr(args, name) is None]
    if missing:
        raise InputError(
            where,
            f"not loopback, so bounds are needed: {', '.join(missing)}",
            "such as --max-size '8 MiB' --max-duration '60 s' --max-rate '10 Gb/s', "
            f"each may be {UNLIMITED}",
        )


def _read_limits(args: argparse.Namespace) -> Limits:
    quarter = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    return Limits(
        size_bytes=_read_bound(args.max_size, lambda t: parse_size(t, "--max-size")),
        duration_s=_read_bound(args.max_duration, _parse_seconds),
        rate_bps=_read_bound(args.max_rate, lambda t: parse_rate(t, "--max-rate")),
        memory_bytes=min(Limits().memory_bytes or quarter, quarter)
        if args.max_memory is None
        else _read_bound(args.max_memory, lambda t: parse_size(t, "--max-memory")),
        sessions=_read_bound(args.max_sessions, lambda t: _parse_number(t, "sessions")),
        depth=_read_bound(args.max_depth, lambda t: _parse_number(t, "depth")),
        endpoints=_read_bound(args.max_endpoints, lambda t: _parse_number(t, "endpoints")),
        threads=_read_bound(args.max_threads, lambda t: _parse_number(t, "threads")),
    )


def _read_bound(text: str | None, read: Callable[[str], _T]) -> _T | None:
    return None if text is None or text == UNLIMITED else read(text)


def _parse_seconds(text: str) -> float:
    return parse_time(text, "--max-duration") / 1e12


def _parse_number(text: str, name: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1 << 32:
        raise InputError(f"--max-{name} {text!r}", "is not a count", "give a whole number above 0")
    return int(text)


def _print_text(event: str, news: str | Sequence[Address]) -> None:
    if isinstance(news, str):
        print(f"{time.strftime('%H:%M:%S')} {news}", flush=True)
        return
    names = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in news]
    print(f"{event} on {', '.join(names)}; Ctrl-C ends it", flush=True)


def _print_json(event: str, news: str | Sequence[Address]) -> None:
    key = "text" if isinstance(news, str) else "addresses"
    print(json.dumps({"event": event, "time": time.time(), key: news}), flush=True)
