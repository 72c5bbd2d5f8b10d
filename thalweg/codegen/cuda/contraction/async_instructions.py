"""Asynchronous instructions: barriers in shared memory (mbarrier), and copies by the copy engine
that arrive at them (TMA).

On an emulated grid each is a function with the same meaning. A barrier is a word with the pending
arrivals, the total arrivals and the phase, and a word with the pending bytes; a waiting thread
yields to others. Copies are synchronous.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.helpers import (
    Helpers,
    inline,
    shared_address,
)
from thalweg.codegen.cuda.contraction.tf32 import rounded_to_even
from thalweg.codegen.cuda.emulation import Slot
from thalweg.codegen.cuda.tensor_map import MAX_RANK, MapWord
from thalweg.codegen.llvm.builder import I8, I32, I64, POINTER, VOID, Builder, Value, constant

BARRIER_BYTES = 8
_PHASE = 1 << 30  # a bit of the first word; the total arrivals are above the pending ones
_COUNT_SHIFT, _COUNT_MASK = 12, (1 << 12) - 1


class AsyncInstructions:
    """The barriers and copies of an entry. Barriers and tiles are in shared memory."""

    def __init__(self, frame: GridFrame) -> None:
        self.frame = frame
        self._helpers = Helpers(frame)
        self._emulated = frame.target.is_emulated

    # Barriers

    def init(self, barrier: Value, arrivals: int) -> None:
        """Initialize a barrier whose phase ends after `arrivals` and the bytes they announce."""
        b = self.frame.b
        if self._emulated:
            b.store(constant(I32, arrivals | arrivals << _COUNT_SHIFT), barrier)
            b.store(constant(I32, 0), self.frame.at_byte(barrier, 4))
            return
        given = [shared_address(b, barrier)]
        inline(b, VOID, f"mbarrier.init.shared::cta.b64 [$0], {arrivals};", "r,~{memory}", given)

    def publish(self) -> None:
        """Make the barriers that this thread initialized visible to the copy engine."""
        if not self._emulated:
            inline(self.frame.b, VOID, "fence.mbarrier_init.release.cluster;", "~{memory}")

    def arrive(self, barrier: Value, announced: int = 0) -> None:
        """Arrive, and announce the bytes that copies transfer in this phase."""
        b = self.frame.b
        if self._emulated:
            given = [barrier, constant(I32, 1), constant(I32, announced)]
            self._helpers.call("emulated.mbarrier.arrive", VOID, given, write_arrive)
            return
        form = f".expect_tx.shared::cta.b64 _, [$0], {announced};"
        text = f"mbarrier.arrive{form if announced else '.shared::cta.b64 _, [$0];'}"
        inline(b, VOID, text, "r,~{memory}", [shared_address(b, barrier)])

    def wait(self, barrier: Value, parity: Value) -> None:
        """Wait until the phase with a parity (i32) has ended."""
        b = self.frame.b
        if self._emulated:
            given = [barrier, parity]
            self._helpers.call("emulated.mbarrier.wait", VOID, given, write_wait)
            return
        text = (
            "{ .reg .pred p; W${:uid}: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; "
            "@!p bra W${:uid}; }"
        )
        inline(b, VOID, text, "r,r,~{memory}", [shared_address(b, barrier), parity])

    def publish_writes(self) -> None:
        """Make this thread's writes to shared memory visible to tensor cores."""
        if not self._emulated:
            inline(self.frame.b, VOID, "fence.proxy.async.shared::cta;", "~{memory}")

    # Registers

    def take_registers(self, count: int) -> None:
        """Increase the registers of each thread; all warps of the group must do so. Waits until
        others have released theirs."""
        if not self._emulated:
            inline(self.frame.b, VOID, f"setmaxnreg.inc.sync.aligned.u32 {count};", "~{memory}")

    def leave_registers(self, count: int) -> None:
        """Decrease the registers of each thread."""
        if not self._emulated:
            inline(self.frame.b, VOID, f"setmaxnreg.dec.sync.aligned.u32 {count};", "~{memory}")

    # Copies

    def prefetch(self, tensor_map: Value) -> None:
        """Prefetch a tensor map."""
        if not self._emulated:
            b = self.frame.b
            address = b.emit(I64, f"ptrtoint {tensor_map} to i64")
            inline(b, VOID, "prefetch.tensormap [$0];", "l,~{memory}", [address])

    def copy_box(
        self, tensor_map: Value, destination: Value, barrier: Value, at: Sequence[Value]
    ) -> None:
        """Begin to copy the box at coordinates (i32, innermost first)."""
        b, rank = self.frame.b, len(at)
        if self._emulated:
            zero = constant(I32, 0)
            given = [tensor_map, destination, barrier, *at, *[zero] * (MAX_RANK - rank)]
            self._helpers.call("emulated.tma.box", VOID, given, _write_box)
            return
        places = ", ".join(f"${2 + n}" for n in range(rank))
        text = (
            f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
            f"[$0], [$1, {{{places}}}], [${2 + rank}];"
        )
        constraints = ",".join(["r", "l", *["r"] * (rank + 1), "~{memory}"])
        inline(b, VOID, text, constraints, self._copied(tensor_map, destination, at, barrier))

    def prefetch_box(self, tensor_map: Value, at: Sequence[Value]) -> None:
        """Prefetch the box at coordinates (i32, innermost first) to the L2 cache."""
        if self._emulated:
            return
        b, rank = self.frame.b, len(at)
        places = ", ".join(f"${1 + n}" for n in range(rank))
        text = f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global [$0, {{{places}}}];"
        whole = b.emit(I64, f"ptrtoint {tensor_map} to i64")
        inline(b, VOID, text, ",".join(["l", *["r"] * rank, "~{memory}"]), [whole, *at])

    def store_box(self, tensor_map: Value, source: Value, at: Sequence[Value]) -> None:
        """Begin to copy shared memory to the box at coordinates (i32, innermost first)."""
        b, rank = self.frame.b, len(at)
        if self._emulated:
            given = [tensor_map, source, *at, *[constant(I32, 0)] * (MAX_RANK - rank)]
            self._helpers.call("emulated.tma.store", VOID, given, _write_store)
            return
        places = ", ".join(f"${1 + n}" for n in range(rank))
        text = (
            f"cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group "
            f"[$0, {{{places}}}], [${1 + rank}];"
        )
        whole = b.emit(I64, f"ptrtoint {tensor_map} to i64")
        constraints = ",".join(["l", *["r"] * (rank + 1), "~{memory}"])
        inline(b, VOID, text, constraints, [whole, *at, shared_address(b, source)])

    def commit_stores(self) -> None:
        """Commit the copies to memory since the last commit as a group."""
        if not self._emulated:
            inline(self.frame.b, VOID, "cp.async.bulk.commit_group;", "~{memory}")

    def wait_stores(self, groups: int) -> None:
        """Wait until all groups of this thread's copies but the last `groups` have been read from
        shared memory, which can then be overwritten."""
        if not self._emulated:
            text = f"cp.async.bulk.wait_group.read {groups};"
            inline(self.frame.b, VOID, text, "~{memory}")

    def copy_windows(
        self,
        tensor_map: Value,
        destination: Value,
        barrier: Value,
        at: Sequence[Value],
        taps: Sequence[Value],
    ) -> None:
        """Begin to copy one tap (width, height) of the windows from given coordinates on."""
        b = self.frame.b
        if self._emulated:
            given = [tensor_map, destination, barrier, *at, *taps]
            self._helpers.call("emulated.tma.im2col", VOID, given, _write_windows)
            return
        text = (
            "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
            "[$0], [$1, {$2, $3, $4, $5}], [$6], {$7, $8};"
        )
        given = self._copied(tensor_map, destination, at, barrier)
        given += [b.convert("trunc", tap, "i16") for tap in taps]
        inline(b, VOID, text, "r,l,r,r,r,r,r,h,h,~{memory}", given)

    def _copied(
        self, tensor_map: Value, destination: Value, at: Sequence[Value], barrier: Value
    ) -> list[Value]:
        b = self.frame.b
        whole = b.emit(I64, f"ptrtoint {tensor_map} to i64")
        return [shared_address(b, destination), whole, *at, shared_address(b, barrier)]


# Emulation


def _word(b: Builder, base: Value, number: int) -> Value:
    return b.load(I32, b.element(base, "i32", number))


def write_arrive(b: Builder) -> None:
    """`(grid, barrier, arrivals, bytes)`: arrivals, and bytes that are announced or, if negative,
    have arrived; the last arrival begins the next phase."""
    grid, barrier, arrivals, announced = b.parameters
    b.store(constant(I64, 0), b.element(grid, "i64", Slot.IDLE))
    rest = b.element(barrier, "i32", 1)
    state = b.binary("sub", b.load(I32, barrier), arrivals)
    missing = b.binary("add", b.load(I32, rest), announced)
    b.store(missing, rest)
    pending = b.binary("and", state, _COUNT_MASK)
    over = b.binary("or", pending, missing)
    count = b.binary("lshr", state, _COUNT_SHIFT)
    count = b.binary("and", count, _COUNT_MASK)
    following = b.binary("xor", b.binary("or", state, count), _PHASE)
    is_over = b.compare("eq", over, 0)
    b.store(b.select(is_over, following, state), barrier)


def write_wait(b: Builder) -> None:
    """`(grid, barrier, parity)`: yield to others until the phase with a parity has ended."""
    grid, barrier, parity = b.parameters
    b.jump("again")
    b.label("again")
    phase = b.binary("and", b.load(I32, barrier), _PHASE)
    current = b.convert("zext", b.compare("ne", phase, 0), "i32")
    b.branch(b.compare("eq", current, parity), "wait", "over")
    b.label("wait")
    b.line(f"call void @grid.yield({grid})")
    b.jump("again")
    b.label("over")


def _swizzled(b: Builder, tensor: Value, tile: Value, offset: Value) -> Value:
    """The swizzled address of a byte of a box: the 16-byte pieces of a line are permuted by the
    index of its 128 bytes."""
    box, size = (_word(b, tensor, number) for number in (MapWord.BOX, MapWord.ITEMSIZE))
    pieces = b.binary("lshr", b.binary("mul", box, size), 4)
    mask = b.binary("sub", pieces, 1)
    line = b.binary("and", b.binary("lshr", offset, 7), mask)
    moved = b.binary("xor", offset, b.binary("shl", line, 4))
    return b.element(tile, "i8", moved)


def _put(
    b: Builder, tensor: Value, target: Value, source: Value, inside: Value, size: Value
) -> None:
    """Store an element, or zeros if it is out of bounds; rounded if the map requires it."""
    with b.loop(constant(I32, 0), size, constant(I32, 1)) as loop:
        byte = b.choose(
            inside,
            lambda: b.load(I8, b.element(source, "i8", loop.index)),
            lambda: constant(I8, 0),
        )
        b.store(byte, b.element(target, "i8", loop.index))
    is_rounded = _word(b, tensor, MapWord.IS_ROUNDED)
    with b.when(b.compare("ne", is_rounded, 0)):
        b.store(rounded_to_even(b, b.load(I32, target)), target)


def _element(b: Builder, tensor: Value, at: Sequence[Value], size: Value) -> tuple[Value, Value]:
    """The address of an element at coordinates, and whether it is inside of the tensor."""
    low, high = (b.convert("zext", _word(b, tensor, MapWord.ADDRESS + n), "i64") for n in range(2))
    address = b.binary("or", low, b.binary("shl", high, 32))
    inside = constant(Value(I32, "").type.like("i1"), True)
    offset = b.binary("mul", b.convert("sext", at[0], "i64"), b.convert("zext", size, "i64"))
    for axis, place in enumerate(at):
        extent = _word(b, tensor, MapWord.EXTENTS + axis)
        inside = b.binary("and", inside, b.compare("ult", place, extent))
        if axis:
            stride = b.convert("zext", _word(b, tensor, MapWord.STRIDES + axis - 1), "i64")
            stride = b.binary("mul", stride, 16)
            step = b.binary("mul", b.convert("sext", place, "i64"), stride)
            offset = b.binary("add", offset, step)
    found = b.emit(POINTER, f"inttoptr {b.binary('add', address, offset)} to ptr")
    return found, inside


def _arrived(b: Builder, grid: Value, barrier: Value, count: Value) -> None:
    """Record the arrival of bytes."""
    less = b.binary("sub", constant(I32, 0), count)
    b.line(f"call void @emulated.mbarrier.arrive({grid}, {barrier}, i32 0, {less})")


def _write_box(b: Builder) -> None:
    grid, tensor, destination, barrier, *at = b.parameters
    with _elements_of_box(b, tensor, at) as (source, inside, offset, size):
        _put(b, tensor, _swizzled(b, tensor, destination, offset), source, inside, size)
    _arrived(b, grid, barrier, _box_bytes(b, tensor))


def _write_store(b: Builder) -> None:
    _, tensor, source, *at = b.parameters
    with (
        _elements_of_box(b, tensor, at) as (target, inside, offset, size),
        b.when(inside),
        b.loop(constant(I32, 0), size, constant(I32, 1)) as loop,
    ):
        byte = b.load(I8, b.element(_swizzled(b, tensor, source, offset), "i8", loop.index))
        b.store(byte, b.element(target, "i8", loop.index))


def _box_bytes(b: Builder, tensor: Value) -> Value:
    total = _word(b, tensor, MapWord.ITEMSIZE)
    for axis in range(MAX_RANK):
        total = b.binary("mul", total, _word(b, tensor, MapWord.BOX + axis))
    return total


@contextmanager
def _elements_of_box(
    b: Builder, tensor: Value, at: Sequence[Value]
) -> Generator[tuple[Value, Value, Value, Value]]:
    """A loop over the box at coordinates: the address of an element, whether it is inside of the
    tensor, its offset from the start of the box in shared memory, and its size."""
    size = _word(b, tensor, MapWord.ITEMSIZE)
    with b.loop(constant(I32, 0), _box_bytes(b, tensor), size) as loop:
        rest, places = b.binary("udiv", loop.index, size), list[Value]()
        for axis, start in enumerate(at):
            extent = _word(b, tensor, MapWord.BOX + axis)
            places.append(b.binary("add", start, b.binary("urem", rest, extent)))
            rest = b.binary("udiv", rest, extent)
        yield *_element(b, tensor, places, size), loop.index, size


def _write_windows(b: Builder) -> None:
    """Copies pixels along the width; after the last one of a row or image come the next ones."""
    grid, tensor, destination, barrier, channel, *start, tap_w, tap_h = b.parameters
    size, one = _word(b, tensor, MapWord.ITEMSIZE), constant(I32, 1)
    channels, pixels = (_word(b, tensor, n) for n in (MapWord.CHANNELS, MapWord.PIXELS))
    with b.loop(constant(I32, 0), pixels, one, start) as pixel:
        w, h, n = pixel.carried
        with b.loop(constant(I32, 0), channels, one) as loop:
            at = [b.binary("add", channel, loop.index), b.binary("add", w, tap_w)]
            at += [b.binary("add", h, tap_h), n]
            source, inside = _element(b, tensor, at, size)
            index = b.binary("add", b.binary("mul", pixel.index, channels), loop.index)
            target = _swizzled(b, tensor, destination, b.binary("mul", index, size))
            _put(b, tensor, target, source, inside, size)
        following, carry = list[Value](), one
        for axis, place in enumerate((w, h)):
            step = b.binary("mul", carry, _word(b, tensor, MapWord.STEPS + 1 + axis))
            moved = b.binary("add", place, step)
            extent = _word(b, tensor, MapWord.EXTENTS + 1 + axis)
            end = b.binary("add", extent, _word(b, tensor, MapWord.UPPER + axis))
            beyond = b.compare("sge", moved, end)
            following.append(b.select(beyond, _word(b, tensor, MapWord.LOWER + axis), moved))
            carry = b.convert("zext", beyond, "i32")
        pixel.next = [*following, b.binary("add", n, carry)]
    total = b.binary("mul", b.binary("mul", pixels, channels), size)
    _arrived(b, grid, barrier, total)
