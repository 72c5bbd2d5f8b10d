"""Objects into memory: code and constants alone take no linker, all else does."""

import ctypes

import numpy as np
import pytest

from tests.codegen.contraction.contractions import matmul
from thalweg.codegen.emit import emit
from thalweg.codegen.llvm import compile as compiling
from thalweg.codegen.llvm.compile import object_code, place
from thalweg.codegen.llvm.object_file import ObjectFile
from thalweg.codegen.machine import named
from thalweg.platform.executable import executable

NATIVE = named("native")
ON_X86 = pytest.mark.skipif(NATIVE.architecture != "x86_64", reason="objects of x86-64")

#: Modules with a function of one integer.
FLAT = {
    "code": "define i64 @run(i64 %i) { %r = mul i64 %i, 3\n ret i64 %r }",
    "a table": """
@table = private unnamed_addr constant [4 x i64] [i64 7, i64 -1, i64 40, i64 5]
define i64 @run(i64 %i) {
  %a = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %r = load i64, ptr %a
  ret i64 %r
}""",
    "a vector that is read aligned": """
@bits = private constant <4 x i64> <i64 1, i64 2, i64 3, i64 4>, align 64
@odd = private constant [3 x i8] c"abc"
define i64 @run(i64 %i) {
  %v = load volatile <4 x i64>, ptr @bits, align 64
  %a = getelementptr [3 x i8], ptr @odd, i64 0, i64 1
  %o = load volatile i8, ptr %a
  %w = zext i8 %o to i64
  %x = extractelement <4 x i64> %v, i64 %i
  %r = add i64 %w, %x
  ret i64 %r
}""",
    "functions that call each other": """
define i64 @half(i64 %i) noinline { %r = ashr i64 %i, 1\n ret i64 %r }
define i64 @run(i64 %i) { %h = tail call i64 @half(i64 %i)\n ret i64 %h }""",
}
LINKED = {
    "memory of its own": """
@state = internal global i64 5
define i64 @run(i64 %i) {
  %old = load i64, ptr @state
  %r = add i64 %old, %i
  store i64 %old, ptr @state
  ret i64 %r
}""",
    "a function of the C library": """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define i64 @run(i64 %i) {
  %room = alloca [512 x i8]
  call void @llvm.memset.p0.i64(ptr %room, i8 1, i64 512, i1 false)
  %n = and i64 %i, 255
  call void @llvm.memset.p0.i64(ptr %room, i8 3, i64 %n, i1 true)
  %r = load volatile i64, ptr %room
  ret i64 %r
}""",
    "addresses in a table": """
@names = constant [2 x ptr] [ptr @one, ptr @two]
define i64 @one() { ret i64 1 }
define i64 @two() { ret i64 2 }
define i64 @run(i64 %i) {
  %n = and i64 %i, 1
  %a = getelementptr [2 x ptr], ptr @names, i64 0, i64 %n
  %f = load ptr, ptr %a
  %r = call i64 %f()
  ret i64 %r
}""",
}


def results(address: int) -> list[int]:
    """What a function gives for small numbers."""
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)
    return [function(number) for number in range(4)]


@pytest.mark.parametrize("text", [*FLAT.values(), *LINKED.values()], ids=[*FLAT, *LINKED])
def test_what_is_placed_computes_what_llvm_links(text: str):
    code = object_code(text, NATIVE)
    (placed,), (linked,) = place(code, ["run"], NATIVE), compiling._link(code, ["run"])
    assert placed != linked
    assert results(placed) == results(linked)


@ON_X86
@pytest.mark.parametrize("text", FLAT.values(), ids=[*FLAT])
def test_code_and_constants_take_no_linker(text: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(compiling, "_link")
    place(object_code(text, NATIVE), ["run"], NATIVE)


@pytest.mark.parametrize("text", LINKED.values(), ids=[*LINKED])
def test_what_refers_to_addresses_takes_one(text: str):
    assert ObjectFile(object_code(text, NATIVE)).flat(["run"]) is None


def test_objects_of_another_processor_are_left_alone():
    code = object_code(FLAT["code"], named("aarch64"))
    assert ObjectFile(code).flat(["run"]) is None


def test_a_function_that_is_not_there_is_not_found():
    assert ObjectFile(object_code(FLAT["code"], NATIVE)).flat(["other"]) is None
    assert ObjectFile(object_code(FLAT["code"], NATIVE)).flat([]) is None


@ON_X86
@pytest.mark.parametrize("size", [16, 33])
def test_a_product_takes_no_linker(size: int):
    made = emit(matmul(size, 48, 40), NATIVE)
    code = object_code(made.text, NATIVE, made.passes)
    content, offsets = ObjectFile(code).flat(made.functions) or (b"", [])
    assert len(offsets) == len(made.functions)
    assert all(offset < len(content) for offset in offsets)


def test_machine_code_cannot_be_written_again():
    content = np.arange(100, dtype=np.uint8).tobytes()
    start = executable(content)
    assert ctypes.string_at(start, 100) == content
    with open("/proc/self/maps") as maps:
        spans = [line.split()[:2] for line in maps]
    (rights,) = [
        rights
        for span, rights in spans
        if int(span.partition("-")[0], 16) <= start < int(span.partition("-")[2], 16)
    ]
    assert rights == "r-xp"
