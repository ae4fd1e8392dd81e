"""sockperf: sockets, blocking or spinning (`--nonblocked`).

Ping-pong reports the median of half the round trips; each reply counts, outside a warm-up of 0.4 s.
Throughput counts what the client gave to its socket; over UDP that may not all arrive.
"""

from __future__ import annotations

import re
import shutil

from bench.peers.processes import free_ports, run, serving

NAME, PACKAGE = "sockperf", "sockperf"
SECONDS = "1"


def is_installed() -> bool:
    return shutil.which("sockperf") is not None


def _exchange(mode: str, protocol: str, size_bytes: int, spin: bool) -> str:
    (port,) = free_ports(1)
    common = ["-i", "127.0.0.1", "-p", str(port), *(["--tcp"] if protocol == "tcp" else [])]
    wait = ["--nonblocked"] if spin else []
    with serving(["sockperf", "server", *common, *wait], port, protocol):
        return run(["sockperf", mode, *common, *wait, "-m", str(size_bytes), "-t", SECONDS])


def median_us(protocol: str, size_bytes: int, *, spin: bool) -> float:
    return median_in(_exchange("ping-pong", protocol, size_bytes, spin))


def messages_per_s(protocol: str, size_bytes: int) -> float:
    return rate_in(_exchange("throughput", protocol, size_bytes, False))


def median_in(text: str) -> float:
    return _number(r"percentile 50\.000 =\s*([\d.]+)", text)


def rate_in(text: str) -> float:
    return _number(r"Message Rate is (\d+)", text)


def _number(pattern: str, text: str) -> float:
    if found := re.search(pattern, text):
        return float(found[1])
    raise SystemExit(f"sockperf: no {pattern!r} in its output:\n{text[-1000:]}")
