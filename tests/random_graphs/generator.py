"""Drawing random graphs, node by node.

A `GraphGenerator` holds a graph under construction and, beside every tensor, its value as the NumPy
kernels give it: so each step knows the real shapes and values, also where the graph does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import thalweg as tf
from thalweg.graph.node import Node

Array = NDArray[Any]
Values = dict[tf.Tensor, Array]

SIZES = (0, 1, 2, 3, 5, 7)
MAX_ELEMENTS = 400
DTYPES = (
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.uint8,
    np.complex64,
    np.bool_,
)


def call(node: Node, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a node by its NumPy kernel."""
    grouped = node.op.parsed.group(inputs, node.input_counts())
    with np.errstate(all="ignore"):
        result = node.op.numpy(*grouped)
    parts = result if isinstance(result, list | tuple) else [result]
    flat = [piece for part in parts for piece in (part if isinstance(part, list) else [part])]
    return [np.asarray(part) for part in flat]


def interpret(
    nodes: Sequence[Node],
    given: Mapping[tf.Tensor, Array],
    kernel: Callable[[Node, Sequence[Array]], list[Array]] = call,
) -> Values:
    """The value of every tensor of these nodes, each kernel called once, in order."""
    values = dict(given)
    for node in nodes:
        if any(tensor not in values for tensor in node.outputs):
            found = kernel(node, [values[tensor] for tensor in node.inputs])
            for tensor, value in zip(node.outputs, found, strict=True):
                values.setdefault(tensor, value)
    return values


class GraphGenerator:
    """A random graph that grows, with the value of everything in it."""

    def __init__(self, draw: Callable[[Any], Any], dtypes: tuple[Any, ...] = DTYPES) -> None:
        self.draw = draw
        self.graph = tf.Graph()
        self.dtypes = dtypes
        self.tensors: list[tf.Tensor] = []
        self.feeds: Values = {}
        self.values: Values = {}
        self._rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    # Choices

    def choose(self, options: Any) -> Any:
        """One of the options."""
        return self.draw(st.sampled_from(list(options)))

    def flip(self) -> bool:
        """True or False."""
        return self.draw(st.booleans())

    def number(self, low: int, high: int) -> int:
        """An integer between low and high, both included."""
        return self.draw(st.integers(low, high))

    def order(self, count: int) -> list[int]:
        """The numbers below count in some order."""
        return self.draw(st.permutations(range(count)))

    def places(self, size: int, most: int = 4) -> list[int]:
        """Some numbers below size, perhaps one of them twice."""
        return self.draw(st.lists(st.integers(0, size - 1), max_size=most))

    def pick(self, kinds: str = "fiucbV", rank: int = 0) -> tf.Tensor:
        """A tensor whose dtype is of a kind and whose rank is at least `rank`; a new one if none
        is."""
        fitting = [t for t in self.tensors if self.kind(t) in kinds and self.values[t].ndim >= rank]
        if fitting:
            return self.preferred(fitting)
        allowed = [d for d in self.dtypes if _kind(np.dtype(d)) in kinds]
        return self.placeholder(self.choose(allowed), self.shape(rank))

    def preferred(self, tensors: list[tf.Tensor]) -> tf.Tensor:
        """One of the tensors."""
        return self.choose(tensors)

    def kind(self, tensor: tf.Tensor) -> str:
        """The letter of the tensor's dtype: f, i, u, c or b."""
        return _kind(self.values[tensor].dtype)

    def shape(self, least_rank: int = 0) -> tuple[int, ...]:
        """A small shape."""
        rank = self.number(least_rank, max(3, least_rank))
        return tuple(self.choose(SIZES) for _ in range(rank))

    def array(self, dtype: Any, shape: tuple[int, ...]) -> Array:
        """Values to start from."""
        if _kind(np.dtype(dtype)) in "iu":
            return self._rng.integers(0, 9, shape).astype(dtype)
        if np.dtype(dtype).kind == "b":
            return self._rng.random(shape) < 0.5
        # Quarters: their sums and products are exact, in any order, and some are equal.
        return np.asarray(self._rng.integers(-9, 10, shape) / 4).astype(dtype)

    # Growth

    def placeholder(self, dtype: Any, shape: tuple[int, ...]) -> tf.Tensor:
        """A new input, of which the graph knows the shape, the rank, a part, or nothing."""
        known = [s if self.flip() else None for s in shape]
        static = self.choose([shape, shape, known, None])
        return self.note(self.fed(self.array(dtype, shape), static))

    def fed(self, value: Array, static_shape: Any = None) -> tf.Tensor:
        """A placeholder with a value of its own."""
        tensor = tf.placeholder(value.dtype, static_shape)
        self.feeds[tensor] = value
        return tensor

    def constant_like(self, tensor: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
        """A new constant of the tensor's dtype."""
        return self.note(tf.constant(self.array(self.values[tensor].dtype, shape)))

    def note(self, result: Any) -> Any:
        """Evaluate what was added to the graph, and offer the result to later nodes."""
        new = [n for n in self.graph.nodes if n.outputs and n.outputs[0] not in self.values]
        self.values = interpret(new, {**self.values, **self.feeds})
        for tensor in result if isinstance(result, list) else [result]:
            if self.values[tensor].size <= MAX_ELEMENTS:
                self.tensors.append(tensor)
        return result

    def grow(self, rules: Mapping[str, Callable[[GraphGenerator], Any]], count: int) -> None:
        """Apply `count` random rules; one that does not fit gives None or is refused."""
        for _ in range(count):
            try:
                result = rules[self.choose(rules)](self)
            except TypeError:  # the op is not made for this dtype
                result = None
            if result is not None:
                self.note(result)


class SeededGenerator(GraphGenerator):
    """A generator whose choices all follow from one seed: a shorter one begins a longer one.

    Graphs grow larger, deeper and more various than those that are drawn choice by choice.
    """

    def __init__(self, seed: int, dtypes: tuple[Any, ...] = DTYPES) -> None:
        super().__init__(lambda _: seed, dtypes)
        self._seed, self._random = seed, Random(seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._seed}), {len(self.tensors)} tensors"

    def choose(self, options: Any) -> Any:
        return self._random.choice(list(options))

    def flip(self) -> bool:
        return self._random.random() < 0.5

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def order(self, count: int) -> list[int]:
        return self._random.sample(range(count), count)

    def places(self, size: int, most: int = 4) -> list[int]:
        return self._random.choices(range(size), k=self._random.randint(0, most))

    def shape(self, least_rank: int = 0) -> tuple[int, ...]:
        """A small shape; what is empty stays so, and tells little about what follows: few are."""
        rank = self.number(least_rank, max(3, least_rank))
        sizes = (0, *[1] * 6, *[2, 3, 5, 7] * 3, 17)
        return tuple(self.choose(sizes) for _ in range(rank))

    def preferred(self, tensors: list[tf.Tensor]) -> tf.Tensor:
        """One of the tensors, mostly one that was computed late."""
        computed = [t for t in tensors if t.op.inputs]
        return self.choose(computed[-3:] if computed and self._random.random() < 0.7 else tensors)

    def constant_like(self, tensor: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
        """A new constant or, as well, a new input."""
        if self.flip():
            return super().constant_like(tensor, shape)
        return self.note(self.fed(self.array(self.values[tensor].dtype, shape), shape))


def _kind(dtype: np.dtype[Any]) -> str:
    return "f" if dtype.name == "bfloat16" else dtype.kind
