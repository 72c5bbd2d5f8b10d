"""The native code of a pool: worker threads and the interpreter of step tables.

`emit_pool` generates LLVM text with five entry points: `worker` is the main function of a worker
thread, `run` interprets a table on all threads at once, `stop` ends the workers, `signal` and
`wait` are the two sides of events. They work on two blocks of plain memory, the pool and the table,
which `device/cpu/pool.py` writes with the offsets of `pool_layout.py`. System functions are called
through addresses in the pool, so the code needs no linking and can be cached.

A long step returns to Python from time to time, where signals and cancellation are handled. Each
entry states its work. After a budget of work the caller's thread reads the clock; when the time
slice is over it stores PAUSED in the fault word. At the next barrier all threads leave together, as
at a fault (a single thread leaves at once), and `run` stores the entry to resume at.
"""

from __future__ import annotations

from thalweg.codegen.llvm.builder import I1, I8, I32, I64, POINTER, VOID
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.llvm.register import LlvmRegister as Register
from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu import native_sync
from thalweg.device.cpu import pool_layout as layout
from thalweg.device.cpu.pool_function import PoolFunction


def emit_pool(target: CpuTarget) -> Emitted:
    """The pool's code."""
    functions = (
        native_sync.wait(target),
        native_sync.publish(target),
        native_sync.signal(),
        native_sync.arrive(),
        native_sync.barrier(),
        _check_clock(),
        _interpret("interpret", timed=False),
        _interpret("interpret_timed", timed=True),
        native_sync.now(),
        _step(),
        _worker(),
        _command(),
        _run(),
        _stop(),
    )
    names = ("thalweg_worker", "thalweg_run", "thalweg_stop", "thalweg_signal", "thalweg_wait")
    return Emitted(names, "\n".join(functions))


def _check_clock() -> str:
    """Request a pause if the time slice is over, or will be after the next entry; whether it
    was requested.

    A fault that is already set stays, and a later fault replaces the request.
    """
    f = PoolFunction("check_clock", "ptr ptr i64 i64", I1, "noinline cold")
    pool, program, thread, work = f.arguments
    no, paused = f.number(I1, False), f.number(I64, layout.PAUSED)
    f.return_if(thread.differs(0), no)
    now, began = f.invoke("now", I64, pool), f.field(I64, program, layout.PROGRAM_BEGAN)
    with f.when(began.equals(0)):
        f.set_field(program, layout.PROGRAM_BEGAN, now)
        f.ret(no)
    time_slice, least = f.field(I64, pool, layout.SLICE), f.field(I64, pool, layout.MIN_SLICE)
    elapsed = now - began
    with f.when((elapsed + work >= time_slice) & (elapsed >= least)):
        fault = f.field(POINTER, program, layout.PROGRAM_FAULT)
        f.compare_exchange(fault, f.number(I64, 0), paused, "monotonic")
        f.ret(f.atomic_load(I64, fault, "monotonic").equals(paused))
    return f.finish(no)


def _interpret(name: str, timed: bool) -> str:
    """Interpret a table on one thread; the entry before which it left, or the number of entries."""
    f = PoolFunction(name, "ptr ptr i64 i64", I64)
    pool, program, thread, threads = f.arguments
    fault = f.field(POINTER, program, layout.PROGRAM_FAULT)
    count = f.field(I64, program, layout.PROGRAM_COUNT)
    first = f.field(I64, program, layout.PROGRAM_START)
    budget = f.field(I64, pool, layout.BUDGET)
    entries = f.address(program, layout.PROGRAM_ENTRIES)
    with f.forever(first, budget) as ((index, left), again):
        f.return_if(index >= count, index)
        row = f.address(entries, index, layout.ENTRY_BYTES)
        function, arguments = f.field(POINTER, row, 0), f.field(POINTER, row, 8)
        flags, thread_or_target = f.field(I64, row, 16), f.field(I64, row, 24)
        work = flags.unsigned_shift(layout.WORK_SHIFT)
        budget_left = left - work

        def check_clock() -> Register:
            is_due = f.invoke("check_clock", I1, pool, program, thread, work)
            may_leave = threads.equals(1) & (flags & layout.NO_PAUSE).equals(0)
            f.return_if(is_due & may_leave, index)
            return budget

        rest = f.either(budget_left < 0, check_clock, lambda: budget_left)
        with f.when((flags & layout.BARRIER).differs(0)):
            pauses = (flags & layout.NO_PAUSE).equals(0)
            mask = pauses.choose(f.number(I64, -1), layout.FAULTS)
            f.return_if(f.invoke("barrier", I1, pool, threads, fault, mask), index)
        with f.when((flags & layout.JUMP).differs(0)):
            with f.when(arguments.equals(f.null)):  # no condition
                again(thread_or_target, rest)
            if_true = (flags & layout.IF_TRUE).differs(0)
            with f.when(f.field(I8, arguments, 0).differs(0).equals(if_true)):
                again(thread_or_target, rest)
            again(index + 1, rest)
        is_single = thread_or_target >= 0
        with f.when(is_single), f.when(thread_or_target.binary("urem", threads).differs(thread)):
            again(index + 1, rest)
        call_thread, call_threads = is_single.choose(0, thread), is_single.choose(1, threads)
        if timed:
            _stamp(f, index, 0)
        f.invoke(function, VOID, arguments, call_thread, call_threads)
        if timed:
            _stamp(f, index, 8)
        again(index + 1, rest)
    return f.text


def _stamp(f: PoolFunction, index: Register, offset: int) -> None:
    """Store the time as the begin (at offset 0) or end of an entry."""
    pool, program, thread, _ = f.arguments
    now, times = f.invoke("now", I64, pool), f.field(POINTER, program, layout.PROGRAM_TIMES)
    cell = index * f.field(I64, program, layout.PROGRAM_THREADS) + thread
    f.set_field(f.address(times, cell, 16), offset, now)


def _step() -> str:
    """Interpret a table on one thread, timed if the table asks for times; where it left."""
    f = PoolFunction("step", "ptr ptr i64 i64", I64)
    times = f.field(POINTER, f.arguments[1], layout.PROGRAM_TIMES)
    with f.when(times.differs(f.null)):
        f.ret(f.invoke("interpret_timed", I64, *f.arguments))
    return f.finish(f.invoke("interpret", I64, *f.arguments))


def _worker() -> str:
    """The main function of a worker: wait for a command, interpret the table, arrive, repeat."""
    f = PoolFunction("thalweg_worker", "ptr", POINTER)
    (mailbox,) = f.arguments
    pool = f.field(POINTER, mailbox, layout.MAIL_POOL)
    thread = f.field(I64, mailbox, layout.MAIL_THREAD)
    idle = f.number(I32, layout.IDLE)
    with f.forever() as (_, again):
        command = f.invoke("thalweg_wait", I32, pool, mailbox, idle)
        f.return_if(command.equals(layout.EXIT), f.null)
        # The next order comes after this thread has arrived below, so it cannot be overwritten.
        f.atomic_store(idle, mailbox, "monotonic")
        program = f.field(POINTER, pool, layout.JOB)
        threads = f.field(I64, pool, layout.JOB_THREADS)
        fault = f.field(POINTER, program, layout.PROGRAM_FAULT)
        f.invoke("step", I64, pool, program, thread, threads)
        f.invoke("arrive", I32, pool, threads, fault, f.number(I64, 0))
        again()
    return f.text


def _command() -> str:
    """Publish a command in the first mailboxes."""
    f = PoolFunction("command", "ptr i64 i32")
    pool, count, command = f.arguments
    mailboxes = f.address(pool, layout.MAILBOXES)
    with f.loop(0, count.value) as loop:
        mailbox = f.address(mailboxes, Register(f, loop.index), layout.SPACING)
        f.invoke("publish", VOID, pool, mailbox, command)
    return f.finish()


def _run() -> str:
    """Run a program; its fault code, or layout.PAUSED if it is to be resumed.

    If the pool is taken, the caller runs the program alone. A program whose pause was requested
    after its last barrier has ended.
    """
    f = PoolFunction("thalweg_run", "ptr", I64)
    (program,) = f.arguments
    pool = f.field(POINTER, program, layout.PROGRAM_POOL)
    wanted = f.field(I64, program, layout.PROGRAM_THREADS)
    fault = f.field(POINTER, program, layout.PROGRAM_FAULT)
    entries = f.field(I64, program, layout.PROGRAM_COUNT)
    zero, one, taken = f.number(I64, 0), f.number(I64, 1), f.address(pool, layout.TAKEN)
    f.set_field(program, layout.PROGRAM_BEGAN, zero)

    def run_alone() -> Register:
        return f.invoke("step", I64, pool, program, zero, one)

    def run_together() -> Register:
        every = f.atomic_load(I64, f.address(pool, layout.WORKERS), "acquire") + 1
        threads = wanted.compared("ult", every).choose(wanted, every)
        f.set_field(pool, layout.JOB, program)
        f.set_field(pool, layout.JOB_THREADS, threads)
        f.invoke("command", VOID, pool, threads - 1, f.number(I32, layout.WORK))
        left = f.invoke("step", I64, pool, program, zero, threads)
        f.invoke("barrier", I1, pool, threads, fault, zero)
        f.atomic_store(zero, taken, "release")
        return left

    owns_pool = f.either(
        wanted.compared("ugt", one),
        lambda: f.compare_exchange(taken, zero, one, "acquire"),
        lambda: f.number(I1, False),
    )
    left = f.either(owns_pool, run_together, run_alone)
    code = f.atomic_load(I64, fault, "monotonic")
    is_paused, has_ended = code.equals(layout.PAUSED), left >= entries
    f.set_field(program, layout.PROGRAM_START, (is_paused & ~has_ended).choose(left, 0))
    with f.when(is_paused & has_ended):
        f.atomic_store(zero, fault, "monotonic")
        f.ret(zero)
    return f.finish(code)


def _stop() -> str:
    """Take the pool forever, after its current step, and end the workers."""
    f = PoolFunction("thalweg_stop", "ptr")
    (pool,) = f.arguments
    sched_yield, taken = f.field(POINTER, pool, layout.YIELD), f.address(pool, layout.TAKEN)
    zero, one = f.number(I64, 0), f.number(I64, 1)
    with f.forever() as (_, again):
        with f.when(f.compare_exchange(taken, zero, one, "acquire")):
            workers = f.field(I64, pool, layout.WORKERS)
            f.invoke("command", VOID, pool, workers, f.number(I32, layout.EXIT))
            f.ret()
        f.invoke(sched_yield, I32)
        again()
    return f.text
