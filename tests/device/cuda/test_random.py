"""Random graphs, trainings and programs on a GPU, and on a GPU and CPUs together, compared with the
NumPy kernels and with one CPU."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from tests.random_graphs import examples
from tests.random_graphs.agreement import assert_agree, perturbed, widened
from tests.random_graphs.generator import SeededGenerator, interpret
from tests.random_graphs.layers import COMPILED
from tests.random_graphs.test_compiled import gradients_of, some
from tests.random_graphs.test_placed import Program
from tests.random_graphs.test_training import Training

SEEDS = st.integers(0, 2**63)
CPU = tf.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)
BOTH = tf.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=True)


def scattered(seed: int, names: list[str]) -> Callable[[Any], str]:
    random = Random(seed)
    return lambda _: random.choice(names)


PLACES = [["/gpu:0"], ["/gpu:0", "/cpu:0", "/cpu:1", ""]]


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("names", PLACES, ids=["gpu", "gpu and cpus"])
@examples(10, soak=2_000)
@given(SEEDS, st.integers(1, 25))
def test_ops_and_gradients_agree_with_the_numpy_kernels(
    names: list[str], seed: int, size: int
) -> None:
    generator = SeededGenerator(seed)
    with generator.graph.as_default(), tf.device(scattered(seed, names)):
        generator.placeholder(np.float32, generator.shape())
        generator.grow(COMPILED, size)
        fetches = some(generator, generator.tensors)
        slopes = gradients_of(generator)
    nearby = perturbed(generator.graph.nodes, generator.feeds)
    with tf.Session(graph=generator.graph, config=BOTH) as session:
        found = session.run(fetches, generator.feeds)
        along = session.run(slopes, generator.feeds)
    for value, tensor in zip(found, fetches, strict=True):
        assert_agree(value, generator.values[tensor], [values[tensor] for values in nearby])
    expected = interpret(generator.graph.nodes, generator.feeds)
    if not all(np.isfinite(widened(value)).all() for value in expected.values()):
        return  # infinity times zeros of padding: the result depends on which zeros are stored
    for value, tensor in zip(along, slopes, strict=True):
        assert_agree(value, expected[tensor], [values[tensor] for values in nearby])


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@pytest.mark.parametrize("names", PLACES, ids=["gpu", "gpu and cpus"])
@examples(5, soak=500)
@given(SEEDS, st.integers(1, 12))
def test_training_agrees(names: list[str], seed: int, size: int) -> None:
    training = Training(seed, size, scattered(seed, names))
    training.assert_agrees(training.trajectory(BOTH))


@pytest.mark.parametrize("names", PLACES, ids=["gpu", "gpu and cpus"])
@examples(5, soak=1_000)
@given(SEEDS)
def test_programs_with_control_flow_agree_with_one_cpu(names: list[str], seed: int) -> None:
    with tf.Graph().as_default():
        with tf.device(scattered(seed, names)):
            program = Program(seed)
        with tf.Session(config=BOTH) as session:
            found = program.trajectory(session)
        with tf.Session(config=CPU) as session:
            alone = program.trajectory(session)
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
