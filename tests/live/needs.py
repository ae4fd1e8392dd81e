"""What live tests need, and what happens where it is missing: a skip, or a failure if required."""

from __future__ import annotations

import os

import pytest

from weft.host import namespaces

NO_DASK = "dask: pip install 'weft[cluster]'"


def need_time() -> None:
    """Tests that take a minute, or a quiet machine, run only when they are asked for."""
    if "WEFT_LIVE" not in os.environ and "netns" not in _required():
        pytest.skip("live: takes a minute and a quiet machine; run `make test-live`")


def _required() -> list[str]:
    return os.environ.get("WEFT_REQUIRE", "").split(",")


def need_namespaces() -> None:
    """Skips by name and reason; WEFT_REQUIRE=netns makes that a failure."""
    need_time()
    required = "netns" in _required()
    reason = namespaces.why_not()
    if reason is None:
        return
    if required:
        pytest.fail(f"netns: {reason} (WEFT_REQUIRE asks for it)")
    pytest.skip(f"netns: {reason}")


def need_dask() -> None:
    pytest.importorskip("distributed", reason=NO_DASK)
