"""Nests that read windows are tiled: what windows share is loaded once, and results are NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.cuda.sessions import Machine, emulated_kernels, run
from tests.codegen.oracle import close
from tests.ops.harness import on_reference_kernels
from thalweg.codegen.cuda.target import emulated
from thalweg.ir.expr import Load, Reduce
from thalweg.ir.kernel import Kernel

R = np.random.default_rng(3)


def _max_pool(window: int, step: int, padding: str) -> Callable[[Any], Any]:
    return lambda x: tf.nn.max_pool(x, window, step, padding)


def _avg_pool(window: int, step: int, padding: str) -> Callable[[Any], Any]:
    return lambda x: tf.nn.avg_pool(x, window, step, padding)


CASES = {
    "3x3": ((2, 8, 6, 8), _max_pool(3, 1, "SAME")),
    "3x3, odd sides": ((2, 5, 7, 8), _max_pool(3, 1, "SAME")),
    "3x3, a prime side": ((1, 11, 13, 4), _max_pool(3, 1, "SAME")),
    "3x3 by 2": ((2, 8, 12, 8), _max_pool(3, 2, "SAME")),
    "3x3 by 2, over the edge": ((2, 9, 11, 8), _max_pool(3, 2, "SAME")),
    "3x3 by 2, inside": ((2, 11, 9, 8), _max_pool(3, 2, "VALID")),
    "2x2 by 2": ((2, 8, 10, 8), _max_pool(2, 2, "VALID")),
    "2x2 by 2, odd sides": ((2, 7, 9, 8), _max_pool(2, 2, "VALID")),
    "2x2 by 3, with gaps": ((2, 8, 10, 4), _max_pool(2, 3, "VALID")),
    "means 3x3": ((2, 8, 6, 4), _avg_pool(3, 1, "SAME")),
    "means 3x3 by 2": ((2, 9, 8, 4), _avg_pool(3, 2, "SAME")),
}


def _both(name: str, dtype: Any, target: Any = None) -> tuple[list[Any], list[Any], Machine]:
    """The results of a pooling and its gradient on an emulated GPU, and on NumPy."""
    shape, pool = CASES[name]
    with tf.Graph().as_default():
        x = tf.placeholder(dtype, shape)
        y = pool(x)
        fetches = [y, *tf.gradients(y, [x], [y])]
        feeds = {x: R.integers(-9, 9, shape).astype(x.dtype.as_numpy_dtype)}
        with on_reference_kernels() as session:
            wanted = session.run(fetches, feeds)
        with emulated_kernels(target) as machine:
            return run(fetches, feeds), wanted, machine


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_tiles_compute_what_their_elements_do(name: str, dtype: Any) -> None:
    found, wanted, _ = _both(name, dtype)
    for one, other in zip(found, wanted, strict=True):
        close(np.asarray(one), np.asarray(other), 2e-6 if dtype == tf.float32 else 0.02, name)


def _loads(kernel: Kernel) -> int:
    return len(kernel.every(Load))


def test_what_windows_share_is_loaded_once() -> None:
    _, _, machine = _both("3x3", tf.float32)
    pool, gradient = machine.ran
    assert not pool.every(Reduce)
    assert [_loads(kernel) for kernel in (pool, gradient)] == [16, 2 * 16]  # of four 3x3 windows
    assert {len(kernel.stores) for kernel in (pool, gradient)} == {4 * 2, 4}


def test_an_element_knows_which_windows_of_a_step_it_is_in() -> None:
    _, _, machine = _both("3x3 by 2", tf.float32)
    _, gradient = machine.ran
    assert _loads(gradient) == 2 * 4  # of 2x2 elements: those of four windows
    assert len(gradient.stores) == 4


def test_small_nests_are_left_alone() -> None:
    target = replace(emulated(), min_tiled_elements=1 << 20)
    _, _, machine = _both("3x3", tf.float32, target)
    assert all(kernel.every(Reduce) for kernel in machine.ran)
