"""Step tables and the threads that run them.

A `StepTable` is a table of native kernel calls, as plain data; `Pool.run` interprets it on the
caller's thread and on workers parked in native code, all at once, and gives the step's fault code.
A step that finds the workers busy is run by its caller alone, with the same results. One that takes
long pauses some ten times a second: back in the interpreter, its
caller handles signals and cancellation, and resumes it.

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
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cache import load
from thalweg.codegen.machine import CpuTarget, host
from thalweg.device.cpu import native_sync
from thalweg.device.cpu import pool_layout as layout
from thalweg.device.cpu.table_interpreter import emit_pool
from thalweg.platform.c_library import c_address

#: More threads than this are never used.
MAX_THREADS = 64

# A poll of a word takes a pause of the processor, 10 to 50 ns.
_SPINS = 100
_CROWDED_SPINS = 20  # more threads than cores: whom we wait for may need this very core

# Work, roughly in nanoseconds, after which a thread reads the clock. A kernel may take many times
# its estimate, and yet the clock is read in time.
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
_SIGNAL = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)

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


def entries_of(
    functions: Sequence[int], arguments: int, barrier: bool, thread: int, no_pause: bool, work: int
) -> list[Entry]:
    """The calls of a kernel's functions, each of which continues what those before began."""
    return [
        Entry(function, arguments, barrier or phase > 0, thread, no_pause or phase > 0, work)
        for phase, function in enumerate(functions)
    ]


class Jump(NamedTuple):
    """Go on at another entry: always, or where the byte at `decides` is (or is not) zero.

    What was called before must be finished: what decides is among it.
    """

    target: int
    decides: int = 0
    if_true: bool = False


class Signal(NamedTuple):
    """Signal an event when what was called before is finished."""

    event: int  # its address


class Event:
    """A word that a step signals and the host waits for; each wait takes one signal.

    It is what lets a step leave a value for others while its kernels run:

    ```
    made = Event(pool)
    table = StepTable(pool, [first, Signal(made.address), second], fault)
    ```

    A step never waits: it would keep its threads from what it waits for. What needs a value that
    is not there yet is in another region.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool, self._word = pool, _zeros(layout.SPACING)
        self.address = self._word.ctypes.data

    @property
    def is_set(self) -> bool:
        """Whether it was signalled and nobody has taken that yet."""
        return bool(self._word[0] & layout.SET)

    def signal(self) -> None:
        """Have the next wait, or the one that is under way, end."""
        self._pool.signal(self.address)

    def wait(self, check: Callable[[], None]) -> None:
        """On the host: return once it is signalled. `check` is called meanwhile, to stop that."""
        while not self._pool.wait(self.address):
            check()

    def reset(self) -> None:
        """Drop a signal that nobody took: the step that it was for was stopped."""
        self._word[0] = layout.UNSET


#: What a step table consists of.
TableEntry = Entry | Jump | Signal


class StepTable:
    """A step as a table of kernel calls, on so many threads (0: as many as the pool has).

    `fault` is the address of the step's fault word. A step that `holds_gil` saves time where all is
    done in a few microseconds. One thread at a time may run a table, for its buffers are its own.
    `places` are the numbers of the entries in a table of more, where this is a part of one.
    """

    def __init__(
        self,
        pool: Pool,
        entries: Sequence[TableEntry],
        fault: int,
        threads: int = 0,
        holds_gil: bool = False,
        places: Sequence[int] | None = None,
    ) -> None:
        if not fault:
            raise ValueError("A step table needs the address of a fault word.")
        self.threads = min(threads or pool.threads, MAX_THREADS)
        self.entries, self.places = tuple(entries), places
        self.words = _table(pool, self.entries, fault, self.threads)
        self.fault = ctypes.c_int64.from_address(fault)
        self.address = self.words.ctypes.data
        self.holds_gil = holds_gil


def _table(pool: Pool, entries: Sequence[TableEntry], fault: int, threads: int) -> _Words:
    start = layout.PROGRAM_ENTRIES // 8
    words = _zeros(layout.PROGRAM_ENTRIES + layout.ENTRY_BYTES * len(entries))
    words[layout.PROGRAM_POOL // 8] = pool.address
    words[layout.PROGRAM_THREADS // 8] = threads
    words[layout.PROGRAM_FAULT // 8] = fault
    words[layout.PROGRAM_COUNT // 8] = len(entries)
    words[start:].reshape(-1, 4)[...] = [_row(e) for e in entries] or np.zeros((0, 4))
    return words


def _row(entry: TableEntry) -> tuple[int, int, int, int]:
    if isinstance(entry, Signal):
        flags = layout.BARRIER | layout.SIGNAL | _CALL << layout.WORK_SHIFT
        return 0, entry.event, flags, -1
    if isinstance(entry, Entry):
        flags = (layout.BARRIER if entry.barrier else 0) | (
            layout.NO_PAUSE if entry.no_pause else 0
        )
        flags |= min(entry.work + _CALL, layout.MAX_WORK) << layout.WORK_SHIFT
        return entry.function, entry.arguments, flags, entry.thread
    flags = layout.BARRIER | layout.JUMP | (layout.IF_TRUE if entry.if_true else 0)
    return 0, entry.decides, flags | _CALL << layout.WORK_SHIFT, entry.target


def _zeros(size: int) -> _Words:
    """Memory of words that begins at a border of cache lines."""
    spare = np.zeros(size // 8 + layout.SPACING // 8, np.int64)
    first = -spare.ctypes.data % layout.SPACING // 8
    return spare[first : first + size // 8]


class Pool:
    """Threads that run steps.

    ```
    pool = default_pool()
    table = StepTable(pool, [Entry(multiply, arguments.ctypes.data)], fault.ctypes.data)
    code = pool.run(table)
    ```
    """

    def __init__(self, threads: int = 0, target: CpuTarget | None = None) -> None:
        self.threads = min(threads or default_threads(), MAX_THREADS)
        self.target = target or host()
        start, run, stop, signal_event, wait_event = load([emit_pool(self.target)], self.target)[0]
        self._run: Callable[[int], int] = _RUN(run)
        self._run_with_gil: Callable[[int], int] = _RUN_WITH_GIL(run)
        self._start_workers: Callable[[int, int], None] = _START(start)
        self._stop_workers: Callable[[int], None] = _STOP(stop)
        self._signal_event: Callable[[int, int], None] = _SIGNAL(signal_event)
        self._wait_event: Callable[[int, int], int] = _WAIT(wait_event)
        self._system = _system(self.target)
        self._words = _zeros(layout.MAILBOXES + layout.SPACING * MAX_THREADS)
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

    def runner(self, program: StepTable) -> Callable[[], int]:
        """What runs a short step again and again, as `run` does."""
        if program.threads > self._offered:
            self._start(program.threads)
        return partial(self._run_with_gil if program.holds_gil else self._run, program.address)

    def resume(self, program: StepTable, code: int, check: Callable[[], None] | None = None) -> int:
        """Run a step that gave a code to its end, if it paused; what its fault word holds then.

        `check` is called at each pause and raises to stop the step, as do signals. A step that was
        stopped is not to be run again.
        """
        while code == layout.PAUSED:
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
        program.words[layout.PROGRAM_TIMES // 8] = times.ctypes.data
        try:
            self.resume(program, self.run(program), check)
        finally:
            program.words[layout.PROGRAM_TIMES // 8] = 0
        return times

    def signal(self, event: int) -> None:
        """Signal the event at an address."""
        self._signal_event(self.address, event)

    def wait(self, event: int) -> bool:
        """Take the signal of the event at an address; False where none came for a while."""
        return self._wait_event(self.address, event) != 0

    def reset(self) -> None:
        """Begin without workers, as in the child of a fork, which has none of its parent's."""
        self._lock = threading.Lock()
        self._closed = False
        self._offered = 1  # a step on so many threads finds all the workers it can have
        self._words[...] = 0
        for offset, value in self._system.items():
            self._words[offset // 8] = value

    def close(self) -> None:
        """Stop the workers after the step they are in; callers then run steps alone."""
        with self._lock:
            if self._closed:
                return
            self._closed, self._offered = True, MAX_THREADS
            self._stop_workers(self.address)

    def _start(self, threads: int) -> None:
        with self._lock, _signals_blocked():
            if threads <= self._offered:
                return
            if threads > _cores():
                self._words[layout.SPINS // 8] = _CROWDED_SPINS
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
        return min(_cores(), MAX_THREADS)
    if not asked.isdecimal() or int(asked) == 0:
        raise ValueError(
            f"THALWEG_THREADS is {asked!r}; it must be a number of threads, 1 or more."
        )
    return min(int(asked), MAX_THREADS)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _quota())
    return os.cpu_count() or 1


def _quota() -> int:
    """How many cores' time a container may use."""
    try:
        quota, period = map(int, _QUOTA.read_text().split())
    except (OSError, ValueError):  # no container, or no limit: "max"
        return MAX_THREADS
    return max(quota // period, 1)


def _system(target: CpuTarget) -> dict[int, int]:
    """What the native code must know of the system and of our patience, by its place in the
    pool."""
    return {
        layout.SPINS: _SPINS,
        layout.YIELD: c_address("sched_yield"),
        layout.SLEEP: c_address("syscall" if native_sync.has_futex(target) else "usleep"),
        layout.CLOCK: c_address("clock_gettime"),
        layout.CLOCK_NUMBER: int(time.CLOCK_MONOTONIC),
        layout.CREATE: c_address("pthread_create"),
        layout.JOIN: c_address("pthread_join"),
        layout.BUDGET: _BUDGET,
        layout.SLICE: _SLICE,
        layout.EARLIEST: _EARLIEST,
    }


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Threads made here leave the process's signals to those that Python knows."""
    signals = signal.valid_signals() - _SYNCHRONOUS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
