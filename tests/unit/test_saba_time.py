"""Fig. 4.19 of the Saba thesis: scenarios and the time that their calculation takes."""

from __future__ import annotations

import numpy as np
import pytest

from weft.fabric import leaf_spine, path
from weft.plot.style import figure
from weft.studies import Result, run_study
from weft.studies.saba_scenario import KINDS, Wiring
from weft.studies.saba_time import fig4_19


@pytest.fixture(scope="module")
def result() -> Result:
    return run_study(fig4_19(scenarios=2))


def test_published_times_stand_beside_ours_and_are_not_judged(result: Result) -> None:
    rows = [row for row in result.rows if row.published is not None]
    assert [row.published for row in rows] == [0.09, 0.16, 0.31, 0.43, 0.72, 1.13]
    assert not [row for row in rows if row.judged]
    assert all(row.ours > 0 for row in result.rows)
    assert len(result.rows) == 2 * len(KINDS)


def test_the_panel_names_its_axes(result: Result) -> None:
    (panel,) = fig4_19(scenarios=2).panels
    (ax,) = figure(lambda ax: panel(ax, result)).axes
    assert ax.get_xlabel()
    assert ax.get_ylabel()


def test_ports_carry_the_applications_whose_connections_pass_through_them() -> None:
    fabric = leaf_spine(3, 2, 4)
    hosts = np.array(fabric.hosts)
    rng = np.random.default_rng(1)
    source, target = rng.choice(hosts, 40), rng.choice(hosts, 40)
    application = rng.integers(0, 7, 40)
    ports, names = Wiring(fabric).ports(source, target, application)
    expected = {
        (hop, int(app))
        for a, b, app in zip(source, target, application, strict=True)
        for hop in path(fabric, int(a), int(b))
    }
    found = {
        (name, int(app))
        for place, name in enumerate(names)
        for app in ports.applications[ports.offsets[place] : ports.offsets[place + 1]]
    }
    assert found == expected
