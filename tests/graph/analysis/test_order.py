"""The order of a step's nodes: what their effects ask for, and how rewriting keeps it."""

from __future__ import annotations

from typing import Any

import pytest

import thalweg as tf
from thalweg.graph.analysis.order import blockers, step_order
from thalweg.graph.node import Node, as_node, program_order


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default():
        yield


def order_of(*values: Any) -> dict[Node, set[Node]]:
    return step_order(program_order(values[0].graph.nodes))


def comes_after(later: Any, earlier: Any, order: dict[Node, set[Node]]) -> bool:
    pending, wanted = [as_node(later)], as_node(earlier)
    while pending:
        before = order[pending.pop()]
        if wanted in before:
            return True
        pending += before
    return False


def variable() -> Any:
    return tf.Variable([1.0], use_resource=False)


def test_writes_come_after_reads_and_reads_after_writes() -> None:
    v = variable()
    first = v.read_value()
    write = tf.assign(v, [2.0])
    second = v.read_value()
    third = v.read_value()
    order = order_of(first)
    assert comes_after(write, first, order)
    assert comes_after(second, write, order) and comes_after(third, write, order)
    assert not comes_after(third, second, order)


def test_the_initializer_is_a_write_like_any_other() -> None:
    v = variable()
    write = tf.assign_add(v, [2.0])
    assert comes_after(write, v.initializer, order_of(write))


def test_variables_of_strings_are_ordered_too() -> None:
    v = tf.Variable(["a"], use_resource=False)
    read = v.read_value()
    write = tf.assign(v, ["b"])
    assert comes_after(write, read, order_of(read))


def test_lines_are_printed_in_the_order_of_the_program() -> None:
    first, second = tf.Print(1.0, [1.0]), tf.Print(2.0, [2.0])
    read, write = tf.read_file("name"), tf.write_file("name", "text")
    order = order_of(first)
    assert comes_after(second, first, order) and comes_after(write, read, order)
    assert not comes_after(read, first, order)


def test_tables_are_ordered_each_for_itself() -> None:
    one, two = (tf.contrib.lookup.MutableHashTable(tf.int64, tf.int64, -1) for _ in range(2))
    keys = tf.constant([1], tf.int64)
    insert, other = one.insert(keys, keys), two.insert(keys, keys)
    find = one.lookup(keys)
    order = order_of(find)
    assert comes_after(find, insert, order) and not comes_after(find, other, order)


def test_a_handle_names_the_same_state_where_it_is_fed() -> None:
    table = tf.contrib.lookup.MutableHashTable(tf.int64, tf.int64, -1)
    keys = tf.constant([1], tf.int64)
    insert, find = table.insert(keys, keys), table.lookup(keys)
    order = step_order(program_order(keys.graph.nodes), [as_node(insert).inputs[0]])
    assert comes_after(find, insert, order)


def test_an_effect_makes_nothing_wait_for_a_blocking_node() -> None:
    queue = tf.FIFOQueue(3, tf.float32, [])
    early = tf.Print(1.0, [1.0])
    taken = tf.Print(queue.dequeue(), [2.0])
    free = tf.Print(3.0, [3.0])
    put = queue.enqueue(free)
    again = tf.Print(taken + free, [4.0])
    order = order_of(early)
    assert comes_after(taken, early, order) and comes_after(free, early, order)
    assert not comes_after(free, taken, order) and not comes_after(put, taken, order)
    assert comes_after(again, taken, order) and comes_after(again, free, order)
    bits = blockers(program_order(early.graph.nodes), order)
    assert as_node(free) not in bits and bits[as_node(again)] == bits[as_node(taken)]


def test_lines_keep_their_order_in_a_step_that_may_block(capfd: Any) -> None:
    queue = tf.FIFOQueue(3, tf.float32, [])
    put = queue.enqueue(1.0)
    lines = [tf.Print(0.0, [i], f"line {i} ") for i in range(20)]
    with tf.control_dependencies([put]):
        taken = queue.dequeue()
    lines += [tf.Print(taken, [i], f"line {i} ") for i in range(20, 40)]
    with tf.Session() as session:
        session.run(lines[::-1])
    printed = [int(line.split()[1]) for line in capfd.readouterr().err.splitlines()]
    assert printed == list(range(40))
