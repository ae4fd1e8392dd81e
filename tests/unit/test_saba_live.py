"""Cells for real, ways to share real ports, and which rounds count."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from weft.jobs import build_graph
from weft.plot.style import figure
from weft.records import Provenance, Record, RecordWriter, Scalar, Series
from weft.sensitivity.model import Hinges
from weft.studies import run_study
from weft.studies.saba.live import cells
from weft.studies.saba.live.__main__ import main
from weft.studies.saba.live.campaign import LATE, _SetUp, find_complete_seeds, list_needed_ways
from weft.studies.saba.live.cells import (
    CAPS,
    CELLS,
    EQUAL,
    LENDING,
    LIVE_WAYS,
    LONG_WAYS,
    ONE,
    PLACEBO,
    PROFILE_S,
    PROFILE_SIZE,
    RATE_BPS,
    SABA,
    SIZE,
    SPARK,
    SRPT,
    WORKLOADS,
    DrawnJob,
    build_job,
    build_live_queues,
    draw,
    list_ways,
    order_by_bytes_left,
    permute_models,
    weigh,
)
from weft.studies.saba.live_runs import (
    DIRECTORY,
    LIVE,
    build_live,
    judge_cell,
    read_cell,
    read_comparison,
)

STEEP = Hinges(floor=0.05, terms=((1.0, 0.9),))
FLAT = Hinges(floor=0.05, terms=((0.1, 1.0),))


@pytest.mark.parametrize("cell", [c for c in CELLS.values() if c.load])
def test_a_set_up_has_the_load_of_its_cell_and_is_the_same_for_all_ways(cell) -> None:  # type: ignore[no-untyped-def]
    for seed in range(1, 15):
        jobs = draw(cell, seed)
        assert jobs == draw(cell, seed)
        assert len(jobs) == cell.count
        load = sum(WORKLOADS[job.workload].volume for job in jobs)
        assert load == pytest.approx(cell.load, rel=0.101)
        assert len({job.workload for job in jobs}) > 1


@pytest.mark.parametrize("name", ["favourable-8", "long-favourable-8"])
def test_the_favourable_cell_saturates_and_has_both_kinds(name: str) -> None:
    for seed in range(1, 15):
        jobs = draw(CELLS[name], seed)
        kinds = [WORKLOADS[job.workload].is_blocking for job in jobs]
        assert kinds == [True] * 4 + [False] * 4
        assert sum(WORKLOADS[job.workload].volume for job in jobs) >= 2
        assert max(j.length_s for j in jobs[:4]) < min(j.length_s for j in jobs[4:])


@pytest.mark.parametrize("cell", [c for c in CELLS.values() if c.is_long and not c.programs])
def test_every_job_of_a_long_cell_takes_half_a_minute_alone(cell) -> None:  # type: ignore[no-untyped-def]
    assert all(job.length_s >= 30 for seed in range(1, 15) for job in draw(cell, seed))


def test_a_round_of_a_long_cell_may_take_longer_than_that_of_another() -> None:
    long_s = [cell.limit_s for cell in CELLS.values() if cell.is_long]
    others_s = [cell.limit_s for cell in CELLS.values() if not cell.is_long]
    assert min(long_s) > max(others_s)


@pytest.mark.parametrize("alone_s", [4.0, 29.9, 31.0])
def test_a_spark_job_is_repeated_until_it_takes_half_a_minute(alone_s: float) -> None:
    application = SPARK["spark-lr"]
    times = application.count_times(alone_s)
    assert 30 <= times * alone_s < 30 + alone_s or times == 1
    assert application.repeat(times)[-2] == str(times)


def test_half_of_the_jobs_of_a_stated_cell_have_ten_times_the_profiled_data() -> None:
    for seed in range(1, 15):
        jobs = draw(CELLS["stated-8-4"], seed)
        assert sorted(job.length_s / PROFILE_S for job in jobs) == [1] * 4 + [10] * 4
        assert len({job.length_s / job.iterations for job in jobs}) == 1


@pytest.mark.parametrize(("name", "compute_s"), [("b25", 0.75), ("o25", 1.0)])
def test_a_job_sends_for_its_part_of_the_time_alone(name: str, compute_s: float) -> None:
    job = build_job(WORKLOADS[name], name=name, level=3, length_s=4.0, loops=4)
    (stage,) = job.stages
    assert stage.compute_ps / 1e12 == pytest.approx(compute_s)
    assert 1.046 * 8 * stage.volume_bytes / RATE_BPS == pytest.approx(0.25, rel=1e-3)
    assert build_graph(job, 1).flows == 1


def test_weights_of_the_ways() -> None:
    def shares(way: str) -> tuple[float, ...]:
        return weigh(way, [STEEP, FLAT], ["b90", "o06"], rate_bps=RATE_BPS, seed=1)

    assert shares(ONE) == ()
    assert shares(EQUAL) == (0.495, 0.495)
    assert shares(SABA)[0] > 0.6
    assert shares(SABA) == shares(CAPS)
    assert shares(PLACEBO) == tuple(reversed(shares(SABA)))
    assert sum(shares(LENDING)) == pytest.approx(0.99)
    assert LENDING not in list_ways(16)
    assert list_ways(8) == LIVE_WAYS


def test_the_placebo_gives_every_workload_another_model() -> None:
    models = [Hinges(floor=0.05, terms=((1.0, n / 10),)) for n in range(1, 5)]
    names = ["a", "b", "c", "d"]
    for seed in range(10):
        permuted = permute_models([*models, models[0]], [*names, "a"], seed)
        assert all(new is not old for new, old in zip(permuted, models, strict=False))
        assert permuted[4] is permuted[0]


def test_fewest_bytes_come_first() -> None:
    assert order_by_bytes_left([5, 1, 3]) == (2, 0, 1)
    assert sorted(order_by_bytes_left(range(16))) == sorted([*range(8), *range(8)])


def test_queues_of_the_ways() -> None:
    assert [q.dscps for q in build_live_queues(ONE, ())] == [(0,)]
    rest, first, second = build_live_queues(CAPS, (0.6, 0.39))
    assert (rest.dscps, first.dscps, second.dscps) == ((0,), (1,), (2,))
    assert not rest.is_capped
    assert first.is_capped
    strict = build_live_queues(SRPT, (0.5, 0.49), (1, 0))
    assert [q.priority for q in strict] == [None, 1, 0]
    assert [q.priority for q in build_live_queues(EQUAL, (0.5, 0.49))] == [None] * 3


def rounds(seed: int, ways: Sequence[str], late: float) -> list[Record]:
    return [
        Record(
            kind="measurement",
            name="saba-live",
            settings={"seed": seed, "way": way},
            quantities={"late": Scalar(late, "")},
            provenance=Provenance(weft_version="1"),
        )
        for way in ways
    ]


def test_a_set_up_counts_if_every_way_has_a_round_in_time() -> None:
    records = [
        *rounds(1, LIVE_WAYS, LATE),
        *rounds(2, LIVE_WAYS[:-1], 0.0),
        *rounds(3, LIVE_WAYS, LATE * 1.1),
        *rounds(3, LIVE_WAYS[:1], 0.0),
        *rounds(4, LIVE_WAYS, LATE * 1.1),
        *rounds(4, LIVE_WAYS, 0.0),
    ]
    assert find_complete_seeds(records, LIVE_WAYS) == [1, 4]


def write_rounds(path, late: float = 0.0) -> None:  # type: ignore[no-untyped-def]
    """Two set-ups of a long cell: by size one job is twice as fast and one as fast as before."""
    with RecordWriter(str(path)) as writer:
        for seed in (1, 2):
            for way in (*LONG_WAYS, *((SRPT,) if seed == 1 else ())):
                took = (20.0, 80.0) if way in (SIZE, SRPT) else (40.0, 80.0)
                writer.append(
                    Record(
                        kind="measurement",
                        name="saba-live",
                        settings={"seed": seed, "way": way, "jobs": "b25:30.0 b50:40.0"},
                        quantities={
                            "late": Scalar(late, ""),
                            "busy": Scalar(1.0, ""),
                            "completion": Series("job", "s", (1.0, 2.0), took),
                        },
                        provenance=Provenance(weft_version="1"),
                    )
                )


def test_a_way_that_a_set_up_does_not_need_is_compared_where_it_ran(tmp_path) -> None:  # type: ignore[no-untyped-def]
    cell = CELLS["long-8-2"]
    write_rounds(tmp_path / "long-8-2.jsonl")
    live = read_cell(cell, tmp_path)
    assert live is not None
    assert live.evaluation.seeds == (1, 2)
    assert judge_cell(live) == "at or below 1"
    assert not live.is_complete
    size, srpt = (read_comparison(cell, way, directory=tmp_path) for way in (SIZE, SRPT))
    assert size is not None
    assert srpt is not None
    assert (size.setups, srpt.setups) == (2, 1)
    assert size.estimate.value == pytest.approx(2**0.5)
    assert size.word == "gains"
    assert read_comparison(cell, LENDING, directory=tmp_path) is None
    (panel,) = build_live([live], [srpt]).panels
    (ax,) = figure(lambda ax: panel(ax, run_study(build_live([])))).axes
    drawn = [x for line in ax.lines if line.get_marker() == "o" for x in line.get_xdata()]
    assert drawn.count(pytest.approx(2**0.5)) == 2  # size, and SRPT of the set-up that has it


def test_by_the_size_of_its_profile_a_job_has_a_weight_in_inverse_proportion() -> None:
    def profile(count: int) -> SimpleNamespace:
        runs = [SimpleNamespace(share=1, bytes=count), SimpleNamespace(share=0.5, bytes=7)]
        return SimpleNamespace(profile=SimpleNamespace(runs=runs))

    setup = _SetUp(
        cell=CELLS["stated-8-4"],
        seed=1,
        drawn=(DrawnJob(workload="b25"), DrawnJob(workload="b50")),
        profiles={"b25": profile(100), "b50": profile(300)},  # type: ignore[dict-item]
    )
    small, large = setup.weigh(PROFILE_SIZE)
    assert small / large == pytest.approx(3)


def test_sizes_may_have_rounds_apart_and_late_ones_count_for_nothing(tmp_path) -> None:  # type: ignore[no-untyped-def]
    cell = CELLS["long-8-2"]
    (tmp_path / "size").mkdir()
    write_rounds(tmp_path / "long-8-2.jsonl", late=2 * LATE)
    assert read_cell(cell, tmp_path) is None
    assert read_comparison(cell, SIZE, directory=tmp_path) is None
    write_rounds(tmp_path / "size" / "long-8-2.jsonl")
    assert read_comparison(cell, SIZE, directory=tmp_path) is not None


def test_every_recorded_round_is_judged() -> None:
    """A file of records without a row in the study would be evidence that nobody looks at."""
    settings = {point.setting for point in LIVE.points}
    for path in DIRECTORY.glob("*.jsonl"):
        ways = list_needed_ways(CELLS[path.stem])
        wanted = path.stem if SABA in ways else f"{path.stem}: size over equal queues"
        assert wanted in settings
    for path in (DIRECTORY / "size").glob("*.jsonl"):
        assert f"{path.stem}: size over equal queues" in settings


def test_an_unknown_cell_is_refused(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    assert main(["batch-9", "--directory", str(tmp_path)]) == 2
    assert "batch-9: is no cell and no workload; use batch-4-0.5" in capsys.readouterr().err


def test_sixteen_jobs_fit_the_priorities_and_marks() -> None:
    queues = build_live_queues(SRPT, [1 / 16] * 16, order_by_bytes_left(range(16)))
    assert len(queues) == 17
    assert max(q.priority or 0 for q in queues) < cells.PRIORITIES
