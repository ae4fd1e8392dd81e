"""iperf3: sockets, blocking; what the server received.

Over UDP it keeps to 1 Mb/s unless told otherwise: here as fast as it goes (`-b 0`).
"""

from __future__ import annotations

import json
import shutil

from bench.peers.processes import free_ports, run, serving

NAME, PACKAGE = "iperf3", "iperf3"
SECONDS = "1"


def is_installed() -> bool:
    return shutil.which("iperf3") is not None


def bytes_per_s(protocol: str, size_bytes: int) -> float:
    (port,) = free_ports(1)
    common = ["-p", str(port), "-t", SECONDS, "-l", str(size_bytes), "-J"]
    over = ["-u", "-b", "0"] if protocol == "udp" else []
    with serving(["iperf3", "-s", "-1", "-p", str(port)], port, ends_itself=True):
        return bandwidth_in(run(["iperf3", "-c", "127.0.0.1", *common, *over]), protocol)


def bandwidth_in(text: str, protocol: str = "tcp") -> float:
    """Bytes per second that arrived: of UDP, `sum` has what was sent and the share lost."""
    end = json.loads(text)["end"]
    if protocol == "tcp":
        return float(end["sum_received"]["bits_per_second"]) / 8
    return float(end["sum"]["bits_per_second"]) / 8 * (1 - end["sum"]["lost_percent"] / 100)
