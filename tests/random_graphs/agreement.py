"""When two computations of a graph agree: within what rounding alone could have done.

How much rounding matters is found by ulp perturbation: the graph is interpreted again with every
inexact result perturbed by a few units in its last place. What that changes may differ as far as it
was changed; what it flips (a comparison of nearly equal numbers, an overflow) is not judged at all.

Kernels compute numbers of 16 bits in 32 and may keep them so from op to op: what overflows in 16
bits alone is perturbed to a large number, so that what depends on it is not judged either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import thalweg as tf
from tests.random_graphs.generator import Values, call, interpret
from thalweg.graph.node import Node
from thalweg.runtime import plan
from thalweg.runtime.kernels import Call

Array = NDArray[Any]

PERTURBATIONS = range(3)
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


def perturbed(nodes: Sequence[Node], given: Mapping[tf.Tensor, Array]) -> list[Values]:
    """The values of all tensors of these nodes, nearby in a few ways."""
    return [interpret(nodes, given, _Perturbation(number).call) for number in PERTURBATIONS]


def perturbed_array(array: Array, rng: np.random.Generator) -> Array:
    """An array nearby."""
    noise = rng.uniform(-1, 1, array.shape) * _ULPS * epsilon(array.dtype)
    return (widened(array) * (1 + noise)).astype(array.dtype)


@contextmanager
def perturbed_kernels(number: int) -> Iterator[None]:
    """Steps that are planned meanwhile, for the NumPy kernels, have perturbed results."""
    perturbation, planned = _Perturbation(number), plan.call_of

    def call_of(unit: Node, *arguments: Any) -> Call:
        made = planned(unit, *arguments)
        if made.takes_context:  # variables and their updates
            return made
        return made._replace(function=lambda *inputs: perturbation.call(unit, inputs))

    with mock.patch.object(plan, "call_of", call_of):
        yield


class _Perturbation:
    """Kernels in which rounding goes another way.

    What noise would hardly ever hit is hit in one of them: the first holds what overflows in 16
    bits alone, the second takes nearly equal numbers for equal, the third has zero for a sum that
    cancels to next to nothing.
    """

    def __init__(self, number: int) -> None:
        self._number, self._rng = number, np.random.default_rng(number)
        self._zero = (_TINY, -_TINY, 0.0)[number]  # what stands for zero: of either sign

    def call(self, node: Node, inputs: Sequence[Array]) -> list[Array]:
        """The outputs of a node, nearby."""
        is_equality = self._number == 1 and node.type in ("Equal", "NotEqual")
        found = call(node, _with_equals(*inputs) if is_equality else inputs)
        return [self._perturb(node, inputs, index, value) for index, value in enumerate(found)]

    def _perturb(self, node: Node, inputs: Sequence[Array], place: int, value: Array) -> Array:
        if not is_inexact(value.dtype) or not value.size or node.type in _EXACT:
            return value
        if self._number == 0 and _is_short(value.dtype):
            value = _without_overflow(node, inputs, place, value)
        wide = widened(value)
        size = np.where(np.isfinite(wide), np.abs(wide), 0.0)
        if not node.op.has("element"):  # sums that cancel are as inexact as what they are of
            size = size + max(map(_largest, inputs), default=0.0)
        most = _ULPS * epsilon(value.dtype) * size
        noise = np.where(wide == 0, self._zero, self._rng.uniform(-1, 1, value.shape) * most)
        if self._number == 2:
            noise = np.where((wide != 0) & (np.abs(wide) <= most), -wide, noise)
        with np.errstate(all="ignore"):
            return (wide + noise).astype(value.dtype)


def _with_equals(one: Array, two: Array) -> list[Array]:
    """The operands of a comparison, of which nearly equal numbers are equal."""
    if not is_inexact(one.dtype):
        return [one, two]
    with np.errstate(all="ignore"):
        far = np.abs(widened(one) - widened(two))
        near = far <= _ULPS * epsilon(one.dtype) * np.abs(widened(two))
    return [np.where(near, two, one), two]


def _without_overflow(node: Node, inputs: Sequence[Array], place: int, value: Array) -> Array:
    """An output of 16 bits, with a large number where 32 bits hold what 16 do not."""
    over = ~np.isfinite(widened(value))
    if not over.any():
        return value
    if node.type == "Cast":
        held = np.isfinite(widened(inputs[0]))
    elif node.op.has("element"):
        wide = [array.astype(np.float32) if _is_short(array.dtype) else array for array in inputs]
        held = np.isfinite(widened(call(node, wide)[place]))
    else:  # sums and products of finite numbers: they are not finite by overflow alone
        held = np.array(all(np.isfinite(widened(array)).all() for array in inputs))
    large = np.array(ml_dtypes.finfo(value.dtype).max / 2, value.dtype)  # finite when nearby
    return np.where(over & held, np.where(widened(value) < 0, -large, large), value)


def _is_short(dtype: np.dtype[Any]) -> bool:
    return dtype.itemsize == 2 and is_inexact(dtype)


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


def assert_agree(actual: Any, wanted: Array, nearby: Sequence[Array]) -> None:
    """Hold a value to the right one, with what came of it under perturbation."""
    found = np.asarray(actual)
    assert found.dtype == wanted.dtype, f"dtype {found.dtype}, expected {wanted.dtype}"
    assert found.shape == wanted.shape, f"shape {found.shape}, expected {wanted.shape}"
    if not is_inexact(wanted.dtype):
        judged = np.all([other == wanted for other in nearby], axis=0)
        np.testing.assert_array_equal(found[judged], wanted[judged])
        return
    with np.errstate(all="ignore"):
        right = widened(wanted)
        spreads = [np.abs(widened(other) - right) for other in nearby]
        same = [_is_alike(widened(other), right) for other in nearby]
    _assert_near(widened(found), right, np.max(spreads, axis=0), np.all(same, axis=0), wanted.dtype)


def _is_alike(one: Array, two: Array) -> Array:
    """Where both are finite, or both the same that is not."""
    finite = np.isfinite(one) & np.isfinite(two)
    return finite | (one == two) | (np.isnan(one) & np.isnan(two))


def _assert_near(
    found: Array, right: Array, spread: Array, judged: Array, dtype: np.dtype[Any]
) -> None:
    finite = judged & np.isfinite(right)
    np.testing.assert_array_equal(found[judged & ~finite], right[judged & ~finite])
    unit = 4 * _ULPS * epsilon(dtype)
    room = unit * (1 + np.abs(right)) + 6 * spread
    is_pole = np.isinf(found) & (spread > 1 + np.abs(right))  # perturbed by its own size
    with np.errstate(all="ignore"):
        wrong = finite & ~is_pole & ~(np.abs(found - right) <= room)
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} {dtype} differ at {np.argwhere(wrong)[:3].tolist()}: "
        f"{found[wrong][:5]} instead of {right[wrong][:5]}, room {room[wrong][:5]}"
    )


def bits(value: Any) -> bytes:
    """A value to the last bit."""
    return np.ascontiguousarray(value).tobytes()
