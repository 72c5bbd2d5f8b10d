"""Hessians: the gradients of each element of a gradient, in a loop if its size is not static."""

from __future__ import annotations

from typing import Any

from thalweg.autodiff.gradients import gradients
from thalweg.control.functional import map_fn
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorStructure
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import joining
from thalweg.ops.core import filling, shaping
from thalweg.public import public


@public("hessians")
def hessians(
    ys: TensorStructure,
    xs: TensorStructure,
    name: str = "hessians",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
) -> list[Tensor]:
    """The Hessian of sum(ys) with respect to each x, of shape x.shape + x.shape."""
    options = {
        "colocate_gradients_with_ops": colocate_gradients_with_ops,
        "gate_gradients": gate_gradients,
        "aggregation_method": aggregation_method,
    }
    with name_scope(name, "hessians"):
        return [_hessian(ys, x, options) for x in nest.as_list(xs)]


def _hessian(ys: Any, x: Any, options: dict[str, Any]) -> Tensor:
    tensor = convert_to_tensor(x)
    (gradient,) = gradients(ys, x, **options)
    flat = shaping.reshape(gradient, [-1])
    size = tensor.shape.num_elements()

    def row(index: Any) -> Tensor:
        (second,) = gradients(flat[index], x, **options)
        return filling.zeros_like(tensor) if second is None else convert_to_tensor(second)

    if size is not None:
        rows = joining.stack([row(i) for i in range(size)]) if size else flat
        return shaping.reshape(rows, tensor.shape.as_list() * 2)
    rows = map_fn(row, filling.range(shaping.size(flat)), dtype=tensor.dtype.base_dtype)
    shape = shaping.shape(tensor)
    result = shaping.reshape(rows, joining.concat([shape, shape], 0))
    result.set_shape(tensor.shape.concatenate(tensor.shape))
    return result
