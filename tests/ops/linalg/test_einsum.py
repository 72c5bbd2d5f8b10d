"""Rows of the op table: Einstein summation."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

R = np.random.default_rng(5)
SIZES = dict(zip("abcdef", (2, 3, 2, 1, 2, 3), strict=True))

EQUATIONS = [
    "ab,bc->ac",
    "ab,bc",
    "ba,cb->ac",
    "ab->ba",
    "ab->",
    "abc->b",
    "a,b->ab",
    "a,a->a",
    "a,a->",
    "ab,ab->a",
    "cab,cbd->cad",
    "abc,cbd->db",
    "ab,bc,cd->ad",
    "ab,ab,c->c",
    "ac,ca",
    "aa->a",
    "aa",
    "aba->b",
    "aab,b->a",
    "ab,d->abd",
    ",ab->ba",
]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_equation(equation: str) -> None:
    terms = equation.partition("->")[0].split(",")
    inputs = [R.normal(size=[SIZES[letter] for letter in term]) for term in terms]
    check(
        lambda *tensors: tf.einsum(equation, *_with_ranks(tensors, inputs)),
        *inputs,
        expect=lambda *x: np.einsum(equation, *x),
    )


def _with_ranks(tensors: tuple, inputs: list[np.ndarray]) -> list:
    """einsum needs ranks; sizes may be unknown."""
    for tensor, array in zip(tensors, inputs, strict=True):
        if tensor.shape.ndims is None:
            tensor.set_shape([None] * array.ndim)
    return list(tensors)


ELLIPSES = {
    "...ab,...bc->...ac": [(2, 1, 2, 3), (3, 3, 1)],
    "...a->...": [(2, 3)],
    "a...,a->...": [(2, 3), (2,)],
    "...ab->...ba": [(1, 2, 3)],
    "...,...": [(2, 3), (3,)],
}


@pytest.mark.parametrize("equation", ELLIPSES)
def test_ellipsis(equation: str) -> None:
    inputs = [R.normal(size=shape) for shape in ELLIPSES[equation]]
    with tf.Graph().as_default(), tf.Session() as session:
        value = session.run(tf.einsum(equation, *map(tf.constant, inputs)))
    np.testing.assert_allclose(value, np.einsum(equation, *inputs))


def test_integers() -> None:
    a, b = np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(6, dtype=np.int32).reshape(3, 2)
    with tf.Graph().as_default(), tf.Session() as session:
        left = tf.placeholder_with_default(a, [None, None])
        value = session.run(tf.einsum("ij,jk->ik", left, b))
    np.testing.assert_array_equal(value, a @ b)


@pytest.mark.parametrize(
    "equation",
    ["", "ij ij", "ij.jk->ik", "ij,jk->im", "ij,jkl->kl", "iij,jk", "ij,jk->ii", "ij,jk,kl->il"],
)
def test_bad_equations(equation: str) -> None:
    with pytest.raises(ValueError):
        tf.einsum(equation, tf.zeros([3, 4]), tf.zeros([4, 5]))


def test_bad_sizes() -> None:
    with pytest.raises(ValueError, match="Inconsistent sizes 4 and 5 of index 'j'"):
        tf.einsum("ij,jk->ik", tf.zeros([3, 4]), tf.zeros([5, 6]))
    x = tf.placeholder(tf.float32)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        session.run(tf.einsum("ij->ji", x), {x: np.zeros(3, np.float32)})


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("...ij,...jk->...ik", [(2, 1, 3, 2), (4, 2, 3)]),
        ("...ij,...jk->...ik", [(3, 2), (2, 2, 2)]),
        ("i...,i...->...", [(3, 2, 1), (3, 1, 4)]),
        ("a...b,...->b...a", [(2, 3, 1, 2), (3, 2)]),
        ("...a,...b", [(2, 2), (1, 3)]),
        ("...a,...a->a", [(3, 2), (1, 2)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("...,...,...->...", [(2, 1), (3,), ()]),
        ("ab,b...->...a", [(2, 3), (3,)]),
    ],
)
def test_ellipses_broadcast_for_all_static_shapes(equation, shapes) -> None:
    check(
        lambda *x: tf.einsum(equation, *x),
        *[R.normal(size=shape) for shape in shapes],
        expect=lambda *x: ellipsis_sum(equation, *x),
    )


def ellipsis_sum(equation, *arrays):
    """By NumPy, which refuses a result without the ellipsis: it is summed there at last."""
    left, arrow, result = equation.partition("->")
    if arrow and "..." not in result and "..." in left:
        full = np.einsum(f"{left}->...{result}", *arrays)
        return full.sum(tuple(range(full.ndim - len(result))))
    return np.einsum(equation, *arrays)
