"""qperf: sockets, blocking.

tcp_lat and udp_lat report the mean time of one message in one direction of a ping-pong, that is
half the mean round trip. tcp_bw and udp_bw report what the receiver got.
"""

from __future__ import annotations

import re
import shutil

from bench.peers.processes import free_ports, run, serving

NAME, PACKAGE = "qperf", "qperf"
SECONDS = "1"


def is_installed() -> bool:
    return shutil.which("qperf") is not None


def _test(test: str, size_bytes: int) -> str:
    listen, data = (str(port) for port in free_ports(2))
    options = ["-lp", listen, "-ip", data, "-m", str(size_bytes), "-t", SECONDS]
    with serving(["qperf", "-lp", listen], int(listen)):
        return run(["qperf", *options, "--unify_units", "-v", "-e", "6", "127.0.0.1", test])


def mean_us(protocol: str, size_bytes: int) -> float:
    return latency_in(_test(f"{protocol}_lat", size_bytes)) / 1000


def bytes_per_s(protocol: str, size_bytes: int) -> float:
    return bandwidth_in(_test(f"{protocol}_bw", size_bytes))


def messages_per_s(protocol: str, size_bytes: int) -> float:
    return bytes_per_s(protocol, size_bytes) / size_bytes


def latency_in(text: str) -> float:
    """Nanoseconds."""
    return _number(r"latency\s*=\s*([\d.e+]+) ns", text)


def bandwidth_in(text: str) -> float:
    """Bytes per second at the receiver: of UDP, qperf also tells what was sent."""
    return _number(r"^\s*(?:recv_)?bw\s*=\s*([\d.e+]+) bytes/sec", text)


def _number(pattern: str, text: str) -> float:
    if found := re.search(pattern, text, re.MULTILINE):
        return float(found[1])
    raise SystemExit(f"qperf: no {pattern!r} in its output:\n{text[-1000:]}")
