"""Rows of the op table: segment reductions of gathered rows."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.arrays.test_segment import IDS, X, by_segment, root
from tests.ops.harness import check

SPARSE = {
    "sum": (tf.sparse_segment_sum, np.sum),
    "mean": (tf.sparse_segment_mean, np.mean),
    "sqrt_n": (tf.sparse_segment_sqrt_n, root),
}
INDICES = np.array([4, 1, 1, 0, 2], np.int32)


@pytest.mark.parametrize("name", SPARSE)
def test_gathered(name: str) -> None:
    ours, numpys = SPARSE[name]
    expect = by_segment(numpys, 0)
    check(ours, X, INDICES, IDS, expect=lambda x, i, ids: expect(x[i], ids))
    longer = by_segment(numpys, 0, 6)
    check(
        lambda x, i, ids: ours(x, i, ids, num_segments=6),
        X,
        INDICES,
        IDS,
        expect=lambda x, i, ids: longer(x[i], ids),
    )


def test_wrong_gathered_ids() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[1\] == 5 out of range"):
            session.run(tf.sparse_segment_sum(X, [0, 5], [0, 0]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid number of segments"):
            session.run(tf.sparse_segment_mean_grad(X, [0, 1], [0, 1], 5))


@pytest.mark.parametrize("name", SPARSE)
def test_loops_of_gradients(name: str) -> None:
    ids = np.array([0, 0, 1, 1, 2], np.int32)
    build = SPARSE[name][0]
    check(lambda x: tf.gradients(build(x, INDICES, ids), x)[0], X, gradient=False)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_sums_of_dtypes(dtype: type) -> None:
    x = np.arange(10).reshape(5, 2).astype(dtype)
    expect = by_segment(np.sum, 0)
    check(
        tf.sparse_segment_sum,
        x,
        INDICES,
        IDS,
        expect=lambda x, i, ids: expect(x[i], ids),
        gradient=False,
    )
