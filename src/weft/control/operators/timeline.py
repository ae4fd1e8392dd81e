"""What applications were promised, had and took over a time, at one port: a run as records.

Moments are what a controller and a port's counters say, one after another; runs are what the
applications themselves say. A record for each application, under the name `control-timeline`:
promised weight, share of the link that passed and predicted slowdown over time (`samples`), and its
runs beside the prediction in their time (`runs`); what the controller explained is in a record of
its own. Pure. Entry points: `Timeline`, `records_of`. Units: seconds, bytes, bits per second;
weights and shares are fractions of the link.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from weft import __version__
from weft.records import Plain, Provenance, Record, Scalar

NAME = "control-timeline"
EXPLAINED = "control-explained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """How applications stand, by name; who is not registered has neither weight nor prediction.

    `passed_bytes` are those that have left the application's queue so far.
    """

    at_s: float
    weights: Mapping[str, float]
    slowdowns: Mapping[str, float]
    passed_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of an application, from its begin to its end."""

    application: str
    began_s: float
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the controller said of a port, in words."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A time at a port. `baselines_s` are completions with the whole link, of the profiles."""

    port: str
    link_bps: float
    baselines_s: Mapping[str, float]
    moments: Sequence[Moment]
    runs: Sequence[Run]
    explanations: Sequence[Explanation] = ()


def build_records(timeline: Timeline) -> list[Record]:
    """One for each application, and one of what was explained."""
    own = [_application(timeline, name) for name in timeline.baselines_s]
    return [*own, _explained(timeline)] if timeline.explanations else own


def _application(timeline: Timeline, name: str) -> Record:
    samples, runs = list(_samples(timeline, name)), list(_runs(timeline, name))
    return Record(
        kind="measurement",
        name=NAME,
        settings={"application": name, "port": timeline.port},
        quantities=_means(timeline.baselines_s[name], samples, runs),
        tables={"samples": samples, "runs": runs},
        provenance=Provenance(weft_version=__version__),
    )


def _samples(timeline: Timeline, name: str) -> Iterator[dict[str, Plain]]:
    """The share is that of the time since the moment before, if it was counted then."""
    for before, now in pairwise(timeline.moments):
        passed = now.passed_bytes.get(name, 0)
        passed -= before.passed_bytes.get(name, passed)
        yield {
            "at_s": round(now.at_s, 3),
            "weight": _rounded(now.weights.get(name)),
            "share": _rounded(8 * passed / timeline.link_bps / (now.at_s - before.at_s)),
            "slowdown": _rounded(now.slowdowns.get(name)),
        }


def _rounded(value: float | None) -> float | None:
    """A hundredth of a per cent: finer than can be drawn, in a third of the bytes."""
    return None if value is None else round(value, 4)


def _runs(timeline: Timeline, name: str) -> Iterator[dict[str, Plain]]:
    for run in timeline.runs:
        if run.application == name:
            yield {
                "began_s": run.began_s,
                "took_s": run.took_s,
                "slowdown": run.took_s / timeline.baselines_s[name],
                "predicted": _predicted(timeline, run),
            }


def _predicted(timeline: Timeline, run: Run) -> float | None:
    """The mean of the predictions while it ran."""
    until_s = run.began_s + run.took_s
    found = [
        moment.slowdowns[run.application]
        for moment in timeline.moments
        if run.began_s <= moment.at_s <= until_s and run.application in moment.slowdowns
    ]
    return fmean(found) if found else None


def _means(
    baseline_s: float, samples: Sequence[Mapping[str, Plain]], runs: Sequence[Mapping[str, Plain]]
) -> dict[str, Scalar]:
    """Over the time that it was registered, and over its runs."""
    there = [row for row in samples if row["weight"] is not None]
    found = {"alone": Scalar(baseline_s, "s"), "runs": Scalar(len(runs), "")}
    for name, unit, values in (
        ("weight", "%", [100 * number(row["weight"]) for row in there]),
        ("share", "%", [100 * number(row["share"]) for row in there]),
        ("completion", "s", [number(row["took_s"]) for row in runs]),
        ("slowdown", "", [number(row["slowdown"]) for row in runs]),
        ("slowdown.predicted", "", [number(row["predicted"]) for row in runs if row["predicted"]]),
    ):
        if values:
            found[name] = Scalar(fmean(values), unit)
    return found


def number(value: Plain) -> float:
    """Of a cell that has one."""
    assert isinstance(value, int | float)
    return float(value)


def _explained(timeline: Timeline) -> Record:
    return Record(
        kind="measurement",
        name=EXPLAINED,
        settings={"port": timeline.port},
        tables={
            "explanations": [{"at_s": one.at_s, "text": one.text} for one in timeline.explanations]
        },
        provenance=Provenance(weft_version=__version__),
    )
