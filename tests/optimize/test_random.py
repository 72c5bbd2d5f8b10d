"""Random graphs through the whole pipeline: values agree, the spec holds, no pass loops.

Both sides run on the NumPy kernels, so that only the optimiser is judged; the random graphs of
`tests/random_graphs` hold compiled, optimised steps to them as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.random_graphs import SOAKING
from tests.random_graphs.agreement import assert_agree, perturbed
from tests.random_graphs.generator import Array, SeededGenerator, Values, interpret
from tests.random_graphs.layers import COMPILED
from tests.random_graphs.rules import EVERYTHING
from thalweg.optimize import verify
from thalweg.optimize.check import evaluate
from thalweg.optimize.pipeline import PASSES, run_passes
from thalweg.optimize.step_graph import StepGraph
from thalweg.runtime.plan import prune

GRAPHS = 20_000 if SOAKING else 100
GROUPS = 10


def _twice(function: Any) -> Any:
    return lambda g: function(function(g.pick("f")))


def _chain(g: SeededGenerator) -> tf.Tensor:
    x = g.pick("f")
    return (x + 1.5) * 2 - 0.25 + 4


def _transposed(g: SeededGenerator) -> tf.Tensor:
    return tf.transpose(tf.transpose(g.pick("f", rank=2)))


def _alike(g: SeededGenerator) -> tf.Tensor:
    x = g.pick("f")
    return tf.tanh(x) * tf.sin(x) + tf.sin(x) * tf.tanh(x)


#: what programs have and the optimiser removes
REDUNDANT = {
    "neutral": lambda g: g.pick("f") * 1 + 0,
    "constants": lambda g: tf.constant([2.0]) * 3 + tf.cast(g.pick("f"), tf.float32),
    "chain": _chain,
    "identity": lambda g: tf.identity(g.pick()),
    "negated": _twice(tf.negative),
    "idempotent": _twice(tf.abs),
    "transposed": _transposed,
    "alike": _alike,
    "power": lambda g: tf.pow(g.pick("f"), 2),
    "reshaped": lambda g: tf.reshape(tf.reshape(g.pick("f"), [-1]), [1, -1]),
    "shape": lambda g: tf.zeros(tf.shape(g.pick("f"))),
    "softmax": lambda g: tf.log(tf.nn.softmax(g.pick("f", rank=1))),
    "scaled": lambda g: g.pick("f") / 4,
}


REDUNDANT_AGAIN = {f"{name} again": rule for name, rule in REDUNDANT.items()}


class FoldableGenerator(SeededGenerator):
    """Graphs with many constants, neutral operands and duplicates."""

    def array(self, dtype: object, shape: tuple[int, ...]) -> Array:
        value = super().array(dtype, shape)  # pyright: ignore[reportArgumentType]
        if self.number(0, 3) == 0:
            return np.full_like(value, self.choose([0, 1]))
        return value

    def preferred(self, tensors: list[tf.Tensor]) -> tf.Tensor:
        """One of the tensors, often the same, so that nodes are equal."""
        return tensors[0] if self.number(0, 4) == 0 else super().preferred(tensors)


def generated(seed: int) -> FoldableGenerator:
    generator = FoldableGenerator(seed)
    rules = (EVERYTHING if seed % 2 else COMPILED) | REDUNDANT | REDUNDANT_AGAIN
    with generator.graph.as_default():
        generator.placeholder(np.float32, generator.shape())
        generator.grow(rules, 3 + seed % 30)
    return generator


def fetched(tensors: Sequence[tf.Tensor], seed: int) -> list[tf.Tensor]:
    """Some of the tensors, mostly late ones."""
    late = list(tensors[-8:])
    return Random(seed).sample(late, min(3, len(late)))


def check(seed: int) -> int:
    """Optimise one random graph. Returns how often rules fired."""
    generator = generated(seed)
    fetches, feeds = fetched(generator.tensors, seed), generator.feeds
    if not fetches:
        return 0
    nodes = prune(fetches, (), feeds)
    if not all(node.op.has("numpy") for node in nodes):  # an assertion, which gives nothing
        return 0
    passes = [each for each in PASSES if not each.needs]
    graph = StepGraph(nodes, fetches, feeds=frozenset(feeds))
    spec = verify.Spec(graph)
    reports = run_passes(graph, passes)
    spec.checked(graph, "all passes")
    count, found = len(graph.nodes), evaluate(graph, feeds)
    run_passes(graph, passes)
    assert len(graph.nodes) <= count
    values: Values = interpret(generator.graph.nodes, feeds)
    nearby = perturbed(generator.graph.nodes, feeds)
    for tensor, value in zip(fetches, found, strict=True):
        assert_agree(value, values[tensor], [other[tensor] for other in nearby])
    return sum(sum(report.fired.values()) for report in reports)


@pytest.mark.timeout(7200 if SOAKING else 120)
@pytest.mark.parametrize("group", range(GROUPS))
def test_random_graphs_give_the_same(group: int) -> None:
    fired = sum(check(seed) for seed in range(group, GRAPHS, GROUPS))
    assert fired > GRAPHS // GROUPS  # the optimiser had something to do
