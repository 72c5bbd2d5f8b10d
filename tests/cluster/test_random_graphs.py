"""Random graphs placed at random over tasks: a cluster gives what one device gives.

The tasks are servers of this process, which speak to each other through sockets all the same. A
task keeps its variables from one program to the next, so that each begins with a reset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import thalweg as tf
from tests.random_graphs import examples
from tests.random_graphs.agreement import assert_agree, perturbed
from tests.random_graphs.generator import SeededGenerator
from tests.random_graphs.layers import COMPILED
from tests.random_graphs.test_compiled import some
from tests.random_graphs.test_placed import COUNTS, SEEDS, Program, on_devices


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    """The target of a cluster with four tasks."""
    pytest.importorskip("zmq")
    tasks, _ = tf.test.create_local_cluster(4, 0)
    yield tasks[0].target
    for task in tasks:
        task.stop()


def scattered(seed: int, count: int) -> Callable[[Any], str]:
    """A device function that sends each node to a task, or leaves it to the placer."""
    random = Random(seed)
    names = [f"/job:worker/task:{index}" for index in range(count)] * 3 + [""]
    return lambda _: random.choice(names)


@examples(20, soak=5000)
@given(SEEDS, st.integers(1, 25), COUNTS)
def test_ops_agree_with_the_numpy_kernels(target: str, seed: int, size: int, count: int) -> None:
    generator = SeededGenerator(seed)
    with generator.graph.as_default(), tf.device(scattered(seed, count)):
        generator.placeholder(np.float32, generator.shape())
        generator.grow(COMPILED, size)
        fetches = some(generator, generator.tensors)
    nearby = perturbed(generator.graph.nodes, generator.feeds)
    with tf.Session(target, graph=generator.graph) as session:
        found = session.run(fetches, generator.feeds)
    for value, tensor in zip(found, fetches, strict=True):
        assert_agree(value, generator.values[tensor], [values[tensor] for values in nearby])


@examples(15, soak=5000)
@given(SEEDS, COUNTS)
@example(937_133_038_305_390, 4)  # a task computes nothing but a constant of a loop
def test_programs_with_control_flow_give_what_one_device_gives(
    target: str, seed: int, count: int
) -> None:
    tf.Session.reset(target)
    with tf.Graph().as_default():
        with tf.device(scattered(seed, count)):
            program = Program(seed)
        with tf.Session(target) as session:
            found = program.trajectory(session)
    with tf.Graph().as_default():
        program = Program(seed)
        with on_devices(1) as session:
            alone = program.trajectory(session)
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
