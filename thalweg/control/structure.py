"""Nested structures of tensors and of values made of tensors, as flat lists and back.

What goes into a branch, around a loop or through a function is nested: lists, tuples, mappings,
sparse tensors, tensor arrays. The nodes themselves take and give flat lists of tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.origin import user_line
from thalweg.ops.core import basic


def tensors_of(structure: Any, what: str) -> list[Tensor]:
    """All tensors of a structure; other leaves are converted. An error says what it is."""
    found: list[Tensor] = []
    for leaf in nest.flatten(structure):
        try:
            found += components(leaf)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"{what} must be tensors, not {leaf!r}: {error} (at {user_line()})"
            ) from error
    return found


def components(leaf: Any) -> list[Tensor]:
    """The tensors a leaf is made of; a node is a truth that comes after it."""
    if hasattr(leaf, "components"):
        return leaf.components()
    if isinstance(leaf, Node):
        with get_default_graph().control_dependencies([leaf]):
            return [basic.constant(True, name="done")]
    tensor = convert_to_tensor(leaf)
    return [basic.identity(tensor)] if tensor.dtype.is_ref_dtype else [tensor]


def rebuilt(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """A structure like another one, with other tensors."""
    return nest.pack_sequence_as(structure, tensors, expand_composites=True)
