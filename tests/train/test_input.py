"""Input pipelines of queues: producers, and batches of what they produce."""

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as opened:
        yield opened


def running(session):
    """Initialise everything and start the queue runners."""
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    return tf.train.start_queue_runners(session)


def all_of(session, fetches, limit=1000):
    """What the steps give until the data ends."""
    threads = running(session)
    values = []
    while len(values) < limit:
        try:
            values.append(session.run(fetches))
        except tf.errors.OutOfRangeError:
            for thread in threads:
                thread.join()
            break
    return values


# Producers


def test_an_epoch_is_counted(session):
    limited = tf.train.limit_epochs(tf.constant(7), num_epochs=2)
    session.run(tf.local_variables_initializer())
    assert [session.run(limited), session.run(limited)] == [7, 7]
    with pytest.raises(tf.errors.OutOfRangeError, match="limit of 2"):
        session.run(limited)
    with pytest.raises(ValueError, match="> 0"):
        tf.train.limit_epochs(tf.constant(7), num_epochs=0)


def test_rows_in_order(session):
    queue = tf.train.input_producer([[1, 2], [3, 4]], num_epochs=2, shuffle=False)
    values = all_of(session, queue.dequeue())
    assert np.array(values).tolist() == [[1, 2], [3, 4]] * 2


def test_epochs_are_shuffled_one_by_one(session):
    queue = tf.train.range_input_producer(20, num_epochs=3, seed=5)
    values = np.array(all_of(session, queue.dequeue())).reshape(3, 20)
    assert np.sort(values, axis=1).tolist() == [list(range(20))] * 3
    assert len({tuple(epoch) for epoch in values.tolist()}) == 3


def test_the_shape_of_a_row_must_be_known():
    fed = tf.placeholder(tf.float32, None)
    with pytest.raises(ValueError, match="fully defined"):
        tf.train.input_producer(fed)
    assert tf.train.input_producer(fed, element_shape=[3]).shapes[0] == [3]


def test_strings(session):
    queue = tf.train.string_input_producer(["a", "b"], num_epochs=1, shuffle=False, name="files")
    assert queue.name == "files"
    assert all_of(session, queue.dequeue()) == [b"a", b"b"]


def test_no_strings(session):
    with pytest.raises(ValueError, match="non-null"):
        tf.train.string_input_producer([])
    none = tf.constant([], tf.string, shape=[0])
    queue = tf.train.string_input_producer(none)
    coord = tf.train.Coordinator()
    tf.train.start_queue_runners(session, coord=coord)
    with pytest.raises(tf.errors.OutOfRangeError):
        session.run(queue.dequeue())
    with pytest.raises(tf.errors.InvalidArgumentError, match="non-null"):
        coord.join()


def test_slices(session):
    words, numbers = tf.constant(["a", "b", "c"]), np.arange(6).reshape(3, 2)
    slices = tf.train.slice_input_producer([words, numbers], num_epochs=1, shuffle=False)
    values = all_of(session, slices)
    assert [word for word, _ in values] == [b"a", b"b", b"c"]
    assert np.array([row for _, row in values]).tolist() == numbers.tolist()
    with pytest.raises(ValueError, match="at least one"):
        tf.train.slice_input_producer([])


@pytest.mark.parametrize("first", range(3))
def test_slices_keep_their_dtypes(session, first):
    given = [tf.constant(np.eye(3, 2)), np.arange(3, dtype=np.int32), ["a", "b", "c"]]
    wanted = [np.eye(3, 2).tolist(), [0, 1, 2], [b"a", b"b", b"c"]]
    order = [first, *(i for i in range(3) if i != first)]
    slices = tf.train.slice_input_producer([given[i] for i in order], num_epochs=1, shuffle=False)
    assert [tensor.dtype for tensor in slices] == (
        [[tf.float64, tf.int32, tf.string][i] for i in order]
    )
    columns = zip(*all_of(session, slices), strict=True)
    assert [np.array(column).tolist() for column in columns] == [wanted[i] for i in order]


def test_names_of_files(session, tmp_path):
    for name in ("b.txt", "a.txt", "c.dat"):
        (tmp_path / name).write_text("")
    names = tf.train.match_filenames_once(str(tmp_path / "*.txt"))
    assert names in tf.local_variables()
    session.run(tf.local_variables_initializer())
    (tmp_path / "d.txt").write_text("")
    wanted = [str(tmp_path / name).encode() for name in ("a.txt", "b.txt")]
    assert session.run(names).tolist() == wanted


def test_how_full_queues_are_is_summarised(session):
    tf.train.string_input_producer(["a"], capacity=7)
    tf.train.batch([tf.constant(1)], 2, capacity=9)
    tf.train.shuffle_batch([tf.constant(1)], 2, capacity=9, min_after_dequeue=4)
    names = [tensor.op.name for tensor in tf.get_collection(tf.GraphKeys.SUMMARIES)]
    assert names == [
        "input_producer/fraction_of_7_full",
        "batch/fraction_of_9_full",
        "shuffle_batch/fraction_over_4_of_5_full",
    ]
    session.run(tf.summary.merge_all())


# Batches


def count(limit):
    return tf.Variable(0, name="counter").count_up_to(limit)


def test_a_batch_of_lists(session):
    counter = count(7)
    numbers, words = tf.train.batch([counter, tf.constant("w")], batch_size=3)
    assert numbers.shape == [3] and numbers.op.name == "batch"
    values = all_of(session, [numbers, words])
    assert [row.tolist() for row, _ in values] == [[0, 1, 2], [3, 4, 5]]
    assert values[0][1].tolist() == [b"w"] * 3


def test_a_batch_of_a_dict(session):
    batch = tf.train.batch({"n": count(4), "w": "x"}, 4)
    value = all_of(session, batch)[0]
    assert value["n"].tolist() == [0, 1, 2, 3] and value["w"].tolist() == [b"x"] * 4


def test_a_dict_of_one_stays_a_dict(session):
    assert all_of(session, tf.train.batch({"n": count(2)}, 2))[0]["n"].tolist() == [0, 1]


def test_the_last_batch_may_be_smaller(session):
    batch = tf.train.batch([count(5)], 3, allow_smaller_final_batch=True)
    assert batch.shape.as_list() == [None]
    assert [value.tolist() for value in all_of(session, batch)] == [[0, 1, 2], [3, 4]]


def test_rows_are_examples_of_their_own(session):
    counter = count(3)
    batch = tf.train.batch([tf.stack([counter, counter * 10])], 3, enqueue_many=True)
    assert [value.tolist() for value in all_of(session, batch)] == [[0, 0, 1], [10, 2, 20]]


def test_batches_of_different_lengths_are_padded(session):
    counter = count(4)
    row = tf.fill(tf.stack([counter]), counter)
    batch = tf.train.batch([row], 4, dynamic_pad=True)
    assert batch.shape.as_list() == [4, None]
    (value,) = all_of(session, batch)
    assert value.tolist() == [[0, 0, 0], [1, 0, 0], [2, 2, 0], [3, 3, 3]]


def test_many_threads_make_each_example_once(session):
    batch = tf.train.batch([count(60)], 10, num_threads=6)
    values = np.concatenate(all_of(session, batch))
    assert sorted(values.tolist()) == list(range(60))


def test_shapes_must_be_known_or_given():
    fed = tf.placeholder(tf.float32, None)
    with pytest.raises(ValueError, match="rank"):
        tf.train.batch([fed], 2)
    assert tf.train.batch([fed], 2, shapes=[[3]]).shape == [2, 3]
    with pytest.raises(ValueError, match="at least one"):
        tf.train.batch([], 2)


def test_shuffled_batches(session):
    batch = tf.train.shuffle_batch(
        [count(40)], 8, capacity=32, min_after_dequeue=16, num_threads=2, seed=3
    )
    values = np.concatenate(all_of(session, batch)).tolist()
    assert sorted(values) == list(range(40)) and values != list(range(40))


@pytest.mark.parametrize("shuffles", [False, True])
def test_several_sources(session, shuffles):
    sources = [[count(10), "a"], [count(15), "b"]]
    if shuffles:
        batch = tf.train.shuffle_batch_join(sources, 5, capacity=20, min_after_dequeue=5)
    else:
        batch = tf.train.batch_join(sources, 5)
    values = all_of(session, batch)
    pairs = [pair for n, w in values for pair in zip(n.tolist(), w.tolist(), strict=True)]
    wanted = [(k, b"a") for k in range(10)] + [(k, b"b") for k in range(15)]
    assert sorted(pairs) == sorted(wanted)


def test_sources_must_be_alike():
    with pytest.raises(TypeError, match="consistent"):
        tf.train.batch_join([[tf.constant(1)], [tf.constant(1.0)]], 2)
    with pytest.raises(ValueError, match="same keys"):
        tf.train.batch_join([{"a": tf.constant(1)}, {"b": tf.constant(1)}], 2)
    with pytest.raises(ValueError, match="same number"):
        tf.train.batch_join([[tf.constant(1)], [tf.constant(1), tf.constant(1)]], 2)
    with pytest.raises(ValueError, match="at least one"):
        tf.train.batch_join([], 2)


# Sparse tensors


def sparse(counter):
    """A row of length 4 with the counter at its place."""
    place = tf.reshape(tf.cast(counter % 4, tf.int64), [1, 1])
    return tf.SparseTensor(place, tf.stack([counter]), [4])


def dense(value):
    rows = np.zeros(value.dense_shape, value.values.dtype)
    rows[tuple(value.indices.T)] = value.values
    return rows


def expected(counters):
    return [[k if index == k % 4 else 0 for index in range(4)] for k in counters]


def test_batches_of_sparse_tensors(session):
    counter = count(6)
    numbers, rows = tf.train.batch([counter, sparse(counter)], 3)
    assert rows.shape.ndims == 2
    for first, (given, value) in zip((0, 3), all_of(session, [numbers, rows]), strict=True):
        counters = range(first, first + 3)
        assert given.tolist() == list(counters) and dense(value).tolist() == expected(counters)


def test_rows_of_sparse_tensors(session):
    counter = count(4)
    pair = tf.sparse_concat(0, [tf.sparse_reshape(sparse(counter), [1, 4])] * 2)
    batch = tf.train.batch([pair], 4, enqueue_many=True)
    values = [dense(value).tolist() for value in all_of(session, batch)]
    assert values == [expected([0, 0, 1, 1]), expected([2, 2, 3, 3])]


def test_sparse_tensors_of_several_sources(session):
    first, second = count(5), count(5)
    batch = tf.train.batch_join([[first, sparse(first)], [second, sparse(second)]], 2)
    values = all_of(session, batch)
    assert len(values) == 5
    for numbers, rows in values:
        assert dense(rows).tolist() == expected(numbers)
    with pytest.raises(ValueError, match="Inconsistent"):
        tf.train.batch_join([[sparse(tf.constant(1))], [tf.constant([1])]], 2)


# Leaving out


def test_only_some_are_kept(session):
    counter = count(10)
    batch = tf.train.maybe_batch([counter], counter % 2 < 1, 5)
    assert all_of(session, batch)[0].tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("keep", [True, False])
def test_all_or_none_is_known_beforehand(session, keep):
    batch = tf.train.maybe_batch([count(4)], keep, 2, allow_smaller_final_batch=True)
    assert [v.tolist() for v in all_of(session, batch)] == ([[0, 1], [2, 3]] if keep else [])


def test_some_rows_are_kept(session):
    counter = count(3)
    rows = tf.stack([counter, counter + 10, counter + 20])
    batch = tf.train.maybe_batch([rows], [True, False, True], 6, enqueue_many=True)
    assert all_of(session, batch)[0].tolist() == [0, 20, 1, 21, 2, 22]


def test_all_rows_or_none_are_kept(session):
    counter = count(4)
    rows = tf.stack([counter, -counter])
    batch = tf.train.maybe_batch([rows], counter > 1, 4, enqueue_many=True)
    assert all_of(session, batch)[0].tolist() == [2, -2, 3, -3]


def test_sparse_tensors_that_are_left_out(session):
    counter = count(6)
    batch = tf.train.maybe_batch([counter, sparse(counter)], counter % 2 > 0, 3)
    numbers, rows = all_of(session, batch)[0]
    assert numbers.tolist() == [1, 3, 5] and dense(rows).tolist() == expected([1, 3, 5])


def test_other_ways_to_leave_out(session):
    counter = count(8)
    keep = counter > 3
    joined = tf.train.maybe_batch_join([[counter]], keep, 2, allow_smaller_final_batch=True)
    shuffled = tf.train.maybe_shuffle_batch([counter], 2, 8, 0, keep)
    several = tf.train.maybe_shuffle_batch_join([[counter]], 2, 8, 0, keep)
    assert joined.shape.as_list() == [None]
    assert shuffled.shape == several.shape == [2]


@pytest.mark.parametrize(
    ("keep", "many", "message"),
    [([True], False, "vector"), ([[True]], True, "0 or 1"), (None, True, "known")],
)
def test_what_says_what_to_keep(keep, many, message):
    given = tf.placeholder(tf.bool, None) if keep is None else tf.constant(keep)
    with pytest.raises(ValueError, match=message):
        tf.train.maybe_batch([tf.constant([1])], given, 2, enqueue_many=many)
