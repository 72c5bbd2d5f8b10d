"""The fast path of Python's operators on eager tensors.

An operator that was applied before at the same trace node to the same operands (tensors by their
positions, Python numbers by value) leads to the same trace node again, without a search for its op.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from thalweg.functions.eager import EAGER
from thalweg.functions.lazy_trace import LazyTrace, fast_path_disabled
from thalweg.functions.tensors import EagerTensor, class_of
from thalweg.functions.trace import TraceNode
from thalweg.functions.variables import EagerVariable
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import global_graph
from thalweg.graph.node import Tensor
from thalweg.graph.origin import user_frame
from thalweg.platform.caches import Bounded

_MAX_CONSTANTS = 1_000

_FALLIBLE = "__floordiv__", "__mod__", "__pow__"  # operators on integers that can fail
_INFALLIBLE = "__add__", "__sub__", "__mul__", "__truediv__", "__lt__", "__le__", "__gt__", "__ge__"


def _fast_operator(method: str, is_fallible: bool) -> Callable[[Any, Any], Any]:
    """An operator that takes the shortcut of an earlier use at the same trace node."""
    general = getattr(Tensor, method)
    tensor_name = f"{method} of tensors"

    def operate(x: EagerTensor, y: Any) -> Any:
        lazy_trace: LazyTrace = EAGER.lazy_trace
        if fast_path_disabled[0] or (lazy_trace.graphs or global_graph)[-1] is not EAGER:
            return general(x, y)
        if lazy_trace.closed:
            lazy_trace = EAGER.start_lazy_trace()
        at = x._position if x._lazy_trace is lazy_trace else lazy_trace.position(x)
        kind = class_of(y)
        if kind is float or kind is int:
            name, other = method, y
        elif kind is EagerTensor:
            name = tensor_name
            other = y._position if y._lazy_trace is lazy_trace else lazy_trace.position(y)
        elif kind is EagerVariable:
            return operate(x, y.value())
        else:
            return general(x, y)
        trace_node = lazy_trace.end
        last, position, value, dtype, shape, number, end, needs_line = trace_node.prediction
        if last is not name or position != at or value is not other:
            key = (name, at, kind, other)
            end = trace_node.children.get(key)
            if end is None:
                other = y if kind is EagerTensor else _operand(y, x.dtype.base_dtype)
                can_fail = is_fallible and not x.dtype.is_floating
                return _cached(key, general(x, other), lazy_trace, trace_node, can_fail)
            template, number = end.outputs[0], end.count - 1
            dtype, shape = template.dtype, template._shape
            needs_line = end.needs_line
            trace_node.prediction = (name, at, other, dtype, shape, number, end, needs_line)
        # `LazyTrace.advance_single` inlined, without reading the trace node and its template.
        output = _new(EagerTensor)
        output.dtype = dtype
        output._shape = shape
        output._array = output._literal = output._leaf_key = None
        output._position = number
        output._lazy_trace = lazy_trace
        lazy_trace.tensors.append(output)
        lazy_trace.end = end
        if needs_line:
            lazy_trace.lines[end] = user_frame(1)  # its error must name this line
        return general(x, y) if lazy_trace.closed else output  # another thread ran the trace

    operate.__name__ = method
    return operate


_new = EagerTensor.__new__

_constants = Bounded[Any, EagerTensor]("numbers as operands", _MAX_CONSTANTS)


def _operand(value: float, dtype: DType) -> Any:
    """A number as a cached constant, which enters a trace once; a number that cannot be one as it
    is."""
    if not value or value != value:  # 0.0 == -0.0, and nan is no key
        return value
    key = dtype, type(value), value
    if key not in _constants:
        try:
            _constants[key] = cast("EagerTensor", convert_to_tensor(value, dtype))
        except (TypeError, ValueError):  # the operator raises a better error
            return value
    return _constants.get(key, value)


def _cached(
    key: tuple[Any, ...],
    output: EagerTensor,
    lazy_trace: LazyTrace,
    trace_node: TraceNode,
    can_fail: bool,
) -> EagerTensor:
    """The output of an operator, whose trace node is cached. Zeros of either sign are equal as
    keys."""
    if key[2] is EagerTensor or key[3]:
        lazy_trace.cache_shortcut(key, trace_node, output)
        end = trace_node.children.get(key)
        if end is not None:  # shapes that are known later may not fit
            shapes = [tensor._shape for tensor in end.nodes[0].inputs]
            end.needs_line = can_fail or any(shape.whole is None for shape in shapes)
    return output


for _method in (*_FALLIBLE, *_INFALLIBLE):
    setattr(EagerTensor, _method, _fast_operator(_method, _method in _FALLIBLE))
