"""FDR study, sections 3.2 and 3.6 to 3.8: completions, signaling, alignment, placement.

Waiting or polling for completions, Equation 2 (how many to ask for), and where buffers and
programs are, to the byte and to the node.
Entry points: `NOTIFICATION`, `EQ2`, `ALIGNMENT`, `NUMA`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.model.fit import FloatArray
from weft.model.link import data_rate_gbps
from weft.model.outstanding import equation_2
from weft.studies.fdr.fdr_model import (
    CACHED_GBPS,
    KI,
    MI,
    PARAMETERS,
    POLLED_GBPS,
    SIZES,
    SYSTEM,
    equation_row,
    line_point,
    model_panel,
    scalar_point,
    setting_text,
    size_text,
    statement_row,
    throughput,
)
from weft.studies.fdr.outstanding_messages import BEST_B, CPU_PER_MESSAGE_US
from weft.studies.observation import Claim, Records, Verdict, scalar_in
from weft.studies.published import find_statement
from weft.studies.study import FDR_PAPER, Study, experiment_only
from weft.studies.table_curves import line_panel

# ---- fdr-notification --------------------------------------------------------------------------


def _best_throughput(sizes: FloatArray, polled: bool) -> FloatArray:
    """The model's throughput with the best of all numbers outstanding."""
    speed = POLLED_GBPS / CACHED_GBPS if polled else 1.0
    all_b = np.arange(1, 129)[:, np.newaxis]
    return np.asarray(throughput(sizes[np.newaxis, :], all_b, speed=speed).max(axis=0))


def _best_throughput_at(size: int, polled: bool) -> float:
    return float(_best_throughput(np.asarray([size], dtype=np.float64), polled)[0])


WAIT_LINES = (
    line_point("busy-polling", "size_bytes", SIZES, lambda s: _best_throughput(s, polled=True)),
    line_point("wait-wakeup", "size_bytes", SIZES, lambda s: _best_throughput(s, polled=False)),
)
WAKE_UPS_PER_S = _best_throughput_at(64 * MI, polled=False) * 1e9 / 8 / (64 * MI)


def _judge_waiting(records: Records) -> Verdict:
    share = scalar_in(records["model, 64 Mi"], "cpu", "%")
    evidence = f"at 64 Mi {share:.2f} %: {WAKE_UPS_PER_S:.0f} wake-ups a second"
    return Verdict(holds=share < 1, evidence=evidence)


NOTIFICATION = Study(
    name="fdr-notification",
    title="Waiting for completions against polling: throughput and processor share",
    paper=FDR_PAPER,
    place="3.6, Figs. 9 and 10",
    system=SYSTEM,
    points=(
        scalar_point("model, 4X FDR", {"rate": (data_rate_gbps("FDR"), "Gb/s")}),
        scalar_point(
            "model, busy-polling, 1 Mi", {"throughput": (_best_throughput_at(MI, True), "Gb/s")}
        ),
        scalar_point(
            "model, wait-wakeup, 1 Mi", {"throughput": (_best_throughput_at(MI, False), "Gb/s")}
        ),
        scalar_point(
            "model, busy-polling, 16 Mi",
            {"throughput": (_best_throughput_at(16 * MI, True), "Gb/s")},
        ),
        scalar_point("model, 64 Mi", {"cpu": (WAKE_UPS_PER_S * CPU_PER_MESSAGE_US * 1e-4, "%")}),
        *WAIT_LINES,
    ),
    observations=tuple(
        statement_row(key, f"model, {setting}", quantity, name, tolerance)
        for key, setting, quantity, name, tolerance in (
            ("line-rate", "4X FDR", "data rate of the link", "rate", 0.001),
            (
                "polling-highest",
                "busy-polling, 1 Mi",
                "throughput, slightly more than",
                "throughput",
                0.02,
            ),
            (
                "waiting-highest",
                "wait-wakeup, 1 Mi",
                "throughput, slightly less than",
                "throughput",
                0.05,
            ),
            ("polling-past-8Mi", "busy-polling, 16 Mi", "throughput", "throughput", 0.05),
        )
    ),
    claims=(
        Claim(
            statement="Wait-wakeup takes less the larger the messages, close to nothing at last.",
            place="3.6, Fig. 10",
            source="model",
            system=SYSTEM,
            judge=_judge_waiting,
        ),
    ),
    panels=(
        model_panel(
            WAIT_LINES,
            ((MI, POLLED_GBPS), (16 * MI, 47)),
            "message size (B)",
            "highest throughput (Gb/s)",
        ),
    ),
    notes=(
        f"{PARAMETERS} Polling is {POLLED_GBPS:g} Gb/s in the cache (stated); outside it the same "
        "share is lost as with wait-wakeup, which predicts the 47 Gb/s above 8 Mi.",
        f"A wake-up costs {CPU_PER_MESSAGE_US:.1f} us of processor time (fdr-outstanding).",
    ),
)

# ---- fdr-eq2 -----------------------------------------------------------------------------------

SQ_DEPTH = 128
# Equation 2 worked by hand: (size, SQ depth) -> S, with B by Equation 1.
PERIOD: Mapping[tuple[int, int], int] = {
    (32 * KI, SQ_DEPTH): 1,
    (64 * KI, SQ_DEPTH): 1,
    **{(n * KI, SQ_DEPTH): 64 for n in (128, 256, 512)},
    **{(n * MI, SQ_DEPTH): 64 for n in (1, 8, 64)},
    (128 * KI, 32): 8,
    (256 * KI, 16): 1,
}


def _period_setting(size: int, depth: int) -> str:
    return f"Equation 2, {size_text(size)}, SQ = {depth}"


def _periods(records: Records) -> Mapping[str, list[tuple[float, float]]]:
    sizes = [size for size, depth in PERIOD if depth == SQ_DEPTH]
    settings = {size: _period_setting(size, SQ_DEPTH) for size in sizes}
    points = [
        (float(size), scalar_in(records[setting], "period", "messages"))
        for size, setting in settings.items()
    ]
    return {f"Equation 2, SQ = {SQ_DEPTH}": points}


EQ2 = Study(
    name="fdr-eq2",
    title="Equation 2: how often to ask for a completion",
    paper=FDR_PAPER,
    place="3.7, Equation 2 and Fig. 11",
    system=SYSTEM,
    points=tuple(
        scalar_point(
            _period_setting(size, depth),
            {"period": (float(equation_2(size, min(BEST_B[size], depth), depth)), "messages")},
        )
        for size, depth in PERIOD
    ),
    observations=tuple(
        equation_row(_period_setting(*key), "S", "period", by_hand, "3.7, Equation 2")
        for key, by_hand in PERIOD.items()
    ),
    panels=(line_panel(_periods, "message size (B)", "signaling period S (messages)"),),
    notes=(
        "Published values are the printed equation, worked by hand with B by Equation 1; the "
        "study does not state its queue's depth. Its first case is printed as min(B/2, 1), which "
        "is 1; S is never below 1.",
        "The closed form has no cost of a completion: that Equation 2 passes 50 Gb/s above 128 Ki "
        "is not modelled.",
    ),
)

# ---- fdr-alignment -----------------------------------------------------------------------------

LINE_BYTES = int(find_statement("fdr", "cache-line").value)
PCIE_PAYLOAD_BYTES = 256  # of one PCIe packet; the study does not state it


def count_lines(offset_bytes: int) -> int:
    """Cache lines that a PCIe packet's payload at this offset from a line touches."""
    last = offset_bytes + PCIE_PAYLOAD_BYTES - 1
    return last // LINE_BYTES - offset_bytes // LINE_BYTES + 1


UNALIGNED_SPEED = count_lines(0) / count_lines(1)


def _gain_percent(size: int, outstanding: int) -> float:
    aligned = float(throughput(size, outstanding))
    return 100 * (aligned / float(throughput(size, outstanding, speed=UNALIGNED_SPEED)) - 1)


ALIGNMENT_LINES = tuple(
    line_point(
        setting_text(size, b),
        "offset_bytes",
        (0, 1, 16, 32, 48, 63, 64),
        lambda offsets, size=size, b=b: np.asarray(  # type: ignore[misc]
            [
                float(throughput(size, b, speed=count_lines(0) / count_lines(int(o))))
                for o in offsets
            ]
        ),
    )
    for size, b in ((512 * KI, 1), (512 * KI, 8), (8 * MI, 2))
)
_READ_FIRST = (
    "The model counts cache lines alone. Outside the cache a line that is written in part must be "
    "read first, which costs more."
)
_ALONE = (
    "The model slows every message alike; with one outstanding the adapter is idle most of the "
    "time and its reads and writes overlap with that."
)
_ALIGNED, _UNALIGNED = "model, 8 Mi, B = 2, aligned", "model, 8 Mi, B = 2, not aligned"

ALIGNMENT = Study(
    name="fdr-alignment",
    title="Buffers aligned to the cache line against others",
    paper=FDR_PAPER,
    place="3.2, Figs. 2 and 3",
    system=SYSTEM,
    points=(
        scalar_point(_ALIGNED, {"throughput": (float(throughput(8 * MI, 2)), "Gb/s")}),
        scalar_point(
            _UNALIGNED,
            {
                "throughput": (float(throughput(8 * MI, 2, speed=UNALIGNED_SPEED)), "Gb/s"),
                "gain": (_gain_percent(8 * MI, 2), "%"),
            },
        ),
        scalar_point(
            "model, 512 Ki, B = 8",
            {"gain": (_gain_percent(512 * KI, 8), "%"), "loss": (100 * (1 - UNALIGNED_SPEED), "%")},
        ),
        scalar_point("model, 512 Ki, B = 1", {"gain": (_gain_percent(512 * KI, 1), "%")}),
        *ALIGNMENT_LINES,
    ),
    observations=tuple(
        statement_row(key, setting, quantity, name, tolerance, reason)
        for key, setting, quantity, name, tolerance, reason in (
            ("aligned-8Mi", _ALIGNED, "throughput", "throughput", 0.1, ""),
            ("unaligned-8Mi", _UNALIGNED, "throughput", "throughput", 0.1, ""),
            ("aligned-8Mi-gain", _UNALIGNED, "gain by aligning", "gain", 0.15, _READ_FIRST),
            (
                "aligned-512Ki-most",
                "model, 512 Ki, B = 8",
                "gain by aligning, most",
                "gain",
                0.15,
                "",
            ),
            (
                "unaligned-512Ki-loss",
                "model, 512 Ki, B = 8",
                "loss if not aligned",
                "loss",
                0.15,
                "",
            ),
            (
                "aligned-512Ki-least",
                "model, 512 Ki, B = 1",
                "gain by aligning, least",
                "gain",
                0.15,
                _ALONE,
            ),
        )
    ),
    panels=(
        model_panel(
            ALIGNMENT_LINES,
            ((0, 47.75), (1, 34)),
            "offset of a buffer from its page (B)",
            "throughput (Gb/s)",
            log_x=False,
        ),
    ),
    notes=(
        f"{PARAMETERS} Of alignment it has one mechanism and no further parameter from the text: "
        f"the payload of a PCIe packet (taken as {PCIE_PAYLOAD_BYTES} B) touches "
        f"{count_lines(0)} cache lines when aligned and {count_lines(1)} when not, and the "
        "adapter moves so many lines a second.",
        "Published marks are those of 8 Mi.",
    ),
)

# ---- fdr-numa ----------------------------------------------------------------------------------

NUMA = experiment_only(
    "fdr-numa", "Programs and memory bound to a place", FDR_PAPER, "3.8, Figs. 12 and 13"
)
