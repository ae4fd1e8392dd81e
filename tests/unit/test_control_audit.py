"""Every change is in the log: who made it, what it was, what was there before and after."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from control_parts import KINDS, connect, key
from control_rig import Memory, Rig

from weft.cli.control_calls import _format_json_line, _format_text_line
from weft.control.runtime.audit import LogLine
from weft.control.runtime.engine import RollbackTo
from weft.control.state.events import (
    Apply,
    Asker,
    Deregister,
    ModelChanged,
    NewApplication,
    Proposal,
    Register,
    Registered,
    Renew,
)

ALICE, ROOT = Asker(name="alice"), Asker(name="root", is_operator=True)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path / "control.db")
    rig.settle()
    rig.changes.clear()
    return rig


def start(rig: Rig, number: int, name: str = "calm") -> str:
    request = Register(key=key(number, "r"), name=name, ttl_s=10.0, now_s=0.0, by=ALICE)
    answer = rig.ask(request)
    assert rig.ask(request) == answer  # a repetition changes nothing
    assert isinstance(answer, Registered)
    return answer.id


def test_a_registration_and_its_end_name_who_and_what(rig: Rig) -> None:
    id_ = start(rig, 1)
    (line,) = rig.changes
    assert line == "alice registered calm#1: level 1, lease 10 s"
    assert line.fields == {"who": "alice", "what": "registered", "after": id_}
    rig.ask(connect(id_, "h0", "h2", 2))
    rig.ask(Deregister(key=key(3), application=id_, by=ROOT))
    revision, end, last = rig.changes[1:]
    assert revision.startswith("revision 1, connections of calm#1: ")
    assert (revision.fields["before"], revision.fields["ports"]) == ("none", 4)
    assert end == "root deregistered calm#1 of alice: 1 connection ended"
    assert (end.fields["who"], end.fields["before"], end.severity) == ("root", id_, "info")
    assert last.fields["before"] == revision.fields["after"]


def test_an_expiry_is_a_warning_and_a_renewal_is_no_change(rig: Rig) -> None:
    id_ = start(rig, 1)
    rig.changes.clear()
    rig.ask(Renew(application=id_, now_s=0.0, by=ALICE))
    assert not rig.changes
    rig.pass_time(11.0)
    (line,) = rig.changes
    assert line == "lease of calm#1 of alice expired: 0 connections ended"
    assert (line.severity, line.fields["owner"]) == ("warning", "alice")


def test_an_operators_changes_name_the_revisions_before_and_after(rig: Rig) -> None:
    new = NewApplication(name="keen", connections=(("h0", "h2"),))
    apply = Apply(key=key(1), proposal=Proposal(register=(new,)), now_s=0.0, by=ROOT)
    rig.ask(apply)
    rig.ask(RollbackTo(key=key(2), revision=0, by=ROOT))
    rig.ask(apply)  # a repetition
    operations = [line for line in rig.changes if line.fields["who"] == "root"]
    assert operations == [
        "root applied +keen#1: revision 0 to 1, 4 ports",
        "root rolled back to revision 0, which is held: revision 1 to 2, 4 ports",
    ]
    assert [(line.fields["before"], line.fields["after"]) for line in operations] == [
        (0, 1),
        (1, 2),
    ]


def test_a_changed_model_is_logged_and_an_unchanged_one_is_not(rig: Rig) -> None:
    rig.ask(ModelChanged(name="calm", model=KINDS["calm"]))
    assert not rig.changes
    rig.ask(ModelChanged(name="calm", model=KINDS["keen"]))
    assert rig.changes[0] == "model of calm changed"
    assert rig.changes[0].fields["before"] == str(KINDS["calm"].curve)


def test_ports_that_fail_and_recover_are_logged_once(tmp_path: Path) -> None:
    switches = Memory()
    rig = Rig(tmp_path / "control.db", switches)
    rig.settle()
    id_ = start(rig, 1)
    rig.ask(connect(id_, "h1", "h0", 1))
    rig.settle()
    (beside,) = (name for name in rig.engine.state.target if name.node == "leaf0")
    switches.broken = {name for name in switches.held if name.node == "leaf0"} - {beside}
    rig.ask(connect(id_, "h0", "h2", 2))
    rig.settle()
    rig.pass_time(5.0)
    rig.settle()
    failing = [line for line in rig.lines if line.startswith("failing: ")]
    assert len(failing) == 1
    assert failing[0].startswith("failing: leaf0 port ")
    assert failing[0].severity == "warning"
    switches.broken = set()
    rig.pass_time(60.0)
    rig.settle()
    recovered = [line for line in rig.lines if line.startswith("recovered: leaf0 port ")]
    assert len(recovered) == 1
    assert not [line for line in rig.lines if line.startswith("drift")]


def test_each_node_that_is_lost_and_comes_back_has_its_line(tmp_path: Path) -> None:
    """An agent that dies fails all ports of its switch; two at once are two lines."""
    switches = Memory()
    rig = Rig(tmp_path / "control.db", switches)
    rig.settle()
    id_ = start(rig, 1)
    rig.ask(connect(id_, "h0", "h2", 2))
    rig.settle()
    switches.broken = {name for name in switches.held if name.node in ("leaf0", "leaf1")}
    rig.pass_time(60.0)
    rig.settle()
    lost = sorted(line for line in rig.lines if line.startswith("lost: "))
    assert [line.split(": ")[1] for line in lost] == ["leaf0", "leaf1"]
    assert "all its ports fail: " in lost[0]
    assert {line.severity for line in rig.lines if line in lost} == {"error"}
    assert not [line for line in rig.lines if line.startswith("failing: ")]
    switches.broken = set()
    rig.pass_time(60.0)
    rig.settle()
    back = sorted(line for line in rig.lines if line.startswith("back: "))
    assert [line.split()[1] for line in back] == ["leaf0", "leaf1"]
    rig.pass_time(60.0)
    rig.settle()
    assert len([line for line in rig.lines if line.startswith(("lost: ", "back: "))]) == 4


def test_lines_have_date_and_severity_as_text_and_as_json() -> None:
    line = LogLine("alice registered calm#1", "warning", {"who": "alice"})
    date, _, rest = _format_text_line("log", line).split(" ", 2)
    assert date.count("-") == 2
    assert rest == "warning alice registered calm#1"
    fields = json.loads(_format_json_line("log", line))
    assert fields.pop("time") > 0
    assert fields == {"event": "log", "text": str(line), "severity": "warning", "who": "alice"}
    assert json.loads(_format_json_line("log", "a remark"))["severity"] == "info"
