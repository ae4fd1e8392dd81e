"""Settings measured over a fabric: one short run of the goal's test for each point.

Entry points: `Measuring`, an `Observe` of `weft.tune.search.tuning`. Units: ns.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.errors import InputError
from weft.measure.measurement import check_point, run_test
from weft.measure.peer.client import Peer, PeerLost, PeerStopped
from weft.measure.settings.feasibility import is_lossy
from weft.measure.settings.options import Settings, settings_from
from weft.records import Plain, Record
from weft.tune.search.goal import Goal
from weft.tune.search.observed import Observed, observed
from weft.tune.search.space import Choice, Space
from weft.tune.search.tuning import Stopped

LOSS_TIMEOUT_NS = 10**8


@dataclass(slots=True, kw_only=True)
class Measuring:
    """Measures points one after the other; `keep` gets each record as it comes."""

    goal: Goal
    space: Space
    peer: Peer | None
    base: Settings
    point_ns: int
    keep: Callable[[Record], None] = lambda _: None
    seen: Counter[tuple[Plain, ...]] = field(default_factory=Counter)

    def __call__(self, setting: Choice, stage: str) -> Observed:
        settings = self.settings(setting)
        check_point(self.goal.test, settings)
        key = self.space.key(setting)
        self.seen[key] += 1
        try:
            measured = run_test(
                self.goal.test,
                self.peer,
                settings,
                shown=[f.name for f in self.space.factors],
                repetition=self.seen[key],
            )
        except KeyboardInterrupt:
            raise Stopped("interrupted") from None
        except (PeerLost, PeerStopped) as error:
            raise Stopped(str(error)) from error
        if measured.ended:
            raise Stopped(measured.ended)
        self.keep(measured.record)
        row = observed(self.goal, setting, stage, measured.record)
        if row is None:
            problem = f"nothing arrived in {self.point_ns / 1e9:g} s"
            raise InputError(measured.record.label, problem, "give each point longer: --point 1s")
        return row

    def settings(self, setting: Choice) -> Settings:
        """Of the test: the choice, and what is the same at every point."""
        values: dict[str, Any] = {**self.space.fixed, **setting}
        return dataclasses.replace(self.base, duration_ns=self.point_ns, **values)


def base_settings(goal: Goal, given: Mapping[str, object]) -> Settings:
    """What is not a choice: the transport, addresses, injected delays."""
    for name in ("count", "duration"):
        if name in given:
            problem = "the tuner decides how long each point is measured"
            raise InputError(f"--{name}", problem, "use --point TIME and --budget SECONDS")
    found = settings_from(goal.test.settings, given, "--")
    if is_lossy(found) and "loss-timeout" not in given:
        # Each point waits so long for what was lost: not longer than it measures.
        return dataclasses.replace(found, loss_timeout_ns=LOSS_TIMEOUT_NS)
    return found
