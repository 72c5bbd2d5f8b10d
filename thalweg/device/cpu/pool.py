"""Step programs and the threads that run them.

A `Program` is a table of native kernel calls, as plain data; `Pool.run` walks it on the caller's
thread and on workers parked in native code, all at once, and gives the step's fault code. A step
that finds the workers busy is walked by its caller alone, with the same results. One that takes
long pauses between kernels, some ten times a second: back in the interpreter, its caller hears of
signals and of whoever wants to stop the step, and has it go on.

The workers are threads of the system, not of Python: they hold no state of the interpreter, so
they need no GIL, and neither its end nor an exception elsewhere can catch them half way.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cache import load
from thalweg.codegen.machine import CpuTarget, host
from thalweg.device.cpu import table_interpreter

#: More threads than this are never used.
MOST_THREADS = 64

# A look at a word takes a pause of the processor, 10 to 50 ns.
_SPINS = 100
_CROWDED_SPINS = 20  # more threads than cores: whom we wait for may need this very core

# Work, roughly in nanoseconds, after which a walk looks at the clock. A kernel may take many times
# what it was thought to take, and yet the clock is looked at in time.
_BUDGET = 200_000

# Nanoseconds after which a program pauses, so that who interrupts it is heard within 100 ms. To
# come back takes microseconds, but up to 5 ms where other threads of Python want the GIL as well.
# Before a kernel that is longer than what is left of that time, it pauses at once, unless it has
# only just begun.
_SLICE = 80_000_000
_EARLIEST = 10_000_000

_CALL = 200  # nanoseconds of an entry besides its work: reading it, and the barrier

_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_Words = NDArray[np.int64]

# How native functions are called: those made by PYFUNCTYPE keep the GIL.
_START = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_RUN_WITH_GIL = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

#: Raised by an instruction, these belong to the thread that ran it.
_SYNCHRONOUS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
}


class Entry(NamedTuple):
    """A kernel call: `function(arguments, thread, threads)` on all threads.

    With a `thread`, that one makes the call, alone. `barrier`: what was called before must be
    finished on all threads. A step may pause at a barrier, unless the entry has `no_pause`: it
    continues what the one before has begun. `work` is about how many nanoseconds it takes a thread.
    """

    function: int
    arguments: int
    barrier: bool = True
    thread: int = -1
    no_pause: bool = False
    work: int = 0


class Jump(NamedTuple):
    """Go on at another entry: always, or where the byte at `decides` is (or is not) zero.

    What was called before must be finished: what decides is among it.
    """

    target: int
    decides: int = 0
    if_true: bool = False


class StepTable:
    """A step as a table of kernel calls, on so many threads (0: as many as the pool has).

    `fault` is the address of the step's fault word. A step that `holds_gil` saves time where all is
    done in a few microseconds. One thread at a time may run a table, for its buffers are its own.
    """

    def __init__(
        self,
        pool: Pool,
        entries: Sequence[Entry | Jump],
        fault: int,
        threads: int = 0,
        holds_gil: bool = False,
    ) -> None:
        if not fault:
            raise ValueError("A program needs the address of a fault word.")
        self.threads = min(threads or pool.threads, MOST_THREADS)
        self.entries = tuple(entries)
        self.words = _table(pool, self.entries, fault, self.threads)
        self.fault = ctypes.c_int64.from_address(fault)
        self.address = self.words.ctypes.data
        self.holds_gil = holds_gil


def _table(pool: Pool, entries: Sequence[Entry | Jump], fault: int, threads: int) -> _Words:
    start = table_interpreter.PROGRAM_ENTRIES // 8
    words = _zeros(table_interpreter.PROGRAM_ENTRIES + table_interpreter.ENTRY_BYTES * len(entries))
    words[table_interpreter.PROGRAM_POOL // 8] = pool.address
    words[table_interpreter.PROGRAM_THREADS // 8] = threads
    words[table_interpreter.PROGRAM_FAULT // 8] = fault
    words[table_interpreter.PROGRAM_COUNT // 8] = len(entries)
    words[start:].reshape(-1, 4)[...] = [_row(e) for e in entries] or np.zeros((0, 4))
    return words


def _row(entry: Entry | Jump) -> tuple[int, int, int, int]:
    if isinstance(entry, Entry):
        flags = (table_interpreter.BARRIER if entry.barrier else 0) | (
            table_interpreter.NO_PAUSE if entry.no_pause else 0
        )
        flags |= (
            min(entry.work + _CALL, table_interpreter.MOST_WORK) << table_interpreter.WORK_SHIFT
        )
        return entry.function, entry.arguments, flags, entry.thread
    flags = (
        table_interpreter.BARRIER
        | table_interpreter.JUMP
        | (table_interpreter.IF_TRUE if entry.if_true else 0)
    )
    return 0, entry.decides, flags | _CALL << table_interpreter.WORK_SHIFT, entry.target


def _zeros(size: int) -> _Words:
    """Memory of words that begins at a border of cache lines."""
    spare = np.zeros(size // 8 + table_interpreter.SPACING // 8, np.int64)
    first = -spare.ctypes.data % table_interpreter.SPACING // 8
    return spare[first : first + size // 8]


class Pool:
    """Threads that run steps.

    ```
    pool = default_pool()
    program = Program(pool, [Entry(multiply, arguments.ctypes.data)], fault.ctypes.data)
    code = pool.run(program)
    ```
    """

    def __init__(self, threads: int = 0, target: CpuTarget | None = None) -> None:
        self.threads = min(threads or default_threads(), MOST_THREADS)
        self.target = target or host()
        start, run, stop = load([table_interpreter.emit_pool(self.target)], self.target)[0]
        self._run: Callable[[int], int] = _RUN(run)
        self._run_with_gil: Callable[[int], int] = _RUN_WITH_GIL(run)
        self._start_workers: Callable[[int, int], None] = _START(start)
        self._stop_workers: Callable[[int], None] = _STOP(stop)
        self._system = _system(self.target)
        self._words = _zeros(table_interpreter.MAILBOXES + table_interpreter.SPACING * MOST_THREADS)
        self.address = self._words.ctypes.data
        self.reset()
        os.register_at_fork(after_in_child=self.reset)
        atexit.register(self.close)

    def run(self, program: StepTable) -> int:
        """Run a step to its end, or until it pauses; what its fault word holds then."""
        if program.threads > self._offered:
            self._start(program.threads)
        if program.holds_gil:
            return self._run_with_gil(program.address)
        return self._run(program.address)

    def resume(self, program: StepTable, code: int, check: Callable[[], None] | None = None) -> int:
        """Run a step that gave a code to its end, if it paused; what its fault word holds then.

        `check` is called at each pause and raises to stop the step, as do signals. A step that was
        stopped is not to be run again.
        """
        while code == table_interpreter.PAUSED:
            program.fault.value = 0
            if check is not None:
                check()
            code = self.run(program)
        return code

    def timed(self, program: StepTable, check: Callable[[], None] | None = None) -> _Words:
        """Run a step and give, for each entry and thread, when its call began and ended.

        Times are nanoseconds of `time.monotonic_ns`; zeros are calls that the thread did not make.
        """
        times = np.zeros((len(program.entries), program.threads, 2), np.int64)
        program.words[table_interpreter.PROGRAM_TIMES // 8] = times.ctypes.data
        try:
            self.resume(program, self.run(program), check)
        finally:
            program.words[table_interpreter.PROGRAM_TIMES // 8] = 0
        return times

    def reset(self) -> None:
        """Begin without workers, as in the child of a fork, which has none of its parent's."""
        self._lock = threading.Lock()
        self._closed = False
        self._offered = 1  # a step on so many threads finds all the workers it can have
        self._words[...] = 0
        for offset, value in self._system.items():
            self._words[offset // 8] = value

    def close(self) -> None:
        """Send the workers home, after the step they are in; from then on callers walk alone."""
        with self._lock:
            if self._closed:
                return
            self._closed, self._offered = True, MOST_THREADS
            self._stop_workers(self.address)

    def _start(self, threads: int) -> None:
        with self._lock, _signals_blocked():
            if threads <= self._offered:
                return
            if threads > _cores():
                self._words[table_interpreter.SPINS // 8] = _CROWDED_SPINS
            self._start_workers(self.address, threads - 1)
            self._offered = threads


@cache
def default_pool() -> Pool:
    """The pool of the device that sessions have unless they ask for several."""
    return Pool()


def default_threads() -> int:
    """How many threads a step uses: THALWEG_THREADS, or one for each core we may use."""
    asked = os.environ.get("THALWEG_THREADS")
    if not asked:
        return min(_cores(), MOST_THREADS)
    if not asked.isdecimal() or int(asked) == 0:
        raise ValueError(
            f"THALWEG_THREADS is {asked!r}; it must be a number of threads, 1 or more."
        )
    return min(int(asked), MOST_THREADS)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _quota())
    return os.cpu_count() or 1


def _quota() -> int:
    """How many cores' time a container may use."""
    try:
        quota, period = map(int, _QUOTA.read_text().split())
    except (OSError, ValueError):  # no container, or no limit: "max"
        return MOST_THREADS
    return max(quota // period, 1)


@cache
def _process() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _system(target: CpuTarget) -> dict[int, int]:
    """What the native code must know of the system and of our patience, by its place in the
    pool."""
    return {
        table_interpreter.SPINS: _SPINS,
        table_interpreter.YIELD: _symbol("sched_yield"),
        table_interpreter.SLEEP: _symbol(
            "syscall" if table_interpreter.has_futex(target) else "usleep"
        ),
        table_interpreter.CLOCK: _symbol("clock_gettime"),
        table_interpreter.CLOCK_NUMBER: int(time.CLOCK_MONOTONIC),
        table_interpreter.CREATE: _symbol("pthread_create"),
        table_interpreter.JOIN: _symbol("pthread_join"),
        table_interpreter.BUDGET: _BUDGET,
        table_interpreter.SLICE: _SLICE,
        table_interpreter.EARLIEST: _EARLIEST,
    }


def _symbol(name: str) -> int:
    return ctypes.cast(_process()[name], ctypes.c_void_p).value or 0


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Threads made here leave the process's signals to those that Python knows."""
    signals = signal.valid_signals() - _SYNCHRONOUS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
