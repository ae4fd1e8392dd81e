"""Design rules like those of the EFA thesis (Section 6.1), from fits and evidence.

Each rule has the number that decided and a threshold with its reason; a rule without evidence names
the command that would measure it. The same rules apply to measurements of a machine and to
published tables in the form of evidence.

`curve_rules` read a curve: latency over size, throughput over size, depth, connections, load.
"Enough" is the least level with 90 % of the best: the last tenth costs as much again as all before
it.

`contrast_rules` compare two levels of one setting: inline or not, spin or block, aligned or not.
Rows that differ in that setting alone are paired; the number is the median gain of the other level
over the plain one, in per cent of speed (throughput, or the inverse of latency).
Entry points: `advise`, `advice_table`. Units: %, B, us, messages, B/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from weft.errors import InputError
from weft.measure.settings.options import options_of
from weft.measure.tests import TESTS
from weft.model.fit import Fit, fit
from weft.model.latency import single_packet_latency
from weft.records import Plain
from weft.records import Row as TableRow
from weft.records.record_text import format_table
from weft.toml_table import load_toml
from weft.tune.rules.evidence import (
    FIRM,
    SINGLE,
    WEAK,
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

# ---- Curves -----------------------------------------------------------------------------------

ENOUGH = 0.9
PAYLOAD_BYTES = 512  # a record, a key and its value: what piggybacking would add
PAGE_BYTES = 4096
LEAST_LEVELS = 3


def curve_rules(evidence: Evidence, latency: Fit | None, throughput: Fit | None) -> Iterator[Rule]:
    """A rule for each curve, known or not; fits where there are any."""
    yield batch_rule(evidence, latency)
    yield size_rule(evidence)
    yield bound_rule(evidence)
    yield outstanding_rule(evidence)
    yield parallel_rule(evidence, "qps", "connection", _format_engines(throughput))
    yield parallel_rule(evidence, "threads", "thread")
    yield load_rule(evidence)


def batch_rule(evidence: Evidence, latency: Fit | None) -> Rule:
    """What 512 B more cost: next to nothing where the base latency is long."""
    topic = "batching"
    if latency is None:
        lacks = "latency at three sizes or more"
        return unknown_rule(evidence, topic, lacks, "latency --sweep size=16..8K*2 --repeat 3")
    sizes = next(r for r in latency.ranges if r.name == "size_bytes")
    small, large = sizes.low, min(float(PAYLOAD_BYTES), sizes.high)
    rest = {r.name: r.low for r in latency.ranges if r is not sizes}
    least, more = (
        float(latency.predict(extrapolate=False, size_bytes=s, **rest)) for s in (small, large)
    )
    growth = 100 * (more / least - 1)
    pays = growth < WORTH_PERCENT
    return Rule(
        topic=topic,
        choice="batch" if pays else "small messages",
        says="batch or piggyback small messages: payload is nearly free"
        if pays
        else "keep messages small: every byte counts",
        because=f"{large:.0f} B take {more:.4g} us, {small:.0f} B {least:.4g} us; "
        f"model off by {100 * latency.held_out.median:.1f} % at sizes held out",
        number=growth,
        unit="%",
        threshold=WORTH_PERCENT,
        threshold_why="shrinking messages that grow latency by less than a tenth gains less",
        confidence=FIRM if abs(growth - WORTH_PERCENT) > 100 * latency.held_out.median else WEAK,
    )


def size_rule(evidence: Evidence) -> Rule:
    """Where half of the peak is reached, and from which measured size on nearly all of it."""
    topic = "message size"
    rows = [row for row in _single_streams(evidence) if row.throughput_Bps]
    candidates = [f for f in group_families(rows, "size_bytes") if len(f) >= LEAST_LEVELS]
    family = max(
        candidates, key=lambda f: max(_read_median(row, "throughput_Bps") for row in f), default=()
    )
    if not family:
        lacks = "throughput at three sizes or more"
        sweep = "--depth 64 --sweep size=64,512,4K,16K,LARGE --repeat 3"
        return unknown_rule(evidence, topic, lacks, f"bandwidth {sweep}")
    sizes, speeds = _curve(family, "size_bytes", "throughput_Bps")
    peak = max(speeds)
    half = _find_log_crossing(sizes, speeds, peak / 2)
    enough = _find_enough(sizes, speeds)
    needs_size = half > PAYLOAD_BYTES
    return Rule(
        topic=topic,
        choice=f"{enough:.0f} B" if needs_size else "any size",
        says=f"send {format_value(enough, 'B')} or more at once where throughput counts"
        if needs_size
        else "small messages are carried at near the full rate",
        because=f"half of {_format_rate(peak)} at {format_value(round(half), 'B')}, 90 % at "
        f"{format_value(enough, 'B')} (depth {family[0].setting.depth})",
        number=half,
        unit="B",
        threshold=float(PAYLOAD_BYTES),
        threshold_why="a fabric that is half full with records of 512 B needs no larger ones",
        confidence=_judge_confidence(family, "throughput_Bps"),
    )


def bound_rule(evidence: Evidence) -> Rule:
    """Peak throughput over peak message rate: the size at which the bound changes."""
    topic = "bound"
    rows = [row for row in _single_streams(evidence) if row.throughput_Bps and row.messages_per_s]
    sizes = {row.setting.size_bytes for row in rows}
    if len(sizes) < 2 or max(sizes) < 8 * min(sizes):
        lacks = "throughput of small and of large messages"
        return unknown_rule(evidence, topic, lacks, "bandwidth --depth 64 --sweep size=64,LARGE")
    fastest = max(rows, key=lambda row: _read_median(row, "messages_per_s"))
    widest = max(rows, key=lambda row: _read_median(row, "throughput_Bps"))
    messages, peak = _read_median(fastest, "messages_per_s"), _read_median(widest, "throughput_Bps")
    cross = peak / messages
    by_number = cross > PAGE_BYTES
    return Rule(
        topic=topic,
        choice="message rate" if by_number else "line rate",
        says=f"messages below {format_value(round(cross), 'B')} are bound by their number"
        + (": even pages are" if by_number else ", pages by the line"),
        because=f"one thread's most: {messages / 1e6:.3g} M messages/s and {_format_rate(peak)}",
        number=cross,
        unit="B",
        threshold=float(PAGE_BYTES),
        threshold_why="a page of 4 KiB is what storage and databases send",
        confidence=_judge_confidence([fastest, widest], "throughput_Bps"),
    )


def outstanding_rule(evidence: Evidence) -> Rule:
    """The window that reaches nearly the peak, and the bandwidth-delay product beside it."""
    topic = "outstanding"
    families_of = _families_by_size(evidence, "depth")
    if not families_of:
        sweep = "--size 8K --sweep depth=1..256*2 --repeat 3"
        lacks = "throughput at three depths or more"
        return unknown_rule(evidence, topic, lacks, f"bandwidth {sweep}")
    enough = {
        size: _find_enough(*_curve(f, "depth", "throughput_Bps")) for size, f in families_of.items()
    }
    levels = sorted({row.setting.depth for family in families_of.values() for row in family})
    typical = 2 ** fmean(math.log2(level) for level in enough.values())
    depth = next(level for level in levels if level >= typical * 0.999)
    product, product_text = _find_delay_product(families_of)
    more = " or more" if depth == levels[-1] else ""
    return Rule(
        topic=topic,
        choice=f"{depth}",
        says=f"keep {depth}{more} messages outstanding",
        because=f"{_format_levels(enough)} for 90 % of the peak; {product_text}",
        number=float(depth),
        unit="messages",
        threshold=product,
        threshold_why="the bandwidth-delay product: with fewer the line waits for completions",
        confidence=_judge_confidence(
            [row for f in families_of.values() for row in f], "throughput_Bps"
        ),
    )


def parallel_rule(evidence: Evidence, setting: str, noun: str, engines: str = "") -> Rule:
    """How many connections one thread needs, or how many threads pay, size by size."""
    topic = f"{noun}s"
    families_of = _families_by_size(evidence, setting)
    if not families_of:
        sweep = f"--depth 64 --sweep {setting}=1..8*2 size=64,8K --repeat 3"
        lacks = f"throughput with one, two and more {topic}"
        return unknown_rule(evidence, topic, lacks, f"rate {sweep}")
    enough = {
        size: _find_enough(*_curve(f, setting, "throughput_Bps")) for size, f in families_of.items()
    }
    last = {size: getattr(family[-1].setting, setting) for size, family in families_of.items()}
    return Rule(
        topic=topic,
        choice=f"{max(enough.values())}",
        says=_format_how_many(enough, last, noun),
        because=f"{_format_levels(enough)} for 90 % of the best{engines}",
        number=max(_best_gain(family) for family in families_of.values()),
        unit="%",
        threshold=100 * (1 / ENOUGH - 1),
        threshold_why="one is enough where it reaches 90 % of the best",
        confidence=_judge_confidence(
            [row for f in families_of.values() for row in f], "throughput_Bps"
        ),
    )


def _format_how_many(enough: Mapping[int, int], last: Mapping[int, int], noun: str) -> str:
    """The most that any size needs, and from which size on one is enough."""
    most = max(enough.values())
    if most == 1:
        return f"one {noun} is enough"
    largest = max(size for size, n in enough.items() if n > 1)
    above = [size for size in enough if size > largest]
    more = " or more" if any(n == most == last[size] for size, n in enough.items()) else ""
    below = f" below {format_value(min(above), 'B')}; one is enough from there on" if above else ""
    return f"use {most}{more} {noun}s{below}"


def _best_gain(family: Sequence[Row]) -> float:
    speeds = [_read_median(row, "throughput_Bps") for row in family]
    return 100 * (max(speeds) / speeds[0] - 1)


def _format_engines(throughput: Fit | None) -> str:
    """What one connection is bound by, where a model of the adapter says so."""
    values = {} if throughput is None else throughput.values
    if not values.get("engine_us"):
        return ""
    busy = values["engine_us"]
    return f"; in the model an engine is busy {busy:.2g} us with each message ({1 / busy:.2g} M/s)"


def load_rule(evidence: Evidence) -> Rule:
    """The load at which the tail doubles, between the steps measured."""
    topic = "load"
    family = [
        row for row in evidence.rows_of("saturation.step") if row.p99_us and row.throughput_Bps
    ]
    groups = sorted(group_families(family, "load"), key=len)
    if not groups or len(groups[-1]) < LEAST_LEVELS:
        lacks = "latency beside a load in three steps or more"
        return unknown_rule(evidence, topic, lacks, "saturation --steps 8")
    steps = sorted(groups[-1], key=lambda row: _read_median(row, "throughput_Bps"))
    loads = [_read_median(row, "throughput_Bps") for row in steps]
    tails, middles = ([_read_median(row, q) for row in steps] for q in ("p99_us", "p50_us"))
    peak = max(loads)
    doubled = _find_linear_crossing(loads, tails, 2 * tails[0])
    share = 100 * doubled / peak
    worst = max(middles) / middles[0]
    return Rule(
        topic=topic,
        choice=f"{share:.0f} %" if doubled < peak else "any load",
        says=f"keep below {_format_rate(doubled)}, {share:.0f} % of the peak, where the tail counts"
        if doubled < peak
        else "any load: the tail never doubles",
        because=f"p99 is {tails[0]:.4g} us idle and twice that at {_format_rate(doubled)}; "
        f"p50 grows {worst:.2g}-fold at most",
        number=share,
        unit="% of the peak",
        threshold=100.0,
        threshold_why="twice the idle latency: waiting as long as being served",
        confidence=_judge_confidence(steps, "p99_us"),
    )


def _single_streams(evidence: Evidence) -> list[Row]:
    """Plain streams of one thread and one connection."""
    return [
        row
        for row in evidence.rows_of("bandwidth")
        if row.setting.qps == row.setting.threads == 1 and row.setting.op == "send"
    ]


def _families_by_size(evidence: Evidence, setting: str) -> dict[int, tuple[Row, ...]]:
    """For each size the family over one setting with the most levels, and then the fastest."""
    having = [row for row in evidence.rows_of("bandwidth") if row.throughput_Bps]
    if setting == "depth":
        having = [row for row in having if row.setting.qps == row.setting.threads == 1]
    best: dict[int, tuple[Row, ...]] = {}
    for family in group_families(having, setting):
        size = family[0].setting.size_bytes
        if len(family) >= LEAST_LEVELS and _rank_family(family) > _rank_family(best.get(size, ())):
            best[size] = family
    return dict(sorted(best.items()))


def _rank_family(family: Sequence[Row]) -> tuple[int, float]:
    return len(family), max((_read_median(row, "throughput_Bps") for row in family), default=0.0)


def _curve(family: Sequence[Row], setting: str, quantity: str) -> tuple[list[float], list[float]]:
    return (
        [float(getattr(row.setting, setting)) for row in family],
        [_read_median(row, quantity) for row in family],
    )


def _find_enough(levels: Sequence[float], speeds: Sequence[float]) -> int:
    best = max(speeds)
    sufficient = (level for level, s in zip(levels, speeds, strict=True) if s >= ENOUGH * best)
    return round(next(sufficient))


def _find_log_crossing(x: Sequence[float], y: Sequence[float], target: float) -> float:
    """Where y first reaches `target`, between points on log-log axes; the first point if there."""
    if y[0] >= target:
        return x[0]
    place = next(n for n, value in enumerate(y) if value >= target)
    at = np.log([x[place - 1], x[place], y[place - 1], y[place]])
    share = (math.log(target) - at[2]) / (at[3] - at[2])
    return float(np.exp(at[0] + share * (at[1] - at[0])))


def _find_linear_crossing(x: Sequence[float], y: Sequence[float], target: float) -> float:
    """Linear, as a load may be 0; the last x where y stays below."""
    for place in range(1, len(x)):
        if y[place] >= target:
            share = (target - y[place - 1]) / (y[place] - y[place - 1])
            return x[place - 1] + share * (x[place] - x[place - 1])
    return x[-1]


def _find_delay_product(families_of: dict[int, tuple[Row, ...]]) -> tuple[float, str]:
    """Peak over synchronous throughput: how many must be on their way at least."""
    products = [
        max(_read_median(row, "throughput_Bps") for row in family)
        / _read_median(family[0], "throughput_Bps")
        * family[0].setting.depth
        for family in families_of.values()
    ]
    product = median(products)
    first = {family[0].setting.depth for family in families_of.values()}
    text = f"bandwidth x delay is {product:.0f} messages (the peak over {min(first)} at a time)"
    return product, text


def _format_levels(enough: dict[int, int]) -> str:
    return ", ".join(f"{n} at {format_value(size, 'B')}" for size, n in enough.items())


def _read_median(row: Row, quantity: str) -> float:
    spread: Spread | None = getattr(row, quantity)
    return 0.0 if spread is None else spread.median


def _format_rate(Bps: float) -> str:
    return format_value(8 * Bps, "b/s")


def _judge_confidence(rows: Sequence[Row], quantity: str) -> str:
    """Firm where repetitions scatter less than the tenth that decides."""
    spreads = [s for row in rows if (s := getattr(row, quantity)) is not None]
    if min(spread.n for spread in spreads) == 1:
        return SINGLE
    return FIRM if median(100 * s.relative for s in spreads) < WORTH_PERCENT else WEAK


# ---- Contrasts --------------------------------------------------------------------------------

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
