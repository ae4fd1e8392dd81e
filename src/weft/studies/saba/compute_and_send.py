"""Computing and sending, apart: what two completion times say of every share of the link.

    T(b) = C + S / b,   D(b) = T(b) / T(1)

C is computing, S sending at the full rate, nothing of it hidden. The thesis states completion times
at two shares (Fig. 3.3), which give C and S; slowdowns, which it states elsewhere, are predictions.
Entry points: `stated_times`, `computing_and_sending`. Shares are fractions, times seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.sensitivity.model import Hinges
from weft.studies.published import published

TIMED = ("LR", "TS")
TIMES = "computing and sending, from two completion times"
# Stated at 25 % and 75 %: below 25 % the form is extrapolated, as far as samples are stated.
FLOOR = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """C and S."""

    computing_s: float
    sending_s: float

    def completion_s(self, share: float) -> float:
        return self.computing_s + self.sending_s / share

    @property
    def model(self) -> Hinges:
        return Hinges(terms=((1.0, self.sending_s / self.completion_s(1.0)),), floor=FLOOR)


def stated_times(workload: str) -> dict[float, float]:
    """Completion times by share, as the text states them."""
    table = published("saba-fig3-3")
    rows = zip(table.column("share_percent"), table.column(f"{workload}_s"), strict=True)
    return {float(percent) / 100: float(seconds) for percent, seconds in rows}


def computing_and_sending(workload: str) -> Parts:
    """The parts that give the two stated times."""
    (low, slow), (high, fast) = stated_times(workload).items()
    sending = (slow - fast) / (1 / low - 1 / high)
    return Parts(computing_s=slow - sending / low, sending_s=sending)
