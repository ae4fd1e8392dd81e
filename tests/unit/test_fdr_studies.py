"""The studies of the FDR paper and of interfaces: values of the equations, claims both ways.

Measured points are replaced by records of known values: what is judged here is the judging.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.measure.measurement import Test as MeasuringTest
from weft.measure.measurement import check_point
from weft.measure.settings.options import settings_from
from weft.measure.tests.bandwidth import BANDWIDTH
from weft.measure.tests.transfer import TRANSFER
from weft.records import Provenance, Record, Scalar
from weft.studies import NotHere, Result, Study, run_study
from weft.studies.efa import interfaces
from weft.studies.fdr import FDR
from weft.studies.fdr import completion as completion
from weft.studies.fdr import outstanding as outstanding
from weft.studies.fdr import placement as placement
from weft.studies.fdr.best_b import BEST_B, EQ1, EQ1_CASES
from weft.studies.fdr.fdr_model import KI, MI, SIZES, TURNAROUND_US, throughput
from weft.studies.rounds import Case, in_round, in_rounds
from weft.studies.site import Point, Site

Values = Callable[[Point], dict[str, float]]
UNITS = {
    "sender.throughput": "b/s",
    "throughput": "b/s",
    "cpu.percent": "%",
    "message_rate": "M/s",
    "python_cost": "ns",
}


def record(values: dict[str, float]) -> Record:
    quantities = {name: Scalar(value, UNITS[name]) for name, value in values.items()}
    return Record(
        kind="measurement",
        name="transfer",
        quantities=quantities,
        provenance=Provenance(weft_version="0"),
    )


def pretended(study: Study, values: Values) -> Result:
    """The study with known values instead of what it measures."""

    def known(point: Point) -> Point:
        if point.source != "measurement":
            return point
        return replace(point, run=lambda _: record(values(point)))

    return run_study(replace(study, points=tuple(known(point) for point in study.points)))


def nothing_here(_: Point) -> dict[str, float]:
    raise NotHere("no device")


def words(result: Result, source: str = "measurement") -> list[str]:
    return [verdict.word for claim, verdict in result.judged if claim.source == source]


def gbps(value: float, cpu_percent: float = 50.0) -> dict[str, float]:
    return {"sender.throughput": value * 1e9, "cpu.percent": cpu_percent}


# ---- Model and equations -----------------------------------------------------------------------


@pytest.mark.parametrize("study", FDR, ids=lambda study: study.name)
def test_without_measurements_the_model_stands_and_claims_say_why_they_are_not_judged(
    study: Study,
) -> None:
    result = pretended(study, nothing_here)
    assert not any(row.unexplained for row in result.rows)
    assert set(words(result)) == {"not judged"}
    assert {v.evidence for c, v in result.judged if c.source == "measurement"} == {"no device"}
    assert any("no device" in remark for remark in result.remarks)
    assert all(row.observation.source == "model" for row in result.rows)


def test_equation_1_equals_what_the_paper_predicts_at_every_size() -> None:
    rows = pretended(EQ1, nothing_here).rows
    assert {row.observation.setting: row.ours for row in rows}["Equation 1, 8 Mi"] == 2
    assert [row.ours for row in rows] == [row.published for row in rows]
    assert len(rows) == len(SIZES) == 12


def test_equation_2_equals_the_printed_one_worked_by_hand() -> None:
    rows = pretended(completion.EQ2, nothing_here).rows
    assert [row.ours for row in rows] == [row.published for row in rows]


def test_the_model_gives_back_the_statements_that_set_it() -> None:
    assert throughput(32 * KI, 1) == pytest.approx(10)
    assert throughput(MI, 4) == pytest.approx(49)
    assert throughput(MI, 5) == pytest.approx(46)
    assert throughput(MI, 5, one_buffer=True) == pytest.approx(49)
    assert pytest.approx(26.21 - 5.35, abs=0.01) == TURNAROUND_US


@pytest.mark.parametrize(("offset", "lines"), [(0, 4), (1, 5), (32, 5), (63, 5), (64, 4)])
def test_an_unaligned_packet_touches_one_cache_line_more(offset: int, lines: int) -> None:
    assert placement.lines_touched(offset) == lines


# ---- Claims, both ways -------------------------------------------------------------------------


def test_outstanding_messages_matter_at_32_ki_alone() -> None:
    def as_published(point: Point) -> dict[str, float]:
        size, b = int(str(point.settings["size_bytes"])), int(str(point.settings["outstanding"]))
        return gbps(float(throughput(size, b)))

    assert words(pretended(outstanding.OUTSTANDING, as_published)) == ["holds"] * 3
    flat = pretended(
        outstanding.OUTSTANDING,
        lambda p: gbps(10, cpu_percent=40 if p.settings["size_bytes"] == 32 * KI else 50),
    )
    assert words(flat) == ["does not hold", "holds", "does not hold"]


def test_the_cache_claims_follow_the_buffers() -> None:
    def as_published(point: Point) -> dict[str, float]:
        dropped = int(str(point.settings["outstanding"])) > 4 and not point.settings["one_buffer"]
        return gbps(46 if dropped else 50)

    assert words(pretended(outstanding.CACHE, as_published)) == ["holds", "holds"]
    flat = pretended(outstanding.CACHE, lambda _: gbps(10))
    assert words(flat) == ["does not hold", "does not hold"]
    rising = pretended(
        outstanding.CACHE, lambda point: gbps(float(str(point.settings["outstanding"])))
    )
    assert words(rising)[0] == "does not hold"


def test_equation_1_is_judged_against_the_best_b_measured() -> None:
    def best_at(predicted: bool) -> Values:
        def values(point: Point) -> dict[str, float]:
            size, b = (int(str(point.settings[k])) for k in ("size_bytes", "outstanding"))
            return gbps(20 if (b == BEST_B[size]) is predicted else 10)

        return values

    assert words(pretended(EQ1, best_at(True))) == ["holds"]
    assert words(pretended(EQ1, best_at(False))) == ["does not hold"]
    assert {c.settings["size_bytes"] for c in EQ1_CASES} <= set(BEST_B)


def test_the_generalised_equation_is_calibrated_on_what_was_measured() -> None:
    def slow_machine(point: Point) -> dict[str, float]:
        size, b = (float(str(point.settings[k])) for k in ("size_bytes", "outstanding"))
        return gbps(min(20.0, b * size * 8e-3 / (100 + size * 8e-3 / 20)))

    (said,) = (r for r in pretended(EQ1, slow_machine).remarks if r.startswith("Generalised"))
    assert "20 Gb/s" in said
    assert "base latency 100 us" in said
    assert "32 Ki: 9" in said  # 20 Gb/s · 100 us = 250 kB: 7.6 messages, and one more


def test_polling_is_faster_and_dearer_or_not() -> None:
    def as_published(point: Point) -> dict[str, float]:
        if point.settings["wait"] == "spin":
            return gbps(51, cpu_percent=99)
        return gbps(49, cpu_percent=2 if point.settings["size_bytes"] == 8 * MI else 40)

    assert words(pretended(completion.NOTIFICATION, as_published)) == ["holds"] * 3
    turned = pretended(
        completion.NOTIFICATION, lambda p: gbps(9 if p.settings["wait"] == "spin" else 10)
    )
    assert words(turned) == ["does not hold", "not judged", "does not hold"]


def test_signaling_seldom_gains_or_not_over_either_transport() -> None:
    def as_published(point: Point) -> dict[str, float]:
        large = point.settings["size_bytes"] == 8 * MI
        seldom = point.settings["signaling"] == completion.EQUATION
        return gbps(47 if large else 51 if seldom else 47)

    assert words(pretended(completion.EQ2, as_published)) == ["holds"] * 3
    flat = pretended(completion.EQ2, lambda _: gbps(10))
    assert words(flat) == ["does not hold", "does not hold", "holds"]


def test_where_verbs_are_libfabric_does_not_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        available = True

    monkeypatch.setattr(completion, "availability", lambda _: [Device()])
    with Site() as site:
        point = in_rounds(completion.SIGNAL_CASES)[0]
        with pytest.raises(NotHere, match="there is a verbs device"):
            point.run(site)


def test_alignment_matters_or_not() -> None:
    def as_published(point: Point) -> dict[str, float]:
        aligned = int(str(point.settings["offset_bytes"])) % 64 == 0
        alone = point.settings["outstanding"] == 1
        return gbps(47.75 if aligned else 46 if alone else 34)

    assert words(pretended(placement.ALIGNMENT, as_published)) == ["holds"] * 3
    flat = pretended(placement.ALIGNMENT, lambda _: gbps(10))
    assert words(flat) == ["does not hold", "holds", "holds"]


def test_binding_gains_or_not() -> None:
    speeds = {placement.UNBOUND: 40, placement.SENDER: 38, placement.BOTH: 48}

    def as_published(point: Point) -> dict[str, float]:
        return gbps(speeds.get(str(point.settings["placement"]), 30))

    assert words(pretended(placement.NUMA, as_published)) == ["holds"] * 3
    flat = pretended(placement.NUMA, lambda _: gbps(10))
    assert words(flat) == ["does not hold"] * 3


# ---- What is measured can be -------------------------------------------------------------------

CASES: tuple[tuple[MeasuringTest, Case], ...] = (
    *(
        (TRANSFER, case)
        for case in (
            *outstanding.OUTSTANDING_CASES,
            *outstanding.CACHE_CASES,
            *EQ1_CASES,
            *completion.WAIT_CASES,
            *completion.SIGNAL_CASES,
            *placement.OFFSET_CASES,
            *placement.NUMA_CASES,
            *placement.FAR_CASES,
        )
    ),
    *((BANDWIDTH, case) for case in interfaces.VERBS_CASES),
)


@pytest.mark.parametrize(("test", "case"), CASES, ids=lambda value: value.name)
def test_every_case_is_of_settings_that_the_test_has(test: MeasuringTest, case: Case) -> None:
    test.check(settings_from(test.settings, case.options))


def test_a_peer_that_was_lost_is_not_lost_to_the_points_after() -> None:
    with Site() as site:
        first = site.peer
        assert site.peer is first
        first._lose("killed")
        assert site.peer is not first
        site.peer.check()


# ---- Interfaces --------------------------------------------------------------------------------


def swept(rates: dict[str, float]) -> Callable[[str], dict[str, Record]]:
    def run(provider: str) -> dict[str, Record]:
        return {
            point.setting: record(
                {
                    "message_rate": rates[str(point.settings["interface"])],
                    "throughput": rates[str(point.settings["interface"])] * 8192 * 8e6,
                    "python_cost": 500.0,
                }
            )
            for point in interfaces.POINTS
            if point.settings["provider"] == provider
        }

    return run


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({"sockets": 1.5, "libfabric": 1.0, "MPI": 1.0}, ["not judged", "holds", "holds"]),
        (
            {"sockets": 1.0, "libfabric": 1.0, "MPI": 0.5},
            ["not judged", "does not hold", "does not hold"],
        ),
    ],
)
def test_interfaces_are_judged_by_their_message_rates(
    monkeypatch: pytest.MonkeyPatch, rates: dict[str, float], expected: list[str]
) -> None:
    monkeypatch.setattr(interfaces, "_swept", swept(rates))
    result = run_study(without_verbs(interfaces.EFA_INTERFACES))
    assert words(result) == expected
    assert any("500 (500–500) ns of a blocking send" in remark for remark in result.remarks)


def without_verbs(study: Study) -> Study:
    """The study where there is surely no verbs device."""

    def none(_: Site) -> Record:
        raise NotHere("no device")

    points = [
        replace(p, run=none) if p.settings["provider"] == "verbs" else p for p in study.points
    ]
    return replace(study, points=tuple(points))


def test_one_command_measures_all_points_of_a_provider_also_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = []

    def fails(provider: str) -> dict[str, Record]:
        calls.append(provider)
        raise NotHere("mpi4py is not installed")

    monkeypatch.setattr(interfaces, "_swept", fails)
    result = run_study(without_verbs(interfaces.EFA_INTERFACES))
    assert calls == list(interfaces.PROVIDERS)
    assert set(words(result)) == {"not judged"}
    assert result.rows == ()


def test_without_mpi_the_reason_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(NotHere, match="mpi4py is not installed; pip install"):
        interfaces._swept("tcp")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(NotHere, match="mpirun is not installed; pip install"):
        interfaces._swept("tcp")
    monkeypatch.setattr("shutil.which", lambda *_, **__: str(tmp_path / "bin" / "mpirun"))
    with pytest.raises(NotHere, match="brings no libfabric"):
        interfaces._swept("tcp")


def fake_mpirun(folder: Path, script: str) -> str:
    """An mpirun that brings a libfabric, and does what the script says."""
    library = folder / "lib" / "mpich" / "libfabric.so.1"
    library.parent.mkdir(parents=True)
    library.touch()
    mpirun = folder / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(f"#!/bin/sh\n{script}\n")
    mpirun.chmod(0o755)
    return str(mpirun)


def test_a_command_that_fails_or_hangs_is_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    mpirun = fake_mpirun(tmp_path / "a", "echo rank 1 died >&2; exit 3")
    monkeypatch.setattr("shutil.which", lambda *_, **__: mpirun)
    with pytest.raises(NotHere, match="mpirun with tcp: rank 1 died"):
        interfaces._swept("tcp")
    sleeping = fake_mpirun(tmp_path / "b", "exec sleep 60")
    monkeypatch.setattr("shutil.which", lambda *_, **__: sleeping)
    monkeypatch.setattr(interfaces, "TIMEOUT_S", 0.2)
    with pytest.raises(NotHere, match=r"did not end in 0\.2 s"):
        interfaces._swept("tcp")


def test_mpi_and_libfabric_are_told_to_use_one_library_and_provider(tmp_path: Path) -> None:
    mpirun = Path(fake_mpirun(tmp_path, ""))
    told = interfaces._environment(mpirun, "shm")
    assert told["FI_PROVIDER"] == "shm"
    assert Path(told["WEFT_LIBFABRIC"]).exists()
    assert "over=ofi:shm,mpi" in interfaces._command(mpirun, "shm", "out")


def test_a_real_mpirun_gives_every_interface_in_every_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        interfaces._mpirun()
    except NotHere as reason:
        pytest.skip(f"mpi: {reason}")
    monkeypatch.setattr(interfaces, "ROUNDS", 2)
    monkeypatch.setattr(interfaces, "STREAM", {"size": 8192, "depth": 16, "count": 200})
    found = interfaces._swept("tcp")
    expected = {
        in_round(f"{interface}, tcp", n)
        for interface in ("sockets", "libfabric", "MPI")
        for n in (1, 2)
    }
    assert set(found) == expected


def test_a_device_need_not_be_named_where_a_transport_has_some() -> None:
    over = settings_from(TRANSFER.settings, {"over": "verbs"}).route
    assert over.has("rxe0")
    assert settings_from(TRANSFER.settings, {"over": "verbs:rxe0"}).route.has("rxe0")
    assert not settings_from(TRANSFER.settings, {"over": "verbs:rxe1"}).route.has("rxe0")
    with pytest.raises(InputError, match="not available"):
        check_point(TRANSFER, settings_from(TRANSFER.settings, {"over": "verbs:none"}))
