"""Evaluates nodes with their NumPy kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.graph.signature import flattened
from thalweg.platform.arrays import Array


def outputs_of(node: Node, values: Sequence[Array]) -> list[Array]:
    """The outputs of a node for the values of its inputs."""
    with np.errstate(all="ignore"):
        result = node.op.numpy(*node.grouped(values))
    return _flat_arrays(result)


def tried_outputs_of(node: Node, values: Sequence[Array]) -> list[Array] | None:
    """The same; None if the kernel fails. The step raises the error when it runs the node."""
    try:
        return outputs_of(node, values)
    except Exception:
        return None


def known_outputs(node: Node, inputs: Sequence[Tensor] | None = None) -> list[Array] | None:
    """The outputs of a constant, and those that the static shapes of its inputs, or of others in
    their place, determine; None of other nodes."""
    known: Any = getattr(node.op, "known_value", None)
    values = None if known is None else known(*node.grouped(inputs or node.inputs))
    return None if values is None else _flat_arrays(values)


def _flat_arrays(result: Any) -> list[Array]:
    """The outputs that a kernel returned as arrays, those of lists flattened."""
    outputs = cast("Sequence[Any]", result if isinstance(result, list | tuple) else [result])
    return [np.asarray(output) for output in flattened(outputs)]
