"""Events: a Python thread waits for results of a step while its other kernels run."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from tests.device.cpu.test_pool import Step, threads_1_to_4
from tests.runtime.pausing import impatient
from thalweg.device.cpu import pool_layout as layout
from thalweg.device.cpu.pool import Event, Pool, StepTable


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(4)
    yield made
    made.close()


class Events(Step):
    """A step of reversals and signals."""

    def signal(self, event: Event) -> None:
        """Signal an event."""
        self.entries.append(event.entry)


def is_set(event: Event) -> bool:
    """Whether an event was signalled and no wait has consumed the signal."""
    return ctypes.c_int32.from_address(event.entry.arguments).value == layout.SET


def run(pool: Pool, table: StepTable, check: Callable[[], None] | None = None) -> int:
    return table.resume(table.run(), check)


@threads_1_to_4
def test_a_wait_consumes_a_pending_signal(pool: Pool, threads: int) -> None:
    step, event = Events(), Event(pool)
    step.reverse()
    step.signal(event)
    step.reverse()
    assert run(pool, step.program(pool, threads)) == 0
    step.check()
    assert is_set(event)
    event.wait()
    assert not is_set(event)


@threads_1_to_4
@pytest.mark.parametrize("is_impatient", [False, True])
def test_results_are_read_while_kernels_run(pool: Pool, threads: int, is_impatient: bool) -> None:
    """Each value is read after its signal and, usually, before the step ends: all threads have
    written it by then."""
    step = Events()
    made = [Event(pool) for _ in range(20)]
    notes = []
    for event in made:
        notes.append(step.note())
        step.signal(event)

    def receive() -> list[int]:
        result = []
        for event, note in zip(made, notes, strict=True):
            event.wait()
            result.append(int(note[0]))
        return result

    with ThreadPoolExecutor(1) as host, impatient(pool) if is_impatient else nullcontext():
        done = host.submit(receive)
        assert run(pool, step.program(pool, threads)) == 0
        assert done.result() == [threads] * len(made)


def test_nothing_is_signalled_after_a_fault(pool: Pool) -> None:
    step, before, after = Events(), Event(pool), Event(pool)
    step.signal(before)
    step.fail()
    step.signal(after)
    assert run(pool, step.program(pool, 1)) != 0
    assert is_set(before) and not is_set(after)
    before.reset()
    assert not is_set(before)


def test_a_wait_outlasts_the_time_slice_of_steps(pool: Pool) -> None:
    event = Event(pool)
    with ThreadPoolExecutor(1) as host, impatient(pool):
        waited = host.submit(event.wait)
        step = Events()
        for _ in range(20):
            step.reverse()
        assert run(pool, step.program(pool, 2)) == 0
        assert not waited.done()
        event.signal()
        waited.result()
    assert not is_set(event)


def test_a_sleeper_is_woken(pool: Pool) -> None:
    """The waiting thread sleeps when the signal comes."""
    event, done = Event(pool), threading.Event()
    ends = []

    def wait() -> None:
        event.wait()
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    for _ in range(200):
        ends.append(done.is_set())
    event.signal()
    thread.join()
    assert not any(ends) and done.is_set()
