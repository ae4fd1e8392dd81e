"""The controller's file: what it says, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.control.policy.port_policy import LatencyLane
from weft.control.runtime.config import (
    Config,
    Socket,
    describe_unverified,
    listen_address,
    read_config,
)
from weft.errors import InputError
from weft.fabric import leaf_spine, write_toml
from weft.switches import PortName, Tables

LEAST = 'store = "control.db"\n[switches]\ndriver = "simulated"\nfabric = "fabric.toml"\n'
ALL = """
listen = "[::1]:7000"
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


def test_little_has_to_be_said(tmp_path: Path) -> None:
    found = config(tmp_path, LEAST)
    assert (found.host, found.port, found.socket, found.tls) == ("127.0.0.1", 9339, None, None)
    assert found.store == tmp_path / "control.db"
    switches = found.open_switches()
    assert len(switches.discover().hosts) == 4
    (told,) = switches.read([PortName("h0", 1)]).values()
    assert isinstance(told, Tables)
    switches.close()


def test_everything_can_be_said(tmp_path: Path) -> None:
    found = config(tmp_path, ALL)
    assert (found.host, found.port, found.keep) == ("::1", 7000, 100)
    assert found.settings.lane == LatencyLane(share=0.1, budget_bytes=400)
    assert (found.settings.levels, found.settings.take_over) == (4, True)
    assert (found.settings.usual_ttl_s, found.settings.most_connections) == (5.0, 20)
    assert (found.pace.check_s, found.pace.topology_s) == (2.0, 30.0)
    assert (found.limits.rate_per_s, found.limits.burst) == (50.0, 100.0)
    assert found.socket == Socket(path=tmp_path / "control.sock", mode=0o666, group="fabric")
    assert found.tls is not None
    assert found.tls.key == tmp_path / "k.pem"
    assert found.aliases == {"10.0.0.1": "h0", "h0.lab": "h0", "10.0.0.2": "h1"}


@pytest.mark.parametrize(("more", "mode"), [("", 0o600), ('socket_group = "fabric"', 0o660)])
def test_a_socket_is_its_owner_s_or_a_group_s_too(tmp_path: Path, more: str, mode: int) -> None:
    found = config(tmp_path, f'socket = "control.sock"\n{more}\n{LEAST}').socket
    assert found is not None
    assert found.mode == mode


@pytest.mark.parametrize(
    ("old", "new", "told"),
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
            "tsl: is not a known key; known here: apps, hosts, "
            "leases, limits, listen, policy, revisions, socket, socket_group, socket_mode, store, "
            "switches, tls",
        ),
        ("[switches]", "[policy.lain]\n[switches]", "known here: lane, levels, managed_share"),
        ("[switches]", 'listen = "h:70000"\n[switches]', "listen: 'h:70000' is not HOST[:PORT]"),
        (
            "[switches]",
            'listen = "0.0.0.0"\n[switches]',
            "listen: '0.0.0.0' is not loopback, so TLS is needed; add [tls]",
        ),
        ("[switches]", 'listen = "10.0.0.1:7"\n[switches]', "listen: '10.0.0.1' is not loopback"),
        (
            "[switches]",
            '[policy.lane]\nshare = 0.1\nbudget = "400 B"\n[switches]',
            "policy.lane.share: 0.1 beside a managed_share of 1; lower one",
        ),
        ("control.db", "a\\u0000b", r"store: 'a\x00b' has a zero byte; leave it out"),
    ],
)
def test_mistakes_are_told_by_place(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(InputError, match=r"control\.toml") as raised:
        config(tmp_path, LEAST.replace(old, new))
    assert told in str(raised.value)


AGENT = '"linux"\nfabric = "fabric.toml"\n[switches.agents]\nleaf0 = 3\n#'


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("fabric =", "queus = 3\nfabric =", "switches.queus: is not a known key"),
        ("fabric =", 'registers = "."\nfabric =', "switches.registers: .: Is a directory"),
        ("fabric =", 'registers = "/proc/no/x"\nfabric =', "registers: /proc/no/x: No such file"),
        ("fabric =", 'registers = "fabric.toml"\nfabric =', "has the registers of other switches"),
        ("fabric =", r'fabric = ["a\u0000"] #', r"switches.fabric: 'a\x00' has a zero byte"),
        ('"simulated"', AGENT, "switches.agents.leaf0: 3 is not a text"),
    ],
)
def test_mistakes_of_a_driver_s_keys_are_told_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    config(tmp_path, LEAST.replace(old, new))
    with pytest.raises(InputError, match=r"control\.toml") as raised:
        read_config("control.toml").open_switches()
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:5", ("127.0.0.1", 5)),
        ("localhost", ("localhost", 9339)),
        ("[::1]:5", ("::1", 5)),
        ("::1", ("::1", 9339)),
    ],
)
def test_addresses_are_host_and_port(text: str, found: tuple[str, int]) -> None:
    assert listen_address(text, "file") == found


@pytest.mark.parametrize("text", ["", ":5", "host:no", "host:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"is not HOST\[:PORT\]"):
        listen_address(text, "file")


@pytest.mark.parametrize(
    ("switches", "told"),
    [
        ({"driver": "infiniband"}, "unverified on InfiniBand hardware"),
        ({"driver": "linux", "agents": {"leaf": "agent.sock"}}, "unverified on physical ports"),
        ({"driver": "linux", "testbed": "default"}, ""),
        ({"driver": "simulated", "fabric": "fabric.toml"}, ""),
    ],
)
def test_what_never_ran_on_its_hardware_says_so(switches: dict[str, object], told: str) -> None:
    found = describe_unverified(str(switches["driver"]), switches)
    assert found.startswith(told)
    assert bool(found) == bool(told)
