"""The sensitivity table: a directory with one JSON file per application.

A file is replaced in one step and each application has its own, so that writers at the same time
lose nothing of each other's; who must not replace holds the directory's lock. A damaged file is
refused by name, and the others stay usable. Entry point: `AppTable`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.records import check_directory, write_text
from weft.records.output import explain_file_errors
from weft.sensitivity.application import Application
from weft.sensitivity.application_file import from_json, to_json
from weft.sensitivity.profile import check_name, is_name

_SUFFIX = ".json"
_LARGEST_BYTES = 64 * 2**20


def default_directory() -> Path:
    """Where the table is unless told otherwise: weft/apps in the user's data (XDG)."""
    home = os.environ.get("XDG_DATA_HOME", "")
    # The specification: a relative path here is invalid and to be ignored.
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share"
    return base / "weft" / "apps"


def read_application(path: str | Path) -> Application:
    """The application in an exported file."""
    with explain_file_errors(path):
        if Path(path).stat().st_size > _LARGEST_BYTES:
            raise InputError(str(path), "over 64 MiB", "give a file of weft apps export")
        text = Path(path).read_bytes()
    return from_json(text, str(path))


@dataclass(frozen=True, slots=True)
class AppTable:
    """The applications in a directory, which need not exist before something is saved."""

    directory: Path

    def names(self) -> tuple[str, ...]:
        """Every application, damaged files too, in alphabetical order; other files are not ours."""
        with explain_file_errors(self.directory):
            if not self.directory.exists():
                return ()
            if not self.directory.is_dir():
                raise InputError(str(self.directory), "not a directory", "name a directory")
            files = [path for path in self.directory.iterdir() if path.suffix == _SUFFIX]
        return tuple(sorted(path.stem for path in files if is_name(path.stem)))

    def path(self, name: str) -> Path:
        return self.directory / f"{check_name(name, 'NAME')}{_SUFFIX}"

    def load(self, name: str) -> Application:
        """The application of that name."""
        path = self.check_there(name)
        application = read_application(path)
        if application.name != name:
            problem = f"holds the application {application.name!r}"
            raise InputError(str(path), problem, f"rename it to {application.name}{_SUFFIX}")
        return application

    def all(self) -> tuple[list[Application], list[InputError]]:
        """Every application that can be read, and what is wrong with each other file."""
        found, damaged = [], []
        for name in self.names():
            try:
                found.append(self.load(name))
            except InputError as error:
                damaged.append(error)
        return found, damaged

    def save(self, application: Application, *, replace: bool = True) -> Path:
        """Store an application; one of the same name is replaced, or refused."""
        path = self.path(application.name)
        check_directory(self.directory)
        with self._locked():
            if path.exists() and not replace:
                raise self.taken(application.name)
            write_text(path, to_json(application))
        return path

    def remove(self, name: str) -> None:
        """Delete an application, damaged or not."""
        path = self.check_there(name)
        with self._locked(), explain_file_errors(path):
            path.unlink(missing_ok=True)

    def check_there(self, name: str) -> Path:
        """The file of an application that is in the table."""
        path = self.path(name)
        with explain_file_errors(path):
            there = path.exists()
        if not there:
            known = ", ".join(self.names())
            remedy = f"use one of {known}" if known else "profile or import one first"
            raise InputError(str(self.directory), f"no application {name!r}", remedy)
        return path

    def taken(self, name: str) -> InputError:
        problem = f"{name} is in the table already"
        return InputError(str(self.directory), problem, "use --replace, or remove it")

    @contextmanager
    def made(self) -> Iterator[None]:
        """The directory is there; what had to be made of it goes again if it stays empty."""
        folder = self.directory
        with explain_file_errors(folder):
            new = [one for one in (folder, *folder.parents) if not one.exists()]
        check_directory(folder)
        try:
            yield
        finally:
            with suppress(OSError):  # not empty, or gone
                for one in new:
                    one.rmdir()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among those who save and remove; readers need no lock."""
        with explain_file_errors(self.directory):
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
