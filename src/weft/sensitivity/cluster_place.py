"""A command is profiled here while the interfaces of all hosts of a Dask cluster are capped.

Each worker holds its own host's caps (`cluster_host`). Who takes part is every worker of the
cluster; one on this machine too, if its links are to be capped. Entry point: `on_cluster`. Units:
bits per second, seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from weft.errors import InputError
from weft.fleet import Coordinator, HostCalls, HostLost, dask_fleet
from weft.sensitivity.cluster_host import Held, hold
from weft.sensitivity.links import Links
from weft.sensitivity.place import Place, known_interfaces, speed_bps

JOIN_S = 60.0
ANSWER_S = 30.0  # a host's kernel, and its way to us through its own capped link


def on_cluster(
    scheduler: str,
    interfaces: Sequence[str],
    link_bps: float | None,
    *,
    allow_default_route: bool = False,
    sending_only: bool = False,
) -> Place:
    names = known_interfaces(interfaces)
    whole_bps = link_bps or speed_bps(names)
    held = Held(
        interfaces=names,
        link_bps=whole_bps,
        allow_default_route=allow_default_route,
        sending_only=sending_only,
    )
    only = ", sending only" if sending_only else ""
    return Place(
        what=f"cluster {scheduler}, interfaces {', '.join(names)}{only}",
        namespace=None,
        hostname="",
        interface=names[0],
        link_bps=whole_bps,
        slowest_bps=whole_bps,
        capping=partial(_cluster_links, scheduler, held),
    )


@contextmanager
def _cluster_links(scheduler: str, held: Held) -> Iterator[Links]:
    with (
        dask_fleet(scheduler) as fleet,
        Coordinator(list(fleet.executors), fleet.coordinator) as coordinator,
    ):
        calls = {
            host: executor.submit(hold, coordinator.invitation(host), held)
            for host, executor in fleet.executors.items()
        }
        links = _ClusterLinks(HostCalls(coordinator, fleet, calls))
        try:
            links.wait("holding", JOIN_S)
            yield links
        finally:
            late = links.calls.close(ANSWER_S)
        if late:
            problem = f"not done within {ANSWER_S:g} s"
            raise InputError(f"restoring {', '.join(late)}", problem, "see `tc qdisc show` there")


@dataclass(slots=True)
class _ClusterLinks:
    calls: HostCalls
    asked: int = 0

    def cap(self, share: float) -> None:
        self._ask("cap", share)

    def check(self, share: float) -> None:
        self._ask("check", share)

    def _ask(self, what: str, share: float) -> None:
        self.asked += 1
        self.calls.coordinator.announce("do", [self.asked, what, share])
        self.wait(f"did {self.asked}", ANSWER_S)

    def wait(self, kind: str, timeout_s: float) -> None:
        try:
            self.calls.gather(kind, timeout_s)
        except HostLost as lost:
            remedy = "its links are restored there; start its worker again"
            raise InputError(f"host {lost.host}", lost.reason, remedy) from lost
