"""Which nodes can be compiled: used by placement and by the formation of regions."""

from __future__ import annotations

from thalweg.graph import dtypes
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.ops.core.basic import NoOp
from thalweg.platform.caches import memoized


def compilable(node: Node) -> bool:
    """Whether a node may be compiled, judging by its op and dtypes."""
    return isinstance(node.op, NoOp) or (
        has_code(type(node.op))
        and all(map(_is_plain, node.inputs))
        and all(map(_is_plain, node.outputs))
    )


@memoized(5_000)
def has_code(kind: type[Op]) -> bool:
    """Whether an op has a loop form, or depends on shapes alone."""
    return not kind.host_only and (kind.has("loop") or kind.has("element") or kind.of_shapes)


def _is_plain(tensor: Tensor) -> bool:
    dtype = tensor.dtype
    if dtype.is_ref_dtype and not tensor.shape.is_fully_defined():
        return False  # a variable without a static shape may change it between steps
    return is_number(dtype.base_dtype)


@memoized(64)
def is_number(dtype: dtypes.DType) -> bool:
    """Whether kernels support a dtype."""
    return dtype in dtypes.REAL or dtype.is_bool
