"""The native side of a step: worker threads, their barrier, and the walk over a step's table.

`emit_pool` gives LLVM text with three entry points: `start` makes worker threads, `run` walks a
program on all threads at once, `stop` sends the workers home. All they know lies in two blocks of
plain memory that `device/cpu/pool.py` lays out by the offsets below; the system's own functions are
called by addresses found there, so the code needs no linking and can be cached.

Threads talk through 32-bit words, each with one writer at a time. Who waits for a word to change
looks at it for a while, then lets others have the core, then marks the word as slept upon and
sleeps; who changes it swaps in the new value and, finding the mark in the old one, wakes the
sleepers. Mark and value are one word, so no wake-up is lost, and nobody asks the system while all
are awake.

A step that takes long comes back every now and then, for only the interpreter can tell whether
somebody wants to stop it. Entries say how much work they are. After a budget of work the caller's
thread looks at the clock, and when its time is up it puts PAUSED into the fault word; at the next
barrier all threads leave together, as at a fault (one that is alone leaves at once), and `run`
notes the entry to begin with again.
"""

from __future__ import annotations

from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import CpuTarget

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
SPINS = 3 * SPACING  # i64: looks at a word before giving the core away
YIELD = SPINS + 8  # address of sched_yield
SLEEP = SPINS + 16  # address of syscall (for a futex) or of usleep
CLOCK = SPINS + 24  # address of clock_gettime
CLOCK_NUMBER = SPINS + 32  # i64: the clock that it is asked for
CREATE = SPINS + 40  # address of pthread_create
JOIN = SPINS + 48  # address of pthread_join
BUDGET = SPINS + 56  # i64: work between looks at the clock
SLICE = SPINS + 64  # i64: nanoseconds after which a program pauses
EARLIEST = SPINS + 72  # i64: nanoseconds after which it pauses if a long kernel is next
MAILBOXES = 4 * SPACING  # one per worker, SPACING bytes each; that of thread 1 comes first

# A mailbox: an i32 word that holds an order, and what its worker must know.
MAIL_POOL = 8
MAIL_THREAD = 16
MAIL_HANDLE = 24  # the system's name of the thread
IDLE, WORK, HOME = 0, 4, 8

# Bits of a word that is waited for; those above them are free for what it says.
LEAVE = 1  # of the gate: there was a fault, nobody goes on
ASLEEP = 2

# A program: a header, then entries.
PROGRAM_POOL = 0
PROGRAM_THREADS = 8  # i64: as many as it would like
PROGRAM_FAULT = 16  # address of the step's fault word
PROGRAM_COUNT = 24  # i64: of its entries
PROGRAM_TIMES = 32  # address of i64 [entry, thread, start or end], or 0
PROGRAM_START = 40  # i64: the entry to begin with: where it paused, else the first one
PROGRAM_BEGAN = 48  # i64: when the clock was first looked at in this run, or 0
PROGRAM_ENTRIES = 64

# An entry: function, arguments, flags, owner. A jump has the address of the byte that decides in
# place of the arguments (0: always) and the entry to go to in place of the owner.
ENTRY_BYTES = 32
BARRIER = 1
JUMP = 2
IF_TRUE = 4  # of a jump: taken where the byte is not zero, else where it is
NO_PAUSE = 8  # the program must not pause before this entry
WORK_SHIFT = 32  # the bits above are the entry's work, in nanoseconds at most: roughly
MOST_WORK = 2**31 - 1

#: What the fault word holds when a walk is to pause or has paused: the sign alone, so that one
#: mask tells it from faults, which are positive. The program goes on at PROGRAM_START.
PAUSED = -(2**63)
_FAULTS = 2**63 - 1

# How often a waiter gives its core away before it sleeps: some 200 µs on an idle machine. Waking a
# thread takes 5 to 50 µs, so short pauses between steps and uneven kernels are waited out.
_YIELDS = 1000

# How a processor is told that it looks at a word in vain: declaration and call.
_PAUSES = {
    "x86_64": ("@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"),
    "aarch64": ("@llvm.aarch64.isb(i32)", "@llvm.aarch64.isb(i32 15)"),
    "arm64": ("@llvm.aarch64.isb(i32)", "@llvm.aarch64.isb(i32 15)"),
}
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # among threads of one process


def emit_pool(target: CpuTarget) -> Emitted:
    """The pool's code; where the system has no futex, sleepers nap and look again."""
    futex = _FUTEX_NUMBERS[target.architecture] if has_futex(target) else None
    functions = (
        _wait(target.architecture, futex),
        _publish(futex),
        _arrive(),
        _barrier(),
        _look(),
        _walk("walk", timed=False),
        _walk("walk_timed", timed=True),
        _now(),
        _step(),
        _worker(),
        _start(),
        _order(),
        _run(),
        _stop(),
    )
    names = ("thalweg_start", "thalweg_run", "thalweg_stop")
    return Emitted(names, "\n".join(functions))


def has_futex(target: CpuTarget) -> bool:
    """Whether threads of the target's system can sleep on a word in memory."""
    return "linux" in target.triple


def _field(register: str, kind: str, base: str, offset: int) -> str:
    return f"""\
  %{register}.at = getelementptr i8, ptr %{base}, i64 {offset}
  %{register} = load {kind}, ptr %{register}.at, align 8"""


def _wait(architecture: str, futex: int | None) -> str:
    """What a word is when it no longer is `seen`, the mark of sleepers apart."""
    declaration, pause = _PAUSES[architecture]
    if futex is None:
        sleep = "call i32 %sleeping(i32 100)"
    else:
        sleep = (
            f"call i64 (i64, ...) %sleeping"
            f"(i64 {futex}, ptr %word, i64 {_FUTEX_WAIT}, i32 %marked, ptr null)"
        )
    return f"""
declare void {declaration}

define internal i32 @wait(ptr %pool, ptr %word, i32 %seen) {{
entry:
{_field("spins", "i64", "pool", SPINS)}
  %patience = add i64 %spins, {_YIELDS}
  br label %look
look:
  %turn = phi i64 [0, %entry], [%next, %spin], [%next, %yield], [%turn, %sleep]
  %now = load atomic i32, ptr %word acquire, align 4
  %value = and i32 %now, {~ASLEEP}
  %same = icmp eq i32 %value, %seen
  br i1 %same, label %unchanged, label %changed
changed:
  ret i32 %value
unchanged:
  %next = add i64 %turn, 1
  %brief = icmp ult i64 %turn, %spins
  br i1 %brief, label %spin, label %long
spin:
  call void {pause}
  br label %look
long:
  %patient = icmp ult i64 %turn, %patience
  br i1 %patient, label %yield, label %sleep
yield:
{_field("yielding", "ptr", "pool", YIELD)}
  %yielded = call i32 %yielding()
  br label %look
sleep:
  ; Should the mark come too late, the system sees another value and does not let us sleep.
  %marked = or i32 %seen, {ASLEEP}
  %mark = cmpxchg ptr %word, i32 %seen, i32 %marked monotonic monotonic
{_field("sleeping", "ptr", "pool", SLEEP)}
  %slept = {sleep}
  br label %look
}}"""


def _publish(futex: int | None) -> str:
    """Change a word that others wait for."""
    wake = ""
    if futex is not None:
        wake = f"""
{_field("waking", "ptr", "pool", SLEEP)}
  %woken = call i64 (i64, ...) %waking(i64 {futex}, ptr %word, i64 {_FUTEX_WAKE}, i32 {2**31 - 1})
"""
    return f"""
define internal void @publish(ptr %pool, ptr %word, i32 %value) {{
  %old = atomicrmw xchg ptr %word, i32 %value acq_rel
  %mark = and i32 %old, {ASLEEP}
  %asleep = icmp ne i32 %mark, 0
  br i1 %asleep, label %wake, label %done
wake:{wake}
  br label %done
done:
  ret void
}}"""


def _arrive() -> str:
    """Come to the barrier; the last one opens it and says whether the step goes on.

    Bits of the fault word under `mask` are reasons to leave.
    """
    return f"""
define internal i32 @arrive(ptr %pool, i64 %threads, ptr %fault, i64 %mask) {{
  %gate = getelementptr i8, ptr %pool, i64 {GATE}
  %now = load atomic i32, ptr %gate monotonic, align 4
  %seen = and i32 %now, {~ASLEEP}
  %arrived = getelementptr i8, ptr %pool, i64 {ARRIVED}
  %before = atomicrmw add ptr %arrived, i64 1 acq_rel
  %count = add i64 %before, 1
  %last = icmp eq i64 %count, %threads
  br i1 %last, label %open, label %done
open:
  store atomic i64 0, ptr %arrived monotonic, align 8
  %code = load atomic i64, ptr %fault monotonic, align 8
  %reason = and i64 %code, %mask
  %faulty = icmp ne i64 %reason, 0
  %leave = zext i1 %faulty to i32
  %end = or i32 %seen, {LEAVE | ASLEEP}
  %number = add i32 %end, 1
  %word = or i32 %number, %leave
  call void @publish(ptr %pool, ptr %gate, i32 %word)
  br label %done
done:
  ret i32 %seen
}}"""


def _barrier() -> str:
    """Wait for all threads; whether to leave the step, the same answer on each of them."""
    return f"""
define internal i1 @barrier(ptr %pool, i64 %threads, ptr %fault, i64 %mask) {{
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %look, label %meet
look:
  %code = load atomic i64, ptr %fault monotonic, align 8
  %reason = and i64 %code, %mask
  %faulty = icmp ne i64 %reason, 0
  ret i1 %faulty
meet:
  %seen = call i32 @arrive(ptr %pool, i64 %threads, ptr %fault, i64 %mask)
  %gate = getelementptr i8, ptr %pool, i64 {GATE}
  %word = call i32 @wait(ptr %pool, ptr %gate, i32 %seen)
  %leave = trunc i32 %word to i1
  ret i1 %leave
}}"""


def _look() -> str:
    """Have the program pause if it ran for long, or if it will before the next entry is done;
    whether it has to.

    A fault that a kernel has found meanwhile stays, and one that it finds later takes its place.
    """
    return f"""
define internal i1 @look(ptr %pool, ptr %program, i64 %thread, i64 %work) noinline cold {{
entry:
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %clock, label %done
clock:
  %now = call i64 @now(ptr %pool)
{_field("began", "i64", "program", PROGRAM_BEGAN)}
  %fresh = icmp eq i64 %began, 0
  br i1 %fresh, label %begin, label %compare
begin:
  store i64 %now, ptr %began.at, align 8
  br label %done
compare:
{_field("slice", "i64", "pool", SLICE)}
{_field("earliest", "i64", "pool", EARLIEST)}
  %elapsed = sub i64 %now, %began
  %expected = add i64 %elapsed, %work
  %long = icmp sge i64 %expected, %slice
  %enough = icmp sge i64 %elapsed, %earliest
  %due = and i1 %long, %enough
  br i1 %due, label %pause, label %done
pause:
{_field("fault", "ptr", "program", PROGRAM_FAULT)}
  %asked = cmpxchg ptr %fault, i64 0, i64 {PAUSED} monotonic monotonic
  %code = load atomic i64, ptr %fault monotonic, align 8
  %paused = icmp eq i64 %code, {PAUSED}
  ret i1 %paused
done:
  ret i1 false
}}"""


def _walk(name: str, timed: bool) -> str:
    """A thread's way through a program; the entry before which it left, or their number."""
    before = _stamp("start") if timed else ""
    after = _stamp("end") if timed else ""
    return f"""
define internal i64 @{name}(ptr %pool, ptr %program, i64 %thread, i64 %threads) {{
entry:
{_field("fault", "ptr", "program", PROGRAM_FAULT)}
{_field("count", "i64", "program", PROGRAM_COUNT)}
{_field("first", "i64", "program", PROGRAM_START)}
{_field("budget", "i64", "pool", BUDGET)}
{_slots() if timed else ""}
  %entries = getelementptr i8, ptr %program, i64 {PROGRAM_ENTRIES}
  br label %head
head:
  %index = phi i64 [%first, %entry], [%next, %latch], [%owner, %taken]
  %left = phi i64 [%budget, %entry], [%rest, %latch], [%rest, %taken]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %read, label %done
read:
  %place = getelementptr [{ENTRY_BYTES} x i8], ptr %entries, i64 %index
{_field("function", "ptr", "place", 0)}
{_field("arguments", "ptr", "place", 8)}
{_field("flags", "i64", "place", 16)}
{_field("owner", "i64", "place", 24)}
  %work = lshr i64 %flags, {WORK_SHIFT}
  %kept = sub i64 %left, %work
  %spent = icmp slt i64 %kept, 0
  br i1 %spent, label %look, label %ready
look:
  %due = call i1 @look(ptr %pool, ptr %program, i64 %thread, i64 %work)
  %alone = icmp eq i64 %threads, 1
  %hold.now = and i64 %flags, {NO_PAUSE}
  %loose = icmp eq i64 %hold.now, 0
  %could = and i1 %alone, %loose
  %leaves = and i1 %due, %could
  br i1 %leaves, label %done, label %ready
ready:
  %rest = phi i64 [%kept, %read], [%budget, %look]
  %bit = and i64 %flags, {BARRIER}
  %dependent = icmp ne i64 %bit, 0
  br i1 %dependent, label %meet, label %choose
meet:
  %hold = and i64 %flags, {NO_PAUSE}
  %held = icmp ne i64 %hold, 0
  %mask = select i1 %held, i64 {_FAULTS}, i64 -1
  %leave = call i1 @barrier(ptr %pool, i64 %threads, ptr %fault, i64 %mask)
  br i1 %leave, label %done, label %choose
choose:
  %kind = and i64 %flags, {JUMP}
  %jumps = icmp ne i64 %kind, 0
  br i1 %jumps, label %jump, label %kernel
jump:
  %always = icmp eq ptr %arguments, null
  br i1 %always, label %taken, label %decide
decide:
  %byte = load i8, ptr %arguments, align 1
  %holds = icmp ne i8 %byte, 0
  %asked = and i64 %flags, {IF_TRUE}
  %wanted = icmp ne i64 %asked, 0
  %agree = icmp eq i1 %holds, %wanted
  br i1 %agree, label %taken, label %latch
taken:
  br label %head
kernel:
  %shared = icmp slt i64 %owner, 0
  br i1 %shared, label %call, label %owned
owned:
  %runner = urem i64 %owner, %threads
  %mine = icmp eq i64 %runner, %thread
  br i1 %mine, label %call, label %latch
call:
  %share = phi i64 [%thread, %kernel], [0, %owned]
  %shares = phi i64 [%threads, %kernel], [1, %owned]
{before}
  call void %function(ptr %arguments, i64 %share, i64 %shares)
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
{_field("times", "ptr", "program", PROGRAM_TIMES)}
{_field("stride", "i64", "program", PROGRAM_THREADS)}"""


def _stamp(moment: str) -> str:
    offset = 8 if moment == "end" else 0
    return f"""\
  %{moment} = call i64 @now(ptr %pool)
  %{moment}.row = mul i64 %index, %stride
  %{moment}.cell = add i64 %{moment}.row, %thread
  %{moment}.pair = getelementptr [16 x i8], ptr %times, i64 %{moment}.cell
  %{moment}.slot = getelementptr i8, ptr %{moment}.pair, i64 {offset}
  store i64 %{moment}, ptr %{moment}.slot, align 8"""


def _now() -> str:
    """The time in nanoseconds."""
    return f"""
define internal i64 @now(ptr %pool) {{
  %time = alloca [2 x i64], align 8
{_field("clock", "ptr", "pool", CLOCK)}
{_field("number", "i64", "pool", CLOCK_NUMBER)}
  %which = trunc i64 %number to i32
  %status = call i32 %clock(i32 %which, ptr %time)
{_field("seconds", "i64", "time", 0)}
{_field("rest", "i64", "time", 8)}
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %rest
  ret i64 %sum
}}"""


def _step() -> str:
    """A thread's part of a step, with the clock where times are asked for; where it left."""
    given = "ptr %pool, ptr %program, i64 %thread, i64 %threads"
    return f"""
define internal i64 @step({given}) {{
{_field("times", "ptr", "program", PROGRAM_TIMES)}
  %timed = icmp ne ptr %times, null
  br i1 %timed, label %clocked, label %plain
clocked:
  %at = call i64 @walk_timed({given})
  ret i64 %at
plain:
  %place = call i64 @walk({given})
  ret i64 %place
}}"""


def _worker() -> str:
    """The life of a native thread: wait for an order, take part, report, wait again."""
    return f"""
define internal ptr @worker(ptr %mailbox) {{
entry:
{_field("pool", "ptr", "mailbox", MAIL_POOL)}
{_field("thread", "i64", "mailbox", MAIL_THREAD)}
  br label %rest
rest:
  %order = call i32 @wait(ptr %pool, ptr %mailbox, i32 {IDLE})
  %home = icmp eq i32 %order, {HOME}
  br i1 %home, label %done, label %work
work:
  ; The next order comes after this thread has arrived below, so it cannot be overwritten.
  store atomic i32 {IDLE}, ptr %mailbox monotonic, align 4
{_field("program", "ptr", "pool", JOB)}
{_field("threads", "i64", "pool", JOB_THREADS)}
{_field("fault", "ptr", "program", PROGRAM_FAULT)}
  %left = call i64 @step(ptr %pool, ptr %program, i64 %thread, i64 %threads)
  %seen = call i32 @arrive(ptr %pool, i64 %threads, ptr %fault, i64 0)
  br label %rest
done:
  ret ptr null
}}"""


def _start() -> str:
    """Make workers until there are so many, or the system gives no more."""
    return f"""
define void @thalweg_start(ptr %pool, i64 %wanted) {{
entry:
{_field("create", "ptr", "pool", CREATE)}
{_field("workers", "i64", "pool", WORKERS)}
  %first = getelementptr i8, ptr %pool, i64 {MAILBOXES}
  br label %head
head:
  %index = phi i64 [%workers, %entry], [%thread, %made]
  %more = icmp slt i64 %index, %wanted
  br i1 %more, label %make, label %done
make:
  %thread = add i64 %index, 1
  %mailbox = getelementptr [{SPACING} x i8], ptr %first, i64 %index
  %mailbox.pool = getelementptr i8, ptr %mailbox, i64 {MAIL_POOL}
  store ptr %pool, ptr %mailbox.pool, align 8
  %mailbox.thread = getelementptr i8, ptr %mailbox, i64 {MAIL_THREAD}
  store i64 %thread, ptr %mailbox.thread, align 8
  %handle = getelementptr i8, ptr %mailbox, i64 {MAIL_HANDLE}
  %failure = call i32 %create(ptr %handle, ptr null, ptr @worker, ptr %mailbox)
  %failed = icmp ne i32 %failure, 0
  br i1 %failed, label %done, label %made
made:
  store atomic i64 %thread, ptr %workers.at release, align 8
  br label %head
done:
  ret void
}}"""


def _order() -> str:
    """Put an order into the first mailboxes."""
    return f"""
define internal void @order(ptr %pool, i64 %count, i32 %order) {{
entry:
  %first = getelementptr i8, ptr %pool, i64 {MAILBOXES}
  br label %head
head:
  %index = phi i64 [0, %entry], [%next, %send]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %send, label %done
send:
  %mailbox = getelementptr [{SPACING} x i8], ptr %first, i64 %index
  call void @publish(ptr %pool, ptr %mailbox, i32 %order)
  %next = add i64 %index, 1
  br label %head
done:
  ret void
}}"""


def _run() -> str:
    """Run a program; its fault code, or PAUSED where it is to be run on.

    A caller who finds the pool taken walks alone. A program that was to pause when its last
    barrier was behind it has ended.
    """
    return f"""
define i64 @thalweg_run(ptr %program) {{
{_field("pool", "ptr", "program", PROGRAM_POOL)}
{_field("wanted", "i64", "program", PROGRAM_THREADS)}
{_field("fault", "ptr", "program", PROGRAM_FAULT)}
{_field("entries", "i64", "program", PROGRAM_COUNT)}
  %began = getelementptr i8, ptr %program, i64 {PROGRAM_BEGAN}
  store i64 0, ptr %began, align 8
  %several = icmp ugt i64 %wanted, 1
  br i1 %several, label %try, label %alone
try:
  %taken = getelementptr i8, ptr %pool, i64 {TAKEN}
  %attempt = cmpxchg ptr %taken, i64 0, i64 1 acquire monotonic
  %ours = extractvalue {{i64, i1}} %attempt, 1
  br i1 %ours, label %together, label %alone
alone:
  %alone.left = call i64 @step(ptr %pool, ptr %program, i64 0, i64 1)
  br label %done
together:
  %count = getelementptr i8, ptr %pool, i64 {WORKERS}
  %workers = load atomic i64, ptr %count acquire, align 8
  %all = add i64 %workers, 1
  %enough = icmp ult i64 %wanted, %all
  %threads = select i1 %enough, i64 %wanted, i64 %all
  %job = getelementptr i8, ptr %pool, i64 {JOB}
  store ptr %program, ptr %job, align 8
  %job.threads = getelementptr i8, ptr %pool, i64 {JOB_THREADS}
  store i64 %threads, ptr %job.threads, align 8
  %others = sub i64 %threads, 1
  call void @order(ptr %pool, i64 %others, i32 {WORK})
  %together.left = call i64 @step(ptr %pool, ptr %program, i64 0, i64 %threads)
  %met = call i1 @barrier(ptr %pool, i64 %threads, ptr %fault, i64 0)
  store atomic i64 0, ptr %taken release, align 8
  br label %done
done:
  %left = phi i64 [%alone.left, %alone], [%together.left, %together]
  %code = load atomic i64, ptr %fault monotonic, align 8
  %paused = icmp eq i64 %code, {PAUSED}
  %ended = icmp sge i64 %left, %entries
  %unfinished = xor i1 %ended, true
  %again = and i1 %paused, %unfinished
  %start = select i1 %again, i64 %left, i64 0
  %start.at = getelementptr i8, ptr %program, i64 {PROGRAM_START}
  store i64 %start, ptr %start.at, align 8
  %over = and i1 %paused, %ended
  br i1 %over, label %late, label %told
late:
  store atomic i64 0, ptr %fault monotonic, align 8
  ret i64 0
told:
  ret i64 %code
}}"""


def _stop() -> str:
    """Take the pool for good, after the step that has it, and see the workers out."""
    return f"""
define void @thalweg_stop(ptr %pool) {{
{_field("yielding", "ptr", "pool", YIELD)}
  %taken = getelementptr i8, ptr %pool, i64 {TAKEN}
  br label %try
try:
  %attempt = cmpxchg ptr %taken, i64 0, i64 1 acquire monotonic
  %ours = extractvalue {{i64, i1}} %attempt, 1
  br i1 %ours, label %end, label %yield
yield:
  %yielded = call i32 %yielding()
  br label %try
end:
{_field("workers", "i64", "pool", WORKERS)}
{_field("join", "ptr", "pool", JOIN)}
  call void @order(ptr %pool, i64 %workers, i32 {HOME})
  %first = getelementptr i8, ptr %pool, i64 {MAILBOXES}
  br label %head
head:
  %index = phi i64 [0, %end], [%next, %meet]
  %more = icmp slt i64 %index, %workers
  br i1 %more, label %meet, label %done
meet:
  %mailbox = getelementptr [{SPACING} x i8], ptr %first, i64 %index
{_field("handle", "ptr", "mailbox", MAIL_HANDLE)}
  %joined = call i32 %join(ptr %handle, ptr null)
  %next = add i64 %index, 1
  br label %head
done:
  ret void
}}"""
