"""Small helpers in machine code: LLVM text in, functions that Python can call out.

For what a plain loop over bytes needs and NumPy has no word for, such as checksums. The text names
no processor: LLVM makes it run on the one at hand. A call lets other Python threads go on.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import os
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

# A fork waits until no thread is inside LLVM, so that the child does not inherit it half way.
_LOCK = threading.RLock()
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)
_libraries = itertools.count()

Function = Any  # a function of ctypes
#: The types of a function: its result, then its arguments.
Types = tuple[Any, ...]


def functions(text: str, types: Mapping[str, Types]) -> list[Function]:
    """Compile a module; its functions by the names and types given, which stay for good."""
    with _LOCK:
        library = _llvm().JITLibraryBuilder().add_object_img(_object(text))
        for name in types:
            library.export_symbol(name)
        placed = library.link(_linker(), f"platform{next(_libraries)}")
        placed.detach()  # never unloaded: a thread may be in the code when Python shuts down
        return [ctypes.CFUNCTYPE(*kinds)(placed[name]) for name, kinds in types.items()]


def _object(text: str) -> bytes:
    llvm, machine = _llvm(), _machine()
    module = llvm.parse_assembly(text, context=llvm.create_context())
    module.triple, module.data_layout = llvm.get_process_triple(), str(machine.target_data)
    module.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    return machine.emit_object(module)


@cache
def _llvm() -> Any:
    """LLVM, imported when first asked for, as that takes a while."""
    binding = importlib.import_module("llvmlite.binding")
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@cache
def _machine() -> Any:
    return _new_machine()


def _new_machine() -> Any:
    llvm = _llvm()
    return llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=_features(),
        opt=2,
        reloc="pic",
        codemodel="small",
    )


def has(*features: str) -> bool:
    """Whether the processor has all of these, by LLVM's names."""
    return {f"+{feature}" for feature in features} <= set(_features().split(","))


def _features() -> str:
    try:
        return _llvm().get_host_cpu_features().flatten()
    except RuntimeError:  # LLVM cannot ask this system
        return ""


@cache
def _linker() -> Any:
    return _llvm().create_lljit_compiler(_new_machine(), use_jit_link=True, suppress_errors=True)
