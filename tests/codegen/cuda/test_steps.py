"""Steps of every kind of kernel: on an emulated GPU as on NumPy, and assembled for a real one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.cuda.emulated import assemble
from tests.codegen.cuda.sessions import emulated_kernels, run
from tests.codegen.oracle import close
from tests.codegen.steps import STEPS
from tests.ops.harness import on_reference_kernels

#: Large ones, whose algorithm is the CPU's.
KINDS = [name for name in STEPS if "Winograd" not in name]


@pytest.mark.parametrize("name", KINDS)
def test_steps_on_an_emulated_gpu(name: str) -> None:
    with tf.Graph().as_default():
        tf.set_random_seed(5)
        fetches, feeds = STEPS[name]()
        fetches = [part for part in _flat(fetches) if isinstance(part, tf.Tensor)]
        with on_reference_kernels() as session:
            session.run(tf.global_variables_initializer())
            wanted = session.run(fetches, feeds)
        with emulated_kernels() as machine:
            found = run(fetches, feeds)
    for one, other in zip(found, wanted, strict=True):
        close(np.asarray(one), np.asarray(other), 2e-4, name)
    for kernel in machine.ran:
        assemble(kernel)


def _flat(fetches: Any) -> list[Any]:
    if not isinstance(fetches, list | tuple):
        return [fetches]
    return [part for one in fetches for part in _flat(one)]


def test_gradients_of_pooling_are_gathered() -> None:
    """Threads do not meet at an element: it reads the windows that it is in."""
    with tf.Graph().as_default(), emulated_kernels() as machine:
        x = tf.placeholder(tf.float32, [2, 9, 9, 4])
        y = tf.nn.max_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], "SAME")
        run(tf.gradients(y * y, [x]), {x: np.ones([2, 9, 9, 4], np.float32)})
    stores = [store for kernel in machine.ran for store in kernel.stores]
    assert {store.combine for store in stores} == {"set"}
