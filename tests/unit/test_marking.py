"""Marks of connections: the program as a small interpreter runs it, and groups as plain folders."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.host.net import marking, namespaces
from weft.host.net.marking import Group

CONTEXT, STACK_END = 1 << 20, 1 << 30
SET_SOCKET_OPTION = 49  # bpf_setsockopt
OPENS, IS_OPEN, WAS_ACCEPTED = 3, 4, 5  # BPF_SOCK_OPS_TCP_CONNECT_CB, …ACTIVE…, …PASSIVE…


def interpret(program: bytes, operation: int) -> tuple[list[tuple[int, int, int]], int]:
    """The socket options that a program of BPF sets, and what it returns (linux/bpf.h)."""
    registers = [0] * 11
    registers[1], registers[10] = CONTEXT, STACK_END
    stack: dict[int, int] = {}
    options: list[tuple[int, int, int]] = []
    at = 0
    while True:
        code, pair, offset, value = struct.unpack_from("<BBhi", program, 8 * at)
        to, of = pair & 0xF, pair >> 4
        at += 1
        match code:
            case 0xBF:  # to = of
                registers[to] = registers[of]
            case 0xB7:  # to = value
                registers[to] = value
            case 0x07:  # to += value
                registers[to] += value
            case 0x61:  # to = 32 bits at of + offset
                assert registers[of] + offset == CONTEXT  # struct bpf_sock_ops: the operation
                registers[to] = operation
            case 0x62:  # 32 bits at to + offset = value
                assert STACK_END - 512 <= registers[to] + offset <= STACK_END - 4
                stack[registers[to] + offset] = value
            case 0x15:  # jump if to == value
                at += offset if registers[to] == value else 0
            case 0x05:
                at += offset
            case 0x85:
                assert (value, registers[1], registers[5]) == (SET_SOCKET_OPTION, CONTEXT, 4)
                options.append((registers[2], registers[3], stack[registers[4]]))
                registers[1:6] = [-1] * 5  # a call clobbers them
            case 0x95:
                assert at * 8 == len(program)
                return options, registers[0]
            case _:
                raise AssertionError(f"instruction {code:#x}")


@pytest.mark.parametrize("operation", range(12))
def test_connections_that_open_or_were_accepted_get_both_traffic_classes(operation: int) -> None:
    options, status = interpret(marking._build_program(46 << 2), operation)
    is_marked = operation in (OPENS, IS_OPEN, WAS_ACCEPTED)
    # SOL_IP, IP_TOS; SOL_IPV6, IPV6_TCLASS
    assert options == ([(0, 1, 0xB8), (41, 67, 0xB8)] if is_marked else [])
    assert status == 1


class Kernel:
    """What the bpf system call is asked, with the memory that its pointers lead to."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, bytes]] = []
        self.opened: list[int] = []
        self.program = b""
        self.refuses = 0

    def syscall(self, number: int, command: int, attributes: object, size: int) -> int:
        data = ctypes.string_at(ctypes.addressof(attributes), size)  # type: ignore[arg-type]
        self.calls.append((number, command, data))
        if self.refuses:
            ctypes.set_errno(self.refuses)
            return -1
        if command != 5:
            return 0
        kind, count, code, licence = struct.unpack_from("<IIQQ", data)
        assert kind == 13  # BPF_PROG_TYPE_SOCK_OPS
        self.program = ctypes.string_at(code, 8 * count)
        assert ctypes.string_at(licence) == b"GPL"
        self.opened.append(os.open("/dev/null", os.O_RDONLY))
        return self.opened[-1]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    fake = Kernel()
    monkeypatch.setattr(marking, "_LIBC", fake)
    return fake


def test_a_program_is_loaded_and_attached_to_the_folder_of_its_group(
    kernel: Kernel, tmp_path: Path
) -> None:
    Group(tmp_path).mark(46)
    assert kernel.program == marking._build_program(46 << 2)
    (number, load, loaded), (_, attach, attached) = kernel.calls
    assert number == {"x86_64": 321, "aarch64": 280}[platform.machine()]
    assert (load, attach) == (5, 8)  # BPF_PROG_LOAD, BPF_PROG_ATTACH
    # log level, size and buffer, version and flags; name; interface; expected attach type
    assert struct.unpack_from("<IIQII16sII", loaded, 24) == (
        *(0, 0, 0, 0, 0),
        b"weft".ljust(16, b"\0"),
        *(0, 3),
    )
    folder, program, kind, flags = struct.unpack("<IIII", attached)
    assert (program, kind, flags) == (kernel.opened[0], 3, 0)
    for descriptor in (folder, program):  # the group holds the program
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_kernel_or_machine_without_such_programs_says_so(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel.refuses = 1
    with pytest.raises(InputError, match="marks: the kernel refuses the program: Operation not"):
        Group(tmp_path).mark(1)
    monkeypatch.setattr(platform, "machine", lambda: "m68k")
    with pytest.raises(InputError, match="marks: not on m68k; use x86_64, aarch64"):
        Group(tmp_path).mark(1)


# ---- Groups -----------------------------------------------------------------------------------


def test_a_group_is_joined_by_writing_0_and_lists_its_processes(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.join()
    assert (tmp_path / "cgroup.procs").read_text() == "0"
    (tmp_path / "cgroup.procs").write_text("7\n12\n")
    assert group.pids() == [7, 12]
    assert group.id == tmp_path.stat().st_ino


def test_a_group_ends_all_its_processes_and_awaits_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = tmp_path / "cgroup.events"
    events.write_text("populated 0\nfrozen 0\n")
    Group(tmp_path).end()
    assert (tmp_path / "cgroup.kill").read_text() == "1"
    events.write_text("populated 1\nfrozen 0\n")
    waits: list[float] = []

    def end_on_third(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            events.write_text("populated 0\n")

    monkeypatch.setattr(time, "sleep", end_on_third)
    Group(tmp_path).end()
    assert len(waits) == 3
    events.write_text("populated 1\n")
    monkeypatch.setattr(marking, "_END_S", -1.0)
    with pytest.raises(InputError, match="processes do not end in -1 s"):
        Group(tmp_path).end()


def test_processes_of_a_released_group_go_to_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = Group(tmp_path / "child")
    group.path.mkdir()
    moved: list[str] = []
    monkeypatch.setattr(Path, "write_text", lambda path, text: moved.append(f"{path.name} {text}"))
    rounds = iter([[5, 6], [7], []])
    monkeypatch.setattr(Group, "pids", lambda _: next(rounds))
    group.release()
    assert moved == [f"cgroup.procs {pid}" for pid in (5, 6, 7)]
    assert not group.path.exists()
    monkeypatch.setattr(Group, "pids", lambda _: [5])
    monkeypatch.setattr(marking, "_END_S", -1.0)
    with pytest.raises(InputError, match="processes come for -1 s"):
        group.release()


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "cgroup"
    place.mkdir()
    monkeypatch.setattr(marking, "find_mount", lambda: place)
    monkeypatch.setattr(Group, "end", lambda _: None)
    return place


@pytest.mark.parametrize(("dscp", "is_loaded"), [(0, False), (1, True), (63, True)])
def test_a_marked_group_has_its_program_and_goes_with_its_block(
    mount: Path, kernel: Kernel, dscp: int, is_loaded: bool
) -> None:
    with marking.open_marked_group("work", dscp) as group:
        assert group.path == mount / namespaces.build_name("work")
        assert group.path.is_dir()
        assert kernel.program == (marking._build_program(dscp << 2) if is_loaded else b"")
    assert [*mount.iterdir()] == []


@pytest.mark.parametrize("dscp", [-1, 64])
def test_a_dscp_has_six_bits(mount: Path, dscp: int) -> None:
    with pytest.raises(InputError, match=f"DSCP {dscp}: is not in 0 to 63"):
        marking.open_marked_group("work", dscp).__enter__()
    assert [*mount.iterdir()] == []


def test_groups_of_dead_processes_are_removed_and_no_others(mount: Path) -> None:
    for name in ("weft-1-1-dead", namespaces.build_name("alive"), "someone"):
        (mount / name).mkdir()
    marking.remove_leftovers()
    assert {path.name for path in mount.iterdir()} == {namespaces.build_name("alive"), "someone"}


def test_a_nested_group_is_in_ours_and_removes_empty_ones_of_the_dead(
    mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marking, "PROCESSES", tmp_path / "proc")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("9:cpu:/x\n0::/ours\n")
    home = mount / "ours"
    alive = f"accompanied-{namespaces.build_name('other')}"
    for name in ("accompanied-weft-1-1-dead", "accompanied-weft-1-1-busy/inner", alive):
        (home / name).mkdir(parents=True)
    monkeypatch.setattr(Group, "pids", lambda _: [])
    with marking.open_nested_group("work") as group:
        assert group.path == home / f"accompanied-{namespaces.build_name('work')}"
        assert group.path.is_dir()
        left = {path.name for path in home.iterdir()} - {group.path.name}
        assert left == {"accompanied-weft-1-1-busy", alive}
    assert not group.path.exists()


@pytest.mark.parametrize("line", ["0::/gone\n", "9:cpu:/x\n"])
def test_a_process_whose_group_is_not_visible_uses_the_first_of_all(
    mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(marking, "PROCESSES", tmp_path / "proc")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(line)
    assert marking._find_own_group() == mount


# ---- Where groups are -------------------------------------------------------------------------


@pytest.fixture
def processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, Path | None], None]:
    """Adds a process with its parent and, under its root, a mounted folder."""
    monkeypatch.setattr(marking, "PROCESSES", tmp_path)
    monkeypatch.setattr(os, "getppid", lambda: 20)

    def add(pid: str, parent: str, where: Path | None) -> None:
        place = tmp_path / pid
        place.mkdir()
        (place / "stat").write_text(f"{pid} (a) b) S {parent} 0 0")
        kind = "cgroup" if where is None else "cgroup2"
        (place / "mounts").write_text(
            f"proc /proc proc rw 0 0\nnone {where or '/x'} {kind} rw 0 0\n"
        )

    return add


def test_the_mount_is_ours_or_that_of_the_nearest_ancestor(
    processes: Callable[[str, str, Path | None], None], tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    processes("self", "20", None)
    processes("20", "10", None)
    processes("10", "1", Path("/groups"))
    with pytest.raises(InputError, match="no control groups of version 2 are mounted"):
        marking.find_mount()  # process 1 cannot be read, and 10 has no such folder
    (tmp_path / "10/root/groups").mkdir(parents=True)
    assert marking.find_mount() == tmp_path / "10/root/groups"
    seen.mkdir()
    (tmp_path / "self/mounts").write_text(f"none {seen} cgroup2 rw 0 0\n")
    assert marking.find_mount() == seen


def test_ancestors_end_with_the_first_process(
    processes: Callable[[str, str, Path | None], None],
) -> None:
    processes("20", "10", None)
    processes("10", "0", None)
    assert [*marking._list_ancestors()] == ["20", "10"]
