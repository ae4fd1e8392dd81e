"""A budget on a lane: pretenders are demoted, probes are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.errors import InputError
from weft.records import Distribution, Record, Scalar
from weft.simulate import load_scenario, simulate

FILE = Path(__file__).parents[2] / "examples/scenarios/gaming-budget.toml"
BUDGET = "lanes.budget"


def run(**overrides: Any) -> Record:
    settings = {"duration": "3 ms", **{k.replace("__", "."): v for k, v in overrides.items()}}
    return simulate(load_scenario(FILE, settings), threads=1).record


def find_tail_ps(record: Record) -> float:
    rtt = record.quantities["probe.rtt"]
    assert isinstance(rtt, Distribution)
    return float(rtt.histogram.quantile(0.999))


def find_scalar(record: Record, name: str) -> float:
    value = record.quantities[name]
    assert isinstance(value, Scalar)
    return value.value


def test_after_its_demotion_a_pretender_costs_the_probe_less_than_a_fifth() -> None:
    """Alone: the probe beside the senders; the pretender sends one message in the warm-up."""
    policed = run()
    assert find_scalar(policed, "pretender.demoted") < 100.0
    alone = run(traffic__pretender__messages=1)
    gamed = run(lanes__budget__rate="100 Gb/s")
    assert find_tail_ps(gamed) > 5 * find_tail_ps(alone)
    assert find_tail_ps(policed) < 1.2 * find_tail_ps(alone)
    assert not [note for note in policed.notes if note.startswith("probe")]


def test_a_flow_within_its_budget_runs_as_without_one() -> None:
    """The budget is a policer, not a shaper."""
    record = run(lanes__budget__rate="100 Gb/s")
    free = simulate(load_scenario(FILE.with_name("gaming.toml"), {"duration": "3 ms"}), threads=1)
    assert record.quantities == free.record.quantities


def test_a_demoted_flow_sends_all_of_its_messages() -> None:
    record = run(traffic__pretender__messages=5000)
    finished = find_scalar(record, "pretender-demoted.finished")
    assert find_scalar(record, "pretender.demoted") < finished < 3000
    assert "pretender: h4-h6 exceeded its budget and was demoted at " in "\n".join(record.notes)


def test_a_second_run_demotes_at_the_same_time() -> None:
    assert run().quantities == run().quantities


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("demote_to", 1, "is 1 itself; name another level"),
        ("sl", 16, "16"),
        ("rat", "1 Gb/s", "known here"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(key: str, value: object, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        load_scenario(FILE, {f"{BUDGET}.{key}": value})


def test_at_flow_level_there_is_no_budget(tmp_path: Path) -> None:
    text = FILE.read_text().partition('[[traffic]]\nname = "probe"')[0]
    text = text.replace("high_limit = 1", "").replace('kind = "pretend"', 'kind = "bandwidth"')
    path = tmp_path / "flow.toml"
    path.write_text(text.replace('from = "h4"', 'from = "h4"\nsize = "256 B"'))
    with pytest.raises(InputError, match=r"lanes\.budget: has no meaning at flow level"):
        load_scenario(path, {"level": "flow"})
