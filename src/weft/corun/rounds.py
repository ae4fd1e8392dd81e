"""Schemes by which applications share ports, the plan of a co-run, its records and its outcome.

A repetition runs every application alone and all of them under every scheme, in random order, so
that drift of the machine affects all alike. Each round gives one record named `corun`: the scheme,
the applications with weights, predictions and completion times, and the identity of the measurement
(`build_identity`).

Slowdown is completion in a round over the mean completion alone, of all repetitions. Intervals are
Student's, 95 %, over repetitions, widened by the interval of the mean alone; two schemes are
compared by the differences within repetitions.

Pure. Entry points: `Plan`, `build_record`, `read_completions`, `read_schemes`, `check_resumable`,
`compute_outcome`, `format_outcome`. Units: seconds; weights are fractions of the link.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import product
from math import hypot, inf, isclose, isfinite, sqrt
from random import Random
from statistics import fmean, stdev

from weft import __version__
from weft.control.policy.allocate import allocate
from weft.control.policy.lending import choose_weights, predict_slowdowns
from weft.errors import InputError
from weft.host.net.htb import Queue
from weft.records import Plain, Provenance, Record, Scalar
from weft.records.record_text import format_table
from weft.records.schema import canonical_json
from weft.sensitivity.application import Application
from weft.sensitivity.model import Hinges

MANAGED = 0.99
ALONE, ONE, EQUAL, WEFT, LEND = "alone", "one", "equal", "weft", "lend"
SCHEMES = (ONE, EQUAL, WEFT, LEND)
_KBPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A scheme to share ports. Without `weights` there is one queue, and nothing is predicted.

    `promised` is each application's predicted slowdown if it has no more than its weight, `lent`
    if what the others leave is added.
    """

    name: str
    weights: tuple[float, ...] = ()
    promised: tuple[float, ...] = ()
    lent: tuple[float, ...] = ()


def application_dscp(number: int) -> int:
    """The DSCP of the application with this number, from 0."""
    return number + 1


def build_queues(scheme: Scheme) -> list[Queue]:
    if not scheme.weights:
        return [Queue(weight=1.0, dscps=(0,))]
    managed = [Queue(weight=w, dscps=(application_dscp(n),)) for n, w in enumerate(scheme.weights)]
    return [Queue(weight=1 - MANAGED, dscps=(0,)), *managed]


def build_schemes(
    models: Sequence[Hinges], link_bps: float, volumes: Sequence[float] = ()
) -> dict[str, Scheme]:
    """Every scheme, with its weights and predictions; without volumes, those of the models."""
    everyone = range(len(models))
    units = round(link_bps / _KBPS)
    answer = allocate(models, [everyone], units=units, capacity=MANAGED).at(0)
    weft = [answer[n] / units for n in everyone]
    equal = [MANAGED / len(models)] * len(models)
    lend = choose_weights(models, MANAGED, volumes, units=units).tolist()
    return {
        ONE: Scheme(name=ONE),
        EQUAL: _predict_scheme(EQUAL, models, equal, volumes),
        WEFT: _predict_scheme(WEFT, models, weft, volumes),
        LEND: _predict_scheme(LEND, models, lend, volumes),
    }


def _predict_scheme(
    name: str, models: Sequence[Hinges], weights: Sequence[float], volumes: Sequence[float]
) -> Scheme:
    return Scheme(
        name=name,
        weights=tuple(weights),
        promised=_predict_promised(models, weights),
        lent=tuple(predict_slowdowns(models, weights, MANAGED, volumes).tolist()),
    )


def _predict_promised(models: Sequence[Hinges], shares: Sequence[float]) -> tuple[float, ...]:
    """Below its floor a model says nothing; it is no less there than at the floor."""
    return tuple(
        float(model.slowdown(max(share, model.floor)))
        for model, share in zip(models, shares, strict=True)
    )


NAME = "corun"
MAX_REPETITIONS, MAX_RUNS = 100, 100
IDLE, UNMARKED = "processors.idle", "unmarked"
COMMANDS, PROFILES = "commands", "profiles"
_ROUNDING = 1e-6
_DIGITS = 12  # of a digest


@dataclass(frozen=True, slots=True)
class Round:
    """Applications, by number, that run beside each other under a scheme."""

    repetition: int
    scheme: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A measurement: each application has at least `runs` counted runs in a round.

    `identity` is what must be the same in all rounds besides: see `build_identity`.
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
        once = [(ALONE, (n,)) for n in everyone] + [(scheme, everyone) for scheme in SCHEMES]
        return tuple(
            Round(repetition, scheme, numbers)
            for repetition in range(self.repeat)
            for scheme, numbers in random.sample(once, len(once))
        )

    def delays_s(self, round_: Round, alone_s: Sequence[float]) -> dict[int, float]:
        """When each begins: anywhere in the time that it takes alone, the first at once.

        Those that began together would compute together and send together ever after.
        """
        random = Random(f"{self.seed} {round_.repetition} {round_.scheme}")
        drawn = {number: random.uniform(0, alone_s[number]) for number in round_.numbers}
        first_s = min(drawn.values())
        return {number: delay_s - first_s for number, delay_s in drawn.items()}

    def settings(self, round_: Round) -> dict[str, Plain]:
        """Settings that identify the record of a round."""
        return {
            "applications": " ".join(self.names),
            "running": " ".join(self.names[n] for n in round_.numbers),
            "way": round_.scheme,
            "repetition": round_.repetition,
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
    round_: Round,
    scheme: Scheme | None,
    completions_s: Mapping[int, Sequence[float]],
    idle: float,
    unmarked: float | None = None,
) -> Record:
    """The record of a round.

    `idle` is the part of the processors' time that nobody used, `unmarked` the part of the bytes
    that bore no application's mark, where that can be told.
    """
    mean_s = {plan.names[n]: fmean(completions_s[n]) for n in round_.numbers}
    quantities = {f"{name}.completion": Scalar(value, "s") for name, value in mean_s.items()}
    parts = {IDLE: idle} | ({} if unmarked is None else {UNMARKED: unmarked})
    predicted = [
        _weight_row(plan, n, scheme)
        for n in round_.numbers
        if scheme is not None and scheme.weights
    ]
    return Record(
        kind="measurement",
        name=NAME,
        settings=plan.settings(round_),
        quantities=quantities | {name: Scalar(part, "") for name, part in parts.items()},
        tables={
            "runs": [
                {"application": plan.names[n], "completion_s": completions}
                for n in round_.numbers
                for completions in completions_s[n]
            ],
            **({"weights": predicted} if predicted else {}),
        },
        provenance=Provenance(weft_version=__version__, seed=plan.seed),
    )


def _weight_row(plan: Plan, number: int, scheme: Scheme) -> dict[str, Plain]:
    return {
        "application": plan.names[number],
        "weight": scheme.weights[number],
        "predicted_promised": scheme.promised[number],
        "predicted_lent": scheme.lent[number],
    }


# ---- Reading records --------------------------------------------------------------------------


def read_completions(record: Record) -> dict[str, float]:
    """The mean completion time of each application in a round."""
    completions: dict[str, list[float]] = {}
    for row in record.tables["runs"]:
        completions.setdefault(str(row["application"]), []).append(float(row["completion_s"] or 0))
    return {name: fmean(values) for name, values in completions.items()}


def read_fraction(record: Record, name: str) -> float | None:
    """`IDLE` or `UNMARKED` of a round; None where it is not known."""
    value = record.quantities.get(name)
    return value.value if isinstance(value, Scalar) else None


def read_schemes(where: str, records: Sequence[Record]) -> dict[str, Scheme]:
    """The schemes as they were measured, with their weights and predictions."""
    schemes = {ONE: Scheme(name=ONE)}
    for record in records:
        if "weights" in record.tables:
            scheme = _read_scheme(record)
            if not _are_equal(schemes.setdefault(scheme.name, scheme), scheme):
                problem = f"has records of {scheme.name!r} with different weights or predictions"
                raise InputError(where, problem, "measure again, into another file")
    return schemes


def _read_scheme(record: Record) -> Scheme:
    weights, promised, lent = (
        tuple(float(row[column] or 0) for row in record.tables["weights"])
        for column in ("weight", "predicted_promised", "predicted_lent")
    )
    return Scheme(name=str(record.settings["way"]), weights=weights, promised=promised, lent=lent)


def _are_equal(scheme: Scheme, other: Scheme) -> bool:
    """Up to rounding: another machine may have computed them."""
    pairs = zip(
        (*scheme.weights, *scheme.promised, *scheme.lent),
        (*other.weights, *other.promised, *other.lent),
        strict=True,
    )
    return all(isclose(a, b, rel_tol=_ROUNDING) for a, b in pairs)


def list_remaining(plan: Plan, records: Sequence[Record]) -> list[Round]:
    """The rounds that have no record yet."""
    measured = [dict(record.settings) for record in records]
    return [round_ for round_ in plan.rounds if plan.settings(round_) not in measured]


def check_resumable(
    where: str, plan: Plan, schemes: Mapping[str, Scheme], records: Sequence[Record]
) -> None:
    """Refuses records of another measurement, and of other weights or predictions."""
    for record in records:
        _check_identity(where, plan, record.settings)
    for name, recorded in read_schemes(where, records).items():
        if name not in schemes or not _are_equal(recorded, schemes[name]):
            problem = f"has records of {name!r} with other weights or predictions than the models'"
            raise InputError(where, problem, "give another file: a model has changed")


def _check_identity(where: str, plan: Plan, settings: Mapping[str, Plain]) -> None:
    wanted = plan.settings(plan.rounds[0])
    keys = ("applications", "runs", *plan.identity)
    missing = [key for key in keys if key not in settings]
    if missing:
        problem = f"has records without their {missing[0]}"
        raise InputError(where, problem, "give another file, to measure anew")
    for key in keys:
        if settings[key] != wanted[key]:
            problem = (
                f"has records {_describe_difference(plan.names, key, settings[key], wanted[key])}"
            )
            raise InputError(where, problem, "give another file, or the same measurement")


def _describe_difference(names: Sequence[str], key: str, recorded: Plain, wanted: Plain) -> str:
    if key not in (COMMANDS, PROFILES):
        return f"with {key} {recorded!r}, not {wanted!r}"
    pairs = zip(names, str(recorded).split(), str(wanted).split(), strict=False)
    changed = [name for name, old, new in pairs if old != new]
    return f"of another {key.removesuffix('s')} of {', '.join(changed)}"


# ---- The outcome ------------------------------------------------------------------------------

_CONFIDENCE = 0.975
_FEW = 0.03  # of the bytes, what connections send before they bear their mark, and more
TITLES = {ONE: "one queue", EQUAL: "equal queues", WEFT: "weft", LEND: "weft, lending"}
_OURS, _OTHERS = (WEFT, LEND), (ONE, EQUAL)

_Rows = Mapping[int, Mapping[str, float]]  # slowdowns in each repetition


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean of repetitions and half the width of its interval; inf of one repetition."""

    value: float
    half: float

    def __str__(self) -> str:
        return f"{self.value:.2f}" + (f" ± {self.half:.2f}" if isfinite(self.half) else "")

    def wider(self, *halves: float) -> Mean:
        """The mean with further, independent errors in its interval."""
        return Mean(self.value, hypot(self.half, *halves))


def estimate_mean(values: Sequence[float]) -> Mean:
    if len(values) < 2:
        return Mean(fmean(values), inf)
    from scipy.special import stdtrit  # see weft.model.fit

    quantile = float(stdtrit(len(values) - 1, _CONFIDENCE))
    return Mean(fmean(values), quantile * stdev(values) / sqrt(len(values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Slowdowns by scheme and application; `overall` their mean over applications, by scheme.

    `gains` of (ours, other): how much lower the mean slowdown is with our scheme, as a fraction of
    the other's. `expected` is the mean slowdown of a scheme as the models predict it, with lending
    and by the weights alone; `predicted` is the gain over equal queues that follows. `idle` is the
    mean of the rounds in which several ran, `unmarked` the most of any of them; None: not known.
    """

    names: tuple[str, ...]
    alone_s: Mapping[str, Mean]
    slowdown: Mapping[str, Mapping[str, Mean]]
    overall: Mapping[str, Mean]
    gains: Mapping[tuple[str, str], Mean]
    expected: Mapping[str, tuple[float, float]]
    predicted: Mapping[str, tuple[float, float]]
    idle: Mean | None
    unmarked: float | None


def compute_outcome(
    names: Sequence[str], schemes: Mapping[str, Scheme], records: Sequence[Record]
) -> Outcome | None:
    """None before each application has run alone."""
    alone_s = _estimate_alone(names, records)
    if alone_s is None:
        return None
    measured = _compute_slowdowns(alone_s, records)
    error = {name: mean.half / mean.value for name, mean in alone_s.items()}
    expected = {
        scheme.name: (fmean(scheme.lent), fmean(scheme.promised))
        for scheme in schemes.values()
        if scheme.weights
    }
    together = [record for record in records if record.settings["way"] != ALONE]
    return Outcome(
        names=tuple(names),
        alone_s=alone_s,
        slowdown={
            scheme: {name: _estimate_slowdown(rows, name, error[name]) for name in names}
            for scheme, rows in measured.items()
        },
        overall={scheme: _estimate_overall(rows, error) for scheme, rows in measured.items()},
        gains={
            (ours, other): _estimate_gain(measured[ours], measured[other], error)
            for ours, other in product(_OURS, _OTHERS)
            if measured.get(ours, {}).keys() & measured.get(other, {}).keys()
        },
        expected=expected,
        predicted=_predict_gains(expected),
        idle=_estimate_idle(together),
        unmarked=max(_read_fractions(together, UNMARKED), default=None),
    )


def _estimate_alone(names: Sequence[str], records: Sequence[Record]) -> dict[str, Mean] | None:
    rounds = [read_completions(record) for record in records if record.settings["way"] == ALONE]
    completions = {name: [r[name] for r in rounds if name in r] for name in names}
    if not all(completions.values()):
        return None
    return {name: estimate_mean(values) for name, values in completions.items()}


def _compute_slowdowns(alone_s: Mapping[str, Mean], records: Sequence[Record]) -> dict[str, _Rows]:
    """Slowdowns of each application by scheme and repetition."""
    rows: dict[str, dict[int, dict[str, float]]] = {scheme: {} for scheme in SCHEMES}
    for record in records:
        scheme, repetition = str(record.settings["way"]), record.settings["repetition"]
        if scheme in rows and isinstance(repetition, int):
            completions = read_completions(record)
            rows[scheme][repetition] = {
                name: completions[name] / s.value for name, s in alone_s.items()
            }
    return {scheme: measured for scheme, measured in rows.items() if measured}


def _estimate_slowdown(rows: _Rows, name: str, error: float) -> Mean:
    mean = estimate_mean([row[name] for row in rows.values()])
    return mean.wider(mean.value * error)


def _estimate_overall(rows: _Rows, error: Mapping[str, float]) -> Mean:
    """The mean over applications; `error` is the relative error of each one's time alone."""
    mean = estimate_mean([fmean(row.values()) for row in rows.values()])
    each = {name: fmean(row[name] for row in rows.values()) for name in error}
    return mean.wider(*(each[name] / len(each) * part for name, part in error.items()))


def _estimate_gain(ours: _Rows, other: _Rows, error: Mapping[str, float]) -> Mean:
    """g = sum of (x - y) / a over sum of x / a: an error of one a counts as far as its application
    gains more or less than all do."""
    both = sorted(ours.keys() & other.keys())
    lower = estimate_mean([fmean(other[r].values()) - fmean(ours[r].values()) for r in both])
    mean_other = fmean(fmean(other[r].values()) for r in both)
    gain = Mean(lower.value / mean_other, lower.half / mean_other)
    before, after = (
        {name: fmean(rows[r][name] for r in both) for name in error} for rows in (other, ours)
    )
    more = {name: (1 - gain.value) * before[name] - after[name] for name in error}
    return gain.wider(
        *(more[name] / len(error) / mean_other * part for name, part in error.items())
    )


def _predict_gains(expected: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    if EQUAL not in expected:
        return {}
    lent, promised = expected[EQUAL]
    return {
        ours: (1 - expected[ours][0] / lent, 1 - expected[ours][1] / promised)
        for ours in _OURS
        if ours in expected
    }


def _estimate_idle(records: Sequence[Record]) -> Mean | None:
    fractions = _read_fractions(records, IDLE)
    return estimate_mean(fractions) if fractions else None


def _read_fractions(records: Sequence[Record], name: str) -> list[float]:
    return [part for record in records if (part := read_fraction(record, name)) is not None]


# ---- Text -------------------------------------------------------------------------------------


def format_outcome(outcome: Outcome, schemes: Mapping[str, Scheme]) -> str:
    """Measured slowdowns; in brackets the predicted ones, with their weight."""
    measured = [scheme for scheme in SCHEMES if scheme in outcome.slowdown]
    heads = ["application", "alone, s"]
    for scheme in measured:
        heads += [TITLES[scheme], "predicted"] if schemes[scheme].weights else [TITLES[scheme]]
    rows = [
        _format_row(outcome, schemes, measured, n, name) for n, name in enumerate(outcome.names)
    ]
    total = ["mean", ""]
    for scheme in measured:
        total.append(str(outcome.overall[scheme]))
        if scheme in outcome.expected:
            lent, promised = outcome.expected[scheme]
            total.append(f"{lent:.2f} ({promised:.2f})")
    return "\n".join([format_table(heads, [*rows, total]), "", *format_verdicts(outcome)]).rstrip()


def _format_row(
    outcome: Outcome, schemes: Mapping[str, Scheme], measured: Sequence[str], number: int, name: str
) -> list[str]:
    cells = [name, str(outcome.alone_s[name])]
    for scheme in measured:
        cells.append(str(outcome.slowdown[scheme][name]))
        if schemes[scheme].weights:
            weight, lent = schemes[scheme].weights[number], schemes[scheme].lent[number]
            promised = schemes[scheme].promised[number]
            cells.append(f"{100 * weight:.0f} %: {lent:.2f} ({promised:.2f})")
    return cells


def format_verdicts(outcome: Outcome) -> list[str]:
    """A line for each comparison, beside what was predicted, and what may have spoilt it."""
    lines = []
    for (ours, other), gain in outcome.gains.items():
        line = f"{TITLES[ours]} over {TITLES[other]}: gain in mean slowdown {_format_gain(gain)}"
        if other == EQUAL and ours in outcome.predicted:
            lent, promised = outcome.predicted[ours]
            line += f"; predicted {lent:+.1%}, by weights alone {promised:+.1%}"
        lines.append(line)
    if outcome.idle is not None:
        lines.append(f"processors idle: {outcome.idle.value:.0%} of the time")
    unmarked = format_unmarked(outcome.unmarked)
    return [*lines, unmarked] if unmarked else lines


def _format_gain(gain: Mean) -> str:
    if not isfinite(gain.half):
        return f"{gain.value:+.1%}, noise not known: too few repetitions"
    noise = "within noise" if abs(gain.value) <= gain.half else "beyond noise"
    return f"{gain.value:+.1%} ± {100 * gain.half:.1f}, {noise}"


def format_unmarked(part: float | None) -> str:
    """A warning about unmarked traffic; empty if there is little."""
    if part is None or part <= _FEW:
        return ""
    return (
        f"{part:.0%} of the bytes bore no application's mark and had 1 % of the link: is a service "
        "that was running before part of an application?"
    )
