"""A wall clock that a test can set, for processes that start with its environment.

By libfaketime: the clock of the day jumps, clocks that count from the boot go on as they are.
"""

from __future__ import annotations

import os
import time
from glob import glob
from pathlib import Path

import pytest

SEEN_S = 1  # processes look for a jump as often; at each look at the clock it would slow them
LIBRARY = "/usr/lib/*/faketime/libfaketimeMT.so.1"


class WallClock:
    """`offset_s`: how far it is ahead of the machine's."""

    def __init__(self, folder: Path) -> None:
        libraries = glob(LIBRARY)
        if not libraries:
            if "faketime" in os.environ.get("WEFT_REQUIRE", "").split(","):
                pytest.fail("faketime: apt-get install libfaketime")
            pytest.skip("faketime: apt-get install libfaketime")
        self._file = folder / "clock"
        self.set(0)
        self.environment = {
            **os.environ,
            "LD_PRELOAD": libraries[0],
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(SEEN_S),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset_s: int) -> None:
        self.offset_s = offset_s
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset_s:+d}\n")
        new.replace(self._file)

    def jump(self, offset_s: int) -> None:
        """Returns when processes have seen it."""
        self.set(offset_s)
        time.sleep(1.2 * SEEN_S)
