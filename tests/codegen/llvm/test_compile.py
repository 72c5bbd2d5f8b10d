"""LLVM text to objects for every target, and objects into memory."""

import ctypes
import threading
from unittest.mock import Mock

import numpy as np
import pytest

from thalweg.codegen.llvm import compile as llvm_compile
from thalweg.codegen.llvm.builder import FLOAT, I64, POINTER, Module, Value, constant
from thalweg.codegen.llvm.compile import LlvmLock, assembly, object_code, optimised, place
from thalweg.codegen.machine import CpuTarget, host_supports, named

NATIVE = named("native")
X86 = pytest.mark.skipif(NATIVE.architecture != "x86_64", reason="reads x86-64 instructions")


def scale(lanes: int, factor: float = 2.5, name: str = "kernel") -> str:
    """y = x * factor + factor / 3 over a whole number of vectors."""
    module = Module()
    b = module.function(name, [POINTER, I64, I64])
    words = b.parameters[0]

    def word(kind, at: int) -> Value:
        return b.load(kind, b.element(words, "i64", constant(I64, at)))

    source, result, size = word(POINTER, 1), word(POINTER, 2), word(I64, 3)
    kind = FLOAT.of(lanes)
    with b.loop(constant(I64, 0), size, constant(I64, lanes)) as loop:
        value = b.load(kind, b.element(source, "float", loop.index))
        value = b.intrinsic("fma", value, constant(kind, factor), constant(kind, factor / 3))
        b.store(value, b.element(result, "float", loop.index))
    b.ret()
    return module.text


def call(address: int, words: np.ndarray) -> None:
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    native(address)(words.ctypes.data, 0, 1)


def run_scale(address: int, factor: float) -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    call(address, np.array([0, x.ctypes.data, y.ctypes.data, 64], np.int64))
    np.testing.assert_allclose(y, x * np.float32(factor) + np.float32(factor / 3), rtol=1e-6)


def test_a_block_has_no_instruction_twice():
    b = Module().function("kernel", [I64, I64])
    one, other = b.parameters
    first, again = b.binary("add", one, other), b.binary("add", one, other)
    with b.when(b.compare("slt", one, other)):
        elsewhere = b.binary("add", one, other)
    assert first == again
    assert elsewhere != first


def test_what_is_put_into_its_callers_is_not_compiled_by_itself():
    module = Module()
    inner = module.function("inner", [POINTER], attributes="alwaysinline nounwind")
    inner.store(constant(I64, 7), inner.parameters[0])
    inner.ret()
    outer = module.function("outer", [POINTER], attributes="nounwind")
    outer.line(f"call void @inner({outer.parameters[0]})")
    outer.ret()
    text = optimised(module.text, NATIVE, "iterations")
    assert "@outer" in text
    assert "@inner" not in text


@pytest.mark.parametrize("name", ["native", "x86-64-v4", "x86-64-v3"])
def test_code_runs(name: str):
    target = named(name)
    if not host_supports(target):
        pytest.skip(f"{name} does not run here")
    (address,) = place(object_code(scale(target.lanes), target), ["kernel"], target)
    run_scale(address, 2.5)


def test_kernels_may_have_the_same_name():
    codes = [object_code(scale(NATIVE.lanes, factor), NATIVE) for factor in (2.0, 3.0)]
    first, second = (place(code, ["kernel"], NATIVE)[0] for code in codes)
    run_scale(first, 2.0)
    run_scale(second, 3.0)


def test_functions_come_in_the_order_asked_for():
    other = scale(NATIVE.lanes, 3.0, "second").replace("declare", "; declare")
    text = scale(NATIVE.lanes, 2.0, "first") + other
    second, first = place(object_code(text, NATIVE), ["second", "first"], NATIVE)
    run_scale(first, 2.0)
    run_scale(second, 3.0)


@pytest.mark.parametrize("name", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64"])
def test_every_target_assembles(name: str):
    target = named(name)
    text = scale(target.lanes) if target.fma else scale(target.lanes).replace("fma", "fmuladd")
    assert object_code(text, target).startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("name", "register"), [("x86-64-v4", "zmm"), ("x86-64-v3", "ymm"), ("aarch64", ".4s")]
)
def test_the_widest_registers_are_used(name: str, register: str):
    target = named(name)
    text = assembly(scale(target.lanes), target)
    assert register in text
    assert "fma" in text or "fmla" in text


@X86
def test_constants_are_relative_to_the_code():
    text = assembly(scale(NATIVE.lanes), NATIVE)
    assert "(%rip)" in text
    assert "movabs" not in text


def test_loads_that_do_not_change_leave_their_loop():
    text = """
    define void @kernel(ptr noalias readonly %x, ptr noalias %y, i64 %n) {
    entry:
      br label %loop
    loop:
      %i = phi i64 [0, %entry], [%j, %loop]
      %v = load float, ptr %x
      %p = getelementptr float, ptr %y, i64 %i
      store float %v, ptr %p
      %j = add i64 %i, 1
      %c = icmp slt i64 %j, %n
      br i1 %c, label %loop, label %end
    end:
      ret void
    }"""
    seen = optimised(text, NATIVE, "iterations")
    assert seen.index("load float") < seen.index("phi")


def test_tiles_stay_as_they_are_and_loops_after_them_do_not():
    for passes in ("tiles", "loops"):
        (address,) = place(object_code(scale(NATIVE.lanes), NATIVE, passes), ["kernel"], NATIVE)
        run_scale(address, 2.5)
    text = "define i64 @kernel(i64 %a) {\n  %b = add i64 %a, 0\n  ret i64 %b\n}"
    assert "add" in optimised(text, NATIVE, "tiles")
    assert "add" not in optimised(text, NATIVE)


def test_functions_marked_so_are_inlined():
    text = """
    define internal float @twice(float %x) alwaysinline {
      %y = fadd float %x, %x
      ret float %y
    }
    define void @kernel(ptr %p) {
      %x = load float, ptr %p
      %y = call float @twice(float %x)
      store float %y, ptr %p
      ret void
    }"""
    assert "call" not in optimised(text, NATIVE)


def test_text_that_is_not_llvm_is_an_error():
    with pytest.raises(RuntimeError, match="expected type"):
        object_code("define void @kernel( {", NATIVE)


def test_text_that_breaks_the_rules_is_an_error():
    text = (
        "define void @kernel(i64 %a) {\n  %b = add i64 %c, 1\n  %c = add i64 %b, 1\n  ret void\n}"
    )
    with pytest.raises(RuntimeError, match="dominate"):
        object_code(text, NATIVE)


CALLS_MISSING = """
declare void @exit_of_nowhere()
define void @kernel() {
  call void @exit_of_nowhere()
  ret void
}"""


@pytest.mark.parametrize("name", ["exit_of_nowhere", "expf"])
@pytest.mark.parametrize("target", ["native", "aarch64"])
def test_a_call_out_of_the_kernels_is_an_error(name: str, target: str):
    with pytest.raises(RuntimeError, match=f"no kernel may call: {name}"):
        object_code(CALLS_MISSING.replace("exit_of_nowhere", name), named(target))


def test_a_name_that_is_not_in_the_object_is_an_error():
    with pytest.raises(RuntimeError, match="other"):
        place(object_code(scale(NATIVE.lanes), NATIVE), ["other"], NATIVE)


def test_a_broken_object_is_an_error():
    with pytest.raises(RuntimeError):
        place(object_code(scale(NATIVE.lanes), NATIVE)[:200], ["kernel"], NATIVE)


def test_memory_functions_are_found():
    text = """
    declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
    define void @kernel(ptr %p, i64 %n, i64 %m) {
      call void @llvm.memset.p0.i64(ptr %p, i8 7, i64 %n, i1 false)
      ret void
    }"""
    (address,) = place(object_code(text, NATIVE), ["kernel"], NATIVE)
    memory = np.zeros(1000, np.uint8)
    native = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    native(address)(memory.ctypes.data, 999, 0)
    assert memory[998] == 7
    assert memory[999] == 0


def foreign() -> CpuTarget:
    return named("x86-64-v2" if NATIVE.architecture == "aarch64" else "aarch64")


def test_code_for_another_processor_is_not_loaded():
    code = object_code(scale(4).replace("fma", "fmuladd"), foreign())
    with pytest.raises(RuntimeError, match="cannot run code for"):
        place(code, ["kernel"], foreign())


def test_threads_compile_side_by_side():
    placed: dict[float, int] = {}

    def work(factor: float) -> None:
        code = object_code(scale(NATIVE.lanes, factor), NATIVE)
        (placed[factor],) = place(code, ["kernel"], NATIVE)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for factor, address in placed.items():
        run_scale(address, factor)
    assert len(placed) == 8


def test_who_wants_the_same_of_llvm_is_inside_together():
    inside, meeting = LlvmLock(), threading.Barrier(2, timeout=60)

    def enter() -> None:
        with inside.acquired("-disable-lsr=true"):
            meeting.wait()

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not meeting.broken
    with inside.acquired(""):
        pass


def test_who_wants_something_else_of_llvm_waits():
    inside, order = LlvmLock(), list[str]()

    def enter() -> None:
        with inside.acquired(""):
            order.append("second")

    with inside.acquired("-disable-lsr=true"):
        thread = threading.Thread(target=enter)
        thread.start()
        with inside.acquired(""):  # what a finalizer does meanwhile takes what there is
            order.append("first")
        with inside.acquired():
            pass
    thread.join()
    assert order == ["first", "second"]


def test_a_child_waits_for_none_of_its_parents_threads():
    inside = LlvmLock()
    inside.before_fork()
    inside._forking += 1  # another thread is about to fork, too
    inside._threads.append(-1)  # and one is inside, as after a fork that did not wait
    inside.reset_in_child()
    assert inside._is_free_for("-disable-lsr=true")
    with inside.acquired("-disable-lsr=true"):
        pass
    with inside.acquired(""):
        pass


def test_without_the_library_at_hand_its_bindings_are_called(monkeypatch: pytest.MonkeyPatch):
    expected = object_code(scale(NATIVE.lanes), NATIVE)
    for kind in ("CDLL", "PyDLL"):
        monkeypatch.setattr(llvm_compile.ctypes, kind, Mock(side_effect=OSError))
    llvm_compile._function.cache_clear()
    assert object_code(scale(NATIVE.lanes), NATIVE) == expected
    llvm_compile._function.cache_clear()
