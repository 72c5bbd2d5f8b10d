"""`map_fn`, `foldl`, `foldr` and `scan`, in native code and on the executor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check_gradient
from thalweg.runtime.dataflow import control_region

R = np.random.default_rng(3)
ROWS = R.normal(size=(4, 3))


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


@pytest.fixture(params=[True, False], ids=["native", "executor"])
def lowering(request: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(control_region, "NATIVE", request.param)


def run(values: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(values, feeds)


def close(result: Any, wanted: Any) -> None:
    np.testing.assert_allclose(result, wanted, rtol=1e-12)


def folded(fn: Any, rows: Any, start: Any = None) -> list[Any]:
    """What `fn` makes of the rows one after the other."""
    rest = iter(rows)
    values = [next(rest) if start is None else fn(start, next(rest))]
    for row in rest:
        values.append(fn(values[-1], row))
    return values


def mix(total: Any, row: Any) -> Any:
    return total * 0.5 + row * row


@pytest.mark.usefixtures("lowering")
class TestValues:
    def test_map(self) -> None:
        close(run(tf.map_fn(lambda row: tf.reduce_sum(row * row), ROWS)), (ROWS**2).sum(1))

    def test_map_of_a_structure(self) -> None:
        def swap(parts: Any) -> Any:
            return {"sum": parts["a"] + parts["b"][0], "long": tf.cast(parts["b"][1], tf.int64)}

        elems = {"a": ROWS, "b": (2 * ROWS, np.arange(4))}
        result = run(tf.map_fn(swap, elems, dtype={"sum": tf.float64, "long": tf.int64}))
        close(result["sum"], 3 * ROWS)
        np.testing.assert_array_equal(result["long"], np.arange(4))

    @pytest.mark.parametrize("start", [None, ROWS[0] + 1])
    def test_foldl(self, start: Any) -> None:
        close(run(tf.foldl(mix, ROWS, start)), folded(mix, ROWS, start)[-1])

    @pytest.mark.parametrize("start", [None, ROWS[0] + 1])
    def test_foldr(self, start: Any) -> None:
        close(run(tf.foldr(mix, ROWS, start)), folded(mix, ROWS[::-1], start)[-1])

    @pytest.mark.parametrize("start", [None, ROWS[0] + 1])
    def test_scan(self, start: Any) -> None:
        close(run(tf.scan(mix, ROWS, start)), folded(mix, ROWS, start))

    @pytest.mark.parametrize("start", [None, ROWS[0] + 1])
    def test_scan_in_reverse(self, start: Any) -> None:
        result = run(tf.scan(mix, ROWS, start, reverse=True))
        close(result, folded(mix, ROWS[::-1], start)[::-1])

    def test_folds_of_structures(self) -> None:
        elems = (ROWS, [ROWS + 1])

        def both(total: Any, row: Any) -> Any:
            return row[0] + total[1], total[0] * row[1][0]

        start = (ROWS[0], ROWS[1])
        left, right = start
        for one, two in zip(ROWS, ROWS + 1, strict=True):
            left, right = one + right, left * two
        for result, expected in zip(run(tf.foldl(both, elems, start)), (left, right), strict=True):
            close(result, expected)
        for result, expected in zip(run(tf.scan(both, elems, start)), (left, right), strict=True):
            close(result[-1], expected)

    def test_sizes_that_come_with_the_step(self) -> None:
        x = tf.placeholder(tf.float64, [None, None])
        values = [tf.map_fn(tf.square, x), tf.scan(tf.add, x), tf.foldr(tf.add, x)]
        for count in (1, 5, 2):
            rows = R.normal(size=(count, count + 1))
            squares, sums, total = run(values, {x: rows})
            close(squares, rows**2)
            close(sums, np.cumsum(rows, 0))
            close(total, rows.sum(0))

    def test_no_rows(self) -> None:
        x = tf.placeholder(tf.float64, [None, 3])
        mapped, scanned = tf.map_fn(tf.square, x), tf.scan(tf.add, x, np.zeros(3))
        total = tf.foldl(tf.add, x, np.full(3, 2.0))
        result = run([mapped, scanned, total], {x: np.zeros((0, 3))})
        assert [value.shape for value in result] == [(0, 3), (0, 3), (3,)]
        close(result[2], 2.0)

    def test_inside_each_other(self) -> None:
        def inner(total: Any, row: Any) -> Any:
            return tf.foldl(lambda a, b: a + b * row, ROWS, total)

        expected = folded(lambda total, row: total + ROWS.sum(0) * row, ROWS, np.zeros(3))
        close(run(tf.scan(inner, ROWS, np.zeros(3))), expected)

    def test_strings(self) -> None:
        words = tf.constant(["a", "b"])
        result = run(tf.map_fn(lambda word: word + "!", words))
        assert result.tolist() == [b"a!", b"b!"]

    def test_long_scan(self) -> None:
        rows = R.normal(size=(3000, 2))
        close(run(tf.scan(tf.add, rows))[-1], np.cumsum(rows, 0)[-1])

    def test_variables_are_made_outside(self) -> None:
        def scaled(row: Any) -> Any:
            return row * tf.get_variable("scale", [], tf.float64, tf.constant_initializer(3.0))

        with tf.variable_scope("root"):
            result = tf.map_fn(scaled, ROWS)
        assert [v.name for v in tf.global_variables()] == ["root/scale:0"]
        close(run(result), 3 * ROWS)


@pytest.mark.usefixtures("lowering")
@pytest.mark.parametrize(
    "build",
    [
        lambda x, w: tf.map_fn(lambda row: row * row * w, x),
        lambda x, w: tf.foldl(lambda a, row: tf.tanh(a * w) + row, x),
        lambda x, w: tf.foldr(lambda a, row: tf.tanh(a * w) * row, x, w),
        lambda x, w: tf.scan(lambda a, row: tf.tanh(a * w) + row, x, w),
        lambda x, w: tf.scan(lambda a, row: tf.tanh(a * w) + row, x, reverse=True),
        lambda x, w: tf.scan(lambda a, row: (a[1] * row[0], a[0] + row[1]), (x, x * w), (w, w)),
    ],
)
def test_gradients_of_both_orders(build: Any) -> None:
    check_gradient(build, [ROWS, R.normal(size=3)], [0, 1], True, 1e-5, 1e-6)


@pytest.mark.usefixtures("lowering")
def test_gradient_of_more_iterations_than_the_initial_capacity() -> None:
    rows = R.normal(size=(200, 16)).astype(np.float32)
    x, decay = tf.constant(rows), tf.constant(np.full(16, 0.5, np.float32))
    total = tf.reduce_sum(tf.scan(lambda value, row: decay * value + row, x, tf.zeros([16])))
    result = run(tf.gradients(total, [x, decay]))
    ahead = (1 - 0.5 ** np.arange(200, 0, -1)) / 0.5  # 1 + 1/2 + … for the rows still to come
    states = np.array(folded(lambda value, row: 0.5 * value + row, rows, np.zeros(16)))
    before = np.concatenate([np.zeros((1, 16)), states[:-1]])
    np.testing.assert_allclose(result[0], np.tile(ahead[:, None], 16), rtol=1e-5)
    np.testing.assert_allclose(result[1], (before * ahead[:, None]).sum(0), rtol=1e-3, atol=1e-3)


def test_results_of_several_shapes() -> None:
    rows = tf.map_fn(
        lambda n: tf.ones([n]), tf.constant([2, 2]), dtype=tf.float32, infer_shape=False
    )
    assert rows.shape.rank is None
    np.testing.assert_array_equal(run(rows), np.ones((2, 2)))


def test_static_shapes() -> None:
    x = tf.placeholder(tf.float32, [5, None, 2])
    assert tf.map_fn(lambda row: row[0], x).shape.as_list() == [5, 2]
    assert tf.scan(tf.add, x).shape.as_list() == [5, None, 2]
    assert tf.foldl(lambda a, row: row[0] + a, x, tf.zeros([2])).shape.as_list() == [2]
    assert tf.map_fn(tf.square, tf.placeholder(tf.float32)).shape.rank is None


def test_no_gradient_where_none_is_wanted() -> None:
    x = tf.constant(ROWS)
    assert tf.gradients(tf.map_fn(tf.square, x, back_prop=False), x) == [None]
    assert tf.gradients(tf.foldl(tf.add, x, back_prop=False), x) == [None]


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: tf.map_fn(3, ROWS), TypeError, "fn must be callable"),
        (lambda: tf.scan(None, ROWS), TypeError, "fn must be callable"),
        (lambda: tf.map_fn(tf.square, 2.0), ValueError, "1\\+ dimensional"),
        (lambda: tf.map_fn(tf.square, ()), ValueError, "at least one"),
        (lambda: tf.foldl(tf.add, (ROWS, ROWS[:2])), ValueError, "[Dd]imension|[Ss]hape"),
        (lambda: tf.map_fn(lambda r: (r, r), ROWS), ValueError, "number of elements"),
        (lambda: tf.scan(lambda a, r: (a, r), ROWS), ValueError, "number of elements"),
        (lambda: tf.foldl(lambda a, r: [a], ROWS), ValueError, "number of elements"),
        (
            lambda: tf.map_fn(lambda r: (r, r), ROWS, dtype=[tf.float64] * 2),
            TypeError,
            "sequence type",
        ),
        (lambda: tf.foldl(lambda a, r: a[:1], ROWS), ValueError, "invariant"),
        (
            lambda: tf.map_fn(tf.identity, tf.SparseTensor([[0]], [1.0], [2])),
            TypeError,
            "sparse tensor",
        ),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("shape", [(3, 2, 0), (3, 0)])
def test_maps_and_scans_of_empty_elements(shape: tuple[int, ...]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, None)
        mapped = tf.map_fn(tf.tanh, x)
        scanned = tf.scan(lambda a, b: a + b, x)
        result = session.run([mapped, scanned], {x: np.zeros(shape, np.float32)})
    assert [value.shape for value in result] == [shape, shape]
