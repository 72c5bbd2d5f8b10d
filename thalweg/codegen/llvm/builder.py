"""LLVM text: typed values, instructions, structured loops and branches.

A `Builder` emits one function. Instructions are methods that take and return `Value`s; scalars and
vectors differ in their type alone, so code written for one lane works for sixteen. `Module.text` is
what LLVM parses.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from thalweg.platform.caches import memoized


@dataclass(frozen=True)
class Type:
    """A scalar type of LLVM, or a vector of `lanes` of them."""

    scalar: str
    lanes: int = 1

    @cached_property
    def text(self) -> str:
        """The type as LLVM reads it."""
        return self.scalar if self.lanes == 1 else f"<{self.lanes} x {self.scalar}>"

    def __str__(self) -> str:
        return self.text

    def of(self, lanes: int) -> Type:
        """The type of the same element in another number of lanes."""
        return _type(self.scalar, lanes)

    def like(self, scalar: str) -> Type:
        """The type of another element in the same number of lanes."""
        return _type(scalar, self.lanes)

    @cached_property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.scalar in _FLOAT_BITS

    @cached_property
    def bits(self) -> int:
        """The width of an element."""
        return _FLOAT_BITS.get(self.scalar) or (
            64 if self.scalar == "ptr" else int(self.scalar[1:])
        )


@memoized(1_000)
def _type(scalar: str, lanes: int) -> Type:
    """A shared object per type, with its properties cached."""
    return Type(scalar, lanes)


_FLOAT_BITS = {"half": 16, "bfloat": 16, "float": 32, "double": 64}

_SIGNED_RANGES = {f"i{bits}": 1 << (bits - 1) for bits in (8, 16, 32, 64)}

I1, I8, I16, I32, I64 = (Type(f"i{bits}") for bits in (1, 8, 16, 32, 64))
HALF, BFLOAT, FLOAT, DOUBLE = (Type(name) for name in _FLOAT_BITS)
POINTER, VOID = Type("ptr"), Type("void")


# The promises that emitted text makes to LLVM, and why they hold. LLVM relies on all of them, so no
# others are allowed; `tests/codegen/test_claims.py` checks kernels against this list.
#
# align     That of one element, for vectors too: `alignment` below decides for all accesses. CUDA
#           kernels whose buffers are all 16-byte aligned, as the device guarantees per launch,
#           promise that of a vector where all other terms of its offset are multiples of the lanes
#           (`codegen/loops/scope.py`); shared memory is 1024-byte aligned.
# noalias   The buffers of a kernel; `codegen/loops/kernel.py` says why.
# readonly  Buffers of CUDA kernels that the kernel does not store to. No concurrent kernel writes
#           them either, or the two would not be on different streams.
# range     The indices of CUDA threads and blocks, which the hardware limits.
# nsw, nuw  Only on scalar i64: indices, extents, strides and offsets. A buffer has less than 2^47
#           bytes and a kernel no more iterations than that allows, so none comes near 2^63.
#           Loaded data may be any number: indices computed from it, in `codegen/point.py` and
#           `codegen/loops/scope.py`, wrap.
# exact     The start of a box of tiles, in `codegen/contraction/packing.py`: a multiple of a tile.
# inbounds, nontemporal, dereferenceable and the like: never.


def alignment(kind: Type) -> int:
    """The alignment that accesses to a type promise: that of one element, never of a vector.

    A feed may begin at any element. Feeds and constants whose elements are not aligned are copied
    first (`np.require` in `program.py`, `program_template.py` and `control_program.py` of
    `device/cpu/`). Buffers of variables are allocated aligned (`ops/core/context.py`), results are
    NumPy's own; argument words, arena, scratch and stack are 8-byte aligned or better. Offsets in
    all of them count elements.
    """
    return max(kind.bits // 8, 1)


class Value(NamedTuple):
    """An operand of instructions: a register or a constant."""

    type: Type
    text: str
    number: float | None = None  # of a constant integer or float, the same in every lane

    def __str__(self) -> str:
        return f"{self.type.text} {self.text}"


#: A Python number stands for a constant of the type that the instruction needs.
Operand = Value | float


def constant(kind: Type, number: Any) -> Value:
    """A number as a constant, the same in every lane."""
    text, exact = _literal(kind.scalar, number)
    return Value(kind, f"splat ({kind.scalar} {text})" if kind.lanes > 1 else text, exact)


def operand(kind: Type, given: Operand) -> Value:
    """An operand as a value of a type."""
    return given if isinstance(given, Value) else constant(kind, given)


def _literal(scalar: str, number: Any) -> tuple[str, float | None]:
    """A number as LLVM reads it, and its value in that type."""
    if scalar == "i1":
        return "true" if number else "false", None
    if reach := _SIGNED_RANGES.get(scalar):
        wrapped = (int(number) + reach) % (2 * reach) - reach
        return str(wrapped), wrapped
    if scalar == "half":
        return f"0xH{np.float16(number).view(np.uint16):04X}", None
    if scalar == "bfloat":
        return f"0xR{np.asarray(number, ml_dtypes.bfloat16).view(np.uint16)[()]:04X}", None
    with np.errstate(over="ignore"):
        exact = float(np.float32(number)) if scalar == "float" else float(number)
    return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}", exact


class Module:
    """Functions and the declarations they need, as one LLVM text.

    Flags describe the target. `native_fp16`, `native_bf16`: it converts these by instructions; if
    not, LLVM would call a library. `fma`: it has a fused multiply-add. `nan_extremes`: its maximum
    and minimum propagate NaN. `saturates`: float to integer conversions saturate; x86 gives the
    least integer. `packs_words`: a register holds two 16-bit elements. `contracts`: products and
    sums that allow it are contracted. `approximations`: its approximate instructions
    (`Register.approximated`). `checks_alignment`: a misaligned access traps.
    """

    native_bf16 = False
    nan_extremes = False
    saturates = False
    contracts = False
    packs_words = False
    checks_alignment = False
    approximations: Mapping[str, Callable[..., Value]] = MappingProxyType({})

    def __init__(self, native_fp16: bool = False, fma: bool = False) -> None:
        self.native_fp16, self.fma = native_fp16, fma
        self.builder: type[Builder] = Builder  # of functions; targets may have their own
        self._functions: list[Builder] = []
        self._declarations: dict[str, str] = {}

    def function(
        self, name: str, parameters: Sequence[Type], result: Type = VOID, attributes: str = ""
    ) -> Builder:
        """Add a function to emit into. `attributes` follow its parameters (`noinline`, …)."""
        made = self.builder(self, name, parameters, result, attributes)
        self._functions.append(made)
        return made

    def has_function(self, name: str) -> bool:
        """Whether the module has a function of that name."""
        return any(function.name == name for function in self._functions)

    def declare(self, name: str, result: Type, parameters: Sequence[Type]) -> None:
        """Declare a function that is defined elsewhere (an intrinsic), once."""
        if name not in self._declarations:
            given = ", ".join(map(str, parameters))
            self._declarations[name] = f"declare {result} @{name}({given})"

    def table(self, name: str, kind: Type, numbers: Sequence[float]) -> Value:
        """Define a constant array; returns its address."""
        listed = ", ".join(str(constant(kind, number)) for number in numbers)
        form = f"[{len(numbers)} x {kind}]"
        self._declarations[name] = f"@{name} = private unnamed_addr constant {form} [{listed}]"
        return Value(POINTER, f"@{name}")

    def filled(self, kind: Type, number: Any) -> Value:
        """The address of a constant that is a number in every lane."""
        text = _literal(kind.scalar, number)[0]
        name = f"{kind.scalar}.{kind.lanes}.{text}"
        return self.table(name, kind.of(1), [number] * kind.lanes)

    @property
    def text(self) -> str:
        """The module as LLVM parses it."""
        return "\n".join([*self._declarations.values(), *(f.text for f in self._functions)]) + "\n"


@dataclass
class Loop:
    """A loop being emitted: its index, loop-carried values, and their next values."""

    index: Value
    carried: list[Value]
    next: list[Value] = field(default_factory=list[Value])  # set by the body, one per carried value

    @property
    def results(self) -> list[Value]:
        """The carried values after the loop (after no iteration at all: the initial ones)."""
        return self.carried


class Builder:
    """Emits one function."""

    def __init__(
        self, module: Module, name: str, parameters: Sequence[Type], result: Type, attributes: str
    ) -> None:
        self.module = module
        self.name = name
        self.parameters = [Value(kind, f"%p{i}") for i, kind in enumerate(parameters)]
        #: attributes by parameter number, e.g. "noalias"
        self.parameter_attributes: dict[int, str] = {}
        self._result, self._attributes = result, attributes
        self._lines: list[str] = ["entry:"]
        self._stack: list[str] = []
        self.current = "entry"  # the name of the current block
        self._available: dict[str, Value] = {}  # pure instructions of this block and their results
        self._count = 0

    @property
    def text(self) -> str:
        """The function as LLVM parses it."""
        given = ", ".join(
            f"{p.type} {self.parameter_attributes.get(i, '')} {p.text}"
            for i, p in enumerate(self.parameters)
        )
        # An inlined function needs no code of its own.
        linkage = "internal " if "alwaysinline" in self._attributes else ""
        head = f"define {linkage}{self._result} @{self.name}({given}) {self._attributes} {{"
        entry, *others = self._lines
        if self._result == VOID and not self._lines[-1].startswith(("  ret ", "  br ")):
            others.append("  ret void")
        return "\n".join([head, entry, *self._stack, *others, "}"])

    def uses(self, value: Value) -> bool:
        """Whether any instruction so far uses a value."""
        whole = re.compile(rf"{re.escape(value.text)}\b")
        return any(map(whole.search, self._lines))

    # Instructions

    def emit(self, kind: Type, instruction: str) -> Value:
        """Emit an instruction with a result."""
        self._count += 1
        name = f"%v{self._count}"
        self._lines.append(f"  {name} = {instruction}")
        return Value(kind, name)

    def pure(self, kind: Type, instruction: str) -> Value:
        """Emit an instruction without side effects, unless this block has it already (CSE)."""
        known = self._available.get(instruction)
        if known is None:
            known = self._available[instruction] = self.emit(kind, instruction)
        return known

    def line(self, instruction: str) -> None:
        """Emit an instruction without a result."""
        self._lines.append(f"  {instruction}")

    def binary(self, operation: str, a: Value, b: Operand) -> Value:
        """`add`, `fmul contract`, `and`, `shl`, … of two values of one type."""
        kind = a.type
        return self.pure(kind, f"{operation} {kind.text} {a.text}, {operand(kind, b).text}")

    def compare(self, predicate: str, a: Value, b: Operand) -> Value:
        """`slt`, `eq` of integers, `olt`, `une` of floats."""
        kind = "fcmp" if a.type.is_float else "icmp"
        return self.pure(a.type.like("i1"), f"{kind} {predicate} {a}, {operand(a.type, b).text}")

    def select(self, condition: Value, chosen: Value, otherwise: Operand) -> Value:
        """One of two values, lane by lane."""
        other = operand(chosen.type, otherwise)
        return self.pure(chosen.type, f"select {condition}, {chosen}, {other}")

    def negation(self, condition: Value) -> Value:
        """Whether a condition does not hold, lane by lane."""
        return self.binary("xor", condition, True)

    def convert(self, operation: str, value: Value, scalar: str) -> Value:
        """`sext`, `trunc`, `sitofp`, `fpext`, `bitcast`, … to another element type."""
        kind = value.type.like(scalar)
        return self.pure(kind, f"{operation} {value} to {kind}")

    def call(self, name: str, result: Type, *arguments: Value, flags: str = "") -> Value:
        """Call an intrinsic or an external function, which is declared if needed."""
        self.module.declare(name, result, [a.type for a in arguments])
        given = ", ".join(map(str, arguments))
        if result == VOID:
            self.line(f"call {result} @{name}({given})")
            return Value(VOID, "")
        return self.emit(result, f"call {flags} {result} @{name}({given})")

    def intrinsic(self, name: str, *arguments: Value, flags: str = "") -> Value:
        """An intrinsic over one type: `fma` of <16 x float> is llvm.fma.v16f32."""
        kind = arguments[0].type
        return self.call(f"llvm.{name}.{suffix(kind)}", kind, *arguments, flags=flags)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a · b + c, rounded once if the target has a fused multiply-add."""
        if self.module.fma:
            return self.intrinsic("fma", a, b, c)
        return self.binary("fadd", c, self.binary("fmul", a, b))

    def uniform_value(self, mask: Value) -> Value | None:
        """The scalar that all lanes of a value have, if it is known to be uniform."""
        return mask if mask.type.lanes == 1 else None

    def any(self, mask: Value) -> Value:
        """Whether a condition holds in any lane."""
        if mask.type.lanes == 1:
            return mask
        return self.call(f"llvm.vector.reduce.or.{suffix(mask.type)}", I1, mask)

    def shuffle(self, first: Value, second: Value | None, lanes: Sequence[int]) -> Value:
        """Select lanes of one vector, or of two concatenated."""
        other = Value(first.type, "poison") if second is None else second
        numbers = ", ".join(f"i32 {lane}" for lane in lanes)
        mask = f"<{len(lanes)} x i32> <{numbers}>"
        return self.emit(first.type.of(len(lanes)), f"shufflevector {first}, {other}, {mask}")

    def splat(self, value: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        if lanes == 1 or value.type.lanes == lanes:
            return value
        kind = value.type.of(lanes)
        one = self.pure(kind, f"insertelement {kind} poison, {value}, i64 0")
        return self.pure(
            kind, f"shufflevector {one}, {kind} poison, <{lanes} x i32> zeroinitializer"
        )

    def vector(self, numbers: Sequence[Value]) -> Value:
        """A vector of scalars; of one, itself."""
        return self.from_lanes(numbers[0].type.of(len(numbers)), numbers.__getitem__)

    def from_lanes(self, kind: Type, lane: Callable[[int], Value]) -> Value:
        """A vector whose lanes are computed one after another; a scalar has one."""
        if kind.lanes == 1:
            return lane(0)
        vector = Value(kind, "poison")
        for number in range(kind.lanes):
            vector = self.emit(kind, f"insertelement {vector}, {lane(number)}, i64 {number}")
        return vector

    def lane_sum(self, vector: Value) -> Value:
        """The sum of all lanes of a float vector, in any order."""
        kind, name = vector.type.of(1), f"llvm.vector.reduce.fadd.{suffix(vector.type)}"
        return self.call(name, kind, constant(kind, -0.0), vector, flags="reassoc")

    def extract(self, vector: Value, lane: int) -> Value:
        """One lane of a vector; a scalar has one."""
        if vector.type.lanes == 1:
            return vector
        return self.pure(vector.type.of(1), f"extractelement {vector}, i64 {lane}")

    def lanes(self, kind: Type) -> Value:
        """The numbers 0, 1, 2 … in the lanes of an integer vector."""
        numbers = ", ".join(f"{kind.scalar} {i}" for i in range(kind.lanes))
        return Value(kind, f"<{numbers}>") if kind.lanes > 1 else constant(kind, 0)

    def element(self, base: Value, scalar: str, index: Value | int) -> Value:
        """The address of element `index` (of a scalar type) from a base address.

        Not `inbounds`: a window across an edge has addresses outside the buffer, which a mask or a
        guard keeps from being used. `inbounds` changed the code of no kernel.
        """
        at = operand(I64, index)
        return self.pure(POINTER.of(at.type.lanes), f"getelementptr {scalar}, {base}, {at}")

    def stack(self, kind: Type, count: int) -> Value:
        """Allocate an array on the stack of the function; returns its address."""
        self._count += 1
        self._stack.append(f"  %v{self._count} = alloca [{count} x {kind}], align 64")
        return Value(POINTER, f"%v{self._count}")

    def load(
        self, kind: Type, address: Value, mask: Value | None = None, aligned: int = 1
    ) -> Value:
        """Load from an address; of a vector, the lanes of the mask, and zero elsewhere.

        The address is aligned to `aligned` elements.
        """
        align = aligned * alignment(kind)
        if mask is None:
            return self.emit(kind, f"load {kind}, {address}, align {align}")
        name, zero = f"llvm.masked.load.{suffix(kind)}.p0", Value(kind, "zeroinitializer")
        return self.call(name, kind, _aligned(address, align), mask, zero)

    def store(
        self, value: Value, address: Value, mask: Value | None = None, aligned: int = 1
    ) -> None:
        """Store to an address; of a vector, the lanes of the mask.

        The address is aligned to `aligned` elements.
        """
        kind, align = value.type, aligned * alignment(value.type)
        if mask is None:
            self.line(f"store {value}, {address}, align {align}")
            return
        mask = self._opaque_mask(mask) if kind.bits < 32 else mask
        name = f"llvm.masked.store.{suffix(kind)}.p0"
        self.call(name, VOID, value, _aligned(address, align), mask)

    def _opaque_mask(self, mask: Value) -> Value:
        """A mask that LLVM cannot see through. Of a truncated vector with one known lane to store,
        LLVM 22 stores the whole untruncated element, past the end of the buffer."""
        lanes = mask.type.lanes
        packed = self.emit(Type(f"i{lanes}"), f"bitcast {mask} to i{lanes}")
        wide = packed if lanes == 64 else self.emit(I64, f"zext {packed} to i64")
        hidden = self.emit(I64, f'call i64 asm "", "=r,0"({wide})')
        narrow = hidden if lanes == 64 else self.emit(packed.type, f"trunc {hidden} to i{lanes}")
        return self.emit(mask.type, f"bitcast {narrow} to {mask.type}")

    def gather(self, kind: Type, addresses: Value, mask: Value | None) -> Value:
        """Load from a vector of addresses, in the lanes of the mask; others are zero."""
        if mask is not None and kind.bits < 32:
            # Processors gather no narrow elements: LLVM would branch around the load of each.
            zero = self.splat(self.module.filled(kind.of(1), 0), kind.lanes)
            addresses, mask = self.select(mask, addresses, zero), None
        mask = mask or constant(kind.like("i1"), True)
        name = f"llvm.masked.gather.{suffix(kind)}.v{kind.lanes}p0"
        places, zero = _aligned(addresses, alignment(kind)), Value(kind, "zeroinitializer")
        return self.call(name, kind, places, mask, zero)

    def scatter(self, value: Value, addresses: Value, mask: Value | None) -> None:
        """Store to a vector of addresses, in lane order, in the lanes of the mask."""
        kind, mask = value.type, mask or constant(value.type.like("i1"), True)
        name = f"llvm.masked.scatter.{suffix(kind)}.v{kind.lanes}p0"
        self.call(name, VOID, value, _aligned(addresses, alignment(kind)), mask)

    # Control flow

    def label(self, name: str) -> None:
        """Begin a block."""
        self._lines.append(f"{name}:")
        self.current, self._available = name, {}

    def fresh_label(self, hint: str) -> str:
        """A block name not used before."""
        self._count += 1
        return f"{hint}{self._count}"

    def jump(self, label: str) -> None:
        """Branch to a block."""
        self.line(f"br label %{label}")

    def branch(self, condition: Value, then: str, otherwise: str) -> None:
        """Branch to one of two blocks."""
        self.line(f"br {condition}, label %{then}, label %{otherwise}")

    def ret(self, value: Value | None = None) -> None:
        """Return from the function; at its end, one without a result does so by itself."""
        self.line("ret void" if value is None else f"ret {value}")

    @contextmanager
    def loop(
        self, first: Operand, last: Operand, step: Operand = 1, carried: Sequence[Value] = ()
    ) -> Generator[Loop]:
        """`for index in range(first, last, step)` with loop-carried values.

        The body sets `loop.next`; after the block, `loop.results` are the carried values.
        """
        kind = next((one.type for one in (first, last, step) if isinstance(one, Value)), I64)
        start, stop = operand(kind, first), operand(kind, last)
        before, head = self.current, self.fresh_label("loop")
        self.jump(head)
        self.label(head)
        index = self._phi(start.type)
        values = [self._phi(value.type) for value in carried]
        first = len(self._lines) - 1 - len(values)
        body, after = f"{head}.body", f"{head}.end"
        self.branch(self.compare("slt", index, stop), body, after)
        self.label(body)
        made = Loop(index, values)
        yield made
        following = self.binary("add nsw", index, step)
        latch = self.current
        self.jump(head)
        entering, coming = [start, *carried], [following, *made.next]
        for at, (old, new) in enumerate(zip(entering, coming, strict=True)):
            self._lines[first + at] += f" [{old.text}, %{before}], [{new.text}, %{latch}]"
        self.label(after)

    def _phi(self, kind: Type) -> Value:
        return self.emit(kind, f"phi {kind}")

    @contextmanager
    def when(self, condition: Value | None) -> Generator[None]:
        """Emit code that runs only if a scalar condition holds; without one, always."""
        if condition is None:
            yield
            return
        then, after = self.fresh_label("then"), self.fresh_label("after")
        self.branch(condition, then, after)
        self.label(then)
        yield
        self.jump(after)
        self.label(after)

    def choose(
        self, condition: Value, then: Callable[[], Value], otherwise: Callable[[], Value]
    ) -> Value:
        """`if condition: then() else: otherwise()`, and the value of the side that ran."""
        return self.choose_all(condition, lambda: [then()], lambda: [otherwise()])[0]

    def choose_all(
        self,
        condition: Value,
        then: Callable[[], Sequence[Value]],
        otherwise: Callable[[], Sequence[Value]],
    ) -> list[Value]:
        """The same for several values."""
        yes, no, after = (self.fresh_label(name) for name in ("yes", "no", "join"))
        self.branch(condition, yes, no)
        self.label(yes)
        first, left = then(), self.current
        self.jump(after)
        self.label(no)
        second, right = otherwise(), self.current
        self.jump(after)
        self.label(after)
        return [
            self.emit(one.type, f"phi {one.type} [{one.text}, %{left}], [{two.text}, %{right}]")
            for one, two in zip(first, second, strict=True)
        ]


def _aligned(addresses: Value, align: int) -> Value:
    """Addresses as an argument of a call that promises their alignment in bytes."""
    return Value(addresses.type, f"align {align} {addresses.text}")


def suffix(kind: Type) -> str:
    """The suffix of a type in the names of intrinsics: v16f32, i64, v8bf16."""
    letters = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64", "ptr": "p0"}
    name = letters.get(kind.scalar, kind.scalar)
    return name if kind.lanes == 1 else f"v{kind.lanes}{name}"
