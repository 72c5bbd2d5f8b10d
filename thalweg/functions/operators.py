"""The fast path of Python's operators on eager tensors.

The op that an operator applies to tensors of a dtype is found once, by building it in a graph. If
it is a single op, it is recorded directly from then on. Python numbers as operands become cached
constants.
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
from thalweg.graph.graph import Graph, get_default_graph, global_graph, graphs
from thalweg.graph.node import Tensor, operators
from thalweg.graph.op import Op
from thalweg.graph.shapes import unknown_shape
from thalweg.ops.core.basic import Placeholder
from thalweg.platform.caches import Bounded
from thalweg.variables.variable import Variable

_MAX_CONSTANTS = 1_000

_record = EAGER.record  # bound once: looking it up is slow

_BINARY = {
    "__add__": "add",
    "__sub__": "sub",
    "__mul__": "mul",
    "__truediv__": "truediv",
    "__floordiv__": "floordiv",
    "__mod__": "mod",
    "__pow__": "pow",
    "__lt__": "lt",
    "__le__": "le",
    "__gt__": "gt",
    "__ge__": "ge",
}


def _single_op(symbol: str, dtype: DType) -> Op | None:
    """The op that an operator applies to two tensors of a dtype, if it is a single op."""
    graph = Graph()
    with graph.as_default():
        x, y = (Placeholder(dtype=dtype, given_shape=unknown_shape())() for _ in range(2))
        try:
            operators[symbol](x, y)
        except (TypeError, ValueError):
            return None
    nodes = graph.nodes[2:]
    is_single = len(nodes) == 1 and nodes[0].inputs == (x, y)
    return nodes[0].op if is_single else None


class DTypeOperator:
    """An operator on tensors of one dtype."""

    __slots__ = ("_constants", "_dtype", "_is_integral", "op")

    def __init__(self, symbol: str, dtype: DType) -> None:
        self.op = _single_op(symbol, dtype)
        self._dtype = dtype
        self._is_integral = not (dtype.is_floating or dtype.is_complex)  # takes no float
        self._constants = Bounded[Any, EagerTensor]("numbers as operands", _MAX_CONSTANTS)

    def operand(self, value: Any) -> EagerTensor | None:
        """The other operand as a tensor of the dtype; None if the fast path does not take it."""
        kind = class_of(value)
        if kind is EagerTensor:
            return value if value.dtype is self._dtype else None
        if kind is int or (kind is float and not self._is_integral):
            return self._constant(value)
        if kind is EagerVariable:
            tensor = value.value()
            return tensor if tensor.dtype is self._dtype else None
        return None

    def _constant(self, value: float) -> EagerTensor | None:
        """A Python number as a cached constant."""
        cached = self._constants.get(value)
        if cached is not None:
            return cached
        if not value or value != value:  # 0.0 == -0.0, and nan is no key
            return None
        constant = cast("EagerTensor", convert_to_tensor(value, self._dtype))
        self._constants[value] = constant
        return constant


def _general_operator(method: str, symbol: str) -> Callable[[Any, Any], Any]:
    """An operator that records its op, without a shortcut."""
    on_graphs = getattr(Tensor, method)
    paths: dict[int, DTypeOperator] = {}  # by id: dtypes are singletons

    def operate(x: EagerTensor, y: Any) -> Any:
        cached = paths.get(id(x.dtype))
        if cached is None:
            cached = paths[id(x.dtype)] = DTypeOperator(symbol, x.dtype)
        if cached.op is None or get_default_graph() is not EAGER:
            return on_graphs(x, y)
        try:
            other = cached.operand(y)
        except (TypeError, ValueError):  # the operator of graphs raises a better error
            return on_graphs(x, y)
        if other is None:
            return on_graphs(x, y)
        return _record(cached.op, (x, other), None)

    return operate


def _fast_operator(method: str, symbol: str) -> Callable[[Any, Any], Any]:
    """An operator that takes the shortcut of an earlier use at the same trace node."""
    general = _general_operator(method, symbol)
    tensor_name = f"{method} of tensors"

    def operate(x: EagerTensor, y: Any) -> Any:
        lazy_trace: LazyTrace = EAGER.lazy_trace
        if (x._lazy_trace is not lazy_trace or lazy_trace.closed) and not _enter_current(x):
            return general(x, y)
        lazy_trace = x._lazy_trace
        kind = class_of(y)
        if kind is float or kind is int:
            name, other = method, y
        elif kind is EagerTensor and y._lazy_trace is lazy_trace:
            name, other = tensor_name, y._position
        else:
            return general(x, y)
        trace_node = lazy_trace.end
        last, position, value, dtype, shape, number, end = trace_node.prediction
        if last is not name or position != x._position or value is not other:
            key = (name, x._position, kind, other)
            end = trace_node.shortcuts.get(key)
            if end is None:
                output = general(x, y)
                _cache_shortcut(key, x, output, lazy_trace, trace_node)
                return output
            template, number = end.outputs[0], end.count - 1
            dtype, shape = template.dtype, template._shape
            trace_node.prediction = (name, x._position, other, dtype, shape, number, end)
        if fast_path_disabled[0] or (lazy_trace.graphs or global_graph)[-1] is not EAGER:
            return general(x, y)
        # `LazyTrace.advance_single` inlined, without reading the trace node and its template.
        output = _new(EagerTensor)
        output.dtype = dtype
        output._shape = shape
        output._array = output._literal = output._leaf_key = None
        output._position = number
        output._lazy_trace = lazy_trace
        lazy_trace.tensors.append(output)
        lazy_trace.end = end
        return general(x, y) if lazy_trace.closed else output  # another thread ran the trace

    operate.__name__ = method
    return operate


_new = EagerTensor.__new__


def _enter_current(x: EagerTensor) -> bool:
    """Enter a tensor into the current lazy trace; False outside of eager code."""
    if fast_path_disabled[0] or (graphs.items or global_graph)[-1] is not EAGER:
        return False
    EAGER.position(x)
    return True


def _cache_shortcut(
    key: tuple[Any, ...], x: EagerTensor, output: Any, lazy_trace: LazyTrace, trace_node: TraceNode
) -> None:
    """Cache the trace node of an operator as a shortcut, past the literal of its constant operand.

    Operators on integers can fail, and the error must name the line: they take the general path,
    which records it. Zeros of either sign are equal as keys.
    """
    is_exact = x.dtype.is_floating and (key[2] is EagerTensor or bool(key[3]))
    if is_exact and type(output) is EagerTensor and output._lazy_trace is lazy_trace:
        lazy_trace.cache_shortcut(key, trace_node)


for _method, _symbol in _BINARY.items():
    setattr(EagerTensor, _method, _fast_operator(_method, _symbol))


def _variable_operator(method: str) -> Callable[[Any, Any], Any]:
    on_tensors = getattr(EagerTensor, method)
    general = getattr(Variable, method)

    def operate(x: EagerVariable, y: Any) -> Any:
        return on_tensors(x.value(), y) if get_default_graph() is EAGER else general(x, y)

    operate.__name__ = method
    return operate


for _method in _BINARY:
    setattr(EagerVariable, _method, _variable_operator(_method))
