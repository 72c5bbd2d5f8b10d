"""Lists at run time, against a model that is a Python dict of arrays."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from thalweg.control.lists import ListValue
from thalweg.errors import InvalidArgumentError, UnimplementedError

SHAPES = st.sampled_from([(), (2,), (2, 3), (0,), (2, 0)])


def array(number, shape=(2,)):
    return np.full(shape, number, np.float32)


class Model:
    """The reference model of a list: entries by index, cleared entries, the size."""

    def __init__(self, size, dynamic, clears, accumulates):
        self.size, self.dynamic, self.clears, self.accumulates = size, dynamic, clears, accumulates
        self.entries, self.cleared = {}, set()

    def write(self, index, value):
        if index < 0 or (index >= self.size and not self.dynamic):
            return "Tried to write to index"
        self.size = max(self.size, index + 1)
        if index in self.entries and self.accumulates:
            if self.entries[index].shape != value.shape:
                return "Could not aggregate"
            self.entries[index] = self.entries[index] + value
            return None
        if index in self.cleared:
            return "already been read"
        if index in self.entries:
            return "already been written to"
        self.entries[index] = value
        return None

    def read(self, index):
        if not 0 <= index < self.size and not (self.accumulates and self.dynamic and index >= 0):
            return "Tried to read from index"
        self.size = max(self.size, index + 1)
        if index in self.cleared:
            return "twice because it was cleared"
        if index not in self.entries:
            return None if self.accumulates else "not yet been written"
        value = self.entries[index]
        if self.clears:
            del self.entries[index]
            self.cleared.add(index)
        return value


def outcome(action):
    try:
        return action()
    except InvalidArgumentError as error:
        return error.message


ACTIONS = st.lists(
    st.tuples(st.booleans(), st.integers(-1, 6), SHAPES, st.integers(1, 9)), max_size=25
)


@given(ACTIONS, st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_random_writes_and_reads(actions, dynamic, clears, accumulates, uniform):
    list_value = ListValue(
        tf.float32,
        4,
        dynamic_size=dynamic,
        clear_after_read=clears,
        accumulates=accumulates,
    )
    model = Model(4, dynamic, clears, accumulates)
    seen = []
    for is_write, index, shape, number in actions:
        value = array(number, (2,) if uniform else shape)
        if is_write:
            wrong = model.write(index, value)
            result = outcome(lambda i=index, v=value: list_value.write(i, v))
            assert result is list_value if wrong is None else wrong in result
        else:
            expected = model.read(index)
            result = outcome(lambda i=index: list_value.read(i))
            if isinstance(expected, str):
                assert expected in result
            elif expected is not None:
                np.testing.assert_array_equal(result, expected)
                seen.append((result, expected))
            elif not isinstance(result, str):  # a shape was known: zeros
                assert not np.any(result)
        assert list_value.size() == model.size
        assert list_value.written.tolist() == [i in model.entries for i in range(model.size)]
    for result, expected in seen:  # what was read stays
        np.testing.assert_array_equal(result, expected)


@given(st.lists(SHAPES, min_size=1, max_size=5))
def test_stack_and_concat_of_any_shapes(shapes):
    values = [array(number, shape) for number, shape in enumerate(shapes)]

    def filled():
        list_value = ListValue(tf.float32, len(shapes))
        for index, value in enumerate(values):
            list_value.write(index, value)
        return list_value

    stacked = outcome(filled().stack)
    if len(set(shapes)) == 1:
        np.testing.assert_array_equal(stacked, np.stack(values))
        np.testing.assert_array_equal(filled().as_stacked(), np.stack(values))
    else:
        assert "inconsistent shapes" in stacked
    joined = outcome(filled().concat)
    if isinstance(joined, str):
        problem = "requires at least vectors" in joined or "(excepting dimension 0)" in joined
        assert problem and (() in shapes or len({shape[1:] for shape in shapes}) > 1)
    else:
        np.testing.assert_array_equal(joined[0], np.concatenate(values))
        assert joined[1].tolist() == [shape[0] for shape in shapes]


def test_an_array_becomes_a_list_and_comes_back_without_a_copy():
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    list_value = ListValue(tf.float32, 3).unstack(rows)
    assert np.shares_memory(list_value.stack(), rows)
    assert np.shares_memory(list_value.concat()[0], rows)
    assert not list_value.stack().flags.writeable
    assert not list_value.read(1).flags.writeable
    pieces = ListValue(tf.float32, 3).split(rows.reshape(-1), np.array([2, 2, 2]))
    assert np.shares_memory(pieces.stack(), rows)


def test_what_was_given_out_never_changes():
    rows = np.ones((2, 2), np.float32)
    gradients = ListValue(tf.float32, 2, accumulates=True).unstack(rows)
    before, entry = gradients.stack(), gradients.read(0)
    gradients.write(0, array(5))
    assert rows.tolist() == before.tolist() == [[1, 1], [1, 1]]
    assert entry.tolist() == [1, 1]
    assert gradients.stack().tolist() == [[6, 6], [1, 1]]


def test_a_list_over_an_array_of_native_code():
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    list_value = ListValue(tf.float32).take_over(rows, np.array([True, False, True]))
    assert list_value.written.tolist() == [True, False, True]
    assert list_value.stacked is not None
    assert list_value.read(2).tolist() == [4, 5]
    with pytest.raises(InvalidArgumentError, match="index 1 because it has not yet been written"):
        list_value.read(1)
    list_value.write(1, array(7))
    assert rows[1].tolist() == [7, 7]
    assert ListValue(tf.float32).take_over(rows).stack().tolist() == rows.tolist()
    gradients = list_value.gradient().write(0, array(1))
    assert gradients.take_over(np.zeros((3, 2), np.float32), np.array([False] * 3)) is gradients
    assert gradients.write(0, array(2)).read(0).tolist() == [2, 2]
    with pytest.raises(InvalidArgumentError, match="incompatible"):
        ListValue(tf.float32, 1, tf.TensorShape([3])).take_over(rows)


def test_single_entries_are_packed_when_they_can_be():
    list_value = ListValue(tf.float32, 2)
    assert list_value.as_stacked() is None
    list_value.write(0, array(1)).write(1, array(2, (3,)))
    assert list_value.stacked is None
    assert list_value.as_stacked() is None
    gradients = ListValue(tf.float32, 2, tf.TensorShape([2])).gradient()
    assert gradients.as_stacked().tolist() == [[0, 0], [0, 0]]


def test_gradients_take_the_shapes_of_the_list_they_are_like():
    list_value = ListValue(tf.float32, 3, clear_after_read=True)
    list_value.write(0, array(1)).write(1, array(2, (3,)))
    list_value.read(1)
    gradients = list_value.gradient()
    assert gradients.read(0).tolist() == [0, 0]
    assert gradients.read(1).tolist() == [0, 0, 0]
    assert gradients.write(1, array(4, (3,))).concat()[0].tolist() == [0, 0, 4, 4, 4, 0, 0]
    other = list_value.gradient().write(1, array(1, (3,))).write(0, array(2))
    assert gradients.merge(other).read(1).tolist() == [5, 5, 5]
    assert gradients.read(0).tolist() == [2, 2]
    with pytest.raises(InvalidArgumentError, match="shape of its zeros is not known"):
        ListValue(tf.float32, 1).gradient().read(0)


def test_one_list_of_gradients_for_a_named_source():
    list_value = ListValue(tf.float32, 1)
    assert list_value.gradient("a") is list_value.gradient("a")
    assert list_value.gradient("a") is not list_value.gradient("b")
    assert list_value.gradient() is not list_value.gradient()


def test_scatter_and_gather():
    list_value = ListValue(tf.float32, 1, dynamic_size=True)
    list_value.scatter(np.array([3, 0]), np.array([[1, 1], [2, 2]], np.float32))
    assert list_value.size() == 4
    assert list_value.gather(np.array([0, 3, 0])).tolist() == [[2, 2], [1, 1], [2, 2]]
    list_value.scatter(np.array([1, 2]), np.array([[5, 5], [6, 6]], np.float32))
    assert list_value.gather(np.array([2, 1])).tolist() == [[6, 6], [5, 5]]
    cleared = ListValue(tf.float32, 2, clear_after_read=True).unstack(np.ones(2, np.float32))
    with pytest.raises(InvalidArgumentError, match="index 0 twice"):
        cleared.gather(np.array([0, 0]))
    for indices, value, message in (
        (np.array(0), np.ones(1), "indices to be a vector"),
        (np.array([0]), np.array(1.0), "at least a vector"),
        (np.array([0]), np.ones(2), "as many"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            list_value.scatter(indices, value)


def test_entries_of_any_type():
    text = ListValue(tf.string, 2)
    text.write(0, np.array(b"a", object)).write(1, np.array(b"b", object))
    assert text.stack().tolist() == [b"a", b"b"]
    lists = ListValue(tf.variant, 2)
    lists.write(1, text)
    assert lists.read(1) is text
    assert lists.as_stacked() is None


def test_growing_keeps_what_is_there():
    list_value = ListValue(tf.float32, 0, dynamic_size=True)
    for index in range(40):
        list_value.write(index, array(index))
    assert list_value.stack()[:, 0].tolist() == list(range(40))
    assert len(list_value.stacked) == 40


def test_closed_and_empty_lists():
    list_value = ListValue(tf.float32, 2)
    list_value.close()
    with pytest.raises(InvalidArgumentError, match="already been closed"):
        list_value.size()
    with pytest.raises(InvalidArgumentError, match="Size should be >= 0"):
        ListValue(tf.float32, -1)
    with pytest.raises(UnimplementedError, match="size zero"):
        ListValue(tf.float32, 0).stack()
    with pytest.raises(UnimplementedError, match="size zero"):
        ListValue(tf.float32, 0).concat()
    assert ListValue(tf.float32, 0).stack(shape=tf.TensorShape([3, 5])).shape == (0, 3, 5)
    assert ListValue(tf.float32, 0).concat(shape=tf.TensorShape([3, 5]))[0].shape == (0, 5)
    assert ListValue(tf.float32, 0).unstack(np.zeros((0, 2), np.float32)).size() == 0


def test_an_entry_must_have_the_declared_shape():
    list_value = ListValue(tf.float32, 2, tf.TensorShape([None, 2]))
    list_value.write(0, array(1, (3, 2)))
    with pytest.raises(InvalidArgumentError, match=r"index 1 because the value shape is \[2\]"):
        list_value.write(1, array(1))
    with pytest.raises(InvalidArgumentError, match="incompatible with"):
        ListValue(tf.float32, 2, tf.TensorShape([3])).unstack(np.zeros((2, 2), np.float32))


def test_gradients_of_a_list_of_lists():
    inner = [ListValue(tf.float32, 1).write(0, array(number)) for number in range(2)]
    outer = ListValue(tf.variant, 2).write(0, inner[0]).write(1, inner[1])
    gradients = outer.gradient()
    gradients.write(0, inner[0].gradient().write(0, array(2)))
    gradients.write(0, inner[0].gradient().write(0, array(3)))
    assert gradients.read(0).read(0).tolist() == [5, 5]
    assert gradients.read(1).read(0).tolist() == [0, 0]
