"""What a dead process left in its journal of caps, where nothing needs to be capped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.host.net import caps, namespaces
from weft.host.net.link_ends import LinkEnd, SavedEnd, decode_saved
from weft.host.net.rtnetlink import Rtnetlink

DEAD = "weft-1-1-0"  # process 1 did not start at that time


@pytest.fixture
def journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "weft" / "caps"
    folder.mkdir(parents=True)
    monkeypatch.setattr(caps, "JOURNALS", folder)
    return folder


def loopback(**fields: object) -> dict[str, object]:
    """Loopback as saved with the kernel's own discipline, but for these fields."""
    with Rtnetlink() as link:
        index = link.index("lo")
    saved = SavedEnd(
        end=LinkEnd(None, "lo"),
        netns=namespaces.read_identity(None),
        index=index,
        kind="noqueue",
        handle=0,
        options=b"",
    )
    return saved.as_json() | fields


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
    told = rf"lo.*: not restored: .*when it is as it should be, remove {path}"
    with pytest.raises(InputError, match=told):
        caps.restore_leftovers()
    assert path.exists()
