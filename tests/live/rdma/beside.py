"""weft, perftest and qperf one after another on one RDMA device: a table, and JSON lines.

    beside.py

Each side of a peer is a process on this machine, ours are two endpoints in one. The peers' figures
are theirs, as printed. In an emulated machine the times mean nothing: what counts is that all of
them run on the same device and finish. Exit status 1 when one does not. Over Ethernet, qperf
connects RC endpoints alone (-cm1).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verbs_pairs import drained, loop, pair, served

from weft._core import availability, complete, echo, ping_pong, serve_window, sink, stream

TIMEOUT_S = 60
MESSAGES = 200
TO_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "sec": 1e6}
TO_MB_PER_S = {"bytes/sec": 1e-6, "KB/sec": 1e-3, "MB/sec": 1.0, "GB/sec": 1e3}


@dataclass(frozen=True)
class Row:
    what: str
    unit: str
    size_bytes: int
    weft: Callable[[str, int], float]
    perftest: tuple[str, ...]
    qperf: str


def latency(kind: str) -> Callable[[str, int], float]:
    def run(device: str, size: int) -> float:
        spec = loop(bytes=size, count=MESSAGES, validate=True, warmup=10)
        with pair(
            device=device, endpoint=kind, send_bytes=size, receive_bytes=size, receive_depth=16
        ) as (a, b):
            result, _ = served(lambda s: ping_pong(a, spec, s), lambda s: echo(b, spec, s))
        if result.counts.received != MESSAGES or result.counts.corrupted:
            raise RuntimeError(f"{result.counts.received} of {MESSAGES} {result.counts.error}")
        return result.latency.quantile(0.5) / 1e6

    return run


def one_sided(op: str) -> Callable[[str, int], float]:
    def run(device: str, size: int) -> float:
        spec = loop(bytes=size, count=MESSAGES, op=op, warmup=10)
        with pair(device=device, send_bytes=size, remote_bytes=size) as (a, b):
            result, _ = served(lambda s: complete(a, spec, s), lambda s: serve_window([b], spec, s))
        if result.counts.sent != MESSAGES:
            raise RuntimeError(result.counts.error)
        return result.latency.quantile(0.5) / 1e6

    return run


def bandwidth(op: str) -> Callable[[str, int], float]:
    def run(device: str, size: int) -> float:
        spec = loop(bytes=size, count=MESSAGES, op=op)
        fields: dict[str, Any] = {"send_bytes": size, "receive_bytes": size, "remote_bytes": size}
        with pair(device=device, depth=32, receive_depth=64, **fields) as (a, b):
            if op == "send":
                sent, got = drained(
                    lambda s: stream([a], spec, s, window=32), lambda s: sink([b], spec, s)
                )
                complete_ = got.received == MESSAGES
            else:
                sent, _ = served(
                    lambda s: stream([a], spec, s, window=32), lambda s: serve_window([b], spec, s)
                )
                complete_ = sent.sent == MESSAGES
        if not complete_:
            raise RuntimeError(sent.error)
        return sent.bytes / sent.elapsed_ns * 1e3

    return run


ROWS = (
    Row("RC send, half round trip", "us", 64, latency("rc"), ("ib_send_lat",), "rc_lat"),
    Row("UC send, half round trip", "us", 64, latency("uc"), ("ib_send_lat", "-c", "UC"), ""),
    Row("UD send, half round trip", "us", 64, latency("ud"), ("ib_send_lat", "-c", "UD"), ""),
    Row("RC read", "us", 64, one_sided("read"), ("ib_read_lat",), "rc_rdma_read_lat"),
    Row(
        "RC fetch-add",
        "us",
        8,
        one_sided("fetch-add"),
        ("ib_atomic_lat", "-A", "FETCH_AND_ADD"),
        "",
    ),
    Row(
        "RC send, 32 outstanding",
        "MB/s",
        65536,
        bandwidth("send"),
        ("ib_send_bw", "-t", "32"),
        "rc_bw",
    ),
    Row(
        "RC write, 32 outstanding",
        "MB/s",
        65536,
        bandwidth("write"),
        ("ib_write_bw", "-t", "32"),
        "rc_rdma_write_bw",
    ),
)


def is_listening(port: int) -> bool:
    lines = [*Path("/proc/net/tcp").read_text().splitlines()]
    lines += Path("/proc/net/tcp6").read_text().splitlines()
    return any(re.search(rf"^\s*\d+: \w+:{port:04X} \S+ 0A ", line) for line in lines)


def client_output(server: list[str], client: list[str], port: int) -> str:
    """What the client prints; it starts when its server listens, and both end."""
    log = Path(os.environ.get("WEFT_RDMA_OUT", ".")) / "peers.log"
    with (
        log.open("a") as sink_,
        subprocess.Popen(server, stdout=sink_, stderr=sink_, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            end = time.monotonic() + TIMEOUT_S
            while not is_listening(port):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{server[0]} does not listen on port {port}; {log}")
                time.sleep(0.05)
            done = subprocess.run(
                client,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        finally:
            process.terminate()
        print(" ".join(client), done.stdout, done.stderr, sep="\n", file=sink_)
    if done.returncode != 0:
        raise RuntimeError(f"{client[0]} exit status {done.returncode}: {done.stderr[-200:]}")
    return done.stdout


def perftest(row: Row, device: str, gid: str, port: int) -> float:
    command = [*row.perftest, "-d", device, "-x", gid, "-F", "-p", str(port), "-n", str(MESSAGES)]
    if row.perftest[0] != "ib_atomic_lat":
        command += ["-s", str(row.size_bytes)]
    output = client_output(command, [*command, "127.0.0.1"], port)
    line = re.search(rf"^ {row.size_bytes} +{MESSAGES} +(.*)$", output, re.MULTILINE)
    if line is None:
        raise RuntimeError(f"{row.perftest[0]} printed no result")
    columns = line[1].split()
    # t_typical of a latency test, the average of a bandwidth test (MiB/s).
    return float(columns[2]) if row.unit == "us" else float(columns[1]) * 1.048576


def qperf(row: Row, address: str, port: int) -> float:
    output = client_output(
        ["qperf", "-lp", str(port)],
        [
            "qperf",
            address,
            "-lp",
            str(port),
            "-cm1",
            "-t",
            "1",
            "-m",
            str(row.size_bytes),
            row.qperf,
        ],
        port,
    )
    found = re.search(r"(?:latency|bw|recv_bw) += +([\d.,]+) +(\S+)", output)
    if found is None:
        raise RuntimeError(f"qperf {row.qperf} printed no result: {output[:200]}")
    scale = TO_US if row.unit == "us" else TO_MB_PER_S
    return float(found[1].replace(",", "")) * scale[found[2]]


def attempt(name: str, run: Callable[[], float], failures: list[str]) -> float | None:
    try:
        return run()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        failures.append(f"{name}: {error}")
        return None


def main() -> int:
    device = next(entry for entry in availability() if entry.transport == "verbs")
    gid, address = next(
        (index, ip) for index, ip in re.findall(r"(\d+): ([\d.]+) ", device.facts["gids"])
    )
    out = Path(os.environ.get("WEFT_RDMA_OUT", "."), "beside.jsonl")
    failures: list[str] = []
    print(f"\n{device.device}: {'test':30} {'weft':>12} {'perftest':>12} {'qperf':>12}")
    with out.open("w") as lines:
        for number, row in enumerate(ROWS):
            ports = 18600 + 2 * number, 18601 + 2 * number
            runs: dict[str, Callable[[], float]] = {
                "weft": lambda row=row: row.weft(device.device, row.size_bytes),
                "perftest": lambda row=row, p=ports: perftest(row, device.device, gid, p[0]),
            }
            if row.qperf:
                runs["qperf"] = lambda row=row, p=ports: qperf(row, address, p[1])
            values = {
                name: attempt(f"{row.what}, {name}", run, failures) for name, run in runs.items()
            }
            fields = {"test": row.what, "unit": row.unit, "size_bytes": row.size_bytes, **values}
            print(json.dumps(fields), file=lines, flush=True)
            shown = [
                "-"
                if name not in values
                else "FAILED"
                if values[name] is None
                else f"{values[name]:.1f} {row.unit}"
                for name in ("weft", "perftest", "qperf")
            ]
            what = f"{row.what}, {row.size_bytes} B"
            print(f"{what:36} {shown[0]:>12} {shown[1]:>12} {shown[2]:>12}", flush=True)
    print("in an emulated machine these times mean nothing: all three finished, that is the test")
    for failure in failures:
        print(f"FAILED  {failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
