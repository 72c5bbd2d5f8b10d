"""Regions as kernels of a plan: programs by shapes, and what happens where native code gives up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest

import thalweg as tf
from thalweg.device.cpu.program import Program
from thalweg.lower.lowering import lower
from thalweg.lower.specialise import NotCompiled
from thalweg.runtime import compiled, engine
from thalweg.runtime.compiled import Executable
from thalweg.runtime.program_cache import ProgramCache


@pytest.fixture
def session() -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def regions(session: Any) -> list[Executable]:
    """The regions of all steps the session has planned."""
    calls = [i.call for step in session._plans.values() for i in step.instructions]
    return [call for call in calls if isinstance(call, Executable)]


def test_what_both_sides_of_a_choice_read_is_there_when_only_one_is_taken(session: Any) -> None:
    """A scalar read for the side that no lane takes must not be missing in the other."""
    a, b = tf.placeholder(tf.float32, [64, 10]), tf.placeholder(tf.float32, [64, 10])
    table, at = tf.placeholder(tf.float32, [50, 64]), tf.placeholder(tf.int32, [64])
    keep, gate = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [64, 64])
    chosen = tf.where(gate > 0, tf.gather(table, at) / keep, gate)
    total = chosen + tf.matmul(a, b, transpose_b=True) / keep
    ones = np.ones([64, 10], np.float32)
    feeds = {a: ones, b: ones, table: np.ones([50, 64]), at: np.arange(64) % 50, keep: 0.5}
    for sign, wanted in ((-1, 19.0), (1, 22.0)):
        actual = session.run(total, {**feeds, gate: np.full([64, 64], sign)})
        np.testing.assert_array_equal(actual, np.full([64, 64], wanted))


def test_every_set_of_shapes_has_a_program(session: Any) -> None:
    x = tf.placeholder(tf.float32, [None])
    y = tf.exp(x)
    for size in (3, 5, 3, 5, 3):
        np.testing.assert_allclose(session.run(y, {x: np.zeros(size)}), np.ones(size))
    (region,) = regions(session)
    assert sorted(region.programs) == [((3,),), ((5,),)]
    assert all(isinstance(step, Program) for step in region.programs.values())


def test_programs_of_shapes_long_gone_are_dropped(session: Any) -> None:
    x = tf.placeholder(tf.float32, [None])
    y = x * 2
    with mock.patch.object(compiled, "_MAX_PROGRAMS", 4):
        for size in [*range(2, 20), 2, 3]:
            array = np.arange(size, dtype=np.float32)
            np.testing.assert_array_equal(session.run(y, {x: array}), array * 2)
    (region,) = regions(session)
    assert list(region.programs) == [((18,),), ((19,),), ((2,),), ((3,),)]


def test_a_small_region_whose_sizes_always_change_is_lowered_for_those_that_come_again(
    session: Any,
) -> None:
    x = tf.placeholder(tf.float32, [None])
    y = x * 2 + 1

    def run(size: int) -> None:
        array = np.arange(size, dtype=np.float32)
        np.testing.assert_array_equal(session.run(y, {x: array}), array * 2 + 1)

    at_once = compiled._PROGRAMS_AT_ONCE
    for size in range(2, 2 + 2 * at_once):
        run(size)
    (region,) = regions(session)
    assert list(region.programs) == [((size,),) for size in range(2, 2 + at_once)]
    for _ in range(compiled._SIGHTINGS):
        run(100)
    assert ((100,),) not in region.programs
    run(100)
    assert ((100,),) in region.programs and len(region.programs) == at_once + 1


def test_a_large_region_is_lowered_for_all_sizes(session: Any) -> None:
    x = tf.placeholder(tf.float32, [None])
    y = x * 2
    with mock.patch.object(compiled, "_MAX_SMALL_WORK", 0):
        for size in range(2, 30):
            array = np.arange(size, dtype=np.float32)
            np.testing.assert_array_equal(session.run(y, {x: array}), array * 2)
    (region,) = regions(session)
    assert len(region.programs) == 28


@contextmanager
def refusing(kind: str) -> Iterator[list[Any]]:
    """No node of a type is compiled meanwhile; those that were tried."""
    tried: list[Any] = []

    def refused(region: Any, shapes: Any, target: Any) -> Any:
        for node in region.nodes:
            if node.type == kind:
                tried.append(node)
                raise NotCompiled(node, "of the test")
        return lower(region, shapes, target)

    none_found = mock.patch.object(ProgramCache, "find", return_value=None)
    none_kept = mock.patch.object(ProgramCache, "store_failure")  # else the next run finds it
    with mock.patch.object(compiled, "lower", refused), none_found, none_kept:
        yield tried


def test_what_runs_without_a_node_serves_for_all_shapes(session: Any) -> None:
    """Sizes that change with every step, as those of shards of a lookup do, plan nothing anew."""

    x = tf.placeholder(tf.float32, [None])
    y = tf.exp(tf.nn.relu(x * 2)) + 1
    with refusing("Relu") as tried:
        for size in range(3, 20):
            np.testing.assert_array_equal(session.run(y, {x: np.zeros(size)}), np.full(size, 2))
    (region,) = regions(session)
    assert len(region._partly_compiled) == 17 and len({*region._partly_compiled.values()}) == 1
    assert len(tried) == compiled._MAX_TRIES


def test_nodes_that_one_line_made_alike_leave_a_region_together(session: Any) -> None:
    """One by one, each would cut what the one before it left, ever deeper."""
    x = y = tf.placeholder(tf.float32, [None])
    for _ in range(1000):
        y = tf.nn.relu(y + 1)
    with refusing("Relu") as tried:
        np.testing.assert_array_equal(session.run(y, {x: np.zeros(3)}), np.full(3, 1000))
    assert len(tried) == 1


def test_feeds_of_any_layout_are_read_rightly(session: Any) -> None:
    x = tf.placeholder(tf.float32, [None, None])
    y = x + 0.5
    base = np.arange(60, dtype=np.float32).reshape(6, 10)
    unaligned = np.frombuffer(b"\0" + base.tobytes(), np.float32, offset=1, count=60)
    feeds = [
        base,
        base.T,
        base[::2, ::3],
        base[::-1, ::-1],
        np.asfortranarray(base),
        base.astype(np.float64),
        base.astype(">f4"),
        base.tolist(),
        np.broadcast_to(base[:1], (6, 10)),
        unaligned.reshape(6, 10),
    ]
    for _ in range(2):
        for feed in feeds:
            expected = np.asarray(feed, np.float32) + 0.5
            np.testing.assert_array_equal(session.run(y, {x: feed}), expected)


def test_a_result_is_a_fresh_array_every_time(session: Any) -> None:
    x = tf.placeholder(tf.float32, [4])
    y = x * 1
    results = [session.run(y, {x: np.full(4, n)}) for n in range(3)]
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, np.full(4, number))
        assert result.flags.writeable and result.flags.owndata


def test_one_tensor_twice_and_scalars(session: Any) -> None:
    x = tf.placeholder(tf.float32, [])
    y = x + 1
    one, two, (three,) = session.run([y, y, [y * 2]], {x: 1.0})
    assert (one, two, three) == (2, 2, 4)
    assert isinstance(one, np.float32)


def test_a_bad_index_is_told_in_words_and_the_next_step_is_fine(session: Any) -> None:
    table = tf.constant(np.arange(12.0, dtype=np.float32).reshape(4, 3))
    rows = tf.placeholder(tf.int32, [None])
    y = tf.gather(table, rows, name="lookup") * 2
    for _ in range(2):
        np.testing.assert_array_equal(session.run(y, {rows: [3, 0]}), [[18, 20, 22], [0, 2, 4]])
        with pytest.raises(tf.errors.InvalidArgumentError, match="lookup") as caught:
            session.run(y, {rows: [0, 4]})
        assert caught.value.op.name.startswith("lookup")


def test_division_of_integers_by_zero_is_an_error(session: Any) -> None:
    x, y = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
    quotient = x // y
    np.testing.assert_array_equal(session.run(quotient, {x: [7, -7], y: [2, 2]}), [3, -4])
    with pytest.raises(tf.errors.InvalidArgumentError):
        session.run(quotient, {x: [7, 1], y: [2, 0]})
    least = np.iinfo(np.int32).min
    np.testing.assert_array_equal(session.run(quotient, {x: [least], y: [-1]}), [least])


def test_nan_and_infinity_keep_their_meaning(session: Any) -> None:
    x = tf.placeholder(tf.float32, [None])
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38], np.float32)
    fetches = [x - x, x * 0, tf.maximum(x, 1.0), tf.minimum(x, 1.0), 1 / x, x * 2, tf.is_nan(x)]
    found = session.run(fetches, {x: values})
    with np.errstate(all="ignore"):
        wanted = [
            values - values,
            values * 0,
            np.maximum(values, 1),
            np.minimum(values, 1),
            np.float32(1) / values,
            values * np.float32(2),
            np.isnan(values),
        ]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        if other.dtype != bool:
            plain = ~np.isnan(other)
            np.testing.assert_array_equal(np.signbit(one[plain]), np.signbit(other[plain]))


def test_many_calls_in_flight_have_memory_of_their_own(session: Any) -> None:
    x = tf.placeholder(tf.float32, [64, 64])
    y = tf.matmul(tf.exp(tf.matmul(x, x) * 0), x)  # a matrix of ones times x

    def call(number: int) -> Any:
        return session.run(y, {x: np.full((64, 64), number, np.float32)})

    with ThreadPoolExecutor(8) as pool:
        for number, result in enumerate(pool.map(call, range(64))):
            np.testing.assert_array_equal(result, np.full((64, 64), 64.0 * number))


def test_a_callable_runs_the_same_programs(session: Any) -> None:
    x = tf.placeholder(tf.float32, [None, 3])
    variable = tf.Variable(np.ones(3, np.float32))
    total = tf.reduce_sum(x * variable)
    session.run(variable.initializer)
    step = session.make_callable(total, [x])
    for size in (1, 4, 2, 4):
        array = np.arange(3.0 * size, dtype=np.float32).reshape(size, 3)
        assert step(array) == session.run(total, {x: array}) == array.sum()
    session.run(tf.assign(variable, [2.0, 2.0, 2.0]))
    assert step(np.ones((1, 3), np.float32)) == 6


def test_random_numbers_of_a_seed_are_the_same_compiled() -> None:
    def draw(compiles: bool) -> Any:
        with (
            mock.patch.object(engine, "COMPILES", compiles),
            tf.Graph().as_default(),
            tf.Session() as session,
        ):
            tf.set_random_seed(7)
            fetches = [tf.random_normal([5]), tf.random_uniform([3, 3]), tf.truncated_normal([4])]
            return [session.run(fetches) for _ in range(2)]

    for one, other in zip(draw(True), draw(False), strict=True):
        for ours, theirs in zip(one, other, strict=True):
            np.testing.assert_allclose(ours, theirs, 1e-5, 1e-6)


def test_more_threads_than_cores_give_the_same_bits() -> None:
    results: list[bytes] = []
    rng = np.random.default_rng(3)
    array = rng.normal(size=(257, 129)).astype(np.float32)
    for threads in (1, 2, 5):
        config = tf.ConfigProto(intra_op_parallelism_threads=threads)
        with tf.Graph().as_default(), tf.Session(config=config) as session:
            x = tf.placeholder(tf.float32, [None, 129])
            hidden = tf.tanh(tf.matmul(x, x, transpose_b=True))
            results.append(session.run(tf.reduce_sum(hidden, 0), {x: array}).tobytes())
            results.append(session.run(tf.reduce_sum(hidden, 0), {x: array}).tobytes())
    assert len(set(results)) == 1
