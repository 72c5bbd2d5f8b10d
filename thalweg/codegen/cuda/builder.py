"""Instructions for threads of a grid: vectors are a few elements of one thread, masks are branches.

A GPU has wide loads and stores, but no masks. A mask that is uniform over its lanes is one branch;
otherwise lanes are processed one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import reduce

from thalweg.codegen.llvm.builder import (
    I1,
    I64,
    VOID,
    Builder,
    Module,
    Operand,
    Type,
    Value,
    alignment,
    constant,
    operand,
)

#: The widest access, in bytes; buffers of an aligned kernel begin at multiples of it.
WIDEST = 16


class GridBuilder(Builder):
    """A builder of a function of a grid."""

    def __init__(
        self,
        module: Module,
        name: str,
        parameters: Sequence[Type],
        result: Type,
        attributes: str,
    ) -> None:
        super().__init__(module, name, parameters, result, attributes)
        self._uniform: dict[str, Value] = {}  # vectors that are uniform over their lanes

    # Uniform vectors

    def splat(self, value: Value, lanes: int) -> Value:
        result = super().splat(value, lanes)
        if value.type.lanes == 1:
            self._uniform[result.text] = value
        return result

    def binary(self, operation: str, a: Value, b: Operand) -> Value:
        if operation in ("and", "or", "xor") and a.type.lanes > 1 and a.type.scalar == "i1":
            one, other = self.uniform_value(a), self.uniform_value(operand(a.type, b))
            if one is not None and other is not None:
                return self.splat(super().binary(operation, one, other), a.type.lanes)
        return super().binary(operation, a, b)

    def uniform_value(self, mask: Value) -> Value | None:
        """The scalar that all lanes of a vector equal, if it is known to be uniform."""
        if mask.type.lanes == 1:
            return mask
        if mask.text.startswith("splat ("):
            return Value(I1, mask.text.removeprefix("splat (i1 ").removesuffix(")"))
        return self._uniform.get(mask.text)

    def _any_lane(self, mask: Value) -> Value:
        lanes = [self.extract(mask, lane) for lane in range(mask.type.lanes)]
        return reduce(lambda one, other: self.binary("or", one, other), lanes)

    # Memory

    def load(
        self, kind: Type, address: Value, mask: Value | None = None, aligned: int = 1
    ) -> Value:
        if mask is None:
            return self._whole_load(kind, address, aligned)
        one = self.uniform_value(mask)
        if one is None and aligned >= kind.lanes:
            one = self._any_lane(mask)  # an aligned vector is inside as a whole or not at all
        if one is not None:
            return self.choose(
                one, lambda: self._whole_load(kind, address, aligned), lambda: constant(kind, 0)
            )
        address_of = self._lanes_from(kind, address)
        return self._each_lane(kind, mask, lambda lane: self.load(kind.of(1), address_of(lane)))

    def _whole_load(self, kind: Type, address: Value, aligned: int) -> Value:
        align = self.claim_alignment(kind, address, aligned)
        return self.emit(kind, f"load {kind}, {address}, align {align}")

    def claim_alignment(self, kind: Type, address: Value, aligned: int) -> int:
        """The alignment to claim for an access. A GPU traps on a misaligned access; the host
        tolerates most, so the emulation checks the address and traps, too."""
        align = min(aligned * alignment(kind), WIDEST)
        if self.module.checks_alignment and align > alignment(kind):
            place = self.emit(I64, f"ptrtoint {address} to i64")
            rest = self.binary("and", place, align - 1)
            with self.when(self.compare("ne", rest, 0)):
                self.call("llvm.debugtrap", VOID)
        return align

    def store(
        self, value: Value, address: Value, mask: Value | None = None, aligned: int = 1
    ) -> None:
        if mask is None:
            align = self.claim_alignment(value.type, address, aligned)
            self.line(f"store {value}, {address}, align {align}")
            return
        one = self.uniform_value(mask)
        if one is not None:
            with self.when(one):
                self.store(value, address, None, aligned)
            return
        address_of = self._lanes_from(value.type, address)
        for lane in range(value.type.lanes):
            with self.lane(mask, lane):
                self.store(self.extract(value, lane), address_of(lane))

    def gather(self, kind: Type, addresses: Value, mask: Value | None) -> Value:
        def element(lane: int) -> Value:
            return self.load(kind.of(1), self.extract(addresses, lane))

        one = None if mask is None else self.uniform_value(mask)
        if mask is not None and one is None:
            return self._each_lane(kind, mask, element)
        if one is not None:
            return self.choose(
                one, lambda: self._each_lane(kind, None, element), lambda: constant(kind, 0)
            )
        return self._each_lane(kind, None, element)

    def scatter(self, value: Value, addresses: Value, mask: Value | None) -> None:
        for lane in range(value.type.lanes):
            with self.lane(mask, lane):
                self.store(self.extract(value, lane), self.extract(addresses, lane))

    @contextmanager
    def lane(self, mask: Value | None, lane: int) -> Generator[None]:
        """Emit code for a lane, which runs if its mask is set."""
        if mask is None:
            yield
            return
        one = self.uniform_value(mask)
        with self.when(self.extract(mask, lane) if one is None else one):
            yield

    def _lanes_from(self, kind: Type, address: Value) -> Callable[[int], Value]:
        """The addresses of consecutive lanes."""
        return lambda lane: self.element(address, kind.scalar, lane)

    def _each_lane(self, kind: Type, mask: Value | None, element: Callable[[int], Value]) -> Value:
        """A vector of elements that are computed one by one; masked-off ones are zero."""
        if mask is None:
            return self.from_lanes(kind, element)

        def masked(lane: int) -> Value:
            zero = constant(kind.of(1), 0)
            return self.choose(self.extract(mask, lane), lambda: element(lane), lambda: zero)

        return self.from_lanes(kind, masked)
