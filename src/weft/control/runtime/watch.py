"""The table of applications, as the controller needs it: a model each, and what has changed.

Files are read again when they change; one that is damaged keeps the model it had, and is told.
Entry point: `TableWatch`. Units: seconds.
"""

from __future__ import annotations

from pathlib import Path

from weft.control.state.events import ApplicationModel, ModelChanged
from weft.errors import InputError
from weft.records.output import explain_file_errors
from weft.sensitivity.application import Application
from weft.sensitivity.application_table import AppTable

_Signature = tuple[int, int, int]
_NEVER: _Signature = (0, 0, 0)


def kind_of_application(application: Application) -> ApplicationModel:
    """Its convex model, and its run time where the profile has one."""
    timed = application.profile.completion_unit == "s"
    return ApplicationModel(
        model=application.convex.model, baseline_s=application.profile.baseline if timed else None
    )


class TableWatch:
    """Looks at the directory when asked."""

    def __init__(self, directory: Path) -> None:
        self._table = AppTable(directory)
        self._seen: dict[str, _Signature] = {}
        self.kinds: dict[str, ApplicationModel] = {}
        self.problems: dict[str, str] = {}

    def changes(self) -> list[ModelChanged]:
        """What is new since it was last asked; everything at first."""
        names = self._table.names()
        gone = [name for name in self._seen if name not in names]
        for name in gone:
            for held in (self._seen, self.kinds, self.problems):
                held.pop(name, None)
        found = [ModelChanged(name=name, kind=None) for name in gone]
        for name in names:
            kind = self._read(name)
            if kind is not None:
                self.kinds[name] = kind
                found.append(ModelChanged(name=name, kind=kind))
        return found

    def forget(self, name: str) -> None:
        """It is new again, or gone again, as nobody could take it."""
        self._seen[name] = _NEVER
        self.kinds.pop(name, None)

    def _read(self, name: str) -> ApplicationModel | None:
        """The model of a file that has changed."""
        path = self._table.path(name)
        try:
            with explain_file_errors(path):
                stat = path.stat()
            signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._seen.get(name) == signature:
                return None
            self._seen[name] = signature
            kind = kind_of_application(self._table.load(name))
        except InputError as error:
            self.problems[name] = str(error)
            return None
        self.problems.pop(name, None)
        return kind if kind != self.kinds.get(name) else None
