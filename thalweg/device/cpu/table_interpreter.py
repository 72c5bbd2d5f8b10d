"""The native code of a pool: worker threads and the interpreter of step tables.

`emit_pool` generates LLVM text with five entry points: `start` creates worker threads, `run`
interprets a table on all threads at once, `stop` ends the workers, `signal` and `wait` are the
host's side of events. They work on two blocks of plain memory, the pool and the table, which
`device/cpu/pool.py` writes with the offsets of `pool_layout.py`. System functions are called
through addresses in the pool, so the code needs no linking and can be cached.

A long step returns to Python from time to time, where signals and cancellation are handled. Each
entry states its work. After a budget of work the caller's thread reads the clock; when the time
slice is over it stores PAUSED in the fault word. At the next barrier all threads leave together, as
at a fault (a single thread leaves at once), and `run` stores the entry to resume at.
"""

from __future__ import annotations

from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu import native_sync
from thalweg.device.cpu import pool_layout as layout
from thalweg.device.cpu.native_sync import field


def emit_pool(target: CpuTarget) -> Emitted:
    """The pool's code; without futexes, waiting threads sleep briefly and poll again."""
    futex = (
        native_sync.FUTEX_NUMBERS[target.architecture] if native_sync.has_futex(target) else None
    )
    functions = (
        native_sync.wait(target.architecture, futex),
        native_sync.publish(futex),
        native_sync.wait_event(target.architecture, futex),
        native_sync.signal(),
        native_sync.arrive(),
        native_sync.barrier(),
        _check_clock(),
        _interpret("interpret", timed=False),
        _interpret("interpret_timed", timed=True),
        native_sync.now(),
        _step(),
        _worker(),
        _start(),
        _command(),
        _run(),
        _stop(),
    )
    names = ("thalweg_start", "thalweg_run", "thalweg_stop", "thalweg_signal", "thalweg_wait")
    return Emitted(names, "\n".join(functions))


def _check_clock() -> str:
    """Request a pause if the time slice is over, or will be after the next entry; whether it
    was requested.

    A fault that is already set stays, and a later fault replaces the request.
    """
    return f"""
define internal i1 @check_clock(ptr %pool, ptr %program, i64 %thread, i64 %work) noinline cold {{
entry:
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %clock, label %done
clock:
  %now = call i64 @now(ptr %pool)
{field("began", "i64", "program", layout.PROGRAM_BEGAN)}
  %unset = icmp eq i64 %began, 0
  br i1 %unset, label %begin, label %compare
begin:
  store i64 %now, ptr %began.at, align 8
  br label %done
compare:
{field("slice", "i64", "pool", layout.SLICE)}
{field("min.slice", "i64", "pool", layout.MIN_SLICE)}
  %elapsed = sub i64 %now, %began
  %expected = add i64 %elapsed, %work
  %exceeds = icmp sge i64 %expected, %slice
  %past.min = icmp sge i64 %elapsed, %min.slice
  %due = and i1 %exceeds, %past.min
  br i1 %due, label %pause, label %done
pause:
{field("fault", "ptr", "program", layout.PROGRAM_FAULT)}
  %request = cmpxchg ptr %fault, i64 0, i64 {layout.PAUSED} monotonic monotonic
  %code = load atomic i64, ptr %fault monotonic, align 8
  %paused = icmp eq i64 %code, {layout.PAUSED}
  ret i1 %paused
done:
  ret i1 false
}}"""


def _interpret(name: str, timed: bool) -> str:
    """Interpret a table on one thread; the entry before which it left, or the number of entries."""
    before = _stamp("start") if timed else ""
    after = _stamp("end") if timed else ""
    return f"""
define internal i64 @{name}(ptr %pool, ptr %program, i64 %thread, i64 %threads) {{
entry:
{field("fault", "ptr", "program", layout.PROGRAM_FAULT)}
{field("count", "i64", "program", layout.PROGRAM_COUNT)}
{field("first", "i64", "program", layout.PROGRAM_START)}
{field("budget", "i64", "pool", layout.BUDGET)}
{_slots() if timed else ""}
  %entries = getelementptr i8, ptr %program, i64 {layout.PROGRAM_ENTRIES}
  br label %head
head:
  %index = phi i64 [%first, %entry], [%next, %latch], [%thread.or.target, %taken]
  %left = phi i64 [%budget, %entry], [%rest, %latch], [%rest, %taken]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %read, label %done
read:
  %row = getelementptr [{layout.ENTRY_BYTES} x i8], ptr %entries, i64 %index
{field("function", "ptr", "row", 0)}
{field("arguments", "ptr", "row", 8)}
{field("flags", "i64", "row", 16)}
{field("thread.or.target", "i64", "row", 24)}
  %work = lshr i64 %flags, {layout.WORK_SHIFT}
  %budget.left = sub i64 %left, %work
  %spent = icmp slt i64 %budget.left, 0
  br i1 %spent, label %clock, label %ready
clock:
  %due = call i1 @check_clock(ptr %pool, ptr %program, i64 %thread, i64 %work)
  %alone = icmp eq i64 %threads, 1
  %no.pause.now = and i64 %flags, {layout.NO_PAUSE}
  %may.pause = icmp eq i64 %no.pause.now, 0
  %may.leave = and i1 %alone, %may.pause
  %leaves = and i1 %due, %may.leave
  br i1 %leaves, label %done, label %ready
ready:
  %rest = phi i64 [%budget.left, %read], [%budget, %clock]
  %bit = and i64 %flags, {layout.BARRIER}
  %dependent = icmp ne i64 %bit, 0
  br i1 %dependent, label %meet, label %dispatch
meet:
  %no.pause.bit = and i64 %flags, {layout.NO_PAUSE}
  %no.pause = icmp ne i64 %no.pause.bit, 0
  %mask = select i1 %no.pause, i64 {layout.FAULTS}, i64 -1
  %leave = call i1 @barrier(ptr %pool, i64 %threads, ptr %fault, i64 %mask)
  br i1 %leave, label %done, label %dispatch
dispatch:
  %kind = and i64 %flags, {layout.JUMP | layout.SIGNAL}
  %is.call = icmp eq i64 %kind, 0
  br i1 %is.call, label %kernel, label %other
other:
  switch i64 %kind, label %latch [i64 {layout.JUMP}, label %jump i64 {layout.SIGNAL}, label %signal]
signal:
  %signals = icmp eq i64 %thread, 0
  br i1 %signals, label %publish, label %latch
publish:
  call void @thalweg_signal(ptr %pool, ptr %arguments)
  br label %latch
jump:
  %always = icmp eq ptr %arguments, null
  br i1 %always, label %taken, label %decide
decide:
  %byte = load i8, ptr %arguments, align 1
  %is.true = icmp ne i8 %byte, 0
  %if.true.bit = and i64 %flags, {layout.IF_TRUE}
  %if.true = icmp ne i64 %if.true.bit, 0
  %takes.jump = icmp eq i1 %is.true, %if.true
  br i1 %takes.jump, label %taken, label %latch
taken:
  br label %head
kernel:
  %shared = icmp slt i64 %thread.or.target, 0
  br i1 %shared, label %call, label %single
single:
  %assigned = urem i64 %thread.or.target, %threads
  %is.assigned = icmp eq i64 %assigned, %thread
  br i1 %is.assigned, label %call, label %latch
call:
  %call.thread = phi i64 [%thread, %kernel], [0, %single]
  %call.threads = phi i64 [%threads, %kernel], [1, %single]
{before}
  call void %function(ptr %arguments, i64 %call.thread, i64 %call.threads)
{after}
  br label %latch
latch:
  %next = add i64 %index, 1
  br label %head
done:
  ret i64 %index
}}"""


def _slots() -> str:
    return f"""\
{field("times", "ptr", "program", layout.PROGRAM_TIMES)}
{field("stride", "i64", "program", layout.PROGRAM_THREADS)}"""


def _stamp(moment: str) -> str:
    offset = 8 if moment == "end" else 0
    return f"""\
  %{moment} = call i64 @now(ptr %pool)
  %{moment}.row = mul i64 %index, %stride
  %{moment}.cell = add i64 %{moment}.row, %thread
  %{moment}.pair = getelementptr [16 x i8], ptr %times, i64 %{moment}.cell
  %{moment}.slot = getelementptr i8, ptr %{moment}.pair, i64 {offset}
  store i64 %{moment}, ptr %{moment}.slot, align 8"""


def _step() -> str:
    """Interpret a table on one thread, timed if the table asks for times; where it left."""
    parameters = "ptr %pool, ptr %program, i64 %thread, i64 %threads"
    return f"""
define internal i64 @step({parameters}) {{
{field("times", "ptr", "program", layout.PROGRAM_TIMES)}
  %timed = icmp ne ptr %times, null
  br i1 %timed, label %clocked, label %plain
clocked:
  %timed.left = call i64 @interpret_timed({parameters})
  ret i64 %timed.left
plain:
  %left = call i64 @interpret({parameters})
  ret i64 %left
}}"""


def _worker() -> str:
    """The main function of a worker: wait for a command, interpret the table, arrive, repeat."""
    return f"""
define internal ptr @worker(ptr %mailbox) {{
entry:
{field("pool", "ptr", "mailbox", layout.MAIL_POOL)}
{field("thread", "i64", "mailbox", layout.MAIL_THREAD)}
  br label %idle
idle:
  %command = call i32 @wait(ptr %pool, ptr %mailbox, i32 {layout.IDLE})
  %is.exit = icmp eq i32 %command, {layout.EXIT}
  br i1 %is.exit, label %done, label %work
work:
  ; The next order comes after this thread has arrived below, so it cannot be overwritten.
  store atomic i32 {layout.IDLE}, ptr %mailbox monotonic, align 4
{field("program", "ptr", "pool", layout.JOB)}
{field("threads", "i64", "pool", layout.JOB_THREADS)}
{field("fault", "ptr", "program", layout.PROGRAM_FAULT)}
  %left = call i64 @step(ptr %pool, ptr %program, i64 %thread, i64 %threads)
  %seen = call i32 @arrive(ptr %pool, i64 %threads, ptr %fault, i64 0)
  br label %idle
done:
  ret ptr null
}}"""


def _start() -> str:
    """Create workers until there are `wanted`, or until the system refuses."""
    return f"""
define void @thalweg_start(ptr %pool, i64 %wanted) {{
entry:
{field("create", "ptr", "pool", layout.CREATE)}
{field("workers", "i64", "pool", layout.WORKERS)}
  %first = getelementptr i8, ptr %pool, i64 {layout.MAILBOXES}
  br label %head
head:
  %index = phi i64 [%workers, %entry], [%thread, %made]
  %more = icmp slt i64 %index, %wanted
  br i1 %more, label %make, label %done
make:
  %thread = add i64 %index, 1
  %mailbox = getelementptr [{layout.SPACING} x i8], ptr %first, i64 %index
  %mailbox.pool = getelementptr i8, ptr %mailbox, i64 {layout.MAIL_POOL}
  store ptr %pool, ptr %mailbox.pool, align 8
  %mailbox.thread = getelementptr i8, ptr %mailbox, i64 {layout.MAIL_THREAD}
  store i64 %thread, ptr %mailbox.thread, align 8
  %handle = getelementptr i8, ptr %mailbox, i64 {layout.MAIL_HANDLE}
  %failure = call i32 %create(ptr %handle, ptr null, ptr @worker, ptr %mailbox)
  %failed = icmp ne i32 %failure, 0
  br i1 %failed, label %done, label %made
made:
  store atomic i64 %thread, ptr %workers.at release, align 8
  br label %head
done:
  ret void
}}"""


def _command() -> str:
    """Publish a command in the first mailboxes."""
    return f"""
define internal void @command(ptr %pool, i64 %count, i32 %command) {{
entry:
{_each_mailbox("entry", "count", "  call void @publish(ptr %pool, ptr %mailbox, i32 %command)")}
}}"""


def _each_mailbox(before: str, count: str, visit: str) -> str:
    """A loop over the first mailboxes after the block `before`, then a return."""
    return f"""\
  %first = getelementptr i8, ptr %pool, i64 {layout.MAILBOXES}
  br label %head
head:
  %index = phi i64 [0, %{before}], [%next, %visit]
  %more = icmp slt i64 %index, %{count}
  br i1 %more, label %visit, label %done
visit:
  %mailbox = getelementptr [{layout.SPACING} x i8], ptr %first, i64 %index
{visit}
  %next = add i64 %index, 1
  br label %head
done:
  ret void"""


def _run() -> str:
    """Run a program; its fault code, or layout.PAUSED if it is to be resumed.

    If the pool is taken, the caller runs the program alone. A program whose pause was requested
    after its last barrier has ended.
    """
    return f"""
define i64 @thalweg_run(ptr %program) {{
{field("pool", "ptr", "program", layout.PROGRAM_POOL)}
{field("wanted", "i64", "program", layout.PROGRAM_THREADS)}
{field("fault", "ptr", "program", layout.PROGRAM_FAULT)}
{field("entries", "i64", "program", layout.PROGRAM_COUNT)}
  %began = getelementptr i8, ptr %program, i64 {layout.PROGRAM_BEGAN}
  store i64 0, ptr %began, align 8
  %is.parallel = icmp ugt i64 %wanted, 1
  br i1 %is.parallel, label %try, label %alone
try:
  %taken = getelementptr i8, ptr %pool, i64 {layout.TAKEN}
  %acquire = cmpxchg ptr %taken, i64 0, i64 1 acquire monotonic
  %acquired = extractvalue {{i64, i1}} %acquire, 1
  br i1 %acquired, label %together, label %alone
alone:
  %alone.left = call i64 @step(ptr %pool, ptr %program, i64 0, i64 1)
  br label %done
together:
  %count = getelementptr i8, ptr %pool, i64 {layout.WORKERS}
  %workers = load atomic i64, ptr %count acquire, align 8
  %all = add i64 %workers, 1
  %enough = icmp ult i64 %wanted, %all
  %threads = select i1 %enough, i64 %wanted, i64 %all
  %job = getelementptr i8, ptr %pool, i64 {layout.JOB}
  store ptr %program, ptr %job, align 8
  %job.threads = getelementptr i8, ptr %pool, i64 {layout.JOB_THREADS}
  store i64 %threads, ptr %job.threads, align 8
  %others = sub i64 %threads, 1
  call void @command(ptr %pool, i64 %others, i32 {layout.WORK})
  %together.left = call i64 @step(ptr %pool, ptr %program, i64 0, i64 %threads)
  %met = call i1 @barrier(ptr %pool, i64 %threads, ptr %fault, i64 0)
  store atomic i64 0, ptr %taken release, align 8
  br label %done
done:
  %left = phi i64 [%alone.left, %alone], [%together.left, %together]
  %code = load atomic i64, ptr %fault monotonic, align 8
  %paused = icmp eq i64 %code, {layout.PAUSED}
  %ended = icmp sge i64 %left, %entries
  %unfinished = xor i1 %ended, true
  %resumes = and i1 %paused, %unfinished
  %start = select i1 %resumes, i64 %left, i64 0
  %start.at = getelementptr i8, ptr %program, i64 {layout.PROGRAM_START}
  store i64 %start, ptr %start.at, align 8
  %ended.paused = and i1 %paused, %ended
  br i1 %ended.paused, label %clear_pause, label %report
clear_pause:
  store atomic i64 0, ptr %fault monotonic, align 8
  ret i64 0
report:
  ret i64 %code
}}"""


def _stop() -> str:
    """Take the pool forever, after its current step, and join the workers."""
    meet = f"""\
{field("handle", "ptr", "mailbox", layout.MAIL_HANDLE)}
  %joined = call i32 %join(ptr %handle, ptr null)"""
    return f"""
define void @thalweg_stop(ptr %pool) {{
{field("sched_yield", "ptr", "pool", layout.YIELD)}
  %taken = getelementptr i8, ptr %pool, i64 {layout.TAKEN}
  br label %try
try:
  %acquire = cmpxchg ptr %taken, i64 0, i64 1 acquire monotonic
  %acquired = extractvalue {{i64, i1}} %acquire, 1
  br i1 %acquired, label %end, label %yield
yield:
  %yielded = call i32 %sched_yield()
  br label %try
end:
{field("workers", "i64", "pool", layout.WORKERS)}
{field("join", "ptr", "pool", layout.JOIN)}
  call void @command(ptr %pool, i64 %workers, i32 {layout.EXIT})
{_each_mailbox("end", "workers", meet)}
}}"""
