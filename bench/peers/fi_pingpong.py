"""fi_pingpong: libfabric, spinning.

Reports usec/xfer: the whole time over all messages of both directions, that is half the mean
round trip.
"""

from __future__ import annotations

import shutil

from bench.peers.processes import free_ports, run, serving

NAME, PACKAGE = "fi_pingpong", "libfabric-bin"


def is_installed() -> bool:
    return shutil.which("fi_pingpong") is not None


def mean_us(provider: str, endpoint: str, size_bytes: int, messages: int) -> float:
    """Half the mean round trip."""
    (port,) = free_ports(1)
    common = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", str(messages)]
    common += ["-S", str(size_bytes)]
    with serving([*common, "-B", str(port)], port, ends_itself=True):
        return mean_in(run([*common, "-P", str(port), "127.0.0.1"]))


def mean_in(text: str) -> float:
    lines = [line.split() for line in text.splitlines() if line.strip()]
    heads, values = lines[0], lines[-1]
    return float(dict(zip(heads, values, strict=True))["usec/xfer"])
