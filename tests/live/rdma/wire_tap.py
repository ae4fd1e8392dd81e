"""RoCE packets on the cable between two devices, as tcpdump shows them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

from rdma_network import Veth
from verbs_pairs import settings

from weft._core import EndpointConfig

ROCE_PORT = 4791


def ends(veth: Veth, **fields: object) -> tuple[EndpointConfig, EndpointConfig]:
    ours, theirs = (settings(device=name, receive_depth=64, **fields) for name in veth.devices)
    return ours, theirs


@contextmanager
def listening(veth: Veth) -> Iterator[list[str]]:
    """The RoCE packets on the wire meanwhile, one line each, in the list when the context ends."""
    packets: list[str] = []
    command = (
        "tcpdump",
        "-i",
        veth.interfaces[0],
        "-n",
        "-v",
        "-l",
        "-s",
        "128",
        "--immediate-mode",
        "udp",
        "port",
        str(ROCE_PORT),
    )
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout
        assert process.stderr
        # A packet is two lines: the IP header, then addresses and length.
        lines: list[str] = []
        reader = Thread(target=lines.extend, args=(process.stdout,))
        try:
            assert "listening on" in process.stderr.readline()
            reader.start()
            yield packets
            seen = -1
            while len(lines) > seen:
                seen = len(lines)
                time.sleep(2.0)
        finally:
            process.terminate()
        reader.join(10)
        whole = "".join(lines).replace("\n    ", " ").splitlines()
        packets += [line for line in whole if "UDP, length" in line]


def classes(packets: Sequence[str]) -> list[int]:
    """The type of service of each packet."""
    return [int(tos, 16) for line in packets for tos in re.findall(r"tos (0x\w+)", line)]
