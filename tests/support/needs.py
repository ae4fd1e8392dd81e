"""What live tests need, and what happens where it is missing: a skip, or a failure if required."""

from __future__ import annotations

import importlib.util
import os

import ibsim
import pytest

from weft.host.net import namespaces

NO_DASK = "dask: pip install 'weft[cluster]'"
NO_GRPC = "grpc: pip install 'weft[control]'"


def need_time(target: str = "test-live") -> None:
    """Tests that take a minute, or a quiet machine, run only when they are asked for."""
    if "WEFT_LIVE" not in os.environ and "netns" not in _required():
        pytest.skip(f"live: takes a minute and a quiet machine; run `make {target}`")


def _required() -> list[str]:
    return os.environ.get("WEFT_REQUIRE", "").split(",")


def need_namespaces(*, short: bool = False) -> None:
    """Skips by name and reason; WEFT_REQUIRE=netns makes that a failure.

    A `short` test runs with all others where namespaces can be created.
    """
    if not short:
        need_time()
    required = "netns" in _required()
    reason = namespaces.find_obstacle()
    if reason is None:
        return
    if required:
        pytest.fail(f"netns: {reason} (WEFT_REQUIRE asks for it)")
    pytest.skip(f"netns: {reason}")


def need_ibsim() -> None:
    """Skips by name and reason; WEFT_REQUIRE=ibsim makes that a failure."""
    reason = ibsim.why_not()
    if reason is None:
        return
    if "ibsim" in _required():
        pytest.fail(f"ibsim: {reason} (WEFT_REQUIRE asks for it)")
    pytest.skip(f"ibsim: {reason}")


def need_dask() -> None:
    pytest.importorskip("distributed", reason=NO_DASK)


def need_grpc() -> None:
    """Skips by name and reason; WEFT_REQUIRE=grpc makes that a failure."""
    if importlib.util.find_spec("grpc") is not None:
        return
    if "grpc" in _required():
        pytest.fail(f"{NO_GRPC} (WEFT_REQUIRE asks for it)")
    pytest.skip(NO_GRPC, allow_module_level=True)
