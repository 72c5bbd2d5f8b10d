"""Channels-last forms of nodes that are written with channels first.

The `Form` of a node says which of its inputs and outputs are images, how much faster it is with
channels last, and how to build it for images with channels last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.ir.target import LayoutTimes
from thalweg.ops.arrays.indexing import GatherV2
from thalweg.ops.arrays.joining import ConcatV2, Tile
from thalweg.ops.arrays.padding import Pad, PadV2
from thalweg.ops.arrays.slicing import Slice
from thalweg.ops.arrays.splitting import Split, SplitV
from thalweg.ops.arrays.transposing import Transpose
from thalweg.ops.core.broadcast import BroadcastTo
from thalweg.ops.core.filling import OnesLike, ZerosLike
from thalweg.ops.core.shaping import Reshape, Shape
from thalweg.ops.math.arithmetic import AddN
from thalweg.ops.math.reduce import Reduction
from thalweg.ops.nn.convolution import Convolution, Forward, ToFilter
from thalweg.ops.nn.pooling import MaxPoolingGrad, Pooling
from thalweg.optimize.facts import integers

#: Channels last, by the name of the layout with channels first.
CHANNELS_LAST = {"NCHW": "NHWC", "NCDHW": "NDHWC"}

_DEFAULT_SIZE = 32  # for sizes that are not known

Build = Callable[[Sequence[Tensor]], Any]


@dataclass(frozen=True)
class Form:
    """The channels-last form of a node."""

    inputs: tuple[int, ...]  # the positions of images
    outputs: tuple[int, ...]
    gain: float  # in nanoseconds
    build: Build  # from the inputs, images with channels last

    def images(self, node: Node) -> list[Tensor]:
        """The images among the inputs and outputs of its node."""
        return [*(node.inputs[n] for n in self.inputs), *(node.outputs[n] for n in self.outputs)]


def to_last(rank: int) -> list[int]:
    """The permutation to channels last."""
    return [0, *range(2, rank), 1]


def to_first(rank: int) -> list[int]:
    """The permutation to channels first."""
    return [0, rank - 1, *range(1, rank - 1)]


def move_cost(tensor: Tensor, times: LayoutTimes) -> float:
    """Nanoseconds to transpose an image."""
    return times.move * _elements(tensor) * tensor.dtype.size / 4


def form_of(node: Node, times: LayoutTimes) -> Form | None:
    """The channels-last form of a node, if it has one; `times` are those of its device."""
    op = node.op
    if op.laid_out:
        return _form_of_layout_op(node, times)
    if isinstance(op, Transpose):
        return _form_of_transpose(node, times)
    if op.elementwise or isinstance(op, AddN | ZerosLike | OnesLike):
        return _form_of_elementwise(node)
    for kind, form in _FORMS.items():
        if isinstance(op, kind):
            return form(node)
    return None


def is_channels_first(node: Node) -> bool:
    """Whether a node is written for channels first."""
    return bool(node.op.laid_out) and node.op.attributes["data_format"] in CHANNELS_LAST


# Ops that have a layout


def _form_of_layout_op(node: Node, times: LayoutTimes) -> Form | None:
    if not is_channels_first(node):
        return None
    op, laid_out = node.op, node.op.laid_out
    input_names = [argument.name for argument in op.parsed.inputs]
    output_names = [argument.name for argument in op.parsed.outputs]
    with_layout = [n for n, name in enumerate(input_names) if name in laid_out]
    image_inputs = tuple(n for n in with_layout if _rank(node.inputs[n]) >= 4)
    image_outputs = tuple(n for n, name in enumerate(output_names) if name in laid_out)
    if not image_inputs or any(_rank(node.outputs[n]) < 4 for n in image_outputs):
        return None
    rank = _rank(node.inputs[image_inputs[0]])
    sizes = [n for n in with_layout if n not in image_inputs]
    if any(_rank(node.inputs[n]) != 1 for n in sizes):
        return None
    last = type(op)(**_attributes(op.attributes, rank))

    def build(inputs: Sequence[Tensor]) -> Any:
        order = to_last(rank)
        return last(*[_permuted(t, order) if n in sizes else t for n, t in enumerate(inputs)])

    return Form(image_inputs, image_outputs, _gain(node, times), build)


def _attributes(attributes: Any, rank: int) -> dict[str, Any]:
    """Attributes for channels last: the layout's name, and lists with an entry for each axis."""
    order = to_last(rank)
    result = dict(attributes) | {"data_format": CHANNELS_LAST[attributes["data_format"]]}
    for name in {"strides", "ksize", "dilations"} & result.keys():
        if len(result[name]) == rank:
            result[name] = tuple(result[name][axis] for axis in order)
    if len(pads := result.get("explicit_paddings", ())) == 2 * rank:
        result["explicit_paddings"] = tuple(pads[2 * axis + n] for axis in order for n in (0, 1))
    return result


def _gain(node: Node, times: LayoutTimes) -> float:
    """The time that a node saves with channels last."""
    op = node.op
    if isinstance(op, Convolution):
        return _convolution_gain(node, op, times)
    if isinstance(op, Pooling):
        rate = times.pool_grad if isinstance(op, MaxPoolingGrad) else times.pool
        return rate * _elements(node.inputs[-1])
    return 0.0  # biases and batch norm are as fast in either layout


def _convolution_gain(node: Node, op: Convolution, times: LayoutTimes) -> float:
    if isinstance(op, ToFilter) or node.inputs[1].shape.rank is None:
        return 0.0
    window = [size or _DEFAULT_SIZE for size in node.inputs[1].shape.as_list()]
    is_dense = prod(window[:-2]) == 1
    if isinstance(op, Forward):
        image, rate = node.outputs[0], times.dense if is_dense else times.window
    else:
        moves_by_one = max(op.spatial(op.strides)) == 1
        image = node.inputs[2]
        rate = times.adjoint if moves_by_one and not is_dense else 0.0
    channels = image.shape.as_list()[1] or _DEFAULT_SIZE
    return rate * 2 * _elements(image) / channels * prod(window)


# Ops that follow the layout of their inputs


def _form_of_elementwise(node: Node) -> Form | None:
    rank = _rank(node.outputs[0])
    images = tuple(n for n, tensor in enumerate(node.inputs) if _rank(tensor) == rank)
    small = [n for n in range(len(node.inputs)) if n not in images]
    if rank < 4 or not images or not all(_is_small(node.inputs[n], rank) for n in small):
        return None

    def build(inputs: Sequence[Tensor]) -> Any:
        operands = [_widened(t, rank) if n in small else t for n, t in enumerate(inputs)]
        return node.op(*node.grouped(operands))

    return Form(images, (0,), 0.0, build)


def _is_small(tensor: Tensor, rank: int) -> bool:
    """Whether a tensor of smaller rank can be reshaped for broadcasting."""
    return 0 <= _rank(tensor) < rank and tensor.shape.is_fully_defined()


def _widened(tensor: Tensor, rank: int) -> Any:
    """A tensor of smaller rank, reshaped to the full rank and transposed to channels last."""
    sizes = tensor.shape.as_list()
    if not sizes:
        return tensor
    full = np.array([1] * (rank - len(sizes)) + sizes, np.int32)
    return Transpose()(Reshape()(tensor, full), np.array(to_last(rank), np.int32))


def _form_of_per_axis_op(node: Node, *, lists: Sequence[int] = (1,)) -> Form | None:
    """An op of one image, and of lists with an entry for each axis."""
    rank = _rank(node.outputs[0])
    if rank < 4 or _rank(node.inputs[0]) != rank:
        return None

    def build(inputs: Sequence[Tensor]) -> Any:
        order = to_last(rank)
        return node.op(*[_permuted(t, order) if n in lists else t for n, t in enumerate(inputs)])

    return Form((0,), (0,), 0.0, build)


def _form_along_axis(node: Node, *, images: slice, axis: int) -> Form | None:
    """An op along an axis, given the positions of the images and of the axis."""
    rank, along = _rank(node.outputs[0]), integers(node.inputs[axis])
    image_inputs = tuple(range(len(node.inputs))[images])
    if rank < 4 or along is None or any(_rank(node.inputs[n]) != rank for n in image_inputs):
        return None
    new_axis = np.array(to_last(rank).index(along[0] % rank), np.int32)

    def build(inputs: Sequence[Any]) -> Any:
        given = [*inputs]
        given[axis] = new_axis
        return node.op(*node.grouped(given))

    return Form(image_inputs, tuple(range(len(node.outputs))), 0.0, build)


def _form_of_reduction(node: Node) -> Form | None:
    """A reduction: the remaining axes must keep their order."""
    op, rank, axes = node.op, _rank(node.inputs[0]), integers(node.inputs[1])
    if rank < 4 or axes is None or not isinstance(op, Reduction):
        return None
    order, reduced = to_last(rank), {axis % rank for axis in axes}
    remaining = [axis for axis in order if axis not in reduced]
    if not op.keep_dims and remaining != sorted(remaining):
        return None
    new_axes = np.array(sorted(order.index(axis) for axis in reduced), np.int32)
    return Form((0,), (0,) if op.keep_dims else (), 0.0, lambda inputs: op(inputs[0], new_axes))


def _form_of_shape(node: Node) -> Form | None:
    """The shape of an image: the sizes are permuted, not the image."""
    rank = _rank(node.inputs[0])
    if rank < 4:
        return None
    return Form((0,), (), 0.0, lambda inputs: _permuted(node.op(inputs[0]), to_first(rank)))


def _form_of_transpose(node: Node, times: LayoutTimes) -> Form | None:
    """A transpose between the two layouts: with channels last it is the identity."""
    rank, order = _rank(node.inputs[0]), integers(node.inputs[1])
    if rank < 4 or order not in (to_last(rank), to_first(rank)):
        return None
    ends = ((0,), ()) if order == to_last(rank) else ((), (0,))
    return Form(*ends, move_cost(node.inputs[0], times), lambda inputs: inputs[0])


_FORMS: dict[type[Any], Callable[[Node], Form | None]] = {
    ConcatV2: partial(_form_along_axis, images=slice(-1), axis=-1),
    Split: partial(_form_along_axis, images=slice(1, 2), axis=0),
    SplitV: partial(_form_along_axis, images=slice(1), axis=2),
    Pad: _form_of_per_axis_op,
    PadV2: _form_of_per_axis_op,
    BroadcastTo: _form_of_per_axis_op,
    Tile: _form_of_per_axis_op,
    Slice: partial(_form_of_per_axis_op, lists=(1, 2)),
    Shape: _form_of_shape,
    Reduction: _form_of_reduction,
}


def _permuted(tensor: Tensor, order: Sequence[int]) -> Any:
    """The entries of a list, permuted."""
    return GatherV2()(tensor, np.array(order, np.int32), np.array(0, np.int32))


def _rank(tensor: Tensor) -> int:
    rank = tensor.shape.rank
    return -1 if rank is None else rank


def _elements(tensor: Tensor) -> int:
    return prod(size or _DEFAULT_SIZE for size in tensor.shape.as_list())
