"""Static evaluation: the values of tensors that are known while the graph is built.

`constant_value` evaluates pure nodes whose inputs are all known with their NumPy kernels.
`constant_elements` also propagates integer vectors that are known in part, so that
`reshape(x, [tf.shape(y)[0], -1])` keeps the known sizes; `constant_value_as_shape` returns them as
a shape. A capture of a conditional's or loop's body has the known value of the outer tensor. A
query visits a bounded number of nodes, each at most once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.graph.analysis.evaluate import known_outputs, tried_outputs_of
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.platform.arrays import Array
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import TensorLike

Elements = tuple[int | None, ...]

_MAX_ELEMENTS = 1024  # values worth knowing are shapes, axes and bounds, not data
_MAX_NODES = 256
_MAX_DEPTH = 32


class _Query(threading.local):
    """The current outermost query of this thread, with its memoized results."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.visited = 0
        self.values: dict[Tensor, Array | None] = {}
        self.elements: dict[Tensor, Elements | None] = {}

    def memoized(
        self, results: dict[Tensor, Any], evaluate: Callable[[Tensor], Any], tensor: Tensor
    ) -> Any:
        """`evaluate(tensor)`, memoized in `results` until the outermost query ends; None beyond
        the limits."""
        if tensor in results:
            return results[tensor]
        self.depth += 1
        try:
            is_allowed = self.depth <= _MAX_DEPTH and self.visited <= _MAX_NODES
            result = results[tensor] = evaluate(tensor) if is_allowed else None
            return result
        finally:
            self.depth -= 1
            if self.depth == 0:
                self.visited = 0
                self.values.clear()
                self.elements.clear()


_query = _Query()


@public("contrib.util.constant_value", "get_static_value")
def constant_value(tensor: TensorLike, partial: bool = False) -> Array | None:
    """The value of a tensor if it follows from constants and static shapes, else None.

    With `partial`, a vector known in part is an array of objects, None where unknown.
    """
    if not isinstance(tensor, Tensor):
        return None
    value = _value(tensor)
    if value is not None:
        tensor.graph.prevent_feeding(tensor)  # static shapes were built on it
        return value
    if not partial or tensor.shape.rank != 1:
        return None
    elements = constant_elements(tensor)
    return None if elements is None else np.array(elements, dtype=object)


def constant_input(tensor: Tensor, index: int) -> Array | None:
    """The value of an input of a tensor's node, as `constant_value` gives it; None for an eager
    tensor that was computed, which has no inputs any more."""
    inputs = tensor.op.inputs
    return constant_value(inputs[index]) if inputs else None


def _value(tensor: Tensor) -> Array | None:
    return _query.memoized(_query.values, _evaluated, tensor)


def _evaluated(tensor: Tensor) -> Array | None:
    """Evaluate a tensor after its inputs; None as soon as any value is unknown."""
    known = _query.values
    pending = [tensor.op]
    while pending:
        node = pending[-1]
        outputs = _ready_value(node)
        if outputs is None:
            if not _can_evaluate(node) or _query.visited > _MAX_NODES:
                return None
            missing = [t for t in node.inputs if t not in known]
            if missing:
                _query.visited += 1
                pending.append(missing[0].op)
                continue
            values = [value for t in node.inputs if (value := known[t]) is not None]
            outputs = tried_outputs_of(node, values) if len(values) == len(node.inputs) else None
        if outputs is None:
            return None
        known.update(zip(node.outputs, outputs, strict=True))
        pending.pop()
    return known[tensor]


def _ready_value(node: Node) -> list[Array] | None:
    """The outputs of a node that need no input values: constants, static shapes, captures."""
    outer = None if node.op.has("known_value") else node.graph.outside(node.outputs[0])
    if outer is None:
        return known_outputs(node)
    value = constant_value(outer)
    return None if value is None else [value]


def _can_evaluate(node: Node) -> bool:
    op = node.op
    if op.stateful or not op.has("numpy") or not node.inputs:
        return False
    sizes = [t.shape.num_elements() for t in (*node.inputs, *node.outputs)]
    return all(size is not None and size <= _MAX_ELEMENTS for size in sizes)


def constant_elements(tensor: Tensor) -> Elements | None:
    """The elements of an integer scalar or vector, each None if unknown; None if the length is."""
    return _query.memoized(_query.elements, _elements, tensor)


def _elements(tensor: Tensor) -> Elements | None:
    count = tensor.shape.num_elements()
    if count is not None and count > _MAX_ELEMENTS:
        return None
    value = _value(tensor)
    if value is not None:
        return tuple(value.ravel().tolist())
    outer = tensor.graph.outside(tensor)
    if outer is not None:
        return constant_elements(outer)
    node = tensor.op
    if node.op.has("dimensions"):
        return node.op.dimensions(*node.grouped(node.inputs)).sizes
    if node.op.elementwise and tensor.shape.rank == 1:
        return _elementwise(node)
    return None if count is None else (None,) * count


def _elementwise(node: Node) -> Elements | None:
    """The output of an elementwise op on vectors: the elements for which all inputs are known."""
    count = node.output.shape.num_elements()
    if count is None:
        return None
    vectors = [constant_elements(tensor) or (None,) for tensor in node.inputs]
    rows = [vector * count if len(vector) == 1 else vector for vector in vectors]
    if any(len(row) != count for row in rows):  # a shape was set that the inputs do not have
        return (None,) * count
    columns = zip(*rows, strict=True)
    indices = [index for index, column in enumerate(columns) if None not in column]
    dtypes = [tensor.dtype.base_dtype.as_numpy_dtype for tensor in node.inputs]
    inputs = [np.array([row[i] for i in indices], d) for row, d in zip(rows, dtypes, strict=True)]
    results = tried_outputs_of(node, inputs)
    known = {} if results is None else dict(zip(indices, results[0].tolist(), strict=True))
    return tuple(known.get(index) for index in range(count))


def constant_value_as_shape(tensor: Tensor) -> TensorShape:
    """The static shape that an integer vector describes; -1 is an unknown size."""
    shape = tensor.shape
    if shape.rank == 0:
        return unknown_shape()
    elements = constant_elements(tensor)
    if elements is None:
        return unknown_shape(shape[0].value if shape.rank == 1 else None)
    return TensorShape.of(tuple(None if e is None or e < 0 else int(e) for e in elements))


operators["known_shape"] = constant_value_as_shape
