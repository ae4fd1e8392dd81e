"""The controller's file: switches, policy, store, where it listens, limits.

Every key is documented in docs/control.md; none is ignored. [switches] names a driver; its further
keys are those of the function here that opens it, and of `weft.switches.infiniband.open_switches`.
Entry points: `read_config`, `Config.open_switches`. Units: seconds, shares of the link.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from weft.control.client.grpc_link import find_default_socket
from weft.control.cluster.etcd_client import EtcdTls
from weft.control.policy.levels import EXACT
from weft.control.policy.objectives import OBJECTIVES, SIZE
from weft.control.policy.port_policy import MAX_ENTRIES, MAX_LANES, LatencyLane
from weft.control.runtime.reconcile import Pace
from weft.control.state.policy_settings import Settings
from weft.control.store.sqlite_store import REVISIONS
from weft.errors import InputError
from weft.fabric import Fabric, read_fabric
from weft.sensitivity.application_table import default_directory
from weft.sensitivity.model import DEGREES
from weft.switches import Ability, Switches
from weft.toml_table import Table, load_toml
from weft.wire import is_loopback

DEFAULT_PORT, METRICS_PORT = 9339, 9340
UNMANAGED_FLOOR = 0.1  # of each link, unless the file says otherwise
FLOW_PART = 0.1  # of the latency lane, for one pair of hosts
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files: the controller's certificate and key, and who signs its clients' certificates."""

    certificate: Path
    key: Path
    clients: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """A Unix socket, and who can open it; roles say what they may do."""

    path: Path
    mode: int = 0o666
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsAddress:
    """Where Prometheus reads the controller's metrics."""

    host: str
    port: int = METRICS_PORT

    @property
    def is_local(self) -> bool:
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Who has a role, besides root and the controller's user, who are operators.

    Users by name, groups as @NAME, certificates as tls:NAME, anybody identified as *.
    """

    operators: tuple[str, ...] = ()
    applications: tuple[str, ...] = ("*",)
    readers: tuple[str, ...] = ("*",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one caller: calls and events per second, how many at once, bytes of a message.

    `identity_rate_per_s`: of all callers of one identity together.
    """

    rate_per_s: float = 2000.0
    burst: float = 4000.0
    identity_rate_per_s: float = 10_000.0
    message_bytes: int = 1 << 20
    longest_call_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Etcd:
    """Where etcd answers, and the group of controllers: one owns its switches at a time.

    `ttl_s`: of the owner's lease. `write_s`: the longest write to a switch.
    """

    endpoints: tuple[str, ...]
    cluster: str = "weft"
    group: str = "fabric"
    ttl_s: float = 5.0
    write_s: float = 1.0
    tls: EtcdTls | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # patterns of nodes

    @property
    def publisher(self) -> str:
        """The group whose table of applications counts for all."""
        return next(iter(self.groups), self.group)

    def find_group(self, node: str) -> str | None:
        """The first group with a pattern that the node's name matches."""
        for group, patterns in self.groups.items():
            if any(fnmatchcase(node, pattern) for pattern in patterns):
                return group
        return None

    def manages(self, node: str) -> bool:
        return not self.groups or self.find_group(node) == self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The content of a controller's file. `switches` are the driver's own keys.

    No `host`: it listens on its socket alone.
    """

    where: str
    driver: str
    switches: Mapping[str, Any]
    store: Path
    keep: int = REVISIONS
    host: str = ""
    port: int = DEFAULT_PORT
    socket: Socket = field(default_factory=lambda: Socket(path=find_default_socket()))
    table: Path = field(default_factory=default_directory)
    settings: Settings = field(default_factory=Settings)
    pace: Pace = field(default_factory=Pace)
    limits: Limits = field(default_factory=Limits)
    roles: Roles = field(default_factory=Roles)
    tls: Tls | None = None
    etcd: Etcd | None = None  # None: this controller is alone
    metrics: MetricsAddress | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    guard_marks: bool = True

    def open_switches(self) -> Switches:
        """The driver, opened."""
        table = Table(copy.deepcopy(dict(self.switches)), self.where, "switches.")
        driver = DRIVERS[self.driver](table, Path(self.where).parent, self.settings)
        table.done()
        return driver


def read_config(path: str | Path) -> Config:
    """The configuration in a TOML file; its relative paths are relative to it."""
    path = Path(path)
    top = Table(load_toml(path), str(path))
    tls = _tls(top.table_if_given("tls"), path.parent)
    host, port = _listen(top, tls)
    base = path.parent
    switches = top.table("switches")
    driver = switches.choice("driver", {name: name for name in DRIVERS})
    pace = _pace(switches)
    quotas = top.table("quotas", {})
    take_over = switches.flag("take_over", False)
    guard_marks = switches.flag("guard_marks", True)
    groups = _groups(top)
    etcd = _etcd(top.table_if_given("etcd"), base, groups)
    settings = _settings(top.table("policy", {}), top.table("leases", {}), quotas, take_over)
    if etcd is not None and etcd.groups:
        settings = replace(settings, group=etcd.group)
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
        settings=settings,
        pace=pace,
        limits=_limits(top.table("limits", {}), quotas),
        roles=_roles(top.table("access", {})),
        tls=tls,
        etcd=etcd,
        metrics=_metrics(top, tls),
        aliases=_aliases(top.table("hosts", {})),
        guard_marks=guard_marks,
    )
    for table in (quotas, top):
        table.done()
    return config


def _listen(top: Table, tls: Tls | None) -> tuple[str, int]:
    """Where TCP is served; no host: nowhere."""
    is_plain = top.flag("listen_without_tls", False)
    text = top.text("listen", "")
    if not text:
        return "", DEFAULT_PORT
    host, port = listen_address(text, top.place("listen"))
    if tls is None and not is_loopback(host):
        problem = f"{host!r} is not loopback, so TLS is needed"
        raise InputError(top.place("listen"), problem, "add [tls]")
    if tls is None and not is_plain:
        remedy = "add [tls], set listen_without_tls = true, or leave listen out: the socket serves"
        raise InputError(top.place("listen"), "TCP without TLS is off", remedy)
    return host, port


def _metrics(top: Table, tls: Tls | None) -> MetricsAddress | None:
    text = top.text("metrics", "")
    if not text:
        return None
    host, port = listen_address(text, top.place("metrics"), METRICS_PORT)
    address = MetricsAddress(host=host, port=port)
    if tls is None and not address.is_local:
        problem = f"{host!r} is not loopback, so TLS is needed"
        raise InputError(top.place("metrics"), problem, "add [tls], or use 127.0.0.1")
    return address


def listen_address(text: str, where: str, default: int = DEFAULT_PORT) -> tuple[str, int]:
    """Host and port of HOST:PORT, [V6]:PORT or HOST."""
    host, colon, port = text.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        host, port = text, str(default)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InputError(where, f"{text!r} is not HOST[:PORT]", f"such as 127.0.0.1:{default}")
    return host, int(port)


def _path(top: Table, key: str, base: Path) -> Path | None:
    text = top.text(key, "")
    return base / text if text else None


def _socket(top: Table, base: Path) -> Socket:
    path = (base / top.text("socket", str(find_default_socket()))).absolute()
    group = top.text("socket_group", "")
    mode = top.text("socket_mode", "0660" if group else "0666")
    if re.fullmatch("0?[0-7]{3}", mode) is None:
        raise InputError(top.place("socket_mode"), f"{mode!r} is no mode", 'give such as "0660"')
    return Socket(path=path, mode=int(mode, 8), group=group)


def _pace(table: Table) -> Pace:
    defaults = Pace()
    return Pace(
        check_s=table.number("check_s", 0.01, _DAY_S, defaults.check_s),
        topology_s=table.number("topology_s", 0.01, _DAY_S, defaults.topology_s),
        watch_s=table.number("watch_s", 0.01, _DAY_S, defaults.watch_s),
    )


_MODELS: Mapping[str, int | None] = {
    "convex": None,
    **{f"polynomial-{degree}": degree for degree in DEGREES},
}
_QUEUES: Mapping[str, bool] = {"hierarchy": False, "exact": True}
_OBJECTIVES = {objective: objective for objective in OBJECTIVES}


def _settings(policy: Table, leases: Table, quotas: Table, take_over: bool) -> Settings:
    defaults, lane = Settings(), _lane(policy.table_if_given("lane"))
    # What is left for unmanaged traffic by default is its floor.
    managed_share = max(0.001, round(1 - UNMANAGED_FLOOR - (lane.share if lane else 0.0), 9))
    longest = leases.number("longest_ttl_s", 0.1, 30 * _DAY_S, defaults.longest_ttl_s)
    settings = Settings(
        levels=policy.integer("levels", 1, 62, defaults.levels),
        managed_share=policy.number("managed_share", 0.001, 1.0, managed_share),
        lane=lane,
        has_exact_queues=policy.choice("queues", _QUEUES, "hierarchy"),
        polynomial_degree=policy.choice("model", _MODELS, "convex"),
        objective=policy.choice("objective", _OBJECTIVES, SIZE),
        take_over=take_over,
        longest_ttl_s=longest,
        usual_ttl_s=leases.number("usual_ttl_s", 0.1, longest, min(defaults.usual_ttl_s, longest)),
        most_applications=leases.integer("applications", 1, 10**6, defaults.most_applications),
        most_connections=leases.integer("connections", 1, 10**8, defaults.most_connections),
        most_jobs_of=quotas.integer("jobs", 1, 10**6, defaults.most_jobs_of),
        most_registrations_of=quotas.integer(
            "registrations", 1, 10**6, defaults.most_registrations_of
        ),
        most_connections_of=quotas.integer("connections", 1, 10**8, defaults.most_connections_of),
    )
    for table in (policy, leases):
        table.done()
    if settings.has_exact_queues and settings.levels > EXACT:
        problem = f"exact is for up to {EXACT} levels, and levels is {settings.levels}"
        raise InputError(policy.place("queues"), problem, "lower levels, or use hierarchy")
    if settings.lane is not None and settings.managed_share + settings.lane.share > 1 + 1e-9:
        problem = f"{settings.lane.share:g} beside a managed_share of {settings.managed_share:g}"
        raise InputError(policy.place("lane.share"), problem, "lower one: both fit 1 together")
    return settings


def _lane(table: Table | None) -> LatencyLane | None:
    if table is None:
        return None
    share = table.number("share", 0.0, 1.0)
    budget = table.size_bytes("budget", 1, 2**30)
    flow_share = table.number("flow_share", 0.0, 1.0, round(FLOW_PART * share, 9))
    packet = table.size_bytes("packet", 1, 2**16, 256)
    bulk_packet = table.size_bytes("bulk_packet", 1, 2**16, 4096)
    table.done()
    with _errors_at(table.location):
        return LatencyLane(
            share=share,
            budget_bytes=budget,
            flow_share=flow_share,
            packet_bytes=packet,
            bulk_bytes=bulk_packet,
        )


def _limits(table: Table, quotas: Table) -> Limits:
    defaults = Limits()
    rate = table.number("rate_per_s", 1.0, 1e6, defaults.rate_per_s)
    limits = Limits(
        rate_per_s=rate,
        burst=table.number("burst", 40.0, 1e7, max(40.0, 2 * rate)),
        identity_rate_per_s=quotas.number("rate_per_s", 1.0, 1e7, 5 * rate),
        message_bytes=table.size_bytes("message", 1024, 2**26, defaults.message_bytes),
        longest_call_s=table.number("longest_call_s", 0.1, 3600.0, defaults.longest_call_s),
    )
    table.done()
    return limits


def _roles(table: Table) -> Roles:
    defaults = Roles()
    roles = Roles(
        operators=table.texts("operators", defaults.operators),
        applications=table.texts("applications", defaults.applications),
        readers=table.texts("readers", defaults.readers),
    )
    for key in ("operators", "applications", "readers"):
        if not all(name.strip() for name in getattr(roles, key)):
            remedy = "name users, @groups, or tls: and a certificate's name"
            raise InputError(table.place(key), "an empty name", remedy)
    table.done()
    return roles


def _tls(table: Table | None, base: Path) -> Tls | None:
    if table is None:
        return None
    certificate, key, clients = (base / table.text(n) for n in ("certificate", "key", "clients"))
    table.done()
    return Tls(certificate=certificate, key=key, clients=clients)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _groups(top: Table) -> dict[str, tuple[str, ...]]:
    table = top.table_if_given("groups")
    if table is None:
        return {}
    if not top.has("etcd"):
        raise InputError(top.place("groups"), "given without [etcd]", "add [etcd]")
    keys = table.rest()
    return {name: Table(keys, table.where, table.prefix).texts(name) for name in keys}


def _etcd(table: Table | None, base: Path, groups: Mapping[str, tuple[str, ...]]) -> Etcd | None:
    if table is None:
        return None
    defaults = Etcd(endpoints=())
    names = {key: table.text(key, getattr(defaults, key)) for key in ("cluster", "group")}
    for key, name in names.items():
        if _NAME.fullmatch(name) is None:
            raise InputError(table.place(key), f"{name!r} is no name", "letters, digits, . _ -")
    ttl_s = table.number("ttl_s", 1.0, 600.0, defaults.ttl_s)
    etcd = Etcd(
        endpoints=table.texts("endpoints"),
        **names,
        ttl_s=ttl_s,
        write_s=table.number("write_s", 0.01, ttl_s / 2, min(defaults.write_s, ttl_s / 2)),
        tls=_etcd_tls(table.table_if_given("tls"), base),
        groups=groups,
    )
    table.done()
    if not etcd.endpoints:
        raise InputError(table.place("endpoints"), "none", 'give such as ["10.0.0.1:2379"]')
    if groups and etcd.group not in groups:
        problem = f"{etcd.group!r} is not in [groups]"
        raise InputError(table.place("group"), problem, f"use one of {', '.join(groups)}")
    return etcd


def _etcd_tls(table: Table | None, base: Path) -> EtcdTls | None:
    if table is None:
        return None
    authority, certificate, key = (
        base / table.text(name) for name in ("authority", "certificate", "key")
    )
    table.done()
    return EtcdTls(authority=authority, certificate=certificate, key=key)


def _aliases(table: Table) -> dict[str, str]:
    """`h1 = ["10.0.0.1", "h1.lab"]`: further names of the fabric's host h1."""
    hosts: dict[str, str] = {}
    keys = table.rest()
    for host in keys:
        for alias in Table(keys, table.where, table.prefix).texts(host):
            if hosts.setdefault(alias, host) != host:
                problem = f"{alias!r} is {hosts[alias]} already"
                raise InputError(table.place(host), problem, "give it to one host")
    return hosts


# ---- Drivers ----------------------------------------------------------------------------------

_SCHEDULERS: Mapping[str, Literal["vlarb", "htb"]] = {"vlarb": "vlarb", "htb": "htb"}


def describe_starvation(settings: Settings) -> str:
    """A warning where unmanaged traffic is left less than its floor."""
    rest = 1 - settings.managed_share - (settings.lane.share if settings.lane else 0.0)
    if rest > UNMANAGED_FLOOR - 1e-9:
        return ""
    return (
        f"unmanaged traffic is left {max(0.0, rest):.1%} of each link while applications send; "
        f"lower managed_share to leave it {UNMANAGED_FLOOR:.0%}"
    )


def describe_unverified(driver: str, keys: Collection[str]) -> str:
    """What hardware a driver, opened by these keys, has not run on."""
    if driver == "infiniband":
        from weft.switches import infiniband

        return infiniband.UNVERIFIED
    if driver == "linux" and "agents" in keys:
        from weft.switches import linux

        return linux.UNVERIFIED
    return ""


def _open_infiniband(table: Table, base: Path, settings: Settings) -> Switches:
    from weft.switches.infiniband import open_switches

    keys = table.rest()
    keys.setdefault("levels", settings.all_levels)
    if "m_key_file" in keys:
        keys["m_key_file"] = str(base / str(keys["m_key_file"]))
    driver_table = Table(keys, table.where, table.prefix)
    driver = open_switches(driver_table)
    driver_table.done()
    return driver


def _open_linux(table: Table, base: Path, _: Settings) -> Switches:
    """`testbed`, with `adapters` or without; or `fabric` files and the sockets of `agents`."""
    from weft.switches.linux import open_agents, open_persistent_testbed

    if table.has("testbed"):
        return open_persistent_testbed(table.text("testbed"), adapters=table.flag("adapters", True))
    if not table.has("agents"):
        problem = "neither testbed nor agents"
        raise InputError(
            table.place("testbed"), problem, "name a testbed, or give [switches.agents]"
        )
    agents = table.table("agents")
    keys = agents.rest()
    paths = Table(keys, agents.where, agents.prefix)
    sockets = {node: base / paths.text(node) for node in keys}
    return open_agents(_read_fabric(table, base, read_fabric), sockets)


def _open_simulated(table: Table, base: Path, _: Settings) -> Switches:
    """Any `fabric`; `registers` in a file outlive the controller; `failing` of writes are lost."""
    from weft.switches.simulated import (
        DEFAULT_ABILITY,
        SimulatedSwitches,
        WriteFailures,
        read_routed_fabric,
    )

    scheduler = table.choice("scheduler", _SCHEDULERS, "vlarb")
    ability = Ability(
        scheduler=scheduler,
        levels=table.integer("levels", 1, 64, DEFAULT_ABILITY.levels),
        queues=table.integer(
            "queues", 1, 64 if scheduler == "htb" else MAX_LANES, DEFAULT_ABILITY.queues
        ),
        entries=table.integer("entries", 1, MAX_ENTRIES, DEFAULT_ABILITY.entries),
        units=table.integer("units", 1, 2**31, DEFAULT_ABILITY.units),
    )
    registers = table.text("registers", "")
    failing = table.number("failing", 0.0, 1.0, 0.0)
    fabric = _read_fabric(table, base, read_routed_fabric)
    with _errors_at(table.place("registers")):
        return SimulatedSwitches(
            fabric,
            ability,
            path=base / registers if registers else None,
            failing=WriteFailures(probability=failing) if failing else None,
        )


def _read_fabric(table: Table, base: Path, reader: Callable[[list[str]], Fabric]) -> Fabric:
    files = [str(base / file) for file in table.texts("fabric")]
    with _errors_at(table.place("fabric")):
        return reader(files)


@contextmanager
def _errors_at(place: str) -> Iterator[None]:
    """Reports an error in a file as one of the key that names it: not worth a retry."""
    try:
        yield
    except InputError as error:
        raise InputError(place, str(error)) from error


DRIVERS: dict[str, Callable[[Table, Path, Settings], Switches]] = {
    "infiniband": _open_infiniband,
    "linux": _open_linux,
    "simulated": _open_simulated,
}
