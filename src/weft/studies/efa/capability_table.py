"""Table 2.1 of the EFA thesis against what our transports tell of themselves on this machine.

What a transport offers comes from the core's availability (endpoints, operations, libfabric's
message order, the link layer of an RDMA port); whether messages can be lost from the rule by which
weft counts losses; whether the kernel works for each message from the processor time of a short
ping-pong. What none of these tells is not judged. Entry point: `TABLE2_1`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from weft import __version__
from weft._core import Availability, availability
from weft.measure import latency
from weft.measure.settings.feasibility import is_lossy
from weft.measure.tests.latency import LatencySettings
from weft.plot.style import MUTED, PUBLISHED
from weft.records import Provenance, Record, Row, Scalar
from weft.studies.claim import Claim, NotHere, Verdict
from weft.studies.observation import ANOTHER_SYSTEM, Observation, Records
from weft.studies.paper import EFA
from weft.studies.published import published
from weft.studies.site import Point, Site, here, measured
from weft.studies.study import Result, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OFFERS = "what is offered"
TABLE = published("efa-table2-1")
KERNEL_SHARE = 0.1  # of the processor time: more, and the kernel takes part in each message


@dataclass(frozen=True, slots=True)
class Transport:
    """A transport of ours and the kind of endpoint that is meant."""

    over: str
    endpoint: str

    @property
    def chosen(self) -> str:
        """What --endpoint would say: sockets have one kind, which is not chosen."""
        return "" if self.endpoint in ("stream", "datagram") else self.endpoint

    def __str__(self) -> str:
        return f"{self.over} {self.chosen}".rstrip()


@dataclass(frozen=True, slots=True)
class Answer:
    """One aspect in the table's words, empty where nothing tells it; and how it is known."""

    value: str
    how: str


OURS: Mapping[str, Transport] = {  # by the table's column
    "SRD": Transport("verbs", "srd"),
    "RC": Transport("verbs", "rc"),
    "sockets": Transport("tcp", "stream"),
}
LIBFABRIC = (Transport("ofi:tcp", "rdm"), Transport("ofi:shm", "rdm"))
TIMED = ("tcp", "ofi:tcp", "ofi:shm")


# ---- What is offered here ---------------------------------------------------------------------


def offers(_: Site) -> Record:
    """Every transport of the core with what it tells, as a record."""
    return Record(
        kind="measurement",
        name="availability",
        tables={OFFERS: [row for found in availability() for row in _rows(found)]},
        provenance=Provenance(weft_version=__version__),
    )


def _rows(found: Availability) -> Iterator[Row]:
    """A row for each kind of endpoint; one with the reason where there is none."""
    over = f"ofi:{found.device}" if found.transport == "ofi" else found.transport
    for endpoint in found.endpoints or [""]:
        facts = found.facts
        yield {
            "over": over,
            "endpoint": endpoint,
            "available": found.available,
            "operations": facts.get(f"{endpoint}.operations", ", ".join(found.operations)),
            "order": facts.get(f"{endpoint}.msg_order", ""),
            "link": facts.get("link_layer", ""),
            "reason": found.reason,
        }


def offer(records: Records, transport: Transport) -> Row:
    """What the transport tells; why not, where it is not here."""
    rows = [row for row in records[OFFERS].tables[OFFERS] if row["over"] == transport.over]
    for row in rows:
        if row["available"] and row["endpoint"] == transport.endpoint:
            return row
    reasons = [str(row["reason"]) for row in rows if row["reason"]]
    raise NotHere(f"{transport} is not here: {(reasons or ['no such endpoint'])[0]}")


# ---- The aspects ------------------------------------------------------------------------------


def link(records: Records, transport: Transport) -> Answer:
    told = str(offer(records, transport)["link"])
    if told:
        return Answer(told, "the port's link layer")
    return Answer("", f"{transport} runs over any link and names none")


def delivery(records: Records, transport: Transport) -> Answer:
    offer(records, transport)
    lossy = is_lossy(LatencySettings(over=transport.over, endpoint=transport.chosen))
    word = "unreliable" if lossy else "reliable"
    rule = "weft counts losses" if lossy else "weft waits for every message"
    return Answer(word, f"{rule} over {transport}{unverified(transport)}")


def unverified(transport: Transport) -> str:
    return " (unverified: it never ran on EFA)" if transport.endpoint == "srd" else ""


def unit(records: Records, transport: Transport) -> Answer:
    endpoint = str(offer(records, transport)["endpoint"])
    word = "Stream" if endpoint == "stream" else "Messages"
    return Answer(word, f"its endpoints are of kind {endpoint}")


def order(records: Records, transport: Transport) -> Answer:
    told = offer(records, transport)
    if told["endpoint"] == "stream":
        return Answer("ordered", "the bytes of a stream are in order")
    if transport.over == "verbs":
        return Answer("", "verbs tell no order")
    ordered = "FI_ORDER_SAS" in str(told["order"])
    word, has = ("ordered", "has") if ordered else ("unordered", "lacks")
    return Answer(word, f"its message order {has} FI_ORDER_SAS")


def place(records: Records, transport: Transport) -> Answer:
    offer(records, transport)
    if transport.over not in TIMED:
        return Answer("", "it is not timed here")
    share = kernel_share(records[transport.over])
    word = "kernel-space" if share > KERNEL_SHARE else "user-space"
    return Answer(word, f"{share:.0%} of a ping-pong's processor time is the kernel's")


def kernel_share(record: Record) -> float:
    """Of the processor time of the loop."""
    user, system = record.quantities["cpu.user"], record.quantities["cpu.system"]
    assert isinstance(user, Scalar)
    assert isinstance(system, Scalar)
    return system.value / max(user.value + system.value, 1e-9)


def calls(records: Records, transport: Transport) -> Answer:
    offer(records, transport)
    if transport.over.startswith(("ofi", "verbs")):
        return Answer("asynchronous", "its interface is work posted and completions polled")
    return Answer("", "weft uses sockets that do not block, and reports a send when it is copied")


def one_sided(records: Records, transport: Transport) -> Answer:
    operations = str(offer(records, transport)["operations"]).split(", ")
    has = {"read", "write"} <= set(operations)
    return Answer("one-sided" if has else "no one-sided", f"it offers {', '.join(operations)}")


ASPECTS: Mapping[str, Callable[[Records, Transport], Answer]] = {
    "link": link,
    "delivery": delivery,
    "unit": unit,
    "order": order,
    "place": place,
    "calls": calls,
    "one-sided": one_sided,
}


def judged(records: Records, *, aspect: str, column: str, says: str) -> Verdict:
    answer = ASPECTS[aspect](records, OURS[column])
    if not answer.value:
        return Verdict(holds=None, evidence=answer.how)
    return Verdict(holds=answer.value == says, evidence=f"{answer.value}: {answer.how}")


def _claims() -> Iterator[Claim]:
    for column, transport in OURS.items():
        for aspect, says in zip(TABLE.cells("aspect"), TABLE.cells(column), strict=True):
            yield Claim(
                statement=f"{column}, {aspect}: {says}",
                place=TABLE.place,
                source="measurement",
                system=here(str(transport)),
                judge=partial(judged, aspect=str(aspect), column=column, says=str(says)),
            )


def _share_rows() -> Iterator[Observation]:
    for over in TIMED:
        yield Observation(
            setting=over,
            quantity="kernel's share of a ping-pong's processor time",
            unit="%",
            kind="value",
            source="measurement",
            system=here(over),
            tolerance=ANOTHER_SYSTEM,
            read=lambda records, over=over: 100 * kernel_share(records[over]),  # type: ignore[misc]
        )


def libfabric_remarks(result: Result) -> tuple[str, ...]:
    """What libfabric's providers, which the table does not have, tell of themselves."""
    told = []
    for transport in LIBFABRIC:
        answers = [answered(result.records, aspect, transport) for aspect in ASPECTS]
        words = ", ".join(answer.value for answer in answers if answer.value)
        told.append(f"{transport}, which the table does not have: {words}.")
    return tuple(told)


# ---- The figure -------------------------------------------------------------------------------


def answered(records: Records, aspect: str, transport: Transport) -> Answer:
    """The answer, or why there is none here."""
    try:
        return ASPECTS[aspect](records, transport)
    except NotHere as reason:
        return Answer("", str(reason))


def grid(ax: Axes, result: Result) -> None:
    """The table's columns in orange, ours beside them; a dash where nothing here tells."""
    columns: list[tuple[str, list[str], str]] = []
    for column, transport in OURS.items():
        columns.append((column, [str(cell) for cell in TABLE.cells(column)], PUBLISHED))
        columns.append(_ours(result, transport))
    columns += [_ours(result, transport) for transport in LIBFABRIC]
    aspects = [str(cell) for cell in TABLE.cells("aspect")]
    _write_column(ax, 0, "", aspects, MUTED)
    for number, (head, cells, colour) in enumerate(columns, start=1):
        _write_column(ax, number, head, cells, colour)
    ax.set_xlim(-0.1, len(columns) + 1)
    ax.set_ylim(len(aspects) + 0.5, -0.8)
    ax.axis("off")


def _ours(result: Result, transport: Transport) -> tuple[str, list[str], str]:
    cells = [answered(result.records, aspect, transport).value or "–" for aspect in ASPECTS]
    return str(transport), cells, "black"


def _write_column(ax: Axes, x: int, head: str, cells: list[str], colour: str) -> None:
    ax.text(x, -0.3, head, color=colour, fontsize=7, fontweight="bold")
    for y, cell in enumerate(cells, start=1):
        ax.text(
            x,
            y - 0.3,
            cell.replace("-", "-\n", 1) if len(cell) > 11 else cell,
            color=colour,
            fontsize=6.2,
            va="center",
        )


TABLE2_1 = Study(
    name="efa-table2-1",
    title="What SRD, RC and sockets are, and what our transports tell",
    paper=EFA,
    place=TABLE.place,
    system="this machine",
    points=(
        Point(setting=OFFERS, settings={}, source="measurement", system="this machine", run=offers),
        *(measured(over, {}, latency, over=over, duration="100 ms") for over in TIMED),
    ),
    observations=tuple(_share_rows()),
    panels=(grid,),
    claims=tuple(_claims()),
    notes=(
        "A dash or `not judged` is what this machine cannot tell: without an RDMA device verbs "
        "offer nothing here. RC was run on soft RoCE (make test-rdma), SRD never on its hardware.",
        "Over verbs the order of messages, and over sockets whether calls are synchronous, is a "
        "matter of the interface's definition, which no transport reports.",
    ),
    remarks=libfabric_remarks,
)
