"""Section 6.1 of the EFA thesis: its conclusions beside those of our rules on published tables.

The rules of `weft.tune.rules.advice` see published tables as evidence, and the models fitted to
them, and decide by thresholds that are the same for every fabric. Tables of perftest are rows as
they stand; those of efa-bench, which runs over libfabric, have that as another interface and are
compared among themselves; the inline step is the one that the thesis states in words.
Entry points: `ADVICE`, `advise_on_tables`. Units: as each rule has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from weft import __version__, records
from weft.plot.style import INK, PALETTE, label_log_axis
from weft.records import Provenance, Record, Scalar
from weft.studies.calibrated import efa_latency_fit, throughput_fit
from weft.studies.observation import Claim, Observation, Records, Verdict
from weft.studies.points import Point, RunContext
from weft.studies.published import PublishedTable, find_statement, find_table
from weft.studies.study import EFA_PAPER, Result, Study
from weft.studies.table_curves import name_axes
from weft.tune.rules.advice import advice_rows, advise
from weft.tune.rules.evidence import Evidence, Row, Rule, Setting, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Fabric = Literal["RC", "SRD"]  # of the EFA thesis: 4X EDR InfiniBand, EFA
OVER = "verbs"
LIBFABRIC = (("interface", "libfabric"),)
MIB, MB = 2**20, 10**6
SATURATION_THREADS, SATURATION_BYTES = 8, 4096


def advise_on_tables(fabric: Fabric) -> tuple[Rule, ...]:
    """The rules for one of the thesis's fabrics."""
    name = f"efa-{fabric.lower()}"
    return advise(
        build_evidence(fabric),
        latency=efa_latency_fit(name),
        throughput=throughput_fit(f"{name}-perftest"),
    )


def build_evidence(fabric: Fabric) -> Evidence:
    """The thesis's measurements of a fabric."""
    rows = [
        *_latencies(fabric),
        *_depths(fabric),
        *_queue_pairs(fabric),
        *_post_lists(fabric),
        *_threads(fabric),
    ]
    if fabric == "SRD":
        rows += [*_calls(), *_one_sided(), *_loads()]
    return Evidence(over=OVER, endpoint=fabric.lower(), peer="PEER", rows=tuple(rows))


def _row(fabric: Fabric, place: str, observed: dict[str, float], **setting: Any) -> Row:
    spreads: dict[str, Any] = {name: Spread((float(value),)) for name, value in observed.items()}
    at = Setting(over=OVER, endpoint=fabric.lower(), **setting)
    return Row(setting=at, origins=(f"EFA thesis, {place}",), **spreads)


def _speed(size_bytes: int, bytes_per_s: float) -> dict[str, float]:
    return {"throughput_Bps": bytes_per_s, "messages_per_s": bytes_per_s / size_bytes}


def _latencies(fabric: Fabric) -> Iterator[Row]:
    """C.1, inline up to the adapter's limit; without inlining, the stated step more."""
    table = find_table("efa-c1")
    limit = int(find_statement("efa", f"inline-limit-{fabric.lower()}").value)
    step_us = find_statement("efa", "inline-gain").value / 1e3
    for size, us in _columns(table, "size_bytes", f"{fabric}_us"):
        at = {"test": "latency", "size_bytes": int(size)}
        yield _row(fabric, "C.1", {"p50_us": us}, **at, inline_bytes=limit)
        if size <= limit:
            yield _row(fabric, "C.1, 4.2.2", {"p50_us": us + step_us}, **at)


def _columns(table: PublishedTable, *names: str) -> Iterator[tuple[float, ...]]:
    """Some columns of a table, row by row."""
    return zip(*(table.column(name) for name in names), strict=True)


def _depths(fabric: Fabric) -> Iterator[Row]:
    table = find_table("efa-c3-1" if fabric == "RC" else "efa-c3-3")
    for size in (16, 512, 4096, 8192):
        for depth, speed in _columns(table, "depth", f"{size}B_MiBps"):
            at = {"test": "bandwidth", "size_bytes": size, "depth": int(depth)}
            yield _row(fabric, table.place, _speed(size, speed * MIB), **at)


def _queue_pairs(fabric: Fabric) -> Iterator[Row]:
    """C.4; perftest's own depth, which is not stated, is 128: another than that of C.3."""
    table = find_table("efa-c4-1" if fabric == "RC" else "efa-c4-2")
    for size in (16, 512, 4096, 8192):
        for qps, rate in _columns(table, "queue_pairs", f"{size}B_Mmsgps"):
            at = {"test": "bandwidth", "size_bytes": size, "depth": 128, "qps": int(qps)}
            observed = _speed(size, rate * 1e6 * size)
            yield _row(fabric, table.place, observed, **at, other=(("table", table.place),))


def _post_lists(fabric: Fabric) -> Iterator[Row]:
    """4.5: 16 posted at once, at 64 B; one by one is what 16 B and 512 B reach."""
    single = find_statement("efa", f"rate-small-{fabric.lower()}").value
    listed = find_statement("efa", f"post-list-{fabric.lower()}").value
    for post_list, rate in ((1, single), (int(find_statement("efa", "post-list").value), listed)):
        yield _row(
            fabric,
            "4.5",
            _speed(64, rate * 1e6 * 64),
            test="bandwidth",
            size_bytes=64,
            depth=128,
            post_list=post_list,
            other=(("stated", "4.5"),),
        )


def _threads(fabric: Fabric) -> Iterator[Row]:
    table = find_table("efa-c5-2")
    depth = int(find_statement("efa", "depth-per-thread").value)
    for size in (64, 4096):
        for threads, rate in _columns(table, "threads", f"{fabric}_{size}B_Mmsgps"):
            at = {"test": "bandwidth", "size_bytes": size, "depth": depth, "threads": int(threads)}
            yield _row(fabric, table.place, _speed(size, rate * 1e6 * size), **at, other=LIBFABRIC)


def _calls() -> Iterator[Row]:
    table = find_table("efa-c7")
    for op, column in (("send", "send_us"), ("tagged", "tsend_us"), ("inject", "inject_us")):
        for size, us in _columns(table, "size_bytes", column):
            at = {"test": "latency", "op": op, "size_bytes": int(size)}
            yield _row("SRD", table.place, {"p50_us": us}, **at, other=LIBFABRIC)


def _one_sided() -> Iterator[Row]:
    table = find_table("efa-c10-1")
    for test, op in (("bandwidth", "send"), ("rma", "write"), ("rma", "read")):
        for size, speed in _columns(table, "size_bytes", f"{op.upper()}_MBps"):
            at = {"test": test, "op": op, "size_bytes": int(size)}
            yield _row("SRD", table.place, _speed(int(size), speed * MB), **at, other=LIBFABRIC)


def _loads() -> Iterator[Row]:
    middle, tail = find_table("efa-c8-1"), find_table("efa-c8-2")
    loads = middle.column("load_MBps")
    at = {"test": "saturation.step", "size_bytes": SATURATION_BYTES, "threads": SATURATION_THREADS}
    for load, p50, p99 in zip(loads, middle.column("p50_us"), tail.column("p99_us"), strict=True):
        observed = {"throughput_Bps": load * MB, "p50_us": p50, "p99_us": p99}
        share = float(load / np.max(loads))
        yield _row("SRD", "C.8", observed, **at, load=share, other=LIBFABRIC)


# ---- The study ---------------------------------------------------------------------------------

FABRICS: dict[Fabric, str] = {"SRD": "SRD over EFA", "RC": "RC over EDR InfiniBand"}
RULES = "advice"
DEPTH = "messages outstanding"
LEAST_RATIO = 0.01  # a gain of nothing still has a bar


@cache
def _rules(fabric: Fabric) -> dict[str, Rule]:
    return {rule.topic: rule for rule in advise_on_tables(fabric)}


def _point(fabric: Fabric) -> Point:
    def run(_: RunContext) -> Record:
        rules = _rules(fabric)
        return Record(
            kind="model",
            name="advice",
            quantities={
                rule.topic: Scalar(rule.number, rule.unit)
                for rule in rules.values()
                if rule.number is not None
            },
            tables={RULES: advice_rows(list(rules.values()))},
            provenance=Provenance(weft_version=__version__, parameters=FABRICS[fabric]),
        )

    return Point(
        setting=FABRICS[fabric],
        settings={"fabric": fabric},
        source="model",
        system=FABRICS[fabric],
        run=run,
    )


def _number(fabric: Fabric, topic: str, records: Records) -> float:
    number = records[FABRICS[fabric]].quantities[topic]
    assert isinstance(number, Scalar)
    return float(number.value)


def _choice(fabric: Fabric, topic: str, records: Records) -> float:
    """The number in a rule's choice, such as the connections to use."""
    return float(_rule_row(fabric, topic, records)["choice"].split()[0])


def _rule_row(fabric: Fabric, topic: str, records: Records) -> dict[str, str]:
    rows = records[FABRICS[fabric]].tables[RULES]
    (row,) = (row for row in rows if row["topic"] == topic)
    return {name: str(value) for name, value in row.items()}


def _observation(
    fabric: Fabric, quantity: str, unit: str, read: Callable[[Records], float], key: str
) -> Observation:
    statement = find_statement("efa", key)
    return Observation(
        setting=FABRICS[fabric],
        quantity=quantity,
        unit=unit,
        kind="value",
        read=read,
        published=statement.value,
        place=statement.place,
        source="model",
        system=FABRICS[fabric],
        tolerance=0.0,
        role="check",  # the tables that the rules see are those that the thesis concludes from
    )


def _claim(fabric: Fabric, topic: str, choice: str, statement: str, place: str) -> Claim:
    def judge(records: Records) -> Verdict:
        row = _rule_row(fabric, topic, records)
        return Verdict(holds=row["choice"] == choice, evidence=f"{row['says']}: {row['because']}")

    return Claim(
        statement=f"{FABRICS[fabric]}: {statement}",
        place=place,
        source="model",
        system=FABRICS[fabric],
        judge=judge,
    )


def _panel(ax: Axes, result: Result) -> None:
    """Numbers over their thresholds, side by side; right of the line is beyond the threshold."""
    topics = [topic for topic, rule in _rules("SRD").items() if rule.is_known]
    colours = dict(zip(FABRICS.values(), (PALETTE[0], PALETTE[4]), strict=True))
    for place, (fabric, record) in enumerate(result.records.items()):
        rows = {str(row["topic"]): row for row in record.tables[RULES] if row["number"] is not None}
        ratios = [(n, _ratio(rows[topic])) for n, topic in enumerate(topics) if topic in rows]
        ax.barh(
            [n + 0.38 * place for n, _ in ratios],
            [ratio for _, ratio in ratios],
            height=0.36,
            color=colours[fabric],
            label=fabric,
        )
    ax.axvline(1, color=INK, linewidth=1)
    ax.set_xscale("log")
    label_log_axis(ax.xaxis)
    ax.set_yticks([n + 0.19 for n in range(len(topics))], topics)
    ax.invert_yaxis()
    name_axes(ax, "the rule's number over its threshold", "rule")


def _ratio(row: records.Row) -> float:
    number, threshold = row["number"], row["threshold"]
    assert isinstance(number, float)
    assert isinstance(threshold, float)
    return max(abs(number) / threshold, LEAST_RATIO)


ADVICE = Study(
    name="efa-advice",
    title="Design rules drawn from the thesis's tables",
    paper=EFA_PAPER,
    place="6.1",
    system="rules of weft tune on the tables of the EFA thesis",
    points=tuple(_point(fabric) for fabric in FABRICS),
    observations=(
        _observation("SRD", DEPTH, "", partial(_number, "SRD", "outstanding"), "saturating-depth"),
        _observation(
            "RC", DEPTH, "", partial(_number, "RC", "outstanding"), "async-4k-rc-full-depth"
        ),
        _observation(
            "SRD",
            "message size that needs no tricks",
            "B",
            partial(_choice, "SRD", "message size"),
            "no-tricks-size",
        ),
    ),
    claims=(
        _claim("SRD", "batching", "batch", "batch or piggyback small messages", "6.1, Latency"),
        _claim("RC", "batching", "small messages", "small messages pay", "6.1, Latency"),
        _claim("SRD", "inline", "no inline", "inlining is not worth it", "4.2.2, 6.1"),
        _claim("RC", "inline", "inline", "inlining is a substantial gain", "4.2.2"),
        _claim(
            "SRD", "bound", "message rate", "below 8 kB the number of messages is the limit", "4.4"
        ),
        _claim("SRD", "connections", "4", "several connections below 8 kB, up to 4", "4.5, 6.1"),
        _claim("RC", "connections", "1", "one connection is enough", "4.5"),
        _claim("SRD", "one-sided", "send", "one-sided operations bring nothing", "4.10, 6.1"),
        _claim("SRD", "tagged", "tags are free", "tags cost nothing", "4.9"),
        _claim("SRD", "inject", "no inject", "inject gains nothing", "4.9"),
        _claim("RC", "post list", "post lists", "the processor's posting is the limit", "4.5"),
        _claim("SRD", "post list", "post singly", "the adapter is the limit, not posting", "4.5"),
    ),
    panels=(_panel,),
    notes=(
        "The thresholds (10 % of latency or throughput is worth a design, 90 % of the peak is "
        "enough, depths averaged over sizes) are ours, chosen with these tables at hand: that the "
        "rules agree shows that one set of thresholds tells both fabrics apart, and predicts "
        "nothing. The thesis states its conclusions without one.",
    ),
)
