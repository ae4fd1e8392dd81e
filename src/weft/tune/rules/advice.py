"""Design rules like those of the EFA thesis (Section 6.1), from fits and evidence.

Each rule has the number that decided and a threshold with its reason; a rule without evidence names
the command that would measure it. The same rules apply to measurements of a machine and to
published tables in the form of evidence. Entry points: `advise`, `advice_table`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import InputError
from weft.model.fit import Fit, fit
from weft.model.latency import single_packet_latency
from weft.records import Row as TableRow
from weft.records.record_text import format_table
from weft.tune.rules.contrast import contrast_rules
from weft.tune.rules.curve import LEAST_LEVELS, curve_rules
from weft.tune.rules.evidence import Evidence, Rule, group_families

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
    blocks = [format_table(["rule", "number", "threshold", "confidence", "says"], rows, left=5)]
    blocks += ["\n".join(f"{r.topic}: {r.because}; {r.threshold_why}" for r in known_rules)]
    blocks += ["\n".join(f"{r.topic}: {r.says}; {r.because}" for r in unknown_rules)]
    return "\n\n".join(block for block in blocks[not known_rules :] if block)


def advice_rows(rules: Sequence[Rule]) -> list[TableRow]:
    """For a record's table `advice`."""
    return [rule.row() for rule in rules]
