"""`weft run` in namespaces: what a command opens is marked, told, and given back."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from controller_model import ModelController
from controller_server import GrpcController, grpc_controller
from needs import need_namespaces

from weft.host.net import marking
from weft.host.net.caps import change_ends
from weft.host.net.htb import Queue, read_queues, set_queues
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import Wiring

LEVEL = 3
BYTES = 400_000
LIMIT_S = 20.0
SERVE = """
import socket, threading
def drain(connection):
    while connection.recv(1 << 16):
        pass
with socket.create_server(("::", 5000), family=socket.AF_INET6, dualstack_ipv6=True) as server:
    print("listening", flush=True)
    while True:
        threading.Thread(target=drain, args=(server.accept()[0],), daemon=True).start()
"""
SEND = f"""
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.sendall(bytes({BYTES}))
    print("sent", flush=True)
    sys.stdin.read()
"""


def until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    need_namespaces()
    with testbed(Wiring(hosts=("a", "b"), rate_bps=100_000_000)) as made:
        server = made.spawn("b", [sys.executable, "-c", SERVE], stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"listening\n"
        yield made
        server.kill()
        server.wait()
        server.stdout.close()


@pytest.fixture
def controller() -> Iterator[GrpcController]:
    with grpc_controller(ModelController(levels={"sort": LEVEL})) as made:
        yield made


def argv(controller: GrpcController, *command: str) -> list[str]:
    start = [sys.executable, "-m", "weft.cli", "run", "--app", "sort", "--ttl", "1"]
    return [*start, "--controller", controller.address, "--", *command]


def sending(bed: Testbed) -> list[str]:
    inside = ["ip", "netns", "exec", bed.namespace("a")]
    return [*inside, sys.executable, "-c", SEND, bed.addresses["b"]]


@pytest.fixture
def running(bed: Testbed, controller: GrpcController) -> Iterator[subprocess.Popen[bytes]]:
    """A command that has sent and waits, its connection open."""
    with subprocess.Popen(
        argv(controller, *sending(bed)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"sent\n"
        yield process
        process.kill()


def groups(run: subprocess.Popen[bytes]) -> list[marking.Group]:
    """Those that a `weft run` has made."""
    return [
        marking.Group(path) for path in marking.find_mount().rglob(f"accompanied-weft-{run.pid}-*")
    ]


def test_packets_of_an_unmodified_command_bear_its_level(
    bed: Testbed, controller: GrpcController
) -> None:
    wanted = [Queue(weight=1, dscps=(0,)), Queue(weight=1, dscps=(LEVEL,))]
    with change_ends([bed.ends("a")[0]]) as held:
        set_queues(held.saved[0], wanted)
        before = [one.count.bytes for one in read_queues(held.saved[0].end)]
        subprocess.run(
            argv(controller, *sending(bed)), stdin=subprocess.DEVNULL, check=True, timeout=60
        )
        after = [one.count.bytes for one in read_queues(held.saved[0].end)]
    unmarked, marked = (now - then for now, then in zip(after, before, strict=True))
    assert marked > BYTES
    assert unmarked < BYTES / 10


def test_the_controller_hears_between_which_hosts(
    bed: Testbed, controller: GrpcController, running: subprocess.Popen[bytes]
) -> None:
    wanted = [("sort#1", bed.addresses["a"], bed.addresses["b"])]
    until(lambda: list(controller.model.connections.values()) == wanted)
    assert running.stdin is not None
    assert len(groups(running)) == 1
    running.stdin.close()
    assert running.wait(LIMIT_S) == 0
    assert not controller.model.registrations
    assert not groups(running)


def test_what_a_managed_command_says_is_all_that_is_said(controller: GrpcController) -> None:
    """gRPC has threads in the process that starts it, and must have nothing to say about that."""
    words = argv(controller, "sh", "-c", "echo out; echo err >&2")
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")
    assert controller.model.number == 1


def test_after_a_kill_the_lease_ends_and_the_command_goes_on(
    controller: GrpcController, running: subprocess.Popen[bytes]
) -> None:
    until(lambda: controller.model.pairs())
    (group,) = groups(running)
    running.send_signal(signal.SIGKILL)
    running.wait(LIMIT_S)
    assert group.pids()
    renewals = controller.model.registrations["sort#1"].renewals
    time.sleep(0.7)
    assert controller.model.registrations["sort#1"].renewals == renewals
    assert running.stdin is not None
    running.stdin.close()
    until(lambda: not group.pids())
    subprocess.run(argv(controller, "true"), check=True, timeout=60)
    assert not groups(running)  # the next one has removed it


def test_a_controller_that_comes_late_marks_what_is_opened_after(
    bed: Testbed, controller: GrpcController
) -> None:
    controller.stop()
    text = """
import socket, sys
print("ready", flush=True)
sys.stdin.readline()
with socket.create_connection((sys.argv[1], 5000)) as connection:
    print(connection.getsockopt(socket.IPPROTO_IP, socket.IP_TOS), flush=True)
    sys.stdin.readline()
"""
    inside = ["ip", "netns", "exec", bed.namespace("a"), sys.executable, "-c", text]
    with subprocess.Popen(
        argv(controller, *inside, bed.addresses["b"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        controller.start()
        until(lambda: controller.model.registrations)
        time.sleep(0.5)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) == LEVEL << 2
        until(lambda: controller.model.pairs())
        process.stdin.close()
        warned = process.stderr.read().decode()
    assert len(re.findall("best effort", warned)) == 1


def test_inside_a_namespace_it_finds_the_control_groups_of_the_machine(
    bed: Testbed, controller: GrpcController
) -> None:
    # The controller is on another loopback there: unmanaged, but not for want of groups.
    command = argv(controller, "sh", "-c", "cat /proc/self/cgroup")
    process = bed.spawn("a", command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, warned = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"accompanied-" in said
    assert warned.count(b"weft:") == 1
