"""The functions of Keras' backend that stand on ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.alias.inside.keras import backend


@pytest.mark.parametrize("given", ["array", "tensor", "variable"])
def test_a_function_takes_batches_that_the_graph_makes(given: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        backend.set_session(session)
        makers: dict[str, Any] = {
            "array": np.asarray,
            "tensor": tf.constant,
            "variable": tf.Variable,
        }
        batch = makers[given](np.ones((2, 3), np.float32))
        session.run(tf.global_variables_initializer())
        x, scale = tf.placeholder(tf.float32, [None, 3]), tf.placeholder(tf.float32, [])
        doubled = backend.function([x, scale], [x * scale])
        np.testing.assert_array_equal(doubled([batch, 2.0])[0], np.full((2, 3), 2.0))
    backend.clear_session()
