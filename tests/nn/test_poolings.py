"""Poolings of any rank: against poolings of images and volumes."""

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(0)


def run(build):
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(build())


LINE = R.normal(size=(2, 7, 3))
IMAGE = R.normal(size=(1, 6, 5, 2))


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_lines(kind: str) -> None:
    over_images = getattr(tf.nn, f"{kind}_pool")
    expected = run(lambda: over_images(LINE[:, None], [1, 3], [1, 2], "SAME"))[:, 0]
    over_lines = getattr(tf.nn, f"{kind}_pool1d")
    np.testing.assert_allclose(run(lambda: over_lines(LINE, 3, 2, "SAME")), expected)
    general = run(lambda: tf.nn.pool(LINE, [3], kind.upper(), "SAME", strides=[2]))
    np.testing.assert_allclose(general, expected)
    first = run(lambda: over_lines(LINE.swapaxes(1, 2), 3, 2, "SAME", data_format="NCW"))
    np.testing.assert_allclose(first, expected.swapaxes(1, 2))


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_any_rank(kind: str) -> None:
    by_rank = getattr(tf.nn, f"{kind}_pool_v2")
    with tf.Graph().as_default():
        for rank in (1, 2, 3):
            x = tf.ones([2, *[4] * rank, 3])
            for y in (by_rank(x, 2, 2, "VALID"), tf.nn.pool(x, [2] * rank, kind.upper(), "VALID")):
                assert y.shape.rank == rank + 2
        assert by_rank(tf.placeholder(tf.float32), 2, 2, "SAME", "NHWC").shape.rank == 4
        with pytest.raises(ValueError, match="rank"):
            by_rank(tf.placeholder(tf.float32), 2, 2, "SAME")


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_dilated(kind: str) -> None:
    """Every second row, pooled by itself."""
    y = run(lambda: tf.nn.pool(IMAGE, [2, 1], kind.upper(), "VALID", dilation_rate=[2, 1]))
    pairs = np.stack([IMAGE[:, :-2], IMAGE[:, 2:]])
    np.testing.assert_allclose(y, pairs.max(0) if kind == "max" else pairs.mean(0))


def test_wrong_arguments() -> None:
    with tf.Graph().as_default():
        with pytest.raises(ValueError, match="num_spatial_dims"):
            tf.nn.pool(IMAGE, [], "MAX", "SAME")
        with pytest.raises(ValueError, match="not supported"):
            tf.nn.pool(IMAGE, [2, 2], "MIN", "SAME")
        with pytest.raises(ValueError, match="SAME padding"):
            tf.nn.pool(IMAGE, [2, 2], "MAX", "SAME", dilation_rate=[2, 2])
        with pytest.raises(ValueError, match="strides"):
            tf.nn.pool(IMAGE, [2, 2], "MAX", "VALID", strides=[3, 3])
        with pytest.raises(ValueError, match="data_format"):
            tf.nn.pool(IMAGE, [2, 2], "MAX", "VALID", data_format="NWC")
