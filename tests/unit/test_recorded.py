"""What is kept of this project's own measurements can be read, and is what its name says."""

from __future__ import annotations

from weft.studies.recorded import recorded, recorded_coruns, recorded_variants


def test_recorded_applications_were_run_and_say_where_and_when() -> None:
    assert recorded()
    for name, application in recorded().items():
        profile = application.profile
        assert application.name == name
        assert profile.command
        assert profile.link_bps
        assert profile.date
        assert {"host", "os", "cpu", "place"} <= profile.machine.keys()
        assert {0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0} == {run.share for run in profile.runs}


def test_variants_are_of_recorded_applications_and_of_another_command() -> None:
    for variant in recorded_variants():
        assert variant.base is recorded()[variant.of]
        assert variant.amount > 0
        assert variant.application.profile.command != variant.base.profile.command
        assert variant.application.profile.link_bps == variant.base.profile.link_bps


def test_recorded_coruns_are_of_recorded_applications() -> None:
    for name, records in recorded_coruns().items():
        assert set(name.split("+")) <= recorded().keys()
        assert {str(record.settings["applications"]) for record in records} == {
            name.replace("+", " ")
        }
