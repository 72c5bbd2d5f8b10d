"""The table of hash-consed nodes: every expression that lives, by what it is made of.

A key holds the ids of objects that its node holds, so it means them as long as the node lives, and
keeps nothing alive when the node is gone. Threads add nodes without a lock.
"""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from thalweg.ir.functions.dtypes import Dtype

if TYPE_CHECKING:
    from thalweg.ir.expr import Expr

Key = tuple[Any, ...]
Node = TypeVar("Node", bound="Expr")

_MIN_SWEPT = 1 << 15

_NODES: dict[Key, ref[Any]] = {}
_LOCK = RLock()  # held to drop or replace an entry, not to find or to add one
_limit = [_MIN_SWEPT]
_set = object.__setattr__


def find(key: Key) -> Any:
    """The node of a key, if there is one."""
    entry = _NODES.get(key)
    return None if entry is None else entry()


def intern(
    cls: type[Node],
    key: Key,
    fields: tuple[Any, ...],
    dtype: Dtype,
    parts: tuple[Expr, ...] = (),
    is_index: bool = False,
) -> Node:
    """A new node of a key, its fields in the order of `__match_args__`; or the one that another
    thread was faster to add."""
    node = object.__new__(cls)
    for name, field in zip(cls.__match_args__, fields, strict=True):
        _set(node, name, field)
    _set(node, "dtype", dtype)
    _set(node, "parts", parts)
    _set(node, "is_index", is_index)
    _set(node, "normal_form", None)
    _set(node, "free", None)
    entry = ref(node)
    before = _NODES.setdefault(key, entry)
    if before is not entry:
        return before() or _replaced(key, node, entry)
    if len(_NODES) > _limit[0]:
        _sweep()
    return node


def _replaced(key: Key, node: Node, entry: ref[Any]) -> Node:
    """A node in the place of one that is gone, unless another thread was faster."""
    with _LOCK:
        other = find(key)
        if other is None:
            _NODES[key] = entry
        return other or node


def _sweep() -> None:
    """Drop the entries of nodes that are gone; how many there may be grows with those that live."""
    with _LOCK:
        for key, entry in _NODES.copy().items():  # one operation: other threads go on adding
            if entry() is None:
                del _NODES[key]
        _limit[0] = max(_MIN_SWEPT, 2 * len(_NODES))
