"""What is known of a tensor's value while the graph is built.

`constant_value` evaluates pure nodes whose inputs are all known with their NumPy kernels.
`constant_elements` also follows integer vectors that are known in part, so that
`reshape(x, [tf.shape(y)[0], -1])` keeps what is known; `constant_value_as_shape` reads the same
as a shape. What the body of a conditional or loop captures is known there as it is outside. A query
visits a bounded number of nodes, and at none of them twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import TensorLike

Array = NDArray[Any]
Elements = tuple[int | None, ...]

_MAX_ELEMENTS = 1024  # values worth knowing are shapes, axes and bounds, not data
_MAX_NODES = 256
_MAX_DEPTH = 32


class _Inquiry(threading.local):
    """The question being answered in this thread, and the answers found for it so far."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0
        self.visited = 0
        self.values: dict[Tensor, Array | None] = {}
        self.elements: dict[Tensor, Elements | None] = {}

    def answer(
        self, answers: dict[Tensor, Any], find: Callable[[Tensor], Any], tensor: Tensor
    ) -> Any:
        """What there is to find of a tensor; it is forgotten with the outermost question."""
        if tensor in answers:
            return answers[tensor]
        self.depth += 1
        try:
            proceed = self.depth <= _MAX_DEPTH and self.visited <= _MAX_NODES
            found = answers[tensor] = find(tensor) if proceed else None
            return found
        finally:
            self.depth -= 1
            if self.depth == 0:
                self.visited = 0
                self.values.clear()
                self.elements.clear()


_inquiry = _Inquiry()


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


def _value(tensor: Tensor) -> Array | None:
    return _inquiry.answer(_inquiry.values, _evaluated, tensor)


def _evaluated(tensor: Tensor) -> Array | None:
    """Evaluate what leads to a tensor, inputs first; None as soon as anything is unknown."""
    known = _inquiry.values
    pending = [tensor.op]
    while pending:
        node = pending[-1]
        outputs = _ready_value(node)
        if outputs is None:
            if not _can_evaluate(node) or _inquiry.visited > _MAX_NODES:
                return None
            waiting = [t for t in node.inputs if t not in known]
            if waiting:
                _inquiry.visited += 1
                pending.append(waiting[0].op)
                continue
            outputs = _evaluate(node, [known[t] for t in node.inputs])
        if outputs is None:
            return None
        known.update(zip(node.outputs, map(np.asarray, outputs), strict=True))
        pending.pop()
    return known[tensor]


def _ready_value(node: Node) -> list[Any] | None:
    """The outputs of a node that needs no inputs evaluated: constants and static shapes."""
    known = getattr(node.op, "known_value", None)
    if known is None:
        outer = _outside(node)
        value = None if outer is None else constant_value(outer)
        return None if value is None else [value]
    value = known(*_grouped(node))
    if value is None:
        return None
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _outside(node: Node) -> Tensor | None:
    """What a node of a body stands for, if it is a value that does not change in there."""
    if node.inputs or len(node.outputs) != 1:
        return None
    return node.graph.outside(node.outputs[0])


def _can_evaluate(node: Node) -> bool:
    op = node.op
    if op.stateful or not op.has("numpy") or not node.inputs:
        return False
    sizes = [t.shape.num_elements() for t in (*node.inputs, *node.outputs)]
    return all(size is not None and size <= _MAX_ELEMENTS for size in sizes)


def _evaluate(node: Node, values: list[Any]) -> list[Any] | None:
    if any(value is None for value in values):
        return None
    try:
        with np.errstate(all="ignore"):
            result = node.op.numpy(*node.op.parsed.group(values, node.input_counts()))
    except Exception:  # a value that cannot be computed now is unknown; the step will say why
        return None
    return list(cast("list[Any]", result)) if isinstance(result, list | tuple) else [result]


def _grouped(node: Node) -> list[Any]:
    return node.op.parsed.group(node.inputs, node.input_counts())


def constant_elements(tensor: Tensor) -> Elements | None:
    """The elements of an integer scalar or vector, None where unknown; None if the length is."""
    return _inquiry.answer(_inquiry.elements, _elements, tensor)


def _elements(tensor: Tensor) -> Elements | None:
    count = tensor.shape.num_elements()
    if count is not None and count > _MAX_ELEMENTS:
        return None
    value = _value(tensor)
    if value is not None:
        return tuple(value.ravel().tolist())
    node = tensor.op
    outer = _outside(node)
    if outer is not None:
        return constant_elements(outer)
    if node.op.has("dimensions"):
        return node.op.dimensions(*_grouped(node)).sizes
    if node.op.elementwise and tensor.shape.rank == 1:
        return _elementwise(node)
    return None if count is None else (None,) * count


def _elementwise(node: Node) -> Elements | None:
    """An elementwise op on vectors: each element for which all inputs are known."""
    count = node.output.shape.num_elements()
    parts = [constant_elements(tensor) for tensor in node.inputs]
    if count is None or any(part is None for part in parts):
        return None if count is None else (None,) * count
    rows = [part * count if len(part) == 1 else part for part in parts if part is not None]
    columns = zip(*rows, strict=True)
    places = [place for place, column in enumerate(columns) if None not in column]
    kinds = [tensor.dtype.base_dtype.as_numpy_dtype for tensor in node.inputs]
    known = [np.array([row[p] for p in places], k) for row, k in zip(rows, kinds, strict=True)]
    results = _evaluate(node, known)
    found = {} if results is None else dict(zip(places, results[0].tolist(), strict=True))
    return tuple(found.get(place) for place in range(count))


def constant_value_as_shape(tensor: Tensor) -> TensorShape:
    """What is known of the shape that an integer vector describes (-1 is unknown)."""
    shape = tensor.shape
    if shape.rank == 0:
        return unknown_shape()
    elements = constant_elements(tensor)
    if elements is None:
        return unknown_shape(shape[0].value if shape.rank == 1 else None)
    return TensorShape.of(tuple(None if e is None or e < 0 else int(e) for e in elements))


operators["known_shape"] = constant_value_as_shape
