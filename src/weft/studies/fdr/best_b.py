"""FDR study, section 3.5: Equation 1, the number of messages to keep outstanding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import InputError
from weft.model.outstanding import best_outstanding, calibrate_pipe, equation_1
from weft.plot.style import PUBLISHED
from weft.studies.claim import Claim, NotHere, Verdict
from weft.studies.fdr.fdr_model import (
    KI,
    MI,
    PARAMETERS,
    SIZES,
    SYSTEM,
    TURNAROUND_US,
    modelled_at,
    setting_text,
    size_text,
    throughput,
)
from weft.studies.fdr.outstanding import HERE, by_outstanding, rate_rows
from weft.studies.observation import Observation, Records, scalar_in
from weft.studies.paper import FDR
from weft.studies.published import stated
from weft.studies.rounds import RULE, cases_of, in_rounds, together, within
from weft.studies.rounds_draw import rounds_panel
from weft.studies.study import Result, Study
from weft.studies.tabulated import measured_panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Equation 1 worked by hand.
BEST_B: Mapping[int, int] = {
    32 * KI: 96,
    64 * KI: 48,
    128 * KI: 24,
    256 * KI: 16,
    512 * KI: 8,
    MI: 4,
    2 * MI: 2,
    4 * MI: 2,
    8 * MI: 2,
    16 * MI: 2,
    32 * MI: 2,
    64 * MI: 2,
}
EQ1_HERE = {
    32 * KI: by_outstanding(32 * KI, (1, 96)),
    256 * KI: by_outstanding(256 * KI, (1, 4, 16, 64)),
    2 * MI: by_outstanding(2 * MI, (1, 2, 8)),
}
EQ1_CASES = cases_of(tuple(EQ1_HERE.values()))


def _b_row(size: int, by_hand: int) -> Observation:
    at_8mi = stated("fdr", "best-b-8Mi-predicted")
    place = at_8mi.place if size == 8 * MI else "3.5, Equation 1"
    setting = f"Equation 1, {size_text(size)}"
    return Observation(
        setting=setting,
        quantity="best B",
        unit="messages",
        kind="value",
        published=by_hand,
        place=place,
        source="model",
        system=SYSTEM,
        tolerance=0.0,
        predicted=True,
        read=lambda records: scalar_in(records[setting], "best_b", "messages"),
    )


def _reaches_the_best_here(records: Records) -> Verdict:
    """Equation 1 beside each other number: none may be better by more than 3 %."""
    return together(
        *(
            within(
                line.at(records, BEST_B[size]) / line.at(records, b),
                f"{setting_text(size, BEST_B[size])} over {b}",
                low=0.97,
            )
            for size, line in EQ1_HERE.items()
            for b in line.cases
            if b != BEST_B[size]
        )
    )


def _reaches_the_best_in_the_model(_: Records) -> Verdict:
    """Equation 1 against every B in the model that is set from other sentences."""
    all_b = np.arange(1, 129)
    lost = {
        size: 1 - float(throughput(size, BEST_B[size])) / float(throughput(size, all_b).max())
        for size in SIZES
    }
    worst = max(lost, key=lambda size: lost[size])
    evidence = f"most is lost at {size_text(worst)}: {lost[worst]:.1%} of the model's best"
    return Verdict(holds=lost[worst] <= 0.01, evidence=evidence)


def _calibrated_here(result: Result) -> tuple[str, ...]:
    """The generalised equation with this machine's own pipe."""
    measured = [(size, b, line) for size, line in EQ1_HERE.items() for b in line.cases]
    try:
        rates = [line.at(result.records, b).median for _, b, line in measured]
        sizes, several = [size for size, _, _ in measured], [b for _, b, _ in measured]
        pipe = calibrate_pipe(sizes, several, rates, data=f"fdr-eq1, {HERE}").pipe
    except NotHere:
        return ()
    except InputError as error:
        return (f"The generalised equation could not be calibrated here: {error}",)
    best = ", ".join(
        f"{size_text(size)}: {b:.0f}"
        for size, b in zip(EQ1_HERE, best_outstanding(tuple(EQ1_HERE), pipe), strict=True)
    )
    return (
        f"Generalised and calibrated on these measurements ({HERE}): "
        f"{pipe.line_rate_gbps:.3g} Gb/s, base latency {pipe.base_latency_us:.3g} us, "
        f"cache {size_text(pipe.cache_bytes) if np.isfinite(pipe.cache_bytes) else 'not seen'}; "
        f"best B {best}.",
    )


def _b_panel(ax: Axes, result: Result) -> None:
    observed = stated("fdr", "best-b-8Mi-observed").value
    ax.plot(
        [8 * MI, MI],
        [observed, 4],
        "o",
        markersize=8.5,
        markerfacecolor="none",
        markeredgecolor=PUBLISHED,
        markeredgewidth=1.6,
        zorder=5,
        label="published: observed best B",
    )
    measured_panel(
        lambda records: {
            "Equation 1": [
                (
                    float(size),
                    scalar_in(records[f"Equation 1, {size_text(size)}"], "best_b", "messages"),
                )
                for size in BEST_B
            ]
        },
        "message size (B)",
        "best B (messages)",
        log_y=True,
        title="",
    )(ax, result)


EQ1 = Study(
    name="fdr-eq1",
    title="Equation 1: how many messages to keep outstanding",
    paper=FDR,
    place="3.5, Equation 1 and Fig. 8",
    system=SYSTEM,
    points=(
        *(
            modelled_at(
                f"Equation 1, {size_text(size)}", {"best_b": (float(equation_1(size)), "messages")}
            )
            for size in BEST_B
        ),
        *in_rounds(EQ1_CASES),
    ),
    observations=(*(_b_row(size, b) for size, b in BEST_B.items()), *rate_rows(EQ1_CASES)),
    claims=(
        Claim(
            statement="Equation 1 loses at most 1 % of the best throughput (3 % at 8 Mi).",
            place="3.5, Fig. 8b",
            source="model",
            system=SYSTEM,
            judge=_reaches_the_best_in_the_model,
        ),
        Claim(
            statement="Equation 1 loses at most 3 % of the best throughput, on this machine too.",
            place="3.5, Fig. 8b",
            source="measurement",
            system=HERE,
            judge=_reaches_the_best_here,
        ),
    ),
    panels=(
        _b_panel,
        rounds_panel(tuple(EQ1_HERE.values()), "outstanding messages", "throughput (Gb/s)"),
    ),
    notes=(
        "Published values are the printed equation, worked by hand. The study observed 4 at 1 Mi, "
        "as predicted, and 1 at 8 Mi, where 2 cost 3 %.",
        f"{PARAMETERS} Single messages of 2 Mi lose {TURNAROUND_US:.0f} us each, hence B = 2.",
        RULE,
    ),
    remarks=_calibrated_here,
)
