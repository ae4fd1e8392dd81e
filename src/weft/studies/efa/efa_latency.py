"""Latency in the EFA thesis, beside fitted models and this machine.

By size and interface (C.1), SRD and UD (C.6), libfabric's calls (C.7), and around the size at which
a message is split (C.9).

Entry points: `C1`, `C6`, `C7`, `C9`. Units: us, bytes.
"""

from __future__ import annotations

from weft.studies.efa.efa_latency_here import (
    C1_CLAIMS,
    C1_LINES,
    C6_CLAIMS,
    C6_LINES,
    C7_CLAIMS,
    C7_LINES,
    C9_CLAIMS,
    C9_LINES,
)
from weft.studies.efa.efa_tables import efa_study, latency_curve, latency_remarks
from weft.studies.rounds_draw import rounds_panel
from weft.studies.tabulated import table_panel, zoomed

SIZE, LATENCY, HALF_RTT = "message size (B)", "latency (µs)", "half RTT, median (µs)"

C1_CURVES = (
    latency_curve("efa-c1", "RC_us", "efa-rc", "RC, InfiniBand EDR"),
    latency_curve("efa-c1", "SRD_us", "efa-srd", "SRD, EFA"),
    latency_curve("efa-c1", "TCP_us", "efa-sockets", "sockets"),
)
C1 = efa_study(
    "1",
    "Latency by message size: RDMA, SRD and sockets",
    C1_CURVES,
    panels=(
        table_panel(C1_CURVES, SIZE, LATENCY),
        rounds_panel(C1_LINES, SIZE, HALF_RTT, log_y=True),
    ),
    lines=C1_LINES,
    claims=C1_CLAIMS,
    notes=(
        "ofi:tcp is libfabric on top of kernel sockets, ofi:shm shared memory between two "
        "processes: of the two only ofi:shm leaves the kernel out, as EFA and InfiniBand do, and "
        "it has no wire.",
    ),
    remarks=latency_remarks(("efa-rc", "efa-srd", "efa-sockets")),
)

C6_AVERAGE = tuple(
    latency_curve("efa-c6-1", f"{name}_us", f"efa-{name.lower()}-average", f"{name}, average")
    for name in ("UD", "SRD")
)
C6_LEAST = tuple(
    latency_curve(
        "efa-c6-2", f"{name}_us", f"efa-{name.lower()}-minimum", f"{name}, least", "latency, least"
    )
    for name in ("UD", "SRD")
)
C6 = efa_study(
    "6",
    "Latency of reliable and unreliable datagrams over EFA",
    (*C6_AVERAGE, *C6_LEAST),
    panels=(
        zoomed(table_panel((*C6_AVERAGE, *C6_LEAST), SIZE, LATENCY, log_y=False)),
        rounds_panel(C6_LINES, SIZE, HALF_RTT),
    ),
    lines=C6_LINES,
    claims=C6_CLAIMS,
    notes=(
        "Here reliability is software: the kernel's in tcp, libfabric's ofi_rxd in ofi:udp rdm; in "
        "SRD the adapter has it. udp and tcp differ in more than reliability.",
    ),
    remarks=latency_remarks(
        ("efa-ud-average", "efa-srd-average", "efa-ud-minimum", "efa-srd-minimum")
    ),
)

_CALLS = {
    "fi_send": ("send_us", "efa-send"),
    "fi_tsend": ("tsend_us", "efa-tagged-send"),
    "fi_tinject": ("tinject_us", "efa-tagged-inject"),
    "fi_inject": ("inject_us", "efa-inject"),
}
C7_CURVES = tuple(
    latency_curve("efa-c7", column, name, label) for label, (column, name) in _CALLS.items()
)
C7 = efa_study(
    "7",
    "Latency by libfabric call: send, tagged, inject",
    C7_CURVES,
    panels=(
        zoomed(table_panel(C7_CURVES, SIZE, LATENCY, log_y=False)),
        rounds_panel(C7_LINES, SIZE, HALF_RTT, log_y=True),
    ),
    lines=C7_LINES,
    claims=C7_CLAIMS,
    notes=(
        "The model has three unknowns and each call four rows: a smooth description, hardly a "
        "test. The tagged inject is not measured here; ofi:tcp injects up to 64 B.",
    ),
    remarks=latency_remarks(tuple(name for _, name in _CALLS.values())),
)

C9_CURVES = (latency_curve("efa-c9", "latency_us", "efa-segmented", "SRD through libfabric"),)
C9 = efa_study(
    "9",
    "Latency around the size at which libfabric splits a message",
    C9_CURVES,
    panels=(
        zoomed(table_panel(C9_CURVES, SIZE, LATENCY, log_x=False, log_y=False)),
        rounds_panel(C9_LINES, SIZE, HALF_RTT, log_x=False),
    ),
    lines=C9_LINES,
    claims=C9_CLAIMS,
    notes=(
        "Measured over ofi:udp rdm: libfabric's ofi_rxd splits messages in software over datagrams "
        "of at most 1472 B, as the EFA provider does over packets of 8760 B. The loopback's own "
        "MTU (65536 B) plays no part.",
    ),
    remarks=latency_remarks(("efa-segmented",)),
)
