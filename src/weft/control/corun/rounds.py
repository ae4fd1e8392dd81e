"""What a measurement of co-running consists of, and each round's record.

A repetition runs every application alone and all of them in every way, in an order of its own, so
that drift of the machine falls on all alike. One record per round, under the name `corun`: which
way, which applications, each one's weight, predictions and completion times. Pure. Entry points:
`Plan`, `record_of`, `completions_of`. Units: seconds; weights are fractions of the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from weft import __version__
from weft.control.corun.ways import ALONE, WAYS, Way
from weft.errors import InputError
from weft.records import Plain, Provenance, Record, Scalar

NAME = "corun"
MOST_REPETITIONS, MOST_RUNS = 100, 100


@dataclass(frozen=True, slots=True)
class Round:
    """Applications, by number, that run beside each other in a way."""

    repetition: int
    way: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured: `runs` of each application in a round at least."""

    names: tuple[str, ...]
    place: str
    repeat: int
    runs: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            raise InputError("corun", f"{len(self.names)} application", "name two or more")
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            raise InputError("corun", f"{twice[0]!r} is named twice", "name each once")
        for option, value, most in (("--repeat", self.repeat, MOST_REPETITIONS),
                                    ("--runs", self.runs, MOST_RUNS)):  # fmt: skip
            if not 1 <= value <= most:
                raise InputError(option, f"{value} is not in 1 to {most}", "use such a number")

    @property
    def rounds(self) -> tuple[Round, ...]:
        random = Random(self.seed)
        everyone = tuple(range(len(self.names)))
        once = [(ALONE, (n,)) for n in everyone] + [(way, everyone) for way in WAYS]
        return tuple(
            Round(repetition, way, numbers)
            for repetition in range(self.repeat)
            for way, numbers in random.sample(once, len(once))
        )

    def settings(self, one: Round) -> dict[str, Plain]:
        """What tells the record of a round from others."""
        return {
            "applications": " ".join(self.names),
            "running": " ".join(self.names[n] for n in one.numbers),
            "way": one.way,
            "repetition": one.repetition,
            "place": self.place,
            "runs": self.runs,
        }


def record_of(
    plan: Plan, one: Round, way: Way | None, completions_s: Mapping[int, Sequence[float]],
    idle: float,
) -> Record:  # fmt: skip
    """The record of a round; `idle` is the part of the processors' time that nobody used."""
    mean_s = {plan.names[n]: fmean(completions_s[n]) for n in one.numbers}
    quantities = {f"{name}.completion": Scalar(value, "s") for name, value in mean_s.items()}
    predicted = [_predicted(plan, n, way) for n in one.numbers if way is not None and way.weights]
    return Record(
        kind="measurement",
        name=NAME,
        settings=plan.settings(one),
        quantities=quantities | {"processors.idle": Scalar(idle, "")},
        tables={
            "runs": [
                {"application": plan.names[n], "completion_s": taken}
                for n in one.numbers
                for taken in completions_s[n]
            ],
            **({"weights": predicted} if predicted else {}),
        },
        provenance=Provenance(weft_version=__version__, seed=plan.seed),
    )


def _predicted(plan: Plan, number: int, way: Way) -> dict[str, Plain]:
    return {
        "application": plan.names[number],
        "weight": way.weights[number],
        "predicted_promised": way.promised[number],
        "predicted_lent": way.lent[number],
    }


def completions_of(record: Record) -> dict[str, float]:
    """The mean completion time of each application in a round."""
    taken: dict[str, list[float]] = {}
    for row in record.tables["runs"]:
        taken.setdefault(str(row["application"]), []).append(float(row["completion_s"] or 0))
    return {name: fmean(values) for name, values in taken.items()}


def left_of(plan: Plan, records: Sequence[Record]) -> list[Round]:
    """The rounds that have no record yet."""
    there = [dict(record.settings) for record in records]
    return [one for one in plan.rounds if plan.settings(one) not in there]


def check_same(where: str, plan: Plan, records: Sequence[Record]) -> None:
    """Refuses records of another measurement."""
    for record in records:
        for key, value in plan.settings(plan.rounds[0]).items():
            if key in ("applications", "place", "runs") and record.settings.get(key) != value:
                problem = f"has records with {key} {record.settings.get(key)!r}, not {value!r}"
                raise InputError(where, problem, "give another file, or the same measurement")
