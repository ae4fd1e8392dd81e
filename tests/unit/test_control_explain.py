"""Explanations, forecasts and plans: numbers worked out by hand, and the words around them."""

from __future__ import annotations

import pytest
from control_parts import FABRIC, HTB, after, connect, key, ready, register, running

from weft.control.operators.explain import (
    MANAGED,
    UNMANAGED,
    WAITING,
    PortAccount,
    explain_application,
    explain_port,
    find_registrations,
)
from weft.control.operators.explain_text import format_applications, format_port
from weft.control.operators.forecast import (
    ProposalEffects,
    compute_mean_slowdown,
    evaluate_proposal,
    forecast_all,
    forecast_application,
    predict_gain,
)
from weft.control.policy.plan import application_name
from weft.control.state.events import Deregister, NewApplication, Proposal, Refusal
from weft.control.state.state import State
from weft.control.state.step import run_events
from weft.switches import PortName

PORT = PortName("h0", 1)


def account(state: State, name: PortName = PORT) -> PortAccount:
    found = explain_port(state, name)
    assert isinstance(found, PortAccount), found
    return found


def test_a_port_s_account_says_who_has_what_and_what_more_would_bring() -> None:
    state, _ = running("calm", "keen")
    found = account(state)
    calm, keen = found.applications
    # √0.1 : √0.9 = 1 : 3 of 255.
    assert (calm.units, keen.units) == (64, 191)
    assert calm.slowdown == pytest.approx(1 + 0.1 * (255 / 64 - 1))
    assert calm.gain == pytest.approx(0.1 / (64 / 255) - 0.1 / (64 / 255 + 0.01))
    assert calm.gain_s == pytest.approx(100 * calm.gain)
    assert keen.gain_s is None  # its profile has no seconds
    # At the optimum more of the link is worth the same to both, to a unit.
    assert keen.gain == pytest.approx(calm.gain, rel=0.05)
    assert [queue.purpose for queue in found.queues[:4]] == [UNMANAGED, MANAGED, WAITING, MANAGED]
    assert (found.step, found.gap) == (1, 0)


def test_an_application_that_is_held_back_elsewhere_is_told_where() -> None:
    state, ids = running("keen")
    state, calm = register(state, "calm", 5)
    state = after(state, connect(calm, "h1", "h2", 5), connect(calm, "h1", "h0", 6))
    there = next(own for own in account(state, PortName("h1", 1)).applications if own.id == calm)
    assert there.share == 1.0
    assert there.least is not None
    assert there.least_share is not None
    assert there.least_share < 0.5
    assert ids == ["keen#1"]


def test_ports_that_are_not_managed_are_not_explained() -> None:
    state, _ = running("calm")
    refusal = explain_port(state, PortName("nowhere", 1))
    assert isinstance(refusal, Refusal)
    assert refusal.code == "NOT_FOUND"
    unknown = explain_application(state, "keen")
    assert isinstance(unknown, Refusal)


def test_a_port_without_applications_has_an_account_too() -> None:
    found = account(ready(), PortName("h3", 1))
    assert (found.applications, found.queues[0].purpose) == ((), UNMANAGED)


def test_a_port_that_was_told_nothing_is_said_to_be_so() -> None:
    state, _ = running("calm")
    idle = account(state, PortName("h3", 1))
    assert "Not programmed" in format_port(state, idle)
    assert "Not programmed" not in format_port(state, account(state))


def test_the_words_name_applications_weights_and_reasons() -> None:
    state, _ = running("calm", "keen")
    text = format_port(state, account(state))
    for words in (
        "h0 port 1: 2 applications, 255 units (of VL arbitration), revision 2",
        "calm#1",
        "keen#2",
        "0.9 max(0, 1/b - 1)",
        "makes the total predicted slowdown least",
        "Every level here has a queue of its own.",
        "nobody yet",
        "The units of idle queues are taken from the largest queue.",
    ):
        assert words in text, text


def test_queues_that_nobody_uses_share_a_row() -> None:
    state, _ = running("keen", ability=HTB)
    text = format_port(state, account(state))
    (row,) = [line for line in text.splitlines() if "nobody yet" in line]
    assert row.split()[:3] == ["1", "2", "4-7"]
    assert "8 each" in row


def test_an_application_s_words_name_its_bottleneck_and_its_seconds() -> None:
    state, ids = running("calm", "keen")
    accounts = explain_application(state, "calm")
    assert isinstance(accounts, list)
    text = format_applications(state, find_registrations(state, "calm"), accounts)
    assert f"{ids[0]}: level 1, 1 connection" in text
    assert "25.1% of the link beside keen#2" in text
    seconds = 100 * (1 + 0.1 * (255 / 64 - 1))
    assert f"{seconds:.4g} s" in text


def test_an_application_is_as_fast_as_its_least_share() -> None:
    state, (calm, keen) = running("calm", "keen")
    found = forecast_all(state)
    assert found[calm].share == pytest.approx(64 / 255)
    assert found[calm].completion_s == pytest.approx(100 * found[calm].slowdown)
    assert (found[keen].completion_s, found[keen].at_least) == (None, False)
    mean = (found[calm].slowdown + found[keen].slowdown) / 2
    assert compute_mean_slowdown(found) == pytest.approx(mean)
    assert compute_mean_slowdown({}) == 1.0


def test_one_registration_s_forecast_is_that_among_all() -> None:
    state, _ = running("calm", "keen", "calm")
    state = after(state, connect("keen#2", "h1", "h3", 9), connect("calm#3", "h3", "h0", 10))
    found = forecast_all(state)
    assert {id_: forecast_application(state, id_) for id_ in state.applications} == found
    state, bare = register(state, "keen", 11)
    assert forecast_application(state, bare) is None


def test_of_many_registrations_the_first_are_explained() -> None:
    state, ids = running(*["calm"] * 25)
    found = find_registrations(state, "calm")
    assert [own.id for own in found] == ids[:20]
    accounts = explain_application(state, "calm")
    assert isinstance(accounts, list)
    assert "And 5 more: name one by its id." in format_applications(state, found, accounts)


def test_more_than_the_whole_link_brings_nothing() -> None:
    model = running("calm")[0].models["calm"].curve
    assert predict_gain(model, 1.0) == 0.0
    assert predict_gain(model, 0.01) == predict_gain(model, model.floor)


def test_a_plan_says_what_a_new_application_would_cost_the_others() -> None:
    state, (calm,) = running("calm")
    new = NewApplication(name="keen", connections=(("h1", "h2"),))
    found = evaluate_proposal(state, Proposal(register=(new,)))
    assert isinstance(found, ProposalEffects)
    assert {application_name(change.id) for change in found.applications} == {"calm", "keen"}
    (own,) = [change for change in found.applications if change.id == calm]
    assert own.before is not None
    assert own.after is not None
    assert own.before.completion_s == pytest.approx(100.0)
    assert own.after.completion_s == pytest.approx(100 * (1 + 0.1 * (255 / 64 - 1)))
    assert found.slowdown_after > found.slowdown_before
    assert all(change.after != change.before for change in found.ports)
    assert state.revision == 1


def test_a_plan_that_cannot_be_is_refused_as_apply_would() -> None:
    state, _ = running("calm")
    bad = NewApplication(name="keen", connections=(("h1", "nowhere"),))
    refused = evaluate_proposal(state, Proposal(register=(bad,)))
    assert isinstance(refused, Refusal)
    assert refused.where == "host 'nowhere'"
    assert len(FABRIC.hosts) == 4


def test_what_has_just_gone_and_is_still_planned_is_left_out() -> None:
    state, (gone, left) = running("calm", "keen")
    lagging = run_events(state, [Deregister(key=key(9, "d"), application=gone)]).state
    assert lagging.pending is not None
    assert set(forecast_all(lagging)) == {left}
    assert [own.id for own in account(lagging).applications] == [left]
