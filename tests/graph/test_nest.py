"""Nested structures: flatten, pack, map, compare."""

from collections import OrderedDict, namedtuple
from typing import Any, NamedTuple

import numpy as np
import pytest

import thalweg as tf

nest = tf.contrib.framework.nest
Point = namedtuple("Point", ["x", "y"])


def test_flatten_and_pack_give_back_the_structure() -> None:
    structure = (Point(4, [2, (1,)]), {"b": 5, "a": (6, 7)}, 8)
    flat = nest.flatten(structure)
    assert flat == [4, 2, 1, 6, 7, 5, 8]
    assert nest.pack_sequence_as(structure, flat) == structure


def test_leaves_are_everything_that_is_no_sequence() -> None:
    array = np.ones((2, 2))
    assert nest.flatten("text") == ["text"]
    assert nest.flatten(array)[0] is array
    assert not nest.is_sequence(tf.constant([1]))
    assert nest.is_sequence({})


def test_mappings_keep_their_type_and_order() -> None:
    structure = OrderedDict([("b", 1), ("a", 2)])
    packed = nest.pack_sequence_as(structure, ["first", "second"])
    assert isinstance(packed, OrderedDict)
    assert list(packed.items()) == [("b", "second"), ("a", "first")]


class Batch(NamedTuple):
    """A named tuple with the length and the items of its arrays."""

    x: Any
    y: Any

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Any) -> Any:
        return Batch(self.x[index], self.y[index])


def test_the_parts_of_a_named_tuple_are_its_fields_whatever_its_length_and_items() -> None:
    batch = Batch(np.arange(3), np.ones(3))
    x, y = nest.flatten(batch)
    assert x is batch.x and y is batch.y
    sums = nest.map_structure(lambda one, two: (one + two).sum(), batch, batch)
    assert (sums.x, sums.y) == (6, 6)


def test_map_structure() -> None:
    result = nest.map_structure(lambda a, b: a + b, (1, [2, 3]), (10, [20, 30]))
    assert result == (11, [22, 33])


@pytest.mark.parametrize(
    ("one", "two", "error", "message"),
    [
        ([1, 2], [1], ValueError, "same number of elements"),
        ([[1], 2], [1, [2]], ValueError, "same nested structure"),
        ((1, 2), [1, 2], TypeError, "sequence type"),
        ({"a": 1}, {"b": 1}, ValueError, "keys"),
        (0, [0], ValueError, "same number of elements"),
    ],
)
def test_structures_that_differ(one: object, two: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        nest.assert_same_structure(one, two)


def test_structures_that_are_alike() -> None:
    nest.assert_same_structure(Point(1, [2]), Point("a", ["b"]))
    nest.assert_same_structure([1, (2,)], (1, [2]), check_types=False)


def test_bad_packs() -> None:
    with pytest.raises(ValueError, match="Structure is a scalar"):
        nest.pack_sequence_as(1, [4, 5])
    with pytest.raises(TypeError, match="flat_sequence"):
        nest.pack_sequence_as([1], "x")
    with pytest.raises(ValueError, match="had 2 elements"):
        nest.pack_sequence_as([1, 2], [1])


def test_shallow_structures() -> None:
    assert nest.flatten_up_to([0, 0], [[1, 2], 3]) == [[1, 2], 3]
    assert nest.map_structure_up_to([0, 0], len, [[1, 2], [3]]) == [2, 1]


def test_flatten_dict_items() -> None:
    assert nest.flatten_dict_items({(4, (5,)): ("a", ("b",))}) == {4: "a", 5: "b"}
    with pytest.raises(ValueError, match="not unique"):
        nest.flatten_dict_items({(4, 4): ("a", "b")})
