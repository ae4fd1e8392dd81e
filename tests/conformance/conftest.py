"""Every driver, as a rig for the one suite that they all pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import infiniband_rig
import linux_rig
import pytest
import simulated_rig
from rigs import Rig

RIGS: Mapping[str, Callable[[Path], AbstractContextManager[Rig]]] = {
    "infiniband": infiniband_rig.rig,
    "linux": linux_rig.rig,
    "simulated": simulated_rig.rig,
}


@pytest.fixture(scope="session", params=list(RIGS))
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with RIGS[request.param](tmp_path_factory.mktemp(request.param)) as made:
        yield made
