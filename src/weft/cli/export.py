"""`weft export`: port counters of a fabric for Prometheus, until Ctrl-C, or once."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from weft.control.client.grpc_link import read_tls_options
from weft.errors import InputError
from weft.host.machine.processes import notify_service_manager
from weft.switches.infiniband import UNVERIFIED
from weft.switches.infiniband.mad_transport import Umad, WindowedSmps, read_m_key
from weft.switches.infiniband.port_counters import CounterReader
from weft.units import format_count
from weft.wire import is_loopback
from weft.wire.prometheus import MetricsServer

_WINDOW = 32  # in flight: more than the controller has, as scrapes are reads alone
_MAX_PORT, _DAY_S = 254, 86_400.0


def run(args: argparse.Namespace) -> int:
    every_s = _parse_number(args.rediscover, "--rediscover", 1.0, _DAY_S)
    adapter_port = int(_parse_number(args.port, "--port", 0, _MAX_PORT))
    host, port = _parse_address(args.listen)
    tls = _read_tls(args, host)
    m_key = read_m_key(Path(args.m_key_file)) if args.m_key_file else 0
    client = WindowedSmps(Umad(args.adapter, adapter_port), m_key=m_key, window=_WINDOW)
    try:
        reader = CounterReader(client)
        count = reader.discover()
        if args.once:
            sys.stdout.write(reader.format())
        else:
            server = MetricsServer(host, port, reader.format, tls)
            where = f"{'https' if tls else 'http'}://{host}:{server.server_port}/metrics"
            _serve(reader, server, f"{format_count(count, 'port')} of switches on {where}", every_s)
    finally:
        client.close()
    return 0


def _serve(reader: CounterReader, server: MetricsServer, summary: str, rediscover_s: float) -> None:
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ending.set())
    server.start()
    print(f"{summary}; Ctrl-C ends it; {UNVERIFIED}")
    sys.stdout.flush()
    notify_service_manager("READY=1")
    try:
        while not ending.wait(rediscover_s):
            try:
                reader.discover()
            except InputError as error:  # half of a fabric: the ports stay as they were
                print(f"weft: {error}", file=sys.stderr, flush=True)
    finally:
        server.close()


def _parse_address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(f"--listen {text}", "is not HOST:PORT", "such as 127.0.0.1:9341")
    return host, int(port)


def _read_tls(args: argparse.Namespace, host: str) -> dict[str, Path] | None:
    """Files of TLS, checked; beyond loopback they are needed."""
    files = {f"--{name}": getattr(args, name) for name in ("clients", "certificate", "key")}
    tls = read_tls_options(files)
    if tls is not None:
        tls.contents()
        return {"clients": tls.authority, "certificate": tls.certificate, "key": tls.key}
    if not is_loopback(host):
        problem = f"{host!r} is not loopback, so TLS is needed"
        remedy = "give --certificate, --key and --clients, or use 127.0.0.1"
        raise InputError(f"--listen {args.listen}", problem, remedy)
    return None


def _parse_number(text: str, option: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not low <= value <= high:
        raise InputError(f"{option} {text}", "is out of range", f"give {low:g} to {high:g}")
    return value
