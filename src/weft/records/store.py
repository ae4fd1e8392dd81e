"""Records on disk: JSON lines, a run header first.

`write_records` replaces a file in one step. `RecordWriter` appends, and each record is on
disk before `append` returns, so an interrupted run keeps what it has; a line torn by a
crash is reported and left out by `read_records`.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from weft.errors import InputError
from weft.records.codec import MALFORMED, located, parse, record_from, require_schema, to_line
from weft.records.run import Run, run_from, run_to_line, this_run
from weft.records.schema import Record


class TornLineWarning(UserWarning):
    """The last line of a file was cut short, as a crash would."""


class RecordFile(NamedTuple):
    """A file's content: a header per run that wrote to it, and the records."""

    headers: tuple[Run, ...]
    records: tuple[Record, ...]


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
        raise InputError(str(path), problem, "check the path and its permissions") from error


def _lines(header: Run | None, records: Iterable[Record]) -> Iterator[str]:
    yield run_to_line(header or this_run())
    for record in records:
        yield to_line(record)


def write_records(path: str | Path, records: Iterable[Record], header: Run | None = None) -> None:
    """Write a file of records, whole or not at all."""
    path = Path(path)
    with _file_errors(path):
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="ascii", newline="\n") as file:
            os.fchmod(file.fileno(), 0o666 & ~_umask())
            file.writelines(f"{line}\n" for line in _lines(header, records))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _umask() -> int:
    # There is no call that reads the mask without setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_directory(directory: Path) -> None:
    """A new name is durable only once its directory is."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RecordWriter:
    """Appends to a file of records; a second writer to the same file is refused."""

    def __init__(self, path: str | Path, header: Run | None = None) -> None:
        self._path = Path(path)
        with _file_errors(self._path):
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
            self._mend()
            self._write(run_to_line(header or this_run()))
        except BaseException:
            self.close()
            raise
        _sync_directory(self._path.parent)

    def append(self, record: Record) -> None:
        """Add one record; it is on disk when this returns."""
        self._write(to_line(record))

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

    def _mend(self) -> None:
        """Cut a torn last line, so that the next record starts on a line of its own."""
        content = self._path.read_bytes()
        whole, _, tail = content.rpartition(b"\n")
        if not tail:
            return
        if _is_object(tail):
            os.write(self._descriptor, b"\n")
            return
        _warn_torn(self._path, whole.count(b"\n") + 2 if whole else 1, len(tail))
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
        parse(line)
    except MALFORMED:
        return False
    return True


def _warn_torn(path: Path, line: int, size: int) -> None:
    message = (
        f"{path}:{line}: the last line is torn after {size} bytes (an interrupted run); left out"
    )
    warnings.warn(message, TornLineWarning, stacklevel=3)


def _line_value(line: bytes, where: str) -> Run | Record:
    with located(where):
        data = parse(line)
        require_schema(data, where)
        return run_from(data) if data.get("weft") == "run" else record_from(data)


def read_records(path: str | Path) -> RecordFile:
    """All headers and records of a file, in order."""
    path = Path(path)
    with _file_errors(path):
        lines = path.read_bytes().split(b"\n")
    tail = lines.pop()
    if tail and _is_object(tail):
        lines.append(tail)
    elif tail:
        _warn_torn(path, len(lines) + 1, len(tail))
    values = [_line_value(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not values or not isinstance(values[0], Run):
        raise InputError(f"{path}:1", "no run header", "give a file that weft wrote")
    headers = tuple(value for value in values if isinstance(value, Run))
    return RecordFile(headers, tuple(value for value in values if isinstance(value, Record)))
