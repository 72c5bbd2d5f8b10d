"""Weights that are packed for products stay packed from call to call, until they are written."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.device.cpu.invocation import PACKED, Invocation
from thalweg.device.cpu.loading import function_numbers, table_of
from thalweg.device.cpu.pool import Entry, Jump
from thalweg.device.cpu.program import Program
from thalweg.ops.state import state

ROWS, DEPTH, COLUMNS = 64, 24, 48


def values(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X, W = values(ROWS, DEPTH), values(COLUMNS, DEPTH, seed=1)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each run of a prepacked program, whether it packed."""
    result: list[bool] = []
    select_packing = Invocation.select_packing

    def noting(self: Invocation) -> None:
        select_packing(self)
        result.append(not self.fault[PACKED // 8])

    monkeypatch.setattr(Invocation, "select_packing", noting)
    return result


def placeholder() -> tf.Tensor:
    return tf.placeholder(tf.float32, [ROWS, DEPTH])


def product(x: Any, w: Any) -> Any:
    return tf.matmul(x, w, transpose_b=True)  # columns lie apart: they are packed


def assert_product(found: Any, w: Any) -> None:
    np.testing.assert_allclose(found, X @ w.T, 1e-4, 1e-4)


def test_constants_are_packed_once(packed: list[bool]) -> None:
    x = placeholder()
    y = product(x, tf.constant(W))
    with tf.Session() as session:
        for _ in range(3):
            assert_product(session.run(y, {x: X}), W)
        assert "packed once" in str(session.plan(y, {x: X}))
    assert packed == [True, False, False]


def test_rows_of_a_map_find_what_the_first_one_packed(packed: list[bool]) -> None:
    rows = np.stack([X, X + 1, X - 1, 2 * X])
    data = tf.data.Dataset.from_tensor_slices(rows).map(lambda x: product(x, tf.constant(W)))
    taken = tf.data.make_one_shot_iterator(data.batch(4)).get_next()
    with tf.Session() as session:
        np.testing.assert_allclose(session.run(taken), rows @ W.T, 1e-4, 1e-4)
    assert packed == [True, False]  # the others are not asked


def test_the_profile_has_all_phases(packed: list[bool]) -> None:
    x = placeholder()
    y = product(x, tf.Variable(W))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert len(session.plan(y, {x: X}).profile(2).rows) == 1
    assert packed == [True, False, False]


def test_calls_that_do_not_pack_skip_the_first_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, ran = Program.timed, list[list[bool]]()

    def noting(self: Program, *given: Any) -> Any:
        results, times = timed(self, *given)
        ran.append(times.any(axis=(1, 2)).tolist())
        return results, times

    monkeypatch.setattr(Program, "timed", noting)
    x = placeholder()
    y = product(x, tf.constant(W))
    with tf.Session() as session:
        session.plan(y, {x: X}).profile(2)
    assert ran == [[True, True], [False, True], [False, True]]


def test_nothing_pauses_amid_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    programs, new_invocation = list[Program](), Program._invocation

    def noting(self: Program) -> Invocation:
        programs.append(self)
        return new_invocation(self)

    monkeypatch.setattr(Program, "_invocation", noting)
    x = placeholder()
    with tf.Session() as session:
        session.run(product(x, tf.constant(W)), {x: X})
    (program,) = programs
    for no_pause in (False, True):
        (call,) = program.listing.calls
        amid = replace(call, entry=call.entry._replace(no_pause=no_pause))
        table = table_of([amid], function_numbers({"": call.code}), ())
        program.template = replace(program.template, calls=table)
        entries = program._invocation().table.entries
        assert [type(entry) for entry in entries] == [Jump, Entry, Entry]
        assert [entry.no_pause for entry in entries] == [no_pause] * 3


def test_a_program_with_early_outputs_packs_once(packed: list[bool]) -> None:
    x, square = placeholder(), tf.placeholder(tf.float32, [200, 200])
    y = product(x, tf.constant(W))
    later = tf.matmul(square, tf.matmul(square, square))
    with tf.device("/cpu:1"):
        there = y + 1
    given = np.full((200, 200), 0.1, np.float32)
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        assert "sends" in str(session.plan([later, there], {x: X, square: given}))
        for _ in range(3):
            found = session.run([later, there], {x: X, square: given})
            np.testing.assert_allclose(found[0], np.linalg.matrix_power(given, 3), 1e-4)
            assert_product(found[1] - 1, W)
    assert packed == [True, False, False]


Write = Callable[[tf.Session, Any], Any]
WRITES: dict[str, tuple[Write, Any]] = {
    "assign": (lambda s, v: s.run(v.assign(W + 1)), W + 1),
    "add": (lambda s, v: s.run(v.assign_add(np.ones_like(W))), W + 1),
    "load": (lambda s, v: v.load(W * 2, s), W * 2),
    "initialise": (lambda s, v: s.run(v.initializer), W),
    "scatter": (lambda s, v: s.run(tf.scatter_update(v, [0], W[1:2])), np.r_[W[1:2], W[1:]]),
    "loop": (
        lambda s, v: s.run(
            tf.while_loop(lambda i: i < 3, lambda i: _added(v, i), [0], parallel_iterations=1)
        ),
        W + 3,
    ),
    "py_func": (lambda s, v: s.run(v.assign(tf.py_func(lambda: W - 1, [], tf.float32))), W - 1),
}


def _added(variable: Any, i: Any) -> Any:
    with tf.control_dependencies([variable.assign_add(np.ones_like(W))]):
        return i + 1


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("is_resource", [False, True])
def test_a_write_has_them_packed_again(name: str, is_resource: bool, packed: list[bool]) -> None:
    write, expected = WRITES[name]
    x, v = placeholder(), tf.get_variable("v", initializer=W, use_resource=is_resource)
    y = product(x, v)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            assert_product(session.run(y, {x: X}), W)
        assert packed == [True, False]
        write(session, v)
        for _ in range(2):
            assert_product(session.run(y, {x: X}), expected)
        assert packed == [True, False, True, False]


def test_one_of_several_that_was_written_has_all_packed_again(packed: list[bool]) -> None:
    x, u, v = placeholder(), tf.Variable(W), tf.Variable(W * 2)
    ys = [product(x, u), product(tf.tanh(x), v)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(ys, {x: X})
        session.run(v.assign_add(v * 2))
        first, second = session.run(ys, {x: X})
    assert_product(first, W)
    np.testing.assert_allclose(second, np.tanh(X) @ (W * 6).T, 1e-3, 1e-3)
    assert packed == [True, True]


def test_what_the_step_writes_is_packed_in_every_step(packed: list[bool]) -> None:
    x, v = placeholder(), tf.Variable(W)
    y = product(x, v)
    with tf.control_dependencies([y]):
        step = v.assign_add(np.ones_like(W))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for n in range(3):
            actual, _ = session.run([y, step], {x: X})
            assert_product(actual, W + n)
    assert packed == []


def test_another_name_of_a_variable_may_be_written_in_the_step(packed: list[bool]) -> None:
    x = placeholder()
    one, other = (state.variable_op(W.shape, tf.float32, shared_name="both") for _ in range(2))
    with tf.control_dependencies([tf.assign_add(other, np.ones_like(W))]):
        y = product(x, tf.identity(one))
    with tf.Session() as session:
        session.run(tf.assign(one, W))
        for n in range(1, 4):
            assert_product(session.run(y, {x: X}), W + n)
    assert packed == []


def test_calls_in_flight_pack_for_themselves() -> None:
    x, v = placeholder(), tf.Variable(W)
    y = product(x, v)
    with tf.Session() as session, ThreadPoolExecutor(4) as threads:
        session.run(tf.global_variables_initializer())
        call = session.make_callable(y, [x])
        for _ in range(3):
            for found in threads.map(lambda _: call(X), range(8)):
                assert_product(found, session.run(v))
            session.run(v.assign_add(np.ones_like(W)))


def test_a_call_that_fails_leaves_nothing_that_counts_as_packed(packed: list[bool]) -> None:
    x, v, i = placeholder(), tf.Variable(W), tf.placeholder(tf.int32, [])
    y = product(x, v) + tf.gather(tf.constant([0.0, 1.0]), i)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(y, {x: X, i: 5})
        np.testing.assert_allclose(session.run(y, {x: X, i: 1}), X @ W.T + 1, 1e-4, 1e-4)
    assert packed == [True, True]
