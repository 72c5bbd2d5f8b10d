"""Random graphs placed at random: on several devices a step gives what it gives on one.

Every node asks for one of the devices, or for none. Ops, gradients and updates run as in the other
tests of this package; `Program` adds loops, conditionals, variables, random numbers and queues.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import thalweg as tf
from tests.random_graphs import examples
from tests.random_graphs.agreement import assert_agree, perturbed, widened
from tests.random_graphs.generator import SeededGenerator, interpret
from tests.random_graphs.layers import COMPILED
from tests.random_graphs.test_compiled import gradients_of, some
from tests.random_graphs.test_programs import Model, Statement, Written, closure, programs
from tests.random_graphs.test_training import Training
from thalweg.graph.node import as_node

COUNTS = st.integers(1, 4)
SEEDS = st.integers(0, 2**63)


def scattered(seed: int, count: int) -> Callable[[Any], str]:
    """A device function that sends each node somewhere, or leaves it to the placer."""
    random = Random(seed)
    names = [f"/cpu:{index}" for index in range(count)] * 3 + [""]
    return lambda _: random.choice(names)


def on_devices(count: int, graph: tf.Graph | None = None) -> tf.Session:
    config = tf.ConfigProto(device_count={"CPU": count}, allow_soft_placement=True)
    return tf.Session(graph=graph, config=config)


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@examples(20, soak=10_000)
@given(SEEDS, st.integers(1, 25), COUNTS)
def test_ops_and_gradients_agree_with_the_numpy_kernels(seed: int, size: int, count: int) -> None:
    generator = SeededGenerator(seed)
    with generator.graph.as_default(), tf.device(scattered(seed, count)):
        generator.placeholder(np.float32, generator.shape())
        generator.grow(COMPILED, size)
        fetches = some(generator, generator.tensors)
        slopes = gradients_of(generator)
    nearby = perturbed(generator.graph.nodes, generator.feeds)
    with on_devices(count, generator.graph) as session:
        found = session.run(fetches, generator.feeds)
        along = session.run(slopes, generator.feeds)
    for value, tensor in zip(found, fetches, strict=True):
        assert_agree(value, generator.values[tensor], [values[tensor] for values in nearby])
    expected = interpret(generator.graph.nodes, generator.feeds)
    if not all(np.isfinite(widened(value)).all() for value in expected.values()):
        return  # infinity times the zeros of padding: it matters which zeros are really there
    for value, tensor in zip(along, slopes, strict=True):
        assert_agree(value, expected[tensor], [values[tensor] for values in nearby])


@examples(20, soak=10_000)
@given(programs(), SEEDS, COUNTS, st.data())
def test_variables_are_as_the_statements_say(
    program: list[Statement], seed: int, count: int, data: Any
) -> None:
    model = Model()
    with tf.Graph().as_default(), on_devices(count) as session:
        with tf.device(scattered(seed, count)):
            written = Written(program)
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            fetched = data.draw(st.sets(st.integers(0, len(program) - 1), min_size=1))
            results = model.run(program, closure(program, fetched))
            reads = sorted(i for i in fetched if not program[i].writes)
            targets = [as_node(written.fetches[i]) for i in fetched]
            found, _ = session.run([[written.fetches[i] for i in reads], targets])
            for position, value in zip(reads, found, strict=True):
                np.testing.assert_array_equal(value, results[position])
            for value, array in zip(session.run(written.variables), model.state, strict=True):
                np.testing.assert_array_equal(value, array)


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@examples(10, soak=2000)
@given(SEEDS, st.integers(1, 12), COUNTS)
def test_training_goes_the_same_way(seed: int, size: int, count: int) -> None:
    training = Training(seed, size, scattered(seed, count))
    training.assert_agrees(training.trajectory(tf.ConfigProto(device_count={"CPU": count})))


class Program:
    """A random program with structured control flow over small vectors.

    Values stay within (-1, 1), so that rounding is not magnified; what reads and writes a variable
    is ordered by control dependencies, so that the order a graph leaves open cannot matter.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._variables = [tf.Variable(self._array(), name=f"v{n}") for n in range(3)]
        self._last: Any = tf.no_op()  # the latest access of a variable in this graph
        self.x = tf.placeholder(tf.float64, [3])
        values = self._block([self.x, *(v.value() for v in self._variables)], 2)
        values.append(self._queued(values[-1]))
        self.results = values[-3:]
        total = tf.add_n([tf.reduce_sum(value) for value in self.results])
        slopes = tf.gradients(total, [self.x, *(v.value() for v in self._variables)])
        self.results += [tf.convert_to_tensor(slope) for slope in slopes if slope is not None]
        self.after = self._last

    def trajectory(self, session: Any) -> list[Any]:
        """What three steps give and leave."""
        session.run(tf.global_variables_initializer())
        result: list[Any] = []
        for step in range(3):
            feeds = {self.x: np.array([0.1, -0.3, 0.2]) * (step + 1)}
            result += session.run([*self.results, self.after], feeds)[:-1]
            result += session.run(self._variables)
        return result

    def _array(self) -> Any:
        return np.array([self._random.uniform(-1, 1) for _ in range(3)])

    def _block(self, values: list[Any], depth: int) -> list[Any]:
        """Some statements, which may use what came before."""
        rules = [self._op, self._op, self._op, self._access]
        rules += [self._branch, self._loop] if depth else [self._drawn]
        values = list(values)
        for _ in range(self._random.randint(1, 5)):
            values.append(self._random.choice(rules)(values, depth))
        return values

    def _pick(self, values: list[Any]) -> Any:
        return self._random.choice(values[-4:])

    def _op(self, values: list[Any], _: int) -> Any:
        a, b = self._pick(values), self._pick(values)
        return self._random.choice(
            [
                lambda: tf.tanh(a + b),
                lambda: tf.sin(a * b),
                lambda: tf.tanh(a - tf.reduce_sum(b)),
                lambda: tf.gather(a, [2, 0, 1]) * 0.5,
                lambda: tf.concat([a[:1], b[1:]], 0),
                lambda: tf.reshape(tf.matmul(a[None], tf.diag(b)), [3]),
            ]
        )()

    def _drawn(self, values: list[Any], _: int) -> Any:
        noise = tf.random_uniform([3], seed=self._random.randint(1, 9), dtype=tf.float64)
        return self._pick(values) * noise

    def _access(self, values: list[Any], _: int) -> Any:
        """A read or an update of a variable, after the one before."""
        variable, value = self._random.choice(self._variables), self._pick(values)
        with tf.control_dependencies([self._last]):
            if self._random.random() < 0.5:
                read = variable.read_value()
            else:
                update = tf.assign(variable, tf.stop_gradient(tf.tanh(variable + value)))
                with tf.control_dependencies([update]):
                    read = variable.read_value()
        self._last = read
        return read * 0.5

    def _inside(self, values: list[Any], depth: int) -> Any:
        """The block of a body: its accesses are done when its value is there."""
        before, self._last = self._last, tf.no_op()
        result = self._block(values, depth - 1)[-1]
        with tf.control_dependencies([self._last]):
            result = tf.identity(result)
        self._last = before
        return result

    def _after(self, make: Callable[[], Any]) -> Any:
        with tf.control_dependencies([self._last]):
            result = make()
        self._last = result
        return result

    def _branch(self, values: list[Any], depth: int) -> Any:
        chooses = tf.reduce_sum(self._pick(values)) > self._random.uniform(-1, 1)
        return self._after(
            lambda: tf.cond(
                chooses,
                lambda: self._inside(values, depth),
                lambda: self._inside(values, depth),
            )
        )

    def _loop(self, values: list[Any], depth: int) -> Any:
        limit = self._random.randint(0, 3)

        def body(i: Any, carried: Any) -> Any:
            return i + 1, self._inside([*values, carried], depth)

        start = self._pick(values)
        return self._after(lambda: tf.while_loop(lambda i, _: i < limit, body, [0, start])[1])

    def _queued(self, value: Any) -> Any:
        """A value by way of a queue."""
        queue = tf.FIFOQueue(2, [tf.float64], [[3]])
        with tf.control_dependencies([queue.enqueue(tf.stop_gradient(value))]):
            return queue.dequeue() * 0.5 + value


@examples(15, soak=10_000)
@given(SEEDS, COUNTS)
@example(4, 1)  # a conditional that takes a constant, and needs it no more
@example(203_482_798_511_300_544, 2)  # a conditional waits for a loop that it takes and may not use
def test_programs_with_control_flow_give_what_one_device_gives(seed: int, count: int) -> None:
    with tf.Graph().as_default():
        with tf.device(scattered(seed, count)):
            program = Program(seed)
        with on_devices(count) as session:
            found = program.trajectory(session)
        with on_devices(1) as session:
            alone = program.trajectory(session)
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)
