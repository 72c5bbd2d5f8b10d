"""TensorFlow 2's immutable lists, as its graphs have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg import errors
from thalweg.control import tensor_lists as lists

ANY, ROW = -1, [2]
F = {"element_dtype": tf.float32}


@pytest.fixture
def session() -> Any:
    with tf.Graph().as_default(), tf.Session() as made:
        yield made


def reserve(count: int, shape: Any = ANY) -> Any:
    return lists.TensorListReserve(**F)(shape, count)


def stack(entries: Any, shape: Any = ANY, **options: Any) -> Any:
    return lists.TensorListStack(**F, **options)(entries, shape)


def rows(value: Any) -> Any:
    return lists.TensorListFromTensor(**F)(np.array(value, np.float32), ANY)


def test_setting_an_entry_leaves_the_old_list_as_it_was(session: Any):
    old = rows([[1, 2], [3, 4]])
    new = lists.TensorListSetItem(**F)(old, 0, [9.0, 9.0])
    before, after = session.run([stack(old), stack(new)])
    np.testing.assert_array_equal(before, [[1, 2], [3, 4]])
    np.testing.assert_array_equal(after, [[9, 9], [3, 4]])


def test_unset_entries_are_zeros(session: Any):
    made = lists.TensorListSetItem(**F)(reserve(3), 1, [5.0, 6.0])
    np.testing.assert_array_equal(session.run(stack(made)), [[0, 0], [5, 6], [0, 0]])
    got = lists.TensorListGetItem(**F)(made, 2, ROW)
    assert got.shape.as_list() == [2]
    np.testing.assert_array_equal(session.run(got), [0, 0])


def test_push_and_pop(session: Any):
    empty = lists.EmptyTensorList(**F)(ANY, 2)
    one = lists.TensorListPushBack(**F)(empty, [1.0])
    rest, last = lists.TensorListPopBack(**F)(one, ANY)
    length = lists.TensorListLength()
    assert session.run([length(one), length(rest), last])[:2] == [1, 0]
    np.testing.assert_array_equal(session.run(last), [1])


def test_growing_and_shape(session: Any):
    made = lists.TensorListSetItem(**F, resize_if_index_out_of_bounds=True)(
        reserve(1, [-1]), 2, [1.0, 2.0]
    )
    assert session.run(lists.TensorListLength()(made)) == 3
    shape = lists.TensorListElementShape(shape_type=tf.int32)(made)
    np.testing.assert_array_equal(session.run(shape), [-1])
    cut = lists.TensorListResize()(made, 1)
    np.testing.assert_array_equal(session.run(stack(cut, ROW)), [[0, 0]])


def test_gather_and_scatter(session: Any):
    made = lists.TensorListScatterV2(**F)([[1.0], [2.0]], [2, 0], ANY, -1)
    np.testing.assert_array_equal(session.run(stack(made)), [[2], [0], [1]])
    more = lists.TensorListScatterIntoExistingList(**F)(made, [[7.0]], [3])
    result = lists.TensorListGather(**F)(more, [3, 0], ANY)
    np.testing.assert_array_equal(session.run(result), [[7], [2]])


def test_split_and_concat(session: Any):
    made = lists.TensorListSplit(**F)([1.0, 2.0, 3.0], ANY, np.array([1, 2]))
    none = np.zeros(0, np.int64)
    joined, lengths = lists.TensorListConcatV2(**F)(made, ANY, none)
    result, counts = session.run([joined, lengths])
    np.testing.assert_array_equal(result, [1, 2, 3])
    np.testing.assert_array_equal(counts, [1, 2])


def test_a_list_through_a_loop(session: Any):
    def body(at: Any, entries: Any) -> Any:
        value = tf.fill([2], tf.cast(at, tf.float32))
        return at + 1, lists.TensorListSetItem(**F)(entries, at, value)

    _, made = tf.while_loop(lambda at, _: at < 3, body, [tf.constant(0), reserve(3)])
    np.testing.assert_array_equal(session.run(stack(made)), [[0, 0], [1, 1], [2, 2]])


FAULTS = {
    "read past the end": (
        lambda: lists.TensorListGetItem(**F)(reserve(2), 2, ANY),
        "access element 2 in a list with 2",
    ),
    "write past the end": (
        lambda: stack(lists.TensorListSetItem(**F)(reserve(2), 5, 1.0)),
        "modify element 5",
    ),
    "unset entry of unknown shape": (lambda: stack(reserve(1)), "not fully defined"),
    "another dtype": (
        lambda: lists.TensorListStack(element_dtype=tf.int32)(rows([1.0]), ANY),
        "list elements float32, op int32",
    ),
    "another shape": (
        lambda: stack(lists.TensorListSetItem(**F)(reserve(1, [3]), 0, [1.0])),
        "another shape",
    ),
    "a full list": (
        lambda: stack(lists.TensorListPushBack(**F)(lists.EmptyTensorList(**F)(ANY, 0), 1.0)),
        "full list of 0",
    ),
    "pop of nothing": (
        lambda: lists.TensorListPopBack(**F)(reserve(0), ANY)[1],
        "pop from an empty list",
    ),
    "a huge list": (
        lambda: stack(lists.TensorListSetItem(**F, resize_if_index_out_of_bounds=True)(
            reserve(1), (1 << 31) - 1, 1.0
        )),
        "non negative number",
    ),
    "entries that differ": (
        lambda: stack(lists.TensorListPushBack(**F)(rows([[1.0]]), [1.0, 2.0])),
        "shape",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_refused(name: str, session: Any):
    build, text = FAULTS[name]
    with pytest.raises(errors.InvalidArgumentError, match=text):
        session.run(build())
