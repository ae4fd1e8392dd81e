"""Sets of profiled applications that studies show: those recorded in the project, and a user's.

An application whose name is that of another and `.data-F` or `.nodes-F` is that one profiled again
with F times the data, or on F times the nodes. Entry points: `Cohort`, `recorded_here`,
`own_cohort`. Shares are fractions of the link.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean

from weft import __version__
from weft.records import Provenance, Quantity, Record, Series
from weft.sensitivity.application import Application, Run
from weft.studies.observation import Unavailable
from weft.studies.points import Point, RunContext
from weft.studies.saba.recorded import NODES, Change, recorded, recorded_variants

_CHANGED = re.compile(r"(?P<of>.+)\.(?P<change>data|nodes)-(?P<factor>\d+(\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An application profiled again with `factor` times the data or nodes of its base."""

    change: Change
    factor: float
    base: Application
    application: Application

    @property
    def of(self) -> str:
        return self.base.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Applications by name, and those of them that were profiled again with a change."""

    system: str
    applications: Mapping[str, Application]
    changed: tuple[Changed, ...] = ()
    alike: Mapping[str, str] = field(
        default_factory=dict
    )  # the thesis's workload that does the same
    mark: str = ""  # behind names, where there is another set

    def setting(self, name: str) -> str:
        return f"{name}{self.mark}"

    @property
    def sensitive(self) -> list[Application]:
        """Those slowed enough for R² to be about more than noise."""
        return [app for app in self.applications.values() if is_sensitive(app)]

    def by_sensitivity(self, share: float) -> list[Application]:
        """Those profiled at the share, the least slowed first."""
        there = [app for app in self.applications.values() if runs_at(app, share)]
        return sorted(there, key=lambda app: slowdown_at(app, share))


@cache
def recorded_here() -> Cohort:
    """The applications profiled for the project, on a testbed."""
    rates = {app.profile.link_bps for app in recorded().values()}
    told = "/".join(f"{rate / 1e6:g}" for rate in sorted(r for r in rates if r is not None))
    changed = tuple(
        Changed(
            change=v.change,
            factor=v.amount / (NODES if v.change == "nodes" else 1),
            base=v.base,
            application=v.application,
        )
        for v in recorded_variants()
    )
    return Cohort(
        system=f"applications profiled on a testbed, {told} Mb/s",
        applications=recorded(),
        changed=changed,
        alike={"spark-lr": "LR", "spark-sort": "TS"},
    )


def own_cohort(directory: Path, applications: Sequence[Application]) -> Cohort:
    """The applications of a user's table."""
    by_name = {app.name: app for app in applications}
    changed = tuple(_changed(by_name))
    again = {one.application.name for one in changed}
    base = {name: app for name, app in by_name.items() if name not in again}
    return Cohort(
        system=f"applications in {directory}", applications=base, changed=changed, mark=" (own)"
    )


def _changed(by_name: Mapping[str, Application]) -> Iterator[Changed]:
    for name, application in by_name.items():
        named = _CHANGED.fullmatch(name)
        if named is not None and named["of"] in by_name:
            change: Change = "data" if named["change"] == "data" else "nodes"
            yield Changed(
                change=change,
                factor=float(named["factor"]),
                base=by_name[named["of"]],
                application=application,
            )


# ---- What was observed of one application --------------------------------------------------------

SLOWDOWN, COMPLETION, CPU = "slowdown", "completion time", "processor time"
NOTICED = 1.10


def is_sensitive(application: Application) -> bool:
    """Whether the least share profiled slows it by 10 % or more."""
    return slowdown_at(application, application.floor) >= NOTICED


def runs_at(application: Application, share: float) -> list[Run]:
    return [run for run in application.profile.runs if run.share == share]


def slowdown_at(application: Application, share: float) -> float:
    """Mean slowdown of its runs at the share."""
    return fmean(r.completion for r in runs_at(application, share)) / application.profile.baseline


def observed(cohort: Cohort, application: Application) -> Point:
    """A point of the study: means of the application's runs, over the share of the link."""

    def run(_: RunContext) -> Record:
        return Record(
            kind="measurement",
            name=application.name,
            quantities=_means(application),
            provenance=Provenance(weft_version=__version__),
        )

    return Point(
        setting=cohort.setting(application.name),
        source="measurement",
        system=cohort.system,
        settings={"application": application.name},
        run=run,
    )


def _means(application: Application) -> dict[str, Quantity]:
    shares = tuple(sorted({run.share for run in application.profile.runs}))
    runs = [runs_at(application, share) for share in shares]
    slowdowns = tuple(slowdown_at(application, share) for share in shares)
    found: dict[str, Quantity] = {SLOWDOWN: Series("share", "1", shares, slowdowns)}
    if application.profile.completion_unit == "s":
        took = tuple(fmean(run.completion for run in own) for own in runs)
        found[COMPLETION] = Series("share", "s", shares, took)
    cpu = [[run.cpu_s for run in own if run.cpu_s is not None] for own in runs]
    if all(cpu):
        found[CPU] = Series("share", "s", shares, tuple(map(fmean, cpu)))
    return found


def mean_at(record: Record, quantity: str, share: float) -> float:
    """What `observed` has at a share; NotHere where that was not observed."""
    series = record.quantities.get(quantity)
    if not isinstance(series, Series):
        raise Unavailable(f"{record.name}: no {quantity} was recorded")
    if share not in series.x:
        raise Unavailable(f"{record.name} was not profiled at {100 * share:g} % of the link")
    return series.y[series.x.index(share)]
