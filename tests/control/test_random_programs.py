"""Random nests of loops and conditionals: native code, the executor and a plain unrolled graph.

A program is a list of statements over a few vectors. It runs three ways: as `tf.while_loop` and
`tf.cond` in native code, the same on the dataflow executor, and unrolled by Python, which knows the
values and so takes only the branches and iterations that happen, on NumPy kernels. Values and
gradients must agree, of loops in loops also those of second order, and all loops must really have
been native.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import thalweg as tf
from tests.ops.harness import on_reference_kernels
from thalweg.runtime.dataflow import control_region

COUNT = 3  # of vectors
WIDTH = 4

_places = st.integers(0, COUNT - 1)
_assign = st.tuples(
    st.just("assign"),
    _places,
    st.sampled_from(["add", "mul", "tanh", "sin", "max", "gather", "matmul"]),
    _places,
    _places,
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    block = st.lists(inner, min_size=1, max_size=3)
    condition = st.tuples(_places, st.floats(-0.5, 0.5))
    return st.one_of(
        st.tuples(st.just("cond"), condition, block, block),
        st.tuples(st.just("switch"), _places, block, block, block),
        st.tuples(st.just("loop"), st.integers(0, 3), condition, block),
        st.tuples(st.just("array"), st.integers(1, 3), _places, block),
    )


PROGRAMS = st.lists(
    st.recursive(_assign, lambda inner: st.one_of(_assign, _nested(inner)), max_leaves=6),
    min_size=1,
    max_size=3,
)


_always = st.tuples(_places, st.just(-1e3))
_unsteady = st.tuples(_places, st.floats(-0.5, 0.5))
_inner_loop = st.tuples(
    st.just("loop"), st.integers(0, 3), _unsteady, st.lists(_assign, min_size=1, max_size=2)
)
_inner = st.one_of(
    _inner_loop,
    st.tuples(st.just("cond"), _unsteady, st.tuples(_inner_loop), st.tuples(_assign)),
    st.tuples(st.just("loop"), st.integers(1, 2), _unsteady, st.tuples(_assign, _inner_loop)),
)
#: Loops with loops in them, of lengths that depend on data.
NESTS = st.tuples(
    st.tuples(st.just("loop"), st.integers(1, 3), _always, st.tuples(_assign, _inner, _assign))
)


def matrix() -> Any:
    return tf.constant(np.linspace(-0.4, 0.5, WIDTH * WIDTH).reshape(WIDTH, WIDTH))


def computed(function: str, x: Any, y: Any) -> Any:
    match function:
        case "add":
            return 0.5 * (x + y)
        case "mul":
            return x * y
        case "tanh":
            return tf.tanh(x + 0.3 * y)
        case "sin":
            return tf.sin(2.0 * x) - y
        case "max":
            return tf.maximum(x, y)
        case "gather":
            return tf.gather(x, [2, 0, 0, 3]) - 0.5 * y
        case _:
            return tf.squeeze(tf.matmul(tf.expand_dims(x, 0), matrix()), [0]) + 0.1 * y


class Graphed:
    """Runs programs as nodes of a graph."""

    def block(self, statements: Any, state: list[Any]) -> list[Any]:
        for statement in statements:
            state = getattr(self, statement[0])(state, *statement[1:])
        return state

    def assign(self, state: list[Any], into: int, function: str, a: int, b: int) -> list[Any]:
        changed = list(state)
        changed[into] = computed(function, state[a], state[b])
        return changed

    def truth(self, state: list[Any], condition: Any) -> Any:
        place, bound = condition
        return tf.reduce_sum(state[place]) > bound

    def cond(self, state: list[Any], condition: Any, yes: Any, no: Any) -> list[Any]:
        return tf.cond(
            self.truth(state, condition),
            lambda: self.block(yes, state),
            lambda: self.block(no, state),
        )

    def number(self, state: list[Any], place: int) -> Any:
        return tf.cast(tf.floor(2.0 * tf.reduce_sum(state[place])), tf.int32)

    def switch(self, state: list[Any], place: int, *blocks: Any) -> list[Any]:
        branches = [lambda block=block: self.block(block, state) for block in blocks]
        return tf.switch_case(self.number(state, place), branches)

    def loop(self, state: list[Any], limit: int, condition: Any, body: Any) -> list[Any]:
        _, end = tf.while_loop(
            lambda i, s: tf.logical_and(i < limit, self.truth(s, condition)),
            lambda i, s: (i + 1, self.block(body, s)),
            (tf.constant(0), state),
        )
        return end

    def array(self, state: list[Any], count: int, place: int, body: Any) -> list[Any]:
        """A loop that writes a vector to an array in every iteration, and sums the array."""
        array = tf.TensorArray(state[0].dtype, count, element_shape=[WIDTH])
        _, end, array = tf.while_loop(
            lambda i, *_: i < count,
            lambda i, s, a: (i + 1, self.block(body, s), a.write(i, s[place])),
            (tf.constant(0), state, array),
        )
        changed = list(end)
        changed[place] = tf.reduce_mean(array.stack(), 0)
        return changed


class Unrolled(Graphed):
    """Runs programs as straight-line code: takes decisions on values."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def cond(self, state: list[Any], condition: Any, yes: Any, no: Any) -> list[Any]:
        return self.block(yes if self._session.run(self.truth(state, condition)) else no, state)

    def switch(self, state: list[Any], place: int, *blocks: Any) -> list[Any]:
        number = self._session.run(self.number(state, place))
        return self.block(blocks[number if 0 <= number < len(blocks) else -1], state)

    def loop(self, state: list[Any], limit: int, condition: Any, body: Any) -> list[Any]:
        for _ in range(limit):
            if not self._session.run(self.truth(state, condition)):
                break
            state = self.block(body, state)
        return state

    def array(self, state: list[Any], count: int, place: int, body: Any) -> list[Any]:
        saved: list[Any] = []
        for _ in range(count):
            saved.append(state[place])
            state = self.block(body, state)
        changed = list(state)
        changed[place] = tf.reduce_mean(tf.stack(saved), 0)
        return changed


def slopes(y: list[Any], starts: Any) -> list[Any]:
    """The gradients of a sum of squares."""
    result = tf.gradients(tf.add_n([tf.reduce_sum(x * x) for x in y]), starts)
    return [
        tf.zeros_like(x) if slope is None else tf.convert_to_tensor(slope)
        for x, slope in zip(starts, result, strict=True)
    ]


def results(machine: Any, program: Any, starts: Any, session: Any) -> list[Any]:
    state = machine.block(program, starts)
    filled = slopes(state, starts)
    together = session.run([state, filled])
    check_native(session, [state, filled])
    alone = [session.run(fetch) for fetch in (*state, *filled)]  # without what only others need
    return [together, alone]


def twice(machine: Any, program: Any, starts: Any, session: Any) -> list[Any]:
    state = machine.block(program, starts)
    first = slopes(state, starts)
    fetches = [state, first, slopes(first, starts)]
    result = session.run(fetches)
    check_native(session, fetches)
    return result


def check_native(session: Any, fetches: Any) -> None:
    """Check that a step that ran left no loop to the executor."""
    loops = [c for c in session.plan(fetches).controls if c.unit.node.type == "While"]
    reasons = [loop.reason for loop in loops if loop.was_native is not control_region.NATIVE]
    assert not reasons


def run(program: Any, seed: int, results: Any = results) -> None:
    rng = np.random.default_rng(seed)
    values = [rng.normal(scale=0.4, size=WIDTH) for _ in range(COUNT)]
    with tf.Graph().as_default(), tf.Session() as session:
        starts = [tf.constant(value) for value in values]
        with on_reference_kernels() as reference:
            wanted = results(Unrolled(reference), program, starts, reference)
        for native in (True, False):
            before, control_region.NATIVE = control_region.NATIVE, native
            try:
                result = results(Graphed(), program, starts, session)
            finally:
                control_region.NATIVE = before
            for a, b in zip(tf.nest.flatten(result), tf.nest.flatten(wanted), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


EXAMPLES = 400 if os.environ.get("THALWEG_SOAK") else 25


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not os.environ.get("THALWEG_SOAK"),
    suppress_health_check=list(HealthCheck),
)
@given(PROGRAMS, st.integers(0, 1000))
def test_native_loops_and_the_executor_agree_with_the_unrolled_graph(
    program: Any, seed: int
) -> None:
    run(program, seed)


@settings(
    max_examples=EXAMPLES // 3,
    deadline=None,
    derandomize=not os.environ.get("THALWEG_SOAK"),
    suppress_health_check=list(HealthCheck),
)
@given(NESTS, st.integers(0, 1000))
def test_loops_in_loops_are_native_to_the_second_gradient(program: Any, seed: int) -> None:
    run(program, seed, twice)
