"""Watches the table of applications: its models, and what has changed.

A file is read again when it changes. A damaged file is reported, and its model stays.
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


def convert_application(application: Application) -> ApplicationModel:
    """Its convex model, and its run time where the profile has one."""
    timed = application.profile.completion_unit == "s"
    return ApplicationModel(
        curve=application.convex.model, baseline_s=application.profile.baseline if timed else None
    )


class TableWatch:
    """The models of a directory, as of the last call of `changes`."""

    def __init__(self, directory: Path) -> None:
        self._table = AppTable(directory)
        self._signatures: dict[str, _Signature] = {}
        self.models: dict[str, ApplicationModel] = {}
        self.problems: dict[str, str] = {}

    def changes(self) -> list[ModelChanged]:
        """What has changed since the last call; everything at first."""
        names = self._table.names()
        removed = [name for name in self._signatures if name not in names]
        for name in removed:
            for entries in (self._signatures, self.models, self.problems):
                entries.pop(name, None)
        changes = [ModelChanged(name=name, model=None) for name in removed]
        for name in names:
            model = self._read(name)
            if model is not None:
                self.models[name] = model
                changes.append(ModelChanged(name=name, model=model))
        return changes

    def forget(self, name: str) -> None:
        """Reports it again at the next call: the change could not be applied."""
        self._signatures[name] = _NEVER
        self.models.pop(name, None)

    def _read(self, name: str) -> ApplicationModel | None:
        """The model of a file that has changed."""
        path = self._table.path(name)
        try:
            with explain_file_errors(path):
                stat = path.stat()
            signature = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if self._signatures.get(name) == signature:
                return None
            self._signatures[name] = signature
            model = convert_application(self._table.load(name))
        except InputError as error:
            self.problems[name] = str(error)
            return None
        self.problems.pop(name, None)
        return model if model != self.models.get(name) else None
