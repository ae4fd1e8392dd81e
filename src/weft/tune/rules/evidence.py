"""Evidence (rows of settings and observed values) from records, and the rules it supports.

Records of any test become `Row`s. Repetitions of the same settings share a row with their `Spread`;
the same record given twice counts once. Rows of one transport, one kind of endpoint and one set of
other settings are an `Evidence`, which also says what was left out.

Evidence is of one system. Refused: no measurements, several transports, endpoints, peers or hosts
without a choice of one, and values of the same settings that contradict each other. A record has
its point's full settings in a table; the steps of a saturation have them in the record that
summarises them, which has the same digest.
Entry points: `gather_evidence` (records), `read_evidence` (files), `read_values`;
`Evidence.rows_of`, `group_families`, `common_options`, `format_options`.
Units: bytes per second, messages per second, us, per cent of one processor, s of it per byte.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import NamedTuple

from weft.errors import InputError
from weft.measure.peer.client import LOCAL
from weft.measure.settings.options import options_of
from weft.measure.settings.values import ANYWHERE, AUTO
from weft.measure.tests import TESTS
from weft.records import Distribution, Plain, Record, Run, Scalar, read_records, statistic, to_line
from weft.records.schema import canonical_json
from weft.units import convert, format_count, format_number, format_value, split_unit


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


# ---- Reading records --------------------------------------------------------------------------

# Repetitions on a shared virtual machine differ by up to a factor of two; three is another system.
LEAST_CONTRADICTION = 3.0
SIGMAS = 6.0
TIME_LOST = "time lost to hiccups, %"  # of weft.measure.measurement
MOST_LOST_PERCENT = 90.0
CHECKED_QUANTITIES = (
    "throughput_Bps",
    "messages_per_s",
    "p50_us",
)  # tails and CPU shares vary by themselves
MEASURE = "measure first, such as: weft bandwidth PEER --sweep size=64..64K*4 depth=1,16 -o FILE"


class SourcedRecord(NamedTuple):
    """A record and where it is stored, such as "a.jsonl record 3"."""

    record: Record
    origin: str


def gather_evidence(
    records: Iterable[Record | SourcedRecord],
    *,
    over: str = "",
    endpoint: str = "",
    where: str = "records",
) -> Evidence:
    """Rows of these records; `over` and `endpoint` choose where there are several."""
    evidence = _gather(records, over, endpoint, where)
    _check_agreement(evidence.rows, where)
    return evidence


def _gather(
    records: Iterable[Record | SourcedRecord], over: str, endpoint: str, where: str
) -> Evidence:
    sourced = list(_deduplicate(records))
    usable = [s for s in sourced if is_test(s.record)]
    if not usable:
        raise InputError(
            where,
            _describe_kinds(sourced),
            "give a file of weft latency, bandwidth, rate, "
            "rma, saturation, transfer, paced or rperf (-o FILE)",
        )
    full = read_full_settings(s.record for s in usable)
    setting_records = [(s, read_setting(s.record, full)) for s in usable]
    setting_records, ended = _drop_unfinished(setting_records, where)
    foreign = len(sourced) - len(usable)
    left_out = [f"{format_count(foreign, 'record')} of no test"] * bool(foreign) + ended
    setting_records = _select_records(setting_records, "over", over, where)
    setting_records = _select_records(setting_records, "endpoint", endpoint, where)
    _check_peers(setting_records, where)
    setting_records, uncommon = _drop_uncommon(setting_records)
    first = setting_records[0]
    return Evidence(
        over=first[1].over,
        endpoint=first[1].endpoint,
        peer=_read_peer(first[0].record),
        rows=_build_rows(setting_records),
        left_out=(*left_out, *uncommon),
    )


def _deduplicate(records: Iterable[Record | SourcedRecord]) -> Iterator[SourcedRecord]:
    """The same record given twice is one observation."""
    lines: set[str] = set()
    for number, entry in enumerate(records, 1):
        sourced = (
            entry if isinstance(entry, SourcedRecord) else SourcedRecord(entry, f"record {number}")
        )
        line = to_line(sourced.record)
        if line not in lines:
            lines.add(line)
            yield sourced


def _describe_kinds(sourced: Sequence[SourcedRecord]) -> str:
    if not sourced:
        return "no records"
    kinds = Counter(s.record.kind for s in sourced)
    listed = ", ".join(f"{n} of kind {kind}" for kind, n in sorted(kinds.items()))
    return f"no measurements of a test ({listed})"


SettingRecords = list[tuple[SourcedRecord, Setting]]


def _drop_unfinished(records: SettingRecords, where: str) -> tuple[SettingRecords, list[str]]:
    """Runs that reached their end; the others saw an unknown part of their point."""
    complete = [f for f in records if not f[0].record.ending]
    ended = len(records) - len(complete)
    if not complete:
        raise InputError(where, "every record is of a run that ended early", "run it again")
    return complete, [f"{format_count(ended, 'record')} of runs that ended early"] * bool(ended)


def _select_records(records: SettingRecords, name: str, wanted: str, where: str) -> SettingRecords:
    """The records with one value of a setting by which systems differ."""
    present = sorted({getattr(setting, name) for _, setting in records})
    listed = ", ".join(value or "default" for value in present)
    if wanted and wanted not in present:
        raise InputError(f"--{name} {wanted}", f"no such records in {where}", f"present: {listed}")
    if not wanted and len(present) > 1:
        problem = f"records of {len(present)} kinds of {name} ({listed}) have no model in common"
        raise InputError(where, problem, f"choose one with --{name} {present[-1]}")
    return [f for f in records if not wanted or getattr(f[1], name) == wanted]


def _read_peer(record: Record) -> str:
    return str(record.settings.get("peer", ""))


def _check_peers(records: SettingRecords, where: str) -> None:
    present = sorted({_read_peer(s.record) or "local" for s, _ in records})
    if len(present) > 1:
        problem = f"records of {len(present)} peers ({', '.join(present)}) have no model in common"
        raise InputError(where, problem, "give the records of one peer")


def _drop_uncommon(records: SettingRecords) -> tuple[SettingRecords, list[str]]:
    """Those with the commonest other settings, and a sentence for each of the rest."""
    counts = Counter(setting.other for _, setting in records)
    common = min(counts, key=lambda other: (-counts[other], canonical_json(other)))
    omitted = [
        f"{format_count(n, 'record')} with {_format_other(other)}, "
        f"where the others have {_format_other(common)}"
        for other, n in sorted(counts.items(), key=lambda item: canonical_json(item[0]))
        if other != common
    ]
    return [f for f in records if f[1].other == common], omitted


def _format_other(other: tuple[tuple[str, Plain], ...]) -> str:
    return ", ".join(f"{k}={v}" for k, v in other) or "defaults"


def _build_rows(records: SettingRecords) -> tuple[Row, ...]:
    groups: dict[Setting, list[SourcedRecord]] = {}
    for sourced, setting in records:
        groups.setdefault(setting, []).append(sourced)
    rows = [_build_row(setting, group) for setting, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: row.setting.without()))


def _build_row(setting: Setting, group: Sequence[SourcedRecord]) -> Row:
    observations = [read_values(s.record, setting) for s in group]
    spreads = {
        name: Spread(tuple(sorted(values[name] for values in observations if name in values)))
        for name in QUANTITIES
        if any(name in values for values in observations)
    }
    ordered = sorted(group, key=lambda s: (s.origin, to_line(s.record)))
    return Row(
        setting=setting,
        origins=tuple(s.origin for s in ordered),
        records=tuple(s.record for s in ordered),
        **spreads,
    )


def _check_agreement(rows: Sequence[Row], where: str) -> None:
    """Refuse values of the same settings that differ more than repetitions here do."""
    for quantity in CHECKED_QUANTITIES:
        allowed = _find_allowed_factor(rows, quantity)
        for row in rows:
            spread: Spread | None = getattr(row, quantity)
            if spread is None or not spread.high > LEAST_CONTRADICTION * spread.low > 0:
                continue
            if spread.high > spread.low * allowed(row):
                raise _build_contradiction(row, quantity, allowed(row), where)


def _find_allowed_factor(rows: Sequence[Row], quantity: str) -> Callable[[Row], float]:
    """From the typical scatter of the other rows' repetitions, and never below the least."""
    scatter = [
        (row, math.log(b / a) / math.sqrt(2))
        for row in rows
        if (spread := getattr(row, quantity)) is not None and spread.low > 0
        for a, b in combinations(spread.values, 2)
    ]

    def factor(row: Row) -> float:
        sigmas = [sigma for other, sigma in scatter if other is not row]
        typical = math.exp(SIGMAS * median(sigmas)) if sigmas else 0.0
        return max(LEAST_CONTRADICTION, typical) * _noise_factor(row)

    return factor


def _noise_factor(row: Row) -> float:
    """The factor by which the host's noise, from its records, may have slowed a loop."""
    lost_percent = [
        value
        for record in row.records
        for fact in record.tables.get("host", ())
        if fact["fact"] == TIME_LOST and isinstance(value := fact["value"], int | float)
    ]
    return 1 / (1 - min(max(lost_percent, default=0.0), MOST_LOST_PERCENT) / 100)


def _build_contradiction(row: Row, quantity: str, allowed: float, where: str) -> InputError:
    sourced = zip(row.records, row.origins, strict=True)
    observations = [
        (read_values(r, row.setting).get(quantity), origin, r.label) for r, origin in sourced
    ]
    values = sorted((v, origin, label) for v, origin, label in observations if v is not None)
    (low, low_at, label), (high, high_at, _) = values[0], values[-1]
    name, unit = split_unit(quantity)
    problem = (
        f"{label}: {name} is {format_value(low, unit)} in {low_at} and {format_value(high, unit)} "
        f"in {high_at}, a factor {high / low:.1f} apart where repetitions may be {allowed:.1f}"
    )
    return InputError(where, problem, "measure this point again, or leave one of the two out")


def read_evidence(paths: Sequence[str | Path], *, over: str = "", endpoint: str = "") -> Evidence:
    """All records of these files as evidence of one transport between two hosts."""
    headers: list[tuple[Path, Run]] = []
    sourced: list[SourcedRecord] = []
    for path in map(Path, paths):
        if path.is_file() and not path.stat().st_size:
            raise InputError(str(path), "the file is empty", MEASURE)
        file = read_records(path)
        if not file.records:
            raise InputError(str(path), "a run header and no records", MEASURE)
        headers += [(path, header) for header in file.headers]
        sourced += [SourcedRecord(r, f"{path} record {n}") for n, r in enumerate(file.records, 1)]
    where = ", ".join(map(str, paths))
    _check_hosts(headers, where)
    return gather_evidence(sourced, over=over, endpoint=endpoint, where=where)


def _check_hosts(headers: Sequence[tuple[Path, Run]], where: str) -> None:
    hosts = {header.host: path for path, header in headers}
    if len(hosts) > 1:
        listed = ", ".join(f"{host} ({path})" for host, path in sorted(hosts.items()))
        problem = f"records of {len(hosts)} hosts have no model in common: {listed}"
        raise InputError(where, problem, "give the files of one host")


STEP = ".step"
# `rate` runs the streams of `bandwidth`, of small messages.
SAME_STREAMS = {"rate": "bandwidth"}
# Settings that say how long or how exactly was measured, not what.
MEASURING_SETTINGS = frozenset(
    {
        "count",
        "duration_ns",
        "warmup",
        "samples",
        "seed",
        "total_bytes",
        "steps",
        "loss_timeout_ns",
        "repetition",
        "probe_bytes",
        "peer",
    }
)

LOADS = ("achieved", "maximum")  # of a saturation

FullSettings = Mapping[str | None, Mapping[str, Plain]]  # by digest


def is_test(record: Record) -> bool:
    """Whether the record is of one of weft's tests, or of a step of one."""
    return record.kind == "measurement" and record.name.removesuffix(STEP) in TESTS


def read_full_settings(records: Iterable[Record]) -> FullSettings:
    """All settings of each point, from its record."""
    return {
        record.provenance.scenario_digest: {
            str(row["setting"]): row["value"] for row in record.tables["settings"]
        }
        for record in records
        if "settings" in record.tables
    }


def read_setting(record: Record, full: FullSettings) -> Setting:
    """The record's settings; those it does not have are at the test's defaults."""
    test, step = record.name.removesuffix(STEP), record.name.endswith(STEP)
    defaults = {f.name: f.default for f in dataclasses.fields(TESTS[test].settings)}
    stored = full.get(record.provenance.scenario_digest, {})
    values = {**defaults, **stored, **record.settings}
    values["cpu"] = AUTO if values["cpu"] == "auto" else values["cpu"]
    if "outstanding" in values:
        values["depth"] = values.pop("outstanding")
    fields = {f.name for f in dataclasses.fields(Setting)} - {"test", "other"}
    other = {
        name: value
        for name, value in values.items()
        if name not in fields | MEASURING_SETTINGS and value != defaults.get(name)
    }
    named = record.name if step else SAME_STREAMS.get(test, test)
    values_of_fields = {name: value for name, value in values.items() if name in fields}
    return Setting(test=named, other=tuple(sorted(other.items())), **values_of_fields)  # type: ignore[arg-type]


def read_values(record: Record, setting: Setting) -> dict[str, float]:
    """The values of one record, by the names of a row's fields."""
    values = {
        "throughput_Bps": read_carried_Bps(record) or _read_scaled(record, LOADS, "b/s", 1 / 8),
        "messages_per_s": read_carried_messages_per_s(record, setting.size_bytes),
        "p50_us": _read_latency_us(record, "p50"),
        "p99_us": _read_latency_us(record, "p99"),
        "cpu_percent": _read_scaled(record, ("cpu.percent",), "%", 1.0),
        "peer_cpu_percent": _read_scaled(record, ("peer.cpu.percent",), "%", 1.0),
        "cpu_s_per_byte": _read_cpu_s_per_byte(record, setting),
    }
    if record.name.endswith(STEP):
        values["messages_per_s"] = values["cpu_s_per_byte"] = None  # of the probe, not of the load
    # The first step of a saturation has no load; any other zero is a run without an outcome.
    return {k: v for k, v in values.items() if v is not None and (v > 0 or setting.load == 0)}


def read_carried_Bps(record: Record) -> float | None:
    """The lower of what the receiver and the sender saw of a stream.

    A sender's kernel takes bytes that have not arrived, and a receiver that slept finds a backlog
    and drains it faster than it was sent: what both saw was carried.
    """
    rates = [_read_scaled(record, (n,), "b/s", 1 / 8) for n in ("throughput", "sender.throughput")]
    return min((value for value in rates if value is not None), default=None)


def read_carried_messages_per_s(record: Record, size_bytes: int) -> float | None:
    """The message rate, bounded by what the sender sent."""
    rate = _read_scaled(record, ("message_rate",), "M/s", 1e6)
    sent = _read_scaled(record, ("sender.throughput",), "b/s", 1 / 8)
    return rate if rate is None or sent is None else min(rate, sent / size_bytes)


def _read_scaled(record: Record, names: Sequence[str], unit: str, factor: float) -> float | None:
    for name in names:
        quantity = record.quantities.get(name)
        if isinstance(quantity, Scalar):
            value = convert(quantity.value, quantity.unit, unit)
            return None if value is None else value * factor
    return None


def _read_latency_us(record: Record, name: str) -> float | None:
    for quantity in ("half_rtt", "operation", "rtt", "probe.half_rtt"):
        distribution = record.quantities.get(quantity)
        if (
            isinstance(distribution, Distribution)
            and (value := statistic(distribution, name)) is not None
        ):
            return value / 1e6
    return None


def _read_cpu_s_per_byte(record: Record, setting: Setting) -> float | None:
    used = [_read_scaled(record, (f"cpu.{part}",), "s", 1.0) for part in ("user", "system")]
    messages = record.quantities.get("messages")
    if None in used or not isinstance(messages, Scalar) or not messages.value:
        return None
    return sum(u for u in used if u is not None) / (messages.value * setting.size_bytes)
