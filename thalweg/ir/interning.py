"""The table of hash-consed nodes: every live expression by its structure.

A key holds ids of objects that its node references, so that it is valid while the node lives and
keeps nothing alive afterwards. Threads add nodes without a lock.
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
_LOCK = RLock()  # held to remove or replace an entry, not to find or add one
_limit = [_MIN_SWEPT]
_set = object.__setattr__


def find(key: Key) -> Any:
    """The live node of a key, or None."""
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
    """Add a node, its fields in the order of `__match_args__`; returns the existing one if another
    thread added it first."""
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
    """Replace a dead entry, unless another thread did first."""
    with _LOCK:
        other = find(key)
        if other is None:
            _NODES[key] = entry
        return other or node


def _sweep() -> None:
    """Remove dead entries; the limit for the next sweep grows with the live ones."""
    with _LOCK:
        for key, entry in _NODES.copy().items():  # atomic: other threads keep adding
            if entry() is None:
                del _NODES[key]
        _limit[0] = max(_MIN_SWEPT, 2 * len(_NODES))
