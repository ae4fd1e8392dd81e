"""The controller's file: switches, policy, store, where it listens, limits.

Every key is documented in docs/control.md; none is ignored. Entry point: `read_config`.
Units: seconds, shares of the link.
"""

from __future__ import annotations

import copy
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.control.client.grpc_link import DEFAULT_CONTROLLER
from weft.control.policy.port import LatencyLane
from weft.control.runtime.drivers import DRIVERS, open_driver
from weft.control.runtime.reconcile import Pace
from weft.control.state.kinds import Settings
from weft.control.store.sqlite_store import REVISIONS
from weft.errors import InputError
from weft.sensitivity.application_table import default_directory
from weft.switches import Switches
from weft.toml_table import Table, load_toml

DEFAULT_HOST, DEFAULT_PORT = DEFAULT_CONTROLLER.split(":")[0], int(DEFAULT_CONTROLLER.split(":")[1])
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files: the controller's certificate and key, and who signs its clients' certificates."""

    certificate: Path
    key: Path
    clients: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """A Unix socket, and who can open it: its owner, or a group too."""

    path: Path
    mode: int = 0o600
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of one caller: calls and events per second, how many at once, bytes of a message."""

    rate_per_s: float = 2000.0
    burst: float = 4000.0
    message_bytes: int = 1 << 20
    longest_call_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What a controller's file says. `switches` are the driver's own keys."""

    where: str
    driver: str
    switches: Mapping[str, Any]
    store: Path
    keep: int = REVISIONS
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    socket: Socket | None = None
    table: Path = field(default_factory=default_directory)
    settings: Settings = field(default_factory=Settings)
    pace: Pace = field(default_factory=Pace)
    limits: Limits = field(default_factory=Limits)
    tls: Tls | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)

    def open_switches(self) -> Switches:
        """The driver, opened."""
        table = Table(copy.deepcopy(dict(self.switches)), self.where, "switches.")
        driver = open_driver(self.driver, table, Path(self.where).parent, self.settings)
        table.done()
        return driver


def read_config(path: str | Path) -> Config:
    """The configuration in a TOML file; its relative paths are relative to it."""
    path = Path(path)
    top = Table(load_toml(path), str(path))
    host, port = listen_address(top.text("listen", DEFAULT_CONTROLLER), top.place("listen"))
    tls = _tls(top.table_if_given("tls"), path.parent)
    if tls is None and not is_loopback(host):
        problem = f"{host!r} is not loopback, so TLS is needed"
        raise InputError(top.place("listen"), problem, "add [tls]")
    base = path.parent
    switches = top.table("switches")
    driver = switches.choice("driver", {name: name for name in DRIVERS})
    pace = _pace(switches)
    take_over = switches.flag("take_over", False)
    config = Config(
        where=str(path),
        driver=driver,
        switches=switches.rest(),
        store=base / top.text("store"),
        keep=top.integer("revisions", 1, 10**9, REVISIONS),
        host=host,
        port=port,
        socket=_socket(top, base),
        table=_path(top, "apps", base) or default_directory(),
        settings=_settings(top.table("policy", {}), top.table("leases", {}), take_over),
        pace=pace,
        limits=_limits(top.table("limits", {})),
        tls=tls,
        aliases=_aliases(top.table("hosts", {})),
    )
    top.done()
    return config


def listen_address(text: str, where: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, [V6]:PORT or HOST."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(where, f"{text!r} is not HOST[:PORT]", f"such as {DEFAULT_CONTROLLER}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _path(top: Table, key: str, base: Path) -> Path | None:
    text = top.text(key, "")
    return base / text if text else None


def _socket(top: Table, base: Path) -> Socket | None:
    path, group = _path(top, "socket", base), top.text("socket_group", "")
    mode = top.text("socket_mode", "0660" if group else "0600")
    if re.fullmatch("0?[0-7]{3}", mode) is None:
        raise InputError(top.place("socket_mode"), f"{mode!r} is no mode", 'give such as "0660"')
    return None if path is None else Socket(path=path, mode=int(mode, 8), group=group)


def _pace(table: Table) -> Pace:
    usual = Pace()
    return Pace(
        check_s=table.number("check_s", 0.01, _DAY_S, usual.check_s),
        topology_s=table.number("topology_s", 0.01, _DAY_S, usual.topology_s),
    )


def _settings(policy: Table, leases: Table, take_over: bool) -> Settings:
    usual = Settings()
    longest = leases.number("longest_ttl_s", 0.1, 30 * _DAY_S, usual.longest_ttl_s)
    settings = Settings(
        levels=policy.integer("levels", 1, 62, usual.levels),
        managed_share=policy.number("managed_share", 0.001, 1.0, usual.managed_share),
        lane=_lane(policy.table_if_given("lane")),
        take_over=take_over,
        longest_ttl_s=longest,
        usual_ttl_s=leases.number("usual_ttl_s", 0.1, longest, min(usual.usual_ttl_s, longest)),
        most_applications=leases.integer("applications", 1, 10**6, usual.most_applications),
        most_connections=leases.integer("connections", 1, 10**8, usual.most_connections),
    )
    policy.done()
    leases.done()
    if settings.lane is not None and settings.managed_share + settings.lane.share > 1 + 1e-9:
        problem = f"{settings.lane.share:g} beside a managed_share of {settings.managed_share:g}"
        raise InputError(policy.place("lane.share"), problem, "lower one: both fit 1 together")
    return settings


def _lane(table: Table | None) -> LatencyLane | None:
    if table is None:
        return None
    lane = LatencyLane(
        share=table.number("share", 0.0, 1.0),
        budget_bytes=table.size_bytes("budget", 1, 2**30),
        packet_bytes=table.size_bytes("packet", 1, 2**16, 256),
        bulk_bytes=table.size_bytes("bulk_packet", 1, 2**16, 4096),
    )
    table.done()
    return lane


def _limits(table: Table) -> Limits:
    usual = Limits()
    rate = table.number("rate_per_s", 1.0, 1e6, usual.rate_per_s)
    limits = Limits(
        rate_per_s=rate,
        burst=table.number("burst", 40.0, 1e7, max(40.0, 2 * rate)),
        message_bytes=table.size_bytes("message", 1024, 2**26, usual.message_bytes),
        longest_call_s=table.number("longest_call_s", 0.1, 3600.0, usual.longest_call_s),
    )
    table.done()
    return limits


def _tls(table: Table | None, base: Path) -> Tls | None:
    if table is None:
        return None
    certificate, key, clients = (base / table.text(n) for n in ("certificate", "key", "clients"))
    table.done()
    return Tls(certificate=certificate, key=key, clients=clients)


def _aliases(table: Table) -> dict[str, str]:
    """`h1 = ["10.0.0.1", "h1.lab"]`: further names of the fabric's host h1."""
    found: dict[str, str] = {}
    given = table.rest()
    for host in given:
        for alias in Table(given, table.where, table.prefix).texts(host):
            if found.setdefault(alias, host) != host:
                problem = f"{alias!r} is {found[alias]} already"
                raise InputError(table.place(host), problem, "give it to one host")
    return found
