"""A Dask cluster of this machine: a scheduler and workers of one thread, as processes.

All end with the context, and with the tests, however these end. Entry point: `dask_cluster`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from weft.host.machine.processes import end_with_parent

START_S = 60


@dataclass(frozen=True, slots=True)
class DaskCluster:
    """A scheduler's address and process, and its workers' processes by name."""

    address: str
    scheduler: subprocess.Popen[bytes]
    workers: dict[str, subprocess.Popen[bytes]]


@contextmanager
def dask_cluster(folder: Path, workers: Mapping[str, Sequence[str]]) -> Iterator[DaskCluster]:
    """Workers by name, each with further options of `dask worker`; all have joined."""
    import distributed

    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    with ExitStack() as stack:
        listen = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        cluster = DaskCluster(address, start_dask(stack, folder, "scheduler", *listen), {})
        for name, options in workers.items():
            cluster.workers[name] = start_worker(stack, folder, address, name, *options)
        with distributed.Client(address, timeout=START_S, set_as_default=False) as client:
            client.wait_for_workers(len(workers), timeout=START_S)
        yield cluster


def start_worker(
    stack: ExitStack, folder: Path, address: str, name: str, *options: str
) -> subprocess.Popen[bytes]:
    plain = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--local-directory", str(folder)]
    return start_dask(stack, folder, "worker", address, "--name", name, *plain, *options)


def start_dask(stack: ExitStack, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with (folder / f"{arguments[0]}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments],
            stdout=log,
            stderr=log,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )
    stack.callback(process.wait, 10)
    stack.callback(process.send_signal, signal.SIGKILL)
    return process


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
