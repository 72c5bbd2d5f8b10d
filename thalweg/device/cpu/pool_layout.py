"""The memory layout of a pool and of a step table: byte offsets, flags, values.

`device/cpu/pool.py` writes both; the native code of `table_interpreter.py` reads them.
"""

from __future__ import annotations

from thalweg.codegen.machine import CpuTarget

# The pool: byte offsets. Words that are written at different times are two cache lines apart, since
# processors prefetch lines in pairs. The barrier is within one line: the last thread to arrive
# already owns it when it opens the gate, which saves a third of the time.
SPACING = 128
TAKEN = 0  # i64: whether a step (or `stop`) owns the pool
WORKERS = 8  # i64: the number of workers
JOB = SPACING  # ptr: the program that runs
JOB_THREADS = JOB + 8  # i64: its number of threads
ARRIVED = 2 * SPACING  # i64: the number of threads at the barrier
GATE = ARRIVED + 8  # i32: changes when the barrier opens
SPINS = 3 * SPACING  # i64: polls of a word before yielding the core
YIELD = SPINS + 8  # address of sched_yield
SLEEP = SPINS + 16  # address of syscall (for a futex) or of usleep
CLOCK = SPINS + 24  # address of clock_gettime
CLOCK_NUMBER = SPINS + 32  # i64: the clock to read
BUDGET = SPINS + 40  # i64: work between reads of the clock
SLICE = SPINS + 48  # i64: nanoseconds after which a program pauses
MIN_SLICE = SPINS + 56  # i64: nanoseconds after which it pauses before a long kernel
MAILBOXES = 4 * SPACING  # one per worker, SPACING bytes each; that of thread 1 comes first

# A mailbox: an i32 command word, and the arguments of its worker.
MAIL_POOL = 8
MAIL_THREAD = 16
MAIL_HANDLE = 24  # the pthread_t
IDLE, WORK, EXIT = 0, 4, 8

# Bits of a word that threads wait for; the bits above are its value.
LEAVE = 1  # in the gate: there is a fault, all threads leave the step
ASLEEP = 2  # a thread sleeps on the word

# An event: an i32 word, and the pool whose threads signal it.
EVENT_POOL = 8
UNSET, SET = 0, 4

# A program: a header, then entries.
PROGRAM_POOL = 0
PROGRAM_THREADS = 8  # i64: the number that it asks for
PROGRAM_FAULT = 16  # address of the step's fault word
PROGRAM_COUNT = 24  # i64: the number of entries
PROGRAM_TIMES = 32  # address of i64 [entry, thread, begin and end], or 0
PROGRAM_START = 40  # i64: the entry to begin with: where it paused, else 0
PROGRAM_BEGAN = 48  # i64: the time at the first read of the clock in this run, or 0
PROGRAM_ENTRIES = 64

# An entry: function, arguments, flags, thread. A jump has the address of its condition byte in
# place of the arguments (0: always) and its target entry in place of the thread.
ENTRY_BYTES = 32
BARRIER = 1
JUMP = 2
IF_TRUE = 4  # a jump is taken if the byte is not zero, instead of if it is zero
NO_PAUSE = 8  # the program must not pause before this entry
WORK_SHIFT = 32  # the bits above are the entry's work, roughly in nanoseconds
MAX_WORK = 2**31 - 1

#: The fault word of a program that is about to pause or has paused: the sign bit alone, so that a
#: mask distinguishes it from faults, which are positive. The program resumes at PROGRAM_START.
PAUSED = -(2**63)
FAULTS = 2**63 - 1


def has_futex(target: CpuTarget) -> bool:
    """Whether the target's system has futexes; without, waiting threads sleep briefly and poll."""
    return "linux" in target.triple
