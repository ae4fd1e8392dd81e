"""Maps that stay what they are: examples, and equality with a dict under any changes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.control.state.persistent_map import PersistentMap, Recent


class Colliding:
    """A key whose hash is everybody's."""

    def __init__(self, name: int) -> None:
        self.name = name

    def __hash__(self) -> int:
        return 5

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Colliding) and self.name == other.name


changes = st.lists(st.tuples(st.integers(-400, 400), st.none() | st.integers()), max_size=600)


@settings(deadline=None, max_examples=60)
@given(changes)
def test_after_any_changes_it_has_what_a_dict_has(given_changes):
    found: PersistentMap[int, int] = PersistentMap()
    expected: dict[int, int] = {}
    for key, value in given_changes:
        before, kept = found, dict(expected)
        if value is None:
            found = found.without(key)
            expected.pop(key, None)
        else:
            found = found.put(key, value)
            expected[key] = value
        assert dict(before) == kept
    assert (dict(found), len(found)) == (expected, len(expected))
    assert found == PersistentMap(expected)
    assert all((key in found) == (key in expected) for key in range(-400, 401))


def test_keys_with_one_hash_are_told_apart():
    keys = [Colliding(n) for n in range(200)]
    found = PersistentMap({key: n for n, key in enumerate(keys)})
    assert [found[key] for key in keys] == list(range(200))
    for key in keys[::2]:
        found = found.without(key)
    assert sorted(found.values()) == list(range(1, 200, 2))


def test_many_entries_are_changed_at_once():
    found = PersistentMap({n: n for n in range(1000)}).changed({n: -n for n in range(500, 1500)})
    assert len(found) == 1500
    assert (found[0], found[500], found[1499]) == (0, -500, -1499)


def test_the_last_entries_are_remembered_and_those_long_before_forgotten():
    found: Recent[int, str] = Recent(most=10)
    for n in range(100):
        found = found.put(n, str(n))
        assert all(found.get(m) == str(m) for m in range(max(0, n - 9), n + 1))
    assert found.get(75) is None
    assert len(found.new) + len(found.old) <= 20
