"""A plan tried on the packet simulator: flows get what their ports' tables say.

The oracle is the definition: at a full port, goodput of a queue / goodput of all = its weight.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.control.operators.trial import (
    Flow,
    Scheduler,
    Trial,
    TrialInput,
    build_scenario,
    run_trial,
)
from weft.errors import InputError
from weft.fabric import Fabric, one_switch, two_hops
from weft.switches import Lane, PortName, Tables

LINK_BPS = 1e9
EFFICIENCY = 0.95  # at least: headers of packets of 4 KiB, and the first ones' way
PORT = PortName("switch0", 4)


@pytest.fixture(scope="module")
def star() -> Fabric:
    return one_switch(4, rate="1 Gb/s")


def build_tables(*weights: int, queues: int = 8, lane: Lane | None = None) -> Tables:
    """Level n in queue n."""
    more = (0,) * (queues - len(weights))
    used = range(len(weights))
    return Tables(
        queue_of=tuple(n if n in used else 0 for n in range(16)),
        weights=(*weights, *more),
        lane=lane,
    )


def run(
    fabric: Fabric,
    tables: dict[PortName, Tables],
    flows: list[Flow],
    scheduler: Scheduler = "vlarb",
) -> Trial:
    return run_trial(TrialInput(fabric=fabric, tables=tables, flows=flows, scheduler=scheduler))


def three_to_one() -> list[Flow]:
    return [
        Flow(application=f"app {n}", source=f"h{n}", target="h3", level=n + 1) for n in range(3)
    ]


@pytest.mark.parametrize(
    ("weights", "scheduler"),
    [
        ((1, 130, 65, 65), "vlarb"),
        ((65, 195, 65, 130), "vlarb"),
        ((10, 500_000, 300_000, 199_990), "htb"),
        ((10, 900_000, 59_990, 40_000), "htb"),
    ],
)
def test_a_full_port_is_shared_by_its_weights(
    star: Fabric, weights: tuple[int, ...], scheduler: Scheduler
) -> None:
    trial = run(star, {PORT: build_tables(*weights)}, three_to_one(), scheduler)
    goodputs = trial.by_application_bps
    total = sum(goodputs.values())
    shares = [goodputs[f"app {n}"] / total for n in range(3)]
    wanted = [weight / sum(weights[1:]) for weight in weights[1:]]
    assert shares == pytest.approx(wanted, abs=0.02)
    assert EFFICIENCY * LINK_BPS < total < LINK_BPS
    assert trial.ended == "time up"


def test_a_port_without_tables_is_one_queue_for_all(star: Fabric) -> None:
    goodputs = run(star, {}, three_to_one()).goodputs_bps
    assert goodputs == pytest.approx([sum(goodputs) / 3] * 3, rel=0.05)


def test_what_an_application_leaves_the_others_have(star: Fabric) -> None:
    alone = [Flow(application="b", source="h1", target="h3", level=2)]
    trial = run(star, {PORT: build_tables(1, 195, 65)}, alone)
    assert trial.by_application_bps["b"] > EFFICIENCY * LINK_BPS


def test_the_tighter_of_two_ports_decides() -> None:
    fabric = two_hops(2, 2, rate="1 Gb/s")
    uplink, last = PortName("switch0", 3), PortName("switch1", 1)
    flows = [
        Flow(application="a", source="h0", target="h2", level=1),
        Flow(application="b", source="h1", target="h2", level=2),
    ]
    first = run(fabric, {uplink: build_tables(1, 195, 65), last: build_tables(1, 65, 65)}, flows)
    assert first.by_application_bps["a"] / LINK_BPS == pytest.approx(0.74, abs=0.03)
    other = run(fabric, {uplink: build_tables(1, 65, 65), last: build_tables(1, 65, 65)}, flows)
    assert other.by_application_bps["a"] / LINK_BPS == pytest.approx(0.49, abs=0.03)


def test_acknowledgements_pass_ports_that_have_no_queue_for_unmanaged_traffic() -> None:
    fabric = two_hops(1, 2, rate="1 Gb/s")
    tight = Tables(queue_of=(1,) * 16, weights=(0, 65, 0, 0))
    apart = Tables(queue_of=(2, 2, 3, *[2] * 13), weights=(0, 0, 65, 65))
    both = {PortName("switch0", 2): apart, PortName("switch1", 3): tight}
    flows = [
        Flow(application="a", source="h0", target="h1", level=1),
        Flow(application="b", source="h0", target="h2", level=2),
        Flow(application="back", source="h1", target="h0", level=0),
    ]
    goodputs = run(fabric, both, flows).by_application_bps
    assert goodputs["a"] + goodputs["b"] > EFFICIENCY * LINK_BPS
    assert goodputs["back"] > 0.9 * LINK_BPS


def test_connections_of_one_application_are_summed(star: Fabric) -> None:
    flows = [Flow(application="a", source=f"h{n}", target="h3", level=1) for n in (0, 1)]
    flows.append(Flow(application="b", source="h2", target="h3", level=2))
    goodputs = run(star, {PORT: build_tables(1, 65, 65)}, flows).by_application_bps
    assert goodputs["a"] == pytest.approx(goodputs["b"], rel=0.05)


def test_a_latency_lane_goes_before_the_others_within_its_limit(star: Fabric) -> None:
    port = build_tables(1, 65, 65, 65, lane=Lane(queue=3, limit=0))
    goodputs = run(star, {PORT: port}, three_to_one()).by_application_bps
    # Limit 0: a packet of the lane, then one of the others, as long as both wait.
    assert goodputs["app 2"] / sum(goodputs.values()) == pytest.approx(0.5, abs=0.03)
    assert goodputs["app 0"] == pytest.approx(goodputs["app 1"], rel=0.1)


def test_ports_are_distinguished_by_name_and_have_maps_only_where_they_differ(star: Fabric) -> None:
    port = build_tables(1, 65, 65, 65)
    ports = {PORT: port, PortName("h0", 1): port}
    lanes = build_scenario(TrialInput(fabric=star, tables=ports, flows=three_to_one())).lanes
    names = {(star.nodes[node].name, number) for node, number, _ in lanes.port_tables}
    there = {(f"h{n}", 1) for n in range(4)} | {("switch0", n) for n in range(1, 5)}
    assert names == there  # there and back
    maps = {(star.nodes[node].name, out): queues[:4] for node, _, out, queues in lanes.port_sl2vl}
    assert lanes.sl2vl[:4] == (0, 0, 0, 0)
    assert maps == {("switch0", 4): (0, 1, 2, 3), ("h0", 1): (0, 1, 2, 3)}


def test_a_trial_lasts_as_long_as_the_slowest_port_on_a_path_needs(star: Fabric) -> None:
    def duration_ps(fabric: Fabric, source: str) -> int:
        flows = [Flow(application="a", source=source, target="h3", level=1)]
        return build_scenario(TrialInput(fabric=fabric, tables={}, flows=flows)).duration_ps

    first, *rest = star.links
    slow = replace(first, rate_bps=first.rate_bps / 10, rate_name="100 Mb/s")
    mixed = replace(star, links=(slow, *rest))
    assert duration_ps(mixed, "h0") == 10 * duration_ps(star, "h0")
    assert duration_ps(mixed, "h1") == duration_ps(star, "h1")


@pytest.mark.parametrize(
    ("flows", "problem"),
    [
        ([], "trial: no flows"),
        ([Flow(application="a", source="h0", target="h9", level=1)], "no node is called 'h9'"),
        ([Flow(application="a", source="h0", target="h0", level=1)], "from h0 to itself"),
        ([Flow(application="a", source="h0", target="h1", level=16)], "level 16; use 0 to 15"),
    ],
)
def test_flows_that_make_no_sense_are_refused(
    star: Fabric, flows: list[Flow], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        run(star, {}, flows)


def test_more_queues_than_the_simulator_has_lanes_are_refused() -> None:
    fabric = one_switch(17, rate="1 Gb/s")
    flows = [Flow(application="a", source=f"h{n}", target="h16", level=n) for n in range(16)]
    port = Tables(queue_of=tuple(range(16)), weights=(1,) * 16)
    with pytest.raises(InputError, match="16 queues are used, and the simulator has 15 lanes"):
        run(fabric, {PortName("switch0", 17): port}, flows)
