"""The controller's metrics, for Prometheus: `http://HOST:PORT/metrics`.

Counts are read from the state and the port tracker at each scrape, in the scrape's own thread; only
durations are gathered as they happen. No metric has a label per connection or registration, so that
their number follows the fabric, not the load. docs/operations.md lists them.
Entry points: `Metrics`, `start_server`. Units: seconds, ratios of a link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from weft.control.runtime.config import MetricsAddress, Tls
from weft.control.runtime.engine import Engine
from weft.control.runtime.reconcile import Reconciler
from weft.control.state.state import State
from weft.switches import PortName, Tables
from weft.wire.prometheus import MetricsServer, format_family, format_labels

_PREFIX = "weft_control"
_COMMIT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_PROGRAMMING_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What is gathered as it happens; `watch` adds what is read at a scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._format_ports: Callable[[], str] = str
        ProcessCollector(registry=self.registry)
        self.commit_s = Histogram(
            f"{_PREFIX}_commit_seconds",
            "Time to put one batch of changes on disk.",
            buckets=_COMMIT_S,
            registry=self.registry,
        )
        self.programming_s = Histogram(
            f"{_PREFIX}_programming_seconds",
            "Time from a request to its tables read back from a port, by port.",
            buckets=_PROGRAMMING_S,
            registry=self.registry,
        )

    def watch(
        self, engine: Engine, reconciler: Reconciler, problems: Callable[[], Iterable[str]]
    ) -> None:
        self.registry.register(_Collector(engine, reconciler, problems))
        self._format_ports = lambda: (
            _format_weights(engine.state.target, reconciler.fabric_ports)
            + _format_sent(reconciler.sent)
        )

    def format(self) -> str:
        """All of it, as Prometheus reads it."""
        return generate_latest(self.registry).decode() + self._format_ports()


@dataclass(eq=False)  # hashed by the registry
class _Collector:
    engine: Engine
    reconciler: Reconciler
    problems: Callable[[], Iterable[str]]

    def describe(self) -> list[Metric]:
        """Nothing is read when it is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        state = self.engine.state
        problems = [*self.problems(), self.engine.problem, self.reconciler.problem]
        info = _gauge("build_info", "The version of weft.", labels=("version",))
        info.add_metric((version("weft"),), 1)
        yield info
        yield _gauge(
            "problems", "What `weft control status` complains of.", sum(map(bool, problems))
        )
        yield _gauge("store_writable", "Whether changes can be stored.", not self.engine.problem)
        yield from self._count_ports()
        yield from _count_clients(state)

    def _count_ports(self) -> Iterator[Metric]:
        counts = self.reconciler.report().counts
        statuses = {
            "programmed": counts.ports - counts.ports_pending - counts.ports_failing,
            "pending": counts.ports_pending,
            "failing": counts.ports_failing,
        }
        ports = _gauge("ports", "Ports with a target, by what was last read.", labels=("status",))
        for status, count in statuses.items():
            ports.add_metric((status,), count)
        yield ports
        yield _gauge("programmed_revision", "The last revision on all ports.", counts.programmed)
        drifts = "Ports that held something else than what was programmed."
        yield CounterMetricFamily(f"{_PREFIX}_drifts", drifts, counts.drifts)
        failures = "Reads and writes of ports that failed."
        yield CounterMetricFamily(f"{_PREFIX}_port_failures", failures, self.reconciler.failures)


def _count_clients(state: State) -> Iterator[Metric]:
    jobs = {application.unit for application in state.applications.values()}
    yield _gauge("revision", "The revision of the target tables.", state.revision)
    yield _gauge("leases", "Registrations that are alive.", len(state.applications))
    yield _gauge("jobs", "Jobs that count in the objective.", len(jobs))
    yield _gauge("connections", "Open connections.", len(state.connections))
    missing = "Open connections whose path is not known."
    yield _gauge("connections_without_path", missing, len(state.missing_paths))


def _gauge(
    name: str, text: str, value: float | None = None, labels: tuple[str, ...] | None = None
) -> Any:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value, labels)


def _format_weights(target: Mapping[PortName, Tables], present: Iterable[PortName]) -> str:
    shares: dict[Tables, list[tuple[int, float]]] = {}  # ports share a few tables
    samples: list[tuple[str, float]] = []
    for name in present:
        tables = target.get(name)
        if tables is None:
            continue
        if tables not in shares:
            total = sum(tables.weights)
            shares[tables] = [(n, w / total) for n, w in enumerate(tables.weights) if w]
        start = format_labels({"node": name.node, "port": name.port})[:-1]
        samples += [(f'{start},queue="{queue}"}}', share) for queue, share in shares[tables]]
    about = "The share of a link that a queue should have while all queues are busy."
    return format_family(f"{_PREFIX}_port_weight_ratio", "gauge", about, samples)


def _format_sent(sent: Mapping[PortName, tuple[int, ...]]) -> str:
    samples: list[tuple[str, int]] = []
    for name, counts in sent.items():
        start = format_labels({"node": name.node, "port": name.port})[:-1]
        samples += [(f'{start},queue="{queue}"}}', count) for queue, count in enumerate(counts)]
    about = "Bytes that a queue has sent, as of the last check of its port."
    return format_family(f"{_PREFIX}_port_sent_bytes_total", "counter", about, samples)


def start_server(metrics: Metrics, address: MetricsAddress, tls: Tls | None) -> MetricsServer:
    """Serves /metrics in threads of its own, with the TLS of the file beyond loopback."""
    files = None
    if tls is not None and not address.is_local:
        files = {"certificate": tls.certificate, "key": tls.key, "clients": tls.clients}
    server = MetricsServer(address.host, address.port, metrics.format, files)
    server.start()
    return server
