"""A job states its size: what it is going to move counts, and not what its profile moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from control_parts import KINDS, after, connect, empty, fabric_event, key
from control_rig import Rig

from weft.cli import main
from weft.control.client.app import parse_job_size
from weft.control.cluster.follower import decode_rows, encode_rows
from weft.control.operators.explain import explain_application, explain_port, find_registrations
from weft.control.operators.explain_text import format_applications, format_port
from weft.control.policy.objectives import BOUNDED, PROFILED, SIZE, STATED, STATED_FACTOR, UNKNOWN
from weft.control.runtime.restore import restore_state
from weft.control.state.events import (
    ApplicationModel,
    ApplicationRow,
    Deregister,
    ModelChanged,
    Refusal,
    Register,
    Registered,
)
from weft.control.state.policy_settings import Settings
from weft.control.state.state import State
from weft.control.state.step import run_batch
from weft.errors import InputError
from weft.switches import PortName

BY_SIZE = Settings(objective=SIZE)
MODELS = {
    "sort": ApplicationModel(curve=KINDS["calm"].curve, size_bytes=1e9),
    "scan": ApplicationModel(curve=KINDS["middling"].curve, size_bytes=1e9),
    "walk": ApplicationModel(curve=KINDS["keen"].curve),
}
UPLINK = PortName("h0", 1)


def ready(settings: Settings = BY_SIZE) -> State:
    return after(empty(settings, MODELS), fabric_event())


def start(state: State, name: str, number: int, size_bytes: int = 0, job: str = "") -> State:
    """One more registration, with a connection from h0 to h2."""
    request = Register(
        key=key(number, "r"), name=name, ttl_s=9.0, now_s=0.0, job=job, size_bytes=size_bytes
    )
    outcome = run_batch(state, [request])
    (answer,) = outcome.answers
    assert isinstance(answer, Registered), answer
    return after(outcome.state, connect(answer.id, "h0", "h2", number))


def shares_of(state: State) -> dict[str, float]:
    assert state.plan is not None
    assert state.paths is not None
    return state.plan.ports[state.paths.ports[UPLINK]].shares


def test_a_stated_size_goes_before_that_of_the_profile() -> None:
    alike = shares_of(start(start(ready(), "sort", 1), "scan", 2))
    assert alike["sort#1"] == pytest.approx(alike["scan#2"], abs=0.01)
    state = start(start(ready(), "sort", 1, 4 * 10**9), "scan", 2)
    assert shares_of(state)["scan#2"] == pytest.approx(4 * shares_of(state)["sort#1"], rel=0.03)
    assert state.find_size("sort#1") == (4e9, STATED)
    assert state.find_size("scan#2") == (1e9, PROFILED)
    assert start(state, "walk", 3).find_size("walk#3") == (None, UNKNOWN)


def test_a_stated_size_counts_within_a_factor_of_the_profiles() -> None:
    state = start(start(ready(), "sort", 1, 1), "scan", 2)
    assert state.find_size("sort#1") == (1e9 / STATED_FACTOR, BOUNDED)
    assert start(ready(), "sort", 1, 10**12).find_size("sort#1") == (1e9 * STATED_FACTOR, BOUNDED)
    assert start(ready(), "walk", 1, 1).find_size("walk#1") == (1, STATED), "no profile bounds it"


def test_sizes_change_no_weight_under_another_objective() -> None:
    for objective in ("equal", "slowdown"):
        quiet = ready(Settings(objective=objective))
        without = start(start(quiet, "sort", 1), "scan", 2)
        assert start(start(quiet, "sort", 1, 10**12), "scan", 2).target == without.target


def test_the_largest_size_that_a_rank_states_is_its_jobs() -> None:
    state = start(start(ready(), "scan", 1), "sort", 2, 10**8, job="j")
    assert shares_of(state)["sort#2"] > 0.8
    state = start(state, "sort", 3, 10**10, job="j")
    assert state.find_size("sort#2") == (1e10, STATED)
    assert shares_of(state)["sort#2"] < 0.2
    assert state == start(start(state, "sort", 2, job="j"), "sort", 3, job="j"), "keys repeated"
    state = run_batch(state, [Deregister(key=key(1, "d"), application="sort#3")]).state
    assert state.find_size("sort#2") == (1e8, STATED)
    assert shares_of(state)["sort#2"] > 0.8
    state = run_batch(state, [Deregister(key=key(2, "d"), application="sort#2")]).state
    assert state.plan is not None
    assert not state.plan.policy.stated_bytes


def test_a_profile_of_another_size_splits_its_ports_again() -> None:
    state = start(start(ready(), "sort", 1), "scan", 2)
    larger = ApplicationModel(curve=MODELS["sort"].curve, size_bytes=4e9)
    state = after(state, ModelChanged(name="sort", model=larger))
    assert shares_of(state)["scan#2"] == pytest.approx(4 * shares_of(state)["sort#1"], rel=0.03)


def test_sizes_survive_a_restart_and_reach_other_groups(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "control.db")
    rig.settle()
    request = Register(key=key(1, "r"), name="calm", ttl_s=9.0, now_s=0.0, size_bytes=2**60)
    assert isinstance(rig.ask(request), Registered)
    restored = restore_state(rig.store.load(), Settings(), rig.engine.state.models, 0.0).state
    rig.close()
    assert restored.find_size("calm#1") == (2.0**60, STATED)
    sized = ApplicationRow(id="calm#1@a", name="calm", ttl_s=9.0, unit="calm#1@a", size_bytes=7)
    plain = ApplicationRow(id="calm#2@a", name="calm", ttl_s=9.0, unit="calm#2@a")
    changes = encode_rows([sized, plain], "a", publishes=False)
    assert decode_rows(changes) == (sized, plain)
    assert len(changes[1]) == 7, "as controllers without sizes read it"


def test_explanations_say_where_a_size_comes_from() -> None:
    state = ready()
    for number, (name, size) in enumerate((("sort", 8 * 2**30), ("scan", 0), ("walk", 0)), 1):
        state = start(state, name, number, size)
    account = explain_port(state, UPLINK)
    assert not isinstance(account, Refusal)
    text = format_port(state, account)
    for words in (
        "8 GiB stated",
        "953.7 MiB of the profile",
        "Why: jobs share 100% of the link in inverse proportion to their sizes, at least 1/16 of "
        "the largest; an unknown size counts as the geometric mean of the others.",
    ):
        assert words in text, text
    accounts = explain_application(state, "sort#1")
    assert isinstance(accounts, list)
    told = format_applications(state, find_registrations(state, "sort#1"), accounts)
    assert told.startswith("sort#1: level 1, 1 connection, size 8 GiB stated\n")
    quiet = start(ready(Settings(objective="equal")), "walk", 1)
    account = explain_port(quiet, UPLINK)
    assert not isinstance(account, Refusal)
    assert "Why: jobs share 100% of the link equally." in format_port(quiet, account)


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("40G", 40 * 2**30), ("1.5kB", 1500), (7, 7), ("1", 1), (None, 0)]
)
def test_sizes_are_written_as_elsewhere(text: str | int | None, size_bytes: int) -> None:
    assert parse_job_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0", "0 is no size of a job; give 1 byte to 1 EiB, or leave it out"),
        ("-3", "-3 is no size of a job; give 1 byte to 1 EiB, or leave it out"),
        ("2000000T", "2000000T is no size of a job; give 1 byte to 1 EiB, or leave it out"),
        ("1.5", "'1.5' is not a whole number of bytes; write bytes, or a number and K"),
        ("lots", "'lots' is not a size; write bytes, or a number and K"),
        ("", "'' is not a size; write bytes, or a number and K"),
    ],
)
def test_what_is_no_size_is_refused_in_one_line(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError):
        parse_job_size(text)
    assert main(["run", "--app", "sort", f"--size={text}", "--", "true"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"weft: --size: {message}"), line
