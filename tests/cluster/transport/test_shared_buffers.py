"""Variables that peers read in place: not copied, never changed under a reader, used again."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.cluster.transport.conftest import LONG, MakeEndpoint, Recorder
from thalweg.cluster.transport.endpoint import Endpoint
from thalweg.cluster.transport.peer import Peer
from thalweg.cluster.transport.shared_buffers import MIN_SHARED, SharedAllocator
from thalweg.cluster.wire import Kind, Message
from thalweg.ops.core.buffer import HostBuffer
from thalweg.ops.core.context import VariableCell

ELEMENTS = MIN_SHARED // 4


def cell_of(allocator: SharedAllocator, elements: int = ELEMENTS) -> VariableCell:
    """A variable that counts from 0."""

    def allocate(shape: tuple[int, ...], dtype: Any) -> HostBuffer:
        return allocator.allocate(shape, dtype, "/cpu:0")

    cell = VariableCell("v", tf.float32, tf.TensorShape([elements]), allocate=allocate)
    cell.assign(np.arange(elements, dtype=np.float32))
    return cell


def allocator_of(server: Endpoint) -> SharedAllocator:
    assert server.allocator is not None
    return server.allocator


def received(recorder: Any) -> Any:
    return recorder.messages.get(timeout=LONG)[1].values[0]


@pytest.fixture
def pair(endpoint: MakeEndpoint) -> tuple[Endpoint, Peer, Endpoint]:
    """A server that shares buffers, its peer, and the server that this is."""
    server, other = endpoint(shares_memory=True), endpoint(shares_memory=True)
    return server, server.peer(other.address), other


def handed_over(peer: Peer, other: Endpoint, value: Any) -> Any:
    """What the other endpoint has of a value."""
    assert isinstance(other.handler, Recorder)
    peer.send(Message(Kind.TENSOR, 1, {}, [value]))
    return received(other.handler)


def soon(holds: Callable[[], object]) -> bool:
    """Whether something comes to hold: threads that read or write messages may still have one."""
    end = time.monotonic() + LONG
    while not holds():
        if time.monotonic() > end:
            return False
        os.sched_yield()
    return True


def add(amount: float) -> Any:
    def change(array: Any) -> None:
        array += amount

    return change


def test_a_variable_is_read_where_it_is(pair: tuple[Endpoint, Peer, Endpoint]) -> None:
    server, peer, other = pair
    cell = cell_of(allocator_of(server))
    buffer = cell.buffer
    assert buffer is not None and not buffer.is_leased
    there = handed_over(peer, other, cell.read())
    np.testing.assert_array_equal(there, np.arange(ELEMENTS))
    assert not there.flags.writeable
    assert buffer.is_leased
    cell.update(add(1.0))  # to a copy: the reader keeps what it has
    assert cell.buffer is not buffer
    np.testing.assert_array_equal(there, np.arange(ELEMENTS))
    np.testing.assert_array_equal(cell.read(), np.arange(ELEMENTS) + 1)


def test_it_is_written_in_place_once_nobody_reads(pair: tuple[Endpoint, Peer, Endpoint]) -> None:
    server, peer, other = pair
    cell = cell_of(allocator_of(server))
    buffer = cell.buffer
    for step in range(20):
        there = handed_over(peer, other, cell.read())
        view = there[1:3]
        del there
        assert buffer is not None and buffer.is_leased
        assert view.tolist() == [1.0 + step, 2.0 + step]
        del view
        assert soon(lambda: not buffer.is_leased)
        cell.update(add(1.0))
        assert cell.buffer is buffer


def test_memory_serves_again(pair: tuple[Endpoint, Peer, Endpoint]) -> None:
    server, peer, other = pair
    allocator = allocator_of(server)
    cell = cell_of(allocator)
    there = handed_over(peer, other, cell.read())
    former = cell.borrow().address
    cell.update(add(1.0))
    del there
    assert soon(lambda: allocator.unmappable() or allocator._free)
    assert allocator.allocate((ELEMENTS,), np.float32, "").address == former


def test_a_lost_reader_keeps_what_it_has(pair: tuple[Endpoint, Peer, Endpoint]) -> None:
    server, peer, other = pair
    allocator = allocator_of(server)
    cell = cell_of(allocator)
    there = handed_over(peer, other, cell.read())
    other.close()
    assert isinstance(server.handler, Recorder)
    server.handler.losses.get(timeout=LONG)
    cell.update(add(1.0))
    gc.collect()
    more = [allocator.allocate((ELEMENTS,), np.float32, "") for _ in range(3)]
    for each in more:
        each.fill(np.float32(7))
    np.testing.assert_array_equal(there, np.arange(ELEMENTS))


def test_what_is_small_or_no_lease_is_copied(pair: tuple[Endpoint, Peer, Endpoint]) -> None:
    server, peer, other = pair
    allocator = allocator_of(server)
    small, large = cell_of(allocator, 1000), cell_of(allocator)
    assert handed_over(peer, other, small.read()).shape == (1000,)
    buffer = large.borrow()
    assert isinstance(buffer, HostBuffer)
    there = handed_over(peer, other, buffer.array)  # whoever has this may write to it
    buffer.array[:] = 7
    assert there[1] == 1
    strided = handed_over(peer, other, large.read()[::2])
    assert strided[1] == 7 and not small.borrow().is_leased


def test_an_update_between_two_reads_of_a_step_is_seen_by_the_second() -> None:
    """The Send takes the place of a read, also in the order of a step."""
    workers, servers = tf.test.create_local_cluster(1, 1)
    with tf.Graph().as_default():
        with tf.device("/job:ps/task:0"):
            variable = tf.get_variable("v", [ELEMENTS], initializer=tf.zeros_initializer())
            first = tf.identity(variable)
        with tf.device("/job:worker/task:0"):
            before = first[:1] + 0.0
        with tf.device("/job:ps/task:0"), tf.control_dependencies([first, before]):
            update = tf.assign_add(variable, tf.ones([ELEMENTS]))
        with tf.device("/job:ps/task:0"), tf.control_dependencies([update]):
            second = tf.identity(variable)
        with tf.device("/job:worker/task:0"):
            after = second[-1:] + 0.0
        with tf.Session(workers[0].target) as session:
            session.run(tf.global_variables_initializer())
            for step in range(5):
                found = session.run([before, after])
                assert [value.tolist() for value in found] == [[float(step)], [step + 1.0]]
    for each in [*workers, *servers]:
        each.stop()
