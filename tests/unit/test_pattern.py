"""Who sends to whom in each pattern of a plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.measure.plan import list_pairs

HOSTS = ("a", "b", "c", "d")


def test_one_to_one_pairs_the_hosts_in_order() -> None:
    assert list_pairs("one-to-one", ("a", "b"), ("c", "d")) == (("a", "c"), ("b", "d"))


def test_many_to_one_sends_all_to_the_one() -> None:
    found = list_pairs("many-to-one", ("a", "b", "c"), ("d",))
    assert found == (("a", "d"), ("b", "d"), ("c", "d"))


def test_count_keeps_the_first_sources() -> None:
    assert list_pairs("many-to-one", ("a", "b", "c"), ("d",), count=2) == (("a", "d"), ("b", "d"))
    assert list_pairs("one-to-one", ("a", "b"), ("c", "d"), count=1) == (("a", "c"),)
    assert list_pairs("many-to-one", ("a", "b", "c"), ("d",), count=0) == ()


@given(st.integers(2, 12))
def test_all_to_all_has_every_ordered_pair_once(number: int) -> None:
    hosts = tuple(f"h{i}" for i in range(number))
    found = list_pairs("all-to-all", hosts, ())
    assert len(found) == len(set(found)) == number * (number - 1)
    assert all(a != b for a, b in found)


@given(st.integers(2, 12), st.integers(0, 2**32))
def test_a_permutation_gives_everyone_one_other_target_and_source(number: int, seed: int) -> None:
    hosts = tuple(f"h{i}" for i in range(number))
    found = list_pairs("permutation", hosts, (), seed=seed)
    assert [a for a, _ in found] == list(hosts)
    assert sorted(b for _, b in found) == sorted(hosts)
    assert all(a != b for a, b in found)
    assert found == list_pairs("permutation", hosts, (), seed=seed)


@pytest.mark.parametrize(
    ("pattern", "sources", "targets", "told"),
    [
        ("one-to-one", ("a", "b"), ("c",), "2 sources and 1 targets"),
        ("many-to-one", ("a", "b"), ("c", "d"), "2 targets"),
        ("all-to-all", ("a",), (), "needs 2 hosts and has 1"),
        ("permutation", ("a",), (), "needs 2 hosts and has 1"),
        ("many-to-one", ("a", "b"), ("b",), "b sends to itself"),
        ("ring", ("a",), (), "unknown"),
    ],
)
def test_patterns_that_lack_hosts_are_refused(
    pattern: str, sources: tuple[str, ...], targets: tuple[str, ...], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        list_pairs(pattern, sources, targets)
