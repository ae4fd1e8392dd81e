"""What the text of the EFA thesis states in numbers, beside the models fitted to its tables.

Most sentences round a table of appendix C, to which the model was fitted: those rows are fits. The
rest was measured apart from the tables and is predicted: posting lists, inlining, the threads of
D.0.1, verbs against libfabric. Entry point: `TEXT`. Units: those of each sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.model import Fit, FloatArray
from weft.plot.style import MUTED, PALETTE, PUBLISHED
from weft.records import Quantity, Scalar
from weft.studies.calibrated import EFA_PACKET_BYTES, LATENCY, SATURATION, THROUGHPUT, bytes_counted
from weft.studies.efa.efa_latency import SYSTEM, predict
from weft.studies.observation import Bound, Observation, Role, scalar_in
from weft.studies.points import model_point
from weft.studies.published import find_statement, find_table
from weft.studies.study import EFA_PAPER, Result, Study
from weft.studies.table_curves import name_axes

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
