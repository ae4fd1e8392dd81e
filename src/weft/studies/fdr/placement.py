"""FDR study, sections 3.2 and 3.8: where buffers and programs are, to the byte and to the node."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.measure import transfer
from weft.studies.claim import Claim, Verdict
from weft.studies.fdr.fdr_model import (
    KI,
    MI,
    PARAMETERS,
    SYSTEM,
    model_panel,
    modelled_at,
    modelled_line,
    setting_text,
    size_text,
    stated_row,
    throughput,
)
from weft.studies.fdr.outstanding import ACKNOWLEDGED, THROUGHPUT, rate_rows
from weft.studies.observation import Records
from weft.studies.paper import FDR
from weft.studies.published import stated
from weft.studies.rounds import RULE, Case, alike, gains, in_rounds, ratio, together, within
from weft.studies.rounds_draw import Bar, rounds_bars
from weft.studies.site import here
from weft.studies.study import Study

# ---- fdr-alignment -----------------------------------------------------------------------------

LINE_BYTES = int(stated("fdr", "cache-line").value)
PCIE_PAYLOAD_BYTES = 256  # of one PCIe packet; the study does not state it


def lines_touched(offset_bytes: int) -> int:
    """Cache lines that a PCIe packet's payload at this offset from a line touches."""
    last = offset_bytes + PCIE_PAYLOAD_BYTES - 1
    return last // LINE_BYTES - offset_bytes // LINE_BYTES + 1


UNALIGNED_SPEED = lines_touched(0) / lines_touched(1)


def _gain_percent(size: int, outstanding: int) -> float:
    aligned = float(throughput(size, outstanding))
    return 100 * (aligned / float(throughput(size, outstanding, speed=UNALIGNED_SPEED)) - 1)


def _offset_case(size: int, outstanding: int, offset: int) -> Case:
    return Case(
        name=f"{setting_text(size, outstanding)}, offset {offset}",
        settings={"size_bytes": size, "outstanding": outstanding, "offset_bytes": offset},
        test=transfer,
        options={
            "over": "ofi:shm",
            "size": size,
            "outstanding": outstanding,
            "offset": offset,
            "total": 2**28,
            "warmup": 16,
        },
    )


OFFSETS = {(512 * KI, 1): (0, 1), (512 * KI, 8): (0, 1, 32, 64), (8 * MI, 2): (0, 1, 64)}
OFFSET_CASES = tuple(
    _offset_case(size, b, offset) for (size, b), several in OFFSETS.items() for offset in several
)
SHM = here("ofi:shm")


def _aligned_over(
    records: Records, size: int, outstanding: int, offset: int, gain: float
) -> Verdict:
    aligned, other = (_offset_case(size, outstanding, o).name for o in (0, offset))
    found = ratio(records, aligned, other, ACKNOWLEDGED)
    return gains(found, gain, f"{setting_text(size, outstanding)}, offset 0 over {offset}")


def _aligned_is_faster(records: Records) -> Verdict:
    return together(
        _aligned_over(records, 512 * KI, 8, 1, 0.05),
        _aligned_over(records, 512 * KI, 8, 32, 0.05),
        _aligned_over(records, 8 * MI, 2, 1, 0.2),
    )


def _one_line_on_is_as_good(records: Records) -> Verdict:
    return together(
        *(
            within(
                ratio(
                    records,
                    _offset_case(size, b, 64).name,
                    _offset_case(size, b, 0).name,
                    ACKNOWLEDGED,
                ),
                f"{setting_text(size, b)}, offset 64 over 0",
                low=0.95,
            )
            for size, b in ((512 * KI, 8), (8 * MI, 2))
        )
    )


def _one_outstanding_does_not_care(records: Records) -> Verdict:
    aligned, other = (_offset_case(512 * KI, 1, offset).name for offset in (0, 1))
    found = ratio(records, aligned, other, ACKNOWLEDGED)
    return alike(found, 0.05, "512 Ki, B = 1, offset 0 over 1")


MODEL_OFFSETS = (0, 1, 16, 32, 48, 63, 64)
ALIGNMENT_LINES = tuple(
    modelled_line(
        setting_text(size, b),
        "offset_bytes",
        MODEL_OFFSETS,
        lambda offsets, size=size, b=b: np.asarray(  # type: ignore[misc]
            [
                float(throughput(size, b, speed=lines_touched(0) / lines_touched(int(o))))
                for o in offsets
            ]
        ),
    )
    for size, b in OFFSETS
)
_READ_FIRST = (
    "The model counts cache lines alone. Outside the cache a line that is written in part must be "
    "read first, which costs more."
)
_ALONE = (
    "The model slows every message alike; with one outstanding the adapter is idle most of the "
    "time and its reads and writes overlap with that."
)

ALIGNMENT = Study(
    name="fdr-alignment",
    title="Buffers aligned to the cache line against others",
    paper=FDR,
    place="3.2, Figs. 2 and 3",
    system=SYSTEM,
    points=(
        modelled_at(
            "model, 8 Mi, B = 2, aligned", {"throughput": (float(throughput(8 * MI, 2)), "Gb/s")}
        ),
        modelled_at(
            "model, 8 Mi, B = 2, not aligned",
            {
                "throughput": (float(throughput(8 * MI, 2, speed=UNALIGNED_SPEED)), "Gb/s"),
                "gain": (_gain_percent(8 * MI, 2), "%"),
            },
        ),
        modelled_at(
            "model, 512 Ki, B = 8",
            {"gain": (_gain_percent(512 * KI, 8), "%"), "loss": (100 * (1 - UNALIGNED_SPEED), "%")},
        ),
        modelled_at("model, 512 Ki, B = 1", {"gain": (_gain_percent(512 * KI, 1), "%")}),
        *ALIGNMENT_LINES,
        *in_rounds(OFFSET_CASES),
    ),
    observations=(
        stated_row(
            "aligned-8Mi", "model, 8 Mi, B = 2, aligned", THROUGHPUT, "throughput", tolerance=0.1
        ),
        stated_row(
            "unaligned-8Mi",
            "model, 8 Mi, B = 2, not aligned",
            THROUGHPUT,
            "throughput",
            tolerance=0.1,
        ),
        stated_row(
            "aligned-8Mi-gain",
            "model, 8 Mi, B = 2, not aligned",
            "gain by aligning",
            "gain",
            tolerance=0.15,
            reason=_READ_FIRST,
        ),
        stated_row(
            "aligned-512Ki-most",
            "model, 512 Ki, B = 8",
            "gain by aligning, most",
            "gain",
            tolerance=0.15,
        ),
        stated_row(
            "unaligned-512Ki-loss",
            "model, 512 Ki, B = 8",
            "loss if not aligned",
            "loss",
            tolerance=0.15,
        ),
        stated_row(
            "aligned-512Ki-least",
            "model, 512 Ki, B = 1",
            "gain by aligning, least",
            "gain",
            tolerance=0.15,
            reason=_ALONE,
        ),
        *rate_rows(OFFSET_CASES),
    ),
    claims=(
        Claim(
            statement="Buffers aligned to the cache line are faster: 5 to 23 % at 512 Ki, 40 % at "
            "8 Mi (here: 5 % and 20 % would do).",
            place="3.2, Fig. 2",
            source="measurement",
            system=SHM,
            judge=_aligned_is_faster,
        ),
        Claim(
            statement="Any multiple of 64 bytes is as good as the start of a page.",
            place="3.2, Fig. 2",
            source="measurement",
            system=SHM,
            judge=_one_line_on_is_as_good,
        ),
        Claim(
            statement="With one message outstanding the offset hardly matters.",
            place="3.2",
            source="measurement",
            system=SHM,
            judge=_one_outstanding_does_not_care,
        ),
    ),
    panels=(
        model_panel(
            ALIGNMENT_LINES,
            ((0, 47.75), (1, 34)),
            "offset of a buffer from its page (B)",
            "throughput (Gb/s)",
            log_x=False,
        ),
        rounds_bars(
            [
                Bar(label=case.name, case=case.name, kind=str(case.settings["offset_bytes"]))
                for case in OFFSET_CASES
            ],
            ACKNOWLEDGED,
            "throughput (Gb/s)",
        ),
    ),
    notes=(
        f"{PARAMETERS} Of alignment it has one mechanism and no further parameter from the text: "
        f"the payload of a PCIe packet (taken as {PCIE_PAYLOAD_BYTES} B) touches "
        f"{lines_touched(0)} cache lines when aligned and {lines_touched(1)} when not, and the "
        "adapter moves so many lines a second.",
        "Published marks are those of 8 Mi.",
        "Measured over shared memory: what reads and writes the buffers is the processor's copy, "
        "not an adapter behind PCIe.",
        RULE,
    ),
)

# ---- fdr-numa ----------------------------------------------------------------------------------

UNBOUND, SENDER, BOTH = "no binding", "sender bound", "both bound, a core each"
PLACES: Mapping[str, Mapping[str, object]] = {
    UNBOUND: {},
    SENDER: {"cpu": 0},
    BOTH: {"cpu": "auto"},
}
OTHER_NODE = "sender on node 0, its buffers on node 1"
NUMA_SIZES = (32 * KI, 1 * MI)


def _place_case(size: int, place: str, **options: object) -> Case:
    return Case(
        name=f"{size_text(size)}, {place}",
        settings={"size_bytes": size, "placement": place},
        test=transfer,
        options={
            "over": "tcp",
            "size": size,
            "outstanding": 4 * MI // size if size >= MI else 96,
            "total": 2**27,
            "warmup": 16,
            **options,
        },
    )


NUMA_CASES = tuple(
    _place_case(size, place, **options) for size in NUMA_SIZES for place, options in PLACES.items()
)
FAR_CASES = tuple(_place_case(size, OTHER_NODE, cpu=0, numa=1) for size in NUMA_SIZES)
TCP = here("tcp")


def _binding_both(records: Records) -> Verdict:
    return together(
        *(
            gains(
                ratio(
                    records,
                    _place_case(size, BOTH).name,
                    _place_case(size, UNBOUND).name,
                    ACKNOWLEDGED,
                ),
                0.05,
                f"{size_text(size)}, both bound over no binding",
            )
            for size in NUMA_SIZES
        )
    )


def _binding_the_sender(records: Records) -> Verdict:
    return together(
        *(
            gains(
                ratio(
                    records,
                    _place_case(size, UNBOUND).name,
                    _place_case(size, SENDER).name,
                    ACKNOWLEDGED,
                ),
                0.02,
                f"{size_text(size)}, no binding over sender bound",
            )
            for size in NUMA_SIZES
        )
    )


def _the_near_node(records: Records) -> Verdict:
    return together(
        *(
            gains(
                ratio(
                    records,
                    _place_case(size, SENDER).name,
                    _place_case(size, OTHER_NODE).name,
                    ACKNOWLEDGED,
                ),
                0.02,
                f"{size_text(size)}, near buffers over far ones",
            )
            for size in NUMA_SIZES
        )
    )


NUMA = Study(
    name="fdr-numa",
    title="Programs and memory bound to a place",
    paper=FDR,
    place="3.8, Figs. 12 and 13",
    system=TCP,
    points=in_rounds((*NUMA_CASES, *FAR_CASES)),
    observations=rate_rows((*NUMA_CASES, *FAR_CASES)),
    claims=(
        Claim(
            statement="Binding both sides gains up to 20 % (second pair of machines; none on the "
            "first).",
            place="3.8, Fig. 13",
            source="measurement",
            system=TCP,
            judge=_binding_both,
        ),
        Claim(
            statement="Binding the sender alone costs throughput in most cases.",
            place="3.8, Fig. 12",
            source="measurement",
            system=TCP,
            judge=_binding_the_sender,
        ),
        Claim(
            statement="Memory of the node that the program is on gives more.",
            place="3.8",
            source="measurement",
            system=TCP,
            judge=_the_near_node,
        ),
    ),
    panels=(
        rounds_bars(
            [
                Bar(label=case.name, case=case.name, kind=str(case.settings["placement"]))
                for case in (*NUMA_CASES, *FAR_CASES)
            ],
            ACKNOWLEDGED,
            "throughput (Gb/s)",
        ),
    ),
    notes=(
        "The text gives no throughput of Figs. 12 and 13, only their order, which differs between "
        "the two pairs of machines: there is nothing to model.",
        "Processors are bound here; memory of another node is measured where there is a second "
        "node (unverified: no such machine was at hand). Binding the receiver alone is not "
        "measured: a test binds its own side, or both.",
        RULE,
    ),
)
