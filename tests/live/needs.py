"""What live tests need, and what happens where it is missing: a skip, or a failure if required."""

from __future__ import annotations

import os

import pytest

from weft.host import namespaces


def need_namespaces() -> None:
    """Skips by name and reason; WEFT_REQUIRE=netns makes that a failure."""
    required = "netns" in os.environ.get("WEFT_REQUIRE", "").split(",")
    if not required and "WEFT_LIVE" not in os.environ:
        pytest.skip("netns: takes a minute and a quiet machine; run `make test-live`")
    reason = namespaces.why_not()
    if reason is None:
        return
    if required:
        pytest.fail(f"netns: {reason} (WEFT_REQUIRE asks for it)")
    pytest.skip(f"netns: {reason}")
