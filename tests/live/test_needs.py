"""What is missing is a skip with its reason, or a failure where it is required."""

from __future__ import annotations

import pytest
from needs import need_namespaces

from weft.host import namespaces


@pytest.fixture(autouse=True)
def _not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "why_not", lambda: "not root")
    monkeypatch.setenv("WEFT_LIVE", "1")


def test_without_root_it_is_a_skip_by_name_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEFT_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="netns: not root"):
        need_namespaces()


def test_where_it_is_required_it_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_REQUIRE", "clang-format,netns")
    with pytest.raises(pytest.fail.Exception, match="netns: not root"):
        need_namespaces()
