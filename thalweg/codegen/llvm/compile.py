"""LLVM text to machine code, and machine code into memory.

What comes in is the text of a module and the target; what goes out is an object file, its
assembly for the reader, or the addresses of an object's functions in this process.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from thalweg.codegen.llvm.emitted import Passes
from thalweg.codegen.llvm.object_file import EXTERNAL, ObjectFile
from thalweg.codegen.llvm.threads import (
    Option,
    Tools,
    emitted,
    inside,
    module_of,
    new_machine,
    run_over_function,
    run_over_module,
    tools_for,
)
from thalweg.codegen.machine import CpuTarget, llvm, named, runs_here
from thalweg.platform.caches import memoized
from thalweg.platform.executable import executable

#: How often all passes run over iterations: no loop is to be left where its last values follow from
#: its first ones. The first round finds the trip count (the least of two, more arithmetic than LLVM
#: would spend without the option for it), the second finds that nothing else is done.
_ROUNDS = 2
#: Adding a library takes a linker time in proportion to those that it has already.
_LIBRARIES_PER_LINKER = 256
_LINKING = threading.RLock()
_libraries = itertools.count()
_linkers: list[Any] = []  # the one that takes the next library

Result = TypeVar("Result")


def object_code(text: str, target: CpuTarget, passes: Passes = "loops") -> bytes:
    """The object file of a module, which needs nothing but itself and the C library's memory."""
    code = _finished(text, target, passes, partial(emitted, is_object=True))
    missing = set(ObjectFile(code).undefined()) - EXTERNAL
    if missing:
        raise RuntimeError(f"A kernel calls what no kernel may call: {', '.join(sorted(missing))}.")
    return code


def assembly(text: str, target: CpuTarget, passes: Passes = "loops") -> str:
    """The instructions of a module, as the processor's maker writes them."""
    return _finished(text, target, passes, partial(emitted, is_object=False)).decode()


def optimised(text: str, target: CpuTarget, passes: Passes = "loops") -> str:
    """The text of a module after LLVM's passes."""
    return _finished(text, target, passes, lambda machine, module: str(module))


def place(code: bytes, functions: Sequence[str], target: CpuTarget) -> tuple[int, ...]:
    """Put an object into executable memory for good; the addresses of its functions."""
    if not runs_here(target):
        raise RuntimeError(f"This processor cannot run code for {target.name} ({target.cpu}).")
    flat = ObjectFile(code).flat(functions)
    if flat is not None:
        content, offsets = flat
        start = executable(content)
        return tuple([start + offset for offset in offsets])
    return _linked(code, functions)


def _linked(code: bytes, functions: Sequence[str]) -> tuple[int, ...]:
    """What takes a linker, by LLVM's: some 0.2 ms for each object, ten times as long as without."""
    with inside.kept(), _LINKING:
        # Its own library for each object: names of functions need not differ between kernels.
        library = llvm().JITLibraryBuilder().add_object_img(code)
        for name in functions:
            library.export_symbol(name)
        number = next(_libraries)
        placed = library.link(_linker_of(number), f"kernel{number}")
        placed.detach()  # never unloaded: a thread may be in the code when Python shuts down
        return tuple(placed[name] for name in functions)


def _finished(
    text: str, target: CpuTarget, passes: Passes, finish: Callable[[Any, Any], Result]
) -> Result:
    """What `finish` makes of a module after the passes that pay for it.

    For code of explicit vectors and simple loops those are two: loops are rotated, instructions
    combined; without them kernels are up to a fifth slower. All passes of LLVM's first level take
    three times as long and made no kernel faster; they run over iterations, which are to vanish.
    For tiles none pays: passes cost two thirds more time, for about a hundredth of speed. Nor do
    tiles gain by the reduction of strength in loops, without which they take a fifth less.
    """
    option: Option = "-disable-lsr=true" if passes == "tiles" else "-scev-cheap-expansion-budget=32"
    layout = _layout(target)
    with (
        tools_for(target) as tools,
        inside.kept(option),
        module_of(text, target.triple, layout) as module,
    ):
        if passes != "tiles":
            _simplify(module, tools, passes)
        return finish(tools.machine, module)


def _simplify(module: Any, tools: Tools, wanted: Passes) -> None:
    if wanted not in tools.passes:
        tools.passes[wanted] = _passes(tools.machine, wanted)
    builder, whole, single, rounds = tools.passes[wanted]
    run_over_module(whole, module, builder)
    for _ in range(rounds):
        for function in module.functions:
            if not function.is_declaration:
                run_over_function(single, function, builder)


def _passes(machine: Any, wanted: Passes) -> tuple[Any, Any, Any, int]:
    """What runs passes, those over a module and over a function, and how often the latter run."""
    options = llvm().create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_unrolling = options.loop_interleaving = False
    builder = llvm().create_pass_builder(machine, options)
    whole = llvm().create_new_module_pass_manager()
    whole.add_always_inliner_pass()
    whole.add_post_order_function_attributes_pass()  # what cannot throw needs no unwind tables
    if wanted == "iterations":
        return builder, whole, builder.getFunctionPassManager(), _ROUNDS
    single = llvm().create_new_function_pass_manager()
    single.add_loop_rotate_pass()
    single.add_instruction_combine_pass()
    return builder, whole, single, 1


@memoized(16)
def _layout(target: CpuTarget) -> str:
    return str(new_machine(target).target_data)


def _linker_of(number: int) -> Any:
    """What links a library. A linker that has enough of them is let go of, but not its code."""
    if number % _LIBRARIES_PER_LINKER == 0:
        machine = new_machine(named("native"))
        for full in _linkers:
            full.detach()
        _linkers[:] = [
            llvm().create_lljit_compiler(machine, use_jit_link=True, suppress_errors=True)
        ]
    return _linkers[0]
