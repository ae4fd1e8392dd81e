"""Explanations, forecasts and plans: numbers worked out by hand, and the words around them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from control_parts import (
    FABRIC,
    HTB,
    VLARB,
    after,
    connect,
    empty,
    fabric_event,
    key,
    ready,
    register,
    running,
)

from weft.control.operators.explain import (
    MANAGED,
    UNMANAGED,
    WAITING,
    ConnectionAccount,
    PortAccount,
    explain_application,
    explain_connection,
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
from weft.control.state.policy_settings import Settings
from weft.control.state.state import State
from weft.control.state.step import run_events
from weft.switches import PortName

PORT = PortName("h0", 1)


def account(state: State, name: PortName = PORT) -> PortAccount:
    explained = explain_port(state, name)
    assert isinstance(explained, PortAccount), explained
    return explained


def test_a_port_s_account_says_who_has_what_and_what_more_would_bring() -> None:
    state, _ = running("calm", "keen")
    explained = account(state)
    calm, keen = explained.applications
    # √0.1 : √0.9 = 1 : 3 of 255.
    assert (calm.units, keen.units) == (64, 191)
    assert calm.slowdown == pytest.approx(1 + 0.1 * (255 / 64 - 1))
    assert calm.gain == pytest.approx(0.1 / (64 / 255) - 0.1 / (64 / 255 + 0.01))
    assert calm.gain_s == pytest.approx(100 * calm.gain)
    assert keen.gain_s is None  # its profile has no seconds
    # At the optimum more of the link is worth the same to both, to a unit.
    assert keen.gain == pytest.approx(calm.gain, rel=0.05)
    assert [queue.purpose for queue in explained.queues[:4]] == [
        UNMANAGED,
        MANAGED,
        WAITING,
        MANAGED,
    ]
    assert (explained.step, explained.gap) == (1, 0)


def test_an_application_that_is_held_back_elsewhere_names_the_port() -> None:
    state, ids = running("keen")
    state, calm = register(state, "calm", 5)
    state = after(state, connect(calm, "h1", "h2", 5), connect(calm, "h1", "h0", 6))
    there = next(
        application
        for application in account(state, PortName("h1", 1)).applications
        if application.id == calm
    )
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


def account_of_connection(state: State, id_: str) -> ConnectionAccount:
    explained = explain_connection(state, id_)
    assert isinstance(explained, ConnectionAccount), explained
    return explained


def test_a_connection_s_account_has_its_ports_or_says_why_it_has_none() -> None:
    state, id_ = register(empty(), "calm", 1)
    state = after(state, connect(id_, "h0", "h2", 1), connect(id_, "h0", "gone", 2))
    before = account_of_connection(state, "c/1")
    assert (before.problem, before.ports) == ("no fabric is known yet", ())
    state = after(state, fabric_event())
    routed, lost = (account_of_connection(state, name) for name in ("c/1", "c/2"))
    assert routed.problem == ""
    assert PORT in {port for hop in routed.hops for port in hop}
    assert len(routed.ports) == len([port for hop in routed.hops for port in hop])
    assert (lost.problem, lost.hops) == ("host 'gone': is not in leaf_spine", ())


def test_a_port_without_applications_has_an_account_too() -> None:
    explained = account(ready(), PortName("h3", 1))
    assert (explained.applications, explained.queues[0].purpose) == ((), UNMANAGED)


def test_a_port_that_was_never_programmed_says_so() -> None:
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
        "this has the lowest total predicted slowdown",
        "Every level here has a queue of its own.",
        "nobody yet",
        "The units of idle queues are taken from the largest queue.",
    ):
        assert words in text, text


def lines_of(text: str) -> list[str]:
    """Without rules and columns' widths."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip("- ")]


def test_a_port_s_whole_text() -> None:
    """calm: 1 + 0.1 (255/64 - 1); one per cent more brings 0.1 (255/64 - 1/(64/255 + 0.01))."""
    state, _ = running("calm", "keen")
    why = "Why: of all ways to split 100% of the link, this has the lowest total predicted slowdown"
    assert lines_of(format_port(state, account(state))) == [
        "h0 port 1: 2 applications, 255 units (of VL arbitration), revision 2",
        "queue levels weight for",
        "0 0 1 unmanaged traffic",
        "1 1 64 managed applications",
        "2 4-7 2 4-7 1 each nobody yet: packets that arrive before their tables pass",
        "3 3 185 managed applications",
        "application level queue connections size units share slowdown 1 % more saves "
        "slowdown at share b",
        "calm#1 1 1 1 unknown 64 25.1% 1.298 0.0153 (1.527 s) 1 + 0.1 max(0, 1/b - 1)",
        "keen#2 3 3 1 unknown 191 74.9% 1.302 0.0158 1 + 0.9 max(0, 1/b - 1)",
        f"{why}: 2.600 for 2 (at most 0.00% above the least possible in these units).",
        "Every level here has a queue of its own.",
        "The units of idle queues are taken from the largest queue.",
    ]


def test_a_port_with_fewer_queues_than_levels_says_who_shares_and_what_is_held() -> None:
    state, _ = running("calm", "middling", "keen", ability=replace(VLARB, queues=2))
    lines = lines_of(format_port(replace(state, held_revision=1), account(state)))
    assert lines[2:4] == ["0 0-2 4-7 128 managed applications", "1 3 127 managed applications"]
    assert lines[-2:] == [
        "There are more levels than queues: those with models most alike share one "
        "(step 2 of the thesis's hierarchy of 7 levels).",
        "Held: rolled back to revision 1; `weft control apply` resumes.",
    ]
    assert not any("idle queues" in line for line in lines)


def test_a_port_whose_levels_share_queues_by_their_best_partition_says_so() -> None:
    two = replace(VLARB, queues=2)
    settings = Settings(has_exact_queues=True)
    state, _ = running("calm", "middling", "keen", ability=two, settings=settings)
    explained = account(state)
    assert explained.step == 0
    rule = "those with models most alike share one (the best partition of the levels present)."
    assert lines_of(format_port(state, explained))[-1].endswith(rule)


def test_a_crowded_port_says_that_predictions_are_lower_bounds() -> None:
    """At the floor of 0.05, 0.9 (1/b - 1) is 17.1."""
    state, ids = running(*["keen"] * 24)
    lines = lines_of(format_port(state, account(state)))
    assert lines[-1] == (
        "The floors of the models do not fit: below the least share profiled, predictions are "
        "lower bounds."
    )
    assert any(
        line.startswith("keen#9 3 3 1 unknown 11 4.3% at least 18.100 3.0000 ") for line in lines
    )
    accounts = explain_application(state, ids[0])
    assert isinstance(accounts, list)
    text = lines_of(format_applications(state, find_registrations(state, ids[0]), accounts))
    beside = ", ".join(f"keen#{n}" for n in range(10, 20))
    assert text[:3] == [
        "keen#1: level 3, 1 connection, size unknown",
        f"Its smallest share is at h0 port 1: 3.9% of the link beside {beside} and 13 more.",
        "Predicted: at least 18.100 times its time with the whole link. "
        "1 % more of that link would save 3.0000.",
    ]


def test_an_application_s_whole_text() -> None:
    state, _ = running("calm")
    accounts = explain_application(state, "calm")
    assert isinstance(accounts, list)
    text = format_applications(state, find_registrations(state, "calm"), accounts)
    rows = [f"{name} 1 255 100.0% 1.000 0.0000 (0 s)" for name in sorted(state.target)]
    assert lines_of(text) == [
        "calm#1: level 1, 1 connection, size unknown",
        "Its smallest share is at h0 port 1: 100.0% of the link, where it is alone.",
        "Predicted: 1.000 times its time with the whole link, 100 s. "
        "1 % more of that link would save 0.0000 (0 s).",
        "port queue units share slowdown 1 % more saves",
        *rows,
    ]
    idle, id_ = register(state, "keen", 9)
    accounts = explain_application(idle, id_)
    assert isinstance(accounts, list)
    text = format_applications(idle, find_registrations(idle, id_), accounts)
    assert text == (
        "keen#2: level 3, 0 connections, size unknown; none of its paths has a managed port"
    )


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
    forecasts = forecast_all(state)
    assert forecasts[calm].share == pytest.approx(64 / 255)
    assert forecasts[calm].completion_s == pytest.approx(100 * forecasts[calm].slowdown)
    assert (forecasts[keen].completion_s, forecasts[keen].at_least) == (None, False)
    mean = (forecasts[calm].slowdown + forecasts[keen].slowdown) / 2
    assert compute_mean_slowdown(state, forecasts) == pytest.approx(mean)
    assert compute_mean_slowdown(state, {}) == 1.0


def test_one_registration_s_forecast_is_that_among_all() -> None:
    state, _ = running("calm", "keen", "calm")
    state = after(state, connect("keen#2", "h1", "h3", 9), connect("calm#3", "h3", "h0", 10))
    forecasts = forecast_all(state)
    assert {id_: forecast_application(state, id_) for id_ in state.applications} == forecasts
    state, bare = register(state, "keen", 11)
    assert forecast_application(state, bare) is None


def test_of_many_registrations_the_first_are_explained() -> None:
    state, ids = running(*["calm"] * 25)
    registrations = find_registrations(state, "calm")
    assert [application.id for application in registrations] == ids[:20]
    accounts = explain_application(state, "calm")
    assert isinstance(accounts, list)
    assert "And 5 more: name one by its id." in format_applications(state, registrations, accounts)


def test_more_than_the_whole_link_brings_nothing() -> None:
    model = running("calm")[0].models["calm"].curve
    assert predict_gain(model, 1.0) == 0.0
    assert predict_gain(model, 0.01) == predict_gain(model, model.floor)


def test_a_plan_says_what_a_new_application_would_cost_the_others() -> None:
    state, (calm,) = running("calm")
    new = NewApplication(name="keen", connections=(("h1", "h2"),))
    effects = evaluate_proposal(state, Proposal(register=(new,)))
    assert isinstance(effects, ProposalEffects)
    assert {application_name(change.id) for change in effects.applications} == {"calm", "keen"}
    (change,) = [change for change in effects.applications if change.id == calm]
    assert change.before is not None
    assert change.after is not None
    assert change.before.completion_s == pytest.approx(100.0)
    assert change.after.completion_s == pytest.approx(100 * (1 + 0.1 * (255 / 64 - 1)))
    assert effects.slowdown_after > effects.slowdown_before
    assert all(change.after != change.before for change in effects.ports)
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
    assert [application.id for application in account(lagging).applications] == [left]
