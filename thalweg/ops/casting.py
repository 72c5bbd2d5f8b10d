"""Changes of dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Node, Tensor
from thalweg.loops.expr import Expr
from thalweg.ops.elementwise import Elementwise
from thalweg.public import public

Array = NDArray[Any]


class Cast(Elementwise):
    """y = x as another dtype"""

    signature = "x: SrcT -> y: DstT"
    DstT: DType

    def numpy(self, x: Array) -> Array:
        return np.asarray(x).astype(self.DstT.as_numpy_dtype)

    def element(self, x: Expr) -> Expr:
        return x.cast(self.DstT.as_numpy_dtype)

    def gradient(self, node: Node, dy: Tensor) -> Tensor | None:
        source = node.inputs[0].dtype.base_dtype
        both_smooth = all(d.is_floating or d.is_complex for d in (source, self.DstT))
        return cast(dy, source) if both_smooth else None


@public("cast", "dtypes.cast")
def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """`x` converted to `dtype`, element by element."""
    kind = as_dtype(dtype).base_dtype
    if isinstance(x, SparseTensor):
        return SparseTensor(x.indices, cast(x.values, kind, name), x.dense_shape)
    tensor = convert_to_tensor(x, name="x")
    if tensor.dtype.base_dtype is kind:
        return tensor
    return Cast(DstT=kind)(tensor, name=name)
