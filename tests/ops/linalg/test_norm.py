"""Rows of the op table: norms of vectors and matrices."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(9)
X = R.normal(size=(2, 3, 2))

NORMS = {
    "all": ({}, lambda x: np.linalg.norm(x.ravel())),
    "vectors": ({"axis": 1}, lambda x: np.linalg.norm(x, axis=1)),
    "kept": ({"axis": -1, "keepdims": True}, lambda x: np.linalg.norm(x, axis=-1, keepdims=True)),
    "one": ({"ord": 1, "axis": 1}, lambda x: np.linalg.norm(x, 1, axis=1)),
    "three": ({"ord": 3, "axis": 1}, lambda x: np.linalg.norm(x, 3, axis=1)),
    "infinity": ({"ord": np.inf}, lambda x: np.max(np.abs(x))),
    "frobenius": ({"ord": "fro", "axis": [0, 1]}, lambda x: np.linalg.norm(x, "fro", (0, 1))),
    "matrix one": ({"ord": 1, "axis": (0, 2)}, lambda x: np.linalg.norm(x, 1, (0, 2))),
    "matrix two": ({"ord": 2, "axis": (1, 2)}, lambda x: np.linalg.norm(x, 2, (1, 2))),
    "matrix infinity": (
        {"ord": np.inf, "axis": (1, -1), "keep_dims": True},
        lambda x: np.linalg.norm(x, np.inf, (1, 2), keepdims=True),
    ),
}


@pytest.mark.parametrize("name", NORMS)
def test_norm(name: str) -> None:
    options, expect = NORMS[name]
    check(lambda x: tf.norm(_with_rank(x), **options), X, expect=expect)


def _with_rank(x: tf.Tensor) -> tf.Tensor:
    x.set_shape([None] * X.ndim)  # the spectral norm needs to know the rank
    return x


def test_normalize() -> None:
    length = np.linalg.norm(X, axis=1, keepdims=True)
    check(lambda x: tf.linalg.normalize(x, axis=1), X, expect=lambda x: [x / length, length])


@pytest.mark.parametrize(
    "options", [{"ord": "fro"}, {"ord": -1}, {"ord": 3, "axis": (0, 1)}, {"axis": (0, 0)}]
)
def test_wrong_norms(options: dict) -> None:
    with pytest.raises(ValueError, match=r"'ord'|'axis'"):
        tf.norm(X, **options)
