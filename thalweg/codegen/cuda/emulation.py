"""The abstract grid on the host: the blocks of a launch run sequentially on one thread.

The threads of a block are fibres, each with its own stack, which run until they must wait for
others and then switch to the next one. If no thread ever waits, they are a plain loop. All state of
a launch is in memory that its caller provides, so launches may run concurrently.

A deadlock (threads of a warp that do not all take part in an exchange) is a trap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum, auto

from thalweg.codegen.llvm.builder import I32, I64, POINTER, VOID, Builder, Module, Type, Value
from thalweg.codegen.llvm.builder import constant as number
from thalweg.codegen.machine import named
from thalweg.platform.caches import memoized

WARP = 32
STACK_BYTES = 1 << 18  # of a fibre; only pages that it writes become resident


class Slot(IntEnum):
    """The words at the start of a launch's state."""

    GRID_X = 0
    GRID_Y = auto()
    GRID_Z = auto()
    THREADS = auto()
    SHARED = auto()  # the address of shared memory
    STACKS = auto()  # the address of the fibres' stacks
    THREAD = auto()  # the current thread
    BLOCK_X = auto()
    BLOCK_Y = auto()
    BLOCK_Z = auto()
    LIVE = auto()  # threads that have not ended
    WORDS = auto()  # the address of the kernel's argument words
    CALLER = auto()  # the stack of the caller of the launch
    IDLE = auto()  # the switches since a fibre last progressed
    ARRIVED = auto()  # threads at the barrier
    BARRIERS = auto()  # the number of passed barriers
    FIBRES = auto()  # the first fibre


class Fibre(IntEnum):
    """The words of a thread; those of a warp are its first thread's."""

    STACK = 0  # the address of its saved registers
    ENDED = auto()
    EXCHANGED = auto()  # the value for other lanes
    WARP_ARRIVED = auto()
    WARP_BARRIERS = auto()


_SWITCHES = {
    "x86_64": (
        "pushq %rbp\\0Apushq %rbx\\0Apushq %r12\\0Apushq %r13\\0Apushq %r14\\0Apushq %r15\\0A"
        "movq %rsp, (%rdi)\\0Amovq %rsi, %rsp\\0A"
        "popq %r15\\0Apopq %r14\\0Apopq %r13\\0Apopq %r12\\0Apopq %rbx\\0Apopq %rbp\\0Aretq",
        "movq %rbx, %rdi\\0Acallq *%rbp\\0Aud2",
    ),
    "aarch64": (
        "stp x29, x30, [sp, #-160]!\\0Astp x19, x20, [sp, #16]\\0Astp x21, x22, [sp, #32]\\0A"
        "stp x23, x24, [sp, #48]\\0Astp x25, x26, [sp, #64]\\0Astp x27, x28, [sp, #80]\\0A"
        "stp d8, d9, [sp, #96]\\0Astp d10, d11, [sp, #112]\\0Astp d12, d13, [sp, #128]\\0A"
        "stp d14, d15, [sp, #144]\\0Amov x9, sp\\0Astr x9, [x0]\\0Amov sp, x1\\0A"
        "ldp x19, x20, [sp, #16]\\0Aldp x21, x22, [sp, #32]\\0Aldp x23, x24, [sp, #48]\\0A"
        "ldp x25, x26, [sp, #64]\\0Aldp x27, x28, [sp, #80]\\0Aldp d8, d9, [sp, #96]\\0A"
        "ldp d10, d11, [sp, #112]\\0Aldp d12, d13, [sp, #128]\\0Aldp d14, d15, [sp, #144]\\0A"
        "ldp x29, x30, [sp], #160\\0Aret",
        "mov x0, x19\\0Ablr x20\\0Abrk #1",
    ),
}
#: The initial words of a stack for `grid.switch`: the indices of the state, of the function to call
#: with it, and of the address to begin at; and their number, including the thread's function at the
#: end. The function is entered with its stack aligned to 16 bytes.
_FIRST_FRAMES = {"x86_64": (4, 5, 6, 9), "aarch64": (2, 3, 1, 22)}


def state_words(threads: int) -> int:
    """The number of words of the state of a launch with blocks of `threads` threads."""
    return Slot.FIBRES + threads * len(Fibre)


@memoized(64)
def definitions(used: frozenset[str]) -> str:
    """The used functions of the grid, and the functions that they need."""
    module = Module()
    for name in filter(used.__contains__, _VALUES):  # in a deterministic order
        _write_value(module, name)
    if not used.isdisjoint(_MEETINGS):
        for write in (_write_next, _write_yield, _write_wait, _write_fibre):
            write(module)
        for name in filter(used.__contains__, _MEETINGS):
            _MEETINGS[name](module)
        return _switch() + module.text
    return module.text


@memoized(256)
def entry(name: str, words: tuple[Type, ...], meets: bool) -> str:
    """The function that is called, with the argument words and the state of a launch."""
    module = _Calls()
    call = module.function(f"{name}.thread", [POINTER], attributes="noinline nounwind")
    _write_call(call, f"{name}.body", words)
    b = module.function(name, [POINTER, POINTER], attributes="nounwind")
    given, state = b.parameters
    _put(b, state, Slot.WORDS, b.emit(I64, f"ptrtoint {given} to i64"))
    zero, one = number(I64, 0), number(I64, 1)
    with (
        b.loop(zero, _get(b, state, Slot.GRID_Z), one) as z,
        b.loop(zero, _get(b, state, Slot.GRID_Y), one) as y,
        b.loop(zero, _get(b, state, Slot.GRID_X), one) as x,
    ):
        for slot, loop in ((Slot.BLOCK_X, x), (Slot.BLOCK_Y, y), (Slot.BLOCK_Z, z)):
            _put(b, state, slot, loop.index)
        (_write_fibres if meets else _write_threads)(b, state, f"{name}.thread")
    return module.text


class _Calls(Module):
    """A module whose text becomes part of another one, whose functions it calls."""

    def declare(self, name: str, result: Type, parameters: Sequence[Type]) -> None:
        """Does nothing: the other module defines them."""


def _get(b: Builder, state: Value, slot: int) -> Value:
    return b.load(I64, b.element(state, "i64", number(I64, slot)))


def _put(b: Builder, state: Value, slot: int, value: Value) -> None:
    b.store(value, b.element(state, "i64", number(I64, slot)))


def _of_fibre(b: Builder, state: Value, thread: Value, slot: Fibre) -> Value:
    """The address of a word of a thread."""
    place = b.binary("mul", thread, number(I64, len(Fibre)))
    return b.element(state, "i64", b.binary("add", place, number(I64, Slot.FIBRES + slot)))


def _add(b: Builder, address: Value, amount: int) -> Value:
    """Add to a word; returns the new value."""
    after = b.binary("add", b.load(I64, address), number(I64, amount))
    b.store(after, address)
    return after


# Indices of threads and blocks

_VALUES = {
    "grid.thread": Slot.THREAD,
    "grid.threads": Slot.THREADS,
    **{f"grid.block.{axis}": Slot[f"BLOCK_{axis.upper()}"] for axis in "xyz"},
    **{f"grid.blocks.{axis}": Slot[f"GRID_{axis.upper()}"] for axis in "xyz"},
    "grid.shared": Slot.SHARED,
}


def _write_value(module: Module, name: str) -> None:
    is_address = name == "grid.shared"
    result = POINTER if is_address else I32
    b = module.function(name, [POINTER], result, "alwaysinline nounwind")
    word = _get(b, b.parameters[0], _VALUES[name])
    b.ret(b.emit(result, f"{'inttoptr' if is_address else 'trunc'} {word} to {result}"))


# Threads without synchronization


def _write_call(b: Builder, body: str, words: Sequence[Type]) -> None:
    """A function that runs the body of a kernel for the current thread of a state."""
    (state,) = b.parameters
    given = b.emit(POINTER, f"inttoptr {_get(b, state, Slot.WORDS)} to ptr")
    values = [b.load(kind, b.element(given, "i64", number(I64, n))) for n, kind in enumerate(words)]
    b.line(f"call void @{body}({', '.join(map(str, [state, *values]))})")


def _write_threads(b: Builder, state: Value, thread: str) -> None:
    count = _get(b, state, Slot.THREADS)
    with b.loop(number(I64, 0), count, number(I64, 1)) as loop:
        _put(b, state, Slot.THREAD, loop.index)
        b.line(f"call void @{thread}({state})")


# Threads with synchronization


def _switch() -> str:
    """`grid.switch` saves the registers on the stack, stores its address, and restores those of
    another stack; a new stack begins at `grid.begin`, which calls a function with the state."""
    switch, begin = _SWITCHES[named("native").architecture]
    return f"""define void @grid.switch(ptr %save, i64 %to) naked noinline nounwind {{
  call void asm sideeffect "{switch}", "~{{memory}}"()
  unreachable
}}
define void @grid.begin() naked noinline nounwind {{
  call void asm sideeffect "{begin}", "~{{memory}}"()
  unreachable
}}
"""


def _write_fibres(b: Builder, state: Value, thread: str) -> None:
    """Create a stack for each thread of a block, and switch to the first."""
    zero, one, count = number(I64, 0), number(I64, 1), _get(b, state, Slot.THREADS)
    for slot in (Slot.THREAD, Slot.IDLE, Slot.ARRIVED, Slot.BARRIERS):
        _put(b, state, slot, zero)
    _put(b, state, Slot.LIVE, count)
    at_state, at_call, at_begin, frame = _FIRST_FRAMES[named("native").architecture]
    with b.loop(zero, count, one) as loop:
        end = b.binary("mul", b.binary("add", loop.index, one), number(I64, STACK_BYTES))
        top = b.binary("add", _get(b, state, Slot.STACKS), end)
        first = b.binary("sub", top, number(I64, 8 * frame))
        stack = b.emit(POINTER, f"inttoptr {first} to ptr")
        for place, value in (
            (at_state, b.emit(I64, f"ptrtoint {state} to i64")),
            (at_call, Value(I64, "ptrtoint (ptr @grid.fibre to i64)")),
            (at_begin, Value(I64, "ptrtoint (ptr @grid.begin to i64)")),
            (frame - 1, Value(I64, f"ptrtoint (ptr @{thread} to i64)")),
        ):
            _put(b, stack, place, value)
        b.store(first, _of_fibre(b, state, loop.index, Fibre.STACK))
        for word in (Fibre.ENDED, Fibre.WARP_ARRIVED, Fibre.WARP_BARRIERS):
            b.store(zero, _of_fibre(b, state, loop.index, word))
    save = b.element(state, "i64", number(I64, Slot.CALLER))
    first = b.load(I64, _of_fibre(b, state, zero, Fibre.STACK))
    b.line(f"call void @grid.switch({save}, {first})")


def _write_next(module: Module) -> None:
    """`grid.next(state, thread)`: the next thread that has not ended."""
    b = module.function("grid.next", [POINTER, I64], I64, "noinline nounwind")
    state, thread = b.parameters
    count = _get(b, state, Slot.THREADS)
    b.line("br label %again")
    b.line("again:")
    b.line(f"%here = phi i64 [{thread.text}, %entry], [%there, %again]")
    b.line("%after = add i64 %here, 1")
    b.line(f"%wraps = icmp eq i64 %after, {count.text}")
    b.line("%there = select i1 %wraps, i64 0, i64 %after")
    ended = b.load(I64, _of_fibre(b, state, Value(I64, "%there"), Fibre.ENDED))
    b.branch(b.compare("eq", ended, number(I64, 0)), "found", "again")
    b.label("found")
    b.ret(Value(I64, "%there"))


def _write_yield(module: Module) -> None:
    """`grid.yield(state)`: switch to the next thread; returns when all others have run."""
    b = module.function("grid.yield", [POINTER], attributes="noinline nounwind")
    (state,) = b.parameters
    idle = _add(b, b.element(state, "i64", number(I64, Slot.IDLE)), 1)
    limit = b.binary("mul", _get(b, state, Slot.THREADS), number(I64, 4))
    with b.when(b.compare("sgt", idle, limit)):
        b.call("llvm.trap", VOID)
    here = _get(b, state, Slot.THREAD)
    there = b.emit(I64, f"call i64 @grid.next({state}, {here})")
    _put(b, state, Slot.THREAD, there)
    save = _of_fibre(b, state, here, Fibre.STACK)
    stack = b.load(I64, _of_fibre(b, state, there, Fibre.STACK))
    with b.when(b.compare("ne", here, there)):
        b.line(f"call void @grid.switch({save}, {stack})")


def _write_wait(module: Module) -> None:
    """`grid.wait(state, arrived, passed, count)`: wait at a barrier of `count` threads."""
    b = module.function("grid.wait", [POINTER, POINTER, POINTER, I64], VOID, "noinline nounwind")
    state, arrived, passed, count = b.parameters
    before = b.load(I64, passed)
    _put(b, state, Slot.IDLE, number(I64, 0))
    here = _add(b, arrived, 1)
    b.branch(b.compare("eq", here, count), "last", "wait")
    b.label("last")
    b.store(number(I64, 0), arrived)
    _add(b, passed, 1)
    b.ret()
    b.label("wait")
    b.line(f"call void @grid.yield({state})")
    b.branch(b.compare("eq", b.load(I64, passed), before), "wait", "done")
    b.label("done")


def _write_fibre(module: Module) -> None:
    """`grid.fibre(state)`: the function of a fibre: runs its thread, then switches for good."""
    b = module.function("grid.fibre", [POINTER], attributes="noinline nounwind")
    (state,) = b.parameters
    here = _get(b, state, Slot.THREAD)
    end = b.binary("mul", b.binary("add", here, number(I64, 1)), number(I64, STACK_BYTES))
    top = b.binary("add", _get(b, state, Slot.STACKS), end)
    stack = b.emit(POINTER, f"inttoptr {top} to ptr")
    thread = b.load(POINTER, b.element(stack, "i64", number(I64, -1)))
    b.line(f"call void {thread.text}({state})")
    b.store(number(I64, 1), _of_fibre(b, state, here, Fibre.ENDED))
    _put(b, state, Slot.IDLE, number(I64, 0))
    live = _add(b, b.element(state, "i64", number(I64, Slot.LIVE)), -1)
    arrived = b.element(state, "i64", number(I64, Slot.ARRIVED))
    waiting = b.load(I64, arrived)
    some = b.compare("ne", waiting, number(I64, 0))
    with b.when(b.binary("and", some, b.compare("eq", waiting, live))):
        b.store(number(I64, 0), arrived)
        _add(b, b.element(state, "i64", number(I64, Slot.BARRIERS)), 1)
    save = _of_fibre(b, state, here, Fibre.STACK)
    with b.when(b.compare("eq", live, number(I64, 0))):
        b.line(f"call void @grid.switch({save}, {_get(b, state, Slot.CALLER)})")
    there = b.emit(I64, f"call i64 @grid.next({state}, {here})")
    _put(b, state, Slot.THREAD, there)
    stack = b.load(I64, _of_fibre(b, state, there, Fibre.STACK))
    b.line(f"call void @grid.switch({save}, {stack})")


def _write_barrier(module: Module) -> None:
    b = module.function("grid.barrier", [POINTER], attributes="noinline nounwind")
    (state,) = b.parameters
    places = [b.element(state, "i64", number(I64, s)) for s in (Slot.ARRIVED, Slot.BARRIERS)]
    live = _get(b, state, Slot.LIVE)
    b.line(f"call void @grid.wait({', '.join(map(str, [state, *places, live]))})")


def _wait_for_warp(b: Builder, state: Value) -> Value:
    """Wait for the warp; returns its first thread."""
    here = _get(b, state, Slot.THREAD)
    first = b.binary("and", here, number(I64, -WARP))
    words = Fibre.WARP_ARRIVED, Fibre.WARP_BARRIERS
    places = [_of_fibre(b, state, first, word) for word in words]
    given = ", ".join(map(str, [state, *places, number(I64, WARP)]))
    b.line(f"call void @grid.wait({given})")
    return first


def _write_warp(module: Module) -> None:
    b = module.function("grid.warp", [POINTER], attributes="noinline nounwind")
    _wait_for_warp(b, b.parameters[0])


def _write_lane(module: Module) -> None:
    """Every lane stores its value, all wait, each loads one, all wait."""
    b = module.function("grid.lane", [POINTER, I32, I32], I32, "noinline nounwind")
    state, value, lane = b.parameters
    here = _get(b, state, Slot.THREAD)
    b.store(b.convert("zext", value, "i64"), _of_fibre(b, state, here, Fibre.EXCHANGED))
    first = _wait_for_warp(b, state)
    within = b.convert("zext", b.binary("and", lane, number(I32, WARP - 1)), "i64")
    source = _of_fibre(b, state, b.binary("add", first, within), Fibre.EXCHANGED)
    found = b.load(I64, source)
    _wait_for_warp(b, state)
    b.ret(b.convert("trunc", found, "i32"))


_MEETINGS: dict[str, Callable[[Module], None]] = {
    "grid.barrier": _write_barrier,
    "grid.warp": _write_warp,
    "grid.lane": _write_lane,
}
