"""Kernels that read sizes when they run: equal sizes of earlier calls need not stay equal."""

from __future__ import annotations

import numpy as np

import thalweg as tf

SIZES = [(512, 512), (640, 640), (768, 768), (1033, 650), (650, 1033), (517, 964)]


def test_rows_of_two_arrays_that_were_of_one_length() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x, y = (tf.placeholder(tf.float32, [None, None]) for _ in range(2))
        fetches = [
            x - tf.reduce_max(y, 1, keepdims=True),
            tf.exp(x) / tf.reduce_sum(tf.exp(y), 1, keepdims=True),
            x[0] * tf.reduce_mean(y[1]),
        ]
        rng = np.random.default_rng(0)
        for sizes in SIZES:
            a, b = (rng.normal(size=(8, size)).astype(np.float32) for size in sizes)
            expected = [
                a - b.max(1, keepdims=True),
                np.exp(a) / np.exp(b).sum(1, keepdims=True),
                a[0] * b[1].mean(),
            ]
            for actual, right in zip(session.run(fetches, {x: a, y: b}), expected, strict=True):
                np.testing.assert_allclose(actual, right, 1e-4, 1e-6)
