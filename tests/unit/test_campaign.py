"""Campaigns: what is stored is not run again, what was cut short is."""

import errno
import warnings

import pytest

from weft.errors import InputError
from weft.records import Provenance, Record, RecordWriter, note_ending, read_records
from weft.records.store import Campaign, run_campaign


def record(name: str, *, ending: str = "", step: int = 0) -> Record:
    notes = [note_ending(ending)] if ending else []
    provenance = Provenance(weft_version="0", seed=1, scenario_digest=name)
    return Record(
        kind="measurement", name=name, settings={"step": step}, notes=notes, provenance=provenance
    )


def campaign(path, names="abc"):
    return Campaign(
        points={name: name for name in names},
        identify=lambda r: r.provenance.scenario_digest,
        is_complete=lambda records: not records[-1].ending,
        output=str(path) if path else None,
    )


class Runner:
    """Runs points in a given order; `cut` ends early there."""

    def __init__(self, order="abc", cut="", interrupt=""):
        self.order, self.cut, self.interrupt = order, cut, interrupt
        self.asked = []

    def __call__(self, points):
        self.asked = list(points)
        for name in self.order:
            if name == self.interrupt:
                raise KeyboardInterrupt
            if name in points:
                is_cut = name == self.cut
                yield name, (record(name, ending="interrupted" if is_cut else ""),), is_cut


def stored(path):
    return [(r.name, r.ending) for r in read_records(path).records]


def test_without_a_file_every_point_runs():
    runner = Runner()
    assert list(run_campaign(campaign(None), runner)) == ["a", "b", "c"]
    assert runner.asked == ["a", "b", "c"]


def test_records_of_one_run_are_stored_in_the_order_of_the_points(tmp_path):
    run_campaign(campaign(tmp_path / "r"), Runner("cab"))
    assert stored(tmp_path / "r") == [("a", ""), ("b", ""), ("c", "")]


def test_stored_points_do_not_run_again_and_are_counted(tmp_path):
    run_campaign(campaign(tmp_path / "r", "ab"), Runner("ab"))
    runner, resumed = Runner(), []
    done = run_campaign(campaign(tmp_path / "r"), runner, on_resume=resumed.append)
    assert runner.asked == ["c"]
    assert resumed == [2]
    assert sorted(done) == ["a", "b", "c"]
    assert stored(tmp_path / "r") == [("a", ""), ("b", ""), ("c", "")]


def test_a_point_that_was_cut_short_is_stored_runs_again_and_is_replaced(tmp_path):
    done = run_campaign(campaign(tmp_path / "r"), Runner(cut="b"))
    assert list(done) == ["a", "b"]
    assert stored(tmp_path / "r") == [("a", ""), ("b", "interrupted")]
    runner = Runner()
    run_campaign(campaign(tmp_path / "r"), runner)
    assert runner.asked == ["b", "c"]
    assert stored(tmp_path / "r") == [("a", ""), ("b", ""), ("c", "")]


def test_a_resumed_run_stores_its_own_records_in_the_order_of_the_points(tmp_path):
    run_campaign(campaign(tmp_path / "r", "b"), Runner("b"))
    run_campaign(campaign(tmp_path / "r", "abcd"), Runner("dca"))
    assert stored(tmp_path / "r") == [("b", ""), ("a", ""), ("c", ""), ("d", "")]
    assert len(read_records(tmp_path / "r").headers) == 2


def test_an_interrupt_keeps_what_is_done(tmp_path):
    done = run_campaign(campaign(tmp_path / "r"), Runner(interrupt="c"))
    assert list(done) == ["a", "b"]
    assert stored(tmp_path / "r") == [("a", ""), ("b", "")]


def test_records_of_other_points_stay(tmp_path):
    run_campaign(campaign(tmp_path / "r", "xy"), Runner("xy", cut="y"))
    run_campaign(campaign(tmp_path / "r"), Runner())
    assert stored(tmp_path / "r")[:2] == [("x", ""), ("y", "interrupted")]


def test_how_a_run_ended_is_read_as_it_was_written():
    assert record("a", ending="peer lost: gone").ending == "peer lost: gone"
    assert record("a").ending == ""


def test_an_interrupt_while_a_record_is_written_waits_until_it_is_stored(tmp_path, monkeypatch):
    append, interrupts = RecordWriter.append, [KeyboardInterrupt, KeyboardInterrupt]

    def interrupted(self, written):
        if written.name == "b" and interrupts:
            raise interrupts.pop()
        append(self, written)

    monkeypatch.setattr(RecordWriter, "append", interrupted)
    done = run_campaign(campaign(tmp_path / "r"), Runner())
    assert list(done) == ["a", "b"]
    assert stored(tmp_path / "r") == [("a", ""), ("b", "")]


@pytest.mark.parametrize(("number", "goes_on"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_only_a_full_disk_lets_the_points_run_without_a_file(
    tmp_path, monkeypatch, number, goes_on
):
    def fail(*_):
        raise InputError("out.jsonl", "cannot be written", "x") from OSError(number, "x")

    monkeypatch.setattr("weft.records.store.RecordWriter", fail)
    runner = Runner()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match="cannot be written"):
            run_campaign(campaign(tmp_path / "out.jsonl"), runner)
    assert bool(runner.asked) is goes_on
