"""Where the native side of a pool and of a step's table finds things: byte offsets, flags, values.

`device/cpu/pool.py` lays both out in plain memory; the code of `table_interpreter.py` reads them.
"""

from __future__ import annotations

# The pool in memory: byte offsets. What is written at different times lies two cache lines apart,
# for processors fetch lines in pairs. The barrier is one line: who comes last has it already when
# opening the gate, which saves a third of the time.
SPACING = 128
TAKEN = 0  # i64: whether a step (or the end) has the pool
WORKERS = 8  # i64: how many threads wait at their mailboxes
JOB = SPACING  # ptr: the program being run
JOB_THREADS = JOB + 8  # i64: on how many threads
ARRIVED = 2 * SPACING  # i64: how many have come to the barrier
GATE = ARRIVED + 8  # i32: changes when the barrier opens
SPINS = 3 * SPACING  # i64: polls of a word before yielding the core
YIELD = SPINS + 8  # address of sched_yield
SLEEP = SPINS + 16  # address of syscall (for a futex) or of usleep
CLOCK = SPINS + 24  # address of clock_gettime
CLOCK_NUMBER = SPINS + 32  # i64: the clock that it is asked for
CREATE = SPINS + 40  # address of pthread_create
JOIN = SPINS + 48  # address of pthread_join
BUDGET = SPINS + 56  # i64: work between reads of the clock
SLICE = SPINS + 64  # i64: nanoseconds after which a program pauses
EARLIEST = SPINS + 72  # i64: nanoseconds after which it pauses if a long kernel is next
MAILBOXES = 4 * SPACING  # one per worker, SPACING bytes each; that of thread 1 comes first

# A mailbox: an i32 word that holds an order, and what its worker must know.
MAIL_POOL = 8
MAIL_THREAD = 16
MAIL_HANDLE = 24  # the system's name of the thread
IDLE, WORK, EXIT = 0, 4, 8

# Bits of a word that is waited for; those above them are free for what it says.
LEAVE = 1  # of the gate: there was a fault, nobody goes on
ASLEEP = 2

# An event: an i32 word.
UNSET, SET = 0, 4

# A program: a header, then entries.
PROGRAM_POOL = 0
PROGRAM_THREADS = 8  # i64: as many as it would like
PROGRAM_FAULT = 16  # address of the step's fault word
PROGRAM_COUNT = 24  # i64: of its entries
PROGRAM_TIMES = 32  # address of i64 [entry, thread, start or end], or 0
PROGRAM_START = 40  # i64: the entry to begin with: where it paused, else the first one
PROGRAM_BEGAN = 48  # i64: when the clock was first looked at in this run, or 0
PROGRAM_ENTRIES = 64

# An entry: function, arguments, flags, thread. A jump has the address of the byte that decides in
# place of the arguments (0: always) and the entry to go to in place of the thread; what signals
# an event has the event's address in place of the arguments.
ENTRY_BYTES = 32
BARRIER = 1
JUMP = 2
IF_TRUE = 4  # of a jump: taken where the byte is not zero, else where it is
NO_PAUSE = 8  # the program must not pause before this entry
SIGNAL = 16
WORK_SHIFT = 32  # the bits above are the entry's work, in nanoseconds at most: roughly
MAX_WORK = 2**31 - 1

#: What the fault word holds when a program is to pause or has paused: the sign alone, so that one
#: mask tells it from faults, which are positive. The program goes on at PROGRAM_START.
PAUSED = -(2**63)
FAULTS = 2**63 - 1
