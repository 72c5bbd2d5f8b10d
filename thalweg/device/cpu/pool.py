"""Step tables and the threads that run them.

A `StepTable` is a table of native kernel calls, as plain data. `run` interprets it on the
caller's thread and on workers parked in native code, all at once, and returns the step's fault
code. If the workers are busy, the caller runs the step alone, with the same results. A long step
pauses some ten times a second: its caller returns to Python, handles signals and cancellation, and
resumes.

The workers are native threads, not Python threads: they have no interpreter state and need no GIL,
and neither the interpreter's exit nor an exception elsewhere can interrupt them in a kernel.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cache import load_all
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.machine import CpuTarget, host
from thalweg.codegen.sources import own_digest
from thalweg.device.cpu import pool_layout as layout
from thalweg.device.cpu.table_template import Entry, Jump
from thalweg.platform.c_library import c_address, c_function

#: The maximum number of threads of a pool.
MAX_THREADS = 64

# Polls of a word before yielding; each executes the processor's pause instruction, 10 to 50 ns.
_SPINS = 100
_CROWDED_SPINS = 20  # with more threads than cores: the thread waited for may need this core

# Work, roughly in nanoseconds, after which a thread reads the clock. It is far below the time
# slice, so the clock is read in time even if kernels take many times their estimate.
_BUDGET = 200_000

# The time slice in nanoseconds, after which a program pauses: interrupts are handled within 100 ms.
# Resuming takes microseconds, or up to 5 ms if other Python threads contend for the GIL. Before a
# kernel that would exceed the slice, a program pauses already after `_MIN_SLICE`.
_SLICE = 80_000_000
_MIN_SLICE = 10_000_000

_CALL_OVERHEAD = 200  # nanoseconds of an entry besides its work: reading it, and the barrier

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # a container's share of processor time

_Words = NDArray[np.int64]

# The types of native functions; calls through PYFUNCTYPE hold the GIL.
_RUN = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_RUN_WITH_GIL = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_SIGNAL = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)

#: Signals that an instruction raises, delivered to the thread that executed it.
_SYNCHRONOUS = {
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
}


class Event:
    """A word that a step signals and a Python thread waits for; each wait consumes one signal.

    A step hands over a result with it while its other kernels run:

    ```
    computed = Event(pool)
    table = StepTable(pool, [first, computed.entry, second], fault, pool.threads)
    ```

    Steps never wait for events: they would block the threads of the pool. Nodes that need a value
    from elsewhere are in a region of their own.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool, self._words = pool, _zeros(layout.SPACING)
        self._words[layout.EVENT_POOL // 8] = pool.address
        self._address = self._words.ctypes.data
        #: the entry of a table that signals it when the calls before are finished
        self.entry = Entry(pool.signal, self._address, thread=0)

    def signal(self) -> None:
        """End the current wait, or the next one."""
        _SIGNAL(self._pool.signal)(self._address, 0, 1)

    def wait(self) -> None:
        """Wait for a signal and consume it. The thread handles no signals of the system meanwhile:
        who stops a step signals the events that others wait for."""
        self._pool.wait(self._pool.address, self._address, layout.UNSET)
        self.reset()

    def reset(self) -> None:
        """Drop a signal: it is consumed, or its step was stopped."""
        self._words[0] = layout.UNSET


class StepTable:
    """A step as a table of kernel calls, on `threads` threads.

    `fault` is the address of the step's fault word. `holds_gil` saves the release of the GIL for
    steps of a few microseconds. Only one thread at a time may run a table.
    """

    def __init__(
        self,
        pool: Pool,
        entries: Sequence[Entry | Jump],
        fault: int,
        threads: int,
        holds_gil: bool = False,
    ) -> None:
        self._pool, self._run = pool, pool.run_with_gil if holds_gil else pool.run_without_gil
        self.threads = min(threads, MAX_THREADS)
        self.entries = tuple(entries)
        self.words = _table_words(pool, self.entries, fault, self.threads)
        self.fault = ctypes.c_int64.from_address(fault)
        self.address = self.words.ctypes.data

    def run(self) -> int:
        """Run the step until it ends or pauses; the value of its fault word."""
        if self.threads > self._pool.started:
            self._pool.start(self.threads)
        return self._run(self.address)

    def resume(self, code: int, check: Callable[[], None] | None = None) -> int:
        """Run the step, for which `run` returned `code`, to its end; the value of its fault word.

        `check` is called at each pause; it raises to stop the step, as signal handlers may. A
        stopped table must not be run again.
        """
        while code == layout.PAUSED:
            self.fault.value = 0
            if check is not None:
                check()
            code = self.run()
        return code

    def measure(self) -> _Words:
        """Run the step to its end; the begin and end of each entry on each thread."""
        with self.timed() as times:
            self.resume(self.run())
        return times

    @contextmanager
    def timed(self) -> Generator[_Words]:
        """Inside, a run stores the begin and end of each entry on each thread.

        Times are nanoseconds of `time.monotonic_ns`; zeros where a thread did not run the entry.
        """
        times = np.zeros((len(self.entries), self.threads, 2), np.int64)
        self.words[layout.PROGRAM_TIMES // 8] = times.ctypes.data
        try:
            yield times
        finally:
            self.words[layout.PROGRAM_TIMES // 8] = 0


def _table_words(pool: Pool, entries: Sequence[Entry | Jump], fault: int, threads: int) -> _Words:
    start = layout.PROGRAM_ENTRIES // 8
    words = _zeros(layout.PROGRAM_ENTRIES + layout.ENTRY_BYTES * len(entries))
    words[layout.PROGRAM_POOL // 8] = pool.address
    words[layout.PROGRAM_THREADS // 8] = threads
    words[layout.PROGRAM_FAULT // 8] = fault
    words[layout.PROGRAM_COUNT // 8] = len(entries)
    words[start:].reshape(-1, 4)[...] = [_row(e) for e in entries] or np.zeros((0, 4))
    return words


def _row(entry: Entry | Jump) -> tuple[int, int, int, int]:
    flags = entry.barrier * layout.BARRIER | entry.no_pause * layout.NO_PAUSE
    if isinstance(entry, Entry):
        flags |= min(entry.work + _CALL_OVERHEAD, layout.MAX_WORK) << layout.WORK_SHIFT
        return entry.function, entry.arguments, flags, entry.thread
    flags |= layout.JUMP | entry.if_true * layout.IF_TRUE | _CALL_OVERHEAD << layout.WORK_SHIFT
    return 0, entry.decides, flags, entry.target


def _zeros(size: int) -> _Words:
    """Zeroed words, aligned to pairs of cache lines."""
    words = np.zeros(size // 8 + layout.SPACING // 8, np.int64)
    first = -words.ctypes.data % layout.SPACING // 8
    return words[first : first + size // 8]


class Pool:
    """Threads that run steps.

    ```
    pool = default_pool()
    table = StepTable(pool, [Entry(multiply, arguments.ctypes.data)], fault.ctypes.data, threads=2)
    code = table.run()
    ```
    """

    def __init__(self, threads: int = 0, target: CpuTarget | None = None) -> None:
        self.threads = min(threads or default_threads(), MAX_THREADS)
        self.target = target or host()
        #: `signal` is a kernel that signals the event at the address of its arguments
        self._worker, run, stop, self.signal, wait = _native_code(self.target)
        #: run the table at an address until it ends or pauses; the threads must have been started
        self.run_without_gil: Callable[[int], int] = _RUN(run)
        self.run_with_gil: Callable[[int], int] = _RUN_WITH_GIL(run)
        self._stop_workers: Callable[[int], None] = _STOP(stop)
        #: waits while a word has a value: (address of the pool, of the word, value)
        self.wait: Callable[[int, int, int], int] = _WAIT(wait)
        self._configuration = _configuration(self.target)
        self._words = _zeros(layout.MAILBOXES + layout.SPACING * MAX_THREADS)
        self._mailboxes = self._words[layout.MAILBOXES // 8 :].reshape(MAX_THREADS, -1)
        self.address = self._words.ctypes.data
        self.reset()
        os.register_at_fork(after_in_child=self.reset)
        atexit.register(self.close)

    def reset(self) -> None:
        """Forget all workers: the child of a fork has none of them."""
        self._lock = threading.Lock()
        self._closed = False
        self.started = 1  # the number of threads that workers were started for
        self._words[...] = 0
        for offset, value in self._configuration.items():
            self._words[offset // 8] = value

    def close(self) -> None:
        """Stop the workers after their current step; from then on callers run steps alone."""
        with self._lock:
            if self._closed:
                return
            self._closed, self.started = True, MAX_THREADS
            self._stop_workers(self.address)
            join = c_function("pthread_join", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            for mailbox in self._mailboxes[: int(self._words[layout.WORKERS // 8])]:
                join(int(mailbox[layout.MAIL_HANDLE // 8]), None)

    def start(self, threads: int) -> None:
        """Start the workers of a step on so many threads, unless they run."""
        with self._lock, _signals_blocked():
            if threads <= self.started:
                return
            if threads > _cores():
                self._words[layout.SPINS // 8] = _CROWDED_SPINS
            create = c_function("pthread_create", ctypes.c_int, *[ctypes.c_void_p] * 4)
            for thread in range(int(self._words[layout.WORKERS // 8]) + 1, threads):
                mailbox = self._mailboxes[thread - 1]
                address = mailbox.ctypes.data
                mailbox[layout.MAIL_POOL // 8] = self.address
                mailbox[layout.MAIL_THREAD // 8] = thread
                if create(address + layout.MAIL_HANDLE, None, self._worker, address) != 0:
                    break  # the system has no more threads
                self._words[layout.WORKERS // 8] = thread
            self.started = threads


@cache
def default_pool() -> Pool:
    """The pool of the only CPU device of sessions that do not configure several."""
    return Pool()


def default_threads() -> int:
    """The default number of threads of a step: THALWEG_THREADS, or one per available core."""
    setting = os.environ.get("THALWEG_THREADS") or str(_cores())
    if not setting.isdecimal() or int(setting) == 0:
        raise ValueError(
            f"THALWEG_THREADS is {setting!r}; it must be a number of threads, 1 or more."
        )
    return min(int(setting), MAX_THREADS)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), _quota())
    return os.cpu_count() or 1


def _quota() -> int:
    """The number of cores whose time a container may use."""
    try:
        quota, period = map(int, _QUOTA.read_text().split())
    except (OSError, ValueError):  # no container, or no limit: "max"
        return MAX_THREADS
    return max(quota // period, 1)


def _native_code(target: CpuTarget) -> Sequence[int]:
    """The addresses of the pool's native functions, compiled unless they are in the cache."""

    def emit() -> Emitted:
        return importlib.import_module("thalweg.device.cpu.table_interpreter").emit_pool(target)

    generators = own_digest(("codegen/llvm", "device/cpu", "ir/functions"))
    key = f"pool {generators} {layout.has_futex(target)}"
    return load_all([Request(key, emit)], target)[0].functions


def _configuration(target: CpuTarget) -> dict[int, int]:
    """System functions and waiting times for the native code, by their offset in the pool."""
    return {
        layout.SPINS: _SPINS,
        layout.YIELD: c_address("sched_yield"),
        layout.SLEEP: c_address("syscall" if layout.has_futex(target) else "usleep"),
        layout.CLOCK: c_address("clock_gettime"),
        layout.CLOCK_NUMBER: int(time.CLOCK_MONOTONIC),
        layout.BUDGET: _BUDGET,
        layout.SLICE: _SLICE,
        layout.MIN_SLICE: _MIN_SLICE,
    }


@contextmanager
def _signals_blocked() -> Generator[None]:
    """Threads created here do not receive the process's signals: Python threads handle them."""
    signals = signal.valid_signals() - _SYNCHRONOUS
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
