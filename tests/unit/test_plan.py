"""Plans: what is read from them, and that a bad one is refused before anything starts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.errors import InputError
from weft.measure.plan import SHARED, STREAMED, load_plan, plan_from
from weft.measure.settings.options import Windowed

PLAN: dict[str, Any] = {
    "name": "converged",
    "duration": "2 s",
    "warmup": "500 ms",
    "repetitions": 2,
    "host": [
        {"name": "receiver", "address": "10.0.0.1"},
        {"name": "probe", "address": "10.0.0.2"},
        {"name": "s1", "address": "10.0.0.3"},
        {"name": "s2"},
    ],
    "traffic": [
        {
            "name": "probe",
            "generator": "latency",
            "pattern": "one-to-one",
            "from": "probe",
            "to": "receiver",
            "dscp": 46,
        },
        {
            "name": "senders",
            "generator": "bandwidth",
            "pattern": "many-to-one",
            "from": ["s1", "s2"],
            "to": "receiver",
            "size": "64 KiB",
            "depth": 8,
            "rate": "100 Mb/s",
        },
        {
            "name": "hog",
            "generator": "pretend-latency",
            "pattern": "one-to-one",
            "from": "s2",
            "to": "receiver",
        },
    ],
    "sweep": {"traffic.senders.count": [0, 1, 2]},
}


def test_steps_are_the_points_of_the_sweep_in_each_repetition() -> None:
    program = plan_from(PLAN)
    counts = [step.settings["traffic.senders.count"] for step in program.steps]
    assert counts == [0, 1, 2, 0, 1, 2]
    assert [step.repetition for step in program.steps] == [1, 1, 1, 2, 2, 2]
    flows = [flow.name for flow in program.steps[2].flows if flow.traffic == "senders"]
    assert flows == ["senders.s1-receiver", "senders.s2-receiver"]
    assert {step.duration_ns for step in program.steps} == {2_000_000_000}
    assert {step.warmup_ns for step in program.steps} == {500_000_000}


def test_pretend_latency_is_small_batched_and_in_the_class_of_the_latency_traffic() -> None:
    flows = {flow.traffic: flow.generator for flow in plan_from(PLAN).steps[0].flows}
    hog = flows["hog"].settings
    assert isinstance(hog, Windowed)
    assert hog.dscp == 46
    assert hog.size_bytes == 256
    assert hog.post_list > 1


def test_a_rate_in_bits_is_one_in_messages() -> None:
    flows = {flow.traffic: flow.generator for flow in plan_from(PLAN).steps[1].flows}
    senders = flows["senders"].settings
    assert isinstance(senders, Windowed)
    assert senders.dscp == 0
    assert senders.rate == pytest.approx(100e6 / 8 / 65536)


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(plan: dict[str, Any]) -> None:
        *steps, last = path.split(".")
        at: Any = plan
        for step in steps:
            at = at[int(step)] if step.isdecimal() else at[step]
        at[last] = value

    return change


def _drop(path: str) -> Callable[[dict[str, Any]], None]:
    def change(plan: dict[str, Any]) -> None:
        plan.pop(path)

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_set("traffic.1.from", ["s1", "s9"]), "traffic.senders.from: 's9' is not a host"),
        (_set("traffic.1.to", "nobody"), "'nobody' is not a host of the plan; hosts are receiver"),
        (_set("host.2.address", "10.0.0.1"), "host.s1.address: 10.0.0.1 is also receiver's"),
        (_set("host.2.name", "probe"), "host.probe.name: is given twice"),
        (_set("duration", "0 s"), "duration: '0 s' is too short"),
        (_set("duration", 2), "is not a time"),
        (_set("repetitions", 0), "repetitions: 0 is out of range"),
        (_set("colour", "red"), "colour: is not a known key"),
        (_set("host.0.colour", "red"), "host.receiver.colour: is not a known key"),
        (_set("traffic.0.colour", "red"), "traffic.probe.colour: is not a known key"),
        (_set("traffic.0.depth", 4), "traffic.probe.depth: is not a known key"),
        (_set("traffic.1.post_list", 16), "traffic.senders.post-list: 16 exceeds the 8 messages"),
        (_set("traffic.1.sl", 3), "traffic.senders.sl: tcp has no such setting"),
        (_set("traffic.0.estimator", "rperf"), "a send completes when the kernel has it"),
        (_set("traffic.1.pattern", "ring"), "use one of one-to-one"),
        (_set("traffic.0.to", ["receiver", "s1"]), "1 sources and 2 targets"),
        (_set("traffic.1.over", "smoke"), "traffic.senders.over: 'smoke' is not a transport"),
        (_set("traffic.1.over", "delay"), "does not go between hosts"),
        (_set("traffic.1.dscp", 64), "traffic.senders.dscp: 64 is too large"),
        (_set("traffic.2.name", "probe"), "'probe' is taken"),
        (_set("sweep", {"traffic.nobody.count": [1]}), "sweep.traffic.nobody.count: names no"),
        (_set("sweep", {"traffic.senders.count": [0, 3]}), "senders.count: 3 is out of range"),
        (_set("sweep", {"traffic.senders.count": []}), "is not a list of values"),
        (_set("sweep", {"traffic.senders.count": [1, 1]}), "has a value twice"),
        (_set("sweep", {"host": [1]}), "cannot be swept"),
        (_set("host", []), "host: 0 hosts; name at least 2"),
        (_set("traffic", []), "traffic"),
        (_drop("duration"), "duration: is missing"),
        (_drop("host"), "host: is missing"),
    ],
)
def test_a_bad_plan_is_refused_with_its_key(
    change: Callable[[dict[str, Any]], None], told: str
) -> None:
    plan = copy.deepcopy(PLAN)
    change(plan)
    with pytest.raises(InputError) as refused:
        plan_from(plan, where="p.toml")
    assert str(refused.value).startswith("p.toml: ")
    assert told in str(refused.value)


def test_a_plan_in_which_no_step_has_a_flow_is_refused() -> None:
    plan = copy.deepcopy(PLAN)
    plan["traffic"] = [plan["traffic"][1]]
    plan["sweep"] = {"traffic.senders.count": [0]}
    with pytest.raises(InputError, match="no step has a flow"):
        plan_from(plan)


EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "plans").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_plans(path: Path) -> None:
    assert load_plan(path).steps


def test_every_key_of_a_traffic_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "many-hosts.md").read_text()
    for key in (*SHARED, *STREAMED):
        assert f"`{key}`" in text
