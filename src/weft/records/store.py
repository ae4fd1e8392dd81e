"""Files of records, JSON lines with a run header first, and campaigns that fill them.

`write_records` replaces a file atomically. `RecordWriter` appends; each record is on disk before
`append` returns, so an interrupted run keeps its records. `read_records` reports a line torn by a
crash and skips it. Outputs of every command are checked before work begins (`check_output`).

A campaign runs many points, their records kept in a file as they come. Points that the file already
has complete are not run again; those that were cut short are. Measuring and simulating both run
their points through `run_campaign`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

from weft.errors import InputError
from weft.records.schema import (
    MALFORMED,
    Record,
    Run,
    describe_run,
    parse_object,
    record_from_json,
    report_malformed,
    require_schema,
    run_from_json,
    run_to_line,
    to_line,
)


class TornLineWarning(UserWarning):
    """The last line of a file is incomplete, as after a crash."""


class RecordFile(NamedTuple):
    """A file's content: a header per run that wrote to it, and the records."""

    headers: tuple[Run, ...]
    records: tuple[Record, ...]


def write_records(
    path: str | Path,
    records: Iterable[Record],
    header: Run | None = None,
    earlier: Sequence[Run] = (),
) -> None:
    """Write a file of records atomically; headers of `earlier` runs that made some come first."""
    first, *later = (*earlier, header or describe_run())
    _write_values(path, first, (*later, *records))


def _write_values(path: str | Path, header: Run, values: Iterable[Run | Record]) -> None:
    with replace_file(path) as file, file.open("w", encoding="ascii", newline="\n") as lines:
        lines.write(f"{run_to_line(header)}\n")
        lines.writelines(f"{_format_line(value)}\n" for value in values)


def _format_line(value: Run | Record) -> str:
    return run_to_line(value) if isinstance(value, Run) else to_line(value)


class RecordWriter:
    """Appends to a file of records; a second writer to the same file is refused.

    `alone` is true if the file holds nothing of earlier runs.
    """

    def __init__(self, path: str | Path, header: Run | None = None) -> None:
        check_output(path)
        self._path = Path(path)
        self._header = header or describe_run()
        with explain_file_errors(self._path):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
            self._repair_tail()
            self.alone = os.fstat(self._descriptor).st_size == 0
            with explain_file_errors(self._path):
                self._write(run_to_line(self._header))
        except BaseException:
            self.close()
            raise
        sync(self._path.parent)

    def append(self, record: Record) -> None:
        """Add one record; it is on disk when this returns."""
        with explain_file_errors(self._path):
            self._write(to_line(record))

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace all records by these and close the writer.

        Only for a file without earlier runs, whose headers would be lost.
        """
        if not self.alone:
            raise InputError(str(self._path), "holds records of earlier runs", "append to it")
        _write_values(self._path, self._header, records)
        self.close()

    def settle(self, records: Sequence[Record], is_stale: Callable[[Record], bool]) -> None:
        """Put this run's records in this order, remove stale ones of earlier runs, and close.

        All headers stay.
        """
        first, *values = _read_values(self._path)
        ours = max(i for i, value in enumerate((first, *values)) if isinstance(value, Run))
        earlier = [v for v in values[:ours] if isinstance(v, Run) or not is_stale(v)]
        if isinstance(first, Run) and values != [*earlier, *records]:
            _write_values(self._path, first, [*earlier, *records])
        self.close()

    def close(self) -> None:
        """Release the file; closing twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            remedy = "wait for it, or write to another file"
            raise InputError(str(self._path), "another process is writing to it", remedy) from error
        # Between open and lock another writer may have put a new file in this one's place.
        if not os.path.samestat(os.fstat(self._descriptor), os.stat(self._path)):
            raise InputError(str(self._path), "another process has just replaced it", "try again")

    def _repair_tail(self) -> None:
        """Cut a torn last line, so that the next record starts on a line of its own."""
        content = self._path.read_bytes()
        complete, _, tail = content.rpartition(b"\n")
        if not tail:
            return
        if _is_object(tail):
            os.write(self._descriptor, b"\n")
            return
        _warn_torn(self._path, complete.count(b"\n") + 2 if complete else 1, len(tail))
        os.ftruncate(self._descriptor, len(content) - len(tail))

    def _write(self, line: str) -> None:
        start = os.fstat(self._descriptor).st_size
        data = memoryview(f"{line}\n".encode("ascii"))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)
        except BaseException:
            # A full disk or Ctrl-C must not leave half a line before the next record.
            os.ftruncate(self._descriptor, start)
            raise


def _is_object(line: bytes) -> bool:
    try:
        parse_object(line)
    except MALFORMED:
        return False
    return True


def _warn_torn(path: Path, line: int, size: int) -> None:
    message = (
        f"{path}:{line}: the last line is torn after {size} bytes (an interrupted run); left out"
    )
    warnings.warn(message, TornLineWarning, stacklevel=4)


def _parse_line(line: bytes, where: str) -> Run | Record:
    with report_malformed(where):
        data = parse_object(line)
        require_schema(data, where)
        return run_from_json(data) if data.get("weft") == "run" else record_from_json(data)


def _read_values(path: Path) -> list[Run | Record]:
    """The lines of a file in order; a header is the first."""
    with explain_file_errors(path):
        lines = path.read_bytes().split(b"\n")
    tail = lines.pop()
    if tail and _is_object(tail):
        lines.append(tail)
    elif tail:
        _warn_torn(path, len(lines) + 1, len(tail))
    values = [_parse_line(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not values or not isinstance(values[0], Run):
        raise InputError(f"{path}:1", "no run header", "give a file that weft wrote")
    return values


def read_records(path: str | Path) -> RecordFile:
    """All headers and records of a file, in order."""
    values = _read_values(Path(path))
    headers = tuple(value for value in values if isinstance(value, Run))
    return RecordFile(headers, tuple(value for value in values if isinstance(value, Record)))


@contextmanager
def explain_file_errors(path: str | Path) -> Iterator[None]:
    """Turn an error of the operating system into an `InputError` that names the path."""
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
        remedy = "check the path"
        if not isinstance(error, FileNotFoundError):
            remedy += ", its permissions and the space left"
        raise InputError(str(path), problem, remedy) from error


def check_output(path: str | Path) -> Path:
    """The file behind the path, symbolic links followed; refused if it cannot be written.

    Anything but a regular file is refused: a device or a pipe must not be replaced.
    """
    target = Path(os.path.realpath(path))
    with explain_file_errors(path):
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            kind = "a directory" if target.is_dir() else "a device, pipe or socket"
            raise InputError(str(path), f"{kind}, not a file", "name a file")
    if target.exists() and not os.access(target, os.W_OK):
        raise InputError(str(path), "cannot be written", "check its permissions")
    _check_writable_directory(path, target.parent)
    return target


def _check_writable_directory(path: str | Path, directory: Path) -> None:
    if not directory.is_dir():
        problem = f"its directory {directory} does not exist"
        raise InputError(str(path), problem, "create it, or name another")
    if not os.access(directory, os.W_OK | os.X_OK):
        problem = f"its directory {directory} cannot be written to"
        raise InputError(str(path), problem, "check its permissions")


def refuse_missing_folder(path: Path) -> None:
    """For files whose folder should be there: a mistyped one would be created otherwise."""
    if not path.parent.exists():
        problem = f"its folder {path.parent} does not exist"
        raise InputError(str(path), problem, "create it, or name another")


def check_directory(path: str | Path) -> Path:
    """The directory, created if missing; refused if files cannot be created in it."""
    target = Path(path)
    with explain_file_errors(path):
        if target.exists() and not target.is_dir():
            raise InputError(str(path), "not a directory", "name a directory")
        target.mkdir(parents=True, exist_ok=True)
    _check_writable_directory(path, target)
    return target


@contextmanager
def replace_file(path: str | Path) -> Iterator[Path]:
    """A temporary file that replaces the path if the block ends without an error."""
    target = check_output(path)
    with explain_file_errors(path):
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".weft-")
    os.close(descriptor)
    temporary = Path(name)
    try:
        with explain_file_errors(path):
            yield temporary
            temporary.chmod(_choose_mode(target))
            sync(temporary)
            temporary.replace(target)
            sync(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with replace_file(path) as file:
        file.write_text(text, encoding="utf-8", newline="\n")


def _choose_mode(target: Path) -> int:
    """The mode of the replaced file, or that of a new file."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    # There is no call that reads the mask without setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return 0o666 & ~mask


def sync(path: Path) -> None:
    """Flush a file or a directory to disk; a new name survives a crash only after its directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- Campaigns --------------------------------------------------------------------------------

Identity = TypeVar("Identity", bound=Hashable)
Point = TypeVar("Point")
Records = tuple[Record, ...]
# (identity, its records, whether the campaign is to end here) of each point, as they finish.
Results = Generator[tuple[Identity, Records, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign(Generic[Identity, Point]):
    """The points to run, and which point each record in a file belongs to.

    `identify` gives the identity of the point that a record belongs to, None for other records;
    `is_complete` judges all records of one point, in the order they were written. `done` has the
    records of each point that is stored or has run, also when the output cannot be written.
    """

    points: Mapping[Identity, Point]
    identify: Callable[[Record], Identity | None]
    is_complete: Callable[[Sequence[Record]], bool]
    output: str | None = None
    done: dict[Identity, Records] = field(default_factory=dict)

    def read_complete(self) -> dict[Identity, Records]:
        """Records of the points that are complete in the output."""
        if not self.output:
            return {}
        check_output(self.output)
        if not Path(self.output).exists() or not Path(self.output).stat().st_size:
            return {}
        groups: dict[Identity, list[Record]] = {}
        for record in read_records(self.output).records:
            if (identity := self.identify(record)) is not None:
                groups.setdefault(identity, []).append(record)
        return {key: tuple(group) for key, group in groups.items() if self.is_complete(group)}


def run_campaign(
    campaign: Campaign[Identity, Point],
    run_points: Callable[[Mapping[Identity, Point]], Results[Identity]],
    *,
    header: Callable[[], Run] | None = None,
    on_resume: Callable[[int], None] = lambda _: None,
) -> dict[Identity, Records]:
    """Runs the points that are not stored, and stores them; returns `campaign.done`.

    An interrupt keeps what is done. `on_resume` is called with the number of stored points. If the
    disk is full from the start, the points run all the same; the error is raised at the end.
    """
    done = campaign.done
    done |= campaign.read_complete()
    stored = sum(identity in done for identity in campaign.points)
    if stored:
        on_resume(stored)
    remaining = {key: point for key, point in campaign.points.items() if key not in done}
    disk_full: InputError | None = None
    with contextlib.ExitStack() as stack:
        results = stack.enter_context(contextlib.closing(run_points(remaining)))
        writer = None
        if campaign.output and remaining:
            try:
                writer = RecordWriter(campaign.output, header() if header else None)
                stack.enter_context(writer)
            except InputError as error:
                if not _is_disk_full(error):
                    raise
                disk_full = error
                note = f"{error.where}: {error.problem}; the run goes on and stores nothing"
                warnings.warn(note, stacklevel=2)
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        for identity, records, is_last in results:
            done[identity] = records
            if writer:
                _store(writer, records)
            if is_last:
                break
        else:
            if writer and all(identity in done for identity in remaining):
                _tidy(writer, campaign, {key: done[key] for key in remaining})
    if disk_full:
        raise disk_full
    return done


def _is_disk_full(error: InputError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _store(writer: RecordWriter, records: Records) -> None:
    """Append the records of a point; an interrupt waits until all are on disk."""
    interrupt: KeyboardInterrupt | None = None
    stored = 0
    while stored < len(records):
        try:
            writer.append(records[stored])
            stored += 1
        except KeyboardInterrupt as error:  # the writer has removed what it had of the line
            interrupt = error
    if interrupt:
        raise interrupt


def _tidy(
    writer: RecordWriter, campaign: Campaign[Identity, Point], records: Mapping[Identity, Records]
) -> None:
    """Put the records of this run in the order of its points.

    What a point left behind when it was cut short goes, now that it is complete.
    """
    ordered = [record for group in records.values() for record in group]
    if not writer.alone:
        writer.settle(ordered, is_stale=lambda record: campaign.identify(record) in records)
    elif list(records) != [key for key in campaign.done if key in records]:
        writer.rewrite(ordered)
