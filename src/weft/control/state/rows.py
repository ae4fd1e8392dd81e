"""What a step asks the store to keep.

Rows are facts that replace what was kept under the same name: the order matters only among rows of
one name. They must be on disk before anything is answered or programmed. Entry point: `Row`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.control.policy.levels import Levels
from weft.control.state.events import Answer, ApplicationModel
from weft.control.state.key import Key
from weft.switches import PortName, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationRow:
    """A registration; no name: it is gone."""

    id: str
    name: str | None
    ttl_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionRow:
    """A connection; no application: it is gone."""

    id: str
    application: str | None
    source: str = ""
    destination: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """An application of the table; None: it is forgotten."""

    name: str
    kind: ApplicationModel | None
    withdrawn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelsRow:
    """The levels of all applications of the table."""

    levels: Levels


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRow:
    """What a key was answered."""

    key: Key
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionRow:
    """A revision: the tables that it changed and what these were (None: never told).

    `held` is the earlier revision whose tables are held by now, if one is.
    """

    revision: int
    cause: str
    tables: Mapping[PortName, Tables]
    before: Mapping[PortName, Tables | None]
    held: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CountRow:
    """How many registrations there have ever been."""

    registered: int


Row = ApplicationRow | ConnectionRow | ModelRow | LevelsRow | AnswerRow | RevisionRow | CountRow
