"""What a dead process left in its journal of caps, where nothing needs to be capped."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from restored import save_loopback

from weft.errors import InputError
from weft.host.net import caps, link_ends, namespaces, qdisc
from weft.host.net.htb import Queue
from weft.host.net.htb import _check_queues as check_queues
from weft.host.net.link_ends import LinkEnd, SavedEnd, decode_saved
from weft.host.net.qdisc import Qdisc, TokenBucket
from weft.host.net.rtnetlink import Rtnetlink
from weft.switches import Failed
from weft.switches.linux.htb_ports import Ports
from weft.switches.linux.htb_tables import build_single_queue

LOOPBACK = LinkEnd(None, "lo")
BUCKET = TokenBucket(rate_bps=8_000_000, burst_bytes=40_000, limit_bytes=80_000)
DEAD = "weft-1-1-0"  # process 1 did not start at that time


@pytest.fixture
def journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "weft" / "caps"
    folder.mkdir(parents=True)
    monkeypatch.setattr(caps, "JOURNALS", folder)
    return folder


def loopback(**fields: object) -> dict[str, object]:
    """Loopback as saved with the kernel's own discipline, but for these fields."""
    return save_loopback().as_json() | fields


def write(journals: Path, *ends: dict[str, object]) -> Path:
    path = journals / f"{DEAD}.json"
    path.write_text(json.dumps(ends))
    return path


def test_a_saved_end_survives_its_journal() -> None:
    for end in (LinkEnd(None, "lo"), LinkEnd("weft-x-h1", "eth0", receiving=True)):
        saved = SavedEnd(end=end, netns=7, index=3, kind="tbf", handle=1 << 16, options=b"\0\1")
        assert decode_saved(json.loads(json.dumps(saved.as_json()))) == saved


def test_what_is_as_it_was_needs_only_its_journal_removed(journals: Path) -> None:
    path = write(journals, loopback())
    assert caps.restore_leftovers() == 1
    assert not path.exists()


def test_a_namespace_that_is_nowhere_has_taken_its_links_with_it(journals: Path) -> None:
    path = write(journals, loopback(netns=1, interface="eth9"))
    assert caps.restore_leftovers() == 1
    assert not path.exists()


@pytest.mark.parametrize("receiving", [False, True])
@pytest.mark.parametrize("is_unmounted", [False, True])
def test_a_namespace_that_is_being_deleted_has_taken_its_links_with_it(
    journals: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    receiving: bool,
    is_unmounted: bool,
) -> None:
    """`ip netns del` unmounts it first: an empty file stays for a moment."""
    monkeypatch.setattr(namespaces, "DIRECTORY", tmp_path)
    if is_unmounted:
        (tmp_path / "weft-bed-h1").touch()
    path = write(journals, loopback(namespace="weft-bed-h1", receiving=receiving))
    assert caps.restore_leftovers() == 1
    assert not path.exists()


def test_an_end_that_goes_while_it_is_restored_is_no_failure(
    journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(saved: SavedEnd) -> None:
        monkeypatch.setattr(link_ends, "exists", lambda _: False)
        raise InputError(str(saved.end), "has no queueing discipline")

    monkeypatch.setattr(link_ends, "restore", lose)
    path = write(journals, loopback())
    assert caps.restore_leftovers() == 1
    assert not path.exists()


def test_what_lies_in_the_working_directory_is_not_run_by_the_watchdog(
    journals: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`weft.host.testbed.wiring` imports ipaddress."""
    (tmp_path / "ipaddress.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    nothing = journals / "nothing.json"
    caps._restore_ends(caps._start_watchdog(nothing), nothing)


def test_what_cannot_be_put_back_says_so_and_what_to_do_then(journals: Path) -> None:
    """Options that no kernel takes, and that only root may set: nothing is changed."""
    path = write(journals, loopback(kind="tbf", handle=1 << 16))
    message = rf"lo.*: not restored: .*repair it by hand, then remove {path}"
    with pytest.raises(InputError, match=message):
        caps.restore_leftovers()
    assert path.exists()


@pytest.mark.parametrize(
    ("fields", "is_refused"),
    [
        ({}, True),
        ({"namespace": "by-another-name"}, True),
        ({"netns": 1}, False),
        ({"interface": "eth9"}, False),
        ({"receiving": True}, False),
    ],
)
def test_an_end_is_in_use_if_namespace_interface_and_direction_are_the_same(
    journals: Path, fields: dict[str, object], is_refused: bool
) -> None:
    path = journals / f"{namespaces.build_name('0')}.json"
    path.write_text(json.dumps([loopback(**fields)]))
    refusal = pytest.raises(InputError, match=f"is being changed by process {os.getpid()}")
    with refusal if is_refused else nullcontext(), caps.exclude_other_changes([LOOPBACK]):
        pass


@pytest.mark.parametrize(
    ("fields", "is_ours"), [({}, True), ({"netns": 1}, False), ({"index": 999}, False)]
)
def test_a_port_was_taken_over_if_its_namespace_and_index_are_the_same(
    tmp_path: Path, fields: dict[str, object], is_ours: bool
) -> None:
    takeover = {"schema": 1, "saved": loopback(**fields), "link_bps": 8_000_000, "limit_bytes": 8}
    (tmp_path / "lo.json").write_text(json.dumps(takeover))
    with Rtnetlink() as link:
        (tables,) = Ports(link, {1: "lo"}, tmp_path).read([1]).values()
    if is_ours:
        assert tables == build_single_queue(8_000_000)
    else:
        assert isinstance(tables, Failed)
        assert "its rate is not known" in tables.problem


# ---- Limits of caps and queues ----------------------------------------------------------------


def saved_bucket(bucket: TokenBucket = BUCKET) -> SavedEnd:
    options = qdisc.pack_bucket(bucket)
    return SavedEnd(end=LOOPBACK, netns=0, index=1, kind="tbf", handle=1 << 16, options=options)


@pytest.mark.parametrize(("percent", "rate_bps"), [(100, 8_000_000), (50, 4_000_000)])
def test_a_percentage_is_of_the_saved_rate_up_to_all_of_it(percent: int, rate_bps: int) -> None:
    assert caps._scale_rate(saved_bucket(), percent) == rate_bps


@pytest.mark.parametrize("percent", [0, -1, 100.5])
def test_a_percentage_outside_of_0_to_100_is_refused(percent: float) -> None:
    with pytest.raises(InputError, match=r"is not in \(0, 100\]"):
        caps._scale_rate(saved_bucket(), percent)


@pytest.mark.parametrize(
    ("burst_bytes", "is_kept"), [(40_000, True), (80_000, True), (39_000, False)]
)
def test_a_root_is_changed_in_place_unless_its_burst_shrinks(
    burst_bytes: int, is_kept: bool
) -> None:
    counters = qdisc.Counters(bytes=0, packets=0, dropped=0)
    options = qdisc.pack_bucket(BUCKET)
    root = Qdisc(kind="tbf", handle=1 << 16, parent=qdisc.ROOT, options=options, count=counters)
    wanted = qdisc.pack_bucket(replace(BUCKET, burst_bytes=burst_bytes))
    assert link_ends._is_burst_kept(root, wanted) == is_kept


def test_queues_may_list_dscps_0_to_63() -> None:
    check_queues([Queue(weight=1, dscps=(0, 63))], "port")
    for dscp in (-1, 64):
        with pytest.raises(InputError, match=f"DSCP {dscp} is not in 0 to 63"):
            check_queues([Queue(weight=1, dscps=(0, dscp))], "port")


def test_a_port_has_1_to_64_queues() -> None:
    check_queues([Queue(weight=1, dscps=(n,)) for n in range(64)], "port")
    for count in (0, 65):
        with pytest.raises(InputError, match=f"{count} queues; use 1 to 64"):
            check_queues([Queue(weight=1, dscps=(n,)) for n in range(count)], "port")
