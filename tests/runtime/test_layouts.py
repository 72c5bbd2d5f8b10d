"""Arrays as users have them: at odd addresses, backwards, with gaps, of other byte orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.context import VariableCell

SHAPE = (7, 37)
DTYPES = [np.float32, np.float64, *NARROW_FLOATS, np.int64, np.int8, np.complex64]


def odd(value: np.ndarray) -> np.ndarray:
    """At an address that is no multiple of the size of an element."""
    memory = np.zeros(value.nbytes + 1, np.uint8)
    memory[1:] = np.frombuffer(value.tobytes(), np.uint8)
    return np.frombuffer(memory.data, value.dtype, value.size, 1).reshape(value.shape)


def gaps(value: np.ndarray) -> np.ndarray:
    wide = np.zeros((*value.shape[:-1], 3 * value.shape[-1]), value.dtype)
    wide[..., ::3] = value
    return wide[..., ::3]


def frozen(value: np.ndarray) -> np.ndarray:
    made = value.copy()
    made.flags.writeable = False
    return made


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "odd": odd,
    "backwards": lambda value: np.ascontiguousarray(value[::-1, ::-1])[::-1, ::-1],
    "gaps": gaps,
    "columns first": np.asfortranarray,
    "read only": frozen,
    "one row many times": lambda value: np.broadcast_to(value[:1], value.shape),
    "the other byte order": lambda value: value.astype(value.dtype.newbyteorder(">")),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)


def made(layout: str, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """An array in a layout, and the same values as NumPy has them."""
    draw = np.random.default_rng(3).normal(size=SHAPE) * 9
    value = LAYOUTS[layout](draw.astype(dtype))
    return value, np.array(value, dtype, order="C")


@layouts
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_a_feed_counts_by_its_values(layout: str, dtype: Any) -> None:
    if np.dtype(dtype).isbuiltin != 1 and layout == "the other byte order":
        pytest.skip("types of ml_dtypes have one byte order")
    value, plain = made(layout, dtype)
    assert layout != "odd" or np.dtype(dtype).itemsize == 1 or not value.flags.aligned
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(dtype, [None, None])
        fetches = [x * x + x, tf.identity(x)]
        for found, expected in zip(
            session.run(fetches, {x: value}), session.run(fetches, {x: plain}), strict=True
        ):
            assert found.dtype == expected.dtype
            assert found.tobytes() == expected.tobytes()


@layouts
def test_a_product_and_a_loop_read_a_feed_by_its_values(layout: str) -> None:
    value, plain = made(layout)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, None])
        loop = tf.while_loop(
            lambda i, y: i < 3, lambda i, y: (i + 1, y * 0.5 + x), [tf.constant(0), x]
        )
        fetches = [tf.matmul(x, x, transpose_b=True), loop[1]]
        for found, expected in zip(
            session.run(fetches, {x: value}), session.run(fetches, {x: plain}), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


@layouts
def test_constants_and_variables_have_the_values(layout: str) -> None:
    value, plain = made(layout)
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable(value)
        session.run(variable.initializer)
        np.testing.assert_array_equal(session.run(variable + 1.0), plain + 1)
        np.testing.assert_array_equal(session.run(tf.constant(value) * 2.0), plain * 2)
        variable.load(value, session)
        x = tf.placeholder(tf.float32, SHAPE)
        session.run(tf.assign_add(variable, x), {x: value})
        np.testing.assert_array_equal(session.run(variable * 1.0), plain + plain)
        returned = tf.py_func(lambda: value, [], tf.float32)
        if value.dtype.isnative:
            np.testing.assert_array_equal(session.run(returned * 2.0), plain * 2)


@layouts
def test_eager_values_have_the_values(layout: str) -> None:
    value, plain = made(layout)
    with tf.eager_mode():
        np.testing.assert_array_equal((tf.constant(value) * 2.0).numpy(), plain * 2)
        variable = tf.Variable(value)
        np.testing.assert_array_equal((variable * 2.0).numpy(), plain * 2)
        variable.assign(value)
        variable.assign_add(value)
        np.testing.assert_array_equal((variable * 1.0).numpy(), plain * 2)


@layouts
@pytest.mark.parametrize("way", ["assign", "exchange"])
def test_a_variable_holds_plain_memory(layout: str, way: str) -> None:
    """Native code is given its address and nothing else."""
    value, plain = made(layout)
    cell = VariableCell("v", tf.float32, TensorShape(SHAPE))
    getattr(cell, way)(value)
    buffer = cell.borrow().array
    assert buffer.flags.c_contiguous
    assert buffer.flags.aligned
    assert buffer.dtype.isnative
    np.testing.assert_array_equal(buffer, plain)
