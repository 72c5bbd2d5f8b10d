"""Random programs over variables against a model that runs one statement after the other.

A statement reads or writes one variable. It waits, by control dependencies, for the earlier
statements it conflicts with, so the order that a graph leaves open cannot matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from tests.random_graphs import examples
from thalweg.graph.node import as_node

SIZE = 3
VARIABLES = 3


@dataclass(frozen=True)
class Statement:
    """`kind` applied to a variable, with a constant or the result of an earlier read."""

    kind: str
    variable: int
    operand: int
    source: int  # a read among the statements before, as a position; -1: the constant
    rows: tuple[int, ...]
    extra: int  # a statement before that this one waits for without need; -1: none

    @property
    def writes(self) -> bool:
        """Whether the variable changes."""
        return self.kind != "read"


KINDS = ["read", "assign", "add", "subtract", "scatter_add", "scatter_update", "slice"]


@st.composite
def programs(draw: Any) -> list[Statement]:
    """Some statements, each of which may use what an earlier one read."""
    statements: list[Statement] = []
    for position in range(draw(st.integers(1, 14))):
        reads = [-1] + [i for i, s in enumerate(statements) if not s.writes]
        statements.append(
            Statement(
                draw(st.sampled_from(KINDS)),
                draw(st.integers(0, VARIABLES - 1)),
                draw(st.integers(-5, 5)),
                draw(st.sampled_from(reads)),
                tuple(draw(st.permutations(range(SIZE)))[: draw(st.integers(0, SIZE))]),
                draw(st.integers(-1, position - 1)),
            )
        )
    return statements


def before(program: list[Statement], position: int) -> set[int]:
    """The earlier statements that a statement must follow: those it conflicts with, its source."""
    here = program[position]
    result = {position for position in (here.source, here.extra) if position >= 0}
    for index, other in enumerate(program[:position]):
        if other.variable == here.variable and (other.writes or here.writes):
            result.add(index)
    return result


def closure(program: list[Statement], wanted: set[int]) -> list[int]:
    """The statements that run when these are fetched, in order."""
    needed = set(wanted)
    for position in reversed(range(len(program))):
        if position in needed:
            needed |= before(program, position)
    return sorted(needed)


class Model:
    """The variables as arrays; statements run in order."""

    def __init__(self) -> None:
        self.state = [np.arange(SIZE, dtype=np.int64) + 10 * i for i in range(VARIABLES)]

    def run(self, program: list[Statement], positions: list[int]) -> dict[int, Any]:
        """Run statements; what each read, or left in its variable."""
        results: dict[int, Any] = {}
        for position in positions:
            results[position] = self._apply(program[position], results)
        return results

    def _apply(self, statement: Statement, results: dict[int, Any]) -> Any:
        value = results.get(statement.source, np.full(SIZE, statement.operand, np.int64))
        array = self.state[statement.variable].copy()
        rows = list(statement.rows)
        match statement.kind:
            case "assign":
                array = value.copy()
            case "add":
                array += value
            case "subtract":
                array -= value
            case "scatter_add":
                array[rows] += value[rows]
            case "scatter_update":
                array[rows] = value[rows]
            case "slice":
                array[1:] = value[1:]
        self.state[statement.variable] = array
        return array


class Written:
    """The program as a graph: one node to fetch per statement."""

    def __init__(self, program: list[Statement]) -> None:
        self.variables = [tf.Variable(array, name=f"v{i}") for i, array in enumerate(Model().state)]
        self.fetches: list[Any] = []
        for position in range(len(program)):
            waits = [as_node(self.fetches[i]) for i in sorted(before(program, position))]
            with tf.control_dependencies(waits):
                self.fetches.append(self._node(program[position]))

    def _node(self, statement: Statement) -> Any:
        variable = self.variables[statement.variable]
        value = tf.constant([statement.operand] * SIZE, tf.int64)
        if statement.source >= 0:
            value = self.fetches[statement.source]
        rows = np.array(statement.rows, np.int32)
        match statement.kind:
            case "read":
                return variable.read_value()
            case "assign":
                return tf.assign(variable, value)
            case "add":
                return variable.assign_add(value)
            case "subtract":
                return variable.assign_sub(value)
            case "scatter_add":
                return tf.scatter_add(variable, rows, tf.gather(value, rows))
            case "scatter_update":
                return tf.scatter_update(variable, rows, tf.gather(value, rows))
            case _:
                return variable[1:].assign(value[1:])


@examples(80)
@given(programs(), st.data())
def test_steps_leave_the_variables_as_the_statements_say(
    program: list[Statement], data: Any
) -> None:
    model = Model()
    with tf.Graph().as_default(), tf.Session() as session:
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


@examples(30)
@given(programs())
def test_a_step_that_fails_has_done_what_came_before_it_and_nothing_after(
    program: list[Statement],
) -> None:
    model = Model()
    with tf.Graph().as_default(), tf.Session() as session:
        written = Written(program)
        session.run(tf.global_variables_initializer())
        everything = [as_node(fetch) for fetch in written.fetches]
        with tf.control_dependencies(everything):
            bad = tf.scatter_update(written.variables[0], [0, SIZE], np.array([99, 99], np.int64))
        with tf.control_dependencies([bad]):
            after = written.variables[1].assign_add(np.full(SIZE, 1000, np.int64))
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError) as caught:
                session.run(after)
            assert caught.value.op is bad.op
            model.run(program, list(range(len(program))))
            for value, array in zip(session.run(written.variables), model.state, strict=True):
                np.testing.assert_array_equal(value, array)
