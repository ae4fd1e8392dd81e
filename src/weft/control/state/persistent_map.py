"""A mapping that gives a changed one without being copied, and stays what it is.

A tree by the bits of the keys' hashes: a leaf is a dict of at most `_LEAF` entries, a branch a list
of `_WAYS` trees, neither changed once made. A change copies one leaf and the branches above it: at
10^5 entries some 100 references. Entry points: `PersistentMap`, `Recent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_BITS = 5
_WAYS = 1 << _BITS
_LEAF = 32
_DEEPEST = 12  # of 64 bits: equal hashes beyond that stay in one leaf

_Tree = Any  # dict[K, V] | list[_Tree]


class PersistentMap(Mapping[K, V]):
    """A value per key; immutable."""

    __slots__ = ("_count", "_root")

    def __init__(self, entries: Mapping[K, V] | None = None) -> None:
        self._root: _Tree = {}
        self._count = len(entries or {})
        for key, value in (entries or {}).items():
            self._root = _put(self._root, hash(key), 0, key, value)

    def __getitem__(self, key: K) -> V:
        tree, bits = self._root, hash(key)
        while type(tree) is list:
            tree, bits = tree[bits & (_WAYS - 1)], bits >> _BITS
        return tree[key]  # type: ignore[no-any-return]

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V | T) -> V | T: ...

    def get(self, key: K, default: Any = None) -> Any:
        tree, bits = self._root, hash(key)
        while type(tree) is list:
            tree, bits = tree[bits & (_WAYS - 1)], bits >> _BITS
        return tree.get(key, default)

    def __contains__(self, key: object) -> bool:
        tree, bits = self._root, hash(key)
        while type(tree) is list:
            tree, bits = tree[bits & (_WAYS - 1)], bits >> _BITS
        return key in tree

    def __iter__(self) -> Iterator[K]:
        ahead = [self._root]
        while ahead:
            tree = ahead.pop()
            if type(tree) is list:
                ahead += tree
            else:
                yield from tree

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return repr(dict(self))

    def put(self, key: K, value: V) -> PersistentMap[K, V]:
        """With this entry."""
        count = self._count + (key not in self)
        return _made(_put(self._root, hash(key), 0, key, value), count)

    def without(self, key: K) -> PersistentMap[K, V]:
        """Without this entry, which may be absent."""
        if key not in self:
            return self
        return _made(_dropped(self._root, hash(key), key), self._count - 1)

    def changed(self, entries: Mapping[K, V]) -> PersistentMap[K, V]:
        """With these entries."""
        found = self
        for key, value in entries.items():
            found = found.put(key, value)
        return found


def _made(root: _Tree, count: int) -> PersistentMap[Any, Any]:
    found: PersistentMap[Any, Any] = PersistentMap.__new__(PersistentMap)
    found._root, found._count = root, count
    return found


def _put(tree: _Tree, bits: int, depth: int, key: K, value: V) -> _Tree:
    if type(tree) is list:
        branch = tree.copy()
        way = bits & (_WAYS - 1)
        branch[way] = _put(branch[way], bits >> _BITS, depth + 1, key, value)
        return branch
    leaf = {**tree, key: value}
    return _split(leaf, depth) if len(leaf) > _LEAF and depth < _DEEPEST else leaf


def _split(leaf: dict[Any, Any], depth: int) -> _Tree:
    branch: list[dict[Any, Any]] = [{} for _ in range(_WAYS)]
    for key, value in leaf.items():
        branch[(hash(key) >> (_BITS * depth)) & (_WAYS - 1)][key] = value
    return branch


def _dropped(tree: _Tree, bits: int, key: K) -> _Tree:
    if type(tree) is list:
        branch = tree.copy()
        way = bits & (_WAYS - 1)
        branch[way] = _dropped(branch[way], bits >> _BITS, key)
        return branch if any(branch) else {}
    return {own: value for own, value in tree.items() if own != key}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent(Generic[K, V]):
    """The last entries that were put: at least `most` of them, at most twice as many."""

    most: int
    new: PersistentMap[K, V] = field(default_factory=PersistentMap)
    old: PersistentMap[K, V] = field(default_factory=PersistentMap)

    def get(self, key: K) -> V | None:
        found = self.new.get(key)
        return self.old.get(key) if found is None else found

    def put(self, key: K, value: V) -> Recent[K, V]:
        new = self.new.put(key, value)
        if len(new) < self.most:
            return Recent(most=self.most, new=new, old=self.old)
        return Recent(most=self.most, new=PersistentMap(), old=new)
