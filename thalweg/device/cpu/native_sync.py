"""Synchronisation of native threads as LLVM text: waiting on words, events, the barrier.

Threads communicate through 32-bit words, each with one writer at a time. A thread that waits for a
change of a word polls it for a while, then yields the core, then sets the ASLEEP bit in the word
and sleeps. A writer swaps in the new value and, if the old one had the bit, wakes the sleepers. Bit
and value are one word, so no wake-up is lost, and no system call is made while all threads are
awake.
"""

from __future__ import annotations

from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu import pool_layout as layout

# Yields of the core before a waiter sleeps: some 200 µs on an idle machine. Waking a thread takes 5
# to 50 µs, so threads stay awake between steps in close succession and through uneven kernels.
_YIELDS = 1000

# The instruction that hints at a spin loop: declaration and call.
_PAUSES = {
    "x86_64": ("@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"),
    "aarch64": ("@llvm.aarch64.isb(i32)", "@llvm.aarch64.isb(i32 15)"),
    "arm64": ("@llvm.aarch64.isb(i32)", "@llvm.aarch64.isb(i32 15)"),
}
FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # with FUTEX_PRIVATE_FLAG


def has_futex(target: CpuTarget) -> bool:
    """Whether the target's system has futexes."""
    return "linux" in target.triple


def field(register: str, kind: str, base: str, offset: int) -> str:
    """Load the field of a type at an offset from a base pointer; `register.at` is its address."""
    return f"""\
  %{register}.at = getelementptr i8, ptr %{base}, i64 {offset}
  %{register} = load {kind}, ptr %{register}.at, align 8"""


def wait(architecture: str, futex: int | None) -> str:
    """Wait until a word is not `seen`; its new value. The ASLEEP bit is ignored."""
    poll = _poll(architecture, futex, "%seen", "ret i32 %value", "br label %sleep", "null")
    return f"""
declare void {_PAUSES[architecture][0]}

define internal i32 @wait(ptr %pool, ptr %word, i32 %seen) {{
entry:
{poll}
}}"""


def _poll(
    architecture: str, futex: int | None, seen: str, changed: str, before_sleep: str, limit: str
) -> str:
    """Poll a word until it is not `seen`. `changed` is the code to run then, `before_sleep` that
    before each sleep, `limit` the timeout of a sleep."""
    sleep = "call i32 %system.sleep(i32 100)"
    if futex is not None:
        sleep = (
            f"call i64 (i64, ...) %system.sleep"
            f"(i64 {futex}, ptr %word, i64 {_FUTEX_WAIT}, i32 %marked, ptr {limit})"
        )
    return f"""\
{field("spins", "i64", "pool", layout.SPINS)}
{field("sched_yield", "ptr", "pool", layout.YIELD)}
{field("system.sleep", "ptr", "pool", layout.SLEEP)}
  %max.polls = add i64 %spins, {_YIELDS}
  br label %poll
poll:
  %count = phi i64 [0, %entry], [%next, %spin], [%next, %yield], [%count, %sleep]
  %now = load atomic i32, ptr %word acquire, align 4
  %value = and i32 %now, {~layout.ASLEEP}
  %same = icmp eq i32 %value, {seen}
  br i1 %same, label %unchanged, label %changed
changed:
  {changed}
unchanged:
  %next = add i64 %count, 1
  %spinning = icmp ult i64 %count, %spins
  br i1 %spinning, label %spin, label %spun
spin:
  call void {_PAUSES[architecture][1]}
  br label %poll
spun:
  %may.yield = icmp ult i64 %count, %max.polls
  br i1 %may.yield, label %yield, label %before_sleep
yield:
  %yielded = call i32 %sched_yield()
  br label %poll
before_sleep:
  {before_sleep}
sleep:
  ; If the word changed before the bit was set, the futex sees another value and returns at once.
  %marked = or i32 {seen}, {layout.ASLEEP}
  %mark = cmpxchg ptr %word, i32 {seen}, i32 %marked monotonic monotonic
  %slept = {sleep}
  br label %poll"""


def publish(futex: int | None) -> str:
    """Store a new value in a word and wake the threads that sleep on it."""
    wake = ""
    if futex is not None:
        wake = f"""
{field("futex", "ptr", "pool", layout.SLEEP)}
  %woken = call i64 (i64, ...) %futex(i64 {futex}, ptr %word, i64 {_FUTEX_WAKE}, i32 {2**31 - 1})
"""
    return f"""
define internal void @publish(ptr %pool, ptr %word, i32 %value) {{
  %old = atomicrmw xchg ptr %word, i32 %value acq_rel
  %sleepers = and i32 %old, {layout.ASLEEP}
  %has.sleepers = icmp ne i32 %sleepers, 0
  br i1 %has.sleepers, label %wake, label %done
wake:{wake}
  br label %done
done:
  ret void
}}"""


def wait_event(architecture: str, futex: int | None) -> str:
    """Wait for an event for at most a time slice and consume its signal; 0 if none came."""
    take = f"""%taken = atomicrmw xchg ptr %word, i32 {layout.UNSET} acquire
  ret i64 1"""
    check = """%time = call i64 @now(ptr %pool)
  %elapsed = sub i64 %time, %start
  %remaining = sub i64 %slice, %elapsed
  %expired = icmp sle i64 %remaining, 0
  br i1 %expired, label %timeout, label %limited
limited:
  %seconds = sdiv i64 %remaining, 1000000000
  %nanoseconds = srem i64 %remaining, 1000000000
  store i64 %seconds, ptr %limit, align 8
  %limit.low = getelementptr i8, ptr %limit, i64 8
  store i64 %nanoseconds, ptr %limit.low, align 8
  br label %sleep"""
    return f"""
define i64 @thalweg_wait(ptr %pool, ptr %word) {{
entry:
  %limit = alloca [2 x i64], align 8
{field("slice", "i64", "pool", layout.SLICE)}
  %start = call i64 @now(ptr %pool)
{_poll(architecture, futex, str(layout.UNSET), take, check, "%limit")}
timeout:
  ret i64 0
}}"""


def signal() -> str:
    """Signal an event: its current wait ends, or the next one."""
    return f"""
define void @thalweg_signal(ptr %pool, ptr %word) {{
  call void @publish(ptr %pool, ptr %word, i32 {layout.SET})
  ret void
}}"""


def arrive() -> str:
    """Arrive at the barrier without waiting. The last thread opens the gate, with the LEAVE bit if
    the fault word has a bit of `mask`. Returns the value of the gate before it opens."""
    return f"""
define internal i32 @arrive(ptr %pool, i64 %threads, ptr %fault, i64 %mask) {{
  %gate = getelementptr i8, ptr %pool, i64 {layout.GATE}
  %now = load atomic i32, ptr %gate monotonic, align 4
  %seen = and i32 %now, {~layout.ASLEEP}
  %arrived = getelementptr i8, ptr %pool, i64 {layout.ARRIVED}
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
  %end = or i32 %seen, {layout.LEAVE | layout.ASLEEP}
  %number = add i32 %end, 1
  %word = or i32 %number, %leave
  call void @publish(ptr %pool, ptr %gate, i32 %word)
  br label %done
done:
  ret i32 %seen
}}"""


def barrier() -> str:
    """Wait for all threads; whether to leave the step, the same on all of them."""
    return f"""
define internal i1 @barrier(ptr %pool, i64 %threads, ptr %fault, i64 %mask) {{
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %check, label %meet
check:
  %code = load atomic i64, ptr %fault monotonic, align 8
  %reason = and i64 %code, %mask
  %faulty = icmp ne i64 %reason, 0
  ret i1 %faulty
meet:
  %seen = call i32 @arrive(ptr %pool, i64 %threads, ptr %fault, i64 %mask)
  %gate = getelementptr i8, ptr %pool, i64 {layout.GATE}
  %word = call i32 @wait(ptr %pool, ptr %gate, i32 %seen)
  %leave = trunc i32 %word to i1
  ret i1 %leave
}}"""


def now() -> str:
    """Read the clock, in nanoseconds."""
    return f"""
define internal i64 @now(ptr %pool) {{
  %time = alloca [2 x i64], align 8
{field("clock", "ptr", "pool", layout.CLOCK)}
{field("clock.number", "i64", "pool", layout.CLOCK_NUMBER)}
  %which = trunc i64 %clock.number to i32
  %status = call i32 %clock(i32 %which, ptr %time)
{field("seconds", "i64", "time", 0)}
{field("subseconds", "i64", "time", 8)}
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %subseconds
  ret i64 %sum
}}"""
