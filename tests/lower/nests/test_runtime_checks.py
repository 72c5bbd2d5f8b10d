"""What an op requires of the values of its inputs: compiled code notices what its kernel refuses.

Every op that says so has a case here with an input it takes and one it does not. Compiled and on
the NumPy kernels, both end in the same way, in a value or in words, and what waits for a failure
does not happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import thalweg as tf
from thalweg.graph.op import REGISTRY
from thalweg.ops.arrays import indexing, partitioning, segment, slicing
from thalweg.ops.image import crops
from thalweg.ops.math import division
from thalweg.ops.quantized import quantize, quantized_maths
from thalweg.ops.random import random, stateless_random
from thalweg.ops.sparse import sparse_maths, sparse_segment
from thalweg.runtime import engine


class Case(NamedTuple):
    """An op on valid inputs, and invalid values of some of them, by position."""

    build: Callable[..., Any]
    right: tuple[Any, ...]
    wrong: dict[int, Any]
    known: bool = False  # inputs are constants: the output's shape, or the check, needs their value


ROWS = np.arange(12.0, dtype=np.float32).reshape(4, 3)
PLACES = np.array([[0, 0], [1, 2]], np.int64)
PAIR = np.array([1.0, 2.0], np.float32)
SIZES = np.array([4, 3], np.int64)


def whole(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


def scalar(number: float) -> Any:
    return np.float32(number)


def quotient(op: Any) -> Case:
    return Case(op, (whole(7, -7), whole(2, 3)), {1: whole(2, 0)})


def segments(op: Any) -> Case:
    return Case(lambda x, ids: op(x, ids), (ROWS, whole(0, 0, 1, 2)), {1: whole(0, 1, 0, 2)}, True)


def gathered(op: Any, *count: int) -> Case:
    right = (ROWS, whole(3, 0, 1), whole(0, 0, 1))
    return Case(lambda x, i, ids: op(x, i, ids, *count), right, {2: whole(0, 1, 0)}, not count)


def spread(op: Any) -> Case:
    right = (ROWS[:2], whole(3, 0, 1), whole(0, 0, 1))
    return Case(lambda dy, i, ids: op(dy, i, ids, 4), right, {2: whole(0, 1, 0)})


def at_places(op: Any) -> Case:
    return Case(op, (PLACES, PAIR, SIZES, ROWS), {2: np.array([5, 3], np.int64)})


def rewritten(value: Any, begin: Any, end: Any) -> Any:
    """A variable with a part of it overwritten."""
    variable = tf.Variable(ROWS, name="rewritten")
    with tf.control_dependencies([variable.initializer]):
        return slicing.StridedSliceAssign()(variable._ref(), begin, end, [1], value)


CASES: dict[str, Case] = {
    "Pow": Case(tf.pow, (whole(2, 3), whole(3, 0)), {1: whole(3, -1)}),
    "TruncateDiv": quotient(tf.truncatediv),
    "Div": quotient(division.Div()),
    "FloorDiv": quotient(tf.floordiv),
    "FloorMod": quotient(tf.floormod),
    "TruncateMod": quotient(tf.truncatemod),
    "Mod": quotient(division.Mod()),
    "HistogramFixedWidth": Case(
        lambda x, ends: tf.histogram_fixed_width(x, ends, 5), (ROWS, PAIR), {1: PAIR[::-1]}
    ),
    "HistogramFixedWidthBins": Case(
        tf.histogram_fixed_width_bins, (ROWS, PAIR, np.int32(5)), {2: np.int32(0)}
    ),
    "MatrixBandPart": Case(tf.matrix_band_part, (ROWS, np.int32(1), np.int32(0)), {1: np.int32(5)}),
    "GatherV2": Case(tf.gather, (ROWS, whole(3)), {1: whole(4)}),
    "GatherNd": Case(tf.gather_nd, (ROWS, PLACES), {1: -PLACES}),
    "GatherSegments": Case(segment.GatherSegments(), (ROWS, whole(0, -1)), {1: whole(0, 4)}),
    "CropAndResize": Case(
        lambda x, box, which: tf.image.crop_and_resize(x, box, which, [2, 2]),
        (ROWS.reshape(1, 4, 3, 1), np.array([[0, 0, 1, 1]], np.float32), whole(0)),
        {2: whole(1)},
    ),
    "CropSlope": Case(
        lambda x, box, which: crops.CropSlope(slopes=(0,))(x, box, which, [2, 2]),
        (ROWS.reshape(1, 4, 3, 1), np.array([[0, 0, 1, 1]], np.float32), whole(0)),
        {2: whole(1)},
    ),
    "UnravelIndex": Case(indexing.UnravelIndex(), (whole(5, 0), whole(2, 3)), {0: whole(5, 6)}),
    "QuantizeV2": Case(
        quantize.QuantizeV2(T=tf.quint8), (ROWS, scalar(0), scalar(9)), {1: scalar(10)}
    ),
    "QuantizeAndDequantizeV3": Case(
        lambda x, low, high: quantize.QuantizeAndDequantizeV3(range_given=True)(x, low, high, 8),
        (ROWS, scalar(0), scalar(9)),
        {2: scalar(-1)},
    ),
    "Requantize": Case(
        lambda x, low: quantized_maths.Requantize(out_type=tf.quint8)(
            tf.bitcast(x, tf.qint32), -1.0, 1.0, low, 1.0
        ),
        (whole(1 << 28, -5), scalar(-1)),
        {1: scalar(0.5)},
    ),
    "RandomUniformInt": Case(
        lambda low: random.RandomUniformInt(seed=1, seed2=2)([3], low, 5),
        (np.int32(1),),
        {0: np.int32(5)},
    ),
    "StatelessRandomUniformInt": Case(
        lambda low: stateless_random.StatelessRandomUniformInt()([3], [1, 2], low, 5),
        (np.int32(1),),
        {0: np.int32(5)},
    ),
    "SegmentSum": segments(tf.segment_sum),
    "SegmentMean": segments(tf.segment_mean),
    "SegmentProd": segments(tf.segment_prod),
    "SegmentMax": segments(tf.segment_max),
    "SegmentMin": segments(segment.SegmentMin()),
    "SparseSegmentSum": gathered(sparse_segment.SparseSegmentSum()),
    "SparseSegmentMean": gathered(sparse_segment.SparseSegmentMean()),
    "SparseSegmentSqrtN": gathered(sparse_segment.SparseSegmentSqrtN()),
    "SparseSegmentSumWithNumSegments": gathered(
        sparse_segment.SparseSegmentSumWithNumSegments(), 3
    ),
    "SparseSegmentMeanWithNumSegments": gathered(
        sparse_segment.SparseSegmentMeanWithNumSegments(), 3
    ),
    "SparseSegmentSqrtNWithNumSegments": gathered(
        sparse_segment.SparseSegmentSqrtNWithNumSegments(), 3
    ),
    "SparseSegmentMeanGrad": spread(tf.sparse_segment_mean_grad),
    "SparseSegmentSqrtNGrad": spread(tf.sparse_segment_sqrt_n_grad),
    "SparseSoftmaxCrossEntropyWithLogits": Case(
        lambda x, labels: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x),
        (ROWS, whole(0, 1, 2, 0)),
        {1: whole(0, 1, 3, 0)},
    ),
    "InvertPermutation": Case(tf.invert_permutation, (whole(2, 0, 1),), {0: whole(2, 0, 2)}),
    "ReverseSequence": Case(
        lambda x, lengths: tf.reverse_sequence(x, lengths, 1),
        (ROWS, whole(1, 2, 3, 0)),
        {1: whole(1, 2, 4, 0)},
    ),
    "Reshape": Case(
        lambda x, rows: tf.reshape(x, [rows, 2]), (ROWS, np.int32(6)), {1: np.int32(5)}
    ),
    "StridedSlice": Case(lambda x, i: x[i], (ROWS, np.int32(-1)), {1: np.int32(4)}),
    "StridedSliceGrad": Case(
        lambda dy, begin, end: slicing.StridedSliceGrad()([4, 3], begin, end, [1], dy),
        (ROWS[:2], whole(1), whole(3)),
        {2: whole(2)},
    ),
    "StridedSliceAssign": Case(rewritten, (ROWS[:2], whole(1), whole(3)), {1: whole(3)}),
    "Slice": Case(lambda x, at: tf.slice(x, at, [1, 2]), (ROWS, whole(2, 1)), {1: whole(-1, 1)}),
    "_PartitionPlaces": Case(
        lambda chosen: partitioning.PartitionPlaces(num_partitions=3)(chosen, name="find")[0],
        (whole(2, 0, 2, 1),),
        {0: whole(2, 0, 3, 1)},
    ),
    "_StitchParts": Case(
        lambda places, counts, x: partitioning.StitchParts()(places, counts, [x, x], name="stitch"),
        (whole(2, 0, 3, 1, 7, 4, 5, 6), whole(4, 4), ROWS),
        {1: whole(3, 5)},
    ),
    "SparseToDense": Case(
        lambda places, values: tf.sparse_to_dense(places, [4, 3], values),
        (PLACES, PAIR),
        {0: PLACES[::-1]},
    ),
    "SparseTensorDenseAdd": at_places(sparse_maths.SparseTensorDenseAdd()),
    "SparseTensorDenseMatMul": Case(
        lambda places, values, x: sparse_maths.SparseTensorDenseMatMul()(places, values, [4, 4], x),
        (PLACES, PAIR, ROWS),
        {0: 4 * PLACES},
    ),
    "SparseDenseCwiseAdd": at_places(sparse_maths.SparseDenseCwiseAdd()),
    "SparseDenseCwiseMul": at_places(sparse_maths.SparseDenseCwiseMul()),
    "SparseDenseCwiseDiv": at_places(sparse_maths.SparseDenseCwiseDiv()),
}


def test_every_op_that_requires_something_is_here() -> None:
    assert {name for name, op in REGISTRY.items() if op.has("requires")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_compiled_code_refuses_what_the_kernel_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    endings: list[Any] = []
    for compiles in (True, False):
        monkeypatch.setattr(engine, "COMPILES", compiles)
        endings.append(endings_of(CASES[name]))
    (right, problem), (expected, words) = endings
    assert f"({name}), created at" in words
    assert problem == words
    np.testing.assert_allclose(right, expected, rtol=1e-5)


def endings_of(case: Case) -> tuple[Any, str]:
    """The value for the valid inputs, and the error text for the invalid ones."""
    wrong = tuple(case.wrong.get(index, value) for index, value in enumerate(case.right))
    if case.known:
        return Step(case, case.right).run(case.right), Step(case, wrong).refuse(wrong)
    step = Step(case)
    return step.run(case.right), step.refuse(wrong)


class Step:
    """An op, and an update that waits for it."""

    def __init__(self, case: Case, known: tuple[Any, ...] | None = None) -> None:
        self._graph = tf.Graph()
        with self._graph.as_default():
            fed = [tf.placeholder(value.dtype, np.shape(value)) for value in case.right]
            result = case.build(*(fed if known is None else map(tf.constant, known)))
            first = result[0] if isinstance(result, tuple) else result
            with tf.control_dependencies([first]):
                self._count = tf.Variable(0, name="count")
                counted = self._count.assign_add(1)
            self._fetches = [tf.identity(first), counted]
        self._fed = fed
        self._session = tf.Session(graph=self._graph)
        self._session.run(self._count.initializer)

    def run(self, values: tuple[Any, ...]) -> Any:
        """The op's first output."""
        return self._session.run(self._fetches, dict(zip(self._fed, values, strict=True)))[0]

    def refuse(self, values: tuple[Any, ...]) -> str:
        """The text of the error; the update has not happened."""
        before = self._session.run(self._count)
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            self.run(values)
        assert self._session.run(self._count) == before
        return str(caught.value)
