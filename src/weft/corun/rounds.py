"""What a measurement of co-running consists of, and each round's record.

A repetition runs every application alone and all of them in every way, in an order of its own, so
that drift of the machine falls on all alike. One record per round, under the name `corun`: which
way, which applications, each one's weight, predictions and completion times, and what tells this
measurement from others of the same names (`identity_of`). Pure. Entry points: `Plan`, `record_of`,
`completions_of`, `ways_in`, `check_same`. Units: seconds; weights are fractions of the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from math import isclose
from random import Random
from statistics import fmean

from weft import __version__
from weft.corun.schemes import ALONE, ONE, SCHEMES, Scheme
from weft.errors import InputError
from weft.records import Plain, Provenance, Record, Scalar
from weft.records.record_line import canonical_json
from weft.sensitivity.application import Application

NAME = "corun"
MAX_REPETITIONS, MAX_RUNS = 100, 100
IDLE, UNMARKED = "processors.idle", "unmarked"
COMMANDS, PROFILES = "commands", "profiles"
_ROUNDING = 1e-6
_DIGITS = 12  # of a digest


@dataclass(frozen=True, slots=True)
class Round:
    """Applications, by number, that run beside each other in a way."""

    repetition: int
    way: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured: `runs` of each application in a round at least.

    `identity` is what must be the same in all rounds besides: see `identity_of`.
    """

    names: tuple[str, ...]
    repeat: int
    runs: int
    seed: int
    identity: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            raise InputError("corun", f"{len(self.names)} application", "name two or more")
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            raise InputError("corun", f"{twice[0]!r} is named twice", "name each once")
        for option, value, most in (
            ("--repeat", self.repeat, MAX_REPETITIONS),
            ("--runs", self.runs, MAX_RUNS),
        ):
            if not 1 <= value <= most:
                raise InputError(option, f"{value} is not in 1 to {most}", "use such a number")

    @property
    def rounds(self) -> tuple[Round, ...]:
        random = Random(self.seed)
        everyone = tuple(range(len(self.names)))
        once = [(ALONE, (n,)) for n in everyone] + [(way, everyone) for way in SCHEMES]
        return tuple(
            Round(repetition, way, numbers)
            for repetition in range(self.repeat)
            for way, numbers in random.sample(once, len(once))
        )

    def delays_s(self, one: Round, alone_s: Sequence[float]) -> dict[int, float]:
        """When each begins: anywhere in the time that it takes alone, the first at once.

        Those that began together would compute together and send together ever after.
        """
        random = Random(f"{self.seed} {one.repetition} {one.way}")
        drawn = {number: random.uniform(0, alone_s[number]) for number in one.numbers}
        first_s = min(drawn.values())
        return {number: delay_s - first_s for number, delay_s in drawn.items()}

    def settings(self, one: Round) -> dict[str, Plain]:
        """What tells the record of a round from others."""
        return {
            "applications": " ".join(self.names),
            "running": " ".join(self.names[n] for n in one.numbers),
            "way": one.way,
            "repetition": one.repetition,
            "runs": self.runs,
            **self.identity,
        }


def build_identity(
    applications: Sequence[Application], place: str, directory: str
) -> dict[str, str]:
    """What the names stand for: on what network, and in order digests of commands and profiles.

    A profile is there as models, times alone and volumes come from it.
    """
    return {
        "place": place,
        "directory": directory,
        COMMANDS: " ".join(_digest([*a.profile.command]) for a in applications),
        PROFILES: " ".join(_digest(asdict(a.profile)) for a in applications),
    }


def _digest(value: object) -> str:
    return sha256(canonical_json(value).encode()).hexdigest()[:_DIGITS]


def build_record(
    plan: Plan,
    one: Round,
    way: Scheme | None,
    completions_s: Mapping[int, Sequence[float]],
    idle: float,
    unmarked: float | None = None,
) -> Record:
    """The record of a round.

    `idle` is the part of the processors' time that nobody used, `unmarked` the part of the bytes
    that bore no application's mark, where that can be told.
    """
    mean_s = {plan.names[n]: fmean(completions_s[n]) for n in one.numbers}
    quantities = {f"{name}.completion": Scalar(value, "s") for name, value in mean_s.items()}
    parts = {IDLE: idle} | ({} if unmarked is None else {UNMARKED: unmarked})
    predicted = [_weight_row(plan, n, way) for n in one.numbers if way is not None and way.weights]
    return Record(
        kind="measurement",
        name=NAME,
        settings=plan.settings(one),
        quantities=quantities | {name: Scalar(part, "") for name, part in parts.items()},
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


def _weight_row(plan: Plan, number: int, way: Scheme) -> dict[str, Plain]:
    return {
        "application": plan.names[number],
        "weight": way.weights[number],
        "predicted_promised": way.promised[number],
        "predicted_lent": way.lent[number],
    }


# ---- Reading records --------------------------------------------------------------------------


def read_completions(record: Record) -> dict[str, float]:
    """The mean completion time of each application in a round."""
    taken: dict[str, list[float]] = {}
    for row in record.tables["runs"]:
        taken.setdefault(str(row["application"]), []).append(float(row["completion_s"] or 0))
    return {name: fmean(values) for name, values in taken.items()}


def read_fraction(record: Record, name: str) -> float | None:
    """`IDLE` or `UNMARKED` of a round; None where it is not known."""
    value = record.quantities.get(name)
    return value.value if isinstance(value, Scalar) else None


def read_schemes(where: str, records: Sequence[Record]) -> dict[str, Scheme]:
    """The ways as they were measured, with the weights and predictions of then."""
    found = {ONE: Scheme(name=ONE)}
    for record in records:
        if "weights" in record.tables:
            way = _read_scheme(record)
            if not _are_equal(found.setdefault(way.name, way), way):
                problem = f"has records of {way.name!r} with different weights or predictions"
                raise InputError(where, problem, "measure again, into another file")
    return found


def _read_scheme(record: Record) -> Scheme:
    weights, promised, lent = (
        tuple(float(row[column] or 0) for row in record.tables["weights"])
        for column in ("weight", "predicted_promised", "predicted_lent")
    )
    return Scheme(name=str(record.settings["way"]), weights=weights, promised=promised, lent=lent)


def _are_equal(one: Scheme, other: Scheme) -> bool:
    """But for what arithmetic of another machine makes of it."""
    pairs = zip(
        (*one.weights, *one.promised, *one.lent),
        (*other.weights, *other.promised, *other.lent),
        strict=True,
    )
    return all(isclose(a, b, rel_tol=_ROUNDING) for a, b in pairs)


def list_remaining(plan: Plan, records: Sequence[Record]) -> list[Round]:
    """The rounds that have no record yet."""
    there = [dict(record.settings) for record in records]
    return [one for one in plan.rounds if plan.settings(one) not in there]


def check_resumable(
    where: str, plan: Plan, ways: Mapping[str, Scheme], records: Sequence[Record]
) -> None:
    """Refuses records of another measurement, and of other weights or predictions."""
    for record in records:
        _check_identity(where, plan, record.settings)
    for name, had in read_schemes(where, records).items():
        if name not in ways or not _are_equal(had, ways[name]):
            problem = f"has records of {name!r} with other weights or predictions than the models'"
            raise InputError(where, problem, "give another file: a model has changed")


def _check_identity(where: str, plan: Plan, found: Mapping[str, Plain]) -> None:
    wanted = plan.settings(plan.rounds[0])
    keys = ("applications", "runs", *plan.identity)
    untold = [key for key in keys if key not in found]
    if untold:
        problem = f"has records that do not tell their {untold[0]}"
        raise InputError(where, problem, "give another file, to measure anew")
    for key in keys:
        if found[key] != wanted[key]:
            problem = (
                f"has records {_describe_difference(plan.names, key, found[key], wanted[key])}"
            )
            raise InputError(where, problem, "give another file, or the same measurement")


def _describe_difference(names: Sequence[str], key: str, had: Plain, wanted: Plain) -> str:
    if key not in (COMMANDS, PROFILES):
        return f"with {key} {had!r}, not {wanted!r}"
    pairs = zip(names, str(had).split(), str(wanted).split(), strict=False)
    changed = [name for name, old, new in pairs if old != new]
    return f"of another {key.removesuffix('s')} of {', '.join(changed)}"
