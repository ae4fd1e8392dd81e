"""Sets of profiled applications that studies show: those recorded in the project, and a user's.

`recorded/applications/NAME.json` is what `weft apps export NAME` wrote; machine, date, command and
every run are in it. `NAME.data-F.json` is the same program with F times the data,
`NAME.nodes-N.json` on N hosts. In a user's table `NAME.nodes-F` is NAME on F times the nodes.
`recorded/coruns` has records of `weft corun`. Applications are of 15 November 2026, with the code
of commit 20c32f5, co-running is of the 16th, with that of 68f8e57.
Entry points: `Cohort`, `project_cohort`, `user_cohort`, `read_coruns`. Shares are fractions of the
link.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Literal

from weft.records import Quantity, Record, Series, read_records
from weft.sensitivity.application import Application, Run
from weft.sensitivity.application_table import read_application
from weft.studies.observation import ANOTHER_SYSTEM, Observation, Records, Unavailable
from weft.studies.points import Point, record_point

RECORDED = Path(__file__).parent / "recorded"
NODES = 4  # of the recorded profiles without a change
_VARIANT = re.compile(r"(?P<base>.+)\.(?P<change>data|nodes)-(?P<amount>\d+(\.\d+)?)")

Change = Literal["data", "nodes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """An application profiled again with `factor` times the data or nodes of its base."""

    change: Change
    factor: float
    base: Application
    application: Application


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """Applications by name, and those of them that were profiled again with a change."""

    system: str
    applications: Mapping[str, Application]
    variants: tuple[Variant, ...] = ()
    # The thesis's workload that does the same, by application.
    alike: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""  # of names, where a study shows several cohorts

    def setting(self, name: str) -> str:
        return f"{name}{self.suffix}"

    @property
    def sensitive(self) -> list[Application]:
        """Applications slowed enough that R² is about more than noise."""
        return [app for app in self.applications.values() if is_sensitive(app)]

    def by_sensitivity(self, share: float) -> list[Application]:
        """Applications profiled at the share, the least slowed first."""
        profiled = [app for app in self.applications.values() if runs_at(app, share)]
        return sorted(profiled, key=lambda app: slowdown_at(app, share))


@cache
def project_cohort() -> Cohort:
    """The applications profiled for the project, on a testbed."""
    files = sorted((RECORDED / "applications").glob("*.json"))
    by_name = {path.stem: read_application(str(path)) for path in files}
    # Files are named by the number of hosts.
    applications, variants = _find_variants(by_name, {"data": 1, "nodes": NODES})
    rates = {app.profile.link_bps for app in applications.values()}
    rates_text = "/".join(f"{rate / 1e6:g}" for rate in sorted(r for r in rates if r is not None))
    return Cohort(
        system=f"applications profiled on a testbed, {rates_text} Mb/s",
        applications=applications,
        variants=variants,
        alike={"spark-lr": "LR", "spark-sort": "TS"},
    )


def user_cohort(directory: Path, applications: Sequence[Application]) -> Cohort:
    """The applications of a user's table."""
    by_name = {app.name: app for app in applications}
    base, variants = _find_variants(by_name, {"data": 1, "nodes": 1})
    return Cohort(
        system=f"applications in {directory}", applications=base, variants=variants, suffix=" (own)"
    )


def _find_variants(
    by_name: Mapping[str, Application], units: Mapping[Change, float]
) -> tuple[dict[str, Application], tuple[Variant, ...]]:
    """The applications without a change, and those profiled again; amounts are in these units."""
    variants = {}
    for name, application in by_name.items():
        match = _VARIANT.fullmatch(name)
        if match is not None and match["base"] in by_name:
            change: Change = "data" if match["change"] == "data" else "nodes"
            variants[name] = Variant(
                change=change,
                factor=float(match["amount"]) / units[change],
                base=by_name[match["base"]],
                application=application,
            )
    base = {name: app for name, app in by_name.items() if name not in variants}
    return base, tuple(variants.values())


@cache
def read_coruns() -> Mapping[str, tuple[Record, ...]]:
    """Recorded co-runs by the names of the applications that ran together."""
    files = sorted((RECORDED / "coruns").glob("*.jsonl"))
    return {path.stem: read_records(path).records for path in files}


# ---- Observations of one application ------------------------------------------------------------

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


def application_point(cohort: Cohort, application: Application) -> Point:
    """A point of the study: means of the application's runs, over the share of the link."""

    return record_point(
        cohort.setting(application.name),
        {"application": application.name},
        lambda: _means(application),
        cohort.system,
        application.name,
    )


def cohort_row(
    cohort: Cohort,
    setting: str,
    quantity: str,
    read: Callable[[Records], float],
    *,
    unit: str = "1",
    published: float | None = None,
    place: str = "",
) -> Observation:
    """A value of a cohort; the published one beside it is of another system and not judged."""
    return Observation(
        setting=setting,
        quantity=quantity,
        unit=unit,
        kind="value",
        read=read,
        published=published,
        place=place,
        source="measurement",
        system=cohort.system,
        tolerance=ANOTHER_SYSTEM,
    )


def _means(application: Application) -> dict[str, Quantity]:
    shares = tuple(sorted({run.share for run in application.profile.runs}))
    runs = [runs_at(application, share) for share in shares]
    slowdowns = tuple(slowdown_at(application, share) for share in shares)
    means: dict[str, Quantity] = {SLOWDOWN: Series("share", "1", shares, slowdowns)}
    if application.profile.completion_unit == "s":
        took = tuple(fmean(run.completion for run in same_share) for same_share in runs)
        means[COMPLETION] = Series("share", "s", shares, took)
    cpu = [[run.cpu_s for run in same_share if run.cpu_s is not None] for same_share in runs]
    if all(cpu):
        means[CPU] = Series("share", "s", shares, tuple(map(fmean, cpu)))
    return means


def mean_at(record: Record, quantity: str, share: float) -> float:
    """The mean of a quantity at a share; Unavailable if it was not observed."""
    series = record.quantities.get(quantity)
    if not isinstance(series, Series):
        raise Unavailable(f"{record.name}: no {quantity} was recorded")
    if share not in series.x:
        raise Unavailable(f"{record.name} was not profiled at {100 * share:g} % of the link")
    return series.y[series.x.index(share)]
