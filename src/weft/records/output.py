"""Files that weft writes: checked before work begins, replaced atomically when it is done.

Entry points: `check_output`, `check_directory` before; `replace_file`, `write_text` after.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weft.errors import InputError


@contextmanager
def explain_file_errors(path: str | Path) -> Iterator[None]:
    """Turn an error of the operating system into an `InputError` that names the path."""
    try:
        yield
    except OSError as error:
        problem = error.strerror or str(error)
        remedy = "check the path, its permissions and the space left"
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
