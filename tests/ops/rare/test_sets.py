"""Sets and edit distances."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from tests.ops.text.test_strings import texts

A = np.array([[9, 1, 5], [2, 4, 2]])
B_PLACES, B_VALUES, B_SHAPE = np.array([[0, 0], [0, 1], [1, 0]]), np.array([1, 9, 4]), [2, 2]


def sparse_b(values: Any) -> tf.SparseTensor:
    return tf.SparseTensor(tf.constant(B_PLACES), values, tf.constant(B_SHAPE, tf.int64))


def sparse_a(values: Any) -> tf.SparseTensor:
    places = np.array([[i, j] for i in range(2) for j in range(3)])
    return tf.SparseTensor(places, tf.reshape(values, [-1]), np.array([2, 3]))


RESULTS: dict[str, Any] = {
    "intersection": ([[0, 0], [0, 1], [1, 0]], [1, 9, 4], [2, 2]),
    "union": ([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1]], [1, 5, 9, 2, 4], [2, 3]),
    "difference": ([[0, 0], [1, 0]], [5, 2], [2, 1]),
}


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("left", [lambda a: a, sparse_a])
def test_operations(name: str, left: Any) -> None:
    operation = getattr(tf.sets, f"set_{name}")
    expected = [np.array(part) for part in RESULTS[name]]
    check(
        lambda a, b: operation(left(a), sparse_b(b)), A, B_VALUES, expect=expected, gradient=False
    )


def test_dense_with_dense_and_swapped() -> None:
    other = np.array([[1, 9], [4, 4]])
    expected = [np.array(part) for part in RESULTS["difference"]]
    check(tf.sets.difference, A, other, expect=expected, gradient=False)
    check(
        lambda a, b: tf.sets.difference(b, a, aminusb=False),
        A,
        other,
        expect=expected,
        gradient=False,
    )
    check(
        lambda a, b: tf.sets.difference(sparse_b(b), a, aminusb=False),
        A,
        B_VALUES,
        expect=expected,
        gradient=False,
    )


def test_strings_and_sizes() -> None:
    check(
        lambda a: tf.sets.set_union(tf.reshape(a, [1, 3]), [["b"]]).values,
        texts("c", "a", "c"),
        expect=texts("a", "b", "c"),
        gradient=False,
    )
    check(
        lambda b: tf.sets.set_size(tf.SparseTensor([[0, 0], [0, 1], [2, 0]], b, [3, 2])),
        np.array([5, 5, 7]),
        expect=np.array([1, 0, 1], np.int32),
        gradient=False,
    )


def test_errors() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        with pytest.raises(TypeError, match="Expected `SparseTensor`"):
            tf.sets.set_size([1])
        with pytest.raises(TypeError, match="invalid dtype"):
            tf.sets.set_union([[1.0]], [[2.0]])
        with pytest.raises(TypeError, match="Types don't match"):
            tf.sets.set_union([["a"]], [[1]])
        messy = tf.SparseTensor([[1, 0], [0, 0]], [1, 2], [2, 2])
        with pytest.raises(tf.errors.InvalidArgumentError, match="out of order"):
            session.run(tf.sets.set_size(messy))
        assert session.run(tf.sets.set_size(messy, validate_indices=False)).tolist() == [1, 1]
        with pytest.raises(ValueError, match="not compatible"):
            tf.sets.set_union([[1], [2]], [[1]])
        with pytest.raises(ValueError, match="rank"):
            tf.sets.set_union([[[1]]], [[1]])
        fed = tf.placeholder(tf.int32)
        with pytest.raises(tf.errors.InvalidArgumentError, match="Mismatched group"):
            session.run(tf.sets.set_union([[1], [2]], fed).values, {fed: [[1]]})


def rows(words: list[str]) -> tf.SparseTensor:
    places = [[i, j] for i, word in enumerate(words) for j in range(len(word))]
    letters = [letter for word in words for letter in word]
    return tf.SparseTensor(
        np.array(places, np.int64).reshape(-1, 2),
        tf.constant(letters, tf.string),
        [len(words), max(map(len, words))],
    )


@pytest.mark.parametrize(
    ("normalize", "wanted"), [(False, [3, 0, 2, 1]), (True, [3 / 7, 0, np.inf, 1])]
)
def test_edit_distance(normalize: bool, wanted: Any) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        hypothesis = rows(["kitten", "", "ab", ""])
        truth = rows(["sitting", "", "", "a"])
        node = tf.edit_distance(hypothesis, truth, normalize)
        assert node.shape.as_list() == [4]
        np.testing.assert_allclose(session.run(node), np.array(wanted, np.float32))


def test_sequences_may_be_longer_than_the_shape_says() -> None:
    def row(word: str) -> tf.SparseTensor:
        return tf.SparseTensor([[0, 0, i] for i in range(len(word))], list(word), [1, 1, 1])

    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(tf.edit_distance(row("bear"), row("beers"), normalize=False)) == [[2]]
