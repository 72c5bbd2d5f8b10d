"""Replay of the library's functions in eager code.

The ops that `tf.reduce_mean(x)` records depend only on the function and its arguments. A call like
an earlier one at the same trace node takes its cached path, without running the function. This
holds only for functions of `thalweg.ops`, and for calls that read no value, draw no random numbers,
change no state and have plain arguments.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, cast

from thalweg import public
from thalweg.functions import tensors
from thalweg.functions.eager import EAGER
from thalweg.functions.lazy_trace import LazyTrace, fast_path_disabled
from thalweg.functions.tensors import EagerTensor
from thalweg.functions.trace import LITERAL, OP, TraceNode
from thalweg.functions.variables import EagerVariable
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import global_graph, graphs
from thalweg.graph.node import Tensor
from thalweg.graph.origin import user_frame
from thalweg.graph.shapes import TensorShape
from thalweg.suggestions import name_keyword

_OPS = "thalweg.ops."
#: Modules of functions that change state, create named resources, or call user functions.
_EXCLUDED = frozenset(
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
_PLAIN_TYPES = frozenset((int, float, bool, str, bytes, type(None), DType, TensorShape))

Function = Callable[..., Any]


@dataclass(slots=True, eq=False)
class CachedPath:
    """The path of a call in the trace tree: its end, its tensors, and which of them it returns."""

    end: TraceNode
    templates: list[Tensor]
    ops: list[TraceNode]
    is_single_op: bool
    results: list[int]  # positions relative to the start
    pack: Callable[[Any], Any] | None


def replayed(function: Function) -> Function:
    """A function whose calls in eager code are replayed."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if (graphs.items or global_graph)[-1] is not EAGER or fast_path_disabled[0]:
                return function(*args, **kwargs)
            lazy_trace = EAGER.current()
            parts: list[Any] = [function, *kwargs]
            values = (*args, *kwargs.values()) if kwargs else args
            if not _append_key(values, parts, lazy_trace) or lazy_trace.closed:
                return function(*args, **kwargs)
            key = tuple(parts)
            cached = lazy_trace.end.children.get(key)
            if type(cached) is not CachedPath:
                return _call_and_cache(key, lazy_trace, function, *args, **kwargs)
            result = _replay(cached, lazy_trace)
            return function(*args, **kwargs) if result is None else result
        except TypeError as error:
            name_keyword(error, function)
            raise

    return call


def _append_key(values: Sequence[Any], key: list[Any], lazy_trace: LazyTrace) -> bool:
    """Append the arguments to a key; False if one is not plain."""
    for value in values:
        kind = tensors.class_of(value)
        if kind is EagerVariable:
            key.append(value.value()._position)
        elif kind is EagerTensor:
            key.append(lazy_trace.position(value))
        elif kind in _PLAIN_TYPES:
            key.append((kind, value) if value or value is None else (kind, repr(value)))
        elif kind is list or kind is tuple:
            key.append((kind, len(value)))
            if not _append_key(value, key, lazy_trace):
                return False
        else:
            return False
    return True


def _replay(cached: CachedPath, lazy_trace: LazyTrace) -> Any:
    """Record a cached path; the result of the call, or None if another thread ran the trace."""
    origin, end = user_frame(2), cached.end
    if cached.is_single_op:
        tensor = lazy_trace.advance_single(end, origin)
        return None if lazy_trace.closed else tensor
    start = lazy_trace.end.count
    lazy_trace.lines.update(dict.fromkeys(cached.ops, origin))
    outputs = [lazy_trace.tensor(cached.templates[at], start + at) for at in cached.results]
    lazy_trace.tensors += outputs
    lazy_trace.end = end
    if lazy_trace.closed:
        return None
    EAGER.flush_if_long(lazy_trace, end, origin)
    return outputs[0] if cached.pack is None else cached.pack(outputs)


def _call_and_cache(
    key: Any, lazy_trace: LazyTrace, function: Function, /, *args: Any, **kwargs: Any
) -> Any:
    """Call the function, and cache its path if the call can be replayed."""
    trace_node, value_reads = lazy_trace.end, tensors.value_reads[0]
    result = function(*args, **kwargs)
    if (
        EAGER.lazy_trace is not lazy_trace
        or lazy_trace.closed
        or tensors.value_reads[0] != value_reads
    ):
        return result
    path = lazy_trace.end.path(trace_node)
    if not path or not all(map(_is_replayable, path)):
        return result
    positions = _result_positions(result, lazy_trace, trace_node.count)
    if positions is not None:
        templates = [template for each in path for template in each.outputs]
        ops = [each for each in path if each.kind == OP]
        is_single_op = len(path) == 1 and path[0].is_plain
        trace_node.children[key] = CachedPath(path[-1], templates, ops, is_single_op, *positions)
    return result


def _is_replayable(trace_node: TraceNode) -> bool:
    if trace_node.kind != OP:
        return trace_node.kind == LITERAL
    return not (trace_node.is_special or trace_node.consulted)


def _result_positions(
    result: Any, lazy_trace: LazyTrace, start: int
) -> tuple[list[int], Callable[[Any], Any] | None] | None:
    """The positions of the tensors that a call returned, and how to pack them; None if it returned
    anything else."""
    kind = cast("Any", type(result))
    if kind is EagerTensor:
        values, pack = [result], None
    elif kind is list or isinstance(result, tuple):
        values, pack = cast("Any", result), getattr(kind, "_make", kind)
    else:
        return None
    positions: list[int] = []
    for value in cast("Sequence[Any]", values):
        if type(value) is not EagerTensor or value._lazy_trace is not lazy_trace:
            return None
        if value._array is not None or value._position < start:
            return None
        positions.append(value._position - start)
    return positions, pack


_wrappers: dict[int, tuple[object, Function]] = {}


def _user_function(value: object) -> object:
    """The public form of a value: a function of ops is replayed."""
    if type(value) is not FunctionType or not value.__module__.startswith(_OPS):
        return value
    if value.__module__ in _EXCLUDED:
        return value
    return _wrappers.setdefault(id(value), (value, replayed(value)))[1]


public.shown[:] = [_user_function]
