"""Controllers that share etcd and simulated switches: a folder each, one file of registers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control_process import ControlProcess, save_applications
from etcd_cluster import EtcdCluster
from serve_process import wait_until

from weft.fabric import Fabric, leaf_spine, write_toml

SIMULATED = 'driver = "simulated"\nfabric = "fabric.toml"\nregisters = "registers"\n'
START_S = 180.0  # of a machine that others keep busy


class MemberProcess(ControlProcess):
    """A member of a group; `start_member` does not wait for it to listen.

    `inside`: words before its command, such as `ip netns exec`; it is then called by its socket.
    """

    inside: Sequence[str] = ()

    def __init__(
        self,
        folder: Path,
        name: str,
        etcd: EtcdCluster,
        *,
        fabric: Fabric | None = None,
        ttl_s: float = 2.0,
        group: str = "fabric",
        more: str = "",
        switches: str = SIMULATED,
    ) -> None:
        self.folder, self.name = folder, name
        self.file = folder / f"{name}.toml"
        if not (folder / "fabric.toml").exists():
            (folder / "fabric.toml").write_text(write_toml(fabric or leaf_spine(2, 2, 2)))
            save_applications(folder / "apps")
        endpoints = ", ".join(f'"{endpoint}"' for endpoint in etcd.endpoints)
        self.file.write_text(
            'listen = "127.0.0.1:0"\nlisten_without_tls = true\n'
            f'store = "{name}.db"\napps = "apps"\nsocket = "{name}.sock"\n'
            f"[etcd]\nendpoints = [{endpoints}]\nttl_s = {ttl_s}\nwrite_s = 0.5\n"
            f'group = "{group}"\n{more}\n'
            '[policy]\nmanaged_share = 1.0\nobjective = "slowdown"\n'
            f"[switches]\n{switches}check_s = 1.0\n"
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.log = folder / f"{name}.log"
        self.errors = folder / f"{name}.err"

    def start_member(self) -> None:
        with self.log.open("wb") as log, self.errors.open("wb") as errors:
            argv = [sys.executable, "-m", "weft.cli", "control", "serve", str(self.file), "--json"]
            self.process = subprocess.Popen(
                [*self.inside, *argv],
                stdout=log,
                stderr=errors,
                env=self.environment,
                cwd=self.directory,
            )

    def send(self, what: signal.Signals) -> None:
        os.kill(self.pid, what)

    def has_logged(self, text: str) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.errors.read_text() + self.log.read_text()
        return any(text in line["text"] for line in self.lines())

    def wait_for(self, text: str, within_s: float = START_S) -> None:
        wait_until(lambda: self.has_logged(text), f"{self.name} says {text!r}", within_s)

    def find_address(self) -> str | None:
        """Where it listens as the owner; None: it is a standby, or has ended."""
        if self.process is None or self.process.poll() is not None:
            return None
        address: str | None = None
        for line in self.lines():
            if line["event"] == "listening":
                address = f"unix:{self.folder / self.name}.sock" if self.inside else line["text"]
            elif "standby" in line["text"]:
                address = None
        return address


def find_owner(members: list[MemberProcess]) -> MemberProcess:
    def find() -> Any:
        for member in members:
            ended = member.process is not None and member.process.poll() == 2
            assert not ended, member.errors.read_text()
        addresses = [(member, member.find_address()) for member in members]
        return [(member, address) for member, address in addresses if address is not None]

    owner: MemberProcess
    owner, owner.address = wait_until(find, "a member owns the group", START_S)[-1]
    return owner
