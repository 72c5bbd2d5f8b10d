"""The abstract grid by NVPTX instructions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from thalweg.codegen.llvm.builder import Type

_SREG = "llvm.nvvm.read.ptx.sreg"
_FULL = "i32 -1"  # all lanes of a warp take part
_TENSOR_MAP = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'  # read in place


def _register(name: str, source: str, low: int, high: int) -> str:
    """A function that reads a special register, whose values lie in a range."""
    return f"""declare i32 @{_SREG}.{source}()
define internal i32 @{name}(ptr %grid) alwaysinline nounwind {{
  %v = call range(i32 {low}, {high}) i32 @{_SREG}.{source}()
  ret i32 %v
}}
"""


_DEFINITIONS = {
    "grid.thread": _register("grid.thread", "tid.x", 0, 1024),
    "grid.threads": _register("grid.threads", "ntid.x", 1, 1025),
    **{
        f"grid.block.{axis}": _register(f"grid.block.{axis}", f"ctaid.{axis}", 0, 2**31 - 1)
        for axis in "xyz"
    },
    **{
        f"grid.blocks.{axis}": _register(f"grid.blocks.{axis}", f"nctaid.{axis}", 1, 2**31 - 1)
        for axis in "xyz"
    },
    "grid.barrier": """declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)
define internal void @grid.barrier(ptr %grid) alwaysinline convergent nounwind {
  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)
  ret void
}
""",
    "grid.warp": f"""declare void @llvm.nvvm.bar.warp.sync(i32)
define internal void @grid.warp(ptr %grid) alwaysinline convergent nounwind {{
  call void @llvm.nvvm.bar.warp.sync({_FULL})
  ret void
}}
""",
    "grid.lane": f"""declare i32 @llvm.nvvm.shfl.sync.idx.i32(i32, i32, i32, i32)
define internal i32 @grid.lane(ptr %grid, i32 %x, i32 %lane) alwaysinline convergent nounwind {{
  %v = call i32 @llvm.nvvm.shfl.sync.idx.i32({_FULL}, i32 %x, i32 %lane, i32 31)
  ret i32 %v
}}
""",
    "grid.shared": """@grid_memory = external addrspace(3) global [0 x i8], align 1024
define internal ptr @grid.shared(ptr %grid) alwaysinline nounwind {
  ret ptr addrspacecast (ptr addrspace(3) @grid_memory to ptr)
}
""",
}


def definitions(used: Collection[str]) -> str:
    """The used functions of the grid."""
    return "".join(text for name, text in _DEFINITIONS.items() if name in used)


def entry(
    name: str,
    words: Sequence[Type],
    marks: Mapping[int, str],
    max_threads: int,
    maps: int = 0,
    min_blocks: int = 0,
) -> str:
    """The launched kernel: runs `{name}.body` on the hardware's grid."""
    given = [f"{kind} {marks.get(1 + n, '')} %w{n}" for n, kind in enumerate(words)]
    given += [f"{_TENSOR_MAP} %m{n}" for n in range(maps)]
    passed = "".join(f", {kind} %w{n}" for n, kind in enumerate(words))
    passed += "".join(f", ptr %m{n}" for n in range(maps))
    attributes = f'nounwind "nvvm.maxntid"="{max_threads}"'
    if min_blocks:
        attributes += f' "nvvm.minctasm"="{min_blocks}"'
    return f"""define ptx_kernel void @{name}({", ".join(given)}) {attributes} {{
  call void @{name}.body(ptr null{passed})
  ret void
}}
"""
