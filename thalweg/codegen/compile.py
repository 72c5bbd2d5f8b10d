"""LLVM text to machine code, and machine code into memory.

What comes in is the text of a module and the target; what goes out is an object file, its
assembly for the reader, or the addresses of an object's functions in this process.
"""

from __future__ import annotations

import itertools
import os
import struct
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from thalweg.codegen.emitted import Passes
from thalweg.codegen.machine import Target, llvm, named, runs_here

# LLVM lets one thread in at a time. A fork waits until nobody is inside, so that the child does
# not inherit LLVM half way through something.
_LOCK = threading.RLock()
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)

#: What LLVM may call though no text says so.
_EXTERNAL = {"memset", "memcpy", "memmove", "_GLOBAL_OFFSET_TABLE_"}
_SYMBOL_TABLE = 2  # the type of a section
_CLOSING_BUDGET = 32  # instructions that a loop may be replaced by
_libraries = itertools.count()


def object_code(text: str, target: Target, passes: Passes = "loops") -> bytes:
    """The object file of a module, which needs nothing but itself and the C library's memory."""
    with _LOCK, _strength_reduction(passes != "tiles"):
        code = _machine(target).emit_object(_optimised(text, target, passes))
    missing = set(_undefined(code)) - _EXTERNAL
    if missing:
        raise RuntimeError(f"A kernel calls what no kernel may call: {', '.join(sorted(missing))}.")
    return code


def assembly(text: str, target: Target, passes: Passes = "loops") -> str:
    """The instructions of a module, as the processor's maker writes them."""
    with _LOCK, _strength_reduction(passes != "tiles"):
        return _machine(target).emit_assembly(_optimised(text, target, passes))


def optimised(text: str, target: Target, passes: Passes = "loops") -> str:
    """The text of a module after LLVM's passes."""
    with _LOCK:
        return str(_optimised(text, target, passes))


def place(code: bytes, functions: Sequence[str], target: Target) -> tuple[int, ...]:
    """Put an object into executable memory for good; the addresses of its functions."""
    if not runs_here(target):
        raise RuntimeError(f"This processor cannot run code for {target.name} ({target.cpu}).")
    with _LOCK:
        # Its own library for each object: names of functions need not differ between kernels.
        library = llvm().JITLibraryBuilder().add_object_img(code)
        for name in functions:
            library.export_symbol(name)
        placed = library.link(_linker(), f"kernel{next(_libraries)}")
        placed.detach()  # never unloaded: a thread may be in the code when Python shuts down
        return tuple(placed[name] for name in functions)


@contextmanager
def _strength_reduction(wanted: bool) -> Generator[None]:
    """Without it tiles take a fifth less to compile; on is LLVM's default."""
    if wanted:
        yield
        return
    llvm().set_option("", "-disable-lsr=true")
    try:
        yield
    finally:
        llvm().set_option("", "-disable-lsr=false")


def _optimised(text: str, target: Target, passes: Passes) -> Any:
    """A module after the passes that pay for it.

    For code of explicit vectors and simple loops those are the passes over one function at LLVM's
    first level: common subexpressions, loads moved out of loops, rotation, simpler indices. The
    higher levels take up to half as long again and made no kernel faster; nor did unrolling.
    For tiles none does: they cost two thirds more time, for about a hundredth of speed.
    """
    module = llvm().parse_assembly(text, context=llvm().create_context())
    module.triple, module.data_layout = target.triple, _layout(target)
    module.verify()
    if passes != "tiles":
        _simplify(module, target)
    if passes == "turns":
        _close(module, target)
    return module


def _simplify(module: Any, target: Target) -> None:
    passes = _pass_builder(target)
    whole = llvm().create_new_module_pass_manager()
    whole.add_always_inliner_pass()
    whole.add_post_order_function_attributes_pass()  # what cannot throw needs no unwind tables
    whole.run(module, passes)
    single = passes.getFunctionPassManager()
    for function in module.functions:
        if not function.is_declaration:
            single.run(function, passes)


def _close(module: Any, target: Target) -> None:
    """Have no loop where a loop's last values follow from its first ones.

    Whether they do shows once memory is out of the way, hence after other passes; the number of
    turns is the least of two, which is more arithmetic than LLVM would spend by itself. One pass
    then counts the turns, the next finds that nothing else is done in them.
    """
    llvm().set_option("", f"-scev-cheap-expansion-budget={_CLOSING_BUDGET}")
    try:
        for _ in range(2):
            _simplify(module, target)
    finally:
        llvm().set_option("", "-scev-cheap-expansion-budget=4")  # LLVM's own


def _pass_builder(target: Target) -> Any:
    options = llvm().create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    return llvm().create_pass_builder(_machine(target), options)


@cache
def _machine(target: Target) -> Any:
    return _new_machine(target)


def _new_machine(target: Target) -> Any:
    # Position-independent code in the small model reaches its constants relative to itself.
    return (
        llvm()
        .Target.from_triple(target.triple)
        .create_target_machine(
            cpu=target.cpu,
            features=target.features,
            opt=2,
            reloc="pic",
            codemodel="small",
        )
    )


@cache
def _layout(target: Target) -> str:
    return str(_machine(target).target_data)


@cache
def _linker() -> Any:
    machine = _new_machine(named("native"))
    return llvm().create_lljit_compiler(machine, use_jit_link=True, suppress_errors=True)


def _undefined(code: bytes) -> list[str]:
    """The names that an object file (ELF, 64 bits) uses and does not define."""
    start, size, count = *struct.unpack_from("<Q", code, 40), *struct.unpack_from("<HH", code, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + size * i) for i in range(count)]
    table = next(section for section in sections if section[1] == _SYMBOL_TABLE)
    names, offset, length = sections[table[6]][4], table[4], table[5]
    symbols = struct.iter_unpack("<IBBHQQ", code[offset : offset + length])
    return [
        _name(code, names + name) for name, _, _, section, _, _ in symbols if name and not section
    ]


def _name(code: bytes, start: int) -> str:
    return code[start : code.index(0, start)].decode()
