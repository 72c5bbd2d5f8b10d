"""What is known of a tensor's value while the graph is built.

`constant_value` evaluates pure nodes whose inputs are all known with their NumPy kernels;
`constant_value_as_shape` also follows integer vectors that are known in part, so that
`reshape(x, [tf.shape(y)[0], -1])` keeps what is known. Both work without recursion.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.shapes import TensorShape, unknown_shape

_MOST_ELEMENTS = 1024  # values worth knowing are shapes, axes and bounds, not data
_MOST_NODES = 256


def constant_value(tensor: Any) -> NDArray[Any] | None:
    """The value of a tensor if it follows from constants and static shapes, else None."""
    if not isinstance(tensor, Tensor):
        return None
    known: dict[Tensor, Any] = {}
    pending = [tensor]
    visited = 0
    while pending:
        node = pending[-1].op
        waiting = [t for t in node.inputs if t not in known]
        values = _ready_value(node)
        if values is None and _can_evaluate(node):
            if waiting:
                pending.append(waiting[0])
                visited += 1
                if visited > _MOST_NODES:
                    return None
                continue
            values = _evaluate(node, [known[t] for t in node.inputs])
        if values is None:
            return None
        known.update(zip(node.outputs, values, strict=True))
        pending.pop()
    return np.asarray(known[tensor])


def _ready_value(node: Node) -> list[Any] | None:
    """The outputs of a node that needs no inputs evaluated: constants and static shapes."""
    known = getattr(node.op, "known_value", None)
    if known is None:
        return None
    value = known(*_grouped(node))
    return None if value is None else [value]


def _can_evaluate(node: Node) -> bool:
    op = node.op
    if op.stateful or not op.has("numpy") or op.host_only or not node.inputs:
        return False
    sizes = [t.shape.num_elements() for t in (*node.inputs, *node.outputs)]
    return all(size is not None and size <= _MOST_ELEMENTS for size in sizes)


def _evaluate(node: Node, values: list[Any]) -> list[Any] | None:
    try:
        with np.errstate(all="ignore"):
            result = node.op.numpy(*node.op.parsed.group(values, node.input_counts()))
    except Exception:  # a value that cannot be computed now is unknown; the step will say why
        return None
    return list(cast("list[Any]", result)) if isinstance(result, list | tuple) else [result]


def _grouped(node: Node) -> list[Any]:
    return node.op.parsed.group(node.inputs, node.input_counts())


def constant_value_as_shape(tensor: Tensor) -> TensorShape:
    """What is known of the shape that an integer vector describes (-1 is unknown)."""
    value = constant_value(tensor)
    if value is not None:
        if value.ndim == 0:
            return unknown_shape()
        return TensorShape.of(tuple(int(v) if v >= 0 else None for v in value.ravel()))
    op = tensor.op.op
    if op.has("dimensions"):
        return op.dimensions(*_grouped(tensor.op))
    shape = tensor.shape
    return unknown_shape(shape[0].value if shape.rank == 1 else None)


operators["known_shape"] = constant_value_as_shape
