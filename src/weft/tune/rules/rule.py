"""A design rule: what to do, and the number that says so.

A rule without evidence has no number; `because` is then the command that measures it. Entry points:
`Rule`, `unknown_rule`, `inapplicable_rule`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from weft.measure.peer.client import LOCAL
from weft.measure.settings.options import options_of
from weft.records import Plain
from weft.tune.rules.evidence import Evidence, common_options, format_options
from weft.units import format_number, format_value

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


def confidence_of(numbers: list[float], threshold: float, spread: float, runs: int) -> str:
    """Firm: all on one side of the threshold, further from it than repetitions scatter.

    `runs` are those of the row with the fewest: a single one has no scatter to be held against.
    """
    if runs <= 1:
        return SINGLE
    agree = len({number >= threshold for number in numbers}) == 1
    clear = min(abs(number - threshold) for number in numbers) > spread
    return FIRM if agree and clear else WEAK
