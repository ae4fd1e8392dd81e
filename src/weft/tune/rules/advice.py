"""Design rules like those of the EFA thesis (Section 6.1), from fits and evidence.

Each rule has the number that decided and a threshold with its reason; a rule without evidence names
the command that would measure it. The same rules apply to measurements of a machine and to
published tables in the form of evidence.

`contrast_rules` compare two levels of one setting: inline or not, spin or block, aligned or not.
Rows that differ in that setting alone are paired; the number is the median gain of the other level
over the plain one, in per cent of speed (throughput, or the inverse of latency). Entry points:
`advise`, `advice_table`. Units: %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any, NamedTuple

from weft.errors import InputError
from weft.measure.settings.options import options_of
from weft.measure.tests import TESTS
from weft.model.fit import Fit, fit
from weft.model.latency import single_packet_latency
from weft.records import Plain
from weft.records import Row as TableRow
from weft.records.record_text import format_table
from weft.toml_table import load_toml
from weft.tune.rules.curve_rules import LEAST_LEVELS, curve_rules
from weft.tune.rules.evidence import (
    WORTH,
    WORTH_PERCENT,
    Evidence,
    Row,
    Rule,
    Setting,
    Spread,
    explain_missing_setting,
    group_families,
    inapplicable_rule,
    judge_confidence,
    unknown_rule,
)
from weft.units import format_value

# A stream and a bulk transfer have the same choices; only rows of the same test are paired.
SAME_CHOICES = {"bandwidth": ("bandwidth", "transfer")}
STEP_WHY = "the FDR study's effects start at 5 % (Sections 3.2, 3.4, 3.7)"


class Pair(NamedTuple):
    """A row with the plain level of a setting and one with another level, all else equal."""

    plain: Row
    other: Row

    def gain_percent(self, quantity: str) -> float:
        """Of speed: more throughput, or less latency."""
        plain, other = _spread(self.plain, quantity), _spread(self.other, quantity)
        ratio = other.median / plain.median
        return 100 * ((1 / ratio if quantity.endswith("_us") else ratio) - 1)

    def scatter_percent(self, quantity: str) -> float:
        spreads = _spread(self.plain, quantity), _spread(self.other, quantity)
        return 100 * max(spread.relative for spread in spreads)


def _spread(row: Row, quantity: str) -> Spread:
    spread: Spread | None = getattr(row, quantity)
    assert spread is not None
    return spread


def _count_repetitions(pairs: Sequence[Pair], quantity: str) -> int:
    """Repetitions of the row that has the fewest."""
    return min(_spread(row, quantity).n for pair in pairs for row in pair)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """One choice (`contrasts.toml`): where its pairs are, and what is said of either outcome."""

    topic: str
    test: str  # that would measure it
    setting: str  # the field that differs
    plain: tuple[str, Plain]
    other: tuple[str, Plain]
    yes: str  # the choice when it pays
    no: str
    pays: str  # said then
    does_not: str
    sweep: str  # what would measure it
    threshold: float = WORTH_PERCENT

    @property
    def quantity(self) -> str:
        return "p50_us" if self.test == "latency" else "throughput_Bps"

    @property
    def option(self) -> str:
        """The setting's name outside."""
        options = options_of(TESTS[self.test].settings)
        return next(name for name, (field, _) in options.items() if field == self.setting)

    @property
    def why(self) -> str:
        return WORTH if self.threshold == WORTH_PERCENT else STEP_WHY

    def has_level(self, row: Row, level: tuple[str, Plain]) -> bool:
        """Whether a row has the level `plain` or `other`."""
        comparison, operand = level
        return _COMPARISONS[comparison](row.setting, getattr(row.setting, self.setting), operand)


_COMPARISONS: dict[str, Callable[[Setting, Any, Any], bool]] = {
    "is": lambda _, value, operand: value == operand,
    "is not": lambda _, value, operand: value != operand,
    "exceeds": lambda _, value, operand: value > operand,
    "covers": lambda setting, value, operand: value >= getattr(setting, operand),
    "is a multiple of": lambda _, value, operand: value % operand == 0,
    "is no multiple of": lambda _, value, operand: value % operand != 0,
}


@cache
def read_contrasts() -> tuple[Contrast, ...]:
    """The choices of `contrasts.toml`."""
    document = load_toml(str(files("weft.tune.rules").joinpath("contrasts.toml")))
    return tuple(Contrast(**row) for row in document["contrasts"])


def contrast_rules(evidence: Evidence) -> Iterator[Rule]:
    """A rule for each choice, known or not."""
    for contrast in read_contrasts():
        yield _build_rule(contrast, evidence)
    yield one_sided_rule(evidence)


def _build_rule(contrast: Contrast, evidence: Evidence) -> Rule:
    pairs = pair_rows(
        contrast, evidence.rows_of(*SAME_CHOICES.get(contrast.test, (contrast.test,)))
    )
    if not pairs:
        test = TESTS[contrast.test]
        reason = explain_missing_setting(evidence, test.settings, contrast.option)
        if evidence.over in test.refused:
            reason = f"{evidence.over}: {test.refused[evidence.over][0]}"
        if contrast.topic in ("tagged", "inject") and not evidence.over.startswith("ofi"):
            reason = f"{evidence.over} has one kind of send: tagged and inject are libfabric's"
        if reason:
            return inapplicable_rule(contrast.topic, reason)
        lacks = f"no two runs that differ in {contrast.option} alone"
        return unknown_rule(evidence, contrast.topic, lacks, f"{contrast.test} {contrast.sweep}")
    return _judge(contrast, pairs)


def pair_rows(contrast: Contrast, rows: Sequence[Row]) -> list[Pair]:
    """Each family's plain row and the best of its others."""
    having = [row for row in rows if getattr(row, contrast.quantity) is not None]
    best_pairs: list[Pair] = []
    for family in group_families(having, contrast.setting):
        plain = [row for row in family if contrast.has_level(row, contrast.plain)]
        changed = [row for row in family if contrast.has_level(row, contrast.other)]
        if plain and changed:
            pairs = [Pair(plain[0], other) for other in changed]
            best_pairs.append(max(pairs, key=lambda pair: pair.gain_percent(contrast.quantity)))
    return best_pairs


def _judge(contrast: Contrast, pairs: Sequence[Pair]) -> Rule:
    gains = [pair.gain_percent(contrast.quantity) for pair in pairs]
    gain = median(gains)
    pays = gain >= contrast.threshold
    typical = min(pairs, key=lambda pair: abs(pair.gain_percent(contrast.quantity) - gain))
    scatter = median(pair.scatter_percent(contrast.quantity) for pair in pairs)
    runs = _count_repetitions(pairs, contrast.quantity)
    return Rule(
        topic=contrast.topic,
        choice=contrast.yes if pays else contrast.no,
        says=contrast.pays if pays else contrast.does_not,
        because=_because(contrast, typical, gain, len(pairs)),
        number=gain,
        unit="%",
        threshold=contrast.threshold,
        threshold_why=contrast.why,
        confidence=judge_confidence(gains, contrast.threshold, scatter, runs),
    )


def _because(contrast: Contrast, pair: Pair, gain: float, pairs: int) -> str:
    values = [getattr(row.setting, contrast.setting) for row in pair]
    medians = [
        _format_quantity(_spread(row, contrast.quantity).median, contrast.quantity) for row in pair
    ]
    size = format_value(pair.plain.setting.size_bytes, "B")
    summary = f"{contrast.option} {values[1]} instead of {values[0]}: {gain:+.1f} %"
    of_pairs = f", median of {pairs} pairs" if pairs > 1 else ""
    return (
        f"{summary}{of_pairs} ({size}: {medians[0]} to {medians[1]}{_format_cpu(contrast, pair)})"
    )


def _format_cpu(contrast: Contrast, pair: Pair) -> str:
    """What the gain costs in processor time, where the choice is about that."""
    plain, other = pair.plain.cpu_s_per_byte, pair.other.cpu_s_per_byte
    if contrast.setting != "wait" or plain is None or other is None:
        return ""
    return f", for {other.median / plain.median:.1f}x the processor time per byte"


def _format_quantity(value: float, quantity: str) -> str:
    return f"{value:.4g} us" if quantity.endswith("_us") else format_value(8 * value, "b/s")


def one_sided_rule(evidence: Evidence) -> Rule:
    """Read and write against a send of the same size and window."""
    topic = "one-sided"
    sends = {
        row.setting.without("test", "op"): row
        for row in evidence.rows_of("bandwidth")
        if row.setting.op == "send" and row.throughput_Bps
    }
    pairs = {
        op: [
            Pair(sends[key], row)
            for row in evidence.rows_of("rma")
            if row.setting.op == op
            and row.throughput_Bps
            and (key := row.setting.without("test", "op")) in sends
        ]
        for op in ("read", "write")
    }
    if not any(pairs.values()):
        return _explain_no_one_sided(evidence, topic)
    return _judge_one_sided(topic, {op: op_pairs for op, op_pairs in pairs.items() if op_pairs})


def _explain_no_one_sided(evidence: Evidence, topic: str) -> Rule:
    refused = TESTS["rma"].refused.get(evidence.over)
    if refused is not None:
        return inapplicable_rule(topic, f"{evidence.over} {refused[0]}")
    lacks = "no read or write with a send of the same size and depth beside it"
    at = "--size 4K --depth 16"
    runs = f"rma {at} --sweep op=read,write", f"bandwidth {at}"
    return unknown_rule(evidence, topic, lacks, *runs)


def _judge_one_sided(topic: str, pairs: dict[str, list[Pair]]) -> Rule:
    quantity = "throughput_Bps"
    middles = {
        op: median(p.gain_percent(quantity) for p in op_pairs) for op, op_pairs in pairs.items()
    }
    op = max(middles, key=lambda name: middles[name])
    gains_text = ", ".join(f"{name} {middle:+.1f} %" for name, middle in middles.items())
    pays = middles[op] >= WORTH_PERCENT
    # That one operation pays is said of it alone, that none does of all.
    used = pairs[op] if pays else [pair for op_pairs in pairs.values() for pair in op_pairs]
    gains = [pair.gain_percent(quantity) for pair in used]
    scatter = median(pair.scatter_percent(quantity) for pair in used)
    runs = _count_repetitions(used, quantity)
    return Rule(
        topic=topic,
        choice=f"one-sided {op}" if pays else "send",
        says=f"build on one-sided {op}s" if pays else "one-sided operations gain nothing: send",
        because=f"throughput against a send of the same size and depth: {gains_text}",
        number=middles[op],
        unit="%",
        threshold=WORTH_PERCENT,
        threshold_why=WORTH,
        confidence=judge_confidence(gains, WORTH_PERCENT, scatter, runs),
    )


__all__ = ["Rule", "advice_rows", "advice_table", "advise", "fit_latency"]


def advise(
    evidence: Evidence, *, latency: Fit | None = None, throughput: Fit | None = None
) -> tuple[Rule, ...]:
    """All rules, those known first; a latency fit is made of the evidence when none is given."""
    latency_fit = latency or fit_latency(evidence)
    rules = [*curve_rules(evidence, latency_fit, throughput), *contrast_rules(evidence)]
    return tuple(sorted(rules, key=lambda rule: not rule.is_known))


def fit_latency(evidence: Evidence) -> Fit | None:
    """Latency over size of plain round trips; None where there are too few sizes."""
    rows = [row for row in evidence.rows_of("latency") if row.p50_us and row.setting.op == "send"]
    family = max(group_families(rows, "size_bytes"), key=len, default=())
    if len(family) < LEAST_LEVELS:
        return None
    sizes = [row.setting.size_bytes for row in family]
    middles = [row.p50_us.median for row in family if row.p50_us]
    try:
        return fit(
            single_packet_latency(),
            {"size_bytes": sizes},
            middles,
            data=f"{len(sizes)} sizes measured over {evidence.over}",
        )
    except InputError:
        return None


def advice_table(rules: Sequence[Rule]) -> str:
    """For the terminal: the rules that are known, then what could be measured."""
    known_rules = [rule for rule in rules if rule.is_known]
    unknown_rules = [rule for rule in rules if not rule.is_known]
    rows = [
        [r.topic, r.shown(r.number), r.shown(r.threshold), r.confidence, r.says]
        for r in known_rules
    ]
    blocks = [
        format_table(["rule", "number", "threshold", "confidence", "says"], rows, left_columns=5)
    ]
    blocks += ["\n".join(f"{r.topic}: {r.because}; {r.threshold_why}" for r in known_rules)]
    blocks += ["\n".join(f"{r.topic}: {r.says}; {r.because}" for r in unknown_rules)]
    return "\n\n".join(block for block in blocks[not known_rules :] if block)


def advice_rows(rules: Sequence[Rule]) -> list[TableRow]:
    """For a record's table `advice`."""
    return [rule.row() for rule in rules]
