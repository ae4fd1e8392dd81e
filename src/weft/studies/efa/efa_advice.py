"""Section 6.1 of the EFA thesis: its conclusions beside those of our rules on its own tables.

The rules of `weft.tune.rules.advice` see the thesis's tables and the models fitted to them, and
decide by thresholds that are the same for every fabric. Entry point: `ADVICE`. Units: as each rule
has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING

from weft import __version__
from weft.plot.style import INK, PALETTE, label_log_axis, legend
from weft.records import Provenance, Record, Row, Scalar
from weft.studies.claim import Claim, Verdict
from weft.studies.efa.published_evidence import Fabric, published_advice
from weft.studies.observation import Observation, Records
from weft.studies.paper import EFA
from weft.studies.published import stated
from weft.studies.site import Point, Site
from weft.studies.study import Result, Study
from weft.tune.rules.advice import advice_rows
from weft.tune.rules.rule import Rule

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FABRICS: dict[Fabric, str] = {"SRD": "SRD over EFA", "RC": "RC over EDR InfiniBand"}
RULES = "advice"
LEAST_RATIO = 0.01  # a gain of nothing still has a bar


@cache
def _rules(fabric: Fabric) -> dict[str, Rule]:
    return {rule.topic: rule for rule in published_advice(fabric)}


def _point(fabric: Fabric) -> Point:
    def run(_: Site) -> Record:
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
    found = records[FABRICS[fabric]].quantities[topic]
    assert isinstance(found, Scalar)
    return float(found.value)


def _choice(fabric: Fabric, topic: str, records: Records) -> float:
    """The number in a rule's choice, such as the connections to use."""
    return float(_row(fabric, topic, records)["choice"].split()[0])


def _row(fabric: Fabric, topic: str, records: Records) -> dict[str, str]:
    rows = records[FABRICS[fabric]].tables[RULES]
    (row,) = (row for row in rows if row["topic"] == topic)
    return {name: str(value) for name, value in row.items()}


def _observation(
    fabric: Fabric, quantity: str, unit: str, read: Callable[[Records], float], key: str
) -> Observation:
    said = stated("efa", key)
    return Observation(
        setting=FABRICS[fabric],
        quantity=quantity,
        unit=unit,
        kind="value",
        read=read,
        published=said.value,
        place=said.place,
        source="model",
        system=FABRICS[fabric],
        tolerance=0.0,
    )


def _claim(fabric: Fabric, topic: str, choice: str, statement: str, place: str) -> Claim:
    def judge(records: Records) -> Verdict:
        row = _row(fabric, topic, records)
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
        known = [(n, _ratio(rows[topic])) for n, topic in enumerate(topics) if topic in rows]
        ax.barh(
            [n + 0.38 * place for n, _ in known],
            [ratio for _, ratio in known],
            height=0.36,
            color=colours[fabric],
            label=fabric,
        )
    ax.axvline(1, color=INK, linewidth=1)
    ax.set_xscale("log")
    label_log_axis(ax.xaxis)
    ax.set_yticks([n + 0.19 for n in range(len(topics))], topics)
    ax.invert_yaxis()
    ax.set_xlabel("the rule's number over its threshold")
    ax.set_ylabel("rule")
    legend(ax)


def _ratio(row: Row) -> float:
    number, threshold = row["number"], row["threshold"]
    assert isinstance(number, float)
    assert isinstance(threshold, float)
    return max(abs(number) / threshold, LEAST_RATIO)


ADVICE = Study(
    name="efa-advice",
    title="Design rules drawn from the thesis's tables",
    paper=EFA,
    place="6.1",
    system="rules of weft tune on the tables of the EFA thesis",
    points=tuple(_point(fabric) for fabric in FABRICS),
    observations=(
        _observation(
            "SRD",
            "messages outstanding",
            "",
            partial(_number, "SRD", "outstanding"),
            "saturating-depth",
        ),
        _observation(
            "RC",
            "messages outstanding",
            "",
            partial(_number, "RC", "outstanding"),
            "async-4k-rc-full-depth",
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
