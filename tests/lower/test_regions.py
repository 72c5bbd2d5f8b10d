"""Which nodes are compiled together, which run on the host, and in which order."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import planned, regions_of, units
from thalweg.runtime import engine
from thalweg.runtime.compiled import Executable


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default():
        yield


def given(*shape: int, dtype: Any = tf.float32) -> Any:
    return tf.placeholder(dtype, shape)


def on_host(x: Any) -> Any:
    (y,) = tf.py_func(lambda array: array + 1, [x], [x.dtype])
    y.set_shape(x.shape)
    return y


def test_a_step_without_host_ops_is_one_region() -> None:
    x = given(3)
    assert units(tf.exp(x) + tf.reduce_sum(x)) == [sorted(["Const", "Exp", "Sum", "Add"])]


def test_host_ops_part_regions() -> None:
    x = given(3)
    y = on_host(x * 2)
    actual = units(tf.exp(y))
    assert actual == [["Const", "Mul"], "PyFunc", ["Exp"]]


def test_host_ops_that_can_run_first_do() -> None:
    x, y = given(3, 3), given(3, 3)
    actual = units(tf.exp(x) + tf.matrix_inverse(y))
    assert actual == ["MatrixInverse", ["Add", "Exp"]]


def test_what_waits_for_a_node_that_may_block_does_not_hold_up_the_rest() -> None:
    x, y = given(3), given(3)
    actual = units(tf.exp(x) + on_host(y))
    assert actual == ["PyFunc", ["Exp"], ["Add"]]


def test_independent_host_ops_share_a_border() -> None:
    x = given(3)
    ones = [on_host(x * 2), on_host(x * 3)]
    assert units(tf.add_n(ones)) == [["Const", "Const", "Mul", "Mul"], "PyFunc", "PyFunc", ["AddN"]]


def test_strings_and_complex_numbers_stay_on_the_host() -> None:
    x = given(3)
    text = tf.as_string(x + 1)
    wave = tf.complex(x, x)
    found = units(text, tf.abs(wave * wave))
    assert [unit for unit in found if isinstance(unit, list)] == [["Add", "Const"]]


def test_a_constant_goes_into_every_region_that_reads_it() -> None:
    table = tf.constant(np.arange(3, dtype=np.float32))
    first = given(3) * table
    second = on_host(first) + table
    held = [[node.type for node in region.nodes] for region in regions_of(second)]
    assert all("Const" in nodes for nodes in held) and len(held) == 2


def test_a_constant_that_is_fetched_stands_alone() -> None:
    table = tf.constant([1.0])
    assert units(table, table * given(1)) == ["Const", ["Const", "Mul"]]


def test_a_fed_tensor_cuts_off_what_is_behind_it() -> None:
    x = given(3)
    y = tf.exp(x)
    with tf.Session() as session:
        z = y * 2
        np.testing.assert_array_equal(session.run(z, {y: np.ones(3, np.float32)}), [2, 2, 2])


def test_a_fed_output_is_not_computed_with_the_others_of_its_node() -> None:
    x = tf.placeholder(tf.float32, [None])
    first, second = tf.split(tf.exp(x), 2)
    y, mean, _ = tf.nn.fused_batch_norm(tf.reshape(x, [-1, 1, 1, 1]), [1.0], [0.0])
    with tf.Session() as session:
        fed = {x: np.zeros(2), first: [1, 2, 3]}
        np.testing.assert_array_equal(session.run(first * second, fed), [1, 2, 3])
        twice, normalized = session.run([mean * 2, y], {x: np.zeros(2), mean: [5]})
        assert twice == [10] and not normalized.any()


def test_control_dependencies_hold_across_the_border() -> None:
    seen: list[float] = []
    variable = tf.Variable(1.0)
    (before,) = tf.py_func(lambda v: (seen.append(float(v)), v)[1], [variable], [tf.float32])
    with tf.control_dependencies([before]):
        updated = variable.assign_add(1.0)
    with tf.control_dependencies([updated]):
        (after,) = tf.py_func(
            lambda v: (seen.append(float(v)), v)[1], [variable.read_value()], [tf.float32]
        )
    with tf.Session() as session:
        session.run(variable.initializer)
        for _ in range(2):
            session.run(after)
    assert seen == [1.0, 2.0, 2.0, 3.0]


def test_reads_and_writes_of_a_variable_keep_their_order() -> None:
    variable = tf.Variable([1.0, 2.0])
    first = variable.read_value() * 10
    with tf.control_dependencies([first]):
        doubled = variable.assign(variable * 2)
    with tf.control_dependencies([doubled]):
        second = variable.read_value() * 10
    assert len(regions_of(first, second)) == 1
    with tf.Session() as session:
        session.run(variable.initializer)
        one, two = session.run([first, second])
        np.testing.assert_array_equal(one, [10, 20])
        np.testing.assert_array_equal(two, [20, 40])


def test_an_update_on_the_host_between_two_regions_is_seen() -> None:
    variable = tf.Variable([1.0, 2.0])
    first = variable.read_value() + 0.5
    with tf.control_dependencies([first]):
        moved = tf.assign(variable, on_host(variable * 3))
    with tf.control_dependencies([moved]):
        second = variable.read_value() + 0.5
    with tf.Session() as session:
        session.run(variable.initializer)
        one, two = session.run([first, second])
        np.testing.assert_array_equal(one, [1.5, 2.5])
        np.testing.assert_array_equal(two, [4.5, 7.5])


def test_without_compilation_there_are_no_regions() -> None:
    y = tf.exp(given(3))
    with mock.patch.object(engine, "COMPILES", False), tf.Session() as session:
        session.run(y, {y.op.inputs[0]: np.zeros(3, np.float32)})
        (step,) = session._plans.values()
        assert not any(isinstance(i.call, Executable) for i in step.instructions)


def test_every_node_is_in_one_unit_and_after_what_it_needs() -> None:
    x = given(4)
    y = tf.exp(on_host(tf.sin(x)) + x) * on_host(x)
    step = planned(y, on_host(y))
    done: set[Any] = set()
    for instruction in step.instructions:
        inside = set(instruction.nodes)
        for node in instruction.nodes:
            needed = {t.op for t in node.inputs if t is not x}
            assert needed <= done | inside
        done |= inside


def test_a_shape_from_the_host_is_worked_out_when_it_is_there() -> None:
    sizes = on_host(given(2, dtype=tf.int32))
    y = tf.reshape(given(6), sizes) * 2
    with tf.Session() as session:
        feeds = {y.graph.get_tensor_by_name("Placeholder:0"): np.array([1, 2], np.int32)}
        feeds[y.graph.get_tensor_by_name("Placeholder_1:0")] = np.arange(6, dtype=np.float32)
        np.testing.assert_array_equal(session.run(y, feeds), 2 * np.arange(6.0).reshape(2, 3))


def test_what_makes_much_out_of_little_is_made_where_it_is_read() -> None:
    x, y = given(), given(100)
    much = tf.fill([100], x) * 2.0  # of as many elements as it takes: stays behind
    actual = units(tf.fill([100], x) + on_host(y))
    assert actual == ["PyFunc", ["Add", "Const", "Fill"]]
    assert ["Const", "Const", "Fill", "Mul"] in units(much + on_host(y))


def test_what_is_fetched_or_read_before_stays_where_it_is() -> None:
    x, y = given(), given(100)
    much = tf.fill([100], x)
    assert ["Const", "Fill"] in units(much, much + on_host(y))
    assert ["Const", "Fill"] in units(much + on_host(y) + on_host(much))


def test_a_variable_is_read_in_the_region_that_uses_it() -> None:
    table = tf.get_variable("table", [1000, 8])
    rows = tf.gather(table, on_host(given(3, dtype=tf.int32)))
    assert units(rows) == ["VariableV2", "PyFunc", sorted(["Const", "Identity", "GatherV2"])]
    twice = tf.gather(table, on_host(tf.cast(rows[:, 0], tf.int32)))
    found = units([rows + 1, twice])
    assert [unit for unit in found if "Identity" in unit and "GatherV2" in unit] == found[2::2]


def test_a_table_whose_rows_are_updated_is_not_copied_for_a_lookup() -> None:
    """The write waits for the rows' numbers anyway, so the read may wait for them, too."""
    table = tf.get_variable("table", [1000, 8], initializer=tf.zeros_initializer())
    rows = on_host(given(3, dtype=tf.int32))
    with tf.control_dependencies([table.read_value()]):
        update = tf.scatter_sub(table, rows, on_host(given(3, 8)))
    found = units(tf.gather(table, rows), update)
    assert sorted(["Const", "Identity", "GatherV2"]) in found


def test_a_variable_is_read_early_for_a_write_that_waits_for_less() -> None:
    table = tf.get_variable("table", [1000, 8])
    with tf.control_dependencies([table.value()]):
        update = tf.assign_sub(table, tf.ones([1000, 8]))
    found = units(tf.gather(table, on_host(given(3, dtype=tf.int32))), update)
    assert ["Const", "GatherV2"] in found


def test_a_variable_is_read_before_a_write_on_the_way() -> None:
    v = tf.get_variable("v", [3], initializer=tf.zeros_initializer())
    read = v.read_value()
    with tf.control_dependencies([read]):
        update = tf.assign_add(v, tf.ones([3]))
    with tf.control_dependencies([update]):
        flag = on_host(tf.constant(1.0))
    late = read * flag
    with tf.Session() as session:
        session.run(v.initializer)
        for step in range(3):
            np.testing.assert_array_equal(session.run(late), np.full(3, 2.0 * step))


def test_what_has_another_size_in_every_step_is_lowered_apart() -> None:
    x, parts = given(64), given(64, dtype=tf.int32)
    first, _ = tf.dynamic_partition(x, parts, 2)
    steady = tf.exp(x) * tf.reduce_sum(x)
    actual = units(steady, tf.gather(steady, tf.cast(first, tf.int32)))
    assert actual == [
        "DynamicPartition",
        sorted(["Const", "Exp", "Sum", "Mul"]),
        sorted(["Const", "Cast", "GatherV2"]),
    ]


def test_sizes_that_feeds_leave_open_part_nothing() -> None:
    x = tf.placeholder(tf.float32, [None])
    (host,) = tf.py_func(lambda array: array, [x], [tf.float32])
    host.set_shape([None])
    weights = given(8, 8)
    total = tf.reduce_sum(host) + tf.reduce_sum(weights * 2)
    assert [unit for unit in units(total) if "Add" in unit] == [sorted(["Const", "Sum", "Add"])]
