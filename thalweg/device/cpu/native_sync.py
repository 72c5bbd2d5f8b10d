"""Synchronisation of native threads: waiting on words, events, the barrier.

Threads communicate through 32-bit words, each with one writer at a time. A thread that waits for a
change of a word polls it for a while, then yields the core, then sets the ASLEEP bit in the word
and sleeps. A writer swaps in the new value and, if the old one had the bit, wakes the sleepers. Bit
and value are one word, so no wake-up is lost, and no system call is made while all threads are
awake.
"""

from __future__ import annotations

from thalweg.codegen.llvm.builder import I1, I32, I64, POINTER, VOID
from thalweg.codegen.llvm.register import LlvmRegister as Register
from thalweg.codegen.machine import CpuTarget
from thalweg.device.cpu import pool_layout as layout
from thalweg.device.cpu.pool_function import PoolFunction

# Yields of the core before a waiter sleeps: some 200 µs on an idle machine. Waking a thread takes 5
# to 50 µs, so threads stay awake between steps in close succession and through uneven kernels.
_YIELDS = 1000

# The instruction that hints at a spin loop: declaration and call.
_PAUSES = {
    "x86_64": ("@llvm.x86.sse2.pause()", "@llvm.x86.sse2.pause()"),
    "aarch64": ("@llvm.aarch64.isb(i32)", "@llvm.aarch64.isb(i32 15)"),
}
_FUTEX_NUMBERS = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 128, 129  # with FUTEX_PRIVATE_FLAG
_SECOND = 1_000_000_000  # nanoseconds


def wait(target: CpuTarget) -> str:
    """Wait until a word is not `seen`; its new value. The ASLEEP bit is ignored."""
    f = PoolFunction("thalweg_wait", "ptr ptr i32", I32)
    pool, word, seen = f.arguments
    pause_type, pause = _PAUSES[target.architecture]
    spins = f.field(I64, pool, layout.SPINS)
    sched_yield = f.field(POINTER, pool, layout.YIELD)
    max_polls = spins + _YIELDS
    with f.forever(f.number(I64, 0)) as ((count,), again):
        value = f.atomic_load(I32, word, "acquire") & ~layout.ASLEEP
        f.return_if(value.differs(seen), value)
        following = count + 1
        with f.when(count.compared("ult", spins)):
            f.line(f"call void {pause}")
            again(following)
        with f.when(count.compared("ult", max_polls)):
            f.invoke(sched_yield, I32)
            again(following)
        # If the word changed before the bit was set, the futex sees another value and returns at
        # once.
        marked = seen | layout.ASLEEP
        f.compare_exchange(word, seen, marked, "monotonic")
        if layout.has_futex(target):
            _call_futex(f, target, _FUTEX_WAIT, marked, f.null)
        else:
            f.invoke(f.field(POINTER, pool, layout.SLEEP), I32, f.number(I32, 100))
        again(count)
    return f"declare void {pause_type}\n{f.text}"


def _call_futex(f: PoolFunction, target: CpuTarget, operation: int, *others: Register) -> None:
    """The system call for the word of a function of (pool, word, …)."""
    pool, word, _ = f.arguments
    system_call = f.field(POINTER, pool, layout.SLEEP)
    number = f.number(I64, _FUTEX_NUMBERS[target.architecture])
    given = [number, word, f.number(I64, operation), *others]
    listed = ", ".join(str(each.value) for each in given)
    f.emit(I64, f"call i64 (i64, ...) {system_call.value.text}({listed})")


def publish(target: CpuTarget) -> str:
    """Store a new value in a word and wake the threads that sleep on it."""
    f = PoolFunction("publish", "ptr ptr i32")
    _, word, value = f.arguments
    before = f.atomic_update("xchg", word, value, "acq_rel")
    with f.when((before & layout.ASLEEP).differs(0)):
        if layout.has_futex(target):
            _call_futex(f, target, _FUTEX_WAKE, f.number(I32, 2**31 - 1))
    return f.finish()


def signal() -> str:
    """A kernel that signals the event that is its arguments: its current wait ends, or the next."""
    f = PoolFunction("thalweg_signal", "ptr i64 i64")
    event, *_ = f.arguments
    pool = f.field(POINTER, event, layout.EVENT_POOL)
    f.invoke("publish", VOID, pool, event, f.number(I32, layout.SET))
    return f.finish()


def arrive() -> str:
    """Arrive at the barrier without waiting. The last thread opens the gate, with the LEAVE bit if
    the fault word has a bit of `mask`. Returns the value of the gate before it opens."""
    f = PoolFunction("arrive", "ptr i64 ptr i64", I32)
    pool, threads, fault, mask = f.arguments
    gate, arrived = f.address(pool, layout.GATE), f.address(pool, layout.ARRIVED)
    seen = f.atomic_load(I32, gate, "monotonic") & ~layout.ASLEEP
    count = f.atomic_update("add", arrived, f.number(I64, 1), "acq_rel") + 1
    with f.when(count.equals(threads)):
        f.atomic_store(f.number(I64, 0), arrived, "monotonic")
        leave = _has_fault(f, fault, mask).convert("zext", "i32")
        following = (seen | (layout.LEAVE | layout.ASLEEP)) + 1
        f.invoke("publish", VOID, pool, gate, following | leave)
    return f.finish(seen)


def _has_fault(f: PoolFunction, fault: Register, mask: Register) -> Register:
    """Whether the fault word has a bit of a mask."""
    return (f.atomic_load(I64, fault, "monotonic") & mask).differs(0)


def barrier() -> str:
    """Wait for all threads; whether to leave the step, the same on all of them."""
    f = PoolFunction("barrier", "ptr i64 ptr i64", I1)
    pool, threads, fault, mask = f.arguments
    with f.when(threads.equals(1)):
        f.ret(_has_fault(f, fault, mask))
    seen = f.invoke("arrive", I32, *f.arguments)
    word = f.invoke("thalweg_wait", I32, pool, f.address(pool, layout.GATE), seen)
    return f.finish(word.convert("trunc", "i1"))


def now() -> str:
    """Read the clock, in nanoseconds."""
    f = PoolFunction("now", "ptr", I64)
    (pool,) = f.arguments
    time = f.register(POINTER, "alloca [2 x i64], align 8")
    clock, number = f.field(POINTER, pool, layout.CLOCK), f.field(I64, pool, layout.CLOCK_NUMBER)
    f.invoke(clock, I32, number.convert("trunc", "i32"), time)
    return f.finish(f.field(I64, time, 0) * _SECOND + f.field(I64, time, 8))
