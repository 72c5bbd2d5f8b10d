"""Random training steps: gradients, updates and reads in one step, compiled and on NumPy kernels.

Both sessions start from the same variables and take the same steps; losses, gradients and all that
the optimizer keeps stay together, as far as rounding lets them (see `agreement`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from tests.random_graphs import examples
from tests.random_graphs.agreement import (
    PERTURBATIONS,
    assert_agree,
    perturbed_array,
    perturbed_kernels,
)
from tests.random_graphs.generator import SeededGenerator
from tests.random_graphs.layers import convolution, pooling, softmax
from tests.random_graphs.rules import SMOOTH
from thalweg.runtime import engine

STEPS = 3
RULES = SMOOTH | {"convolution": convolution, "pooling": pooling, "softmax": softmax}

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "descent": lambda: tf.train.GradientDescentOptimizer(0.05),
    "momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adam": lambda: tf.train.AdamOptimizer(0.01, epsilon=0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.05),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5, epsilon=0.1),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.05, l2_regularization_strength=0.01),
}


class Training:
    """A graph of bounded functions over variables and inputs, a loss and an optimizer."""

    def __init__(self, seed: int, count: int, device: Callable[[Any], str] = lambda _: "") -> None:
        self.generator = generator = SeededGenerator(seed, (np.float32,))
        with generator.graph.as_default(), tf.device(device):
            self.variables = [self._variable() for _ in range(generator.number(1, 3))]
            generator.placeholder(np.float32, generator.shape(1))
            for _ in range(count):
                generator.grow(RULES, 1)
                self._bound()
            self._finish()

    def _variable(self) -> Any:
        generator = self.generator
        shape = tuple(size or 1 for size in generator.shape(1))
        variable = tf.Variable(generator.array(np.float32, shape))
        value = variable.read_value() if generator.flip() else tf.identity(variable)
        generator.feeds[value] = generator.values[value] = generator.array(np.float32, shape)
        for node in generator.graph.nodes:  # variables have no NumPy kernel
            for tensor in node.outputs:
                generator.values.setdefault(tensor, generator.feeds[value])
        generator.tensors.append(value)
        return variable

    def _bound(self) -> None:
        last = self.generator.tensors[-1]
        if np.abs(self.generator.values[last]).max(initial=0) > 3:
            self.generator.tensors.remove(last)
            self.generator.note(tf.tanh(last))

    def _finish(self) -> None:
        generator = self.generator
        results = [t for t in generator.tensors[-4:] if generator.values[t].size]
        everything = [tf.reduce_mean(tf.sin(t)) for t in results]
        decay = [0.01 * tf.nn.l2_loss(variable) for variable in self.variables]
        self.loss = tf.add_n([*everything, *decay])
        self.optimizer = generator.choose(OPTIMIZERS)
        optimizer = OPTIMIZERS[self.optimizer]()
        pairs = optimizer.compute_gradients(self.loss)
        self.gradients = [tf.convert_to_tensor(gradient) for gradient, _ in pairs]
        self.train = optimizer.apply_gradients(pairs)
        self.saved = tf.global_variables()
        self.initialise = tf.global_variables_initializer()

    def feeds(self) -> dict[Any, Any]:
        inputs = self.generator.feeds.items()
        return {tensor: value for tensor, value in inputs if tensor.op.type == "Placeholder"}

    def trajectory(self, config: tf.ConfigProto | None = None) -> list[Any]:
        """What every step fetched, and what the variables hold afterwards."""
        with tf.Session(graph=self.generator.graph, config=config) as session:
            return self._steps(session)

    def assert_agrees(self, found: list[Any]) -> None:
        """Hold a trajectory to that of the NumPy kernels."""
        expected, *nearby = (self._interpreted(number) for number in (None, *PERTURBATIONS))
        for value, right, *others in zip(found, expected, *nearby, strict=True):
            assert_agree(value, np.asarray(right), others)

    def _interpreted(self, number: int | None) -> list[Any]:
        """The trajectory on NumPy kernels, as they are or perturbed."""
        perturbed = nullcontext() if number is None else perturbed_kernels(number)
        config = tf.ConfigProto(device_count={"GPU": 0}, allow_soft_placement=True)
        with (
            mock.patch.object(engine, "COMPILES", False),
            perturbed,
            tf.Session(graph=self.generator.graph, config=config) as session,
        ):
            return self._steps(session, None if number is None else np.random.default_rng(number))

    def _steps(self, session: tf.Session, noise: np.random.Generator | None = None) -> list[Any]:
        """Some steps; with noise, what they leave in the variables is perturbed."""
        found: list[Any] = []
        session.run(self.initialise)
        for _ in range(STEPS):
            loss, gradients, _ = session.run([self.loss, self.gradients, self.train], self.feeds())
            found += [loss, *gradients]
            for variable in self.saved if noise else ():
                variable.load(perturbed_array(session.run(variable), noise), session)
        return found + session.run(self.saved)


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@examples(30, soak=2000)
@given(st.integers(0, 2**63), st.sampled_from(range(1, 13)))
def test_training_goes_the_same_way(seed: int, count: int) -> None:
    training = Training(seed, count)
    training.assert_agrees(training.trajectory())
