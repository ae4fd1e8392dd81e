"""A resumable campaign: many points, their records kept in a file as they come.

Points that a file already has complete are not run again; those that were cut short are. Measuring
and simulating both run their points through `run_campaign`.
"""

from __future__ import annotations

import contextlib
import errno
import warnings
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from weft.errors import InputError
from weft.records.schema import Record, Run
from weft.records.store import RecordWriter, check_output, read_records

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
