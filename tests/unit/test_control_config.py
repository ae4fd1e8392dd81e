"""The controller's file: what it says, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.control.client.grpc_link import choose_controller
from weft.control.policy.port_policy import LatencyLane
from weft.control.runtime.config import (
    Config,
    Roles,
    Socket,
    describe_starvation,
    describe_unverified,
    listen_address,
    read_config,
)
from weft.control.runtime.controller import serve
from weft.control.service.access import list_unknown_users
from weft.errors import InputError
from weft.fabric import leaf_spine, write_toml
from weft.switches import PortName, Tables

LEAST = 'store = "control.db"\n[switches]\ndriver = "simulated"\nfabric = "fabric.toml"\n'
ALL = """
listen = "[::1]:7000"
listen_without_tls = true
socket = "control.sock"
socket_group = "fabric"
socket_mode = "0666"
store = "state/control.db"
revisions = 100
apps = "apps"
[switches]
driver = "simulated"
fabric = "fabric.toml"
queues = 4
check_s = 2
topology_s = 30
take_over = true
[policy]
levels = 4
managed_share = 0.8
queues = "exact"
model = "polynomial-2"
[policy.lane]
share = 0.1
budget = "400 B"
[leases]
longest_ttl_s = 100
usual_ttl_s = 5
applications = 10
connections = 20
[limits]
rate_per_s = 50
message = "64 KiB"
longest_call_s = 5
[quotas]
jobs = 4
registrations = 64
connections = 30
rate_per_s = 500
[access]
operators = ["@wheel", "tls:admin"]
readers = "alice"
[tls]
certificate = "c.pem"
key = "k.pem"
clients = "ca.pem"
[hosts]
h0 = ["10.0.0.1", "h0.lab"]
h1 = "10.0.0.2"
"""


def config(folder: Path, text: str) -> Config:
    (folder / "fabric.toml").write_text(write_toml(leaf_spine(2, 2, 2)))
    (folder / "control.toml").write_text(text)
    return read_config(folder / "control.toml")


def test_little_has_to_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_CONTROLLER", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    parsed = config(tmp_path, LEAST)
    assert (parsed.host, parsed.tls) == ("", None)
    assert f"unix:{parsed.socket.path}" == choose_controller(None)
    assert parsed.roles == Roles(operators=(), applications=("*",), readers=("*",))
    assert parsed.store == tmp_path / "control.db"
    switches = parsed.open_switches()
    assert len(switches.discover().hosts) == 4
    (tables,) = switches.read([PortName("h0", 1)]).values()
    assert isinstance(tables, Tables)
    switches.close()


@pytest.mark.parametrize(
    ("policy", "managed", "left"),
    [
        ("", 0.9, ""),
        ("managed_share = 0.95", 0.95, "5.0%"),
        ("managed_share = 1.0", 1.0, "0.0%"),
        ('[policy.lane]\nshare = 0.25\nbudget = "400 B"', 0.65, ""),
        ('managed_share = 0.75\n[policy.lane]\nshare = 0.25\nbudget = "400 B"', 0.75, "0.0%"),
    ],
)
def test_unmanaged_traffic_keeps_a_tenth_unless_the_file_says_less_which_is_warned_of(
    tmp_path: Path, policy: str, managed: float, left: str
) -> None:
    settings = config(
        tmp_path, LEAST.replace("[switches]", f"[policy]\n{policy}\n[switches]")
    ).settings
    assert settings.managed_share == managed
    warning = describe_starvation(settings)
    assert bool(warning) == bool(left)
    assert f"is left {left} of each link" in warning or not left


def test_the_default_socket_is_the_same_for_controller_and_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CONTROLLER", "unix:/run/lab/control.sock")
    assert config(tmp_path, LEAST).socket.path == Path("/run/lab/control.sock")
    assert choose_controller(None) == "unix:/run/lab/control.sock"
    assert choose_controller("h:1") == "h:1"
    monkeypatch.setenv("WEFT_CONTROLLER", "h:2")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = tmp_path / "weft" / "control.sock"
    assert config(tmp_path, LEAST).socket.path == own
    monkeypatch.delenv("WEFT_CONTROLLER")
    assert choose_controller(None) == "unix:/run/weft/control.sock"  # there is none of its own
    own.parent.mkdir()
    own.touch()
    assert choose_controller(None) == f"unix:{own}"


def test_everything_can_be_said(tmp_path: Path) -> None:
    parsed = config(tmp_path, ALL)
    assert (parsed.host, parsed.port, parsed.keep) == ("::1", 7000, 100)
    assert parsed.settings.has_exact_queues
    assert parsed.settings.polynomial_degree == 2
    assert parsed.settings.lane == LatencyLane(share=0.1, budget_bytes=400)
    assert (parsed.settings.levels, parsed.settings.take_over) == (4, True)
    assert (parsed.settings.usual_ttl_s, parsed.settings.most_connections) == (5.0, 20)
    assert (parsed.pace.check_s, parsed.pace.topology_s) == (2.0, 30.0)
    assert (parsed.limits.rate_per_s, parsed.limits.burst) == (50.0, 100.0)
    assert (parsed.settings.most_jobs_of, parsed.settings.most_connections_of) == (4, 30)
    assert parsed.settings.most_registrations_of == 64
    assert parsed.limits.identity_rate_per_s == 500.0
    assert parsed.socket == Socket(path=tmp_path / "control.sock", mode=0o666, group="fabric")
    assert parsed.roles == Roles(
        operators=("@wheel", "tls:admin"), applications=("*",), readers=("alice",)
    )
    assert parsed.tls is not None
    assert parsed.tls.key == tmp_path / "k.pem"
    assert parsed.aliases == {"10.0.0.1": "h0", "h0.lab": "h0", "10.0.0.2": "h1"}


@pytest.mark.parametrize(("more", "mode"), [("", 0o666), ('socket_group = "fabric"', 0o660)])
def test_a_socket_is_everybody_s_or_a_group_s(tmp_path: Path, more: str, mode: int) -> None:
    parsed = config(tmp_path, f'socket = "control.sock"\n{more}\n{LEAST}').socket
    assert parsed.mode == mode


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"simulated"', '"cumulus"', "switches.driver: 'cumulus' is unknown; use one of"),
        ('store = "control.db"', "", "store: is missing; add it"),
        ('store = "control.db"', 'store = "control.db"\nlevels = 3', "levels: is not a known key"),
        ("[switches]", "[leases]\nttl = 3\n[switches]", "leases.ttl: is not a known key"),
        ("[switches]", "[policy]\nlevels = 99\n[switches]", "policy.levels: 99 is out of range"),
        ("[switches]", "listen = 5\n[switches]", "listen: 5 is not a text"),
        ("[switches]", '[hosts]\na = "x"\nb = "x"\n[switches]', "hosts.b: 'x' is a already"),
        ("[switches]", "[tls]\n[switches]", "tls.certificate: is missing"),
        (
            "[switches]",
            "[tsl]\n[switches]",
            "tsl: is not a known key; known here: access, apps, etcd, groups, hosts, leases, "
            "limits, listen, listen_without_tls, metrics, policy, quotas, revisions, socket, "
            "socket_group, socket_mode, store, "
            "switches, tls",
        ),
        ("[switches]", "[policy.lain]\n[switches]", "known here: lane, levels, managed_share"),
        ("[switches]", '[policy]\nmodel = "cubic"\n[switches]', "use one of convex, polynomial-1"),
        ("[switches]", '[policy]\nqueues = "best"\n[switches]', "use one of hierarchy, exact"),
        (
            "[switches]",
            '[policy]\nlevels = 11\nqueues = "exact"\n[switches]',
            "policy.queues: exact is for up to 10 levels, and levels is 11; lower levels",
        ),
        (
            "[switches]",
            'listen = "127.0.0.1:7"\n[switches]',
            "listen: TCP without TLS is off; add [tls], set listen_without_tls = true, or leave",
        ),
        ("[switches]", 'listen = "h:70000"\n[switches]', "listen: 'h:70000' is not HOST[:PORT]"),
        (
            "[switches]",
            'listen = "0.0.0.0"\n[switches]',
            "listen: '0.0.0.0' is not loopback, so TLS is needed; add [tls]",
        ),
        ("[switches]", 'listen = "10.0.0.1:7"\n[switches]', "listen: '10.0.0.1' is not loopback"),
        (
            "[switches]",
            "[policy]\nmanaged_share = 1.0\n"
            '[policy.lane]\nshare = 0.1\nbudget = "400 B"\n[switches]',
            "policy.lane.share: 0.1 beside a managed_share of 1; lower one",
        ),
        ("[switches]", "[etcd]\nendpoints = []\n[switches]", "etcd.endpoints: none; give such as"),
        (
            "[switches]",
            '[etcd]\nendpoints = ["e:1"]\ngroup = "a/b"\n[switches]',
            "etcd.group: 'a/b' is no name",
        ),
        (
            "[switches]",
            '[etcd]\nendpoints = ["e:1"]\nttl_s = 3\nwrite_s = 2\n[switches]',
            "etcd.write_s: 2 is out of range",
        ),
        ("[switches]", '[groups]\na = ["x"]\n[switches]', "groups: given without [etcd]"),
        (
            "[switches]",
            '[etcd]\nendpoints = ["e:1"]\ngroup = "c"\n[groups]\na = ["x"]\n[switches]',
            "etcd.group: 'c' is not in [groups]; use one of a",
        ),
        ("control.db", "a\\u0000b", r"store: 'a\x00b' has a zero byte; leave it out"),
    ],
)
def test_mistakes_name_their_place(tmp_path: Path, old: str, new: str, problem: str) -> None:
    with pytest.raises(InputError, match=r"control\.toml") as raised:
        config(tmp_path, LEAST.replace(old, new))
    assert problem in str(raised.value)


KEYS = {  # of a section: the least and the largest value of each key
    "": {"revisions": (1, 10**9)},
    "switches": {"check_s": (0.01, 86400), "topology_s": (0.01, 86400)},
    "policy": {"levels": (1, 62), "managed_share": (0.001, 1)},
    "leases": {
        "longest_ttl_s": (0.1, 30 * 86400),
        "applications": (1, 10**6),
        "connections": (1, 10**8),
    },
    "limits": {"rate_per_s": (1, 10**6), "burst": (40, 10**7), "longest_call_s": (0.1, 3600)},
}


@pytest.mark.parametrize(
    ("section", "key", "limit", "beyond"),
    [
        (section, key, limit, limit * factor + step)
        for section, keys in KEYS.items()
        for key, limits in keys.items()
        for limit, factor, step in zip(limits, (0.99, 1.0), (0, 1), strict=True)
    ],
)
def test_a_number_may_be_its_limit_and_nothing_beyond(
    tmp_path: Path, section: str, key: str, limit: float, beyond: float
) -> None:
    def text(value: float) -> str:
        number = int(value) if isinstance(limit, int) and value == int(value) else value
        line = f"{key} = {number}\n"
        if section == "switches":
            return LEAST + line
        return (line if not section else "") + LEAST + (f"[{section}]\n{line}" if section else "")

    config(tmp_path, text(limit))
    refused = int(limit) - 1 if isinstance(limit, int) and beyond < limit else beyond
    with pytest.raises(InputError, match=f"{key}: .* is out of range"):
        config(tmp_path, text(refused))


AGENT = '"linux"\nfabric = "fabric.toml"\n[switches.agents]\nleaf0 = 3\n#'


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("fabric =", "queus = 3\nfabric =", "switches.queus: is not a known key"),
        ("fabric =", 'registers = "."\nfabric =', "switches.registers: .: Is a directory"),
        ("fabric =", 'registers = "/proc/no/x"\nfabric =', "registers: /proc/no/x: No such file"),
        ("fabric =", 'registers = "fabric.toml"\nfabric =', "has the registers of other switches"),
        ("fabric =", r'fabric = ["a\u0000"] #', r"switches.fabric: 'a\x00' has a zero byte"),
        ('"simulated"', AGENT, "switches.agents.leaf0: 3 is not a text"),
    ],
)
def test_mistakes_of_a_driver_s_keys_are_refused_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path, LEAST.replace(old, new))
    with pytest.raises(InputError, match=r"control\.toml") as raised:
        read_config("control.toml").open_switches()
    assert problem in str(raised.value)


@pytest.mark.parametrize(
    ("scheduler", "key", "low", "high"),
    [
        ("vlarb", "queues", 1, 15),
        ("htb", "queues", 1, 64),
        ("vlarb", "levels", 1, 64),
        ("vlarb", "entries", 1, 64),
        ("htb", "units", 1, 2**31),
        ("htb", "failing", 0, 1),
    ],
)
def test_keys_of_simulated_switches_may_be_their_limits_and_nothing_beyond(
    tmp_path: Path, scheduler: str, key: str, low: int, high: int
) -> None:
    def open_with(value: int) -> None:
        text = f'{LEAST}scheduler = "{scheduler}"\n{key} = {value}\n'
        config(tmp_path, text).open_switches().close()

    for value in (low, high):
        open_with(value)
    for value in (low - 1, high + 1):
        with pytest.raises(InputError, match=f"switches.{key}: {value} is out of range"):
            open_with(value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:5", ("127.0.0.1", 5)),
        ("localhost", ("localhost", 9339)),
        ("[::1]:5", ("::1", 5)),
        ("::1", ("::1", 9339)),
    ],
)
def test_addresses_are_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert listen_address(text, "file") == address


@pytest.mark.parametrize("text", ["", ":5", "host:no", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not HOST\[:PORT\]"):
        listen_address(text, "file")


@pytest.mark.parametrize(
    ("switches", "start"),
    [
        ({"driver": "infiniband"}, "unverified on InfiniBand hardware"),
        ({"driver": "linux", "agents": {"leaf": "agent.sock"}}, "unverified on physical ports"),
        ({"driver": "linux", "testbed": "default"}, ""),
        ({"driver": "simulated", "fabric": "fabric.toml"}, ""),
    ],
)
def test_what_never_ran_on_its_hardware_says_so(switches: dict[str, object], start: str) -> None:
    note = describe_unverified(str(switches["driver"]), switches)
    assert note.startswith(start)
    assert bool(note) == bool(start)


def test_an_empty_name_of_a_role_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"access\.operators: an empty name"):
        config(tmp_path, f'{LEAST}\n[access]\noperators = ["root", " "]\n')


def test_users_and_groups_that_the_machine_lacks_are_warned_of() -> None:
    roles = Roles(operators=("root", "@nosuch", "tls:x"), readers=("nobody-18", "*"))
    assert [*list_unknown_users(roles)] == [
        "[access] names '@nosuch', and this machine has no such group",
        "[access] names 'nobody-18', and this machine has no such user",
    ]


def test_a_folder_of_models_that_is_missing_ends_the_start(tmp_path: Path) -> None:
    parsed = config(tmp_path, LEAST.replace("[switches]", 'apps = "appz"\n[switches]'))
    with pytest.raises(InputError, match=r"apps: .*appz is no folder; create it"):
        serve(parsed, print, print)
    assert not parsed.store.exists()
