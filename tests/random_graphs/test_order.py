"""Random programs whose nodes are planned in any sequence that their order edges leave open.

A program reads and writes variables, tables and queues, prints, draws random numbers, and does so
in branches and loops, with few control dependencies: the order of its statements is left to the
effects. Planned in the order of the program or in any other sequence, graphs and the bodies in
them give the same values, leave the same state and print the same lines.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Generator, Iterable
from graphlib import TopologicalSorter
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from tests.random_graphs import examples
from thalweg.control import liveness
from thalweg.graph import subgraph
from thalweg.graph.analysis.order import step_order
from thalweg.graph.node import Node, as_node, program_order
from thalweg.runtime import engine

SIZE = 2
VARIABLES = 2

_places = st.integers(0, 7)  # of values that there are: the last ones, if there are fewer
_access = st.tuples(
    st.sampled_from(["read", "assign", "add", "scatter"]), st.integers(0, 1), _places
)
_simple = st.tuples(st.sampled_from(["compute", "print", "random"]), _places, _places)
_look_up = st.tuples(st.sampled_from(["insert", "find"]), _places, _places)
_blocking = st.tuples(st.sampled_from(["pass", "take", "host"]), _places, _places)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    block = st.lists(inner, min_size=1, max_size=4)
    return st.one_of(
        st.tuples(st.just("cond"), _places, block, block),
        st.tuples(st.just("loop"), st.integers(0, 3), block),
    )


def _programs(*simple: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    leaf = st.one_of(*simple)
    statements = st.recursive(leaf, lambda inner: st.one_of(inner, _nested(inner)), max_leaves=6)
    return st.lists(statements, min_size=2, max_size=8)


PROGRAMS = _programs(_access, _simple, _look_up)
#: A table is not ordered where that might make a node wait for one that blocks.
BLOCKING = st.tuples(_programs(_access, _simple), st.lists(_blocking, max_size=4)).flatmap(
    lambda parts: st.permutations([*parts[0], *parts[1]])
)


class Program:
    """A program as a graph."""

    def __init__(self, statements: list[Any]) -> None:
        start = [np.arange(SIZE, dtype=np.int64) + 10 * i for i in range(VARIABLES)]
        self.variables = [tf.Variable(array, use_resource=False) for array in start]
        self.table = tf.contrib.lookup.MutableHashTable(tf.int64, tf.int64, -1)
        self.targets: list[Node] = []
        self.lines = 0
        self.fetches = self._block(statements, [tf.constant([1, 2], tf.int64)])

    def _block(self, statements: list[Any], values: list[Any]) -> list[Any]:
        values = list(values)
        for statement in statements:
            made = self._statement(statement, values)
            values.append(made)
        return values

    def _statement(self, statement: Any, values: list[Any]) -> Any:
        kind, first, *rest = statement
        if kind == "cond":
            truth = tf.reduce_sum(values[first % len(values)]) > 5
            return tf.cond(truth, *[lambda b=block: self._end(b, values) for block in rest])
        if kind == "loop":
            return self._loop(first, rest[0], values)
        value = values[rest[0] % len(values)]
        if kind in ("read", "assign", "add", "scatter"):
            return self._access(kind, self.variables[first], value)
        if kind in ("insert", "find"):
            return self._look_up(kind, values[first % len(values)], value)
        return getattr(self, f"_{kind}")(values[first % len(values)], value)

    def _end(self, block: list[Any], values: list[Any]) -> Any:
        found = self._block(block, values)
        with tf.control_dependencies([as_node(value) for value in found[len(values) :]]):
            return tf.identity(found[-1])

    def _loop(self, count: int, block: list[Any], values: list[Any]) -> Any:
        def body(i: Any, x: Any) -> Any:
            return i + 1, self._end(block, [*values, x])

        return tf.while_loop(lambda i, _: i < count, body, [0, values[-1]])[1]

    def _access(self, kind: str, variable: Any, value: Any) -> Any:
        match kind:
            case "read":
                return variable.read_value()
            case "assign":
                written = tf.assign(variable, value % 100)
            case "add":
                written = tf.assign_add(variable, value)
            case _:
                written = tf.scatter_add(variable, [1], value[1:])
        return tf.identity(written)

    def _look_up(self, kind: str, key: Any, value: Any) -> Any:
        if kind == "find":
            return self.table.lookup(key % 4)
        with tf.control_dependencies([self.table.insert(key % 4, value)]):
            return tf.identity(value)

    def _compute(self, x: Any, y: Any) -> Any:
        return (x * 3 + y) % 50

    def _print(self, x: Any, y: Any) -> Any:
        self.lines += 1
        return tf.Print(x, [y], f"line {self.lines}: ")

    def _random(self, x: Any, y: Any) -> Any:
        self.lines += 1
        return x + tf.random_uniform([SIZE], 0, 9, tf.int64, seed=self.lines)

    def _host(self, x: Any, y: Any) -> Any:
        result = tf.py_func(lambda a, b: a - b, [x, y], tf.int64)
        result.set_shape([SIZE])
        return result

    def _pass(self, x: Any, y: Any) -> Any:
        """Through a queue."""
        queue = tf.FIFOQueue(2, tf.int64, [SIZE])
        with tf.control_dependencies([queue.enqueue(x + y)]):
            return queue.dequeue()

    def _take(self, x: Any, y: Any) -> Any:
        """From a queue that gets something only by a later node."""
        queue = tf.FIFOQueue(2, tf.int64, [SIZE])
        taken = queue.dequeue()
        self.targets.append(queue.enqueue(x - y))
        return taken


@contextlib.contextmanager
def in_any_sequence(seed: int) -> Generator[None]:
    """Have what is planned come in some sequence that its order leaves open."""
    choice = random.Random(seed)

    def sequence(nodes: Iterable[Node]) -> list[Node]:
        sorter = TopologicalSorter(step_order(program_order(nodes)))
        sorter.prepare()
        result, ready = list[Node](), list(sorter.get_ready())
        while ready:
            result.append(ready.pop(choice.randrange(len(ready))))
            sorter.done(result[-1])
            ready += sorter.get_ready()
        return result

    with (
        mock.patch.object(subgraph, "program_order", sequence),
        mock.patch.object(liveness, "program_order", sequence),
    ):
        yield


def outcome(program: Program, seed: int | None) -> tuple[list[Any], list[Any], list[str]]:
    """The values of two steps, the variables after them, and the lines that were printed."""
    lines = io.StringIO()
    sequence = contextlib.nullcontext() if seed is None else in_any_sequence(seed)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with sequence, contextlib.redirect_stderr(lines):
            values = [session.run([program.fetches, program.targets])[0] for _ in range(2)]
        state = [*session.run(program.variables), *session.run(program.table.export())]
    return [array for step in values for array in step], state, lines.getvalue().splitlines()


def agree(statements: list[Any], seed: int, compiles: bool, ordered: bool) -> None:
    with tf.Graph().as_default(), mock.patch.object(engine, "COMPILES", compiles):
        tf.set_random_seed(7)
        program = Program(statements)
        values, state, lines = outcome(program, None)
        others, later, printed = outcome(program, seed)
    for one, other in zip([*values, *state], [*others, *later], strict=True):
        np.testing.assert_array_equal(one, other)
    assert lines == printed if ordered else sorted(lines) == sorted(printed)


@pytest.mark.parametrize("compiles", [False, True])
@examples(12)
@given(PROGRAMS, st.integers(0, 1000))
def test_a_step_is_the_same_in_any_sequence(
    compiles: bool, statements: list[Any], seed: int
) -> None:
    agree(statements, seed, compiles, ordered=True)


@pytest.mark.parametrize("compiles", [False, True])
@examples(12)
@given(BLOCKING, st.integers(0, 1000))
def test_so_is_a_step_that_may_block(compiles: bool, statements: list[Any], seed: int) -> None:
    agree(statements, seed, compiles, ordered=False)
