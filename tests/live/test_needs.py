"""What is missing is a skip with its reason, or a failure where it is required."""

from __future__ import annotations

import importlib.util

import ibsim
import pytest
from needs import need_grpc, need_ibsim, need_namespaces

from weft.host.net import namespaces


@pytest.fixture(autouse=True)
def _not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "find_obstacle", lambda: "not root")
    monkeypatch.setenv("WEFT_LIVE", "1")


def test_without_root_it_is_a_skip_by_name_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="netns: not root"):
        need_namespaces()


def test_where_it_is_required_it_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_REQUIRE", "clang-format,netns")
    with pytest.raises(pytest.fail.Exception, match="netns: not root"):
        need_namespaces()


def test_without_ibsim_it_is_a_skip_or_a_failure_that_names_the_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ibsim, "TOOLS", ("ibsim-that-is-not",))
    monkeypatch.delenv("WEFT_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="ibsim-that-is-not not found: install ibsim-u"):
        need_ibsim()
    monkeypatch.setenv("WEFT_REQUIRE", "ibsim")
    with pytest.raises(pytest.fail.Exception, match="WEFT_REQUIRE asks for it"):
        need_ibsim()


def test_without_grpc_it_is_a_skip_or_a_failure_that_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.delenv("WEFT_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"pip install 'weft\[control\]'"):
        need_grpc()
    monkeypatch.setenv("WEFT_REQUIRE", "grpc")
    with pytest.raises(pytest.fail.Exception, match="WEFT_REQUIRE asks for it"):
        need_grpc()
