"""What the text of the EFA thesis states: numbers beside models, and its conclusions beside rules.

**Numbers.** Most sentences round a table of appendix C, to which the model was fitted: those rows
are fits. The rest was measured apart from the tables and is predicted: posting lists, inlining, the
threads of D.0.1, verbs against libfabric.

**Conclusions** (section 6.1). The rules of `weft.tune.rules.advice` see published tables as
evidence, and the models fitted to them, and decide by thresholds that are the same for every
fabric. Tables of perftest are rows as they stand; those of efa-bench, which runs over libfabric,
have that as another interface and are compared among themselves; the inline step is the one that
the thesis states in words.
Entry points: `TEXT`, `ADVICE`, `advise_on_tables`. Units: those of each sentence or rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from weft import __version__, records
from weft.model import Fit, FloatArray
from weft.plot.style import INK, MUTED, PALETTE, PUBLISHED, label_log_axis
from weft.records import Provenance, Quantity, Record, Scalar
from weft.studies.calibrated import (
    EFA_PACKET_BYTES,
    LATENCY,
    SATURATION,
    THROUGHPUT,
    bytes_counted,
    efa_latency_fit,
    throughput_fit,
)
from weft.studies.efa.efa_tables import SYSTEM, predict
from weft.studies.observation import Bound, Claim, Observation, Records, Role, Verdict, scalar_in
from weft.studies.points import Point, RunContext, model_point
from weft.studies.published import PublishedTable, find_statement, find_table
from weft.studies.study import EFA_PAPER, Result, Study
from weft.studies.table_curves import name_axes
from weft.tune.rules.advice import advice_rows, advise
from weft.tune.rules.evidence import Evidence, Row, Rule, Setting, Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes


TOLERANCE = 0.20
RECORD = "models of the tables"


@dataclass(frozen=True, slots=True)
class Sentence:
    """A stated number, what it is of, and how the models give it."""

    key: str
    setting: str
    quantity: str
    ours: Callable[[], float]
    reason: str = "The sentence rounds its table of appendix C; the model follows the table."
    bound: Bound = ""

    def row(self, role: Role) -> Observation:
        statement = find_statement("efa", self.key)
        return Observation(
            setting=self.setting,
            quantity=self.quantity,
            unit=statement.unit,
            kind="value",
            published=statement.value,
            place=statement.place,
            reason=self.reason,
            source="model",
            tolerance=TOLERANCE,
            role=role,
            bound=self.bound,
            read=lambda records: scalar_in(records[RECORD], self.key, statement.unit),
        )


def _evaluate(fitted: Fit, **inputs: float) -> float:
    columns = {key: np.array([value], dtype=np.float64) for key, value in inputs.items()}
    return float(fitted.predict(extrapolate=True, **columns)[0])


def _latency_us(name: str, size: float) -> float:
    return float(predict(LATENCY[name].fit(), size_bytes=np.array([size]))[0])


def _latency_ratio(above: str, below: str, size: float) -> float:
    return _latency_us(above, size) / _latency_us(below, size)


def _mean_gap_us(kind: str) -> float:
    """SRD less UD, the mean of the sizes that both have."""
    table = find_table("efa-c6-1")
    sizes = table.column("size_bytes")[np.isfinite(table.column("UD_us"))]
    gaps = [_latency_us(f"efa-srd-{kind}", n) - _latency_us(f"efa-ud-{kind}", n) for n in sizes]
    return float(np.mean(gaps))


def _rate_Mps(
    name: str, size: float, depth: float = 1, qps: float = 1, threads: float = 1
) -> float:
    fitted = THROUGHPUT[name].fit()
    return _evaluate(fitted, size_bytes=size, depth=depth, qps=qps, threads=threads)


def _rc_GBps(size: float, depth: float) -> float:
    return _rate_Mps("efa-rc-perftest", size, depth) * size / 1e3


def _rate_without_thread_Mps(name: str) -> float:
    """Of 64 B posted as a list: the adapter's own limits, without the time of the thread."""
    fitted = THROUGHPUT[name].fit()
    values = {p.name: 0.0 if p.name == "message_us" else p.value for p in fitted.parameters}
    inputs = {"size_bytes": 64.0, "depth": 128.0, "qps": 1.0, "threads": 1.0}
    columns = {key: np.array([value]) for key, value in inputs.items()}
    return float(fitted.form.evaluate(values, columns)[0])


def _inline_gain_ns() -> float:
    """Fetching 64 B less copying them, as the step of C.1 at the inline limit has it."""
    fitted = LATENCY["efa-rc"].fit()
    fetched_us = fitted.value("fetch_us") + 2 * 64 * 8e-3 / fitted.value("pcie_gbps")
    return 1e3 * fetched_us - 64 * fitted.value("copy_ns_per_byte")


def _threads_peak_MBps() -> float:
    return _rate_Mps("efa-srd-libfabric", 8192, 10, 1, 8) * bytes_counted("SRD", 8192)


def _interface_gain_percent() -> float:
    verbs, libfabric = (
        _rate_Mps(f"efa-srd-{program}", 8192, 256) for program in ("perftest", "libfabric")
    )
    return 100 * (verbs / libfabric - 1)


def _segmentation_us() -> float:
    whole, split = (_latency_us("efa-segmented", EFA_PACKET_BYTES + more) for more in (0, 1))
    return split - whole


def _load_us(end: Callable[[FloatArray], float]) -> float:
    """The probe's median at one end of the table's loads."""
    load = end(find_table("efa-c8-1").column("load_MBps"))
    return _evaluate(SATURATION["efa-p50"].fit(), load_MBps=load)


RC, SRD = "efa-rc-perftest", "efa-srd-perftest"
RATE, GAP, ADDED = "message rate", "latency of SRD over RC", "SRD less UD, mean of sizes"
PREDICTED = (
    Sentence(
        "post-list-rc", "RC, 64 B, 16 posted at once", RATE, partial(_rate_without_thread_Mps, RC)
    ),
    Sentence(
        "post-list-srd",
        "SRD, 64 B, 16 posted at once",
        RATE,
        partial(_rate_without_thread_Mps, SRD),
    ),
    Sentence(
        "inline-gain",
        "RC, 64 B",
        "latency saved by inlining",
        _inline_gain_ns,
        "The model has the step of C.1 at the inline limit, which is half as high.",
    ),
    Sentence(
        "threads-peak",
        "SRD, 8 threads of 10 outstanding, 8192 B",
        "bandwidth",
        _threads_peak_MBps,
        "C.5 has 64 and 4096 B alone; the model extrapolates more of the threads' cost to each "
        "other than there is at 8192 B.",
    ),
    Sentence(
        "interface-gain",
        "SRD, 8192 B, 256 outstanding",
        "message rate of verbs above libfabric's",
        _interface_gain_percent,
        "Each model extrapolates: C.5 has no message of 8192 B, C.3 was measured apart.",
    ),
)
ROUNDED = (
    Sentence("latency-gap-small", "64 B", GAP, partial(_latency_ratio, "efa-srd", "efa-rc", 64)),
    Sentence("latency-gap-8k", "8192 B", GAP, partial(_latency_ratio, "efa-srd", "efa-rc", 8192)),
    Sentence(
        "tcp-over-srd",
        "512 B",
        "latency of TCP over SRD",
        partial(_latency_ratio, "efa-sockets", "efa-srd", 512),
    ),
    Sentence("srd-above-ud-average", ADDED, "latency, average", partial(_mean_gap_us, "average")),
    Sentence("srd-above-ud-least", ADDED, "latency, least", partial(_mean_gap_us, "minimum")),
    Sentence("sync-8k-rc", "RC, 8192 B, one at a time", "bandwidth", partial(_rc_GBps, 8192, 1)),
    Sentence(
        "sync-8k-gap",
        "8192 B, one at a time",
        "bandwidth of RC over SRD",
        lambda: _rate_Mps(RC, 8192) / _rate_Mps(SRD, 8192),
    ),
    Sentence("async-4k-rc", "RC, 4096 B, 64 outstanding", "bandwidth", partial(_rc_GBps, 4096, 64)),
    Sentence(
        "async-4k-srd-message-bound",
        "SRD, 4096 B, 256 outstanding",
        RATE,
        partial(_rate_Mps, SRD, 4096, 256),
    ),
    Sentence("rate-small-rc", "RC, 16 B, 256 outstanding", RATE, partial(_rate_Mps, RC, 16, 256)),
    Sentence(
        "rate-small-srd", "SRD, 16 B, 256 outstanding", RATE, partial(_rate_Mps, SRD, 16, 256)
    ),
    Sentence(
        "rate-4-qps-srd", "SRD, 16 B, 4 queue pairs", RATE, partial(_rate_Mps, SRD, 16, 128, 4)
    ),
    Sentence(
        "rate-threads-srd",
        "SRD, 64 B, 32 threads",
        RATE,
        partial(_rate_Mps, "efa-srd-libfabric", 64, 128, 1, 32),
    ),
    Sentence(
        "rate-threads-rc",
        "RC, 64 B, 32 threads",
        RATE,
        partial(_rate_Mps, "efa-rc-libfabric", 64, 128, 1, 32),
        bound=">",
    ),
    Sentence(
        "segmentation-cost",
        "SRD through libfabric, past one packet",
        "latency added",
        _segmentation_us,
    ),
    Sentence(
        "saturation-unloaded", "SRD, 4096 B, least load", "latency", partial(_load_us, np.min)
    ),
    Sentence("saturation-peak", "SRD, 4096 B, greatest load", "latency", partial(_load_us, np.max)),
)


def _quantities() -> Mapping[str, Quantity]:
    sentences = (*PREDICTED, *ROUNDED)
    return {s.key: Scalar(s.ours(), find_statement("efa", s.key).unit) for s in sentences}


def _draw_ratios(ax: Axes, result: Result) -> None:
    """Ours over published, predictions in another colour than fits."""
    rows = [(row, row.ratio) for row in result.rows if row.ratio is not None]
    for role, colour in (("prediction", PALETTE[0]), ("fit", MUTED)):
        points = [(x, y) for y, (row, x) in enumerate(rows) if row.observation.role == role]
        ax.plot([x for x, _ in points], [y for _, y in points], "o", color=colour, label=role)
    ax.axvline(1, color=PUBLISHED)
    labels = [f"{row.observation.quantity}; {row.observation.setting}" for row, _ in rows]
    ax.set_yticks(range(len(rows)), labels, fontsize=6)
    ax.invert_yaxis()
    name_axes(ax, "ours over the published value", "what the text states")


TEXT = Study(
    name="efa-text",
    title="Numbers that the text states",
    paper=EFA_PAPER,
    place="4, 6.1, D.0.1",
    system=SYSTEM,
    points=(model_point(RECORD, {}, _quantities, SYSTEM),),
    observations=(*(s.row("prediction") for s in PREDICTED), *(s.row("fit") for s in ROUNDED)),
    panels=(_draw_ratios,),
    notes=(
        "A list of 16 leaves the thread out: the rates are those of the adapter's stages alone. "
        "D.0.1 states no message size; 8192 B is that of the commands beside it.",
        "Inlining over EFA (500 ns) is not modelled: C.1 shows no step at its limit of 32 B.",
    ),
)


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
