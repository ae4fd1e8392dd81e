"""A study: a table or figure of a paper, ours beside it, and the comparison.

Every study is a module-level value. Its points (simulations, models, measurements) give records;
observations are read from them and compared with published values; claims are judged on them.
Entry points: `Study`, `run_study`, `study_records`; the papers by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft import __version__
from weft.measure import Peer, open_peer
from weft.records import Plain, Provenance, Record, Scalar
from weft.studies.observation import (
    Claim,
    Observation,
    Records,
    Row,
    Unavailable,
    Verdict,
    judge,
    row_fields,
)
from weft.studies.points import SEED, Point, RunContext, run_point

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper by the name it has here and in full."""

    short: str
    citation: str


RPERF_PAPER = Paper(
    short="RPerf (ISPASS 2020)",
    citation="RPerf (Katebzadeh, Costa, Grot: Evaluation of an InfiniBand Switch, ISPASS 2020)",
)
IB2016_PAPER = Paper(
    short="InfiniBand benchmarks (IJCNIS 2016)",
    citation="Gamess, Ortiz-Zuazaga: Low Level Performance Evaluation of InfiniBand with "
    "Benchmarking Tools, IJCNIS 8(10), 2016",
)
EFA_PAPER = Paper(
    short="EFA thesis (2022)",
    citation="Dwarakanandan B.M: Elastic Fabric Adapter: A Viable Alternative to RDMA over "
    "InfiniBand for DBMS?, TU Darmstadt, 2022",
)
FDR_PAPER = Paper(
    short="FDR study (2014)",
    citation="Liu, Russell: A Performance Study of InfiniBand Fourteen Data Rate (FDR), 2014",
)
SABA_PAPER = Paper(
    short="Saba thesis (2022)",
    citation="Katebzadeh: Application-Centric Bandwidth Allocation in Datacenters, University of "
    "Edinburgh, 2022",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A table or figure of a paper as a runnable value.

    `system` is what most of ours is of; points and observations may name another. Each panel draws
    on axes of its own. `notes` say what was inferred, and what ours does not capture.
    """

    name: str
    title: str
    paper: Paper
    place: str
    system: str
    points: tuple[Point, ...]
    observations: tuple[Observation, ...]
    panels: tuple[Callable[[Axes, Result], None], ...]
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    remarks: Callable[[Result], tuple[str, ...]] = lambda _: ()  # what follows from the result


def experiment_only(name: str, title: str, paper: Paper, place: str) -> Study:
    """A study without a model: the paper gives too few values for one, only an experiment."""
    return Study(
        name=name,
        title=title,
        paper=paper,
        place=place,
        system="",
        points=(),
        observations=(),
        panels=(),
        notes=(f"Only an experiment, for your own fabric: weft study run {name} --peer HOST.",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A study that was run: a record per setting, a row per observation, a verdict per claim."""

    study: Study
    records: Records
    rows: tuple[Row, ...]
    verdicts: tuple[Verdict, ...]
    missing: Mapping[str, str]  # setting: why it was not available

    @property
    def packet_hops(self) -> int:
        """Of all its simulations."""
        hops = (record.quantities.get("fabric.packet_hops") for record in self.records.values())
        return sum(int(count.value) for count in hops if isinstance(count, Scalar))

    @property
    def compared(self) -> tuple[Row, ...]:
        """The rows that have a published value."""
        return tuple(row for row in self.rows if row.published is not None)

    @property
    def judged(self) -> tuple[tuple[Claim, Verdict], ...]:
        return tuple(zip(self.study.claims, self.verdicts, strict=True))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The study's notes, what was not available, and the reason of each row outside."""
        return (
            *self.study.notes,
            *self.study.remarks(self),
            *self._missing_remarks(),
            *self._outside_remarks(),
        )

    def _missing_remarks(self) -> Iterator[str]:
        for reason in dict.fromkeys(self.missing.values()):
            settings = [setting for setting, why in self.missing.items() if why == reason]
            several = f" and {len(settings) - 1} more" if len(settings) > 1 else ""
            yield f"Not available: {settings[0]}{several}: {reason}"

    def _outside_remarks(self) -> Iterator[str]:
        outside: dict[str, list[Row]] = {}
        for row in self.rows:
            if not row.within:
                outside.setdefault(row.observation.reason or "No reason is known.", []).append(row)
        for reason, rows in outside.items():
            yield f"{'; '.join(map(_describe_outside, rows))}. {reason}"


def _describe_outside(row: Row) -> str:
    o = row.observation
    off = f"not {o.bound} {o.published:g}" if o.bound else f"{row.ratio:.2f} of the published value"
    return f"{o.setting}, {o.quantity}: {off}"


class _StudyRecords(dict[str, Record]):
    """Records by setting; a missing one raises its reason."""

    def __init__(self, records: Mapping[str, Record], missing: Mapping[str, str]) -> None:
        super().__init__(records)
        self._reasons = missing

    def __missing__(self, setting: str) -> Record:
        raise Unavailable(self._reasons[setting])


def run_study(
    study: Study,
    progress: Callable[[float], None] | None = None,
    connect: Callable[[], Peer] = open_peer,
    simulated: Mapping[str, Record] | None = None,
) -> Result:
    """Run every point of a study and compare; `connect` opens the peer of its measurements.

    Simulations whose records are in `simulated`, by their settings, are not run again.
    """
    records: dict[str, Record] = {}
    missing: dict[str, str] = {}
    with RunContext(connect, simulated) as context:
        for number, point in enumerate(study.points):
            try:
                records[point.setting] = run_point(point, context, study.name)
            except Unavailable as reason:
                missing[point.setting] = str(reason)
            if progress:
                progress((number + 1) / len(study.points))
    available = _StudyRecords(records, missing)
    return Result(
        study=study,
        records=available,
        rows=tuple(_rows(study, available)),
        verdicts=tuple(judge(claim, available) for claim in study.claims),
        missing=missing,
    )


def _rows(study: Study, records: Records) -> Iterator[Row]:
    for o in study.observations:
        try:
            ours = o.read(records)
        except Unavailable:
            continue
        yield Row(study=study.name, system=o.system or study.system, observation=o, ours=ours)


def study_records(result: Result) -> list[Record]:
    """What is stored: a record per setting, and one of the comparison."""
    study = result.study
    tables = {"published and ours": [_row_fields(row) for row in result.compared]}
    if result.judged:
        tables["claims"] = [_claim_fields(claim, verdict) for claim, verdict in result.judged]
    comparison = Record(
        kind="study",
        name=study.name,
        settings={"paper": study.paper.citation, "place": study.place},
        tables=tables,
        notes=result.remarks,
        provenance=Provenance(weft_version=__version__, seed=SEED, parameters=study.system),
    )
    return [*result.records.values(), comparison]


def _row_fields(row: Row) -> dict[str, Plain]:
    return {**row_fields(row), "place": row.observation.place, "reason": row.observation.reason}


def _claim_fields(claim: Claim, verdict: Verdict) -> dict[str, Plain]:
    return {
        "claim": claim.statement,
        "place": claim.place,
        "source": claim.source,
        "system": claim.system,
        "verdict": verdict.word,
        "evidence": verdict.evidence,
    }
