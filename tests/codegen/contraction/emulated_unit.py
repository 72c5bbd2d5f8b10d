"""The matrix unit in plain LLVM: its instructions as functions over tiles that lie in memory.

Code for the unit runs on any machine so, slowly, with one set of tiles for the whole process.
"""

from dataclasses import replace

_DEFINITIONS = """
@tiles = internal global [8 x [1024 x i8]] zeroinitializer, align 64

define void @unit.ldtilecfg(ptr %settings) { ret void }

define void @unit.tilerelease() { ret void }

define void @unit.tilezero(i8 %t) {
  %n = zext i8 %t to i64
  %tile = getelementptr [1024 x i8], ptr @tiles, i64 %n
  call void @llvm.memset.p0.i64(ptr %tile, i8 0, i64 1024, i1 false)
  ret void
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)

define void @unit.tdpbf16ps(i8 %c, i8 %a, i8 %b) {
entry:
  %nc = zext i8 %c to i64
  %na = zext i8 %a to i64
  %nb = zext i8 %b to i64
  %tc = getelementptr [1024 x i8], ptr @tiles, i64 %nc
  %ta = getelementptr [1024 x i8], ptr @tiles, i64 %na
  %tb = getelementptr [1024 x i8], ptr @tiles, i64 %nb
  br label %steps
steps:
  %i = phi i64 [0, %entry], [%next, %steps]
  %row = lshr i64 %i, 4
  %pair = and i64 %i, 15
  %pc = getelementptr [64 x i8], ptr %tc, i64 %row
  %sums = load <16 x float>, ptr %pc, align 64
  %pa = getelementptr i32, ptr %ta, i64 %i
  %both = load i32, ptr %pa, align 4
  %pb = getelementptr [64 x i8], ptr %tb, i64 %pair
  %pairs = load <16 x i32>, ptr %pb, align 64
  %one = insertelement <16 x i32> poison, i32 %both, i64 0
  %all = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
  %a0 = shl <16 x i32> %all, splat (i32 16)
  %a1 = and <16 x i32> %all, splat (i32 -65536)
  %b0 = shl <16 x i32> %pairs, splat (i32 16)
  %b1 = and <16 x i32> %pairs, splat (i32 -65536)
  %fa0 = bitcast <16 x i32> %a0 to <16 x float>
  %fa1 = bitcast <16 x i32> %a1 to <16 x float>
  %fb0 = bitcast <16 x i32> %b0 to <16 x float>
  %fb1 = bitcast <16 x i32> %b1 to <16 x float>
  %p0 = fmul <16 x float> %fa0, %fb0
  %p1 = fmul <16 x float> %fa1, %fb1
  %s0 = fadd <16 x float> %sums, %p0
  %s1 = fadd <16 x float> %s0, %p1
  store <16 x float> %s1, ptr %pc, align 64
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 256
  br i1 %more, label %steps, label %done
done:
  ret void
}
"""


#: Rows of a tile go between it and memory, one way or the other.
_MOVE = """
define void @unit.{name}(i8 %t, ptr %memory, i64 %stride) {{
entry:
  %n = zext i8 %t to i64
  %tile = getelementptr [1024 x i8], ptr @tiles, i64 %n
  br label %rows
rows:
  %r = phi i64 [0, %entry], [%next, %rows]
  %far = mul i64 %r, %stride
  %outside = getelementptr i8, ptr %memory, i64 %far
  %inside = getelementptr [64 x i8], ptr %tile, i64 %r
  %row = load <16 x i32>, ptr %{source}, align 1
  store <16 x i32> %row, ptr %{sink}, align 1
  %next = add i64 %r, 1
  %more = icmp slt i64 %next, 16
  br i1 %more, label %rows, label %done
done:
  ret void
}}
"""
_MOVES = [
    _MOVE.format(name="tileloadd64", source="outside", sink="inside"),
    _MOVE.format(name="tilestored64", source="inside", sink="outside"),
]


def emulated(made):
    """Code for the unit that calls these functions instead of using its instructions."""
    lines = [
        line.replace("@llvm.x86.", "@unit.")
        for line in made.text.splitlines()
        if not line.startswith("declare") or "@llvm.x86." not in line
    ]
    return replace(made, text="\n".join([*lines, _DEFINITIONS, *_MOVES]))
