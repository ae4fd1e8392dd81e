"""Controllers at flow level: what ports do between two of their updates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest

from weft.errors import InputError
from weft.records import Scalar
from weft.simulate import Outcome, scenario_from, simulate
from weft.simulate.port_controller import LivePorts

MB = 10**6
PACKET = 4096 / (4096 + 26)  # payload of a full packet's bytes on the wire


@dataclass
class Controller:
    """Calls `act` at each update, and remembers what it saw."""

    act: Callable[[LivePorts], object] = LivePorts.count_bytes_left  # changes nothing
    queues: int = 4
    on: Literal["jobs", "stages"] = "jobs"
    seen: list[tuple[float, list[str], list[str]]] = field(default_factory=list)

    def update(self, ports: LivePorts) -> None:
        present, sending = (
            [ports.jobs[job] for job in jobs] for jobs in (ports.present, ports.sending)
        )
        self.seen.append((ports.now_ps / 1e9, present, sending))
        self.act(ports)


def build(*sizes_mb: float, starts_ms: tuple[float, ...] = (), **more: Any) -> dict[str, Any]:
    """Streams of so many MB from a host each to h0, over one port of 1 GB/s of payload."""
    traffic = [
        {
            "name": f"job{i}",
            "kind": "incast",
            "from": f"h{i + 1}",
            "to": "h0",
            "size": f"{int(size * MB)} B",
            "start": f"{starts_ms[i] if starts_ms else 0} ms",
        }
        for i, size in enumerate(sizes_mb)
    ]
    fabric = {
        "topology": "one_switch",
        "hosts": len(sizes_mb) + 1,
        "rate": f"{8e9 / PACKET} b/s",
        "delay": "0 ns",
    }
    return {"duration": "1 s", "level": "flow", "fabric": fabric, "traffic": traffic, **more}


def run(data: dict[str, Any], controller: Controller) -> Outcome:
    return simulate(scenario_from(data), controller=controller)


def ends_ms(outcome: Outcome) -> list[float]:
    quantities = outcome.record.quantities
    values = [q for name, q in quantities.items() if name.endswith(".finished")]
    return [v.value / 1e3 for v in values if isinstance(v, Scalar)]


def test_without_a_program_all_jobs_share_one_queue() -> None:
    assert ends_ms(run(build(1, 1), Controller())) == pytest.approx([2, 2], rel=1e-3)


def test_it_is_called_as_jobs_arrive_and_leave() -> None:
    controller = Controller()
    run(build(2, 0.5, starts_ms=(0, 1)), controller)
    assert [time_ms for time_ms, _, _ in controller.seen] == pytest.approx([0, 1, 2], rel=1e-3)
    assert [present for _, present, _ in controller.seen] == [["job0"], ["job0", "job1"], ["job0"]]


def share(weights: list[float], **more: Any) -> Callable[[LivePorts], None]:
    """Job i in queue i, with these weights at all ports."""

    def act(ports: LivePorts) -> None:
        queues = np.arange(len(ports.jobs)) % len(weights)
        ports.program(np.arange(ports.count), weights, queues, **more)

    return act


def test_queues_share_by_weight_and_lend_when_empty() -> None:
    """3:1 until the first has sent 3 MB in 4 ms; then 2 MB are left of the second."""
    outcome = run(build(3, 3), Controller(share([3, 1, 1, 1])))
    assert ends_ms(outcome) == pytest.approx([4, 6], rel=1e-3)


def test_weights_change_when_the_controller_says_so() -> None:
    """Equal for 2 ms, then 3:1 for the newcomer: job0 has 2 of 3 MB left at 2 ms."""

    def act(ports: LivePorts) -> None:
        share([1, 3, 1, 1] if 2 in ports.present else [1, 1, 1, 1])(ports)

    outcome = run(build(3, 3, 0.5, starts_ms=(0, 0, 2)), Controller(act))
    # from 2 ms on job0 gets 1/5, job1 3/5, job2 1/5 until 4.5 ms; then halves again
    left = [2 - 0.5, 2 - 1.5]
    second = 4.5 + left[1] * 2
    assert ends_ms(outcome) == pytest.approx([second + left[0] - left[1], second, 4.5], rel=1e-3)


def test_bytes_are_counted_in_the_queue_they_passed() -> None:
    def act(ports: LivePorts) -> None:
        queue = 1 if 0 in ports.present and 1 in ports.present else 0
        ports.program(np.arange(ports.count), [1, 1, 1, 1], [queue, queue])

    outcome = run(build(2, 1, starts_ms=(0, 1)), Controller(act))
    rows = [r for r in outcome.record.tables["ports"] if r["peer"] == "h0"]
    sent = {row["vl"]: float(row["wire_B"] or 0) * PACKET / MB for row in rows}
    assert sent == pytest.approx({0: 1, 1: 2}, rel=2e-3)


def test_queues_with_priority_go_first() -> None:
    outcome = run(build(1, 1), Controller(share([1, 1, 1, 1], priorities=[1, 0, 0, 0])))
    assert ends_ms(outcome) == pytest.approx([2, 1], rel=1e-3)


def test_jobs_go_in_the_order_given() -> None:
    outcome = run(build(1, 2, 1), Controller(lambda ports: ports.order_jobs([1, 0, 1])))
    assert ends_ms(outcome) == pytest.approx([4, 2, 4], rel=1e-3)


def test_a_program_ends_the_order() -> None:
    def act(ports: LivePorts) -> None:
        if 2 in ports.present:
            ports.order_jobs([2, 1, 0])
        else:
            share([1, 1, 1, 1])(ports)

    assert ends_ms(run(build(1, 1, 1), Controller(act))) == pytest.approx([3, 3, 1], rel=1e-3)


def test_the_fewest_bytes_left_go_first() -> None:
    """The newcomer of 1.5 MB waits for the one that has 1 MB left, the other goes last."""
    data = build(2, 4, 1.5, starts_ms=(0, 0, 1))
    outcome = run(data, Controller(lambda ports: ports.order_flows()))
    assert ends_ms(outcome) == pytest.approx([2, 7.5, 3.5], rel=1e-3)


def test_within_a_level_of_bytes_left_messages_share() -> None:
    """Both above the cut-off share until 1 MB is sent of each; both are below it at once."""
    outcome = run(build(2, 2.5), Controller(lambda ports: ports.order_flows([1.2 * MB])))
    assert ends_ms(outcome)[0] < ends_ms(outcome)[1] == pytest.approx(4.5, rel=1e-3)


def test_stages_are_reported_if_asked_for() -> None:
    stage = {"compute": "1 ms", "volume": "1 MB", "pattern": "shuffle"}
    job = {"name": "sort", "instances": 2, "stage": [{"name": n, **stage} for n in "ab"]}
    data = build(1)
    data |= {"traffic": [], "job": [job]}
    quiet, watching = Controller(), Controller(on="stages")
    run(data, quiet)
    run(data, watching)
    assert [present for _, present, _ in quiet.seen] == [["sort"]]
    assert [bool(sending) for _, _, sending in watching.seen] == [False, True, False, True, False]


def test_it_sees_paths_and_bytes_left() -> None:
    def act(ports: LivePorts) -> None:
        senders = [ports.sender(port)[0] for port in range(ports.count)]
        into_h0 = int(np.flatnonzero(ports.jobs_at.all(axis=1))[0])
        assert ports.jobs_at.sum() == 4  # one link up each, and the one down that both share
        assert ports.rates_bps[into_h0] == pytest.approx(8e9 / PACKET)
        assert len(set(senders)) == 4
        left = ports.count_bytes_left()
        assert left.shape == (2, ports.count)
        expected = [1e6, 2e6] if ports.now_ps == 0 else [0, 1e6]
        assert left[:, into_h0] * PACKET == pytest.approx(expected, rel=1e-3)

    controller = Controller(act)
    run(build(1, 2), controller)
    assert controller.seen


@pytest.mark.parametrize(
    ("act", "problem"),
    [
        (lambda p: p.program([99], [1, 1, 1, 1]), "ports"),
        (lambda p: p.program([0], [1, 1]), "weights"),
        (lambda p: p.program([0], [1, 1, 1, -1]), "weights"),
        (lambda p: p.program([0], [1, 1, 1, 1], [4]), "queues"),
        (lambda p: p.program([0], [1, 1, 1, 1], [0], 0.5), "priorities"),
        (lambda p: p.order_jobs([1, 2]), "priorities"),
        (lambda p: p.order_flows([2, 1]), "cutoffs"),
    ],
)
def test_a_program_that_makes_no_sense_is_refused(
    act: Callable[[LivePorts], None], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        run(build(1), Controller(act))


def test_a_controller_that_the_scenario_cannot_have_is_refused() -> None:
    with pytest.raises(InputError, match="packet level"):
        run(build(1) | {"level": "packet"}, Controller())
    with pytest.raises(InputError, match="queues"):
        run(build(1), Controller(queues=0))
    with pytest.raises(InputError, match="on"):
        run(build(1), Controller(on="seconds"))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["2 s", "-1 ms"])
def test_a_step_that_makes_no_sense_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="step"):
        scenario_from(build(1, flow={"step": value}))


def test_a_step_delays_starts_and_freed_bandwidth_by_less_than_itself() -> None:
    exact = ends_ms(run(build(3, 1, 2, starts_ms=(0, 0.13, 0.57)), Controller()))
    data = build(3, 1, 2, starts_ms=(0, 0.13, 0.57), flow={"step": "0.1 ms"})
    coarse = ends_ms(run(data, Controller()))
    assert all(0 <= b - a <= 5 * 0.1 for a, b in zip(exact, coarse, strict=True))
    assert coarse != pytest.approx(exact, rel=1e-3)
