"""The peak arithmetic rate of each kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.device.cuda.peaks import arithmetic_peak, product_peak
from thalweg.ir.kernel import Contraction


def product(dtype: Any) -> Contraction:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(dtype, [64, 64])
        (planned,) = session.plan(tf.matmul(x, x), {x: np.zeros((64, 64))}).kernels
        assert isinstance(planned.kernel, Contraction)
        return planned.kernel


@pytest.mark.parametrize(
    ("dtype", "tf32", "rate"),
    [
        (tf.bfloat16, False, 946e12),
        (tf.float16, False, 946e12),
        (tf.float32, True, 473e12),
        (tf.float32, False, 59e12),
        (tf.float64, False, 29.6e12),
    ],
)
def test_products(dtype: Any, tf32: bool, rate: float) -> None:
    target = CudaTarget(allow_tf32=tf32)
    assert arithmetic_peak(product(dtype), target) == pytest.approx(rate, rel=0.01)


def test_architectures() -> None:
    a100 = CudaTarget(capability=80, multiprocessors=108, clock=1.41e9)
    assert product_peak(2, a100) == pytest.approx(312e12, rel=0.01)
    assert product_peak(4, a100) == pytest.approx(156e12, rel=0.01)
    assert product_peak(1, CudaTarget()) == 2 * product_peak(2, CudaTarget())


def test_a_profile_has_the_share_of_the_peak() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [64, 64])
        profile = session.plan(tf.matmul(x, x), {x: np.zeros((64, 64))}).profile(1)
    assert all(row.peak > 0 and row.bound in ("flops", "bytes") for row in profile.rows)
    assert "TFLOP/s of products of 16 bits" in str(profile)
