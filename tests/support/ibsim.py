"""A subnet of ibsim with OpenSM on it: management packets are real, ports and tables simulated.

`subnet(fabric, directory)` writes the fabric as ibsim reads it, starts both, and waits until OpenSM
has routed it. A process is on the subnet when it starts with `Subnet.environment` and, because the
preloaded library keeps files beside it, in `Subnet.directory`. ibsim takes ten clients at a time.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import IO

from weft.fabric import Fabric, with_addresses, write_ibnetdiscover

PRELOAD = "/usr/lib/*/umad2sim/libumad2sim.so"
TOOLS = ("ibsim", "opensm", "smpquery")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
READY_S, ROUTED_S, STOP_S = 20.0, 120.0, 20.0
FIRST_PRIORITY = 14
DATA_VLS_CODE = 4  # OpenSM's max_op_vls: 4 is VL0-7, all that ibsim has


def why_not() -> str | None:
    """What is missing here; None if a subnet can be started."""
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if not glob(PRELOAD):
        missing.append("libumad2sim.so")
    names = ", ".join(missing)
    return f"{names} not found: install ibsim-utils, opensm, infiniband-diags" if missing else None


@dataclass(slots=True)
class Subnet:
    """ibsim and OpenSM as processes; the fabric has the GUIDs that ibsim was given.

    OpenSM gives every host 2^`lmc` LIDs.
    """

    directory: Path
    fabric: Fabric
    simulator: subprocess.Popen[bytes]
    lmc: int = 0
    managers: int = 0
    priority: int = 0  # of the OpenSM that was started last
    manager: subprocess.Popen[bytes] | None = None
    standby: subprocess.Popen[bytes] | None = None
    logs: list[IO[bytes]] = field(default_factory=list)

    def node_id(self, name: str) -> str:
        """What ibsim calls a node."""
        node = self.fabric.nodes[self.fabric.index(name)]
        assert node.guid is not None
        return f"{'S' if node.kind == 'switch' else 'H'}-{node.guid[2:]}"

    def environment(self, host: str | None = None) -> dict[str, str]:
        """Of a process that is to be on the subnet, at the first host if none is named."""
        name = host or self.fabric.nodes[self.fabric.hosts[0]].name
        return {
            **_environment(self.directory),
            "LD_PRELOAD": glob(PRELOAD)[0],
            "SIM_HOST": self.node_id(name),
        }

    def console(self, command: str) -> None:
        """A command to ibsim, such as `Unlink "S-0000000000100060"[1]`."""
        assert self.simulator.stdin is not None
        self.simulator.stdin.write(f"{command}\n".encode())
        self.simulator.stdin.flush()

    def run(self, *argv: str) -> str:
        """What a tool prints on the subnet."""
        done = subprocess.run(
            argv,
            env=self.environment(),
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=ROUTED_S,
        )
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
        return done.stdout

    def start_manager(self, *, qos: bool = False) -> None:
        """OpenSM; returns when it has routed the subnet. With `qos` it sets its own tables."""
        assert self.manager is None
        self.priority = FIRST_PRIORITY
        self.manager, log = self._start_manager(qos=qos)
        _wait(lambda: _holds(log, "SUBNET UP"), ROUTED_S, self.manager, log)

    def start_standby(self, host: str) -> None:
        """Another OpenSM at another host; returns when it waits for the first one's end."""
        assert self.standby is None
        self.priority -= 1  # with the same, the lower GUID would be master
        self.standby, log = self._start_manager(host=host)
        _wait(lambda: _holds(log, "Entering STANDBY state"), ROUTED_S, self.standby, log)

    def fail_over(self) -> float:
        """Kills the first OpenSM; seconds until the other one has routed the subnet."""
        assert self.manager is not None
        assert self.standby is not None
        began = time.monotonic()
        self.manager.kill()
        self.manager.wait()
        self.manager, self.standby = self.standby, None
        log = self.directory / f"opensm{self.managers}.log"
        _wait(lambda: _holds(log, "SUBNET UP"), ROUTED_S, self.manager, log)
        return time.monotonic() - began

    def _start_manager(
        self, *, host: str | None = None, qos: bool = False
    ) -> tuple[subprocess.Popen[bytes], Path]:
        """OpenSM and its log; a standby asks the master every second, and gives up on the third."""
        self.managers += 1
        log = self.directory / f"opensm{self.managers}.log"
        options = self.directory / f"opensm{self.managers}.conf"
        options.write_text(
            f"qos {'TRUE' if qos else 'FALSE'}\nmax_op_vls {DATA_VLS_CODE}\nlmc {self.lmc}\n"
            f"log_file {log}\nforce_log_flush TRUE\n"
            f"dump_files_dir {self.directory}\nsweep_interval 2\n"
            "sminfo_polling_timeout 1000\npolling_retry_number 2\n"
            f"sm_priority {self.priority}\n"
        )
        process = self._started(["opensm", "-F", str(options)], "opensm.out", host)
        return process, log

    def stop_manager(self) -> None:
        for process in (self.standby, self.manager):
            if process is not None:
                _stop(process)
        self.standby = self.manager = None

    def _started(
        self, argv: list[str], output: str, host: str | None = None
    ) -> subprocess.Popen[bytes]:
        self.logs.append((self.directory / output).open("ab"))
        return subprocess.Popen(
            argv,
            env=self.environment(host),
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=self.logs[-1],
            stderr=subprocess.STDOUT,
        )

    def close(self) -> None:
        self.stop_manager()
        _stop(self.simulator)
        for log in self.logs:
            log.close()


@contextmanager
def subnet(fabric: Fabric, directory: Path, lmc: int = 0) -> Iterator[Subnet]:
    """The fabric's nodes and cables as a subnet that OpenSM has routed."""
    addressed = with_addresses(fabric)
    net = directory / "fabric.net"
    net.write_text(_without_lids(write_ibnetdiscover(addressed)))
    log = directory / "ibsim.out"
    with log.open("wb") as output:
        simulator = subprocess.Popen(
            ["ibsim", "-s", "-N", "4096", "-S", "512", "-P", "20000", str(net)],
            env=_environment(directory),
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    made = Subnet(directory, addressed, simulator, lmc)
    try:
        _wait(lambda: _holds(log, "simulator ready"), READY_S, simulator, log)
        made.start_manager()
        yield made
    finally:
        made.close()


def _environment(directory: Path) -> dict[str, str]:
    # A name of its own for each subnet: the sockets are in one abstract name space.
    name = f"weft{os.getpid()}-{abs(hash(str(directory))) % 10**9}"
    return {
        **os.environ,
        "PATH": PATH,
        "IBSIM_SOCKNAME": name,
        "OSM_CACHE_DIR": str(directory),
        "OSM_TMP_DIR": str(directory),
    }


def _without_lids(dump: str) -> str:
    """LIDs are the subnet manager's to give."""
    return re.sub(r"\blid \d+", "lid 0", dump)


def _holds(file: Path, words: str) -> bool:
    return file.exists() and words in file.read_text(errors="replace")


def _wait(
    is_so: Callable[[], bool], seconds: float, process: subprocess.Popen[bytes], log: Path
) -> None:
    until = time.monotonic() + seconds
    while not is_so():
        ended = process.poll()
        text = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        assert ended is None, f"{process.args!r} ended with {ended}: {text}"
        assert time.monotonic() < until, f"{process.args!r} not ready in {seconds:g} s: {text}"
        time.sleep(0.02)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


# ---- What infiniband-diags reads ----------------------------------------------------------------


def vl_arbitration(subnet: Subnet, lid: int, port: int) -> dict[str, list[tuple[int, int]]]:
    """`smpquery vlarb`: (VL, weight) of the "Low" and the "High" list."""
    text = subnet.run("smpquery", "vlarb", str(lid), str(port))
    found: dict[str, list[tuple[int, int]]] = {}
    for kind, block in re.findall(r"# (Low|High) priority VL Arbitration Table:\n(.*\n.*\n)", text):
        rows = [_numbers(line, 16) for line in block.splitlines()]
        found.setdefault(kind, []).extend(zip(*rows, strict=True))
    return found


def service_levels(subnet: Subnet, lid: int, port: int) -> dict[int, list[int]]:
    """`smpquery sl2vl`: VLs of the 16 service levels, for each input port."""
    text = subnet.run("smpquery", "sl2vl", str(lid), str(port))
    rows = re.findall(r"ports: in +(\d+), out +(\d+): (\|.*)", text)
    # An adapter's only port is called 0 there.
    return {int(i): _numbers(f":{vls}", 10) for i, o, vls in rows if int(o) in (0, port)}


def _numbers(line: str, base: int) -> list[int]:
    """Of a line such as `VL    : |0x0 |0x1 |`."""
    return [int(cell, base) for cell in line.partition(":")[2].split("|") if cell.strip()]
