"""Calls of the library's functions in eager code, found again.

What `tf.reduce_mean(x)` records follows from the function and its arguments. A call like one that
was made before, in the same place, takes the way that one took, without running the function. Only
functions of ops are called so, and only calls that look at no value, draw no random number, change
no state, and are given plain arguments.
"""

# Eager tensors and segments are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, cast

from thalweg import public
from thalweg.functions import tensors
from thalweg.functions.eager import EAGER
from thalweg.functions.lazy_trace import LazyTrace, fast_path_disabled
from thalweg.functions.tensors import EagerTensor
from thalweg.functions.trace import LITERAL, NO_LEAF, TraceNode
from thalweg.functions.variables import EagerVariable
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import global_graph, graphs
from thalweg.graph.node import Tensor
from thalweg.graph.origin import user_frame
from thalweg.graph.shapes import TensorShape

_OPS = "thalweg.ops."
#: Modules of functions that change state, have names of their own, or call the user's functions.
_NEVER = frozenset(
    _OPS + name
    for name in ("state", "scatter", "python_call", "printing", "files", "random", "samplers")
)
_PLAIN = frozenset((int, float, bool, str, bytes, type(None), DType, TensorShape))

Function = Callable[..., Any]


class CachedPath:
    """The way that a call took: where to, past which tensors, and which of them it returned."""

    __slots__ = ("end", "is_step", "ops", "pack", "results", "templates")

    def __init__(
        self,
        start: TraceNode,
        end: TraceNode,
        results: Sequence[int],
        pack: Callable[[Any], Any] | None,
    ) -> None:
        path = end.path(start)
        self.end = end
        self.templates: list[Tensor] = [t for place in path for t in place.outputs]
        self.ops = [place for place in path if place.leaf == NO_LEAF]
        self.results = results  # positions after the start
        self.pack = pack
        self.is_step = len(path) == 1 and end.is_plain


def replayed(function: Function) -> Function:
    """A function whose calls in eager code are found again."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if (graphs.items or global_graph)[-1] is not EAGER or fast_path_disabled[0]:
            return function(*args, **kwargs)
        segment = EAGER.current()
        parts: list[Any] = [function]
        if not (_describe(args, parts, segment) and _describe_named(kwargs, parts, segment)):
            return function(*args, **kwargs)
        if segment.closed:
            return function(*args, **kwargs)
        key, place = tuple(parts), segment.place
        way = place.children.get(key)
        if type(way) is not CachedPath:
            return _explore(key, segment, place, function, args, kwargs)
        made = _follow(way, segment)
        return function(*args, **kwargs) if made is None else made

    return call


def _describe(values: Sequence[Any], key: list[Any], segment: LazyTrace) -> bool:
    """Add what tells arguments apart to a key; whether they are all plain."""
    for value in values:
        kind = tensors.class_of(value)
        if kind is EagerVariable:
            key.append(value.value()._position)
        elif kind is EagerTensor:
            key.append(
                value._position if value._segment is segment else EAGER.enter(segment, value)
            )
        elif kind in _PLAIN:
            key.append((kind, value) if value or value is None else (kind, repr(value)))
        elif kind is list or kind is tuple:
            key.append((kind, len(value)))
            if not _describe(value, key, segment):
                return False
        else:
            return False
    return True


def _describe_named(values: Mapping[str, Any], key: list[Any], segment: LazyTrace) -> bool:
    if not values:
        return True
    key += values
    return _describe(tuple(values.values()), key, segment)


def _follow(way: CachedPath, segment: LazyTrace) -> Any:
    """Take a way; what the call returns, or None if another thread wanted a value meanwhile."""
    origin, end = user_frame(2), way.end
    if way.is_step:
        tensor = segment.take(end, origin)
        return None if segment.closed else tensor
    start = segment.place.count
    segment.lines.update(dict.fromkeys(way.ops, origin))
    made = [segment.tensor(way.templates[at], start + at) for at in way.results]
    segment.tensors += made
    segment.place = end
    if segment.closed:
        return None
    EAGER.run_if_long(segment, end, origin)
    return made[0] if way.pack is None else way.pack(made)


def _explore(
    key: Any,
    segment: LazyTrace,
    place: TraceNode,
    function: Function,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Make a call, and note its way if that is all there is to it."""
    start, looks = segment.place.count, tensors.looks[0]
    result = function(*args, **kwargs)
    if EAGER.segment is not segment or segment.closed or tensors.looks[0] != looks:
        return result
    path = segment.place.path(place)
    if not path or not all(_is_repeatable(step) for step in path):
        return result
    found = _positions(result, segment, start)
    if found is not None:
        place.children[key] = CachedPath(place, segment.place, *found)
    return result


def _is_repeatable(place: TraceNode) -> bool:
    if place.leaf != NO_LEAF:
        return place.leaf == LITERAL
    return not (place.is_special or place.has_effects or place.consulted)


def _positions(
    result: Any, segment: LazyTrace, start: int
) -> tuple[list[int], Callable[[Any], Any] | None] | None:
    """Which tensors a call returned, and how; None if that is not all it returned."""
    kind = cast("Any", type(result))
    if kind is EagerTensor:
        values, pack = [result], None
    elif kind is list:
        values, pack = result, list
    elif isinstance(result, tuple):
        values, pack = cast("Any", result), kind._make if hasattr(kind, "_make") else kind
    else:
        return None
    found: list[int] = []
    for value in cast("Sequence[Any]", values):
        if type(value) is not EagerTensor or value._segment is not segment:
            return None
        if value._array is not None or value._position < start:
            return None
        found.append(value._position - start)
    return found, pack


_shown: dict[int, tuple[object, Function]] = {}


def _show(value: object) -> object:
    """What users call for a function of the library."""
    if type(value) is not FunctionType or not value.__module__.startswith(_OPS):
        return value
    if value.__module__ in _NEVER:
        return value
    return _shown.setdefault(id(value), (value, replayed(value)))[1]


public.shown[:] = [_show]
