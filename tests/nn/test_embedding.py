"""Embedding lookups: shards, norms, sparse ids and gradients."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

TABLE = np.random.default_rng(3).normal(size=(7, 2)).astype(np.float32)
IDS = np.array([[0, 3, 6], [5, 5, 1]])


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(value: Any) -> Any:
    with tf.Session() as session:
        return session.run(value)


def shards(strategy: str, count: int) -> list[Any]:
    if strategy == "mod":
        return [TABLE[i::count] for i in range(count)]
    return np.array_split(TABLE, count)


@pytest.mark.parametrize("strategy", ["mod", "div"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_shards_give_the_rows_of_the_whole(strategy: str, count: int, dtype: type) -> None:
    actual = tf.nn.embedding_lookup(shards(strategy, count), IDS.astype(dtype), strategy)
    assert actual.shape.as_list() == [2, 3, 2]
    np.testing.assert_array_equal(run(actual), TABLE[IDS])


def test_rows_of_more_dimensions() -> None:
    table = np.arange(24.0).reshape(4, 3, 2)
    actual = tf.nn.embedding_lookup([table[::2], table[1::2]], [3, 0])
    np.testing.assert_array_equal(run(actual), table[[3, 0]])


@pytest.mark.parametrize("count", [1, 3])
def test_max_norm(count: int) -> None:
    actual = run(tf.nn.embedding_lookup(shards("mod", count), IDS, max_norm=0.5))
    norms = np.linalg.norm(TABLE, axis=1, keepdims=True)
    expected = TABLE * np.minimum(1, 0.5 / norms)
    np.testing.assert_allclose(actual, expected[IDS], rtol=1e-5)


def test_gradient_with_respect_to_shards() -> None:
    def lookup(one: Any, two: Any) -> Any:
        return tf.nn.embedding_lookup([one, two], [0, 3, 3])

    check(lookup, TABLE[::2][:2], TABLE[1::2][:2], second=False)


def test_a_partitioned_variable() -> None:
    table = tf.get_variable(
        "table", initializer=tf.constant(TABLE), partitioner=tf.fixed_size_partitioner(3)
    )
    found = tf.nn.embedding_lookup(table, IDS, "div")
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(found), TABLE[IDS])


def test_bad_lookups() -> None:
    with pytest.raises(ValueError, match="Unrecognized partition strategy"):
        tf.nn.embedding_lookup([TABLE, TABLE], [1], "other")
    with pytest.raises(ValueError, match="at least one param"):
        tf.nn.embedding_lookup([], [1])


WEIGHTS = np.array([1.0, 2.0, 0.5, 3.0], np.float32)
ROWS = {"sum": 1, "mean": lambda w: w.sum(), "sqrtn": lambda w: np.sqrt((w * w).sum())}


def sparse(values: Any) -> Any:
    return tf.SparseTensor([[0, 0], [0, 2], [1, 0], [2, 1]], values, [3, 3])


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_sparse_ids_are_combined(combiner: str, weighted: bool, count: int) -> None:
    ids = np.array([1, 6, 6, 0])
    actual = tf.nn.embedding_lookup_sparse(
        shards("mod", count),
        sparse(ids),
        sparse(WEIGHTS) if weighted else None,
        combiner=combiner,
    )
    weights = WEIGHTS if weighted else np.ones_like(WEIGHTS)
    expected = []
    for places in ([0, 1], [2], [3]):
        total = (TABLE[ids[places]] * weights[places][:, None]).sum(0)
        scale = ROWS[combiner]
        expected.append(total / (scale(weights[places]) if callable(scale) else scale))
    np.testing.assert_allclose(run(actual), expected, rtol=1e-5)


def test_bad_sparse_lookups() -> None:
    with pytest.raises(TypeError, match="sp_ids must be SparseTensor"):
        tf.nn.embedding_lookup_sparse(TABLE, [1], None)
    with pytest.raises(TypeError, match="sp_weights"):
        tf.nn.embedding_lookup_sparse(TABLE, sparse([1, 2, 3, 4]), [1.0])
    with pytest.raises(ValueError, match="combiner"):
        tf.nn.embedding_lookup_sparse(TABLE, sparse([1, 2, 3, 4]), None, combiner="max")


@pytest.mark.parametrize("default_id", [None, 3])
def test_safe_lookup(default_id: int | None) -> None:
    ids = tf.SparseTensor(
        [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 1, 2]], np.array([1, 6, -1, 2]), [2, 2, 3]
    )
    weights = tf.SparseTensor(ids.indices, [1.0, 3.0, 1.0, 0.0], [2, 2, 3])
    actual = tf.nn.safe_embedding_lookup_sparse([TABLE], ids, weights, default_id=default_id)
    assert actual.shape.as_list() == [2, 2, 2]
    filler = np.zeros(2) if default_id is None else TABLE[default_id]
    first = (TABLE[1] + 3 * TABLE[6]) / 4
    np.testing.assert_allclose(run(actual), [[first, filler], [filler, filler]], rtol=1e-5)


def test_rows_within_max_norm_keep_every_digit() -> None:
    table = np.array([[0.01, 0.02], [0.03, -0.01]])
    np.testing.assert_allclose(
        run(tf.nn.embedding_lookup(table, [0, 1], max_norm=0.7)), table, 1e-15
    )
