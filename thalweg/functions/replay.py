"""Calls of the library's functions in eager code, replayed.

What `tf.reduce_mean(x)` records follows from the function and its arguments. A call like one that
was made before at the same trace node follows its cached path, without running the function. Only
functions of ops are called so, and only calls that read no value, draw no random number, change
no state, and are given plain arguments.
"""

# Eager tensors and lazy traces are one mechanism in several files:
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
from thalweg.suggestions import name_keyword

_OPS = "thalweg.ops."
#: Modules of functions that change state, have names of their own, or call the user's functions.
_NEVER = frozenset(
    _OPS + name
    for name in (
        "core.printing",
        "core.python_call",
        "io.files",
        "nn.samplers",
        "random.random",
        "state.scatter",
        "state.state",
    )
)
_PLAIN = frozenset((int, float, bool, str, bytes, type(None), DType, TensorShape))

Function = Callable[..., Any]


class CachedPath:
    """The path of a call: where to, past which tensors, and which of them it returned."""

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
        self.templates: list[Tensor] = [t for trace_node in path for t in trace_node.outputs]
        self.ops = [trace_node for trace_node in path if trace_node.leaf == NO_LEAF]
        self.results = results  # positions after the start
        self.pack = pack
        self.is_step = len(path) == 1 and end.is_plain


def replayed(function: Function) -> Function:
    """A function whose calls in eager code are found again."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if (graphs.items or global_graph)[-1] is not EAGER or fast_path_disabled[0]:
                return function(*args, **kwargs)
            lazy_trace = EAGER.current()
            parts: list[Any] = [function, *kwargs]
            values = (*args, *kwargs.values()) if kwargs else args
            if not _describe(values, parts, lazy_trace) or lazy_trace.closed:
                return function(*args, **kwargs)
            key, trace_node = tuple(parts), lazy_trace.end
            cached = trace_node.children.get(key)
            if type(cached) is not CachedPath:
                return _explore(key, lazy_trace, trace_node, function, args, kwargs)
            made = _follow(cached, lazy_trace)
            return function(*args, **kwargs) if made is None else made
        except TypeError as error:
            name_keyword(error, function)
            raise

    return call


def _describe(values: Sequence[Any], key: list[Any], lazy_trace: LazyTrace) -> bool:
    """Add what tells arguments apart to a key; whether they are all plain."""
    for value in values:
        kind = tensors.class_of(value)
        if kind is EagerVariable:
            key.append(value.value()._position)
        elif kind is EagerTensor:
            key.append(
                value._position
                if value._lazy_trace is lazy_trace
                else EAGER.enter(lazy_trace, value)
            )
        elif kind in _PLAIN:
            key.append((kind, value) if value or value is None else (kind, repr(value)))
        elif kind is list or kind is tuple:
            key.append((kind, len(value)))
            if not _describe(value, key, lazy_trace):
                return False
        else:
            return False
    return True


def _follow(cached: CachedPath, lazy_trace: LazyTrace) -> Any:
    """Follow a path; what the call returns, or None if another thread wanted a value meanwhile."""
    origin, end = user_frame(2), cached.end
    if cached.is_step:
        tensor = lazy_trace.take(end, origin)
        return None if lazy_trace.closed else tensor
    start = lazy_trace.end.count
    lazy_trace.lines.update(dict.fromkeys(cached.ops, origin))
    made = [lazy_trace.tensor(cached.templates[at], start + at) for at in cached.results]
    lazy_trace.tensors += made
    lazy_trace.end = end
    if lazy_trace.closed:
        return None
    EAGER.run_if_long(lazy_trace, end, origin)
    return made[0] if cached.pack is None else cached.pack(made)


def _explore(
    key: Any,
    lazy_trace: LazyTrace,
    trace_node: TraceNode,
    function: Function,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Make a call, and cache its path if that is all there is to it."""
    start, value_reads = lazy_trace.end.count, tensors.value_reads[0]
    result = function(*args, **kwargs)
    if (
        EAGER.lazy_trace is not lazy_trace
        or lazy_trace.closed
        or tensors.value_reads[0] != value_reads
    ):
        return result
    path = lazy_trace.end.path(trace_node)
    if not path or not all(_is_repeatable(step) for step in path):
        return result
    found = _positions(result, lazy_trace, start)
    if found is not None:
        trace_node.children[key] = CachedPath(trace_node, lazy_trace.end, *found)
    return result


def _is_repeatable(trace_node: TraceNode) -> bool:
    if trace_node.leaf != NO_LEAF:
        return trace_node.leaf == LITERAL
    return not (trace_node.is_special or trace_node.has_effects or trace_node.consulted)


def _positions(
    result: Any, lazy_trace: LazyTrace, start: int
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
        if type(value) is not EagerTensor or value._lazy_trace is not lazy_trace:
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
