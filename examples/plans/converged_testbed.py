"""The converged pattern on one machine: seven network namespaces on a bridge with slow ports.

Builds the testbed, starts a Dask scheduler on the switch and a worker in each host, and runs
`weft measure converged.toml` there. As root; about a minute. Everything is removed at the end.

    python examples/plans/converged_testbed.py [-o converged.jsonl]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.errors import InputError, WeftError
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import SWITCH, Wiring
from weft.measure.plan import load_plan

PLAN = Path(__file__).with_name("converged.toml")
PORT = 8786
PACKET_BYTES = 1514
RATE_BPS = 100_000_000
# 64 packets of 1514 B: 7.75 ms of the rate.
LIMIT_BYTES = 64 * PACKET_BYTES
START_S = 60
PLAN_S = 300
WAIT_FOR_WORKERS = """
import sys, distributed
with distributed.Client(sys.argv[1], timeout=float(sys.argv[3])) as client:
    client.wait_for_workers(int(sys.argv[2]), timeout=float(sys.argv[3]))
"""


def wiring() -> Wiring:
    """A link of the same rate and queue for each host of the plan."""
    hosts = tuple(host.name for host in load_plan(PLAN).hosts)
    return Wiring(
        hosts=hosts,
        rate_bps=RATE_BPS,
        limit_bytes=LIMIT_BYTES,
        burst_bytes=16 * 1024,
        nic_limit_bytes=1024 * 1024,
        offloads=False,
    )


@contextmanager
def cluster(bed: Testbed, directory: Path) -> Iterator[str]:
    """A scheduler on the switch and a worker in each host; the scheduler's address."""
    address = f"tcp://{bed.addresses[SWITCH]}:{PORT}"
    dask = [sys.executable, "-m", "dask"]
    here = ["--host", bed.addresses[SWITCH], "--port", str(PORT), "--no-dashboard"]
    commands = {SWITCH: [*dask, "scheduler", *here]}
    for host in bed.wiring.hosts:
        own = ["--name", host, "--host", bed.addresses[host], "--local-directory", str(directory)]
        one = ["--nthreads", "1", "--no-nanny", "--no-dashboard"]
        commands[host] = [*dask, "worker", address, *own, *one]
    processes = []
    with (directory / "dask.log").open("wb") as log:
        try:
            for host, argv in commands.items():
                processes.append(bed.spawn(host, argv, stdout=log, stderr=log))
            _wait_for_workers(bed, address)
            yield address
        except WeftError:
            print((directory / "dask.log").read_text(errors="replace")[-4000:], file=sys.stderr)
            raise
        finally:
            for process in processes:
                process.kill()
                process.wait()


def _wait_for_workers(bed: Testbed, address: str) -> None:
    workers = str(len(bed.wiring.hosts))
    argv = [sys.executable, "-c", WAIT_FOR_WORKERS, address, workers, str(START_S)]
    if bed.spawn(SWITCH, argv).wait(2 * START_S) != 0:
        raise InputError("Dask workers", f"not all there within {START_S} s", "see dask.log")


def measure(bed: Testbed, address: str, output: str, repetitions: int) -> int:
    """`weft measure`, on the switch; its exit status."""
    argv = [sys.executable, "-m", "weft.cli", "measure", str(PLAN), "--cluster", address]
    process = bed.spawn(SWITCH, [*argv, "--repetitions", str(repetitions), "-o", output])
    try:
        return process.wait(PLAN_S)
    except KeyboardInterrupt:  # it has had the signal too, and keeps what it has
        return process.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", default="converged.jsonl", help="the records")
    parser.add_argument("--repetitions", type=int, default=1)
    args = parser.parse_args()
    with (
        testbed(wiring()) as bed,
        tempfile.TemporaryDirectory(prefix="weft-") as directory,
        cluster(bed, Path(directory)) as address,
    ):
        status = measure(bed, address, args.output, args.repetitions)
        if status:
            print((Path(directory) / "dask.log").read_text(errors="replace")[-4000:])
        port = bed.read_port_counters("receiver")
        print(f"port of the receiver: {port.packets} packets passed, {port.dropped} lost")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WeftError as error:
        sys.exit(f"{Path(__file__).name}: {error}")
