"""Evidence (rows of settings and observed values), and the rules it supports.

Records of any test become `Row`s. Repetitions of the same settings share a row with their `Spread`;
the same record given twice counts once. Rows of one transport, one kind of endpoint and one set of
other settings are an `Evidence` (made by `weft.tune.rules.read_evidence`), which also says what was
left out. Entry points: `Evidence.rows_of`, `group_families`, `common_options`, `format_options`.
Units: bytes per second, messages per second, us, per cent of one processor, s of it per byte.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from weft.measure.peer.client import LOCAL
from weft.measure.settings.options import options_of
from weft.measure.settings.values import ANYWHERE
from weft.measure.tests import TESTS
from weft.records import Plain, Record
from weft.records.schema import canonical_json
from weft.units import format_number, format_value


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a row was measured at; what a test does not have is as if it were off."""

    test: str  # rate is "bandwidth", whose streams it runs; a step is "saturation.step"
    over: str
    endpoint: str = ""
    op: str = "send"
    size_bytes: int
    depth: int = 1  # messages outstanding on each connection
    qps: int = 1
    threads: int = 1
    post_list: int = 1
    signal_every: int = 1
    inline_bytes: int = 0
    wait: str = "spin"
    offset_bytes: int = 0
    one_buffer: bool = False
    pages: str = "auto"
    cpu: int = ANYWHERE
    numa: int = -1
    rate: float | None = None  # messages per second at most, in all
    load: float | None = None  # share of the maximum, of a step of a saturation
    other: tuple[tuple[str, Plain], ...] = ()  # whatever else was not left at its default

    def without(self, *names: str) -> str:
        """Equal for settings that differ in these fields alone."""
        compared = {k: v for k, v in dataclasses.asdict(self).items() if k not in names}
        return canonical_json(compared)


@dataclass(frozen=True, slots=True)
class Spread:
    """The values of all repetitions, in order of size."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def low(self) -> float:
        return self.values[0]

    @property
    def high(self) -> float:
        return self.values[-1]

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def relative(self) -> float:
        """Half of the range, as a share of the median; 0 of a single value."""
        return (self.high - self.low) / (2 * self.median) if self.median else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One point: its settings and what was seen there. None: the test does not measure it."""

    setting: Setting
    origins: tuple[str, ...]
    records: tuple[Record, ...] = ()  # none of values that a paper printed
    throughput_Bps: Spread | None = None  # payload, as the receiver saw it
    messages_per_s: Spread | None = None
    p50_us: Spread | None = None  # half a round trip; rma: an operation; rperf: a round trip
    p99_us: Spread | None = None
    cpu_percent: Spread | None = None  # of this side
    cpu_s_per_byte: Spread | None = None  # of this side
    peer_cpu_percent: Spread | None = None


UNITS = ("_Bps", "_per_s", "_us", "_percent", "_per_byte")
QUANTITIES = tuple(f.name for f in dataclasses.fields(Row) if f.name.endswith(UNITS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Rows of one transport, in an order that does not depend on that of the records."""

    over: str
    endpoint: str
    peer: str  # "" on this host
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()  # sentences

    def rows_of(self, *tests: str) -> tuple[Row, ...]:
        """The rows of these tests that were not held back to a rate."""
        rows = [row for row in self.rows if row.setting.test in tests]
        return tuple(row for row in rows if row.setting.rate is None or "paced" in tests)

    def table(self) -> list[dict[str, Plain]]:
        """A flat row for each point, for records and JSON."""
        return [_flat(row) for row in self.rows]


def group_families(rows: Sequence[Row], *varied: str) -> list[tuple[Row, ...]]:
    """Groups of two rows or more that differ in these settings alone, ordered by them."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.setting.without(*varied), []).append(row)
    ordered = [sorted(group, key=lambda r: _order(r, varied)) for group in groups.values()]
    return [tuple(group) for group in ordered if len(group) > 1]


def _order(row: Row, varied: Sequence[str]) -> list[tuple[bool, str, float]]:
    """Sorts numbers as numbers, text as text, and None first."""
    keys: list[tuple[bool, str, float]] = []
    for name in varied:
        value = getattr(row.setting, name)
        number = float(value) if isinstance(value, int | float) else 0.0
        keys.append((value is not None, value if isinstance(value, str) else "", number))
    return keys


def _flat(row: Row) -> dict[str, Plain]:
    flat: dict[str, Plain] = {
        k: v for k, v in dataclasses.asdict(row.setting).items() if k != "other"
    }
    flat |= dict(row.setting.other)
    for name in QUANTITIES:
        spread: Spread | None = getattr(row, name)
        if spread is not None:
            flat |= {name: spread.median, f"{name}.low": spread.low, f"{name}.high": spread.high}
            flat["n"] = max(spread.n, int(flat.get("n") or 0))
    return flat


_UNITS = {"_ns": "ns", "_gbps": "Gb/s"}


def common_options(evidence: Evidence, test: str) -> dict[str, str]:
    """The options that all its rows share: the transport, and settings that are no defaults."""
    option_of = {field: name for name, (field, _) in options_of(TESTS[test].settings).items()}
    other = dict(evidence.rows[0].setting.other) if evidence.rows else {}
    options: dict[str, str] = {"over": evidence.over, "endpoint": evidence.endpoint}
    options |= {
        option_of[name]: _text(name, value) for name, value in other.items() if name in option_of
    }
    return {name: text for name, text in options.items() if text}


def _text(name: str, value: Plain) -> str:
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")
    plain = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{plain}{unit}".replace(" ", "")


def format_options(settings: Mapping[str, str]) -> Iterator[str]:
    """`--NAME VALUE` of each; those of the delay transport together; a flag without its value."""
    delays = [f"{name.partition('.')[2]}={text}" for name, text in settings.items() if "." in name]
    for name, text in settings.items():
        if "." not in name:
            yield f"--{name}" if text == "True" else f"--{name} {text}"
    if delays:
        yield f"--delay {' '.join(delays)}"


UNKNOWN, NOT_HERE = "unknown", "not here"
WORTH_PERCENT = 10.0
WORTH = "less than a tenth does not pay for more complicated code"
FIRM, WEAK, SINGLE, NONE = "firm", "weak", "single runs", "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`number` is on one side of `threshold`, and therefore `choice`."""

    topic: str
    choice: str  # in a word or two, for programs
    says: str
    because: str
    number: float | None = None
    unit: str = ""
    threshold: float | None = None
    threshold_why: str = ""
    confidence: str = NONE

    @property
    def is_known(self) -> bool:
        return self.number is not None

    def row(self) -> dict[str, Plain]:
        """For a record's table or JSON."""
        return asdict(self)

    def shown(self, value: float | None) -> str:
        """The number or the threshold, with its unit."""
        if value is None:
            return "–"
        readable = self.unit in ("B", "us", "ns", "b/s")
        return (
            format_value(value, self.unit)
            if readable
            else (f"{format_number(value)} {self.unit}".rstrip())
        )


def unknown_rule(evidence: Evidence, topic: str, lacks: str, *runs: str) -> Rule:
    """What would give the missing evidence, each run as "TEST OPTIONS", LARGE for a size."""
    commands = [_command(evidence, run) for run in runs]
    because = f"run {' and '.join(commands)}"
    return Rule(topic=topic, choice=UNKNOWN, says=f"not known: {lacks}", because=because)


def _command(evidence: Evidence, run: str) -> str:
    test, _, options = run.partition(" ")
    common = " ".join(format_options(common_options(evidence, test)))
    large = "32K" if evidence.over == "udp" else "512K"  # a datagram ends below 64K
    command = f"weft {test} {evidence.peer or LOCAL} {common} {options} -o FILE"
    return command.replace("LARGE", large)


def inapplicable_rule(topic: str, reason: str) -> Rule:
    return Rule(topic=topic, choice=NOT_HERE, says="nothing to choose", because=reason)


def explain_missing_setting(evidence: Evidence, test_settings: type, option: str) -> str:
    """Why the transport does not have a setting; empty when it has, or is no transport of ours."""
    only = options_of(test_settings)[option][1].only
    transport = evidence.over.partition(":")[0]
    return f"{evidence.over} has no {option}" if only and transport not in only else ""


def judge_confidence(numbers: list[float], threshold: float, spread: float, runs: int) -> str:
    """Firm: all on one side of the threshold, further from it than repetitions scatter.

    `runs` are those of the row with the fewest: a single one has no scatter to be held against.
    """
    if runs <= 1:
        return SINGLE
    agree = len({number >= threshold for number in numbers}) == 1
    clear = min(abs(number - threshold) for number in numbers) > spread
    return FIRM if agree and clear else WEAK
