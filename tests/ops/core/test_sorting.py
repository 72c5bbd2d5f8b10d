"""Stable sorting of indices of any size."""

import numpy as np
import pytest

from thalweg.ops.core.sorting import stable_sort, starts_run


@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 1000])
@pytest.mark.parametrize("limit", [1, 7, 50_000, 1 << 52, 1 << 53, 1 << 63])
def test_equal_indices_stay_in_order(size: int, limit: int):
    indices = np.random.default_rng(size).integers(max(0, limit - 40), limit, size)
    expected = np.argsort(indices, kind="stable")
    actual, order = stable_sort(indices, limit)
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(actual, indices[expected])
    assert actual.dtype == np.int64


def test_starts_of_runs():
    for values, starts in (([], []), ([3], [1]), ([3, 3, 5, 3, 3, 3], [1, 0, 1, 1, 0, 0])):
        actual = starts_run(np.array(values, np.int64))
        assert actual.dtype == np.bool_ and actual.tolist() == starts
