"""Caps on links: less bandwidth for a while, then exactly the previous state.

A cap is a token bucket at each end of a link, so it holds in both directions. If the other end is
on another machine, a bucket on incoming packets (`weft.host.net.ingress`) does the same.
`change_ends` starts a watchdog and saves the ends before it changes anything. The watchdog restores
them when the block ends, or when this process dies, even by SIGKILL. If both are killed, the next
`change_ends` or `restore_leftovers` restores from the journal in `JOURNALS`. The watchdog is

    python -P -m weft.host.net.caps PID JOURNAL

in its own session, so a terminal's signals do not reach it. It waits until standard input is closed
or process PID is gone, restores what the journal lists, and exits with status 0.
Entry points: `cap_links`, `change_ends`. Units: bits per second, bytes.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from weft.errors import InputError, WeftError
from weft.host.machine.processes import hold_lock_in_folder
from weft.host.net import ingress, link_ends, namespaces
from weft.host.net.link_ends import LinkEnd, SavedEnd
from weft.host.net.qdisc import TokenBucket
from weft.host.testbed.wiring import LIMIT_BYTES, MAX_RATE_BPS, MIN_RATE_BPS, choose_burst_bytes

JOURNALS = Path("/run/weft/caps")
_RESTORE_S = 30
_NUMBERS = itertools.count()


class Direction(Protocol):
    """`weft.host.net.link_ends` for sending, `weft.host.net.ingress` for receiving."""

    def save(self, end: LinkEnd, *, allow_default_route: bool = ...) -> SavedEnd: ...
    def set_bucket(self, saved: SavedEnd, bucket: TokenBucket) -> None: ...
    def read_bucket(self, end: LinkEnd) -> TokenBucket | None: ...
    def restore(self, saved: SavedEnd) -> None: ...


@dataclass(frozen=True, slots=True)
class ChangedEnds:
    """Ends that may be changed now, with their saved state."""

    saved: Sequence[SavedEnd]

    def cap(self, *, rate_bps: float | None = None, percent: float | None = None) -> None:
        """Caps every end at a rate, or at a percentage of its saved token bucket."""
        if (rate_bps is None) == (percent is None):
            raise InputError("cap", "needs a rate or a percentage", "give one of them")
        for saved in self.saved:
            rate = rate_bps if rate_bps is not None else _scale_rate(saved, percent or 0)
            _choose_direction(saved.end).set_bucket(saved, _build_bucket(saved, rate))

    def check(self, *, rate_bps: float | None = None, percent: float | None = None) -> None:
        """Raises unless every end still has its cap."""
        for saved in self.saved:
            rate = rate_bps if rate_bps is not None else _scale_rate(saved, percent or 0)
            bucket = _choose_direction(saved.end).read_bucket(saved.end)
            if bucket is None or bucket.rate_bps // 8 != _build_bucket(saved, rate).rate_bps // 8:
                has = "no cap" if bucket is None else f"{bucket.rate_bps / 1e6:g} Mb/s"
                problem = f"was given {rate / 1e6:g} Mb/s and has {has}: someone else changed it"
                raise InputError(str(saved.end), problem, "keep others from changing it")

    def rates_bps(self) -> dict[LinkEnd, int | None]:
        """The current rate of each end; None without a token bucket."""
        buckets = {
            saved.end: _choose_direction(saved.end).read_bucket(saved.end) for saved in self.saved
        }
        return {end: bucket.rate_bps if bucket else None for end, bucket in buckets.items()}


def _choose_direction(end: LinkEnd) -> Direction:
    return ingress if end.receiving else link_ends


def _scale_rate(saved: SavedEnd, percent: float) -> float:
    if saved.bucket is None:
        problem = "has no token bucket, so its rate is not known"
        raise InputError(str(saved.end), problem, "give the cap as a rate")
    if not 0 < percent <= 100:
        raise InputError(f"cap of {percent:g} %", "is not in (0, 100]", "use such a percentage")
    return saved.bucket.rate_bps * percent / 100


def _build_bucket(saved: SavedEnd, rate_bps: float) -> TokenBucket:
    if not MIN_RATE_BPS <= rate_bps <= MAX_RATE_BPS:
        problem = f"{rate_bps:g} b/s is not in [8 kb/s, 10 Tb/s]"
        raise InputError(f"cap of {saved.end}", problem, "use such a rate")
    if saved.bucket is not None and saved.bucket.rate_bps == rate_bps:
        return saved.bucket
    least = link_ends.read_max_packet_bytes(saved)
    limit = saved.bucket.limit_bytes if saved.bucket else LIMIT_BYTES
    return TokenBucket(
        rate_bps=round(rate_bps),
        burst_bytes=max(choose_burst_bytes(rate_bps), least),
        limit_bytes=max(limit, least),
    )


@contextmanager
def cap_links(
    links: Iterable[LinkEnd],
    *,
    rate_bps: float | None = None,
    percent: float | None = None,
    allow_default_route: bool = False,
) -> Iterator[ChangedEnds]:
    """Caps all ends of the links inside the block."""
    with change_ends(links, allow_default_route=allow_default_route) as ends:
        ends.cap(rate_bps=rate_bps, percent=percent)
        yield ends


@contextmanager
def change_ends(
    links: Iterable[LinkEnd], *, allow_default_route: bool = False
) -> Iterator[ChangedEnds]:
    """Allows changes of the ends inside the block, and restores them after it in any case."""
    journal = JOURNALS / f"{namespaces.build_name(str(next(_NUMBERS)))}.json"
    watchdog = _start_watchdog(journal)
    try:
        chosen = list(dict.fromkeys(links))
        with exclude_other_changes(chosen):
            saved = [
                _choose_direction(end).save(end, allow_default_route=allow_default_route)
                for end in chosen
            ]
            _write_journal(journal, saved)
        yield ChangedEnds(saved)
    finally:
        _restore_ends(watchdog, journal)


@contextmanager
def exclude_other_changes(chosen: Sequence[LinkEnd]) -> Iterator[None]:
    """Refuses ends that another process is changing, and keeps others out of the block."""
    with _lock_journals():
        _restore_leftovers()
        _refuse_ends_in_use(chosen)
        yield


def _write_journal(journal: Path, saved: Sequence[SavedEnd]) -> None:
    """Atomically."""
    temporary = journal.with_suffix(".new")
    temporary.write_text(json.dumps([end.as_json() for end in saved]))
    temporary.replace(journal)


def _refuse_ends_in_use(chosen: Iterable[LinkEnd]) -> None:
    """Compares namespaces by identity: another process may know one by another name."""
    for path in _list_journals():
        saved = [link_ends.decode_saved(data) for data in json.loads(path.read_text())]
        in_use = {(end.netns, replace(end.end, namespace=None)) for end in saved}
        for end in chosen:
            if (namespaces.read_identity(end.namespace), replace(end, namespace=None)) in in_use:
                problem = f"is being changed by process {path.stem.split('-')[1]}"
                raise InputError(str(end), problem, "wait until it has ended")


def _start_watchdog(journal: Path) -> subprocess.Popen[bytes]:
    # -P: root must not import from the working directory.
    argv = [sys.executable, "-P", "-m", "weft.host.net.caps", str(os.getpid()), str(journal)]
    watchdog = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert watchdog.stdout is not None
    if watchdog.stdout.readline() != b"watching\n":
        watchdog.wait()
        raise InputError("watchdog", f"does not start, status {watchdog.returncode}")
    return watchdog


def _restore_ends(watchdog: subprocess.Popen[bytes], journal: Path) -> None:
    """The watchdog restores; if it was killed or failed, this process does."""
    assert watchdog.stdin is not None
    assert watchdog.stdout is not None
    with suppress(BrokenPipeError):
        watchdog.stdin.close()
    try:
        watchdog.wait(_RESTORE_S)
    except subprocess.TimeoutExpired:
        watchdog.kill()
        watchdog.wait()
    watchdog.stdout.close()
    restore_journal(journal)


def _list_journals() -> list[Path]:
    return sorted(JOURNALS.glob("weft-*.json"))


def _lock_journals() -> AbstractContextManager[None]:
    """One process at a time uses the journals."""
    lock = JOURNALS / "lock"
    return hold_lock_in_folder(lock, "caps", "setting or restoring caps", _RESTORE_S)


def restore_journal(journal: Path) -> None:
    """Restores every end of a journal and removes it; does nothing if that is done."""
    with _lock_journals():
        _restore_journal(journal)


def _restore_journal(journal: Path) -> None:
    journal.with_suffix(".new").unlink(missing_ok=True)
    if not journal.exists():
        return
    failures = []
    for data in json.loads(journal.read_text()):
        saved = link_ends.find_reachable(link_ends.decode_saved(data))
        if saved is None:
            continue
        try:
            _choose_direction(saved.end).restore(saved)
        except InputError as error:
            # An end may go meanwhile, with its testbed; a device of `ingress` may stay behind.
            if saved.end.receiving or link_ends.exists(saved):
                failures.append(error)
    if failures:
        first = failures[0]
        done = f"repair it by hand, then remove {journal}"
        remedy = f"{first.remedy}; {done}" if first.remedy else done
        raise InputError(first.where, f"not restored: {first.problem}", remedy)
    journal.unlink()


def restore_leftovers() -> int:
    """Restores ends of dead processes whose watchdogs died too; returns how many journals."""
    with _lock_journals():
        return _restore_leftovers()


def _restore_leftovers() -> int:
    dead = [path for path in _list_journals() if namespaces.is_orphan(path.stem)]
    for path in dead:
        _restore_journal(path)
    return len(dead)


def run_watchdog(pid: int, journal: Path) -> int:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        parent = os.pidfd_open(pid)
    except ProcessLookupError:
        parent = None
    if parent is not None:
        print("watching", flush=True)
        _wait_for_end(parent)
    try:
        restore_journal(journal)
    except (WeftError, OSError) as error:
        print(f"weft: {error}", file=sys.stderr)
        return 1
    return 0


def _wait_for_end(parent: int) -> None:
    """Until the parent closes the pipe, or dies while a child of its own still holds the pipe."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), select.POLLIN | select.POLLHUP)
    poll.register(parent, select.POLLIN)
    poll.poll()


if __name__ == "__main__":
    sys.exit(run_watchdog(int(sys.argv[1]), Path(sys.argv[2])))
