"""Helper functions of a kernel's text, emitted once per module, for either machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.llvm.builder import POINTER, Builder, Module, Type, Value


def struct(kind: Type, count: int) -> Type:
    """The type of several values that a function returns."""
    return Type("{ " + ", ".join([kind.text] * count) + " }")


def unpacked(b: Builder, whole: Value, kind: Type, count: int) -> list[Value]:
    """The values of a structure."""
    return [b.emit(kind, f"extractvalue {whole}, {n}") for n in range(count)]


def packed(b: Builder, values: Sequence[Value]) -> Value:
    """Values of one type as a structure."""
    kind = struct(values[0].type, len(values))
    whole = Value(kind, "poison")
    for number, value in enumerate(values):
        whole = b.emit(kind, f"insertvalue {whole}, {value}, {number}")
    return whole


def inline(
    b: Builder, result: Type, text: str, constraints: str, arguments: Sequence[Value] = ()
) -> Value:
    """Inline PTX, convergent over a warp."""
    given = ", ".join(map(str, arguments))
    call = f'call {result} asm sideeffect "{text}", "{constraints}"({given}) convergent nounwind'
    if result.scalar == "void":
        b.line(call)
        return Value(result, "")
    return b.emit(result, call)


class Helpers:
    """The helper functions of a module."""

    def __init__(self, frame: GridFrame) -> None:
        self.frame = frame
        self._module: Module = frame.b.module

    def call(
        self,
        name: str,
        result: Type,
        arguments: Sequence[Value],
        write: Callable[[Builder], None],
    ) -> Value:
        """Call a function of the grid and some arguments, which `write` emits on the first call."""
        kinds = [POINTER, *(a.type for a in arguments)]
        if not self._module.has_function(name):
            write(self._module.function(name, kinds, result, "noinline nounwind"))
        given = ", ".join(map(str, [self.frame.grid.context, *arguments]))
        if result.scalar == "void":
            self.frame.b.line(f"call void @{name}({given})")
            return Value(result, "")
        return self.frame.b.emit(result, f"call {result} @{name}({given})")


def shared_address(b: Builder, address: Value) -> Value:
    """An address in the shared address space (i32), for instructions."""
    local = b.emit(Type("ptr addrspace(3)"), f"addrspacecast {address} to ptr addrspace(3)")
    return b.emit(Type("i32"), f"ptrtoint {local} to i32")


def global_address(b: Builder, address: Value) -> Value:
    """An address in the global address space (i64), for instructions."""
    far = b.emit(Type("ptr addrspace(1)"), f"addrspacecast {address} to ptr addrspace(1)")
    return b.emit(Type("i64"), f"ptrtoint {far} to i64")
