"""Events: steps that wait for one another and for the host while their kernels run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.device.cpu.test_pool import Step, threads_1_to_4
from tests.runtime.pausing import impatient
from thalweg.device.cpu.pool import Event, Pool, Signal, StepTable, Wait


class Stopped(Exception):
    """Raised to stop a step."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(4)
    yield made
    made.close()


class Events(Step):
    """A step of turns, waits and signals."""

    def wait(self, event: Event) -> None:
        """Wait for an event."""
        self.entries.append(Wait(event.address))

    def signal(self, event: Event) -> None:
        """Signal an event."""
        self.entries.append(Signal(event.address))


def run(pool: Pool, table: StepTable, check: Callable[[], None] | None = None) -> int:
    return pool.resume(table, pool.run(table), check)


@threads_1_to_4
def test_a_wait_takes_the_signal_that_is_there(pool: Pool, threads: int) -> None:
    step, event = Events(), Event(pool)
    step.turn()
    step.wait(event)
    step.turn()
    event.signal()
    assert event.is_set
    assert run(pool, step.program(pool, threads)) == 0
    step.check()
    assert not event.is_set


@threads_1_to_4
def test_kernels_run_while_the_host_makes_what_they_wait_for(pool: Pool, threads: int) -> None:
    step, begun, arrived = Events(), Event(pool), Event(pool)
    first = step.note()
    step.signal(begun)
    step.wait(arrived)
    step.turn()
    step.turn()
    received = np.arange(37) + 100

    def receive() -> None:
        begun.wait(lambda: None)
        assert first[0] == threads  # it ran before this was here
        step.buffers[0] = received
        arrived.signal()

    with ThreadPoolExecutor(1) as host:
        done = host.submit(receive)
        assert run(pool, step.program(pool, threads)) == 0
        done.result()
    np.testing.assert_array_equal(step.buffers[0], received + 2)


@pytest.mark.parametrize("is_impatient", [False, True])
def test_steps_of_two_devices_hand_values_over(pool: Pool, is_impatient: bool) -> None:
    other = Pool(2)
    there, back = Event(pool), Event(other)
    first, second = Events(), Events()
    second.buffers = first.buffers
    for _ in range(20):
        first.turn()
        first.signal(there)
        first.wait(back)
        second.turns += 1
        second.wait(there)
        second.turn()
        second.signal(back)
        first.turns += 1

    def work() -> None:
        with ThreadPoolExecutor(1) as host:
            done = host.submit(run, other, second.program(other, 2))
            assert run(pool, first.program(pool, 3)) == 0
            assert done.result() == 0

    if is_impatient:  # both pause wherever they wait
        with impatient(pool), impatient(other):
            work()
    else:
        work()
    other.close()
    assert first.buffers[0].tolist() == [value + 40 for value in range(37)]
    assert not there.is_set and not back.is_set


@threads_1_to_4
def test_a_step_that_waits_can_be_stopped_and_resumed(pool: Pool, threads: int) -> None:
    step, event = Events(), Event(pool)
    before = step.note()
    step.wait(event)
    after = step.note()
    table, pauses = step.program(pool, threads), list[int]()

    def check() -> None:
        pauses.append(int(before[0]))
        if len(pauses) == 3:
            event.signal()

    with impatient(pool):
        assert run(pool, table, check) == 0
    assert pauses[:3] == [threads] * 3  # it went on at the wait, not at the beginning
    assert (before[0], after[0]) == (threads, threads)

    def stop() -> None:
        raise Stopped

    with impatient(pool), pytest.raises(Stopped):
        run(pool, step.program(pool, threads), stop)
    assert after[0] == threads


def test_a_fault_is_not_waited_upon(pool: Pool) -> None:
    step, event = Events(), Event(pool)
    step.fail()
    step.wait(event)
    after = step.note()
    event.signal()
    assert run(pool, step.program(pool, 1)) != 0
    assert event.is_set and not after[0]
    event.reset()
    assert not event.is_set


def test_the_host_waits_until_it_is_told_to_stop(pool: Pool) -> None:
    event, calls = Event(pool), list[int]()

    def check() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise Stopped

    with impatient(pool), pytest.raises(Stopped):
        event.wait(check)
    event.signal()
    event.wait(check)
    assert len(calls) == 2


def test_a_sleeper_is_woken(pool: Pool) -> None:
    """The waiting thread has long given its core away when the signal comes."""
    event, done = Event(pool), threading.Event()
    ends = []

    def wait() -> None:
        event.wait(lambda: None)
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(200):
        ends.append(done.is_set())
    event.signal()
    thread.join()
    assert not any(ends) and done.is_set()


def test_a_step_that_waits_must_not_hold_the_gil(pool: Pool) -> None:
    step, event = Events(), Event(pool)
    step.wait(event)
    with pytest.raises(ValueError, match="GIL"):
        step.program(pool, 1, True)
