"""Step tables on the pool: order, barriers, single threads, faults, busy pools, forks, shutdown."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.pausing import impatient
from thalweg.codegen.llvm.compile import assembly, object_code, place
from thalweg.codegen.machine import host, named
from thalweg.device.cpu import pool as pools
from thalweg.device.cpu import pool_layout as layout
from thalweg.device.cpu.pool import MAX_THREADS, Entry, Pool, StepTable, default_threads
from thalweg.device.cpu.table_interpreter import emit_pool

SIZE = 37

# reverse: to[i] = from[size - 1 - i] + 1 over the thread's share, so that an entry reads what other
# threads wrote in the one before. fail: the last thread of its call sets the fault word. note:
# counts the call, and keeps its thread numbers.
KERNELS = """
define void @reverse(ptr %words, i64 %thread, i64 %threads) {
entry:
  %from.at = getelementptr i64, ptr %words, i64 1
  %from = load ptr, ptr %from.at
  %to.at = getelementptr i64, ptr %words, i64 2
  %to = load ptr, ptr %to.at
  %size.at = getelementptr i64, ptr %words, i64 3
  %size = load i64, ptr %size.at
  %begin.n = mul i64 %size, %thread
  %begin = udiv i64 %begin.n, %threads
  %following = add i64 %thread, 1
  %end.n = mul i64 %size, %following
  %end = udiv i64 %end.n, %threads
  br label %head
head:
  %i = phi i64 [%begin, %entry], [%next, %body]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
  %next = add i64 %i, 1
  %mirror = sub i64 %size, %next
  %source = getelementptr i64, ptr %from, i64 %mirror
  %value = load i64, ptr %source
  %sum = add i64 %value, 1
  %sink = getelementptr i64, ptr %to, i64 %i
  store i64 %sum, ptr %sink
  br label %head
done:
  ret void
}
define void @fail(ptr %words, i64 %thread, i64 %threads) {
  %next = add i64 %thread, 1
  %last = icmp eq i64 %next, %threads
  br i1 %last, label %set, label %done
set:
  %fault = load ptr, ptr %words
  store atomic i64 7, ptr %fault monotonic, align 8
  br label %done
done:
  ret void
}
define void @note(ptr %words, i64 %thread, i64 %threads) {
  %notes.at = getelementptr i64, ptr %words, i64 1
  %notes = load ptr, ptr %notes.at
  %old = atomicrmw add ptr %notes, i64 1 monotonic
  %thread.at = getelementptr i64, ptr %notes, i64 1
  store atomic i64 %thread, ptr %thread.at monotonic, align 8
  %threads.at = getelementptr i64, ptr %notes, i64 2
  store atomic i64 %threads, ptr %threads.at monotonic, align 8
  ret void
}
"""
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@cache
def kernels() -> dict[str, int]:
    names = ("reverse", "fail", "note")
    return dict(zip(names, place(object_code(KERNELS, host()), names, host()), strict=True))


class Step:
    """A program under construction, with the memory that it works on."""

    def __init__(self) -> None:
        self.fault = np.zeros(1, np.int64)
        self.buffers = np.zeros((2, SIZE), np.int64)
        self.buffers[0] = np.arange(SIZE)
        self.reversals = 0
        self.entries: list[Entry] = []
        self.owned: list[Any] = []

    def call(
        self,
        function: int,
        *words: int,
        barrier: bool = True,
        thread: int = -1,
        no_pause: bool = False,
    ) -> None:
        arguments = np.array([self.fault.ctypes.data, *words], np.int64)
        self.owned.append(arguments)
        self.entries.append(Entry(function, arguments.ctypes.data, barrier, thread, no_pause))

    def reverse(self, thread: int = -1, no_pause: bool = False) -> None:
        source, sink = self.buffers[self.reversals % 2], self.buffers[1 - self.reversals % 2]
        self.reversals += 1
        words = source.ctypes.data, sink.ctypes.data, SIZE
        self.call(kernels()["reverse"], *words, thread=thread, no_pause=no_pause)

    def note(self, barrier: bool = True, thread: int = -1) -> np.ndarray:
        notes = np.zeros(3, np.int64)
        self.owned.append(notes)
        self.call(kernels()["note"], notes.ctypes.data, barrier=barrier, thread=thread)
        return notes

    def fail(self) -> None:
        self.call(kernels()["fail"])

    def python(self, function: Callable[..., object]) -> None:
        callback = CALLBACK(function)
        self.owned.append(callback)
        self.call(ctypes.cast(callback, ctypes.c_void_p).value or 0, thread=0)

    def program(self, pool: Pool, threads: int, holds_gil: bool = False) -> StepTable:
        return StepTable(pool, self.entries, self.fault.ctypes.data, threads, holds_gil)

    def check(self, runs: int = 1) -> None:
        """After an even number of reversals, the first buffer is as it was plus their number."""
        assert self.reversals % 2 == 0
        np.testing.assert_array_equal(self.buffers[0], np.arange(SIZE) + runs * self.reversals)


def reversing(count: int) -> Step:
    step = Step()
    for _ in range(count):
        step.reverse()
    return step


def word(pool: Pool, offset: int) -> int:
    return ctypes.c_int32.from_address(pool.address + offset).value


def until_asleep(pool: Pool, offset: int) -> None:
    while not word(pool, offset) & layout.ASLEEP:
        os.sched_yield()


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(4)
    yield made
    made.close()


threads_1_to_4 = pytest.mark.parametrize("threads", [1, 2, 3, 4])


@threads_1_to_4
@pytest.mark.parametrize("holds_gil", [False, True])
def test_barriers_order_entries(pool: Pool, threads: int, holds_gil: bool) -> None:
    step = reversing(50)
    program = step.program(pool, threads, holds_gil)
    for _ in range(20):
        assert program.run() == 0
    step.check(runs=20)


@threads_1_to_4
def test_an_empty_program_does_nothing(pool: Pool, threads: int) -> None:
    assert Step().program(pool, threads).run() == 0


@threads_1_to_4
def test_all_threads_take_part(pool: Pool, threads: int) -> None:
    step = Step()
    notes = step.note()
    step.program(pool, threads).run()
    assert notes[0] == notes[2] == threads


def test_no_more_threads_than_the_most(pool: Pool) -> None:
    assert Step().program(pool, 1000).threads == MAX_THREADS


@threads_1_to_4
def test_an_assigned_thread_calls_alone(pool: Pool, threads: int) -> None:
    step = Step()
    notes = [step.note(barrier=False, thread=thread) for thread in range(7)]
    step.reverse(thread=5)
    step.reverse(thread=2)
    step.program(pool, threads).run()
    assert [list(note) for note in notes] == [[1, 0, 1]] * 7
    step.check()


@threads_1_to_4
def test_a_fault_ends_the_step_at_the_next_barrier(pool: Pool, threads: int) -> None:
    step = Step()
    before = step.note()
    step.fail()
    beside = step.note(barrier=False)
    after = step.note()
    program = step.program(pool, threads)
    for run in range(1, 50):
        step.fault[0] = 0
        assert program.run() == 7
        assert (before[0], beside[0], after[0]) == (run * threads, run * threads, 0)


@threads_1_to_4
def test_a_fault_in_the_last_entry_is_told(pool: Pool, threads: int) -> None:
    step = Step()
    step.fail()
    program = step.program(pool, threads)
    assert program.run() == 7
    after = reversing(2)
    assert after.program(pool, threads).run() == 0
    after.check()


def test_a_step_within_a_step_runs_alone(pool: Pool) -> None:
    inner, outer = reversing(4), reversing(4)
    notes = inner.note()
    program = inner.program(pool, 3)
    outer.python(lambda *_: program.run())
    outer.reverse()
    outer.reverse()
    assert outer.program(pool, 3).run() == 0
    inner.check()
    outer.check()
    assert list(notes) == [1, 0, 1]


def test_a_busy_pool_does_not_hold_up_other_steps(pool: Pool) -> None:
    entered, leave = threading.Event(), threading.Event()
    slow, quick = reversing(2), reversing(2)
    slow.python(lambda *_: (entered.set(), leave.wait()))
    thread = threading.Thread(target=slow.program(pool, 2).run)
    thread.start()
    entered.wait()
    notes = quick.note()
    assert quick.program(pool, 2).run() == 0
    leave.set()
    thread.join()
    assert list(notes) == [1, 0, 1]
    quick.check()
    slow.check()


def test_sleeping_workers_wake(pool: Pool) -> None:
    step = reversing(4)
    program = step.program(pool, 3)
    program.run()
    for run in range(2, 12):
        until_asleep(pool, layout.MAILBOXES)
        until_asleep(pool, layout.MAILBOXES + layout.SPACING)
        program.run()
        step.check(runs=run)


def test_those_asleep_at_a_barrier_wake(pool: Pool) -> None:
    step = reversing(2)
    step.python(lambda *_: until_asleep(pool, layout.GATE))
    step.reverse()
    step.reverse()
    program = step.program(pool, 3)
    for run in range(1, 11):
        assert program.run() == 0
        step.check(runs=run)


def test_barriers_outlast_their_number(pool: Pool) -> None:
    """The gate's number wraps around after 2**30 barriers."""
    step = reversing(10)
    program = step.program(pool, 2)
    program.run()
    ctypes.c_int32.from_address(pool.address + layout.GATE).value = -16
    program.run()
    step.check(runs=2)
    assert word(pool, layout.GATE) > 0


@threads_1_to_4
def test_times_of_entries(pool: Pool, threads: int) -> None:
    step = reversing(6)
    alone = step.note(thread=1)
    before = time.monotonic_ns()
    times = step.program(pool, threads).measure()
    after = time.monotonic_ns()
    step.check()
    assert alone[0] == 1
    assert times.shape == (7, threads, 2)
    shared, owned = times[:6], times[6]
    assert (before <= shared).all()
    assert (shared <= after).all()
    assert (shared[..., 0] <= shared[..., 1]).all()
    assert (shared[:-1, :, 1].max(1) <= shared[1:, :, 0].min(1)).all()  # the barrier is between
    ran = owned.any(1)
    assert list(ran) == [thread == 1 % threads for thread in range(threads)]


def test_times_of_what_a_fault_left_out(pool: Pool) -> None:
    step = Step()
    step.fail()
    step.note()
    times = step.program(pool, 2).measure()
    assert times[0].all()
    assert not times[1].any()


class Stopped(Exception):
    pass


def run_paused(
    pool: Pool, program: StepTable, check: Callable[[], None] | None = None
) -> list[int]:
    """Run a program to its end, which must go well; the entries before which it paused."""
    places: list[int] = []

    def note() -> None:
        places.append(int(program.words[layout.PROGRAM_START // 8]))
        if check is not None:
            check()

    with impatient(pool):
        assert program.resume(program.run(), note) == 0
    return places


@threads_1_to_4
def test_a_program_goes_on_where_it_paused(pool: Pool, threads: int) -> None:
    step = reversing(50)
    program = step.program(pool, threads)
    for run in range(1, 5):
        places = run_paused(pool, program)
        assert places == [*range(1, 50)]
        step.check(runs=run)
    assert program.run() == 0
    step.check(runs=5)


@threads_1_to_4
def test_a_program_does_not_pause_before_no_pause_entries(pool: Pool, threads: int) -> None:
    step = Step()
    for number in range(30):
        step.reverse(no_pause=number % 3 > 0)
    assert run_paused(pool, step.program(pool, threads)) == [*range(3, 30, 3)]
    step.check()


@threads_1_to_4
def test_threads_that_are_apart_pause_where_they_meet(pool: Pool, threads: int) -> None:
    step = Step()
    notes = [step.note(barrier=number % 5 == 0) for number in range(20)]
    places = run_paused(pool, step.program(pool, threads))
    assert places == ([*range(1, 20)] if threads == 1 else [5, 10, 15])
    assert [int(note[0]) for note in notes] == [threads] * 20


@threads_1_to_4
def test_a_program_that_is_stopped_leaves_the_pool_in_order(pool: Pool, threads: int) -> None:
    for pause in range(1, 10):
        step = reversing(20)
        left = [pause]

        def check(left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise Stopped

        with pytest.raises(Stopped):
            run_paused(pool, step.program(pool, threads), check)
        assert step.buffers[pause % 2, 0] in (pause, pause + SIZE - 1)
        after = reversing(4)
        assert after.program(pool, threads).run() == 0
        after.check()


@threads_1_to_4
def test_a_fault_in_a_program_that_pauses_is_told(pool: Pool, threads: int) -> None:
    step = reversing(4)
    step.fail()
    after = step.note()
    program = step.program(pool, threads)
    with impatient(pool):
        assert program.resume(program.run()) == 7
    assert after[0] == 0
    step.fault[0] = 0
    with impatient(pool):
        assert program.resume(program.run()) == 7  # it began at the first entry
    step.check(runs=2)


def test_a_pause_after_the_last_barrier_is_the_end(pool: Pool) -> None:
    step = Step()
    notes = [step.note(barrier=False) for _ in range(10)]
    program = step.program(pool, 2)
    with impatient(pool):
        for run in range(1, 5):
            assert program.run() == 0
            assert all(note[0] == 2 * run for note in notes)


def test_others_run_steps_while_one_pauses(pool: Pool) -> None:
    """It may go on with fewer threads than it began with."""
    step, other = reversing(20), reversing(4)
    entered, leave = threading.Event(), threading.Event()
    busy = reversing(2)
    busy.python(lambda *_: (entered.set(), leave.wait()))
    occupied = busy.program(pool, 2)
    thread = threading.Thread(target=lambda: occupied.resume(occupied.run()))
    program = other.program(pool, 2)

    def look() -> None:
        assert program.resume(program.run()) == 0
        if not entered.is_set():
            thread.start()
            entered.wait()

    run_paused(pool, step.program(pool, 3), look)
    leave.set()
    thread.join()
    step.check()


def test_times_of_a_program_that_pauses(pool: Pool) -> None:
    step = reversing(10)
    with impatient(pool):
        times = step.program(pool, 2).measure()
    step.check()
    assert times.all()


def test_steps_of_many_threads_at_once(pool: Pool) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(40):
                step = reversing(2 * int(random.integers(0, 8)))
                program = step.program(pool, int(random.integers(1, 5)), bool(random.integers(2)))
                runs = int(random.integers(1, 30))
                assert not any(program.run() for _ in range(runs))
                step.check(runs)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=[seed]) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_many_short_steps(pool: Pool) -> None:
    step = reversing(2)
    programs = [step.program(pool, threads) for threads in (2, 3, 2, 1, 4)]
    for _ in range(1000):
        for program in programs:
            program.run()
    step.check(runs=5000)


def test_a_closed_pool_runs_on_its_callers(pool: Pool) -> None:
    step = reversing(2)
    program = step.program(pool, 3)
    program.run()
    pool.close()
    pool.close()
    notes = step.note()
    program.run()
    assert step.program(pool, 3).run() == 0
    step.check(runs=3)
    assert list(notes) == [1, 0, 1]


def test_a_system_without_more_threads(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any) -> Callable[..., int]:
        return lambda *_: 11

    monkeypatch.setattr(pools, "c_function", refusing)
    step = reversing(2)
    notes = step.note()
    assert step.program(pool, 3).run() == 0
    step.check()
    assert list(notes) == [1, 0, 1]


def in_child(function: Callable[[], object]) -> None:
    """Run a function in a forked child, which must end well."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def run_in_child(pool: Pool) -> None:
    step = reversing(10)
    notes = step.note()
    program = step.program(pool, 3)
    for _ in range(100):
        assert program.run() == 0
    step.check(runs=100)
    assert list(notes[[0, 2]]) == [300, 3]


forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@forks
def test_a_child_has_workers_of_its_own(pool: Pool) -> None:
    run_in_child(pool)
    in_child(lambda: run_in_child(pool))
    in_child(lambda: in_child(lambda: run_in_child(pool)))
    run_in_child(pool)


@forks
def test_a_fork_in_the_middle_of_a_step(pool: Pool) -> None:
    ended = threading.Event()
    step = reversing(200)
    program = step.program(pool, 3)
    runs = 0

    def work() -> None:
        nonlocal runs
        while not ended.is_set():
            program.run()
            runs += 1

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(10):
        in_child(lambda: run_in_child(pool))
    ended.set()
    thread.join()
    step.check(runs)


ENDING = """
import threading
from tests.device.cpu.test_pool import reversing
from thalweg.device.cpu.pool import default_pool
pool = default_pool()
step = reversing(40)
program = step.program(pool, 3)
program.run()
step.check()
begun = threading.Event()
def work():
    while True:
        program.run()
        begun.set()
threading.Thread(target=work, daemon=True).start()
begun.wait()
print("ends", flush=True)
"""


def test_a_process_ends_in_the_middle_of_steps() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDING],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("THALWEG_THREADS", raising=False)
    monkeypatch.setattr(pools, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)), raising=False)
    assert default_threads() == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(500)), raising=False)
    assert default_threads() == MAX_THREADS
    for quota, threads in {"max": MAX_THREADS, "250000": 2, "50000": 1}.items():
        (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
        assert default_threads() == threads
    monkeypatch.setenv("THALWEG_THREADS", "5")
    assert default_threads() == 5
    assert Pool().threads == 5


@pytest.mark.parametrize("asked", ["0", "-1", "two"])
def test_a_bad_number_of_threads(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setenv("THALWEG_THREADS", asked)
    with pytest.raises(ValueError, match="THALWEG_THREADS"):
        default_threads()


def test_one_pool_for_all() -> None:
    assert pools.default_pool() is pools.default_pool()


def test_aarch64_has_the_pool_too() -> None:
    target = named("aarch64")
    text = assembly(emit_pool(target).text, target)
    assert "thalweg_run:" in text
    assert "isb" in text
    assert "\tbl\t__" not in text  # no helper functions: nothing to link


def test_without_a_futex_sleepers_nap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "has_futex", lambda _: False)
    pool = Pool(3)
    step = reversing(2)
    step.python(lambda *_: until_asleep(pool, layout.GATE))
    step.reverse()
    step.reverse()
    program = step.program(pool, 3)
    for _ in range(5):
        assert program.run() == 0
        until_asleep(pool, layout.MAILBOXES)
    step.check(runs=5)
    pool.close()
