"""When two computations of a graph agree: within what rounding alone could have done.

How much rounding matters is found by trembling: the graph is interpreted again with every inexact
result shaken by a few units in its last place. What that moves may differ as far as it was moved;
what it flips (a comparison of nearly equal numbers, an overflow) is not judged at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import thalweg as tf
from tests.random_graphs.sketch import Values, call
from thalweg.graph.node import Node

Array = NDArray[Any]

_TREMBLES = 3
_ULPS = 4.0
_TINY = 1e-7  # which even float16 tells from zero
#: ops that move and choose numbers: nothing is rounded
_EXACT = frozenset(
    [
        "Abs",
        "ConcatV2",
        "Const",
        "ExpandDims",
        "Fill",
        "Floor",
        "GatherNd",
        "GatherV2",
        "Identity",
        "Max",
        "MaxPool",
        "Maximum",
        "Min",
        "Minimum",
        "MirrorPad",
        "Neg",
        "OneHot",
        "OnesLike",
        "Pack",
        "Pad",
        "Placeholder",
        "Relu",
        "Reshape",
        "ReverseV2",
        "Round",
        "Select",
        "Shape",
        "Sign",
        "Slice",
        "SplitV",
        "Squeeze",
        "StopGradient",
        "StridedSlice",
        "Tile",
        "Transpose",
        "Unpack",
        "ZerosLike",
    ]
)


def tremblings(nodes: Sequence[Node], given: Mapping[tf.Tensor, Array]) -> list[Values]:
    """The values of all tensors of these nodes, shaken in a few ways."""
    return [_trembled(nodes, given, seed) for seed in range(_TREMBLES)]


def _trembled(nodes: Sequence[Node], given: Mapping[tf.Tensor, Array], seed: int) -> Values:
    rng, zero = np.random.default_rng(seed), _TINY * (-1) ** seed  # zero is of either sign
    values = dict(given)
    for node in nodes:
        if all(tensor in values for tensor in node.outputs):
            continue
        sources = [values[tensor] for tensor in node.inputs]
        for tensor, value in zip(node.outputs, call(node, values), strict=True):
            values.setdefault(tensor, _shaken(node, value, sources, rng, zero))
    return values


def _shaken(node: Node, value: Array, sources: Sequence[Array], rng: Any, zero: float) -> Array:
    if not is_inexact(value.dtype) or not value.size or node.type in _EXACT:
        return value
    size = np.abs(widened(value))
    if not node.op.has("element"):  # sums that cancel are as inexact as what they are of
        size = size + max((_largest(source) for source in sources), default=0.0)
    noise = rng.uniform(-1, 1, value.shape) * _ULPS * epsilon(value.dtype) * size
    noise = np.where(widened(value) == 0, zero, noise)
    with np.errstate(all="ignore"):
        return (widened(value) + noise).astype(value.dtype)


def _largest(array: Array) -> float:
    wide = np.abs(widened(array)) if array.dtype.kind not in "OSU" else np.zeros(0)
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of a dtype are rounded."""
    return dtype.kind in "fc" or dtype.name == "bfloat16"


def epsilon(dtype: np.dtype[Any]) -> float:
    """The distance from 1 to the next number."""
    if dtype.name == "bfloat16":
        return float(ml_dtypes.finfo(dtype).eps)
    return float(np.finfo(dtype).eps)


def widened(array: Array) -> Array:
    """Numbers in a type that holds them all and that NumPy knows."""
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    return array.astype(np.float64) if array.dtype.kind not in "OSU" else np.zeros(0)


def assert_agree(actual: Any, wanted: Array, shaken: Sequence[Array]) -> None:
    """Hold a value to the right one, with what came of it under trembling."""
    found = np.asarray(actual)
    assert found.dtype == wanted.dtype, f"dtype {found.dtype}, expected {wanted.dtype}"
    assert found.shape == wanted.shape, f"shape {found.shape}, expected {wanted.shape}"
    if not is_inexact(wanted.dtype):
        judged = np.all([other == wanted for other in shaken], axis=0)
        np.testing.assert_array_equal(found[judged], wanted[judged])
        return
    with np.errstate(all="ignore"):
        right = widened(wanted)
        spreads = [np.abs(widened(other) - right) for other in shaken]
        same = [np.isfinite(widened(other)) == np.isfinite(right) for other in shaken]
    _assert_near(widened(found), right, np.max(spreads, axis=0), np.all(same, axis=0), wanted.dtype)


def _assert_near(
    found: Array, right: Array, spread: Array, judged: Array, dtype: np.dtype[Any]
) -> None:
    finite = judged & np.isfinite(right)
    np.testing.assert_array_equal(found[judged & ~finite], right[judged & ~finite])
    unit = 4 * _ULPS * epsilon(dtype)
    room = unit * (1 + np.abs(right)) + 6 * spread
    with np.errstate(all="ignore"):
        wrong = finite & ~(np.abs(found - right) <= room)
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} {dtype} differ at {np.argwhere(wrong)[:3].tolist()}: "
        f"{found[wrong][:5]} instead of {right[wrong][:5]}, room {room[wrong][:5]}"
    )


def bits(value: Any) -> bytes:
    """A value to the last bit."""
    return np.ascontiguousarray(value).tobytes()
