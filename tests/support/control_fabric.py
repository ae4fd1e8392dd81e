"""A `weft control serve` of a test's own on switches that are there: a subnet, or a testbed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control_process import Client, ControlProcess, save_applications

from weft.switches import PortName

RELEASE_S = 60


class FabricControl(ControlProcess):
    """A controller whose switches are those of [switches] in TOML."""

    def __init__(
        self,
        folder: Path,
        switches: str,
        parts: Mapping[str, float],
        *,
        policy: str = "",
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.folder = folder
        self.file = folder / "control.toml"
        self.environment, self.directory = environment, directory
        self.process, self.address = None, ""
        save_applications(folder / "apps", parts)
        share = "" if "managed_share" in policy else "managed_share = 1.0\n"
        self.file.write_text(
            'listen = "127.0.0.1:0"\nlisten_without_tls = true\nsocket = "control.sock"\n'
            'store = "control.db"\napps = "apps"\nmetrics = "127.0.0.1:0"\n'
            f'\n[policy]\n{share}objective = "slowdown"\n{policy}\n\n'
            f"[switches]\n{switches}\n"
        )

    def lines(self) -> list[dict[str, Any]]:
        """Its own; ibsim's library prints between them."""
        found = re.findall(r'\{"event": .*\}$', self.log.read_text(), re.MULTILINE)
        return [json.loads(line) for line in found]

    def release(self) -> None:
        """Ports have what they had; only after its end."""
        argv = [sys.executable, "-m", "weft.cli", "control", "release", str(self.file)]
        subprocess.run(argv, check=True, capture_output=True, timeout=RELEASE_S)


def listed(client: Client) -> dict[PortName, Any]:
    """What the controller says of every port that it has told something."""
    found = client.status(ports=True).listed_ports
    return {PortName(own.port.node, own.port.port): own for own in found}
