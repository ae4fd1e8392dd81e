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
from dataclasses import fields
from typing import Any

from weft import _core
from weft.errors import InputError
from weft.measure.peer.client import split_address
from weft.measure.peer.negotiation import DEFAULT_PORT, Limits
from weft.measure.peer.server import Address, Server
from weft.units import parse_rate, parse_size, parse_time
from weft.wire import MAKE_TOKEN, read_token

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
        v6 = [("::1", DEFAULT_PORT)] if has_ipv6_loopback() else []
        return [("127.0.0.1", DEFAULT_PORT), *v6]
    return [_resolve(text) for text in listen]


def has_ipv6_loopback() -> bool:
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
    """Each limit from the option of its name: `size_bytes` from --max-size, and so on."""
    quarter = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    limits: dict[str, Any] = {"memory_bytes": min(Limits().memory_bytes or quarter, quarter)}
    for field in fields(Limits):
        name, _, unit = field.name.partition("_")
        text: str | None = getattr(args, f"max_{name}")
        if text is not None:
            read = _READERS[unit]
            limits[field.name] = None if text == UNLIMITED else read(text, f"--max-{name}")
    return Limits(**limits)


def _parse_count(text: str, option: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1 << 32:
        raise InputError(f"{option} {text!r}", "is not a count", "give a whole number above 0")
    return int(text)


_READERS: dict[str, Callable[[str, str], float]] = {
    "bytes": parse_size,
    "s": lambda text, option: parse_time(text, option) / 1e12,
    "bps": parse_rate,
    "": _parse_count,
}


def _print_text(event: str, news: str | Sequence[Address]) -> None:
    if isinstance(news, str):
        print(f"{time.strftime('%H:%M:%S')} {news}", flush=True)
        return
    names = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in news]
    print(f"{event} on {', '.join(names)}; Ctrl-C ends it", flush=True)


def _print_json(event: str, news: str | Sequence[Address]) -> None:
    key = "text" if isinstance(news, str) else "addresses"
    print(json.dumps({"event": event, "time": time.time(), key: news}), flush=True)
