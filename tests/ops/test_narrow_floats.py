"""Floats of fewer than 32 bits in whole programs: products, files, graphs, eager code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import NARROW_FLOATS

narrow = pytest.mark.parametrize("dtype", NARROW_FLOATS)


def drawn(dtype: Any, *shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(-8, 9, shape).astype(dtype)


@narrow
@pytest.mark.parametrize("rows", [2, 70])
def test_a_product_is_rounded_once_from_the_sum_in_float32(dtype: Any, rows: int) -> None:
    a, b = drawn(dtype, rows, 40) / dtype(16), drawn(dtype, 40, 48)
    exact = a.astype(np.float32) @ b.astype(np.float32)  # sums of such numbers are
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = tf.placeholder(dtype, [rows, 40]), tf.placeholder(dtype, [40, 48])
        wide = tf.matmul(tf.cast(x, tf.float32), tf.cast(y, tf.float32))
        product, widened = session.run([tf.matmul(x, y), wide], {x: a, y: b})
    np.testing.assert_array_equal(product, exact.astype(dtype))
    np.testing.assert_array_equal(widened, exact)


@narrow
def test_variables_are_restored_from_checkpoints(dtype: Any, tmp_path: Path) -> None:
    value = drawn(dtype, 5, 3)
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable(value, name="v")
        session.run(variable.initializer)
        saver = tf.train.Saver()
        path = saver.save(session, str(tmp_path / "model"))
        session.run(variable.assign(np.zeros((5, 3), dtype)))
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run(variable), value)
    assert tf.train.load_checkpoint(path).get_variable_to_dtype_map() == {"v": tf.as_dtype(dtype)}


@narrow
def test_graphs_can_be_exported_and_imported(dtype: Any) -> None:
    value = drawn(dtype, 3, 2)
    with tf.Graph().as_default() as graph:
        tf.identity(tf.constant(value), name="y")
    written = graph.as_graph_def().SerializeToString()
    with tf.Graph().as_default(), tf.Session() as session:
        (y,) = tf.import_graph_def(tf.GraphDef.FromString(written), return_elements=["y:0"])
        assert y.dtype == dtype
        np.testing.assert_array_equal(session.run(y), value)


@narrow
def test_eager_code(dtype: Any) -> None:
    with tf.eager_mode():
        x = tf.constant([0.5, 2.0], dtype)
        variable = tf.Variable(x)
        variable.assign_add(x * x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(x * x)
        assert variable.numpy().tolist() == [0.75, 6.0]
        assert tape.gradient(total, x).numpy().tolist() == [1.0, 4.0]
