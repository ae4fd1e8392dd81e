"""Soft RoCE devices and the interfaces under them, in the virtual machine only.

The kernel delivers packets between two addresses of its own without a wire. Rules by outgoing
interface, looked at before the table of local addresses, send them through the veth pair instead.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


def run(*command: str, timeout_s: float = 30) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Veth:
    """Interface, device and address of both ends."""

    interfaces: tuple[str, str] = ("wire1", "wire2")
    devices: tuple[str, str] = ("rxe1", "rxe2")
    addresses: tuple[str, str] = ("10.9.1.1", "10.9.1.2")


def make_veth_pair() -> Veth:
    pair = Veth()
    a, b = pair.interfaces
    run("ip", "link", "add", a, "type", "veth", "peer", "name", b)
    for name in ("all", a, b):
        Path(f"/proc/sys/net/ipv4/conf/{name}/rp_filter").write_text("0")
        Path(f"/proc/sys/net/ipv4/conf/{name}/accept_local").write_text("1")
    run("ip", "rule", "add", "pref", "1000", "lookup", "local")
    run("ip", "rule", "del", "pref", "0")
    for number, (interface, address) in enumerate(
        zip(pair.interfaces, pair.addresses, strict=True), 101
    ):
        run("ip", "address", "add", f"{address}/24", "dev", interface)
        run("ip", "link", "set", interface, "up")
        run("ip", "route", "add", "10.9.1.0/24", "dev", interface, "table", str(number))
        run("ip", "route", "add", "local", address, "dev", interface, "table", str(number))
        run("ip", "rule", "add", "pref", str(number), "oif", interface, "lookup", str(number))
    for device, interface in zip(pair.devices, pair.interfaces, strict=True):
        run("rdma", "link", "add", device, "type", "rxe", "netdev", interface)
    return pair


def remove_veth_pair(pair: Veth) -> None:
    for device in pair.devices:
        run("rdma", "link", "delete", device)
    run("ip", "link", "delete", pair.interfaces[0])
    run("ip", "rule", "add", "pref", "0", "lookup", "local")
    for number in ("101", "102", "1000"):
        run("ip", "rule", "del", "pref", number)
