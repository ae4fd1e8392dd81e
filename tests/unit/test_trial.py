"""A plan tried on the packet simulator: flows get what their ports' tables say.

The oracle is the definition: at a full port, goodput of a queue / goodput of all = its weight.
"""

from __future__ import annotations

import pytest

from weft.control.operators.trial import Flow, Scheduler, build_scenario, run_trial
from weft.errors import InputError
from weft.fabric import Fabric, one_switch, two_hops
from weft.switches import Lane, PortName, Tables

LINK_BPS = 1e9
EFFICIENCY = 0.95  # at least: headers of packets of 4 KiB, and the first ones' way
PORT = PortName("switch0", 4)


@pytest.fixture(scope="module")
def star() -> Fabric:
    return one_switch(4, rate="1 Gb/s")


def told(*weights: int, queues: int = 8, lane: Lane | None = None) -> Tables:
    """Level n in queue n."""
    more = (0,) * (queues - len(weights))
    known = range(len(weights))
    return Tables(
        queue_of=tuple(n if n in known else 0 for n in range(16)),
        weights=(*weights, *more),
        lane=lane,
    )


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
    found = run_trial(star, {PORT: told(*weights)}, three_to_one(), scheduler=scheduler)
    goodputs = found.by_application_bps
    total = sum(goodputs.values())
    shares = [goodputs[f"app {n}"] / total for n in range(3)]
    wanted = [weight / sum(weights[1:]) for weight in weights[1:]]
    assert shares == pytest.approx(wanted, abs=0.02)
    assert EFFICIENCY * LINK_BPS < total < LINK_BPS
    assert found.ended == "time up"


def test_a_port_without_tables_is_one_queue_for_all(star: Fabric) -> None:
    found = run_trial(star, {}, three_to_one()).goodputs_bps
    assert found == pytest.approx([sum(found) / 3] * 3, rel=0.05)


def test_what_an_application_leaves_the_others_have(star: Fabric) -> None:
    alone = [Flow(application="b", source="h1", target="h3", level=2)]
    found = run_trial(star, {PORT: told(1, 195, 65)}, alone)
    assert found.by_application_bps["b"] > EFFICIENCY * LINK_BPS


def test_the_tighter_of_two_ports_decides() -> None:
    fabric = two_hops(2, 2, rate="1 Gb/s")
    uplink, last = PortName("switch0", 3), PortName("switch1", 1)
    flows = [
        Flow(application="a", source="h0", target="h2", level=1),
        Flow(application="b", source="h1", target="h2", level=2),
    ]
    first = run_trial(fabric, {uplink: told(1, 195, 65), last: told(1, 65, 65)}, flows)
    assert first.by_application_bps["a"] / LINK_BPS == pytest.approx(0.74, abs=0.03)
    other = run_trial(fabric, {uplink: told(1, 65, 65), last: told(1, 65, 65)}, flows)
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
    found = run_trial(fabric, both, flows).by_application_bps
    assert found["a"] + found["b"] > EFFICIENCY * LINK_BPS
    assert found["back"] > 0.9 * LINK_BPS


def test_connections_of_one_application_are_summed(star: Fabric) -> None:
    flows = [Flow(application="a", source=f"h{n}", target="h3", level=1) for n in (0, 1)]
    flows.append(Flow(application="b", source="h2", target="h3", level=2))
    found = run_trial(star, {PORT: told(1, 65, 65)}, flows).by_application_bps
    assert found["a"] == pytest.approx(found["b"], rel=0.05)


def test_a_latency_lane_goes_before_the_others_within_its_limit(star: Fabric) -> None:
    port = told(1, 65, 65, 65, lane=Lane(queue=3, limit=0))
    found = run_trial(star, {PORT: port}, three_to_one()).by_application_bps
    # Limit 0: a packet of the lane, then one of the others, as long as both wait.
    assert found["app 2"] / sum(found.values()) == pytest.approx(0.5, abs=0.03)
    assert found["app 0"] == pytest.approx(found["app 1"], rel=0.1)


def test_ports_are_told_apart_by_name_and_maps_only_where_they_differ(star: Fabric) -> None:
    port = told(1, 65, 65, 65)
    lanes = build_scenario(star, {PORT: port, PortName("h0", 1): port}, three_to_one()).lanes
    names = {(star.nodes[node].name, number) for node, number, _ in lanes.port_tables}
    there = {(f"h{n}", 1) for n in range(4)} | {("switch0", n) for n in range(1, 5)}
    assert names == there  # there and back
    maps = {(star.nodes[node].name, out): own[:4] for node, _, out, own in lanes.port_sl2vl}
    assert lanes.sl2vl[:4] == (0, 0, 0, 0)
    assert maps == {("switch0", 4): (0, 1, 2, 3), ("h0", 1): (0, 1, 2, 3)}


@pytest.mark.parametrize(
    ("flows", "told_of"),
    [
        ([], "trial: no flows"),
        ([Flow(application="a", source="h0", target="h9", level=1)], "no node is called 'h9'"),
        ([Flow(application="a", source="h0", target="h0", level=1)], "from h0 to itself"),
        ([Flow(application="a", source="h0", target="h1", level=16)], "level 16; use 0 to 15"),
    ],
)
def test_flows_that_make_no_sense_are_refused(
    star: Fabric, flows: list[Flow], told_of: str
) -> None:
    with pytest.raises(InputError, match=told_of):
        run_trial(star, {}, flows)


def test_more_queues_than_the_simulator_has_lanes_are_refused() -> None:
    fabric = one_switch(17, rate="1 Gb/s")
    flows = [Flow(application="a", source=f"h{n}", target="h16", level=n) for n in range(16)]
    port = Tables(queue_of=tuple(range(16)), weights=(1,) * 16)
    with pytest.raises(InputError, match="16 queues are used, and the simulator has 15 lanes"):
        run_trial(fabric, {PortName("switch0", 17): port}, flows)
