"""The fast path of Python's operators on eager tensors.

What an operator does to tensors of some dtype is tried once, on a graph. Where that is one op, it
is recorded directly from then on; a Python number beside a tensor is a constant that is kept.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from thalweg.functions.eager import EAGER, recorded
from thalweg.functions.lazy_trace import LazyTrace, fast_path_disabled
from thalweg.functions.tensors import EagerTensor, class_of
from thalweg.functions.trace import LITERAL, TraceNode
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

_MAX_NUMBERS = 1_000

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


def _only_op(symbol: str, dtype: DType) -> Op | None:
    """What an operator is on two tensors of a dtype, if that is a single op."""
    graph = Graph()
    with graph.as_default():
        x, y = (Placeholder(dtype=dtype, given_shape=unknown_shape())() for _ in range(2))
        try:
            operators[symbol](x, y)
        except (TypeError, ValueError):
            return None
    made = graph.nodes[2:]
    is_one = len(made) == 1 and made[0].inputs == (x, y)
    return made[0].op if is_one else None


class OperatorPath:
    """What an operator does to tensors of one dtype."""

    __slots__ = ("_dtype", "_is_whole", "_numbers", "op")

    def __init__(self, symbol: str, dtype: DType) -> None:
        self.op = _only_op(symbol, dtype)
        self._dtype = dtype
        self._is_whole = not (dtype.is_floating or dtype.is_complex)  # a float is no int
        self._numbers = Bounded[Any, EagerTensor]("numbers as operands", _MAX_NUMBERS)

    def operand(self, value: Any) -> EagerTensor | None:
        """The other operand as a tensor of the dtype, if it is plainly that."""
        kind = class_of(value)
        if kind is EagerTensor:
            return value if value.dtype is self._dtype else None
        if kind is int or (kind is float and not self._is_whole):
            return self._number(value)
        if kind is EagerVariable:
            tensor = value.value()
            return tensor if tensor.dtype is self._dtype else None
        return None

    def _number(self, value: float) -> EagerTensor | None:
        """A Python number as a constant."""
        found = self._numbers.get(value)
        if found is not None:
            return found
        if not value or value != value:  # zero has a sign that equality does not see
            return None
        made = convert_to_tensor(value, self._dtype)
        found = self._numbers[value] = cast("EagerTensor", made)
        return found


def _general(method: str, symbol: str) -> Callable[[Any, Any], Any]:
    """What an operator does wherever it is used first."""
    on_graphs = getattr(Tensor, method)
    paths: dict[int, OperatorPath] = {}  # by the identity of dtypes, of which there is one each

    def operate(x: EagerTensor, y: Any) -> Any:
        cached = paths.get(id(x.dtype))
        if cached is None:
            cached = paths[id(x.dtype)] = OperatorPath(symbol, x.dtype)
        if cached.op is None or get_default_graph() is not EAGER:
            return on_graphs(x, y)
        try:
            other = cached.operand(y)
        except (TypeError, ValueError):  # the graphs' operator says it in words
            return on_graphs(x, y)
        if other is None:
            return on_graphs(x, y)
        return recorded(cached.op, (x, other), None, 3)

    return operate


def _operator(method: str, symbol: str) -> Callable[[Any, Any], Any]:
    """An operator that finds where it led the last time."""
    general = _general(method, symbol)
    between = f"{method} of tensors"

    def operate(x: EagerTensor, y: Any) -> Any:
        lazy_trace: LazyTrace = EAGER.lazy_trace
        if (x._lazy_trace is not lazy_trace or lazy_trace.closed) and not _enter(x):
            return general(x, y)
        lazy_trace = x._lazy_trace
        kind = class_of(y)
        if kind is float or kind is int:
            name, other = method, y
        elif kind is EagerTensor and y._lazy_trace is lazy_trace:
            name, other = between, y._position
        else:
            return general(x, y)
        trace_node = lazy_trace.end
        last, position, value, dtype, shape, number, end = trace_node.predicted
        if last is not name or position != x._position or value is not other:
            key = (name, x._position, kind, other)
            end = trace_node.shortcuts.get(key)
            if end is None:
                made = general(x, y)
                _note(key, x, made, lazy_trace, trace_node)
                return made
            template, number = end.outputs[0], end.count - 1
            dtype, shape = template.dtype, template._shape
            trace_node.predicted = (name, x._position, other, dtype, shape, number, end)
        if fast_path_disabled[0] or (lazy_trace.graphs or global_graph)[-1] is not EAGER:
            return general(x, y)
        # As `LazyTrace.take`, without looking at the trace node and its template.
        made = _new(EagerTensor)
        made.dtype = dtype
        made._shape = shape
        made._array = made._literal = made._kind = None
        made._position = number
        made._lazy_trace = lazy_trace
        lazy_trace.tensors.append(made)
        lazy_trace.end = end
        return (
            general(x, y) if lazy_trace.closed else made
        )  # another thread wanted a value meanwhile

    operate.__name__ = method
    return operate


_new = EagerTensor.__new__


def _enter(x: EagerTensor) -> bool:
    """Make a tensor part of the span that is recorded now, if eager code is what runs."""
    if fast_path_disabled[0] or (graphs.items or global_graph)[-1] is not EAGER:
        return False
    EAGER.position(x)
    return True


def _note(
    key: tuple[Any, ...], x: EagerTensor, made: Any, lazy_trace: LazyTrace, trace_node: TraceNode
) -> None:
    """Cache where an operator led: to the next trace node, or to one behind a constant.

    Operators on integers can fail, which must be said of the line that failed: they take the
    general path, which finds it. Zeros differ by their signs, which a key does not see.
    """
    is_exact = x.dtype.is_floating and (key[2] is EagerTensor or bool(key[3]))
    if not is_exact or type(made) is not EagerTensor or made._lazy_trace is not lazy_trace:
        return
    end = lazy_trace.end
    before = end.parent
    if before is not trace_node and before is not None and before.leaf == LITERAL:
        before = before.parent
    if before is trace_node and end.is_plain:
        trace_node.shortcuts[key] = lazy_trace.shortcut()


for _method, _symbol in _BINARY.items():
    setattr(EagerTensor, _method, _operator(_method, _symbol))


def _of_variable(method: str) -> Callable[[Any, Any], Any]:
    on_tensors = getattr(EagerTensor, method)
    general = getattr(Variable, method)

    def operate(x: EagerVariable, y: Any) -> Any:
        return on_tensors(x.value(), y) if get_default_graph() is EAGER else general(x, y)

    operate.__name__ = method
    return operate


for _method in _BINARY:
    setattr(EagerVariable, _method, _of_variable(_method))
