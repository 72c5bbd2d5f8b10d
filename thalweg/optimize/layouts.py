"""What it means for a node to compute with channels last what is written with channels first.

Comes in: a node. Goes out: its `Form`, if it has one: which of its inputs and outputs are images,
which layout is faster and by how much, and how to build the node for images with channels last.
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

_UNKNOWN = 32  # is taken for a size that is not known

Build = Callable[[Sequence[Tensor]], Any]


@dataclass(frozen=True)
class Form:
    """A node with channels last."""

    inputs: tuple[int, ...]  # those that are images
    outputs: tuple[int, ...]
    gain: float  # nanoseconds
    build: Build  # of its inputs, the images with channels last


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
    """The form of a node with channels last, if it has one, and what it gains on a device."""
    op = node.op
    if op.laid_out:
        return _laid_out(node, times)
    if isinstance(op, Transpose):
        return _transposed(node, times)
    if op.elementwise or isinstance(op, AddN | ZerosLike | OnesLike):
        return _elementwise(node)
    for kind, form in _OTHERS.items():
        if isinstance(op, kind):
            return form(node)
    return None


def is_channels_first(node: Node) -> bool:
    """Whether a node is written for channels first."""
    return bool(node.op.laid_out) and node.op.attributes["data_format"] in CHANNELS_LAST


# Ops that have a layout


def _laid_out(node: Node, times: LayoutTimes) -> Form | None:
    if not is_channels_first(node):
        return None
    op, laid_out = node.op, node.op.laid_out
    named = [argument.name for argument in op.parsed.inputs]
    given = [argument.name for argument in op.parsed.outputs]
    follow = [n for n, name in enumerate(named) if name in laid_out]
    images = tuple(n for n in follow if _rank(node.inputs[n]) >= 4)
    made = tuple(n for n, name in enumerate(given) if name in laid_out)
    if any(_rank(t) < 4 for t in _picked(node, images, made)) or not images:
        return None
    rank = _rank(node.inputs[images[0]])
    sizes = [n for n in follow if n not in images]
    if any(_rank(node.inputs[n]) != 1 for n in sizes):
        return None
    last = type(op)(**_attributes(op.attributes, rank))

    def build(inputs: Sequence[Tensor]) -> Any:
        order = to_last(rank)
        return last(*[_taken(t, order) if n in sizes else t for n, t in enumerate(inputs)])

    return Form(images, made, _gain(node, times), build)


def _attributes(given: Any, rank: int) -> dict[str, Any]:
    """Attributes for channels last: the layout's name, and lists with an entry for each axis."""
    order = to_last(rank)
    found = dict(given) | {"data_format": CHANNELS_LAST[given["data_format"]]}
    for name in {"strides", "ksize", "dilations"} & found.keys():
        if len(found[name]) == rank:
            found[name] = tuple(found[name][axis] for axis in order)
    if len(pads := found.get("explicit_paddings", ())) == 2 * rank:
        found["explicit_paddings"] = tuple(pads[2 * axis + end] for axis in order for end in (0, 1))
    return found


def _gain(node: Node, times: LayoutTimes) -> float:
    """How much faster a node is with channels last."""
    op = node.op
    if isinstance(op, Convolution):
        return _convolution_gain(node, op, times)
    if isinstance(op, Pooling):
        rate = times.pool_grad if isinstance(op, MaxPoolingGrad) else times.pool
        return rate * _elements(node.inputs[-1])
    return 0.0  # biases and batch norm: between convolutions, as fast in either


def _convolution_gain(node: Node, op: Convolution, times: LayoutTimes) -> float:
    if isinstance(op, ToFilter) or node.inputs[1].shape.rank is None:
        return 0.0
    window = [size or _UNKNOWN for size in node.inputs[1].shape.as_list()]
    is_dense = prod(window[:-2]) == 1
    if isinstance(op, Forward):
        image, rate = node.outputs[0], times.dense if is_dense else times.window
    else:
        moves_by_one = max(op.spatial(op.strides)) == 1
        image = node.inputs[2]
        rate = times.adjoint if moves_by_one and not is_dense else 0.0
    channels = image.shape.as_list()[1] or _UNKNOWN
    return rate * 2 * _elements(image) / channels * prod(window)


# Ops that follow the layout of what they take


def _elementwise(node: Node) -> Form | None:
    rank = _rank(node.outputs[0])
    images = tuple(n for n, tensor in enumerate(node.inputs) if _rank(tensor) == rank)
    small = [n for n in range(len(node.inputs)) if n not in images]
    if rank < 4 or not images or not all(_is_small(node.inputs[n], rank) for n in small):
        return None

    def build(inputs: Sequence[Tensor]) -> Any:
        given = [_widened(t, rank) if n in small else t for n, t in enumerate(inputs)]
        return node.op([*given]) if isinstance(node.op, AddN) else node.op(*given)

    return Form(images, (0,), 0.0, build)


def _is_small(tensor: Tensor, rank: int) -> bool:
    """Whether a tensor of another rank can be broadcast along the axes it means."""
    return 0 <= _rank(tensor) < rank and tensor.shape.is_fully_defined()


def _widened(tensor: Tensor, rank: int) -> Any:
    """A tensor of fewer axes, with all of them, channels last."""
    sizes = tensor.shape.as_list()
    if not sizes:
        return tensor
    full = np.array([1] * (rank - len(sizes)) + sizes, np.int32)
    return Transpose()(Reshape()(tensor, full), np.array(to_last(rank), np.int32))


def _following(node: Node, *, lists: Sequence[int] = (1,)) -> Form | None:
    """An op of one image, and lists that have an entry for each axis."""
    rank = _rank(node.outputs[0])
    if rank < 4 or _rank(node.inputs[0]) != rank:
        return None

    def build(inputs: Sequence[Tensor]) -> Any:
        order = to_last(rank)
        return node.op(*[_taken(t, order) if n in lists else t for n, t in enumerate(inputs)])

    return Form((0,), (0,), 0.0, build)


def _joined(node: Node) -> Form | None:
    *images, last = range(len(node.inputs))
    return _along(node, tuple(images), last, lambda given, axis: node.op(given[:-1], axis))


def _split(node: Node) -> Form | None:
    return _along(node, (1,), 0, lambda given, axis: node.op(axis, given[1]))


def _split_by_sizes(node: Node) -> Form | None:
    return _along(node, (0,), 2, lambda given, axis: node.op(given[0], given[1], axis))


def _along(
    node: Node, images: tuple[int, ...], place: int, build: Callable[[Any, Any], Any]
) -> Form | None:
    """An op that works along an axis."""
    rank, axis = _rank(node.outputs[0]), integers(node.inputs[place])
    if rank < 4 or axis is None or any(_rank(node.inputs[n]) != rank for n in images):
        return None
    moved = np.array(to_last(rank).index(axis[0] % rank), np.int32)
    outputs = tuple(range(len(node.outputs)))
    return Form(images, outputs, 0.0, lambda inputs: build(list(inputs), moved))


def _reduced(node: Node) -> Form | None:
    """A reduction: what is left of the axes must be in the same order."""
    op, rank, axes = node.op, _rank(node.inputs[0]), integers(node.inputs[1])
    if rank < 4 or axes is None or not isinstance(op, Reduction):
        return None
    order, given = to_last(rank), {axis % rank for axis in axes}
    left = [axis for axis in order if axis not in given]
    if not op.keep_dims and left != sorted(left):
        return None
    moved = np.array(sorted(order.index(axis) for axis in given), np.int32)
    return Form((0,), (0,) if op.keep_dims else (), 0.0, lambda inputs: op(inputs[0], moved))


def _shape(node: Node) -> Form | None:
    """The sizes of an image: nothing is moved for them."""
    rank = _rank(node.inputs[0])
    if rank < 4:
        return None
    return Form((0,), (), 0.0, lambda inputs: _taken(node.op(inputs[0]), to_first(rank)))


def _transposed(node: Node, times: LayoutTimes) -> Form | None:
    """A transpose between the two layouts: with channels last there is nothing to do."""
    rank, order = _rank(node.inputs[0]), integers(node.inputs[1])
    if rank < 4 or order not in (to_last(rank), to_first(rank)):
        return None
    ends = ((0,), ()) if order == to_last(rank) else ((), (0,))
    return Form(*ends, move_cost(node.inputs[0], times), lambda inputs: inputs[0])


_OTHERS: dict[type[Any], Callable[[Node], Form | None]] = {
    ConcatV2: _joined,
    Split: _split,
    SplitV: _split_by_sizes,
    Pad: _following,
    PadV2: _following,
    BroadcastTo: _following,
    Tile: _following,
    Slice: partial(_following, lists=(1, 2)),
    Shape: _shape,
    Reduction: _reduced,
}


def _taken(tensor: Tensor, order: Sequence[int]) -> Any:
    """Entries in another order."""
    return GatherV2()(tensor, np.array(order, np.int32), np.array(0, np.int32))


def _rank(tensor: Tensor) -> int:
    rank = tensor.shape.rank
    return -1 if rank is None else rank


def _elements(tensor: Tensor) -> int:
    return prod(size or _UNKNOWN for size in tensor.shape.as_list())


def _picked(node: Node, inputs: Sequence[int], outputs: Sequence[int]) -> list[Tensor]:
    return [*(node.inputs[n] for n in inputs), *(node.outputs[n] for n in outputs)]
