"""The abstract grid: the thread operations of kernels, independent of the machine.

A `GridModule` is a module of kernels. An entry is a function of a grid and of the kernel's argument
words; operations of the grid are calls of `@grid.…`, which the module defines for its machine: by
NVPTX instructions, or on the host, where the threads of a block are fibres on one thread of the
system (`emulation.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.codegen.cuda import emulation, nvptx
from thalweg.codegen.cuda.approximations import approximations
from thalweg.codegen.cuda.builder import GridBuilder
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.llvm.builder import I32, I64, POINTER, VOID, Builder, Module, Type, Value

#: The functions of a grid: the result, and the parameters after the grid itself.
FUNCTIONS: dict[str, tuple[Type, tuple[Type, ...]]] = {
    "grid.thread": (I32, ()),  # in its block
    "grid.threads": (I32, ()),  # of a block
    **{f"grid.block.{axis}": (I32, ()) for axis in "xyz"},
    **{f"grid.blocks.{axis}": (I32, ()) for axis in "xyz"},
    "grid.barrier": (VOID, ()),  # synchronizes the threads of the block
    "grid.warp": (VOID, ()),  # synchronizes the threads of the warp
    "grid.lane": (I32, (I32, I32)),  # the value of another lane of the warp: (value, lane)
    "grid.shared": (POINTER, ()),  # the shared memory of the block
}

#: Synchronizing functions: a thread may wait for others.
SYNCHRONIZING = frozenset({"grid.barrier", "grid.warp", "grid.lane"})


_AMPERE = 80  # the compute capability with rounding to bfloat16, and extremes that propagate NaN


class GridModule(Module):
    """A module whose functions may use the grid, for the machine of a target."""

    def __init__(self, target: CudaTarget) -> None:
        real = not target.is_emulated
        super().__init__(real, real)
        self.builder = GridBuilder
        self.native_bf16 = self.nan_extremes = real and target.capability >= _AMPERE
        self.saturates = self.contracts = self.packs_words = True
        self.approximations = approximations(target)
        self.checks_alignment = target.is_emulated
        self.target = target
        self.min_blocks = 0  # to be resident on a multiprocessor; 0: unspecified
        self._entries: list[tuple[str, Sequence[Type], Builder, int, int]] = []
        self._used = set[str]()

    def declare(self, name: str, result: Type, parameters: Sequence[Type]) -> None:
        if name in FUNCTIONS:
            self._used.add(name)
        else:
            super().declare(name, result, parameters)

    def entry(
        self, name: str, words: Sequence[Type], max_threads: int, maps: int = 0
    ) -> GridBuilder:
        """Begin a kernel: its parameters are the grid, its argument words, and the addresses of its
        tensor maps.

        No block of its launches has more threads than `max_threads`. Tensor maps are passed by
        value; to emulated kernels, as words with their addresses.
        """
        inlining = "noinline" if self.target.is_emulated else "alwaysinline"
        kinds = [POINTER, *words, *[POINTER] * maps]
        body = self.function(f"{name}.body", kinds, attributes=f"{inlining} nounwind")
        assert isinstance(body, GridBuilder)
        self._entries.append((name, words, body, max_threads, maps))
        return body

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the kernels."""
        return tuple(name for name, *_ in self._entries)

    @property
    def text(self) -> str:
        meets = not SYNCHRONIZING.isdisjoint(self._used)
        parts = [super().text]
        if self.target.is_emulated:
            parts.append(emulation.definitions(frozenset(self._used)))
            parts += [
                emulation.entry(name, (*words, *[POINTER] * maps), meets)
                for name, words, _, _, maps in self._entries
            ]
        else:
            parts.append(nvptx.definitions(self._used))
            parts += [
                nvptx.entry(name, words, body.parameter_attributes, threads, maps, self.min_blocks)
                for name, words, body, threads, maps in self._entries
            ]
        return "".join(parts)


@dataclass(frozen=True)
class Grid:
    """The grid in an entry."""

    builder: Builder
    context: Value

    @classmethod
    def of(cls, entry: Builder) -> Grid:
        """The grid of an entry."""
        return cls(entry, entry.parameters[0])

    def thread(self) -> Value:
        """The index of the thread in its block (i32)."""
        return self._call("grid.thread")

    def threads(self) -> Value:
        """The number of threads of a block (i32)."""
        return self._call("grid.threads")

    def block(self, axis: str = "x") -> Value:
        """The index of the block along an axis of the grid (i32)."""
        return self._call(f"grid.block.{axis}")

    def blocks(self, axis: str = "x") -> Value:
        """The number of blocks along an axis of the grid (i32)."""
        return self._call(f"grid.blocks.{axis}")

    def shared(self) -> Value:
        """The address of the block's shared memory."""
        return self._call("grid.shared")

    def barrier(self) -> None:
        """Synchronize the threads of the block; their writes are visible afterwards."""
        self._call("grid.barrier")

    def warp_barrier(self) -> None:
        """Synchronize the 32 threads of the warp, all of which must take part."""
        self._call("grid.warp")

    def from_lane(self, value: Value, lane: Value) -> Value:
        """The value of a scalar in another lane of the warp; all 32 lanes must take part."""
        b, kind = self.builder, value.type
        raw = b.convert("bitcast", value, f"i{kind.bits}") if kind.is_float else value
        if kind.bits == 64:
            halves = b.emit(I32.of(2), f"bitcast {raw} to <2 x i32>")
            low, high = (self._call("grid.lane", b.extract(halves, n), lane) for n in (0, 1))
            whole = b.emit(I64, f"bitcast {b.vector([low, high])} to i64")
        else:
            wide = raw if kind.bits == 32 else b.convert("zext", raw, "i32")
            moved = self._call("grid.lane", wide, lane)
            whole = moved if kind.bits == 32 else b.convert("trunc", moved, f"i{kind.bits}")
        return b.convert("bitcast", whole, kind.scalar) if kind.is_float else whole

    def _call(self, name: str, *arguments: Value) -> Value:
        result, _ = FUNCTIONS[name]
        return self.builder.call(name, result, self.context, *arguments)
