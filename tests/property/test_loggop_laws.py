"""The LogGOP network beside a second, slow program of the same rules, over random workloads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from workload_instances import workloads

from weft.simulate.workload import COMPUTE, RECEIVE, SEND, STARTS, Operations
from weft.simulate.workload.operations import UNENDED_PS, LogGop, run_loggop


class SlowLogGop:
    """Dictionaries and lists searched from the start; times in ps.

    A processor is (rank, cpu). Every step takes the event that comes first by time and then by the
    order in which it was made; one whose processor or adapter is busy is put off.
    """

    def __init__(self, operations: Operations, network: LogGop) -> None:
        self.ops, self.net = operations, network
        bounds = operations.dependency_start
        self.waits = {
            i: list(
                zip(
                    operations.dependency[bounds[i] : bounds[i + 1]].tolist(),
                    operations.dependency_kind[bounds[i] : bounds[i + 1]].tolist(),
                    strict=True,
                )
            )
            for i in range(len(operations))
        }
        self.ready = dict.fromkeys(self.waits, 0)
        self.ended = dict.fromkeys(self.waits, UNENDED_PS)
        self.processor: dict[tuple[int, int], int] = {}
        self.adapter: dict[tuple[str, int], int] = {}
        self.posted: list[int] = []
        self.here: list[
            tuple[int, int]
        ] = []  # sends whose message is here, and since when received
        self.events: list[tuple[int, int, int, bool]] = []
        self.made = 0

    def run(self) -> list[int]:
        for rank in range(self.ops.ranks):
            self._release([i for i, w in self.waits.items() if not w and self.ops.rank[i] == rank])
        while self.events:
            self.events.sort()
            self._step(*self.events.pop(0))
        return list(self.ended.values())

    def _step(self, now: int, made: int, i: int, is_message: bool) -> None:
        kind, size = int(self.ops.kind[i]), int(self.ops.size_bytes[i])
        rank = int(self.ops.peer[i] if is_message else self.ops.rank[i])
        cpu, extra = (rank, int(self.ops.cpu[i])), max(size - 1, 0)
        side = ("in" if is_message else "out", rank)
        busy = 0 if kind == RECEIVE else self.processor.get(cpu, 0)
        if kind == SEND:
            busy = max(busy, self.adapter.get(side, 0))
        if busy > now:
            self.events.append((busy, made, i, is_message))
            return
        freed: list[int] = []
        if kind == COMPUTE:
            self.processor[cpu] = now + int(self.ops.duration_ps[i])
            freed += self._started(i, now) + self._ended(i, self.processor[cpu])
        elif kind == RECEIVE:
            freed += self._started(i, now)
            match = next((m for m in self.here if self._matches(m[0], i)), None)
            if match:
                self.here.remove(match)
                freed += self._take(match[0], now) + self._ended(i, max(now, match[1]))
            else:
                self.posted.append(i)
        else:
            o, gap = self.net.overhead_ps, self.net.gap_ps_per_byte
            per_byte = max(gap, self.net.overhead_ps_per_byte) if is_message else None
            own = self.net.overhead_ps_per_byte if per_byte is None else per_byte
            self.processor[cpu] = now + o + round(extra * own)
            self.adapter[side] = now + self.net.gap_ps + round(extra * gap)
            if is_message:
                receive = next((r for r in self.posted if self._matches(i, r)), None)
                if receive is None:
                    self.here.append((i, self.processor[cpu]))
                else:
                    self.posted.remove(receive)
                    freed += self._take(i, now) + self._ended(receive, self.processor[cpu])
            else:
                freed += self._started(i, now)
                self._add(now + o + self.net.latency_ps, i, True)
                if size <= self.net.rendezvous_above_bytes:
                    freed += self._ended(i, self.processor[cpu])
        self._release(freed)

    def _take(self, send: int, now: int) -> list[int]:
        """The receive takes the message: a sender above S is free again."""
        if self.ops.size_bytes[send] <= self.net.rendezvous_above_bytes:
            return []
        rank, cpu = int(self.ops.rank[send]), int(self.ops.cpu[send])
        self.processor[rank, cpu] = max(self.processor[rank, cpu], now)
        self.adapter["out", rank] = max(self.adapter["out", rank], now)
        return self._ended(send, now)

    def _matches(self, send: int, receive: int) -> bool:
        return (
            self.ops.rank[send] == self.ops.peer[receive]
            and self.ops.peer[send] == self.ops.rank[receive]
            and self.ops.tag[send] == self.ops.tag[receive]
        )

    def _started(self, i: int, when: int) -> list[int]:
        return self._settle((i, STARTS), when)

    def _ended(self, i: int, when: int) -> list[int]:
        self.ended[i] = when
        return self._settle((i, 1 - STARTS), when)

    def _settle(self, what: tuple[int, int], when: int) -> list[int]:
        """Strike out a dependency; the operations that wait for nothing now."""
        freed = []
        for i, waits in self.waits.items():
            if what in waits:
                waits[:] = [w for w in waits if w != what]
                self.ready[i] = max(self.ready[i], when)
                freed += [] if waits else [i]
        return freed

    def _release(self, freed: list[int]) -> None:
        for i in sorted(freed, key=lambda i: (self.ops.rank[i], self.ops.kind[i], i)):
            rank = int(self.ops.rank[i])
            when = max(self.ready[i], self.processor.get((rank, int(self.ops.cpu[i])), 0))
            if self.ops.kind[i] == SEND:
                when = max(when, self.adapter.get(("out", rank), 0))
            self._add(when, i, False)

    def _add(self, when: int, i: int, is_message: bool) -> None:
        self.events.append((when, self.made, i, is_message))
        self.made += 1


PARAMETERS = st.builds(
    LogGop,
    latency_ps=st.integers(0, 5000),
    overhead_ps=st.integers(0, 2000),
    gap_ps=st.integers(0, 2000),
    gap_ps_per_byte=st.integers(0, 10).map(float),
    overhead_ps_per_byte=st.integers(0, 10).map(float),
)


@given(workloads(), PARAMETERS, st.sampled_from([0, 100, 2**40]))
def test_every_operation_ends_as_the_slow_program_says(
    operations: Operations, network: LogGop, eager: int
) -> None:
    network = replace(network, rendezvous_above_bytes=eager)
    assert (
        run_loggop(operations, network).ended_ps.tolist() == SlowLogGop(operations, network).run()
    )


@given(workloads(), PARAMETERS, st.integers(1, 5))
def test_all_times_scale_with_the_parameters(
    operations: Operations, network: LogGop, factor: int
) -> None:
    """Times are homogeneous: all parameters and durations times k give all ends times k."""
    scaled = LogGop(
        latency_ps=network.latency_ps * factor,
        overhead_ps=network.overhead_ps * factor,
        gap_ps=network.gap_ps * factor,
        gap_ps_per_byte=network.gap_ps_per_byte * factor,
        overhead_ps_per_byte=network.overhead_ps_per_byte * factor,
    )
    longer = replace(operations, duration_ps=operations.duration_ps * factor)
    once = run_loggop(operations, network).ended_ps
    expected = np.where(once == UNENDED_PS, UNENDED_PS, once * factor)
    assert run_loggop(longer, scaled).ended_ps.tolist() == expected.tolist()
