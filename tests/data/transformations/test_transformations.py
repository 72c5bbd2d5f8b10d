"""The elements and the specs of stages."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf
from tests.data.pipelines import Dataset, elements, plain
from thalweg.data import columns

experimental = tf.data.experimental


def test_functions_get_tuples_unpacked_and_dicts_whole() -> None:
    pairs = elements(
        lambda: Dataset.from_tensor_slices(([1, 2], [3, 4])).map(lambda a, b: {"s": a + b, "a": a})
    )
    assert plain(pairs) == [{"s": 4, "a": 1}, {"s": 6, "a": 2}]
    mappings = elements(
        lambda: Dataset.from_tensor_slices({"a": [1, 2], "b": [3, 4]}).map(
            lambda d: d["a"] * d["b"]
        )
    )
    assert plain(mappings) == [3, 8]


def test_a_function_may_return_a_list_or_an_empty_tuple() -> None:
    actual = elements(lambda: Dataset.range(2).map(lambda x: [x, tf.stack([x, x])]))
    assert plain(actual) == [(0, [0, 0]), (1, [1, 1])]
    with tf.Graph().as_default(), pytest.raises(TypeError, match="returned None"):
        Dataset.range(2).map(lambda x: None)


def test_captures_of_functions() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        scale = tf.placeholder(tf.int64, [])
        offset = tf.Variable(100, dtype=tf.int64)
        dataset = Dataset.range(10).map(lambda x: x * scale + offset)
        iterator = dataset.make_initializable_iterator()
        following = iterator.get_next()
        session.run(offset.initializer)
        session.run(iterator.initializer, {scale: 10})
        assert [session.run(following) for _ in range(2)] == [100, 110]
        session.run(offset.assign(200))
        assert session.run(following) == 220


def test_variables_in_a_batched_function_are_read_for_each_batch() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        offset = tf.Variable(1.0)
        dataset = Dataset.from_tensor_slices(np.zeros((4, 2), np.float32))
        iterator = dataset.map(lambda x: x + offset).batch(2).make_initializable_iterator()
        following = iterator.get_next()
        session.run(offset.initializer)
        session.run(iterator.initializer)
        assert session.run(following).tolist() == [[1.0, 1.0]] * 2
        session.run(offset.assign(5.0))
        assert session.run(following).tolist() == [[5.0, 5.0]] * 2


def test_control_flow_and_python_in_functions() -> None:
    def change(x):
        big = tf.cond(x > 1, lambda: x * 10, lambda: x)
        return tf.while_loop(lambda v: v < 5, lambda v: v + 1, [big])

    assert plain(elements(lambda: Dataset.range(4).map(change))) == [5, 5, 20, 30]


def test_batches_have_their_static_shape() -> None:
    with tf.Graph().as_default():
        dataset = Dataset.from_tensor_slices((np.zeros((5, 3)), ["a"] * 5))
        assert dataset.output_types == (tf.float64, tf.string)
        assert [str(shape) for shape in dataset.output_shapes] == ["(3,)", "()"]
        assert dataset.output_classes == (tf.Tensor, tf.Tensor)
        assert str(dataset.batch(2).output_shapes[0]) == "(?, 3)"
        assert str(dataset.batch(2, drop_remainder=True).output_shapes[0]) == "(2, 3)"
        assert dataset.element_spec[0] == tf.TensorSpec([3], tf.float64)
        following = dataset.batch(2).make_one_shot_iterator().get_next()
        assert following[0].shape.as_list() == [None, 3]


def test_elements_of_different_shapes_cannot_be_batched() -> None:
    def make() -> Dataset:
        return Dataset.range(4).map(lambda x: tf.fill([x], x)).batch(2)

    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"different shapes[\s\S]*BatchDataset"
    ):
        elements(make)


def test_padded_batches() -> None:
    def make(**options) -> Dataset:
        rows = Dataset.range(1, 5).map(lambda x: (tf.fill([x], x), tf.as_string(x)))
        return rows.padded_batch(2, **options)

    actual = elements(lambda: make(padded_shapes=([None], [])))
    assert actual[0][0].tolist() == [[1, 0], [2, 2]]
    assert actual[1][0].tolist() == [[3, 3, 3, 0], [4, 4, 4, 4]]
    assert actual[1][1].tolist() == [b"3", b"4"]
    actual = elements(
        lambda: make(padded_shapes=([6], []), padding_values=(np.int64(-1), "")),
    )
    assert actual[0][0].tolist() == [[1, -1, -1, -1, -1, -1], [2, 2, -1, -1, -1, -1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="smaller size"):
        elements(lambda: make(padded_shapes=([3], [])))


def test_padding_of_strings() -> None:
    def make() -> Dataset:
        words = Dataset.range(1, 3).map(lambda x: tf.fill([x], "w"))
        return words.padded_batch(2, [None], "-")

    (actual,) = elements(make)
    assert actual.tolist() == [[b"w", b"-"], [b"w", b"w"]]


@pytest.mark.parametrize("rest", [(3,), (3, 1), (3, 2), (2, 3), (2, 2, 2), (3, 1, 2, True)])
def test_windows(rest: tuple) -> None:
    size, shift, stride, drop = (*rest, *(rest[0], 1, False)[len(rest) - 1 :])
    values = list(range(8))
    expected = []
    for start in range(0, len(values), shift):
        window = values[start::stride][:size]
        if not drop or len(values) >= start + (size - 1) * stride + 1:
            expected.append(window)

    def make() -> Dataset:
        windows = (
            Dataset.range(8).window(*rest)
            if not drop
            else (Dataset.range(8).window(size, shift, stride, True))
        )
        return windows.flat_map(lambda w: w.batch(size))

    assert plain(elements(make)) == expected


def test_windows_of_pairs_are_pairs_of_windows() -> None:
    def make() -> Dataset:
        pairs = Dataset.from_tensor_slices(([1, 2, 3, 4], ["a", "b", "c", "d"]))
        return pairs.window(2).flat_map(lambda a, b: Dataset.zip((a.batch(2), b.batch(2))))

    assert plain(elements(make)) == [([1, 2], [b"a", b"b"]), ([3, 4], [b"c", b"d"])]


def test_reduce_and_get_single_element() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        total = Dataset.range(10).reduce((np.int64(0), 0), lambda s, x: (s[0] + x, s[1] + 1))
        joined = Dataset.range(3).reduce(
            tf.zeros([0], tf.int64), lambda s, x: tf.concat([s, [x]], 0)
        )
        assert session.run(total) == (45, 10)
        assert session.run(joined).tolist() == [0, 1, 2]
        only = experimental.get_single_element(Dataset.range(5).batch(10))
        assert session.run(only).tolist() == [0, 1, 2, 3, 4]
        for count, message in ((0, "empty"), (2, "more than one")):
            wrong = experimental.get_single_element(Dataset.range(count))
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                session.run(wrong)


def test_a_shuffle_is_a_permutation_determined_by_seeds() -> None:
    def order(seed, size=10, **options) -> list[int]:
        return plain(elements(lambda: Dataset.range(20).shuffle(size, seed, **options)))

    assert sorted(order(1)) == list(range(20))
    assert order(1) == order(1) != order(2)
    assert order(1, size=1) == list(range(20))
    assert sorted(order(None)) == list(range(20))


def test_a_shuffle_draws_only_from_its_buffer() -> None:
    for seed in range(5):
        found = plain(elements(lambda seed=seed: Dataset.range(30).shuffle(4, seed)))
        assert all(value <= index + 3 for index, value in enumerate(found))


@pytest.mark.parametrize("is_again", [True, False])
def test_reshuffle_each_iteration(is_again: bool) -> None:
    def make(batched: bool) -> Dataset:
        dataset = Dataset.range(10).shuffle(10, 3, is_again).repeat(3)
        return dataset.batch(10) if batched else dataset

    flat = plain(elements(lambda: make(False)))
    passes = [flat[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(passe) == list(range(10)) for passe in passes)
    assert (passes[0] == passes[1] == passes[2]) is not is_again
    assert plain(elements(lambda: make(True))) == passes


def test_the_order_of_a_shuffle_does_not_depend_on_rows() -> None:
    def make(has_rows: bool) -> Dataset:
        dataset = Dataset.from_tensor_slices(np.arange(50)).shuffle(7, seed=9)
        # A filter pulls single elements.
        return (dataset if has_rows else dataset.filter(lambda x: True)).batch(4)

    assert plain(elements(lambda: make(True))) == plain(elements(lambda: make(False)))


def test_ignore_errors_skips_elements() -> None:
    def make() -> Dataset:
        checked = Dataset.from_tensor_slices([1.0, 0.0, 4.0]).map(
            lambda x: tf.check_numerics(1.0 / x, "no number")
        )
        return checked.apply(experimental.ignore_errors())

    assert plain(elements(make)) == [1.0, 0.25]


def test_an_error_in_a_batched_function_drops_its_batch() -> None:
    values = np.array([1.0, 2.0, 0.0, 4.0, 5.0], np.float32)

    def make(is_by_rows: bool) -> Dataset:
        dataset = Dataset.from_tensor_slices(values)
        dataset = dataset if is_by_rows else dataset.filter(lambda x: True)
        mapped = dataset.map(lambda x: tf.div(12, tf.cast(x, tf.int32)))
        return mapped.batch(2).apply(experimental.ignore_errors())

    assert plain(elements(lambda: make(True))) == [[12, 6], [3, 2]]
    assert plain(elements(lambda: make(False))) == [[12, 6], [3, 2]]


def test_caches_in_files(tmp_path) -> None:
    path = str(tmp_path / "cache")
    calls = []

    def count(value):
        calls.append(int(value))
        return value

    def make() -> Dataset:
        mapped = Dataset.range(4).map(lambda x: tf.py_func(count, [x], tf.int64))
        return mapped.cache(path).repeat(2)

    assert plain(elements(make)) == [0, 1, 2, 3] * 2
    assert plain(elements(make)) == [0, 1, 2, 3] * 2
    assert calls == [0, 1, 2, 3]


def test_the_error_of_an_unwritable_cache_names_its_file(tmp_path) -> None:
    following = Dataset.range(2).cache(str(tmp_path / "none/x")).make_one_shot_iterator().get_next()
    with (
        tf.Session() as session,
        pytest.raises(
            tf.errors.NotFoundError, match=r"none/x\.partial(.|\n)*CacheDataset(.|\n)*test_transf"
        ),
    ):
        session.run(following)


def test_groups() -> None:
    def make() -> Dataset:
        return Dataset.range(10).apply(
            experimental.group_by_window(lambda x: x % 3, lambda key, group: group.batch(2), 2)
        )

    assert plain(elements(make)) == [[0, 3], [1, 4], [2, 5], [6, 9], [7], [8]]


def test_transformations_of_contrib() -> None:
    data = tf.contrib.data
    assert plain(elements(lambda: Dataset.range(5).apply(data.batch_and_drop_remainder(2)))) == [
        [0, 1],
        [2, 3],
    ]
    mapped = data.map_and_batch(lambda x: x + 1, 3, num_parallel_batches=1)
    assert plain(elements(lambda: Dataset.range(4).apply(mapped))) == [[1, 2, 3], [4]]
    shuffled = data.shuffle_and_repeat(4, 2, seed=1)
    assert sorted(plain(elements(lambda: Dataset.range(3).apply(shuffled)))) == [0, 0, 1, 1, 2, 2]
    batched = Dataset.range
    assert plain(elements(lambda: batched(4).batch(3).apply(data.unbatch()))) == [0, 1, 2, 3]
    interleaved = data.parallel_interleave(lambda x: Dataset.range(x), cycle_length=2)
    assert plain(elements(lambda: Dataset.range(4).apply(interleaved))) == [0, 0, 1, 0, 1, 2]
    assert plain(elements(lambda: experimental.Counter(5, 2), 3)) == [5, 7, 9]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Dataset.range(3).filter(lambda x: x), ValueError),
        (lambda: Dataset.range(3).flat_map(lambda x: x), TypeError),
        (lambda: Dataset.range(3).concatenate(Dataset.from_tensors(1.0)), TypeError),
        (lambda: Dataset.zip([Dataset.range(3)]), TypeError),
        (lambda: Dataset.from_tensors(1).unbatch(), ValueError),
        (lambda: Dataset.range(3).shard(2, 2), ValueError),
        (lambda: Dataset.range(), ValueError),
        (lambda: Dataset.from_generator([1], tf.int32), TypeError),
        (lambda: Dataset.range(3).apply(lambda d: 1), TypeError),
    ],
)
def test_errors_at_construction_name_the_users_line(make, error) -> None:
    with tf.Graph().as_default(), pytest.raises(error):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Dataset.range(3).batch(0),
        lambda: Dataset.range(3).shuffle(0),
        lambda: Dataset.range(3).window(0),
        lambda: Dataset.range(3).prefetch(-2),
        lambda: Dataset.range(3).map(lambda x: x, num_parallel_calls=0),
        lambda: Dataset.range(3).interleave(lambda x: Dataset.range(x), cycle_length=0),
        lambda: Dataset.range(0, 3, 0),
    ],
)
def test_errors_at_run_time_name_the_stage(make) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="Dataset"):
        elements(make)


def test_batches_of_strings() -> None:
    texts = [np.array(b"a", object), np.array(b"b\0", object)]
    assert [type(item) for item in columns.stacked(texts)] == [bytes, bytes]
    assert columns.stacked(texts).tolist() == [b"a", b"b\0"]
