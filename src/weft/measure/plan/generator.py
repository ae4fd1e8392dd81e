"""What the sender of a flow does: the generators of a plan, with the settings of the tests.

latency          one message at a time (RPerf's LSG): ping-pong, or RPerf's own pairs
bandwidth        `depth` messages outstanding, without an answer (BSG)
pretend-latency  bandwidth in small messages, batched, in the class of the latency traffic

Entry point: `read_generator`. Units: bytes, bits per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.errors import InputError
from weft.measure.settings.feasibility import check_settings
from weft.measure.settings.options import Settings, Windowed, parse_over, settings_from
from weft.measure.tests.rperf import RPERF, RperfSettings
from weft.measure.tests.rperf import check as check_rperf
from weft.toml_table import Table

GENERATORS = ("latency", "bandwidth", "pretend-latency")
ESTIMATORS = ("ping-pong", "rperf")
# Settings of the tests that a plan's traffic has too, by their names on the command line.
SHARED = (
    "endpoint",
    "size",
    "wait",
    "cpu",
    "numa",
    "pages",
    "dscp",
    "traffic_class",
    "priority",
    "busy_poll",
    "sl",
    "gid_index",
    "port",
    "mtu",
    "inline",
    "offset",
    "peer_device",
)
STREAMED = ("depth", "post_list", "signal_every")
PRETEND: Mapping[str, object] = {"size": 256, "post_list": 16}
BANDWIDTH: Mapping[str, object] = {"size": 4096, "depth": 16}

Class = Mapping[str, object]  # of service: sl, dscp, traffic_class
CLASS = ("sl", "dscp", "traffic_class")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generator:
    """A kind, and the settings of its connection and loop."""

    kind: str
    settings: Settings

    @property
    def is_probe(self) -> bool:
        return self.kind == "latency"


def read_generator(table: Table, latency_class: Class) -> tuple[Generator, Class]:
    """The generator of a traffic's table, and the class of service that it asked for."""
    kind = table.choice("generator", {name: name for name in GENERATORS})
    over = table.text("over", "tcp")
    if parse_over(over, table.place("over")).transport in ("delay", "mpi"):
        raise InputError(
            table.place("over"), f"{over} does not go between hosts", "use tcp, udp, ofi or verbs"
        )
    asked = {name: table.raw(name, None) for name in SHARED}
    given = {"over": over} | {name: value for name, value in asked.items() if value is not None}
    of_class = {name: given[name] for name in CLASS if name in given}
    if kind == "latency":
        settings = _probe(table, given)
    elif kind == "bandwidth":
        settings = _stream(table, {**BANDWIDTH, **given})
    else:
        settings = _stream(table, {**PRETEND, **(of_class or latency_class), **given})
    return Generator(kind=kind, settings=settings), of_class


def _probe(table: Table, given: Mapping[str, object]) -> Settings:
    estimator = table.choice("estimator", {name: name for name in ESTIMATORS}, "ping-pong")
    if estimator == "ping-pong":
        return _checked(table, estimator, settings_from(Settings, given, table.place("")))
    order = table.raw("order", None)
    settings = settings_from(RperfSettings, {**given, "order": order}, table.place(""))
    return _checked(table, estimator, settings)


def _stream(table: Table, given: Mapping[str, object]) -> Settings:
    asked = {name: table.raw(name, None) for name in STREAMED}
    own = {name: value for name, value in asked.items() if value is not None}
    settings = settings_from(Windowed, {**given, **own}, table.place(""))
    rate_bps = table.rate_bps("rate", None)
    if rate_bps is not None:
        settings = replace(settings, rate=rate_bps / 8 / settings.size_bytes)
    return _checked(table, "stream", settings)


def _checked(table: Table, test: str, settings: Settings) -> Settings:
    """As the single tests check them; told with the traffic's place in the plan."""
    refused = RPERF.refused if isinstance(settings, RperfSettings) else {}
    try:
        check_settings(test, settings, refused)
        if isinstance(settings, RperfSettings):
            check_rperf(settings)
    except InputError as error:
        where = f"{table.place(error.where.removeprefix('--'))}"
        raise InputError(where, error.problem, error.remedy) from error
    return settings
