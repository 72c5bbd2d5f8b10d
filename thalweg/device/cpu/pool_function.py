"""Functions of a pool's native code, emitted with registers: fields of the pool's memory, atomic
accesses, calls by name or address, guards.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from thalweg.codegen.llvm.builder import I1, POINTER, VOID, Builder, Module, Type, Value, constant
from thalweg.codegen.llvm.register import LlvmRegister as Register


class PoolFunction(Builder):
    """One function. `parameters` are its types; only names with the prefix `thalweg_` are visible
    outside of the module."""

    def __init__(
        self, name: str, parameters: str, result: Type = VOID, attributes: str = ""
    ) -> None:
        kinds = [Type(kind) for kind in parameters.split()]
        super().__init__(Module(), name, kinds, result, attributes)
        self.arguments = [Register(self, parameter) for parameter in self.parameters]
        self.null = Register(self, Value(POINTER, "null"))

    @property
    def text(self) -> str:
        """The function as LLVM parses it."""
        linkage = "" if self.name.startswith("thalweg_") else "internal "
        return super().text.replace("define ", f"define {linkage}", 1)

    def number(self, kind: Type, number: int) -> Register:
        """A constant."""
        return Register(self, constant(kind, number))

    def register(self, kind: Type, instruction: str) -> Register:
        """Emit an instruction with a result."""
        return Register(self, self.emit(kind, instruction))

    # Memory

    def address(self, base: Register, index: Register | int, size: int = 1) -> Register:
        """The address of the byte `index`, or of the element `index` of a size, from a base."""
        at = index.value if isinstance(index, Register) else index
        return Register(self, self.element(base.value, f"[{size} x i8]", at))

    def field(self, kind: Type, base: Register, offset: int) -> Register:
        """Load the field at an offset."""
        return Register(self, self.load(kind, self.address(base, offset).value))

    def set_field(self, base: Register, offset: int, value: Register) -> None:
        """Store to the field at an offset."""
        self.store(value.value, self.address(base, offset).value)

    def atomic_load(self, kind: Type, address: Register, order: str) -> Register:
        """An atomic load."""
        align = kind.bits // 8
        return self.register(kind, f"load atomic {kind}, {address.value} {order}, align {align}")

    def atomic_store(self, value: Register, address: Register, order: str) -> None:
        """An atomic store."""
        align = value.type.bits // 8
        self.line(f"store atomic {value.value}, {address.value} {order}, align {align}")

    def atomic_update(
        self, operation: str, address: Register, value: Register, order: str
    ) -> Register:
        """`xchg`, `add`, …; the value before."""
        instruction = f"atomicrmw {operation} {address.value}, {value.value} {order}"
        return self.register(value.type, instruction)

    def compare_exchange(
        self, address: Register, expected: Register, value: Register, order: str
    ) -> Register:
        """Store a value if the one before is as expected; whether it was. `order` is that of a
        success."""
        given = f"{address.value}, {expected.value}, {value.value}"
        pair = self.emit(Type(f"{{{value.type}, i1}}"), f"cmpxchg {given} {order} monotonic")
        return self.register(I1, f"extractvalue {pair}, 1")

    # Control flow

    def invoke(self, callee: str | Register, result: Type, *given: Register) -> Register:
        """Call a function of the module by its name, or one at an address."""
        name = f"@{callee}" if isinstance(callee, str) else callee.value.text
        call = f"call {result} {name}({', '.join(str(each.value) for each in given)})"
        if result == VOID:
            self.line(call)
            return Register(self, Value(VOID, ""))
        return self.register(result, call)

    def jump(self, label: str) -> None:
        """Branch to a block, unless the current one has ended already."""
        if not self._lines[-1].startswith(("  br label", "  ret ")):
            super().jump(label)

    @contextmanager
    def when(self, condition: Value | Register) -> Generator[None]:
        """Emit code that runs only if a condition holds."""
        with super().when(condition.value if isinstance(condition, Register) else condition):
            yield

    def either(
        self,
        condition: Register,
        then: Callable[[], Register],
        otherwise: Callable[[], Register],
    ) -> Register:
        """`if condition: then() else: otherwise()`, and the value of the side that ran."""
        value = self.choose(condition.value, lambda: then().value, lambda: otherwise().value)
        return Register(self, value)

    def ret(self, value: Value | Register | None = None) -> None:
        """Return from the function."""
        super().ret(value.value if isinstance(value, Register) else value)

    def finish(self, value: Register | None = None) -> str:
        """Return from the function at its end; its text."""
        self.ret(value)
        return self.text

    def return_if(self, condition: Register, value: Register | None = None) -> None:
        """Return if a condition holds."""
        with self.when(condition):
            self.ret(value)

    @contextmanager
    def forever(self, *initial: Register) -> Generator[tuple[list[Register], Callable[..., None]]]:
        """A loop that ends where its body returns from the function: the carried values, and a
        function that begins the next iteration with others."""
        before, head = self.current, self.fresh_label("loop")
        self.jump(head)
        self.label(head)
        first = len(self._lines)
        carried = [
            self.register(each.type, f"phi {each.type} [{each.value.text}, %{before}]")
            for each in initial
        ]

        def again(*following: Register) -> None:
            for line, each in enumerate(following, first):
                self._lines[line] += f", [{each.value.text}, %{self.current}]"
            self.jump(head)

        yield carried, again
